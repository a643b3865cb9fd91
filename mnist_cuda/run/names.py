"""RUN: a run by its name, its folder, a file in it, or `latest`. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mnist_cuda.errors import CheckpointError, UsageError, did_you_mean

RUNS = Path("runs")  # where runs go that are given no folder
MODEL_FILE = "model.safetensors"
RECORDS = ("config.json", "metrics.jsonl", "metrics.csv", "report.html")  # what a run leaves beside its model
LATEST = Path("latest")  # the newest run, unless something has this name


def find_run(named: Path | None, home: Path = RUNS, *, holding: str = MODEL_FILE, kind: str = "run") -> Path:
    """The path that RUN means: one that exists, or else the run of that name in `home`, or else the newest run there.

    named: None is `latest`. Where both exist, a folder without `holding` gives way to the run; a record beside a
    model, such as metrics.csv, means the model. holding: a file that the run must have; kind: what to
    call it in errors. A line on stderr names the newest run. Raises UsageError where there is none, CheckpointError for
    a name of nothing.
    """
    if named is not None:
        try:
            found = [path for path in (named, home / named) if path.exists()]
        except OSError as error:
            raise CheckpointError(f"{named}: cannot be read: {error.strerror or error}") from error
        if found:
            path = next((path for path in found if path.is_file() or os.path.exists(path / holding)), found[0])
            beside = holding == MODEL_FILE and path.name in RECORDS and os.path.exists(path.parent / MODEL_FILE)
            return path.parent if beside else path
        if named != LATEST:
            names = [run.name for run in home.iterdir()] if home.is_dir() else []
            hint = did_you_mean(named.name, names)
            raise CheckpointError(f"{named}: no such file or folder, and no {kind} of that name in {home}/{hint}")
    newest = newest_run(home, holding)
    if newest is None:
        model = " with a model" if holding == MODEL_FILE else ""
        raise UsageError(f"there is no {kind}{model} in {home}/; name the folder or a file of one")
    print(f"mnist-cuda: taking the newest {kind}, {newest}", file=sys.stderr)
    return newest


def find_folder(named: Path | None, home: Path = RUNS, *, kind: str = "run") -> Path:
    """As `find_run`, for what takes a run's folder: a file means the folder that it is in."""
    path = find_run(named, home, holding="config.json", kind=kind)
    return path.parent if path.is_file() else path


def newest_run(home: Path, holding: str) -> Path | None:
    """The folder in `home` whose file of this name was written last; None where there is none.

    An empty file does not count: a run that was killed before it began leaves an empty config.json.
    """
    found = [(file.stat(), file.parent.name) for file in home.glob(f"*/{holding}") if file.is_file()]
    times = [(status.st_mtime_ns, name) for status, name in found if status.st_size]
    return home / max(times)[1] if times else None
