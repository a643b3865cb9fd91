"""Finished and stopped runs, read from their folders: listed, compared, removed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnist_cuda.data.catalogue import without_password
from mnist_cuda.engine.model import digest
from mnist_cuda.errors import CheckpointError, UsageError, did_you_mean
from mnist_cuda.files import take_lock
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.run.folder import CHECKPOINTS, CONFIG_FILE, ResumedFolder, read_config, read_metrics
from mnist_cuda.run.names import MODEL_FILE, find_folder
from mnist_cuda.terminal import console

# What a run leaves in its folder, and `report` and `export` if no other file is named; with what a kill leaves of it.
_WRITTEN = re.compile(
    r"(config\.json|metrics\.(jsonl|csv)|(model|init|best|state-dict)\.safetensors|model\.onnx|report\.html"
    r"|step-\d+\.safetensors)(\.part)?|mnist-cuda-[0-9a-f]{16}\.part"
)


@dataclass(frozen=True)
class Run:
    """One run's folder: what was asked for (config.json), and a record for each epoch (metrics.jsonl)."""

    path: Path
    config: dict[str, Any]
    epochs: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def model(self) -> Path | None:
        """The saved model, or None where there is none yet."""
        file = self.path / MODEL_FILE
        return file if file.is_file() else None

    @property
    def accuracy(self) -> float | None:
        """Fraction of the test images that were right after the last complete epoch."""
        return next((e["test_accuracy"] for e in reversed(self.epochs) if e.get("test_accuracy") is not None), None)

    @property
    def complete(self) -> int:
        """Epochs that ran to their end."""
        return sum(not e.get("interrupted") for e in self.epochs)

    @property
    def seconds(self) -> float:
        """Time of training and evaluation."""
        return float(sum((e.get("train_seconds") or 0) + (e.get("evaluation_seconds") or 0) for e in self.epochs))

    @property
    def state(self) -> str:
        """`running`, `done`, `stopped`, `diverged` or `killed`."""
        if "ended" in self.config:
            return str(self.config["ended"])
        with contextlib.suppress(OSError):
            if _goes_on(self.path):
                return "running"
        if self.complete == self.config["options"].get("epochs"):  # of a version that did not write it
            return "done"
        return "stopped" if self.epochs and self.epochs[-1].get("interrupted") else "killed"

    @property
    def note(self) -> str:
        """What a person wrote about it."""
        return str(self.config.get("note", ""))

    @property
    def engine(self) -> str:
        """Engine and precision."""
        engine = self.config["engine"]
        return f"{engine.get('name')} {engine.get('precision')}"


def load_run(path: Path) -> Run:
    """Read a run's folder. Raises CheckpointError where it is none, or its files are damaged."""
    if not (path / CONFIG_FILE).exists():
        raise CheckpointError(f"{path}: not a run's folder, it has no {CONFIG_FILE}")
    return Run(path, read_config(path), read_metrics(path))


def find(name: Path, folder: Path) -> Run:
    """The run that `name` means, as `find_folder` finds it. Raises CheckpointError and UsageError."""
    return load_run(find_folder(name, folder))


