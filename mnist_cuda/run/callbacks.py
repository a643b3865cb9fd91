"""What may look on while `train` trains, and end it: callbacks, early stopping, TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnist_cuda import rules
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.run.evaluation import set_model
from mnist_cuda.run.results import Evaluation, Model, TrainingResult
from mnist_cuda.run.training import Progress, Trainer
from mnist_cuda.terminal.console import plural, print_warning


class StopTraining(Exception):
    """Raised by a callback, it ends the training, and `train` returns what is trained. Its text says why."""


class Callback:
    """Base of what `train(callbacks=...)` calls; a method that is not overridden does nothing.

    StopTraining, raised by `on_progress` or `on_epoch`, ends the training; any other exception leaves `train`.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Called before the first step; `trainer` has the options, the data and, of a run that goes on, the epochs."""

    def on_progress(self, progress: Progress) -> None:
        """Called about ten times per second."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Called after each epoch with its record: see TrainingResult.epochs."""

    def on_end(self, result: TrainingResult) -> TrainingResult | None:
        """Called with what `train` returns; a result that this gives takes its place."""


class EarlyStopping(Callback):
    """Ends a training after `patience` epochs in which `key` has not become better than before.

    key: of an epoch's record: an accuracy, which has to rise, or a loss, which has to fall. `validation_accuracy` needs
    TrainOptions(validation=N); to stop by `test_accuracy` makes the result look better than it is.
    restore_best_weights: `train` returns the model of the best epoch and its evaluation, not the last one's, and the
    engine has it, too; a run's folder gets it as best.safetensors, beside the last one's model.safetensors.
    Raises UsageError for a patience below 1, and where epochs have no such key.
    """

    @rules.checked(patience=rules.COUNT, key=rules.TEXT, restore_best_weights=rules.SWITCH)
    def __init__(self, patience: int, key: str = "validation_accuracy", *, restore_best_weights: bool = False) -> None:
        self.patience, self.key, self.restore = patience, key, restore_best_weights
        self._epochs: list[Mapping[str, Any]] = []
        self._trainer: Trainer | None = None
        self._best: tuple[Model, Evaluation] | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Begin with the epochs that there are."""
        self._epochs, self._trainer, self._best = list(trainer.epochs), trainer, None
        if self.key.startswith("validation") and not trainer.options.validation:
            raise UsageError(f"early stopping by {self.key} needs images held out: give validation, such as 5000")

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Stop where it is time."""
        if not isinstance(record.get(self.key), int | float):
            raise UsageError(f"early stopping: an epoch's record has no number {self.key}")
        self._epochs.append(record)
        trainer = self._trainer
        if self.restore and trainer and trainer.evaluation and not since_best(self._epochs, self.key):
            if trainer.engine.statistics is None:  # which it was tested without
                trainer.engine.compute_statistics()
            self._best = trainer.model(trainer.engine.statistics), trainer.evaluation
        if reason := impatience(self._epochs, self.key, self.patience):
            raise StopTraining(reason)

    def on_end(self, result: TrainingResult) -> TrainingResult | None:
        """Give back the best epoch's model."""
        if not self.restore or not self._epochs:
            return None
        if self._best is None:
            epoch = self._epochs[-1 - since_best(self._epochs, self.key)].get("epoch")
            print_warning(f"the best epoch, {epoch}, was before the run went on here: the last one's weights stay")
            return None
        model, evaluation = self._best
        if result.engine:
            set_model(result.engine, model)
        return replace(result, model=model, evaluation=evaluation)


def since_best(epochs: Sequence[Mapping[str, Any]], key: str) -> int:
    """How many epochs ago `key` was best: the highest accuracy or the lowest loss, of equals the first."""
    sign = -1 if key.endswith("loss") else 1
    values = [sign * row[key] for row in epochs]
    return len(values) - 1 - values.index(max(values))


def impatience(epochs: Sequence[Mapping[str, Any]], key: str, patience: int) -> str:
    """Why it is in vain to go on, after `patience` epochs without a better `key`; empty before that."""
    in_vain = since_best(epochs, key) >= patience
    return f"no better {key.replace('_', ' ')} for {plural(patience, 'epoch')}" if in_vain else ""


class TensorBoard(Callback):
    """Writes each epoch's losses, accuracies and speed into a folder for TensorBoard (the extra `tensorboard`).

    Raises UnavailableError without the package tensorboard.
    """

    @rules.checked(folder=rules.PATH)
    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            remedy = f"run `{sys.executable} -m pip install tensorboard`"
            raise UnavailableError(f"TensorBoard needs the package tensorboard ({error}): {remedy}") from error
        self._writer = Writer(str(folder))

    def on_start(self, trainer: Trainer) -> None:
        """Write the epochs that there are."""
        for record in trainer.epochs:
            self.on_epoch(record)

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Write its numbers."""
        for tag, key in SCALARS.items():
            if record.get(key) is not None:
                self._writer.add_scalar(tag, record[key], record["epoch"])
        self._writer.flush()

    def on_end(self, result: TrainingResult) -> None:
        """Close the file."""
        self._writer.close()


# TensorBoard's names of an epoch's numbers.
SCALARS = {
    "loss/training": "loss",
    "loss/validation": "validation_loss",
    "loss/test": "test_loss",
    "accuracy/training": "train_accuracy",
    "accuracy/validation": "validation_accuracy",
    "accuracy/test": "test_accuracy",
    "images per second": "images_per_second",
}
