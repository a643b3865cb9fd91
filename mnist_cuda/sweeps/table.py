"""The table of a sweep: a row for each model that was trained, as CSV and as Parquet."""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native
from mnist_cuda.errors import CheckpointError, UnavailableError, UsageError
from mnist_cuda.files import atomic_write, read_regular
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.sweeps.grid import OPTIONS, option

CLASSES: int = _native.CLASSES


@dataclass(frozen=True)
class SweptModel:
    """One model of a sweep.

    index: of its run, from 0. options: the run. losses, train_accuracies: means of each epoch that was completed, while
    the weights change. test_accuracies, validation_accuracies: after each of these epochs, of a sweep that tests after
    each; otherwise empty. test_accuracy, test_loss: after the last epoch. correct: right test images of each class
    (10). validation_accuracy, validation_loss: of the held-out images, if any. training_seconds: in steps alone; of
    models side by side, its part of their time. multiprocessors: its share of the GPU, with which `train` gives the
    same bits; 0 for all, and on the CPU. weights: sha256 of the parameters. fault: how its training diverged, in which
    case it has values of its completed epochs alone; otherwise empty. hits: which test images were right, bool (1,M)
    after the last epoch, or (epochs,M) after each; None unless the sweep keeps them.
    """

    index: int
    options: TrainOptions
    losses: tuple[float, ...]
    train_accuracies: tuple[float, ...] = ()
    test_accuracies: tuple[float, ...] = ()
    validation_accuracies: tuple[float, ...] = ()
    test_accuracy: float | None = None
    test_loss: float | None = None
    correct: tuple[int, ...] | None = None
    validation_accuracy: float | None = None
    validation_loss: float | None = None
    training_seconds: float | None = None
    multiprocessors: int = 0
    weights: str | None = None
    fault: str = ""
    hits: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)

    @property
    def rank(self) -> tuple[float, float, int]:
        """Greater is better: by held-out images if there are any, else by the test images; of equals the first run."""
        accuracy, loss = (
            (self.test_accuracy, self.test_loss)
            if self.validation_accuracy is None
            else (self.validation_accuracy, self.validation_loss)
        )
        if accuracy is None or loss is None:  # it diverged
            return -1.0, 0.0, -self.index
        return accuracy, -loss, -self.index


BYTES_A_CELL = 100  # of a number of an epoch: in a row, in a line, and the name of its column


_NUMBERS = {  # columns with a field's name
    "test_accuracy": float,
    "test_loss": float,
    "validation_accuracy": float,
    "validation_loss": float,
    "training_seconds": float,
    "multiprocessors": int,
    "weights": str,
    "fault": str,
}
_CHECK = "row_sha256"  # the last column of the CSV file: the first digits, over the cells before it
_CORRECT = tuple(f"correct_{label}" for label in range(CLASSES))


# Numbers of each epoch: a field by the prefix of its columns; the last ones where a sweep tests after each epoch.
SERIES = {
    "loss": "losses",
    "train_accuracy": "train_accuracies",
    "test_accuracy": "test_accuracies",
    "validation_accuracy": "validation_accuracies",
}
_UNTESTED = 2  # of them, without a test after each epoch


def series(each_epoch: bool) -> dict[str, str]:
    """The SERIES of a sweep that tests after each epoch, or only after the last."""
    return dict(list(SERIES.items())[: None if each_epoch else _UNTESTED])


def columns(epochs: int, each_epoch: bool = False) -> tuple[str, ...]:
    """The names of the columns where the longest run has so many epochs."""
    of_epochs = (f"{prefix}_{epoch}" for prefix in series(each_epoch) for epoch in range(1, epochs + 1))
    return ("model", *OPTIONS, *_NUMBERS, *_CORRECT, *of_epochs)


