"""Who trains the models of a sweep: the seam between what has to be trained and how many a device trains at once.

`Trainers` is that seam: it takes a batch of runs and gives their results. Here are the ones that train a model after
the other on an Engine, in this process and in one of its own.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mnist_cuda.checkpoint import Model
from mnist_cuda.confusion import answers_of
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import BatchNorm, Engine
from mnist_cuda.errors import DivergedError, MnistCudaError, UnavailableError
from mnist_cuda.model import digest
from mnist_cuda.options import TrainOptions
from mnist_cuda.sweeps.table import SweptModel
from mnist_cuda.training import Trainer


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
    """What all models of a sweep share."""

    data: Dataset
    engine: str
    precision: str
    threads: int = 0
    device: int = 0


class OneByOne:
    """Trainers of one Engine, which keeps the images from one model to the next."""

    at_once = 1

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

    def _train(self, job: Job, stop: Callable[[], bool]) -> Outcome | None:
        """As `train` does, but the test images are scored only after the last epoch."""
        index, options = job.index, job.options
        self.engine.init_parameters(options.seed)
        trainer = Trainer(self.engine, self.data, options)
        trainer.prepare(loaded=not options.validation and self._placed == options.placement)
        self._placed = None if options.validation else options.placement
        try:
            while not trainer.finished:
                if not trainer.train_epoch(stop=stop) or stop():
                    return None
                record = trainer.evaluate() if trainer.epoch == options.epochs else trainer.record()
                model = trainer.end_epoch(record)
        except DivergedError as error:
            losses = tuple(record["loss"] for record in trainer.epochs)
            return Outcome(SweptModel(index, options, losses, fault=str(error)), None)
        assert trainer.evaluation is not None
        norm: BatchNorm = "batch" if options.eval_bn == "batch" else "population"
        answers = answers_of(self.engine, self.data.test_images, self.data.test_labels, norm)
        row = SweptModel(
            index,
            options,
            tuple(record["loss"] for record in trainer.epochs),
            test_accuracy=trainer.evaluation.accuracy,
            test_loss=trainer.evaluation.loss,
            correct=tuple(answers.matrix.diagonal().tolist()),
            validation_accuracy=record.get("validation_accuracy"),
            validation_loss=record.get("validation_loss"),
            training_seconds=trainer.training_seconds,
            weights=digest(model.parameters),
        )
        return Outcome(row, model)


class InProcess:
    """OneByOne in a process of its own (worker.py), which ends with this one; `begin`, then `ready`, then `train`."""

    at_once = OneByOne.at_once

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
        self._answer()

    def train(self, batch: Sequence[Job], stop: Callable[[], bool]) -> Iterable[Outcome]:
        """See Trainers."""
        self._ask(list(batch))
        return self._answer()

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

    def _answer(self) -> list[Outcome]:
        assert self._process.stdout
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError, ValueError):
            if self._closed:
                return []
            code = self._process.wait()
            raise UnavailableError(f"{self._name} ended with {code}; what it said last is above") from None
        if isinstance(answer, MnistCudaError):
            raise answer
        outcomes: list[Outcome] = answer
        return outcomes
