"""What a report is made of: runs' folders, with their models tested once more, files of `profile` and `bench`, and
tables of sweeps.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnist_cuda import machine
from mnist_cuda.bench.profile import profile
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import Engine, find_engine
from mnist_cuda.errors import CheckpointError, DataError, OutOfMemoryError, UnavailableError, UsageError
from mnist_cuda.files import read_regular
from mnist_cuda.run.confusion import Answers, score_model
from mnist_cuda.run.listing import Run, load_run
from mnist_cuda.run.names import find_run
from mnist_cuda.run.results import Model
from mnist_cuda.sweeps.grid import OPTIONS
from mnist_cuda.sweeps.store import TABLE_FILE
from mnist_cuda.terminal.console import print_warning
from mnist_cuda.terminal.json_input import LONGEST, read_json

Record = dict[str, Any]
_COMMON = {"machine?": {"gpu?": ({"name?": str}, None), "cpu?": str}, "command?": str, "started?": str}
_OP = {
    "phase": str, "op": str, "unit": str, "bytes": float, "flops": float, "us": float, "least_us?": (float, None),
    "bound?": (str, None),
}  # fmt: skip
_ROW = {
    "competitor": str, "batch_size": int, "us": ({"median": float}, None), "precision": str, "data": str,
    "fault?": (str, None),
}  # fmt: skip
BENCH = {**_COMMON, "rows": [_ROW]}
PROFILE = {
    **_COMMON, "engine": str, "precision": str, "batch_size": int, "step_us": {"median": float}, "ops": [_OP],
    "roofs?": ({"bytes_per_second": float, "fma_flops?": float, "tf32_flops?": float, "bf16_flops?": float}, None),
}  # fmt: skip


@dataclass(frozen=True)
class Tested:
    """A run with its model and what that takes the test images for, by which engine."""

    run: Run
    engine: Engine
    answers: Answers
    model: Model
    data: Dataset


@dataclass(frozen=True)
class Swept:
    """The models of a sweep's table: the test accuracy of each, NaN where it diverged, and its options as text.

    name: the sweep's folder or, of a table elsewhere, the file. held: the accuracies on images held out, NaN where
    there are none; empty if the table has no such column. folder: of a sweep, where its page goes.
    """

    name: str
    accuracies: list[float]
    options: dict[str, list[str]]
    held: list[float] = field(default_factory=list)
    folder: Path | None = None


@dataclass
class Sources:
    """All that a report shows, in the order in which it was named.

    tested: the runs whose models could be tested. missing: sentences on what could not be had.
    """

    runs: list[Run] = field(default_factory=list)
    tested: list[Tested] = field(default_factory=list)
    profiles: list[Record] = field(default_factory=list)
    benches: list[Record] = field(default_factory=list)
    sweeps: list[Swept] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def read(names: Sequence[Path], folder: Path) -> Sources:
    """Read runs (paths, or names in `folder`), JSON files of `bench` and `profile`, and tables or folders of sweeps.

    Raises UsageError for a run given twice and for a file of something else, CheckpointError for what cannot be read.
    """
    sources = Sources()
    for name in (find_run(name, folder) for name in names):
        if name.suffix == ".json" and not name.is_dir():
            record = _record(name)
            (sources.profiles if "ops" in record else sources.benches).append(record)
            continue
        if name.suffix == ".csv" or (name / TABLE_FILE).is_file():
            sources.sweeps.append(read_sweep(name / TABLE_FILE if name.is_dir() else name))
            continue
        run = load_run(name.parent if name.is_file() else name)
        if any(run.path.samefile(other.path) for other in sources.runs):
            raise UsageError(f"{name}: this run is named twice")
        sources.runs.append(run)
    return sources


def read_sweep(file: Path) -> Swept:
    """Read a sweep's table, or some of its columns: the accuracies, and all options that differ between its models.

    Raises UsageError for another file, CheckpointError where it cannot be read.
    """
    try:
        text = read_regular(file, LONGEST).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot read it: {error}") from error
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        names = next(table, [])
        if "test_accuracy" not in names:
            raise ValueError("it has no column test_accuracy")
        columns = list(zip(*table, strict=True)) or [()] * len(names)
        found = dict(zip(names, columns, strict=True))
        accuracies, held = (
            [float(cell) if cell else math.nan for cell in found.get(name, ())]
            for name in ("test_accuracy", "validation_accuracy")
        )
        if any(not 0 <= value <= 1 for value in accuracies + held if not math.isnan(value)):
            raise ValueError("an accuracy is not between 0 and 1")
        for name in {"lr", "batch_size"} & found.keys():
            for cell in found[name]:
                float(cell)
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{file}: expected the table of `mnist-cuda sweep`: {error}") from error
    options = {name: list(found[name]) for name in OPTIONS if name in found}
    folder = file.resolve().parent if file.name == TABLE_FILE else None
    return Swept(folder.name if folder else file.name, accuracies, options, held, folder and file.parent)


def _record(file: Path) -> Record:
    try:
        record = read_json(file, {"ops?": list, "rows?": list})
        record = read_json(file, PROFILE if "ops" in record else BENCH)
        rows = record["ops"] if "ops" in record else record["rows"]
        least = [row["us"] if "ops" in record else row["batch_size"] for row in rows]
        least += [row["us"]["median"] for row in rows if isinstance(row["us"], dict)]
        if min([*least, *(record.get("roofs") or {}).values()], default=0) <= 0:
            raise ValueError("it has no row, or a time, rate or batch size that is not above 0")
    except OSError as error:
        raise CheckpointError(f"{file}: cannot read it: {error.strerror or error}") from error
    except ValueError as error:
        objects = "expected the object of `mnist-cuda bench --json` or `mnist-cuda profile --json`"
        raise UsageError(f"{file}: {objects}: {error}") from error
    return {**record, "file": file.name}


def complete(
    sources: Sources, *, data_dir: Path | None, offline: bool, profiles: bool, say: Callable[[str], None]
) -> None:
    """Test each run's model, and time a step of its engine op by op if `profiles`; `say` hears what takes long.

    The test images come from `data_dir`, or from where the run read them if they are still there.
    """
    profiled = set()
    for run in sources.runs:
        engine = _engine_of(run)
        say(f"testing {run.name} by {engine.info.name} {engine.precision}")
        try:
            answers, model, data = score_model(engine, run.path, data_dir=data_dir, offline=offline)
        except (CheckpointError, DataError, UsageError) as error:
            sources.missing.append(f"{run.name}: its model is not tested here: {error}")
            continue
        sources.tested.append(Tested(run, engine, answers, model, data))
        if data.warning:
            print_warning(data.warning)
        batch = run.config["options"].get("batch_size")
        case = (engine.info.name, engine.precision, batch)
        if not profiles or case in profiled or not isinstance(batch, int) or batch > len(data.train_labels):
            continue
        profiled.add(case)
        where = f"{engine.info.name} {engine.precision}, batch {batch}"
        say(f"timing the parts of a step of {where}")
        try:
            engine.set_dataset(data.train_images, data.train_labels)
            found = profile(engine, batch).as_dict()
        except (UnavailableError, OutOfMemoryError) as error:
            sources.missing.append(f"{where}: its steps cannot be timed here: {error}")
            continue
        gpu = machine.gpu() if engine.info.device == "cuda" else None
        sources.profiles.append({**machine.circumstances(gpu=gpu), **found})


def _engine_of(run: Run) -> Engine:
    """The run's engine in its precision, or the best one here where that cannot run here."""
    name, precision = run.config["engine"].get("name"), run.config["engine"].get("precision")
    try:
        here = precision not in find_engine(str(name)).unavailable_precisions
        return Engine(str(name), precision) if here else Engine()
    except UsageError:  # an engine or a precision of another version
        return Engine()
