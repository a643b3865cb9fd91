"""What a training gives: a model, how well it does on images, and how it came about."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mnist_cuda import _native
from mnist_cuda.data.catalogue import CLASS_NAMES
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import digest
from mnist_cuda.errors import CheckpointError
from mnist_cuda.rules import shown, whole
from mnist_cuda.terminal.json_input import parse_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIGITS = tuple(map(str, range(_native.CLASSES)))
STEPS = whole(0, 2**63 - 1)  # PyTorch's counters are int64
_COLUMNS = ("epoch", "loss", "train_accuracy", "validation_accuracy", "test_accuracy", "train_seconds")


@dataclass(frozen=True)
class Model:
    """A model as its file holds it.

    parameters: the 12, by PyTorch name. statistics: `bn*.running_mean` and `bn*.running_var`, None where they have not
    been computed. metadata: what it was trained on and how, as strings; `sha256` is there where the file had a digest.
    """

    parameters: dict[str, NDArray[Any]]
    statistics: dict[str, NDArray[Any]] | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes that it was trained on: digits, those of fashion-mnist or the data set's own."""
        names = CLASS_NAMES.get(self.metadata.get("dataset", ""), DIGITS)
        if "classes" in self.metadata:
            with contextlib.suppress(ValueError):
                names = tuple(map(str, parse_json(self.metadata["classes"], [object])))[: len(DIGITS)]
        return names or DIGITS

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each of the network's 10 outputs: `names`, and digits for those beyond them."""
        return self.names + DIGITS[len(self.names) :]

    @property
    def steps(self) -> int:
        """How many steps it was trained for, by its metadata; 0 where they do not say. CheckpointError for none."""
        text = self.metadata.get("steps", "0")
        try:
            return int(STEPS("steps", int(text)))
        except ValueError:
            raise CheckpointError(f"the model's metadata say steps {shown(text)}, expected {STEPS.expected}") from None

    @property
    def form(self) -> str:
        """The form of its training images, which pictures have to be brought into: see `digit.in_form`."""
        known = self.metadata.get("dataset", "mnist") in ("mnist", "synthetic")
        return self.metadata.get("form", "mnist" if known else "scaled")

    def __repr__(self) -> str:
        known = [f"{name}={self.metadata[name]}" for name in ("dataset", "epochs", "engine") if name in self.metadata]
        statistics = [] if self.statistics else ["no statistics"]
        return f"Model({', '.join([f'weights {digest(self.parameters)[:12]}', *known, *statistics])})"


@dataclass(frozen=True)
class Evaluation:
    """How many images of each class (10,) were right, of `count` in all, and their mean loss."""

    correct_by_class: tuple[int, ...]
    count: int
    loss: float

    @property
    def correct(self) -> int:
        """How many images were right."""
        return sum(self.correct_by_class)

    @property
    def accuracy(self) -> float:
        """Fraction of images that were right."""
        return self.correct / self.count


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training. It can be pickled, without its engine, and a notebook shows it as a table.

    model: the weights by PyTorch name, the population statistics, and metadata; `save_model` writes it. evaluation: of
    the test images after the last epoch. epochs: a record for each epoch, the lines of metrics.jsonl: `loss`,
    `train_accuracy`, `test_accuracy`, `test_loss`, `train_seconds`, `us_per_iteration` and more. steps: updates in all.
    seconds: from the first step to the end, evaluations included; training_seconds: in steps alone. us_per_iteration:
    microseconds per step, mean over the last 100. engine: the engine, which holds these weights and statistics; None
    in a copy of the result. stopped: why the training ended before its last epoch, `Ctrl-C` or what a callback says;
    empty where it did not. If that was within an epoch, `interrupted` is true in the last record, and `evaluation` is
    of the weights as they are.
    """

    model: Model
    evaluation: Evaluation
    epochs: list[dict[str, Any]]
    steps: int
    seconds: float
    training_seconds: float
    us_per_iteration: float
    engine: Engine | None
    stopped: str = ""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"engine": None}

    def __repr__(self) -> str:
        return f"TrainingResult({', '.join(self._facts())})"

    def _repr_html_(self) -> str:
        columns = [name for name in _COLUMNS if any(row.get(name) is not None for row in self.epochs)]
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in columns)
        rows = ("".join(f"<td>{_cell(name, row.get(name))}</td>" for name in columns) for row in self.epochs)
        table = "".join(f"<tr>{cells}</tr>" for cells in rows)
        first, *rest = self._facts()
        return f"<p><b>{first}</b> {escape(' · '.join(rest))}</p><table><tr>{head}</tr>{table}</table>"

    def _facts(self) -> list[str]:
        from mnist_cuda.terminal.console import format_duration, plural

        metadata = self.model.metadata
        engine = f"{metadata.get('engine')} {metadata.get('precision')}"
        epochs = plural(sum(not row.get("interrupted") for row in self.epochs), "epoch")
        stopped = [f"stopped: {self.stopped}"] if self.stopped else []
        return [f"{100 * self.accuracy:.2f} %", epochs, engine, format_duration(self.seconds), *stopped]

    @property
    def accuracy(self) -> float:
        """Fraction of the test images that are right."""
        return self.evaluation.accuracy

    def save(self, path: str | Path) -> None:
        """Write the model's file, as `save_model` does."""
        from mnist_cuda import save_model

        save_model(path, self.model)

    def plot(self) -> Figure:
        """Loss and accuracy by epoch, as `mnist-cuda report` draws them. UnavailableError without matplotlib."""
        from mnist_cuda.report import curves

        return curves.plot(self.epochs)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_accuracy"):
        return f"{100 * value:.2f} %"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
