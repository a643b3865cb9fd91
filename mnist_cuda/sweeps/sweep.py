"""A sweep: runs are given to whatever trains them, and what comes back is kept. It prints nothing.

rows = sweep(load_dataset(), [TrainOptions(epochs=3, seed=seed) for seed in range(100)], out="seeds")
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda import _native, machine, memory, rules
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import find_engine
from mnist_cuda.errors import UnavailableError, UsageError, require_a
from mnist_cuda.run.folder import ResumedFolder, RunFolder
from mnist_cuda.run.keeping import data_facts, engine_facts
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.progress import display
from mnist_cuda.run.results import Model
from mnist_cuda.run.training import DATASET_FROM, FORWARD, OPTIONS_FROM, require_possible
from mnist_cuda.sweeps.grid import read_runs
from mnist_cuda.sweeps.result import SweepResult
from mnist_cuda.sweeps.store import RUNS_FILE, SAVES, SweepFiles
from mnist_cuda.sweeps.table import BYTES_A_CELL, SweptModel, series
from mnist_cuda.sweeps.trainers import (
    Job,
    OneByOne,
    Outcome,
    Setup,
    SideBySide,
    Trainers,
    batches_of,
    share_of,
    side_by_side,
)
from mnist_cuda.terminal.console import format_duration, plural

HOME = Path("sweeps")  # where sweeps go that are given no folder
PARTS = ("sweep", "engine", "data")  # of config.json
POLL = 0.1  # seconds between two looks at what may stop a sweep
PATIENCE = 0.5  # seconds that trainers have to stop in; a native call may take longer


def train_all(
    trainers: Sequence[Trainers], batches: Iterable[Sequence[Job]], stop: Callable[[], bool]
) -> Generator[Outcome | None, None, None]:
    """Keep all trainers busy, a thread each; yields what is trained as it comes, and None some times a second.

    After `stop`, an error or a `close` of this iterator what is not done is given up.
    """
    pending, lock, stopping = deque(batches), threading.Lock(), threading.Event()
    found: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()

    def work(trainer: Trainers) -> None:
        try:
            while not stopping.is_set():
                with lock:
                    batch = pending.popleft() if pending else ()
                if not batch:
                    break
                for outcome in trainer.train(batch, stopping.is_set):
                    found.put(outcome)
        except BaseException as error:
            found.put(error)
        found.put(None)

    threads = [threading.Thread(target=work, args=(trainer,), daemon=True) for trainer in trainers]
    for thread in threads:
        _start(thread)
    running = len(threads)
    try:
        while running and not stop():
            try:
                item = found.get(timeout=POLL)
            except queue.Empty:
                yield None
                continue
            if isinstance(item, BaseException):
                raise item
            running -= item is None
            yield item
    finally:
        stopping.set()
        end = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
    while not found.empty():  # done while it was being stopped
        item = found.get()
        if not isinstance(item, BaseException):
            yield item


def _start(thread: threading.Thread) -> None:
    """Start a thread. Where the program ends, which starts none any more, this one ends, too, without a word."""
    try:
        thread.start()
    except RuntimeError:
        if threading.current_thread() is threading.main_thread() or threading.main_thread().is_alive():
            raise
        raise SystemExit from None


class Sweep:
    """Runs, who trains them, and what is done of them. A context manager: what trains ends with the block.

    rows: the models that are done, by the run's number; those of a folder that is resumed are there at once. unwritten:
    those that are not in the folder's table yet. at_once:
    models at once on a device, and remarks: which go one after another all the same, and why; both within the block.
    Then `run`. folder: new or resumed, entered by the caller, who writes its config.json by `config`; None to keep no
    files.

    Raises UsageError for a run that is impossible, for a way to train that does not fit the engine, and where a folder
    that is resumed was begun for another result; UnavailableError for an engine that cannot run here.
    """

    def __init__(
        self,
        data: Dataset,
        runs: Sequence[TrainOptions],
        *,
        engine: str = "auto",
        precision: str | None = None,
        threads: int = 0,
        jobs: int = 0,
        gpus: Sequence[int] = (),
        folder: RunFolder | None = None,
        save: str = "none",
        each_epoch: bool = False,
        hits: bool = False,
    ) -> None:
        require_a(Dataset, data, "data", DATASET_FROM)
        self.data, self.runs, self.save, self.each_epoch, self.hits = data, list(runs), save, each_epoch, hits
        for run in self.runs:
            require_a(TrainOptions, run, "a run", OPTIONS_FROM)
        if not self.runs:
            raise UsageError("there are no runs, expected at least one")
        _require_possible(self.runs, len(data.train_labels))
        epochs, models = max(run.epochs for run in self.runs), plural(len(self.runs), "model")
        table = f"a table of {models} with columns for each of {epochs} epochs"
        memory.require((len(self.runs) + 1) * epochs * len(series(each_epoch)) * BYTES_A_CELL, table)
        if hits:
            tests = sum(run.epochs if each_epoch else 1 for run in self.runs)
            memory.require(tests * len(data.test_labels), f"an array of the hits of {models}")
        if save not in SAVES:
            raise UsageError(f"save is {save!r}, expected {', '.join(SAVES[:-1])} or {SAVES[-1]}")
        gpus = [rules.GPU("gpus", gpu) for gpu in gpus]
        if len(set(gpus)) < len(gpus):
            raise UsageError(f"gpus are {', '.join(map(str, gpus))}, expected each once")
        self.info = find_engine(engine, gpus[0] if gpus and engine == "auto" else 0)
        if self.info.device == "cpu" and gpus:
            raise UsageError(f"engine '{self.info.name}' runs on the CPU; name a CUDA engine or leave out the GPUs")
        self.precision = self.info.precisions[0] if precision is None else precision
        self.by_auto, self.folder = engine == "auto", folder
        self.rows: dict[int, SweptModel] = {}
        self.unwritten: list[SweptModel] = []
        self._files: SweepFiles | None = None
        self._stack = contextlib.ExitStack()
        cores = threads or machine.cores()
        self._shares = [share_of(self.info, run) for run in self.runs]
        self._jobs, self._fleets = jobs, self.info.fleets and jobs != 1 and any(self._shares)
        self.at_once = min(jobs or (cores if self.info.device == "cpu" else 1), len(self.runs))
        self.remarks: list[str] = []
        self.gpus = tuple(gpus) or ((0,) if self.info.device == "cuda" else ())
        if self.info.device == "cpu":
            size = sum(array.nbytes for array in data.arrays)
            memory.require(self.at_once * size, f"the images of {self.at_once} models at once")
        self._setups = [
            Setup(data, self.info.name, self.precision, max(1, cores // self.at_once), device, each_epoch, hits)
            for device in self.gpus or (0,)
        ]
        self._trainers: list[OneByOne | SideBySide] = []
        self._work = 1.0  # of all runs that `run` has to train

    def __enter__(self) -> Sweep:
        with self._stack:
            self._begin()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        if self._fleets:
            self._begin_side_by_side()
        for setup in () if self._trainers else self._setups:
            self._trainers += (OneByOne(setup) for _ in range(self.at_once))
        if self.folder:
            if resume := isinstance(self.folder, ResumedFolder):
                self._require_same(self.folder)
            dtype = np.float64 if self.precision == "fp64" else np.float32
            images = len(self.data.test_labels) if self.hits else 0
            self._files = SweepFiles(
                self.folder.path, self.runs, self.save, dtype, resume=resume, each_epoch=self.each_epoch, images=images
            )
            self._stack.callback(self.close_files)
            self.rows, self.unwritten = dict(self._files.rows), self._files.unwritten

    def _begin_side_by_side(self) -> None:
        """Have models train side by side, or remark why they do not."""
        pool = ThreadPoolExecutor(machine.cores(), "sweep")
        self._stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        lanes = min(2, -(-len(self._batches(range(len(self.runs)))) // len(self._setups)))
        least, largest = min(filter(None, self._shares)), self._multiprocessors()
        self.at_once = min(max(1, self._most(least)), len(self.runs))
        try:
            for found in [pool.submit(side_by_side, setup, least, largest, lanes, pool) for setup in self._setups]:
                self._trainers += found.result()
        except (UnavailableError, ValueError) as error:
            self._fleets, self._trainers, self.at_once, self.remarks = False, [], 1, [str(error)]
            return
        alone = sum(not 0 < share <= largest for share in self._shares)
        if self.at_once > 1 and alone:
            why = "images on the host, images held out, or a batch too small or too large for a share of the GPU"
            self.remarks.append(f"{plural(alone, 'model')} of them one after another: {why}")

    def _multiprocessors(self) -> int:
        """Of the GPU that has the fewest; 0 where one of them is not here, which its engine refuses."""
        counts = {device: gpu["multiprocessors"] for device, gpu in enumerate(_native.gpus())}
        least: int = min(counts.get(setup.device, 0) for setup in self._setups)
        return least

    def _most(self, share: int) -> int:
        """How many models with such a share of the multiprocessors go side by side on each GPU; 0 for none."""
        fill = self._multiprocessors() // share if share else 0
        return (self._jobs or fill) if fill else 0

    def _batches(self, indices: Iterable[int]) -> list[list[Job]]:
        """These runs as the trainers get them."""
        jobs = [Job(index, self.runs[index]) for index in indices]
        if not self._fleets:
            return [[job] for job in jobs]
        return batches_of(jobs, lambda run: self._most(share_of(self.info, run)), len(self._setups))

    @property
    def fraction(self) -> float:
        """How much of what `run` has to do is done."""
        return sum(trainer.images for trainer in self._trainers) / self._work

    @property
    def result(self) -> SweepResult:
        """The models that are done, in the order of the runs."""
        return SweepResult(self.rows[index] for index in sorted(self.rows))

    def _work_of(self, run: TrainOptions) -> float:
        """How many images a model is trained on, and as many more as its tests take the time of."""
        tests, images = run.epochs if self.each_epoch else 1, len(self.data.train_labels)
        return run.epochs * images + tests * FORWARD * (images + len(self.data.test_labels))

    def run(
        self,
        on_model: Callable[[SweptModel, Model | None], object] | None = None,
        stop: Callable[[], bool] = lambda: False,
        on_wait: Callable[[], object] | None = None,
    ) -> None:
        """Train what is not done yet; ends early after `stop`.

        on_model: called with each model that is done; on_wait: some times a second.
        """
        self._work = sum(self._work_of(run) for index, run in enumerate(self.runs) if index not in self.rows) or 1.0
        left = self._batches(index for index in range(len(self.runs)) if index not in self.rows)
        with contextlib.closing(train_all(self._trainers, left, stop)) as outcomes:
            for outcome in outcomes:
                if outcome:
                    self.rows[outcome.row.index] = outcome.row
                    if self._files:
                        self._files.add(*outcome)
                    if on_model:
                        on_model(*outcome)
                if self._files:
                    self._files.tick()
                if on_wait:
                    on_wait()

    def close_files(self) -> None:
        """Write what is done and not written yet; the end of the block does that, too."""
        if self._files:
            files, self._files = self._files, None
            files.close()

    def config(self, options: dict[str, Any], command: str) -> dict[str, Any]:
        """What config.json says; of a folder that is resumed what it said, and that it was.

        options: what else was asked for. command: what was called.
        """
        cuda = self.info.device == "cuda"
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        begun = {
            **machine.circumstances(
                load_before=os.getloadavg(),
                devices=list(self.gpus) if cuda else None,
                threads=None if cuda else self._setups[0].threads,
                libraries=machine.engine_libraries(self.info.name),
            ),
            "started": now,
            "command": command,
            "at_once": self.at_once * max(1, len(self.gpus)),
        }
        if isinstance(self.folder, ResumedFolder):
            before = self.folder.config
            return before | {"resumed": [*before.get("resumed", []), begun | {"models": len(self.rows)}]}
        return begun | {
            "sweep": {
                "models": len(self.runs),
                "save": self.save,
                "each_epoch": self.each_epoch,
                "hits": self.hits,
                **options,
            },
            "engine": engine_facts(self.info, self.precision, by_auto=self.by_auto),
            "data": data_facts(self.data),
        }

    def _require_same(self, folder: ResumedFolder) -> None:
        """UsageError if the folder was begun for another result than this sweep would give."""
        config = folder.config
        now = {
            "runs": self.runs == read_runs(folder.path / RUNS_FILE, {}),
            "engine": config["engine"].get("name") == self.info.name,
            "precision": config["engine"].get("precision") == self.precision,
            "data": config["data"].get("digest") == self.data.digest,
            **{name: config["sweep"].get(name) == getattr(self, name) for name in ("save", "each_epoch", "hits")},
        }
        other = [name for name, same in now.items() if not same]
        if other:
            raise UsageError(
                f"{folder.path}: it was begun with another value of: {', '.join(other)}; name a new folder"
            )


def _require_possible(runs: Sequence[TrainOptions], count: int) -> None:
    """UsageError for a run that cannot be made on `count` training images."""
    if not runs:
        raise UsageError("there is no run in this sweep")
    seen = set()
    for index, run in enumerate(runs):
        kind = (run.batch_size, run.validation, run.schedule)
        if kind not in seen:
            seen.add(kind)
            try:
                require_possible(run, count)
            except UsageError as error:
                raise UsageError(f"run {index} of the sweep: {error}") from error


@rules.checked(
    runs=rules.SEVERAL,
    engine=rules.TEXT,
    precision=rules.optional(rules.TEXT),
    threads=rules.THREADS,
    jobs=rules.whole(0, rules.MOST),
    gpus=rules.SEVERAL,
    out=rules.optional(rules.PATH),
    save=rules.choice(*SAVES),
    each_epoch=rules.SWITCH,
    hits=rules.SWITCH,
    resume=rules.SWITCH,
    progress=rules.optional(rules.SWITCH),
    on_model=rules.optional(rules.FUNCTION),
)
def sweep(
    data: Dataset,
    runs: Iterable[TrainOptions],
    *,
    engine: str = "auto",
    precision: str | None = None,
    threads: int = 0,
    jobs: int = 0,
    gpus: Sequence[int] = (),
    out: str | Path | None = None,
    save: str = "none",
    each_epoch: bool = False,
    hits: bool = False,
    resume: bool = False,
    progress: bool | None = None,
    on_model: Callable[[SweptModel, Model | None], object] | None = None,
) -> SweepResult:
    """Train a model for each of the runs, as `mnist-cuda sweep` does; each gets the bits that `train` gives it.

    data: what `load_dataset` or `dataset_of` gives. engine, precision: as for `train`, of all models. threads: of a
    host engine, 0 for one a core. jobs: models at once, by default one a core, on a GPU one, or with `fused` as
    many as fill it: then each has a share of the multiprocessors, and the bits of `train` with an engine that has
    it (`SweptModel.multiprocessors`). gpus: the GPUs of a CUDA engine, by default the first; each of several trains
    models of its own. out: a new folder for sweep.csv, which always holds what is done, and
    for weights: `save` is `all` (weights.safetensors, the models as first dimension), `best` (best.safetensors; the
    best by the images held out, without any by the test images) or `none`. each_epoch: test after each epoch, not only
    after the last. hits: keep which test images are right, in `SweptModel.hits` and, with `out`, as a bit each in
    hits.safetensors. resume: go on with the sweep in `out`. progress: whether to show it; by default in a notebook, and
    on standard error if that is a terminal.
    on_model: called with each row as it is done and its model, None where it diverged; what it raises ends the sweep,
    as Ctrl-C does, and `out` keeps what is done.

    Returns a row for each run, in their order, also as arrays and as a data frame.
    Raises UsageError for a run that is impossible and for a folder that is not empty, or was begun for other runs,
    UnavailableError for an engine that cannot run here, CheckpointError for files, OutOfMemoryError.
    """
    if resume and out is None:
        raise UsageError("resume goes on with the folder of a sweep: give `out`")
    with contextlib.ExitStack() as stack:
        folder: RunFolder | None = None
        if out is not None:
            path = Path(out)
            folder = stack.enter_context(ResumedFolder(path, PARTS) if resume else RunFolder(path, engine))
        task = stack.enter_context(
            Sweep(
                data,
                list(runs),
                engine=engine,
                precision=precision,
                threads=threads,
                jobs=jobs,
                gpus=gpus,
                folder=folder,
                save=save,
                each_epoch=each_epoch,
                hits=hits,
            )
        )
        if folder:
            folder.start(task.config({}, "mnist_cuda.sweep"))
        shown = display(progress)
        stack.callback(shown.close)
        before, start = len(task.rows), time.perf_counter()

        def show() -> None:
            seconds, fraction = time.perf_counter() - start, min(1.0, task.fraction)
            left = f"{format_duration(seconds / fraction - seconds)} left" if fraction else "first steps"
            shown.show(fraction, f"{len(task.rows) - before}/{len(task.runs) - before} models", left)

        task.run(on_model, on_wait=show)
        return task.result
