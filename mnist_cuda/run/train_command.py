"""`mnist-cuda train`: from its options to a run in its folder, alone or with other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mnist_cuda.errors import DataError, MnistCudaError, UnavailableError, UsageError
from mnist_cuda.run.names import find_run
from mnist_cuda.run.options import RunOptions

if TYPE_CHECKING:
    from mnist_cuda.data.dataset import Dataset
    from mnist_cuda.engine import Engine
    from mnist_cuda.ranks.group import Ranks
    from mnist_cuda.ranks.world import World
    from mnist_cuda.run.folder import RunFolder
    from mnist_cuda.run.startup import Startup


def command(options: RunOptions, config: dict[str, Any] | None) -> int:
    """Train; config: that of the run which goes on or is repeated. Returns the exit code."""
    with _joined(options) as (world, ranks):
        return _run(options, config, world, ranks)


@contextlib.contextmanager
def _joined(options: RunOptions) -> Iterator[tuple[World | None, Ranks | None]]:
    """The ranks that a launcher started, or that --gpus or --processes start here; nothing for this process alone."""
    import os

    from mnist_cuda.ranks.processes import inherited
    from mnist_cuda.ranks.world import GPUS, World, launcher_of

    if {"gpus", "processes"} <= options.given:
        raise UsageError("--gpus and --processes both say how many ranks there are; leave one out")
    counts = {GPUS: options.ranks.gpus, "--processes": options.ranks.processes}
    if options.given & {"gpus", "processes"}:  # the other may be of the run that goes on
        counts = {flag: count for flag, count in counts.items() if flag[2:] in options.given}
    flag, count = max(counts.items(), key=lambda item: item[1])
    launcher, size = launcher_of(os.environ)
    place = inherited(os.environ)
    if place:
        from mnist_cuda.ranks.session import another_rank

        with another_rank(*place) as ranks:
            yield place[0], ranks
    elif launcher:
        if flag[2:] in options.given and count != size:
            raise UsageError(f"{flag} is {count}, and {launcher} says {size} ranks; leave it out")
        from mnist_cuda.ranks.session import launched

        with launched(launcher, size, options.ranks.wait) as (world, ranks):
            yield world, ranks
    elif count > 1:
        world = World(flag, 0, count, 0, count)
        _device(options, world)  # or why not, before others begin
        from mnist_cuda.ranks.session import rank_0

        with rank_0(world, options.argv) as ranks:
            yield world, ranks
    else:
        yield None, None


def _run(options: RunOptions, config: dict[str, Any] | None, world: World | None, ranks: Ranks | None) -> int:
    import threading

    from mnist_cuda.run.startup import Startup

    device = _device(options, world)
    needs_gpu = "" if options.engine.emulate else options.engine.engine
    startup = Startup(needs_gpu, device, options.data.dataset)
    from mnist_cuda import machine
    from mnist_cuda.engine import engines
    from mnist_cuda.run.checkpoint import load_model
    from mnist_cuda.run.folder import ResumedFolder, RunFolder
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    threading.Thread(target=machine.commit, name="commit").start()  # config.json will want it
    startup.end("imports")
    output = JsonOutput(options.output.json if world is None or world.rank == 0 else None)
    part, extensions = replace(options.engine, threads=_threads(options, world), device=device), _extensions(options)
    options = _check_own(options, config, extensions["own"].sha256 if "own" in extensions else None)
    engine = part.make(multiprocessors=part.multiprocessors, **extensions)
    startup.end("engine")
    if world and not engine.info.shares_batches:
        able = " or ".join(row.name for row in engines() if row.shares_batches)
        raise UsageError(f"engine '{engine.info.name}' cannot train one model on several ranks, expected {able}")
    if ranks and ranks.rank:
        return _follow(options, engine, config, ranks)
    if options.init:
        file = find_run(options.init)
        engine.set_parameters(load_model(file).parameters)
        options = _check_init(replace(options, init=file), engine)
    else:
        engine.init_parameters(options.training.seed)
    startup.end("parameters")
    with ResumedFolder(options.resume) if options.resume else RunFolder(options.output.out, engine.info.name) as folder:
        data = _load(options, config)
        if data.warning:
            console.print_warning(data.warning)
        startup.end("data")
        return _train(options, engine, data, folder, output, startup, world, ranks)


def _train(
    options: RunOptions, engine: Engine, data: Dataset, folder: RunFolder, output: Any, startup: Startup,
    world: World | None, ranks: Ranks | None,
) -> int:  # fmt: skip
    import numpy as np

    from mnist_cuda.run.folder import ResumedFolder
    from mnist_cuda.run.keeping import RunKeeper, Saving
    from mnist_cuda.run.resume import take_up
    from mnist_cuda.run.training import State, Trainer, require_possible
    from mnist_cuda.run.training_run import TrainingRun

    if options.output.save_best and not options.training.validation:
        raise UsageError("--save-best chooses by the images of --validation N, which is missing")
    if options.patience and not options.training.validation:
        raise UsageError("--patience waits for the images of --validation N, which is missing")
    if options.steps and ranks:
        raise UsageError("--steps is for one process; several ranks train all epochs")
    require_possible(options.training, len(data.train_labels))
    saving = Saving.parse(options.output.save_every, options.output.keep, options.output.save_best)
    state, records = None, None
    if isinstance(folder, ResumedFolder):
        more, size = "--epochs N with more goes on", ranks.size if ranks else 1
        state, records = take_up(folder, options.flat(), data.digest, more=more, ranks=size)
    if ranks:
        from mnist_cuda.ranks.session import share_state

        ranks.folder = folder.path
        ranks.require_facts(_facts(options, engine, data))
        engine.join(ranks.communicator)
        share_state(ranks, state or State(1, 0, engine.parameters, np.empty(0), np.empty(0, np.int32), 0.0))
        startup.end("ranks")
    trainer = Trainer(engine, data, options.training, state=state, records=records, ranks=ranks)
    left = trainer.steps_per_epoch - trainer.step - 1
    if options.engine.emulate and not 0 < options.steps <= left:
        raise UsageError(
            f"--emulate tests no images, which would take hours: end before the epoch does by --steps N, at most {left}"
        )
    keeper = RunKeeper(trainer, folder, saving, options.recorded(), by_auto=options.engine.engine == "auto")
    task = TrainingRun(
        keeper, output, startup, quiet=options.output.quiet, patience=options.patience, steps=options.steps,
        launcher=world.launcher if world else "",
    )  # fmt: skip
    code = task.run(folder.config if isinstance(folder, ResumedFolder) else None)
    if ranks:
        ranks.exit_code = code
    return code


def _device(options: RunOptions, world: World | None) -> int:
    """The GPU of this process, if its engine wants one."""
    from mnist_cuda.ranks.world import GPUS

    device: int = options.engine.device
    if world is None:
        return device
    from mnist_cuda import _native

    on_host = any(row["name"] == options.engine.engine and row["device"] == "cpu" for row in _native.engines())
    if on_host and world.launcher == GPUS:
        raise UsageError(f"--gpus: engine '{options.engine.engine}' runs on the CPU; --processes starts ranks there")
    status = _native.cuda_status()
    count = status["device_count"]
    if world.launcher == GPUS and not count:
        raise UnavailableError(f"--gpus: {status['reason']}")
    return device if on_host or not count else world.gpu(device, count)


def _threads(options: RunOptions, world: World | None) -> int:
    """Of this process: what was asked for, or its part of this machine's cores."""
    import os

    from mnist_cuda import machine

    count: int = options.engine.threads
    return count if count or world is None else world.threads(machine.cores(), os.cpu_count() or 1)


