"""What a training gives: a model, how well it does on images, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from mnist_cuda.engine import Engine


@dataclass(frozen=True)
class Model:
    """A model as its file holds it.

    parameters: the 12, by PyTorch name. statistics: `bn*.running_mean` and `bn*.running_var`, None where they have not
    been computed. metadata: what it was trained on and how, as strings; `sha256` is there where the file had a digest.
    """

    parameters: dict[str, NDArray[Any]]
    statistics: dict[str, NDArray[Any]] | None = None
    metadata: dict[str, str] = field(default_factory=dict)


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
    """The result of a training.

    model: the weights by PyTorch name, the population statistics, and metadata; `save_model` writes it. evaluation: of
    the test images after the last epoch. epochs: a record for each epoch, the lines of metrics.jsonl: `loss`,
    `train_accuracy`, `test_accuracy`, `test_loss`, `train_seconds`, `us_per_iteration` and more. steps: updates in all.
    seconds: from the first step to the end, evaluations included; training_seconds: in steps alone. us_per_iteration:
    microseconds per step, mean over the last 100. engine: the engine, which holds these weights and statistics.
    """

    model: Model
    evaluation: Evaluation
    epochs: list[dict[str, Any]]
    steps: int
    seconds: float
    training_seconds: float
    us_per_iteration: float
    engine: Engine

    @property
    def accuracy(self) -> float:
        """Fraction of the test images that are right."""
        return self.evaluation.accuracy
