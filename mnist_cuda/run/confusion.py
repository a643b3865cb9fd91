"""What a model takes the test images for: the confusion matrix, the errors of each class, the worst mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native
from mnist_cuda.data import dataset
from mnist_cuda.data.catalogue import CHOICES, OWN
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.data.places import is_there
from mnist_cuda.engine import BatchNorm, Engine, Images, Labels
from mnist_cuda.errors import DataError, UsageError
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.run.evaluation import BATCH_SIZE, Predictions, set_model
from mnist_cuda.run.folder import config_of, not_on_disk, recorded_data
from mnist_cuda.run.keeping import what_differs
from mnist_cuda.run.results import DIGITS, Model

CLASSES: int = _native.CLASSES


@dataclass(frozen=True)
class Answers:
    """The predictions of a model for N images, their `labels` (N,) uint8, and the names of the model's classes.

    An image whose scores are not all finite is wrong: it is an error of its class, and in no column of the matrix.
    """

    predictions: Predictions
    labels: Labels
    names: tuple[str, ...] = DIGITS

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The likeliest class (N,); -1 where the scores are not finite."""
        return self.predictions.classes

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """Of each class (N,10); NaN where the scores are not finite."""
        with np.errstate(invalid="ignore"):
            return self.predictions.probabilities

    @cached_property
    def matrix(self) -> NDArray[np.int64]:
        """How often (10,10) images of the row's class were taken for the column's."""
        matrix = np.zeros((CLASSES, CLASSES + 1), np.int64)
        np.add.at(matrix, (self.labels, self.predicted), 1)  # -1 is the last column
        return matrix[:, :CLASSES]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Images of each class (10,)."""
        return np.bincount(self.labels, minlength=CLASSES)

    @property
    def errors(self) -> NDArray[np.int64]:
        """Wrong images of each class (10,)."""
        errors: NDArray[np.int64] = self.counts - self.matrix.diagonal()
        return errors

    @property
    def accuracy(self) -> float:
        """Fraction of images that were right."""
        return float((self.predicted == self.labels).mean())

    @property
    def shown(self) -> int:
        """How many classes a table has: those of the model, and of the images."""
        return max(len(self.names), int(self.labels.max(initial=0)) + 1, int(self.predicted.max(initial=0)) + 1)

    def name(self, label: int) -> str:
        """A class in a table: its number, and its name where that is another."""
        name = self.names[label] if label < len(self.names) else str(label)
        return name if name == str(label) else f"{label} {name}"

    def mistakes(self) -> NDArray[np.int64]:
        """Indices of the wrong images, the worst first: those whose own class had the least probability."""
        wrong = np.flatnonzero(self.predicted != self.labels)
        own = np.nan_to_num(self.probabilities[wrong, self.labels[wrong]], nan=0.0)
        return wrong[np.argsort(own, kind="stable")]

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"matrix": self.matrix.tolist(), "images": self.counts.tolist(), "errors": self.errors.tolist()}


def taken_for(answers: Answers, index: int) -> str:
    """What an image was taken for, for people."""
    taken = int(answers.predicted[index])
    return "nothing" if taken < 0 else answers.name(taken)


def mistake(answers: Answers, index: int) -> str:
    """Which class a wrong image has and what it was taken for, for people."""
    label = int(answers.labels[index])
    share = f"{label} got {100 * answers.probabilities[index, label]:.2g} %"
    return f"{answers.name(label)}, taken for {taken_for(answers, index)} ({share})"


def answers_of(
    engine: Engine,
    images: Images,
    labels: Labels,
    batch_norm: BatchNorm = "population",
    names: tuple[str, ...] = DIGITS,
) -> Answers:
    """Score images (N,28,28) uint8 as `evaluate` does: `batch` normalises each BATCH_SIZE of them by their own."""
    size = BATCH_SIZE if batch_norm == "batch" else max(BATCH_SIZE, engine.evaluation_chunk())
    logits = [engine.logits(images[k : k + size], batch_norm) for k in range(0, len(images), size)]
    return Answers(Predictions(np.concatenate(logits)), labels, names)


def load_data_of(
    path: Path,
    model: Model,
    *,
    name: str | None = None,
    data_dir: Path | None = None,
    offline: bool = False,
    mirror: str | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Dataset:
    """Load the data set `name`, by default the one that the model at `path`, a file or a run's folder, was trained on.

    That comes from the folder that the run read, if it still exists, which a line for `say` then names; but not where
    name, data_dir or mirror say otherwise. The rest is as for `dataset.load`.
    """
    trained_on, config = model.metadata.get("dataset") or "auto", config_of(path)
    found, gone, recorded, chosen = name or trained_on, "", None, bool(name or data_dir or mirror)
    if data_dir and not name and (found == "synthetic" or found not in CHOICES):
        found = "auto" if found == "synthetic" else OWN[0]  # files were named, and these have none
    if config and not chosen and found != "synthetic":
        recorded = recorded_data(config, where=path)[1]
    if recorded and is_there(recorded):
        data_dir, found = recorded, found if found in CHOICES else OWN[0]
        say(f"reading {found} from {recorded}, as the training run did")
    elif recorded:
        gone = f"{recorded}, which the training run read, is gone: name where its data are now by --data-dir"
        if found in OWN or found not in CHOICES:
            raise DataError(gone)
    try:
        data = dataset.load(found, data_dir=data_dir, offline=offline, mirror=mirror)
    except DataError as error:
        raise DataError(f"{error}; {gone}" if gone else str(error)) from error
    except UsageError:
        if found in CHOICES and not (found in OWN and not name and not data_dir):
            raise
        raise not_on_disk(path, trained_on) from None
    if config and not chosen and (other := what_differs(config, data)):
        say(f"the {other} images in {data.source} are not those that the run had")
    if data.read_as:
        say(f"read as {data.read_as}")
    return data


def score_model(
    engine: Engine, path: Path, *, data_dir: Path | None = None, offline: bool = False
) -> tuple[Answers, Model, Dataset]:
    """Score the test images of the data set that the model at `path` was trained on: see `load_data_of`.

    The engine keeps the model. Raises CheckpointError, DataError and UsageError as those who read do.
    """
    model = load_model(path)
    data = load_data_of(path, model, data_dir=data_dir, offline=offline)
    set_model(engine, model)
    if model.statistics is None:
        engine.set_dataset(data.train_images, data.train_labels)
        engine.compute_statistics()
    return answers_of(engine, data.test_images, data.test_labels, names=model.names), model, data


def table(answers: Answers) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The names of the columns, and a row for each class, with what its images were taken for; nothing for a 0."""
    counts, errors, shown = answers.counts, answers.errors, answers.shown
    rows = []
    for label, row in enumerate(answers.matrix[:shown, :shown]):
        share = f"{100 * errors[label] / counts[label]:.2f}" if counts[label] else "-"
        cells = (str(n) if n else "." for n in row)
        rows.append((answers.name(label), *cells, str(errors[label]), str(counts[label]), share))
    return ("class", *map(str, range(shown)), "errors", "of", "error %"), rows