def _facts(options: RunOptions, engine: Engine, data: Dataset) -> dict[type[MnistCudaError], dict[str, Any]]:
    """What all ranks must have in common, by the error where they have not."""
    from mnist_cuda import _native, machine
    from mnist_cuda.run.options import fixed_options

    fixed = fixed_options(options.flat()) | {"epochs": options.training.epochs}
    del fixed["init_sha256"]  # rank 0 gives all of them its parameters
    build = {**machine.build(), "commit": machine.commit() or ""}
    if engine.info.device == "cuda":
        build["GPU"] = _native.gpus()[engine.device]["name"]  # others would cut up a share in another way
    return {
        UsageError: fixed | {"engine": engine.info.name, "precision": engine.precision},
        DataError: {"dataset": data.name, "data digest": data.digest[:16]},
        UnavailableError: build,
    }


def _follow(options: RunOptions, engine: Engine, config: dict[str, Any] | None, ranks: Ranks) -> int:
    """Train as another rank than 0: the same steps, without output and files."""
    from mnist_cuda.ranks.session import share_state
    from mnist_cuda.run.training import Trainer
    from mnist_cuda.terminal.signals import StopRequest

    data = _load(options, config)
    ranks.require_facts(_facts(options, engine, data))
    engine.join(ranks.communicator)
    trainer = Trainer(engine, data, options.training, state=share_state(ranks, None), ranks=ranks)
    trainer.prepare()
    with StopRequest() as stop:
        while not trainer.finished and trainer.train_epoch(stop=lambda: stop.signal or 0):
            trainer.end_epoch(trainer.evaluate())
        ranks.wait()
    raise AssertionError("rank 0 ends the others")


