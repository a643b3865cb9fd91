"""Who trains the models of a sweep: the seam between what has to be trained and how many a device trains at once.

`Trainers` is that seam: it takes a batch of runs and gives their results. Here are the ones that train a model after
the other on an Engine, several of them side by side, and either in a process of its own.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native, machine
from mnist_cuda.checkpoint import Model
from mnist_cuda.confusion import answers_of
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import BatchNorm, Engine, Fleet
from mnist_cuda.errors import DivergedError, MnistCudaError, UnavailableError
from mnist_cuda.model import digest
from mnist_cuda.options import TrainOptions
from mnist_cuda.sweeps.table import SweptModel
from mnist_cuda.timing import Steps
from mnist_cuda.training import Trainer, epoch_order

# Images of a batch for each multiprocessor of a model that trains beside others: the share, and with it the bits,
# follow from the batch size alone, whatever the GPU and however many models there are.
IMAGES_A_MULTIPROCESSOR = 16


@dataclass(frozen=True)
class Job:
    """A model that has to be trained: the index of its run, and the run."""

    index: int
    options: TrainOptions


class Outcome(NamedTuple):
    """A model that was trained: its row, and the model itself unless its training diverged."""

    row: SweptModel
    model: Model | None


class Trainers(Protocol):
    """What trains models on one device, or on a part of it; a sweep keeps several of them busy, a thread for each.

    at_once: as many models as it likes to get in one call.
    """

    at_once: int

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterable[Outcome]:
        """Train each model to the bits that `train` gives it, in any order; without those left when `stop` says so."""

    def close(self) -> None:
        """Give up at once, from another thread, too: `train` then ends without the models that are not done."""


@dataclass(frozen=True)
class Setup:
    """What all models of a sweep share.

    models: side by side on a GPU where that is possible; 0 for as many as fill it, 1 for one after the other. share:
    the smallest of a model that trains beside others.
    """

    data: Dataset
    engine: str
    precision: str
    threads: int = 0
    device: int = 0
    models: int = 1
    share: int = 2


def share_of(options: TrainOptions) -> int:
    """The multiprocessors of a model with these options that trains beside others; 0 where it cannot.

    It cannot where the engine's data set is not its own, and where its batch is no larger than the smallest share.
    """
    share = max(2, -(-options.batch_size // IMAGES_A_MULTIPROCESSOR))
    alone = options.placement != "device" or options.validation or options.batch_size <= share
    return 0 if alone else share


class OneByOne:
    """Trainers of one Engine, which keeps the images from one model to the next.

    remark: why models are not side by side that should be; otherwise empty.
    """

    at_once, remark = 1, ""

    def __init__(self, setup: Setup) -> None:
        self.data = setup.data
        self.engine = Engine(setup.engine, setup.precision, threads=setup.threads, device=setup.device)
        self._placed: str | None = None  # where all training images are

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterator[Outcome]:
        """See Trainers."""
        for job in batch:
            outcome = self._train(job, stop)
            if outcome:
                yield outcome

    def close(self) -> None:
        """See Trainers; `stop` is asked some ten times a second."""

    def trainer(self, options: TrainOptions) -> Trainer:
        """A training of what the engine holds; the engine gets its images."""
        trainer = Trainer(self.engine, self.data, options)
        trainer.prepare(loaded=not options.validation and self._placed == options.placement)
        self._placed = None if options.validation else options.placement
        return trainer

    def end_epoch(
        self, job: Job, trainer: Trainer, weights_of: Callable[[Mapping[str, NDArray[Any]]], str] = digest
    ) -> Outcome | None:
        """End an epoch, whose steps the engine's parameters have made; the outcome after the last.

        As `train` does, but the test images are scored only then. weights_of: what the row says of the parameters.
        Raises DivergedError.
        """
        options, last = job.options, trainer.epoch == job.options.epochs
        record = trainer.evaluate() if last else trainer.record()
        model = trainer.end_epoch(record)
        if not last:
            return None
        assert trainer.evaluation is not None
        norm: BatchNorm = "batch" if options.eval_bn == "batch" else "population"
        answers = answers_of(self.engine, self.data.test_images, self.data.test_labels, norm)
        row = SweptModel(
            job.index,
            options,
            tuple(record["loss"] for record in trainer.epochs),
            test_accuracy=trainer.evaluation.accuracy,
            test_loss=trainer.evaluation.loss,
            correct=tuple(answers.matrix.diagonal().tolist()),
            validation_accuracy=record.get("validation_accuracy"),
            validation_loss=record.get("validation_loss"),
            training_seconds=trainer.training_seconds,
            weights=weights_of(model.parameters),
        )
        return Outcome(row, model)

    @staticmethod
    def diverged(job: Job, trainer: Trainer, error: DivergedError) -> Outcome:
        """The outcome of a training that diverged."""
        losses = tuple(record["loss"] for record in trainer.epochs)
        return Outcome(SweptModel(job.index, job.options, losses, fault=str(error)), None)

    def _train(self, job: Job, stop: Callable[[], bool]) -> Outcome | None:
        self.engine.init_parameters(job.options.seed)
        trainer, outcome = self.trainer(job.options), None
        try:
            while not trainer.finished:
                if not trainer.train_epoch(stop=stop) or stop():
                    return None
                outcome = self.end_epoch(job, trainer)
        except DivergedError as error:
            return self.diverged(job, trainer, error)
        return outcome


class SideBySide:
    """Trainers of an Engine that trains several models at a time, each on its share of the multiprocessors.

    Models of the same batch size and number of epochs go together. What cannot goes one by one.
    """

    remark = ""

    def __init__(self, alone: OneByOne, setup: Setup) -> None:
        """Raises UnavailableError where the engine, or this GPU, trains one model at a time."""
        self.alone, self.engine, self._models = alone, alone.engine, setup.models
        self.multiprocessors: int = _native.gpus()[setup.device]["multiprocessors"]
        self.engine.fleet(1, 3, 2)
        self.at_once = setup.models or self.multiprocessors // setup.share
        self._fleet: Fleet | None = None  # the last one, and what it is for
        self._kind: tuple[int, ...] = ()
        self._pool = ThreadPoolExecutor(machine.cores(), "orders")

    def close(self) -> None:
        """See Trainers; `stop` is asked after each epoch."""

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterator[Outcome]:
        """See Trainers."""
        kinds: dict[tuple[int, ...], list[Job]] = {}
        for job in batch:
            options, share = job.options, share_of(job.options)
            kinds.setdefault((share, options.batch_size, options.epochs) if share else (), []).append(job)
        for kind, jobs in kinds.items():
            if not kind:
                yield from self.alone.train(jobs, stop)
                continue
            most = self._models or max(1, self.multiprocessors // kind[0])
            for first in range(0, len(jobs), most):
                yield from self._train(jobs[first : first + most], kind[0], stop)

    def _train(
        self, jobs: Sequence[Job], share: int, stop: Callable[[], bool], *, closely: bool = False
    ) -> Iterator[Outcome]:
        """Train models of one kind. closely: look at each after every epoch, as `train` does to see one diverge."""
        fleet, epochs = self._fleet_for(len(jobs), jobs[0].options.batch_size, share), jobs[0].options.epochs
        trainers = []
        for model, job in enumerate(jobs):
            self.engine.init_parameters(job.options.seed)
            fleet.store(model)
            trainers.append(self.alone.trainer(job.options))
        running, count = set(range(len(jobs))), trainers[0].steps_per_epoch
        outcomes: list[tuple[Outcome, Future[str] | None]] = []
        again = []
        orders = self._orders(trainers, 1)
        for epoch in range(1, epochs + 1):
            if stop() or not running:
                break
            order = np.stack([future.result() for future in orders])
            if epoch < epochs:
                orders = self._orders(trainers, epoch + 1)
            rates = np.stack([trainer.rates[(epoch - 1) * count : epoch * count] for trainer in trainers])
            start = time.perf_counter()
            losses, correct = fleet.train(order, rates)
            seconds = (time.perf_counter() - start) / len(jobs)
            for model in sorted(running):
                job, trainer, weights = jobs[model], trainers[model], None
                try:
                    trainer.take(Steps(losses[model], correct[model], seconds))
                    if epoch < epochs and not closely:
                        trainer.pass_epoch(trainer.record())
                        continue
                    fleet.load(model)
                    outcome = self.alone.end_epoch(job, trainer, lambda _: "")
                    if outcome and outcome.model:
                        weights = self._pool.submit(digest, outcome.model.parameters)
                except DivergedError as error:
                    running.discard(model)
                    if epoch > 1 and not closely:
                        again.append(job)  # it may have shown after an epoch before
                        continue
                    outcome = self.alone.diverged(job, trainer, error)
                if outcome:
                    outcomes.append((outcome, weights))
        for outcome, weights in outcomes:
            row = replace(outcome.row, multiprocessors=share, weights=weights.result() if weights else None)
            yield outcome._replace(row=row)
        if again:
            yield from self._train(again, share, stop, closely=True)

    def _fleet_for(self, models: int, batch_size: int, share: int) -> Fleet:
        if self._kind != (models, batch_size, share):
            self._fleet = None  # before there is another: both might not fit
            self._fleet, self._kind = self.engine.fleet(models, batch_size, share), (models, batch_size, share)
        assert self._fleet
        return self._fleet

    def _orders(self, trainers: Sequence[Trainer], epoch: int) -> list[Future[NDArray[np.int32]]]:
        """The order of each model's epoch, made meanwhile: numpy shuffles without the GIL."""

        def order(trainer: Trainer) -> NDArray[np.int32]:
            count = trainer.steps_per_epoch * trainer.options.batch_size
            return epoch_order(trainer.options.seed, epoch, trainer.images)[:count]

        return [self._pool.submit(order, trainer) for trainer in trainers]


