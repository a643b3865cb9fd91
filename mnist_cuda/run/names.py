"""RUN on the command line: a run by its name, its folder, a file in it, or `latest`. Imports nothing heavy."""

from __future__ import annotations

import sys
from pathlib import Path

from mnist_cuda.errors import CheckpointError, UsageError

RUNS = Path("runs")  # where runs go that are given no folder
LATEST = Path("latest")  # the newest run, unless something has this name


def find_run(named: Path | None, home: Path = RUNS, *, holding: str = "model.safetensors", kind: str = "run") -> Path:
    """The path that RUN means: one that exists, or else the run of that name in `home`, or else the newest run there.

    named: None is `latest`. holding: a file that the newest run must have; kind: what to call it in errors. A line on
    stderr names the newest run. Raises UsageError where there is none, CheckpointError for a name of nothing.
    """
    if named is not None:
        for path in (named, home / named):
            if path.exists():
                return path
        if named != LATEST:
            raise CheckpointError(f"{named}: no such file or folder, and no {kind} of that name in {home}/")
    newest = newest_run(home, holding)
    if newest is None:
        model = " with a model" if holding == "model.safetensors" else ""
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
