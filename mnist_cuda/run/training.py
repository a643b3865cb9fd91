"""Training: the order of the samples, the loop over steps and epochs, and how far it is. It writes and prints nothing.

`Trainer` is a training piece by piece, which can be looked at, stopped, saved and continued: `train` and `mnist-cuda
train` are made of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import rules
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.data.digit import MNIST, SCALED
from mnist_cuda.data.looks import like_mnist
from mnist_cuda.engine import BatchNorm, Engine, Placement, Steps
from mnist_cuda.engine.model import digest
from mnist_cuda.engine.timing import REPORTED_ITERATIONS, TrainingClock
from mnist_cuda.errors import DivergedError, UsageError, require_a
from mnist_cuda.run.evaluation import evaluate, evaluate_again
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.results import Evaluation, Model
from mnist_cuda.run.schedule import Schedule, parse_schedule

if TYPE_CHECKING:
    from mnist_cuda.ranks.group import Ranks

DATASET_FROM = "as load_dataset() or dataset_of(train_images, train_labels, test_images, test_labels) gives it"
OPTIONS_FROM = "such as TrainOptions(epochs=3)"

FORWARD = 1 / 3  # of a step's time; backward takes twice as much, and an evaluation is forward alone
DIVERGED_LOSS = 1e6  # nats: no training comes back from there


@rules.checked(seed=rules.NATURAL, epoch=rules.NATURAL, count=rules.whole(0, rules.MOST))
def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int32]:
    """The order in which epoch 1, 2, ... visits `count` samples: a permutation of 0..count-1, int32.

    It is `numpy.random.Generator(PCG64(SeedSequence([seed, 1, epoch]))).permutation(count)` and depends on nothing
    else, so that any other program can follow the same order. (Stream 0 of the seed makes the initial parameters.)
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1, epoch])))
    return rng.permutation(count).astype(np.int32)