def trainers_for(setup: Setup) -> OneByOne | SideBySide:
    """The trainers of a device. Raises UnavailableError where the engine cannot run there."""
    alone = OneByOne(setup)
    if setup.models != 1 and alone.engine.info.fleets:
        try:
            return SideBySide(alone, setup)
        except UnavailableError as error:
            alone.remark = str(error)
    return alone


class InProcess:
    """Trainers of a device in a process of their own (worker.py), which ends with this one.

    Call `begin`, then `ready`, then `train`. at_once, remark: as theirs, from `ready` on.
    """

    at_once, remark = 1, ""

    def __init__(self, setup: Setup) -> None:
        self._name, self._closed = f"the process that trains on GPU {setup.device}", False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mnist_cuda.sweeps.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only us
        )
        self._setup = setup

    def begin(self) -> None:
        """Send it what it needs."""
        self._ask(self._setup)

    def ready(self) -> None:
        """Wait until it can train. Raises what its engine raises."""
        self.at_once, self.remark = self._answer()

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterable[Outcome]:
        """See Trainers."""
        self._ask(list(batch))
        outcomes: list[Outcome] = self._answer() or []  # closed
        return outcomes

    def close(self) -> None:
        """See Trainers."""
        self._closed = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):  # of what was not sent yet
                pipe.close()

    def _ask(self, question: object) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended, or is closed: _answer says so
            pickle.dump(question, self._process.stdin)
            self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError, ValueError):
            if self._closed:
                return None
            code = self._process.wait()
            raise UnavailableError(f"{self._name} ended with {code}; what it said last is above") from None
        if isinstance(answer, MnistCudaError):
            raise answer
        return answer
