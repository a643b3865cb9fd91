"""`train`: one call that trains the network, shows how far it is and, if that is wanted, keeps it in a run's folder."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mnist_cuda import rules
from mnist_cuda.data.catalogue import ARRAYS, CHOICES, DATASETS, GENERATED, OWN, cache_folder
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.data.places import is_there
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import digest
from mnist_cuda.errors import DataError, UsageError, did_you_mean, require_a
from mnist_cuda.run.callbacks import Callback, StopTraining
from mnist_cuda.run.checkpoint import INIT_FILE, save_model
from mnist_cuda.run.evaluation import Trained, model_of
from mnist_cuda.run.folder import ResumedFolder, RunFolder
from mnist_cuda.run.keeping import BEST_FILE, RunKeeper, Saving
from mnist_cuda.run.names import find_folder
from mnist_cuda.run.options import (
    TRAINING_RULES,
    DataOptions,
    FolderOptions,
    PartOptions,
    RunOptions,
    TrainOptions,
    fixed_options,
)
from mnist_cuda.run.progress import Display, display, epoch_line, parts
from mnist_cuda.run.results import Model, TrainingResult
from mnist_cuda.run.resume import take_up
from mnist_cuda.run.training import DATASET_FROM, OPTIONS_FROM, Progress, Trainer

Weights = Trained | Mapping[str, NDArray[Any]]


@rules.checked(
    out=rules.optional(rules.PATH),
    resume=rules.optional(rules.PATH),
    progress=rules.optional(rules.SWITCH),
    precision=rules.optional(rules.TEXT),
    callbacks=rules.SEVERAL,
    on_epoch=rules.optional(rules.FUNCTION),
    on_progress=rules.optional(rules.FUNCTION),
)
def train(
    data: Dataset,
    options: TrainOptions | None = None,
    *,
    engine: Engine | str = "auto",
    precision: str | None = None,
    init: Weights | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    save_every: str = "1epochs",
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **fields: Any,
) -> TrainingResult:
    """Train the network, as `mnist-cuda train` does with the same options: the same weights, bit by bit.

    data: from `load_dataset` or `dataset_of`. options: by default TrainOptions(), or those of the run that goes on.
    fields: those of TrainOptions that differ from the default, or from the run's, instead of `options`:
    `train(data, epochs=3, lr=0.1)`. engine: a name of `engines()`, `auto` for the best one here, or an Engine, whose
    parameters are replaced. precision: `fp32`, `tf32`, `bf16` or `fp64`, by default the engine's first. init: start
    from this model, in any form that `predict` takes, or from parameters by name; by default from the seed's.

    out: a new folder, which gets what `mnist-cuda train` leaves there, so that `mnist-cuda runs`, `report` and
    `evaluate` know the run. resume: go on with this run, by its name in runs/ or its folder, from where it stopped.
    save_every: how often a checkpoint is saved, such as `500steps` or `2epochs`.

    progress: whether to show it; by default in a notebook, and on standard error if that is a terminal. callbacks: look
    on, and may end the training (see Callback). on_epoch, on_progress: the same as plain functions.

    Ctrl-C ends the training after the running steps and returns what is trained, tested; `stopped` of the result says
    so. A second Ctrl-C is a KeyboardInterrupt. So is the first one outside the main thread and where the program
    handles signals itself.

    Raises UsageError for impossible options and arguments of another type, DivergedError (a UsageError) if the loss
    diverges, UnavailableError for an engine that cannot run here, OutOfMemoryError, CheckpointError for a folder that
    cannot be written or read.
    """
    require_a(Dataset, data, "data", DATASET_FROM)
    _require_fields(fields, options)
    for callback in callbacks:
        require_a(Callback, callback, "a callback", "whose methods `train` calls")
    if not isinstance(engine, str):
        require_a(Engine, engine, "engine", "or the name of one, such as cpu")
    saving = Saving.parse(save_every, 1, False)
    with contextlib.ExitStack() as stack:
        before: dict[str, Any] | None = None
        folder: RunFolder | None = None
        if resume is not None:
            if out is not None or init is not None:
                raise UsageError("a run that goes on has its folder and its weights: leave out `out` and `init`")
            folder = stack.enter_context(resumed := ResumedFolder(find_folder(Path(resume))))
            before = resumed.config
            options = _options_of(before, fields) if options is None else options
            engine = before["engine"].get("name", "auto") if engine == "auto" else engine
            if precision is None and engine == before["engine"].get("name"):
                precision = before["engine"].get("precision")
        options = TrainOptions(**fields) if options is None else options
        require_a(TrainOptions, options, "options", OPTIONS_FROM)
        by_auto = engine == "auto"
        if not isinstance(engine, Engine):
            engine = Engine(engine, precision)
        elif precision not in (None, engine.precision):
            raise UsageError(f"precision is {precision}, and the engine given computes in {engine.precision}")
        if init is None:
            engine.init_parameters(options.seed)
        else:
            engine.set_parameters(init if isinstance(init, Mapping) else model_of(init).parameters)
        recorded: dict[str, Any] = {}
        state, records = None, None
        if isinstance(folder, ResumedFolder):
            recorded = _recorded(options, data, engine, save_every, folder.config["options"])
            _require_same(folder, recorded, engine)
            state, records = take_up(folder, recorded, data.digest, more="options with more go on")
        trainer = Trainer(engine, data, options, state=state, records=records)
        keeper: RunKeeper | None = None
        if out is not None:
            folder = stack.enter_context(RunFolder(Path(out), engine.info.name))
            recorded = _recorded(options, data, engine, save_every, {})
            if init is not None:
                recorded |= _save_init(folder, engine)
        if folder:
            command = f"mnist_cuda.train, {sys.argv[0] or 'Python'}"
            keeper = RunKeeper(trainer, folder, saving, recorded, by_auto=by_auto, command=command)
        plain = _Functions(on_epoch, on_progress)
        return _Training(trainer, keeper, [plain, *callbacks], display(progress)).run(before)


class _Functions(Callback):
    """`on_epoch` and `on_progress` as a callback."""

    def __init__(
        self, on_epoch: Callable[[dict[str, Any]], object] | None, on_progress: Callable[[Progress], object] | None
    ) -> None:
        self._epoch, self._progress = on_epoch, on_progress

    def on_epoch(self, record: dict[str, Any]) -> None:
        if self._epoch:
            self._epoch(record)

    def on_progress(self, progress: Progress) -> None:
        if self._progress:
            self._progress(progress)


class _Training:
    """One call of `train`."""

    def __init__(
        self, trainer: Trainer, keeper: RunKeeper | None, callbacks: Sequence[Callback], shown: Display
    ) -> None:
        self.trainer, self.keeper, self.callbacks, self.shown = trainer, keeper, callbacks, shown
        self.stopped = ""  # why, where it did before its end
        self._model: Model | None = None  # of the last complete epoch

    def run(self, before: dict[str, Any] | None) -> TrainingResult:
        """Train to the end, or until it is stopped. before: config.json of the run that goes on."""
        trainer, keeper = self.trainer, self.keeper
        with contextlib.ExitStack() as stack:
            stack.callback(self.shown.close)
            if keeper:
                stack.enter_context(keeper.noting_divergence())
            for callback in self.callbacks:
                callback.on_start(trainer)
            if keeper:
                keeper.start(before)
            self.shown.show(0, f"epoch {trainer.epoch}/{trainer.options.epochs}", "giving the engine the images")
            trainer.prepare()
            start = time.perf_counter()
            with _ctrl_c() as pressed:
                while not (trainer.finished or self.stopped):
                    self._epoch(pressed)
                result = self._result(start)
            if keeper:
                keeper.folder.end("stopped" if self.stopped else "done")
        if self.stopped:
            self.shown.say(f"stopped: {self.stopped}")
        for callback in self.callbacks:
            other = callback.on_end(result)
            if other is not None:
                result = other
                if keeper:
                    save_model(keeper.folder.path / BEST_FILE, result.model)
        return result

    def _epoch(self, pressed: threading.Event) -> None:
        trainer, keeper = self.trainer, self.keeper
        try:
            trainer.train_epoch(self._show, stop=pressed.is_set, stride=keeper.saving.steps if keeper else 0)
        except StopTraining as reason:
            self.stopped = str(reason) or "by a callback"
        if pressed.is_set() or self.stopped:
            self.stopped = self.stopped or "Ctrl-C"
            return
        self.shown.show(1, f"epoch {trainer.epoch}/{trainer.options.epochs}", "evaluating")
        record = trainer.evaluate()
        self._model = trainer.end_epoch(record)
        if keeper:
            keeper.end_epoch(record, self._model)
        self.shown.say(epoch_line(record, trainer.options.epochs))
        try:
            for callback in self.callbacks:
                callback.on_epoch(record)
        except StopTraining as reason:
            self.stopped = str(reason) or "by a callback"
            if keeper and not trainer.finished:
                keeper.save_state(trainer.state)

    def _show(self, now: Progress) -> None:
        self.shown.show(now.step / now.steps, *parts(now))
        if self.keeper and self.keeper.due:
            self.keeper.save_state(self.trainer.state)
        for callback in self.callbacks:
            callback.on_progress(now)

    def _result(self, start: float) -> TrainingResult:
        """What is trained; where that is part of an epoch, this is tested, and marked in its record."""
        trainer, epochs = self.trainer, list(self.trainer.epochs)
        model = self._model
        if not trainer.finished and (trainer.step or model is None):
            record, state = trainer.record(), trainer.state
            partial = trainer.model(None)
            if self.keeper:
                self.keeper.stop_early(record, state, partial)
            tested = trainer.evaluate()
            if trainer.engine.statistics is None:
                trainer.engine.compute_statistics()
            model = trainer.model(trainer.engine.statistics)
            epochs.append(tested | {"interrupted": True})
        assert model is not None
        assert trainer.evaluation is not None
        return TrainingResult(
            model=model,
            evaluation=trainer.evaluation,
            epochs=epochs,
            steps=trainer.steps,
            seconds=time.perf_counter() - start,
            training_seconds=trainer.training_seconds,
            us_per_iteration=trainer.clock.recent()[0],
            engine=trainer.engine,
            stopped=self.stopped,
        )


@contextlib.contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one raises KeyboardInterrupt, as does the first elsewhere.

    Elsewhere is outside the main thread, and where the program has a handler of its own.
    """
    pressed = threading.Event()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield pressed
        return

    def handle(signum: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _options_of(config: Mapping[str, Any], changed: Mapping[str, Any]) -> TrainOptions:
    """The options of a recorded run, some of them changed. Raises UsageError where they are none."""
    recorded = {name: value for name, value in config["options"].items() if name in TRAINING_RULES}
    return TrainOptions(**{**recorded, **changed})


def _require_fields(given: Mapping[str, Any], options: TrainOptions | None) -> None:
    """Raise UsageError for arguments that are no options, and where options are given twice."""
    for name in given:
        if name not in TRAINING_RULES:
            known = ", ".join(TRAINING_RULES)
            raise UsageError(
                f"train has no argument {name}, expected some of {known}{did_you_mean(name, TRAINING_RULES)}"
            )
    if given and options is not None:
        raise UsageError(f"options and {', '.join(given)} are both given: give them in TrainOptions, or all by name")


def _recorded(
    options: TrainOptions, data: Dataset, engine: Engine, save_every: str, before: Mapping[str, Any]
) -> dict[str, Any]:
    """The options as config.json has them, so that `mnist-cuda` can repeat the run where it has the data."""
    given = RunOptions(
        training=options,
        data=DataOptions(dataset=data.requested if data.requested in CHOICES else OWN[0], data_dir=_path_of(data)),
        engine=PartOptions(
            engine=engine.info.name,
            precision=engine.precision,
            threads=engine.threads,
            device=engine.device,
            multiprocessors=engine.multiprocessors,
        ),
        output=FolderOptions(save_every=save_every),
        limit=data.limit,
    )
    return given.recorded() | {name: before[name] for name in ("init", "init_sha256") if name in before}


def _path_of(data: Dataset) -> Path | None:
    """The path that `--data-dir` has to name to get these data; None for the cache, and for arrays."""
    if data.source in (ARRAYS, GENERATED) or not is_there(Path(data.source)):
        return None
    with contextlib.suppress(DataError):
        if Path(data.source) in [cache_folder(info) for info in DATASETS.values()]:
            return None
    return Path(data.source)


def _save_init(folder: RunFolder, engine: Engine) -> dict[str, str]:
    """Keep the first weights in the folder; returns the options that name them."""
    parameters = engine.parameters
    save_model(folder.path / INIT_FILE, Model(parameters))
    return {"init": str((folder.path / INIT_FILE).absolute()), "init_sha256": digest(parameters)}


def _require_same(folder: ResumedFolder, recorded: Mapping[str, Any], engine: Engine) -> None:
    """Raise UsageError for what would change the result of a run that goes on."""
    was = fixed_options(folder.config["options"]) | {name: folder.config["engine"].get(name) for name in _ENGINE}
    now = fixed_options(dict(recorded)) | {"name": engine.info.name, "precision": engine.precision}
    for name, value in now.items():
        if name in was and was[name] != value:
            what = "engine" if name == "name" else name
            raise UsageError(
                f"{what} is {value}, and {folder.path} was begun with {was[name]}: that would change its result"
            )


_ENGINE = ("name", "precision")
