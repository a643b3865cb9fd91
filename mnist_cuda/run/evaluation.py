"""A trained model on images: its accuracy and loss on a set with labels, and what it says of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native, rules
from mnist_cuda.data.arrays import images_of, pair_of
from mnist_cuda.engine import BatchNorm, Engine
from mnist_cuda.errors import DataError, UsageError
from mnist_cuda.run.checkpoint import load_model, no_statistics
from mnist_cuda.run.results import DIGITS, Evaluation, Model, TrainingResult

# What stands for a trained model: the last two are RUN, as `load_model` takes it.
Trained: TypeAlias = Engine | Model | TrainingResult | str | Path

# Images a call. With batch statistics it is also the batch; it divides the 10,000 test images.
BATCH_SIZE = 250
CHUNK = 1000  # images a call of `predict`
SHOWN = 10  # classes in a repr


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for N images.

    logits (N,10) float64: the scores before softmax. names: those of the C classes that the model was trained on, of
    which each image gets one. probabilities (N,C) float64, a row adds up to 1. classes (N,) int64: the likeliest; -1
    where the scores are not finite. labels: the names of these, `-` for -1.
    """

    logits: NDArray[np.float64]
    names: tuple[str, ...] = DIGITS

    def __repr__(self) -> str:
        shown = ", ".join(self.labels[:SHOWN])
        return f"Predictions([{shown}{', ...' if len(self.logits) > SHOWN else ''}], images={len(self.logits)})"

    @property
    def _scores(self) -> NDArray[np.float64]:
        return self.logits[:, : len(self.names)]

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Softmax of the logits of the classes that have a name."""
        e = np.exp(self._scores - self._scores.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = e / e.sum(axis=1, keepdims=True)
        return shares

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class with the greatest logit."""
        return np.where(np.isfinite(self.logits).all(axis=1), self._scores.argmax(axis=1), -1)

    @property
    def labels(self) -> list[str]:
        """The name of the class with the greatest logit."""
        return [self.names[k] if k >= 0 else "-" for k in self.classes.tolist()]


def set_model(engine: Engine, model: Model) -> None:
    """Give an engine a model's parameters and, where it has them, statistics."""
    engine.set_parameters(model.parameters)
    if model.statistics is not None:
        engine.set_statistics(model.statistics)


def model_of(model: Trained) -> Model:
    """The model that this stands for; of an Engine, without metadata.

    Raises CheckpointError for a file that is no model, UsageError for what is none of these.
    """
    if isinstance(model, TrainingResult):
        return model.model
    if isinstance(model, Engine):
        return Model(model.parameters, model.statistics)
    if isinstance(model, str | Path):
        return load_model(model)
    if not isinstance(model, Model):
        kinds = "an Engine, a Model, what `train` gives, or a run's name or folder, a model's file, or `latest`"
        raise UsageError(f"model is of type {type(model).__name__}, expected {kinds}")
    return model


def engine_of(model: Trained, name: str = "auto", precision: str | None = None) -> Engine:
    """An engine with a model's parameters and, where it has them, statistics; an Engine or a result gives its own.

    Raises what `model_of` does.
    """
    found = model.engine if isinstance(model, TrainingResult) else model
    if isinstance(found, Engine):
        return found
    engine = Engine(name, precision)
    set_model(engine, model_of(model))
    return engine


@rules.checked(precision=rules.optional(rules.TEXT))
def predict(model: Trained, images: object, *, engine: str = "auto", precision: str | None = None) -> Predictions:
    """Predict the digits of images (N,28,28) uint8, or of one image (28,28): white strokes, 255, on black, 0.

    model: an Engine, what `load_model` or `train` gives, or what `load_model` takes: a run's name or folder, a model's
    file, or `latest`. images: in any form that `dataset_of` takes. engine, precision: for a model that is in none yet,
    which one computes. Batch norm uses the population statistics.

    Raises DataError for images of another shape, dtype or value, CheckpointError for a model without statistics or a
    file that is no model.
    """
    try:
        pixels = images_of(images)
    except ValueError as error:
        raise DataError(f"predict: images: {error}") from error
    model = model if isinstance(model, Engine | TrainingResult) else model_of(model)  # a file is read once
    ready = engine_of(model, engine, precision)
    if ready.statistics is None:
        raise no_statistics("the model", "Engine.compute_statistics makes them from its data")
    parts = [ready.logits(pixels[first : first + CHUNK]) for first in range(0, len(pixels), CHUNK)]
    names = DIGITS if isinstance(model, Engine) else model_of(model).names
    return Predictions(np.concatenate(parts) if parts else np.empty((0, len(DIGITS))), names)


@rules.checked(batch_norm=rules.EVAL_BN)
def evaluate(model: Trained, images: object, labels: object, batch_norm: BatchNorm = "population") -> Evaluation:
    """Evaluate images (N,28,28) uint8 with labels (N,), integers from 0 to 9. Scores that are not finite are wrong.

    model: as for `predict`. batch_norm: `population` needs the model's statistics; `batch` normalises each BATCH_SIZE
    images by their own.
    images, labels: any arrays on the host, as for `predict`.
    Raises DataError for images or labels of another shape, dtype or value, for no images, and where images and labels
    differ in number, UsageError without statistics.
    """
    try:
        pixels, classes = pair_of(images, labels)
    except ValueError as error:
        raise DataError(f"evaluate: {error}") from error
    engine = engine_of(model)
    if batch_norm == "population":
        engine.set_evaluation_set(pixels, classes)
        return evaluate_again(engine)
    correct, loss = np.zeros(_native.CLASSES, np.int64), 0.0
    for first in range(0, len(classes), BATCH_SIZE):
        of_batch = classes[first : first + BATCH_SIZE]
        scores = engine.logits(pixels[first : first + BATCH_SIZE], batch_norm)
        finite = np.isfinite(scores).all(axis=1)
        right = (scores.argmax(axis=1) == of_batch) & finite
        correct += np.bincount(of_batch[right], minlength=_native.CLASSES)
        shifted = scores - scores.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(axis=1))
        loss += float((log_sum - shifted[np.arange(len(of_batch)), of_batch]).sum())
    return Evaluation(tuple(correct.tolist()), len(classes), loss / len(classes))


def evaluate_again(engine: Engine) -> Evaluation:
    """Evaluate the images that the engine already has, by its population statistics."""
    correct, loss = engine.evaluate_by_class()
    return Evaluation(correct, engine.evaluation_size, loss)
