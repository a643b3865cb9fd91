"""Who trains the models of a sweep: the seam between what has to be trained and how many a device trains at once.

`Trainers` is that seam: it takes a batch of runs and gives their results. Here are the ones that train a model after
the other on an Engine, and several of them side by side.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import BatchNorm, Engine, EngineInfo, Fleet, Steps
from mnist_cuda.engine.model import digest
from mnist_cuda.errors import DivergedError
from mnist_cuda.run.confusion import answers_of
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.results import Model
from mnist_cuda.run.training import Trainer, epoch_order
from mnist_cuda.sweeps.table import SweptModel, series


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
    """What trains models on one device, or on a part of it; a sweep keeps several of them busy, a thread for each."""

    @property
    def images(self) -> int:
        """How many images were trained on so far."""

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterable[Outcome]:
        """Train each model to the bits that `train` gives it, in any order; without those left when `stop` says so."""


@dataclass(frozen=True)
class Setup:
    """What all models on one device share."""

    data: Dataset
    engine: str
    precision: str
    threads: int = 0
    device: int = 0
    each_epoch: bool = False  # whether the images are tested after each epoch, or after the last alone
    hits: bool = False  # whether rows have which test images were right


def share_of(info: EngineInfo, options: TrainOptions) -> int:
    """The multiprocessors of a model with these options that trains beside others; 0 where it cannot.

    It cannot where the engine's data set is not its own, and with a batch size for which the engine has no share.
    """
    return 0 if options.placement != "device" or options.validation else info.share_for(options.batch_size)


def batches_of(jobs: Iterable[Job], most: Callable[[TrainOptions], int], devices: int) -> list[list[Job]]:
    """The jobs as trainers get them: models of the same batch size and number of epochs together, the others alone.

    most: how many models with such options go together, 0 for none. Batches of a kind are of one size, but for the
    last; where there are few kinds, each of the devices gets as many. Small batch sizes come first: their models take
    longest.
    """
    kinds: dict[tuple[int, int], list[Job]] = {}
    batches: list[list[Job]] = []
    for job in jobs:
        if most(job.options):
            kinds.setdefault((job.options.batch_size, job.options.epochs), []).append(job)
        else:
            batches.append([job])
    for _, alike in sorted(kinds.items()):
        count = -(-len(alike) // most(alike[0].options))
        if len(kinds) <= devices:
            count = -(-count // devices) * devices
        size = -(-len(alike) // count)
        batches += [alike[first : first + size] for first in range(0, len(alike), size)]
    return batches


class OneByOne:
    """Trainers of one Engine, which keeps the images from one model to the next."""

    def __init__(self, setup: Setup) -> None:
        self.data, self.each_epoch, self.hits = setup.data, setup.each_epoch, setup.hits
        self.engine = Engine(setup.engine, setup.precision, threads=setup.threads, device=setup.device)
        self._placed: str | None = None  # where all training images are
        self.images = 0  # that it has trained on

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterator[Outcome]:
        """See Trainers."""
        for job in batch:
            outcome = self._train(job, stop)
            if outcome:
                yield outcome

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

        As `train` does, but unless each epoch is tested the test images are scored only then. weights_of: what the row
        says of the parameters. Raises DivergedError.
        """
        options, last = job.options, trainer.epoch == job.options.epochs
        tested = last or self.each_epoch
        record = trainer.evaluate() if tested else trainer.record()
        if tested and self.hits:
            images, labels, by = self.data.test_images, self.data.test_labels, cast(BatchNorm, options.eval_bn)
            record["hits"] = answers_of(self.engine, images, labels, by).predicted == labels
        model = trainer.end_epoch(record)
        if not last:
            return None
        assert trainer.evaluation is not None
        row = SweptModel(
            job.index,
            options,
            **self._series(trainer),
            test_accuracy=trainer.evaluation.accuracy,
            test_loss=trainer.evaluation.loss,
            correct=trainer.evaluation.correct_by_class,
            validation_accuracy=record.get("validation_accuracy"),
            validation_loss=record.get("validation_loss"),
            training_seconds=trainer.training_seconds,
            weights=weights_of(model.parameters),
            hits=np.stack([record["hits"] for record in trainer.epochs if "hits" in record]) if self.hits else None,
        )
        return Outcome(row, model)

    def diverged(self, job: Job, trainer: Trainer, error: DivergedError) -> Outcome:
        """The outcome of a training that diverged."""
        return Outcome(SweptModel(job.index, job.options, **self._series(trainer), fault=str(error)), None)

    def _series(self, trainer: Trainer) -> dict[str, Any]:
        """The numbers of each completed epoch."""
        return {
            name: tuple(record[key] for record in trainer.epochs if key in record)
            for key, name in series(self.each_epoch).items()
        }  # fmt: skip

    def _train(self, job: Job, stop: Callable[[], bool]) -> Outcome | None:
        self.engine.init_parameters(job.options.seed)
        trainer, outcome, before = self.trainer(job.options), None, self.images

        def count(_: object) -> None:
            self.images = before + trainer.steps * job.options.batch_size

        try:
            while not trainer.finished:
                if not trainer.train_epoch(count, stop=stop) or stop():
                    return None
                outcome = self.end_epoch(job, trainer)
        except DivergedError as error:
            return self.diverged(job, trainer, error)
        return outcome