def list_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """All runs in `folder`, by name, and a sentence for each that cannot be read. UsageError without the folder."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder} here; `mnist-cuda train` makes it, or name another by --dir")
    runs, faults = [], []
    for path in sorted(folder.iterdir()):
        try:
            if (path / CONFIG_FILE).exists():
                runs.append(load_run(path))
        except CheckpointError as error:
            faults.append(str(error))
        except OSError as error:
            faults.append(f"{path}: cannot be read: {error.strerror or error}")
    return runs, faults


COLUMNS = ("run", "state", "accuracy", "epochs", "engine", "time", "batch", "lr", "data", "note")
RIGHT, OPTIONAL = ("accuracy", "time", "batch", "lr"), ("batch", "lr", "note", "data")  # for print_table


def row(run: Run) -> tuple[str, ...]:
    """The cells of a run under COLUMNS."""
    options = run.config["options"]
    accuracy, asked = run.accuracy, options.get("epochs")
    return (
        run.name,
        run.state,
        "-" if accuracy is None else f"{100 * accuracy:.2f} %",
        f"{run.complete}" if run.complete == asked else f"{run.complete} of {asked}",
        run.engine,
        console.format_duration(run.seconds),
        str(options.get("batch_size")),
        f"{options['lr']:g}" if isinstance(options.get("lr"), int | float) else "-",
        str(run.config.get("data", {}).get("name")),
        run.note,
    )


def table(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """COLUMNS and a row for each run; without notes where there is none."""
    if any(run.note for run in runs):
        return COLUMNS, [row(run) for run in runs]
    return COLUMNS[:-1], [row(run)[:-1] for run in runs]


def facts(run: Run) -> dict[str, Any]:
    """What runs are sorted and chosen by: options, and what the list shows; accuracy in per cent, time in seconds."""
    accuracy = run.accuracy
    return {
        **run.config["options"],
        "run": run.name,
        "state": run.state,
        "accuracy": None if accuracy is None else 100 * accuracy,
        "done": run.complete,
        "engine": run.config["engine"].get("name"),
        "precision": run.config["engine"].get("precision"),
        "time": run.seconds,
        "started": run.config.get("started"),
        "batch": run.config["options"].get("batch_size"),
        "data": run.config.get("data", {}).get("name"),
        "note": run.note,
    }


_CONDITION = re.compile(r"(\w+)(<=|>=|!=|=|<|>)(.*)")


def chosen(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """The runs that meet all conditions, such as `lr=0.05` and `accuracy>98`. UsageError for one that is none."""
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if not match:
            raise UsageError(f"--where {condition}: expected NAME=VALUE, or <, >, <=, >= or != between them")
        name, comparison, value = match.groups()
        runs = [run for run in runs if _meets(_fact(run, name), comparison, value, condition)]
    return list(runs)


def ordered(runs: Sequence[Run], name: str, *, reverse: bool = False) -> list[Run]:
    """The runs by one of their facts, the least first; those without it last. UsageError for an unknown name."""
    known = [run for run in runs if _fact(run, name) is not None]
    rest = [run for run in runs if _fact(run, name) is None]
    try:
        return sorted(known, key=lambda run: _fact(run, name), reverse=reverse) + rest
    except TypeError:
        return sorted(known, key=lambda run: str(_fact(run, name)), reverse=reverse) + rest


def _fact(run: Run, name: str) -> Any:
    found = facts(run)
    if name not in found:
        names = ", ".join(sorted(found))
        raise UsageError(f"'{name}' is unknown, expected one of {names}{did_you_mean(name, found)}")
    return found[name]


def _meets(value: Any, comparison: str, text: str, condition: str) -> bool:
    if comparison in ("=", "!="):
        try:
            same = float(value) == float(text)
        except (TypeError, ValueError):
            same = text == ("" if value is None else str(value))
        return same == (comparison == "=")
    try:
        limit = float(text)
    except ValueError:
        raise UsageError(f"--where {condition}: '{text}' is not a number") from None
    if not isinstance(value, int | float):
        return False
    return {"<": value < limit, ">": value > limit, "<=": value <= limit, ">=": value >= limit}[comparison]


def summary(run: Run) -> list[tuple[str, str]]:
    """A run in about ten lines, each with a word for it."""
    found = flat(run)
    last: dict[str, Any] = next((e for e in reversed(run.epochs) if e.get("test_accuracy") is not None), {})
    result = "-"
    if last:
        loss = f", loss {last['test_loss']:.4f}" if last.get("test_loss") is not None else ""
        result = f"{100 * last['test_accuracy']:.2f} % of the test images{loss}"
    held = found.get("options.validation", "0")
    threads = found.get("machine.threads", "null")
    place = found.get("machine.device.name") or found.get("machine.cpu", "?")
    commit = found.get("commit", "null")
    times = len(run.config.get("resumed", ()))
    lines = [
        ("run", str(run.path)),
        (
            "state",
            f"{run.state}, {run.complete} of {found.get('options.epochs', '?')} epochs"
            + (f", continued {console.plural(times, 'time')}" if times else ""),
        ),
        ("result", result),
        ("time", console.format_duration(run.seconds)),
        ("weights", _weights(run)),
        (
            "plan",
            f"batch {found.get('options.batch_size')}, lr {found.get('options.lr')} "
            f"{found.get('options.schedule', 'constant')}, seed {found.get('options.seed')}"
            + (f", {held} held out" if held != "0" else ""),
        ),
        ("data", f"{found.get('data.name')}: {found.get('data.training_images')} images, {found.get('data.source')}"),
        ("engine", f"{run.engine}, on {place}{f', threads: {threads}' if threads != 'null' else ''}"),
        ("version", f"{found.get('versions.mnist-cuda')}{f', commit {commit[:12]}' if commit != 'null' else ''}"),
        ("command", f"{without_password(str(run.config.get('command')))} ({run.config.get('started')})"),
    ]
    return lines + ([("note", run.note)] if run.note else [])


def _weights(run: Run) -> str:
    """The start of the digest of the model's weights, and their file."""
    if run.model is None:
        return "none saved yet"
    try:
        return f"{digest(load_model(run.model).parameters)[:12]}, {run.model.name}"
    except CheckpointError as error:
        return str(error)


