"""The records below docs/records: which of them the documentation may show."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mnist_cuda.bench.record import QUIET_LOAD

ROOT = Path(__file__).resolve().parents[2]
PRECISIONS = ("bf16", "tf32", "fp32", "fp64")  # in the order of tables

Record = dict[str, Any]


class RecordError(Exception):
    """A record that must not be shown: which, and why."""


def lacking(record: Record) -> list[str]:
    """What a record must hold and does not."""
    machine = record.get("machine") or {}
    commit = record.get("commit") or ""
    wanted = {
        f"a commit without changes (it says {commit or 'none'})": re.fullmatch("[0-9a-f]{40}", commit),
        "its command": record.get("command"),
        "versions": record.get("versions"),
        "the machine": machine.get("cpu") and machine.get("cores"),
        "the load before it": machine.get("load_before"),
    }
    return [what for what, there in wanted.items() if not there]


def read_record(file: Path) -> Record:
    """A record that may be shown. Raises RecordError for another."""
    try:
        record: Record = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{file}: {error}") from None
    if missing := lacking(record):
        raise RecordError(f"{file} lacks {', '.join(missing)}: measure it again from a clean commit")
    return record


def read_records(place: Path) -> list[Record]:
    """The records of a file, or of all JSON files of a folder, by their start: none where it is not there.

    Raises RecordError.
    """
    files = sorted(place.glob("*.json")) if place.is_dir() else [place] if place.exists() else []
    return sorted(map(read_record, files), key=lambda record: record["started"])


def rows_of(records: Sequence[Record]) -> list[Record]:
    """The rows of all of them, by precision: of a program's times in a cell the latest."""
    cell = ("competitor", "engine", "precision", "data", "models", "batch_size")
    rows = {tuple(row.get(name) for name in cell): row for record in records for row in record["rows"]}
    return sorted(rows.values(), key=lambda row: PRECISIONS.index(row["precision"]))


def loads(records: Sequence[Record]) -> str:
    """A sentence on the machine's load where it was not quiet before the start, or nothing."""
    busy = [
        f"load {machine['load_before'][0]:.1f} on {machine['cores']} cores"
        for machine in (record["machine"] for record in records)
        if machine["load_before"][0] > QUIET_LOAD * machine["cores"]
    ]
    return f" **The machine was busy before it** ({', '.join(dict.fromkeys(busy))})." if busy else ""