class SideBySide:
    """Trainers of an Engine that trains several models at a time, each on its share of the multiprocessors.

    turn: who holds it has the GPU train. Two of them on a GPU take turns epoch by epoch, so that it trains the models
    of one while the other initialises, scores and keeps its own.
    """

    def __init__(self, alone: OneByOne, least: int, largest: int, turn: threading.Lock, pool: Executor) -> None:
        """least: the smallest share of its models. largest: share that there is; models with a larger one go alone.

        Raises UnavailableError where the engine trains one model at a time, ValueError where the GPU needs a larger
        share for one.
        """
        self.alone, self.engine, self._turn, self._pool = alone, alone.engine, turn, pool
        self._largest = largest
        self.engine.fleet(1, least + 1, least)
        self._fleet: Fleet | None = None  # the last one, and what it is for
        self._kind: tuple[int, ...] = ()

    @property
    def images(self) -> int:
        """See Trainers."""
        return self.alone.images

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterator[Outcome]:
        """See Trainers; the models are one of `batches_of`, and `stop` is asked after each epoch."""
        share = share_of(self.engine.info, batch[0].options)
        if 0 < share <= self._largest:
            yield from self._train(batch, share, stop)
            return
        with self._turn:
            yield from self.alone.train(batch, stop)

    def _train(
        self, jobs: Sequence[Job], share: int, stop: Callable[[], bool], *, closely: bool = False
    ) -> Iterator[Outcome]:
        """Train models of one kind. closely: look at each after every epoch, as `train` does to see one diverge."""
        closely = closely or self.alone.each_epoch
        fleet, epochs = self._fleet_for(len(jobs), jobs[0].options.batch_size, share), jobs[0].options.epochs
        trainers = [self.alone.trainer(job.options) for job in jobs]
        orders, made = self._orders(trainers, 1)
        for model, job in enumerate(jobs):
            self.engine.init_parameters(job.options.seed)
            fleet.store(model)
        running, count = set(range(len(jobs))), trainers[0].steps_per_epoch
        outcomes: list[tuple[Outcome, Future[str] | None]] = []
        again = []
        for epoch in range(1, epochs + 1):
            if stop() or not running:
                break
            for future in made:
                future.result()
            order = orders
            if epoch < epochs:
                orders, made = self._orders(trainers, epoch + 1)
            rates = np.stack([trainer.rates[(epoch - 1) * count : epoch * count] for trainer in trainers])
            with self._turn:
                start = time.perf_counter()
                losses, correct = fleet.train(order, rates)
                seconds = (time.perf_counter() - start) / len(jobs)
            self.alone.images += order.size
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

    def _orders(self, trainers: Sequence[Trainer], epoch: int) -> tuple[NDArray[np.int32], list[Future[None]]]:
        """The order of each model's epoch, which is there when the futures are: numpy shuffles without the GIL."""
        count = trainers[0].steps_per_epoch * trainers[0].options.batch_size
        orders = np.empty((len(trainers), count), np.int32)

        def fill(model: int, trainer: Trainer) -> None:
            orders[model] = epoch_order(trainer.options.seed, epoch, trainer.images)[:count]

        return orders, [self._pool.submit(fill, model, trainer) for model, trainer in enumerate(trainers)]


def side_by_side(setup: Setup, least: int, largest: int, lanes: int, pool: Executor) -> list[SideBySide]:
    """Trainers of a GPU that take turns, as many as `lanes`. pool: for what they compute on the host.

    The rest is as for SideBySide.
    """
    turn = threading.Lock()
    return [SideBySide(OneByOne(setup), least, largest, turn, pool) for _ in range(lanes)]
