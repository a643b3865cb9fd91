"""The runs of a sweep: a grid of options, or a CSV file with a line for each."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mnist_cuda import memory
from mnist_cuda.errors import OutputError, UsageError, did_you_mean
from mnist_cuda.files import read_regular
from mnist_cuda.run.options import TrainOptions

OPTIONS = tuple(field.name for field in fields(TrainOptions))
_KINDS = {name: type(value) for name, value in vars(TrainOptions()).items()}
BYTES_A_MODEL = 2000  # of its run, its row and its line of the table, epochs apart
_EXPECTED = {int: "a whole number", float: "a number", str: "text"}


def grid(axes: Mapping[str, Sequence[Any]]) -> list[TrainOptions]:
    """Every combination of the values of each option, the last option changing fastest.

    Raises OutOfMemoryError where they are too many.
    """
    _require_memory(math.prod(map(len, axes.values())))
    return _grid(axes, {})


def _require_memory(models: int) -> None:
    memory.require(models * BYTES_A_MODEL, f"a sweep of {models} models")


def _grid(axes: Mapping[str, Sequence[Any]], line: Mapping[str, Any]) -> list[TrainOptions]:
    """The same, each with the options of `line`."""
    return [TrainOptions(**line, **dict(zip(axes, v, strict=True))) for v in itertools.product(*axes.values())]


def option(name: str, text: str) -> Any:
    """The value of an option by its text in a table. Raises UsageError."""
    kind = _KINDS[name]
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} is '{text}', expected {_EXPECTED[kind]}") from None


def read_runs(path: Path, axes: Mapping[str, Sequence[Any]]) -> list[TrainOptions]:
    """The runs of a CSV file, whose first line names options; each line with every combination of `axes`.

    axes: the values of options that the file has no column for. Raises OutputError where the file cannot be read,
    UsageError with the line where it is no such table.
    """
    try:
        text = read_regular(path).decode("utf-8-sig")
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise UsageError(f"{path}: it is no UTF-8 text, expected a CSV file of runs") from None
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    runs: list[TrainOptions] = []
    try:
        names = [name.strip() for name in next(table, [])]
        for k, name in enumerate(names):
            if name not in OPTIONS or name in names[:k]:
                fault = "is there twice" if name in names[:k] else "is unknown"
                known = f"expected some of {', '.join(OPTIONS)}{did_you_mean(name, OPTIONS)}"
                raise UsageError(f"column '{name}' {fault}, {known}")
        others = {name: values for name, values in axes.items() if name not in names}
        _require_memory(text.count("\n") * math.prod(map(len, others.values())))
        for cells in table:
            if len(cells) != len(names):
                if not cells:  # an empty line
                    continue
                raise UsageError(f"there are {len(cells)} cells, expected one for each of {len(names)} columns")
            line = {name: option(name, cell.strip()) for name, cell in zip(names, cells, strict=True)}
            runs += _grid(others, line)
    except (csv.Error, UsageError) as error:
        raise UsageError(f"{path}:{max(1, table.line_num)}: {error}") from error
    if not runs:
        raise UsageError(
            f"{path}: there is no run in it, expected a line with names of options and a line for each run"
        )
    return runs


def runs_table(runs: Iterable[TrainOptions]) -> bytes:
    """The CSV file that `read_runs` reads."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([OPTIONS, *([getattr(run, n) for n in OPTIONS] for run in runs)])
    return text.getvalue().encode()
