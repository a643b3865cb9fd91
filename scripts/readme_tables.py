#!/usr/bin/env python3
"""Writes the README's tables from the committed records, or with --check fails where they differ.

`<!-- record:PATH -->` ... `<!-- /record -->` encloses what comes from docs/records/PATH: a table of microseconds where
that is the JSON of `mnist-cuda bench`, the text itself where it is a .txt. Needs only Python.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Path("docs/records")
BLOCK = re.compile(r"(<!-- record:(\S+) -->\n).*?(<!-- /record -->)", re.DOTALL)


def render_text(text: str) -> str:
    """The text as a code block."""
    return f"```\n{text.rstrip()}\n```\n"


def _sound(row: dict[str, Any]) -> bool:
    return row["us"] is not None and not row["fault"]


def _figure(row: dict[str, Any] | None) -> str:
    """Median microseconds and, for an engine of ours, how many times faster than the best peer it is."""
    if row is None or not _sound(row):
        return "-"
    median = f"{row['us']['median']:,.0f}"
    if row["peer"] or not row["ratio"]:
        return median
    return f"**{median}** ({row['ratio']:.1f}x)"


def _machine(record: dict[str, Any]) -> str:
    machine, threads = record["machine"], record["settings"]["threads"]
    gpu = machine.get("gpu")
    return gpu["name"] if gpu else f"{machine['cpu']}, {threads} threads"


def render_bench(record: dict[str, Any], path: Path) -> str:
    """A row for each competitor, precision and place of the images; a column for each batch size."""
    cells: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for row in record["rows"]:
        key = (row["competitor"], row["precision"], row["data"])
        cells.setdefault(key, {})[row["batch_size"]] = row
    keys = [key for key, rows in cells.items() if any(map(_sound, rows.values()))]
    batches = sorted({batch for rows in cells.values() for batch in rows})
    placed = len({data for _, _, data in keys}) > 1

    def line(*fields: str) -> str:
        return f"| {' | '.join(fields)} |"

    lines = [line("us an iteration", *(f"B={batch}" for batch in batches)), line("---", *("---:" for _ in batches))]
    for key in keys:
        name, precision, data = key
        label = f"{name}, {precision}" + (f", images on the {data}" if placed else "")
        lines.append(line(label, *(_figure(cells[key].get(batch)) for batch in batches)))
    peers = [row for row in record["rows"] if row["peer"] and _sound(row)]
    others = ("numpy", "device", "gpu")
    versions = {f"{name} {value}" for row in peers for name, value in row["versions"].items() if name not in others}
    against = f", against {', '.join(sorted(versions))}" if versions else ""
    lines += [
        "",
        f"Median; in brackets how many times faster than the best peer. {_machine(record)}, {record['started'][:10]}"
        f"{against}. [Record]({path.parent.as_posix()}), made by `{record['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def render(path: Path) -> str:
    """What stands between the markers of this record."""
    text = (ROOT / path).read_text()
    return render_bench(json.loads(text), path) if path.suffix == ".json" else render_text(text)


def updated(readme: str) -> str:
    """The README with every block written anew. Raises FileNotFoundError for a record that is not there."""
    return BLOCK.sub(lambda m: m[1] + render(RECORDS / m[2]) + m[3], readme)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is stale")
    args = parser.parse_args()
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = updated(before)
    if args.check:
        if after != before:
            print("README.md is stale: run scripts/readme_tables.py", file=sys.stderr)
        return int(after != before)
    readme.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