def cells(row: SweptModel, epochs: int, each_epoch: bool = False) -> list[Any]:
    """A row under `columns`; None where there is no value."""
    options = [getattr(row.options, name) for name in OPTIONS]
    numbers = [getattr(row, name) for name in _NUMBERS]
    correct = row.correct or [None] * CLASSES
    found = [getattr(row, name) for name in series(each_epoch).values()]
    of_epochs = [value for values in found for value in (*values, *[None] * (epochs - len(values)))]
    return [row.index, *options, *numbers, *correct, *of_epochs]


def _csv_line(values: Sequence[Any]) -> str:
    """A line of a CSV file; a float has all its digits, None is an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def _check(values: Sequence[Any]) -> str:
    return hashlib.sha256(_csv_line(values).encode()).hexdigest()[:16]


def csv_head(epochs: int, each_epoch: bool = False) -> str:
    """The first line of the CSV file."""
    return _csv_line([*columns(epochs, each_epoch), _CHECK])


def csv_row(row: SweptModel, epochs: int, each_epoch: bool = False) -> str:
    """The line of a row in the CSV file."""
    values = cells(row, epochs, each_epoch)
    return _csv_line([*values, _check(values)])


def read_table(path: Path, epochs: int, each_epoch: bool = False) -> list[SweptModel]:
    """The rows of a CSV file of `csv_head` and `csv_row`; none where there is no file. Raises CheckpointError."""
    try:
        text = read_regular(path).decode()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    names, table = (*columns(epochs, each_epoch), _CHECK), csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        if tuple(next(table, ())) != names:
            raise ValueError(f"its columns are not those of a sweep over {epochs} epochs")
        return [_row(dict(zip(names, line, strict=True)), epochs, each_epoch) for line in table]
    except (ValueError, UsageError, csv.Error) as error:
        raise CheckpointError(f"{path}:{table.line_num}: not a sweep's table: {error}") from error


def _row(cell: dict[str, str], epochs: int, each_epoch: bool) -> SweptModel:
    *values, check = cell.values()
    if check != _check(values):
        raise ValueError(f"its {_CHECK} is not that of the row; without this line its model is trained again")
    numbers: dict[str, Any] = {name: kind(cell[name]) for name, kind in _NUMBERS.items() if cell[name]}
    correct = [int(cell[name]) for name in _CORRECT if cell[name]]
    if len(correct) not in (0, CLASSES):
        raise ValueError(f"{len(correct)} of {CLASSES} classes have a number of right images")
    for prefix, name in series(each_epoch).items():
        texts = [cell[f"{prefix}_{k}"] for k in range(1, epochs + 1)]
        numbers[name] = tuple(float(text) for text in texts if text)
    options = TrainOptions(**{name: option(name, cell[name]) for name in OPTIONS})
    return SweptModel(int(cell["model"]), options, correct=tuple(correct) or None, **numbers)


def require_parquet() -> Any:
    """The package that writes Parquet. Raises UnavailableError without it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        remedy = f"run `{sys.executable} -m pip install pyarrow`"
        raise UnavailableError(f"Parquet takes the package pyarrow ({error}): {remedy}") from error
    return pyarrow


def write_parquet(path: Path, rows: Iterable[SweptModel], epochs: int, each_epoch: bool = False) -> None:
    """The same table as Parquet. Raises UnavailableError without pyarrow, CheckpointError as `atomic_write`."""
    arrow = require_parquet()
    kinds: dict[str, type] = {name: type(value) for name, value in vars(TrainOptions()).items()}
    kinds |= {"model": int, **_NUMBERS, **dict.fromkeys(_CORRECT, int)}
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    names = columns(epochs, each_epoch)
    schema = arrow.schema([(name, types[kinds.get(name, float)]) for name in names])
    lines = [cells(row, epochs, each_epoch) for row in rows]
    arrays = [[line[k] for line in lines] for k in range(len(names))]
    content = io.BytesIO()
    arrow.parquet.write_table(
        arrow.Table.from_arrays([*map(arrow.array, arrays, schema.types)], schema=schema), content
    )
    atomic_write(path, content.getvalue())