def _extensions(options: RunOptions) -> dict[str, Any]:
    """Arguments of `Engine` that few runs have, so that only these import what makes them."""
    found: dict[str, Any] = {}
    if options.engine.own:
        from mnist_cuda.judge.own_kernels import OwnKernels

        found["own"] = OwnKernels(options.engine.own)
    if options.engine.emulate:
        from mnist_cuda.judge.emulated import EmulatedEngine

        found["emulated"] = EmulatedEngine
    return found


def _check_own(options: RunOptions, config: dict[str, Any] | None, found: str | None) -> RunOptions:
    """Note the kernels of the user's; raise UsageError if a run that goes on or is repeated had others."""
    if config and (expected := config["options"].get("own_sha256")) != found:
        run = options.resume or options.config
        files = " ".join(f"--with {fact['file']}" for fact in config["engine"].get("own", []))
        was = f"{files}, sha256 {str(expected)[:12]}" if expected else "no --with"
        now = f"sha256 {found[:12]}" if found else "none"
        raise UsageError(f"--with: {run} was begun with {was}, and now it is {now}: that would change its result")
    if options.resume and config and bool(config["options"].get("emulate")) != options.engine.emulate:
        raise UsageError(f"--emulate: {options.resume} was begun without it: that would change its result")
    return replace(options, own_sha256=found)


def _check_init(options: RunOptions, engine: Engine) -> RunOptions:
    """Note which parameters a run begins with; raise UsageError if they are not those that it began with before."""
    from mnist_cuda.engine.model import digest

    found, expected = digest(engine.parameters), options.init_sha256
    if expected not in (None, found) and "init" not in options.given:
        weights = f"its weights have sha256 {found[:12]}, and the run began with {str(expected)[:12]}"
        raise UsageError(f"{options.init}: {weights}")
    return replace(options, init_sha256=found)


def _load(options: RunOptions, config: dict[str, Any] | None) -> Dataset:
    """The data; those of a run that goes on or is repeated with the warning that is in its config.json."""
    from mnist_cuda.data.places import is_there
    from mnist_cuda.run.training_run import with_recorded_warning

    path = options.data.data_dir
    if config and path and "data_dir" not in options.given and not is_there(path):
        run = options.resume or options.config
        raise DataError(f"{path}, from which {run} read its data, is gone: name where they are now by --data-dir")
    data = options.data.read()
    _check_data(options, config, data)
    data = data.first(options.limit) if options.limit else data
    return with_recorded_warning(data, config) if config else data


def _check_data(options: RunOptions, config: dict[str, Any] | None, data: Dataset) -> None:
    """Raise DataError if a run that goes on, or is repeated on the data that it names, would get others."""
    from mnist_cuda.run.keeping import what_differs

    if not config or (options.config and options.given & {"dataset", "data_dir"}):
        return
    if other := what_differs(config, data):
        raise DataError(
            f"{data.name} from {data.source} are not the data of {options.resume or options.config}: the {other} "
            f"images differ; expected digest {str(config['data'].get('digest'))[:12]}, found {data.digest[:12]}"
        )