def hold_out(seed: int, held: int, count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices, ascending, of the training images that stay and of the `held` that are left for validation.

    It is stream 2 of the seed: `numpy.random.Generator(PCG64(SeedSequence([seed, 2]))).permutation(count)`, whose last
    `held` are held out.
    """
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 2]))).permutation(count)
    return np.sort(order[: count - held]), np.sort(order[count - held :])


def require_possible(options: TrainOptions, count: int) -> tuple[int, Schedule]:
    """How many of `count` training images are trained on, and the rate's schedule. UsageError where they do not fit."""
    images = count - options.validation
    if options.validation and images < 1:
        raise UsageError(f"{options.validation} of {count} training images held out leave none")
    if options.batch_size > images:
        raise UsageError(f"batch size is {options.batch_size}, expected at most the {images} training images")
    return images, parse_schedule(options.schedule, options.lr)


@dataclass(frozen=True)
class Progress:
    """The progress of a training, passed to `on_progress` about ten times per second.

    epoch: the running one, from 1, of `epochs`. step: steps done in it, of `steps`. loss, accuracy: means over the last
    100 steps of the epoch, before their updates. us_per_iteration: microseconds per step, mean over the last 100.
    images_per_second: at that rate. seconds_left: to the end of the training, evaluations included.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    accuracy: float
    us_per_iteration: float
    images_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class State:
    """Where a training stands, with all that its going on depends on but data, engine and options.

    epoch: the running one, from 1; step: steps done in it, all of them where only its evaluation is left. parameters:
    by PyTorch name. losses (step,) float64, correct (step,) int32: of the epoch's steps. seconds: of these.
    """

    epoch: int
    step: int
    parameters: dict[str, NDArray[Any]]
    losses: NDArray[np.float64]
    correct: NDArray[np.int32]
    seconds: float


def _form_of(data: Dataset) -> str:
    """The form that pictures have to be brought into for a network that learnt these images: see `digit.in_form`."""
    digits = not data.classes and like_mnist(data.train_images, data.train_labels)
    return data.form or (MNIST if digits else SCALED)


class Trainer:
    """One training: the engine, its data, its options and its progress.

    engine: with the first parameters in it; those of `state` are set. state: where to go on, by default at the start.
    records: of the epochs before `state`. ranks: those that the engine joined, which all do the same.
    Call `prepare`, then `train_epoch`, `evaluate` and `end_epoch` in turn until `finished`.

    Raises UsageError where the data do not fill a batch, and for data or options of another type.
    """

    def __init__(
        self,
        engine: Engine,
        data: Dataset,
        options: TrainOptions,
        *,
        state: State | None = None,
        records: list[dict[str, Any]] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        require_a(Dataset, data, "data", DATASET_FROM)
        require_a(TrainOptions, options, "options", OPTIONS_FROM)
        self.engine, self.data, self.options, self.ranks = engine, data, options, ranks
        self.stopped = 0  # what `stop` said, of any rank
        self.images, self.schedule = require_possible(options, len(data.train_labels))
        self.steps_per_epoch = self.images // options.batch_size
        self.rates = self.schedule.rates(options.epochs * self.steps_per_epoch)
        self.clock = TrainingClock()  # of the steps made here
        self.epochs: list[dict[str, Any]] = list(records or [])
        self.evaluation: Evaluation | None = None  # of the last complete epoch
        self.epoch, self.step, self._seconds = 1, 0, 0.0
        self._losses = np.empty(self.steps_per_epoch)
        self._correct = np.empty(self.steps_per_epoch, np.int32)
        self._form = "" if data.name in ("mnist", "synthetic") else _form_of(data)
        self._first_block = 0
        self._order, self._order_of = np.empty(0, np.int32), 0  # and the epoch that it is of
        self._evaluation_seconds, self._evaluations = 0.0, 0
        if state is not None:
            engine.set_parameters(state.parameters)
            self.epoch, self.step, self._seconds = state.epoch, state.step, state.seconds
            self._losses[: state.step], self._correct[: state.step] = state.losses, state.correct
        self._parameters: dict[str, NDArray[Any]] | None = None

    def prepare(self, *, loaded: bool = False) -> None:
        """Give the engine the images. loaded: it already has all of them, in the right memory."""
        data = self.data
        images, labels = data.train_images, data.train_labels
        self._validation = images[:0], labels[:0]
        if loaded:
            return
        if self.options.validation:
            kept, held = hold_out(self.options.seed, self.options.validation, len(labels))
            self._validation = images[held], labels[held]
            images, labels = images[kept], labels[kept]
        self.engine.set_dataset(images, labels, cast(Placement, self.options.placement))
        self.engine.set_evaluation_set(data.test_images, data.test_labels)

    @property
    def finished(self) -> bool:
        """Whether all epochs are trained and evaluated."""
        return self.epoch > self.options.epochs

    @property
    def epochs_done(self) -> int:
        """Epochs whose steps are all done."""
        return self.epoch - 1 + (self.step == self.steps_per_epoch)

    @property
    def steps(self) -> int:
        """Steps done in all."""
        return (self.epoch - 1) * self.steps_per_epoch + self.step

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """The parameters as they are, by PyTorch name."""
        if self._parameters is None:
            self._parameters = self.engine.parameters
        return self._parameters

    @property
    def state(self) -> State | None:
        """Where the training stands.

        None where that cannot be taken up again bit by bit, which is rare; some steps later it can.
        """
        if not self.engine.resumable:
            return None
        losses, correct = self._losses[: self.step].copy(), self._correct[: self.step].copy()
        return State(self.epoch, self.step, self.parameters, losses, correct, self._seconds)

    def train_epoch(
        self,
        on_progress: Callable[[Progress], object] | None = None,
        *,
        stop: Callable[[], int] | None = None,
        stride: int = 0,
        until: int = 0,
    ) -> bool:
        """Run the epoch's steps that are left. Returns whether all are done; not all are where `stop` ended it.

        on_progress: called between two pieces of the epoch (`Engine.train_piece`). stop: asked there, too; of several
        ranks one is enough. stride: where not 0, there is such a place after each so many steps of the training; of
        several ranks, rank 0's. until: where not 0, end after so many steps of the training.
        """
        while self.step < self.steps_per_epoch and not (until and self.steps >= until):
            self.stopped, most = stop() if stop else 0, self.steps_per_epoch - self.step
            if stride:
                most = min(most, stride - self.steps % stride)
            if until:
                most = min(most, until - self.steps)
            self._draw_order()
            if self.ranks:
                most, self.stopped = self.ranks.agree(most, self.stopped)
            if self.stopped:
                break
            self._run(most)
            if on_progress:
                on_progress(self._progress())
        while self.step < self.steps_per_epoch and not self.engine.resumable:
            self._run(1)  # stopped: to where it can go on bit by bit
        return self.step == self.steps_per_epoch

    def _draw_order(self) -> None:
        """The order of the epoch; before ranks agree on steps, or one would wait for the other under the clock."""
        if self._order_of != self.epoch:
            self._order, self._order_of = epoch_order(self.options.seed, self.epoch, self.images), self.epoch

    def _run(self, most: int) -> None:
        """Run the epoch's next steps, a piece of at most so many. Raises DivergedError where the loss does."""
        batch, done = self.options.batch_size, self.step
        order = self._order[done * batch : (done + most) * batch]
        self.take(self.engine.train_piece(order, batch, self.rates[self.steps : self.steps + most]))

    def take(self, steps: Steps) -> None:
        """Record the next steps of the epoch, which the engine has made. Raises DivergedError if the loss diverges.

        Of a model of a fleet they were not made by `train_epoch`.
        """
        done, count = self.step, len(steps.losses)
        if not done:
            self._first_block = len(self.clock)
        self._parameters = None
        self._losses[done : done + count], self._correct[done : done + count] = steps.losses, steps.correct
        self.step, self._seconds = done + count, self._seconds + steps.seconds
        self.clock.add(count, steps.seconds)
        sound = steps.losses < DIVERGED_LOSS  # a NaN is not
        if not sound.all():
            step = done + int(np.argmin(sound)) + 1
            raise DivergedError(
                f"training diverged: the loss of step {step} in epoch {self.epoch} is {self._losses[step - 1]:g}; "
                f"try a lower learning rate than {self.options.lr:g}"
            )

    def _progress(self) -> Progress:
        options, us = self.options, self.clock.recent()[0]
        recent = slice(max(0, self.step - REPORTED_ITERATIONS), self.step)
        left = (options.epochs * self.steps_per_epoch - self.steps) * us / 1e6
        evaluation = self._evaluation_seconds / max(1, self._evaluations)
        if not self._evaluations:
            images = len(self.data.train_labels) + len(self.data.test_labels)
            evaluation = FORWARD * us / 1e6 * images / options.batch_size
        left += (options.epochs - self.epoch + 1) * evaluation
        return Progress(
            epoch=self.epoch,
            epochs=options.epochs,
            step=self.step,
            steps=self.steps_per_epoch,
            loss=float(self._losses[recent].mean()),
            accuracy=float(self._correct[recent].mean()) / options.batch_size,
            us_per_iteration=us,
            images_per_second=options.batch_size * 1e6 / us,
            seconds_left=left,
        )

    def record(self) -> dict[str, Any]:
        """The running epoch's metrics so far."""
        done, batch = self.step, self.options.batch_size
        timing = self.clock.summary(self._first_block)
        return {
            "epoch": self.epoch,
            "steps": done,
            "loss": float(self._losses[:done].mean()) if done else None,
            "train_accuracy": float(self._correct[:done].mean()) / batch if done else None,
            "train_seconds": self._seconds,
            "us_per_iteration": timing.as_dict() if timing else None,
            "images_per_second": batch * done / self._seconds if self._seconds else None,
            "dataset": self.data.name,
            "warning": self.data.warning,
        }

    def evaluate(self) -> dict[str, Any]:
        """Score the test images, and those held out, after an epoch's last step; returns the epoch's record.

        After the last epoch, and wherever they are used, the population statistics are computed.
        """
        start = time.perf_counter()
        record, options, data = self.record(), self.options, self.data
        if options.eval_bn == "population" or self.epoch == options.epochs:
            self.engine.compute_statistics()
        if len(self._validation[1]):
            held = evaluate(self.engine, *self._validation, cast(BatchNorm, options.eval_bn))
            record |= {"validation_accuracy": held.accuracy, "validation_loss": held.loss}
            self.engine.set_evaluation_set(data.test_images, data.test_labels)
        evaluation = (
            evaluate_again(self.engine)
            if options.eval_bn == "population"
            else evaluate(self.engine, data.test_images, data.test_labels, "batch")
        )
        seconds = time.perf_counter() - start
        self._evaluation_seconds, self._evaluations = self._evaluation_seconds + seconds, self._evaluations + 1
        record |= {
            "test_accuracy": evaluation.accuracy,
            "test_loss": evaluation.loss,
            "eval_bn": options.eval_bn,
            "evaluation_seconds": seconds,
        }
        self.evaluation = evaluation
        return record

    def end_epoch(self, record: dict[str, Any]) -> Model:
        """Keep the epoch's record, begin the next one and return the model. DivergedError if it is not finite."""
        model = self.model(self.engine.statistics)
        self._require_finite(model)
        if self.ranks:
            self.ranks.require_same("weights", digest(model.parameters).encode())
        self.pass_epoch(record)
        return model

    def pass_epoch(self, record: dict[str, Any]) -> None:
        """`end_epoch` without a look at the model."""
        self.epochs.append(record)
        self.epoch, self.step, self._seconds = self.epoch + 1, 0, 0.0

    def _require_finite(self, model: Model) -> None:
        """Losses do not show every divergence: a ReLU takes a NaN for a 0."""
        for name, value in (model.parameters | (model.statistics or {})).items():
            if not np.isfinite(value).all():
                raise DivergedError(
                    f"training diverged: {name} is not finite after epoch {self.epoch}; "
                    f"try a lower learning rate than {self.options.lr:g}"
                )

    def model(self, statistics: dict[str, NDArray[Any]] | None) -> Model:
        """The weights as they are, with these statistics, and what they come from."""
        metadata = {
            "dataset": self.data.name,
            "data_digest": self.data.digest,
            "seed": str(self.options.seed),
            "epochs": str(self.epochs_done),
            "engine": self.engine.info.name,
            "precision": self.engine.precision,
            "steps": str(self.steps),
        }
        if self.data.classes:
            metadata["classes"] = json.dumps(self.data.classes)
        if self._form:
            metadata["form"] = self._form
        return Model(self.parameters, statistics, metadata)

    @property
    def training_seconds(self) -> float:
        """Time in steps, of all epochs."""
        return float(sum(record["train_seconds"] for record in self.epochs)) + self._seconds
