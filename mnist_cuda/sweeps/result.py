"""What `sweep` returns: the rows of its models, also as arrays and as a data frame."""

from __future__ import annotations

import sys
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.errors import UnavailableError
from mnist_cuda.sweeps.grid import OPTIONS
from mnist_cuda.sweeps.recipes import recipes_of, table
from mnist_cuda.sweeps.table import CLASSES, SERIES, SweptModel

if TYPE_CHECKING:
    from pandas import DataFrame

NUMBERS = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "training_seconds")
SHOWN = 10  # recipes in a notebook


class SweepResult(list[SweptModel]):
    """A SweptModel for each run, in their order; a notebook shows the best recipes as a table.

    A recipe is all models that differ in the seed alone.
    """

    def __repr__(self) -> str:
        best = self.best
        found = "all diverged" if best is None else f"best {100 * (best.test_accuracy or 0):.2f} %, model {best.index}"
        return f"SweepResult({len(self)} models, {found})"

    def _repr_html_(self) -> str:
        columns, rows = table(recipes_of(self)[:SHOWN]) if self else ((), [])
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<p><b>{escape(repr(self))}</b></p><table><tr>{head}</tr>{body}</table>"

    @property
    def best(self) -> SweptModel | None:
        """The best model: by images held out if there are any, else by the test images; None if all diverged."""
        found = max(self, key=lambda row: row.rank, default=None)
        return None if found is None or found.fault else found

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """A column by its name, with a value for each of N models; NaN where a model has none.

        The options of TrainOptions, `test_accuracy`, `test_loss`, `validation_accuracy`, `validation_loss` and
        `training_seconds` (N,), and `correct` (N,10), the right test images of each class. Of each of E epochs (N,E):
        `losses` and `train_accuracies`, means over its steps, and of a sweep that tests after each epoch
        `test_accuracies` and `validation_accuracies`. `hits`, if they were kept: bool (N,1,M), or (N,E,M) if each epoch
        was tested, whether a model was right about test image 0 to M-1; False for an epoch that a model does not have.
        """
        columns: dict[str, NDArray[Any]] = {
            name: np.array([getattr(row.options, name) for row in self]) for name in OPTIONS
        }
        for name in NUMBERS:
            columns[name] = np.array([np.nan if getattr(row, name) is None else getattr(row, name) for row in self])
        columns["correct"] = np.array([row.correct or (np.nan,) * CLASSES for row in self]).reshape(-1, CLASSES)
        for name in SERIES.values():
            found = [getattr(row, name) for row in self]
            columns[name] = np.full((len(self), max(map(len, found), default=0)), np.nan)
            for values, of_row in zip(columns[name], found, strict=True):
                values[: len(of_row)] = of_row
        kept = {k: row.hits for k, row in enumerate(self) if row.hits is not None}
        if kept:
            epochs, images = max(hits.shape for hits in kept.values())
            columns["hits"] = np.zeros((len(self), epochs, images), bool)
            for k, hits in kept.items():
                columns["hits"][k, : len(hits)] = hits
        return columns

    def frame(self) -> DataFrame:
        """The same, without `hits`, as a data frame of pandas: a row per model. UnavailableError without pandas."""
        try:
            import pandas
        except ImportError as error:
            remedy = f"run `{sys.executable} -m pip install pandas`"
            raise UnavailableError(f"a data frame needs pandas ({error}): {remedy}") from error
        columns = self.arrays
        wide = {"correct": ("correct", 0), **{name: (prefix, 1) for prefix, name in SERIES.items()}}
        flat = {name: values for name, values in columns.items() if name not in wide and name != "hits"}
        for name, (prefix, first) in wide.items():
            flat |= {f"{prefix}_{first + n}": values for n, values in enumerate(columns[name].T)}
        return pandas.DataFrame(flat)