def write_note(path: Path, text: str) -> None:
    """Write a note to a run, or without text remove it. UsageError where it still runs, CheckpointError."""
    with ResumedFolder(path) as folder:
        rest = {name: value for name, value in folder.config.items() if name != "note"}
        folder.start(rest | ({"note": text} if text else {}))


def cell(value: Any) -> str:
    """A value of an epoch's record, for people."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def as_dict(run: Run) -> dict[str, Any]:
    """What `--json` prints of a run in a list."""
    return {
        "run": run.name,
        "folder": str(run.path),
        "accuracy": run.accuracy,
        "state": run.state,
        "note": run.note,
        "epochs": run.complete,
        "engine": run.config["engine"].get("name"),
        "precision": run.config["engine"].get("precision"),
        "seconds": run.seconds,
        "started": run.config.get("started"),
        "dataset": run.config.get("data", {}).get("name"),
        "options": run.config["options"],
    }


def flat(run: Run) -> dict[str, str]:
    """Everything in config.json but the command and the place, by dotted name, and the results."""
    facts: dict[str, str] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), item)
        elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            add(prefix, dict(enumerate(value, 1)))
        else:
            facts[prefix] = without_password(value if isinstance(value, str) else json.dumps(value))

    add("", {key: value for key, value in run.config.items() if key not in ("command", "started")})
    for place in ("options.out", "options.json"):
        facts.pop(place, None)
    last: dict[str, Any] = next((epoch for epoch in reversed(run.epochs) if not epoch.get("interrupted")), {})
    for key in ("loss", "train_accuracy", "test_loss", "test_accuracy"):
        if last.get(key) is not None:
            facts[f"result.{key}"] = f"{last[key]:.6g}"
    facts["result.epochs"] = str(run.complete)
    facts["result.seconds"] = f"{run.seconds:.3f}"
    return facts


def differences(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each fact in which the runs differ: its name, then each run's value, `-` where it has none."""
    tables = [flat(run) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, *(table.get(name, "-") for table in tables)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def own_files(run: Run) -> list[Path]:
    """The files in a run's folder, config.json last, and the folder of its checkpoints.

    Raises CheckpointError where the folder holds anything that no run leaves there, or is a link to a folder, and where
    no run wrote its config.json.
    """
    if run.path.is_symlink():
        raise CheckpointError(f"{run.path}: cannot remove it: it is a symbolic link, name the folder itself")
    versions = run.config.get("versions")
    if not (isinstance(versions, dict) and "mnist-cuda" in versions):
        raise CheckpointError(f"{run.path}: cannot remove it: its {CONFIG_FILE} is not one that `mnist-cuda` wrote")
    states = run.path / CHECKPOINTS
    try:
        found = list(run.path.iterdir())
        if states in found and states.is_dir() and not states.is_symlink():
            found = [*(path for path in found if path != states), *states.iterdir(), states]
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read: {error.strerror or error}") from error
    foreign = [path for path in found if path != states and not (path.is_file() and _WRITTEN.fullmatch(path.name))]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise CheckpointError(f"{run.path}: cannot remove it: no run wrote {foreign[0]}{more}; move that away first")
    return sorted(found, key=lambda path: (path == run.path / CONFIG_FILE, path == states))


def remove(run: Run) -> None:
    """Delete a run's folder with what the run wrote there.

    Raises CheckpointError where that fails, where its run has not ended, and as `own_files` does; then nothing is gone.
    """
    try:
        files = own_files(run)
        if _goes_on(run.path):
            raise CheckpointError(f"{run.path}: its run has not ended, stop it first")
        for path in files:
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
        run.path.rmdir()
    except OSError as error:
        raise CheckpointError(f"{error.filename or run.path}: cannot remove it: {error.strerror or error}") from error


def _goes_on(folder: Path) -> bool:
    """Whether the run of this folder holds its lock."""
    try:
        os.close(take_lock(folder)[0])
    except BlockingIOError:
        return True
    return False
