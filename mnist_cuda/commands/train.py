"""Train the network and save it with its configuration, metrics and checkpoints in a new folder.

Ctrl-C (or SIGTERM, or a closed terminal) finishes the running steps, saves and exits, and --resume continues from
there. A second Ctrl-C exits at once.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mnist_cuda.commands.flags import (
    RUN,
    add_data_flags,
    add_engine_flags,
    add_evaluation_flag,
    add_json_flag,
    add_placement_flag,
    add_rare_group,
    non_negative,
    positive,
    processes,
    rate,
    run_path,
)
from mnist_cuda.errors import DataError, MnistCudaError, UnavailableError, UsageError
from mnist_cuda.run.names import LATEST, find_folder, find_run
from mnist_cuda.run.options import TrainOptions

if TYPE_CHECKING:
    from mnist_cuda.data.dataset import Dataset
    from mnist_cuda.engine import Engine
    from mnist_cuda.ranks.group import Ranks
    from mnist_cuda.ranks.world import World
    from mnist_cuda.run.folder import RunFolder
    from mnist_cuda.run.resume import Saved
    from mnist_cuda.run.startup import Startup


# What a run takes over from the config.json of another, where no flag says otherwise.
REPEATED = (
    *("epochs", "batch_size", "lr", "schedule", "seed", "eval_bn", "validation", "init", "init_sha256"),
    *("engine", "precision", "multiprocessors", "threads", "device", "placement", "dataset", "data_dir"),
    *("save_every", "keep", "save_best"),
    *("processes", "gpus"),
)

EXAMPLES = (
    "mnist-cuda train",
    "mnist-cuda train --engine cpu --epochs 1 --out runs/first",
    "mnist-cuda train --resume latest --epochs 6",
    "mnist-cuda train --config first --lr 0.1",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    default = TrainOptions()
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("-n", "--epochs", type=positive, default=default.epochs, metavar="N",
        help="passes over the training images (default: %(default)s)")  # fmt: skip
    add("-b", "--batch-size", type=positive, default=default.batch_size, metavar="N",
        help="images per step (default: %(default)s)")  # fmt: skip
    add("--lr", type=rate, default=default.lr, metavar="RATE", help="learning rate of plain SGD (default: %(default)s)")
    add("--schedule", default=default.schedule, metavar="SHAPE",
        help="how the learning rate changes (--lr is its peak): constant, linear (falls to 0) or triangle[:FRACTION] "
        "(first rises for this fraction of the steps, 0.2 if not given) (default: %(default)s)")  # fmt: skip
    add("-s", "--seed", type=non_negative, default=default.seed, metavar="N",
        help="seed of initial weights and sample order (default: %(default)s)")  # fmt: skip
    add("--init", type=run_path, metavar="RUN",
        help=f"start from the weights of {RUN}; also from a PyTorch state_dict (.safetensors, .pt)")  # fmt: skip
    add("--validation", type=non_negative, default=default.validation, metavar="N",
        help="hold out N training images, chosen by the seed, and test on them after each epoch")  # fmt: skip
    add_engine_flags(parser)
    add_placement_flag(add_data_flags(parser, "auto"))
    group = parser.add_argument_group("ranks: processes that train one model")
    add = group.add_argument
    add("--gpus", type=processes, default=1, metavar="N",
        help="start N on this machine, one per GPU, from --device on; torchrun, mpirun and srun start their own "
        "(default: %(default)s)")  # fmt: skip
    add("--processes", type=processes, default=1, metavar="N",
        help="start N on this machine, for the engine cpu (default: %(default)s)")  # fmt: skip
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("-o", "--out", type=Path, metavar="DIR", help="new folder for this run (default: runs/<date>-<time>-<engine>)")
    add("--save-every", default="1epochs", metavar="N[steps|epochs]",
        help="how often to save a checkpoint; the end and a stop save one too (default: every epoch)")  # fmt: skip
    add("--save-best", action="store_true", help="also save the model that is best on the --validation images")
    add_json_flag(group)
    add("-q", "--quiet", action="store_true", help="print only warnings and the last line")
    group = parser.add_argument_group("other runs").add_mutually_exclusive_group()
    group.add_argument("--resume", nargs="?", type=run_path, const=LATEST, metavar="RUN",
        help=f"continue in its folder {RUN} (default: latest)")  # fmt: skip
    group.add_argument("--config", type=run_path, metavar="RUN",
        help="repeat this run, or the one with this config.json; other flags on the command line win")  # fmt: skip
    group = add_rare_group(parser)
    add = group.add_argument
    add_evaluation_flag(group)
    add("--keep", type=positive, default=1, metavar="N", help="checkpoints to keep (default: %(default)s)")
    add("--multiprocessors", type=positive, default=0, metavar="N",
        help="how many multiprocessors (SMs) fused uses; to repeat a model of a sweep, take the number from its "
        "sweep.csv (default: all)")  # fmt: skip
    add("--wait", type=positive, default=120, metavar="SECONDS",
        help="how long to wait for all ranks of torchrun to start (default: %(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Train."""
    config = _take_over(args) if args.resume or args.config else None
    with _joined(args) as (world, ranks):
        return _run(args, config, world, ranks)


def _run(args: argparse.Namespace, config: dict[str, Any] | None, world: World | None, ranks: Ranks | None) -> int:
    import threading

    from mnist_cuda.run.startup import Startup

    device = _device(args, world)
    startup = Startup(args.engine, device, args.dataset)
    from mnist_cuda import machine
    from mnist_cuda.engine import Engine, engines
    from mnist_cuda.run.checkpoint import load_model
    from mnist_cuda.run.folder import ResumedFolder, RunFolder
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    threading.Thread(target=machine.commit, name="commit").start()  # config.json will want it
    startup.end("imports")
    output = JsonOutput(args.json if world is None or world.rank == 0 else None)
    engine = Engine(
        args.engine,
        args.precision,
        threads=_threads(args, world),
        device=device,
        multiprocessors=args.multiprocessors,
    )
    startup.end("engine")
    if world and not engine.info.shares_batches:
        able = " or ".join(row.name for row in engines() if row.shares_batches)
        raise UsageError(f"engine '{engine.info.name}' cannot train one model on several ranks, expected {able}")
    if ranks and ranks.rank:
        return _follow(args, engine, config, ranks)
    if args.init:
        args.init = find_run(args.init)
        engine.set_parameters(load_model(args.init).parameters)
        _check_init(args, engine)
    else:
        engine.init_parameters(args.seed)
    startup.end("parameters")
    with ResumedFolder(args.resume) if args.resume else RunFolder(args.out, engine.info.name) as folder:
        data = _load(args, config)
        if data.warning:
            console.print_warning(data.warning)
        startup.end("data")
        return _train(args, engine, data, folder, output, startup, world, ranks)


def _train(
    args: argparse.Namespace, engine: Engine, data: Dataset, folder: RunFolder, output: Any, startup: Startup,
    world: World | None, ranks: Ranks | None,
) -> int:  # fmt: skip
    import numpy as np

    from mnist_cuda.data.catalogue import without_password
    from mnist_cuda.run.folder import ResumedFolder
    from mnist_cuda.run.resume import remove_later
    from mnist_cuda.run.training import State, Trainer, require_possible
    from mnist_cuda.run.training_run import Saving, TrainingRun

    options = _options(args)
    if args.save_best and not options.validation:
        raise UsageError("--save-best chooses by the images of --validation N, which is missing")
    require_possible(options, len(data.train_labels))
    saving = Saving.parse(args.save_every, args.keep, args.save_best)
    state, records = None, None
    if isinstance(folder, ResumedFolder):
        saved = _last_state(args, folder, data, ranks)
        state = saved.state if saved else None
        done = folder.epochs_done()
        if done >= options.epochs:
            text = f"{args.resume}: all {done} epochs are done"
            raise UsageError(f"{text}; --epochs N with more goes on" if options.schedule == "constant" else text)
        records = folder.records_before(state.epoch if state else 1)
        remove_later(folder.path, saved.path if saved else None)
    recorded = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str | None)}
    recorded |= {name: (path := getattr(args, name)) and str(path.absolute()) for name in ("data_dir", "init")}
    recorded |= {"json": args.json and str(args.json), "mirror": args.mirror and without_password(args.mirror)}
    if ranks:
        from mnist_cuda.ranks.session import share_state

        ranks.folder = folder.path
        ranks.require_facts(_facts(args, engine, data))
        engine.join(ranks.communicator)
        share_state(ranks, state or State(1, 0, engine.parameters, np.empty(0), np.empty(0, np.int32), 0.0))
        startup.end("ranks")
    trainer = Trainer(engine, data, options, state=state, records=records, ranks=ranks)
    task = TrainingRun(
        trainer, folder, output, startup, saving, recorded, by_auto=args.engine == "auto", quiet=args.quiet,
        launcher=world.launcher if world else "",
    )  # fmt: skip
    code = task.run(folder.config if isinstance(folder, ResumedFolder) else None)
    if ranks:
        ranks.exit_code = code
    return code


def _options(args: argparse.Namespace) -> TrainOptions:
    return TrainOptions(
        args.epochs, args.batch_size, args.lr, args.schedule, args.seed, args.eval_bn, args.placement, args.validation
    )


@contextlib.contextmanager
def _joined(args: argparse.Namespace) -> Iterator[tuple[World | None, Ranks | None]]:
    """The ranks that a launcher started, or that --gpus or --processes start here; nothing for this process alone."""
    import os

    from mnist_cuda.ranks.processes import inherited
    from mnist_cuda.ranks.world import GPUS, World, launcher_of

    if {"gpus", "processes"} <= args.given:
        raise UsageError("--gpus and --processes both say how many ranks there are; leave one out")
    counts = {GPUS: args.gpus, "--processes": args.processes}
    if args.given & {"gpus", "processes"}:  # the other may be of the run that goes on
        counts = {flag: count for flag, count in counts.items() if flag[2:] in args.given}
    flag, count = max(counts.items(), key=lambda item: item[1])
    launcher, size = launcher_of(os.environ)
    place = inherited(os.environ)
    if place:
        from mnist_cuda.ranks.session import another_rank

        with another_rank(*place) as ranks:
            yield place[0], ranks
    elif launcher:
        if flag[2:] in args.given and count != size:
            raise UsageError(f"{flag} is {count}, and {launcher} says {size} ranks; leave it out")
        from mnist_cuda.ranks.session import launched

        with launched(launcher, size, args.wait) as (world, ranks):
            yield world, ranks
    elif count > 1:
        world = World(flag, 0, count, 0, count)
        _device(args, world)  # or why not, before others begin
        from mnist_cuda.ranks.session import rank_0

        with rank_0(world, args.argv) as ranks:
            yield world, ranks
    else:
        yield None, None


def _device(args: argparse.Namespace, world: World | None) -> int:
    """The GPU of this process, if its engine wants one."""
    from mnist_cuda.ranks.world import GPUS

    device: int = args.device
    if world is None:
        return device
    from mnist_cuda import _native

    on_host = any(row["name"] == args.engine and row["device"] == "cpu" for row in _native.engines())
    if on_host and world.launcher == GPUS:
        raise UsageError(f"--gpus: engine '{args.engine}' runs on the CPU; --processes starts ranks there")
    status = _native.cuda_status()
    count = status["device_count"]
    if world.launcher == GPUS and not count:
        raise UnavailableError(f"--gpus: {status['reason']}")
    return device if on_host or not count else world.gpu(device, count)


def _threads(args: argparse.Namespace, world: World | None) -> int:
    """Of this process: what was asked for, or its part of this machine's cores."""
    import os

    from mnist_cuda import machine

    count: int = args.threads
    return count if count or world is None else world.threads(machine.cores(), os.cpu_count() or 1)


def _facts(args: argparse.Namespace, engine: Engine, data: Dataset) -> dict[type[MnistCudaError], dict[str, Any]]:
    """What all ranks must have in common, by the error where they have not."""
    from mnist_cuda import _native, machine
    from mnist_cuda.run.training_run import fixed_options

    options = fixed_options(vars(args)) | {"epochs": args.epochs}
    del options["init_sha256"]  # rank 0 gives all of them its parameters
    build = {**machine.build(), "commit": machine.commit() or ""}
    if engine.info.device == "cuda":
        build["GPU"] = _native.gpus()[engine.device]["name"]  # others would cut up a share in another way
    return {
        UsageError: options | {"engine": engine.info.name, "precision": engine.precision},
        DataError: {"dataset": data.name, "data digest": data.digest[:16]},
        UnavailableError: build,
    }


def _follow(args: argparse.Namespace, engine: Engine, config: dict[str, Any] | None, ranks: Ranks) -> int:
    """Train as another rank than 0: the same steps, without output and files."""
    from mnist_cuda.ranks.session import share_state
    from mnist_cuda.run.training import Trainer
    from mnist_cuda.terminal.signals import StopRequest

    data = _load(args, config)
    ranks.require_facts(_facts(args, engine, data))
    engine.join(ranks.communicator)
    trainer = Trainer(engine, data, _options(args), state=share_state(ranks, None), ranks=ranks)
    trainer.prepare()
    with StopRequest() as stop:
        while not trainer.finished and trainer.train_epoch(stop=lambda: stop.signal or 0):
            trainer.end_epoch(trainer.evaluate())
        ranks.wait()
    raise AssertionError("rank 0 ends the others")


def _take_over(args: argparse.Namespace) -> dict[str, Any]:
    """Set the arguments that no flag gave to those of the run to resume or to repeat; returns its config.json.

    Raises UsageError for a flag that would change the result of a run that goes on.
    """
    from mnist_cuda.run.folder import read_config
    from mnist_cuda.run.training_run import FIXED

    if args.resume:
        args.resume = find_folder(args.resume)
    elif args.config.suffix != ".json":
        args.config = find_folder(args.config)
    config = read_config(args.resume or args.config)
    options = config["options"] | {name: config["engine"].get(name) for name in ("precision",)}
    options |= {"engine": config["engine"].get("name"), "dataset": config["data"].get("name")}
    given = args.given
    if args.resume:
        if "out" in given:
            raise UsageError("--out: a run that goes on does so in its own folder; leave it out")
        fixed = [*FIXED, "engine", "precision", "init"] + ["epochs"] * (options.get("schedule") != "constant")
        for name in given.intersection(fixed):
            value, was = getattr(args, name), options.get(name)
            if (str(value.absolute()) if isinstance(value, Path) else value) != was:
                flag = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{flag} is {value}, and {args.resume} was begun with {was}: that would change its result; leave "
                    f"it out, or begin another run by --config {args.resume}"
                )
    left_to_flags = {*given, *(["precision"] if "engine" in given else [])}
    left_to_flags |= {"data_dir"} if given & {"dataset", "mirror"} else set()
    left_to_flags |= {"init_sha256"} if "init" in given else set()
    taken = {name: options[name] for name in REPEATED if name in options and name not in left_to_flags}
    for name in {"dataset", "init_sha256"} & taken.keys():  # who uses them checks them
        setattr(args, name, taken.pop(name))
    for name, value in _checked(taken, args.resume or args.config).items():
        setattr(args, name, value)
    return config


def _checked(values: dict[str, Any], source: Path) -> dict[str, Any]:
    """Recorded values of flags, as the flags take them. Raises CheckpointError for one that no flag takes."""
    from mnist_cuda.commands.parser import Parser
    from mnist_cuda.errors import CheckpointError

    class Recorded(Parser):
        def error(self, message: str) -> NoReturn:
            raise CheckpointError(f"{source}: not a run's configuration: {message}")

    parser = Recorded(allow_abbrev=False)
    add_arguments(parser)
    given = {
        name: value
        for name, value in values.items()
        if not (value in (None, False) and value is parser.get_default(name))
    }
    flags = {name: f"--{name.replace('_', '-')}" for name in given}
    words = [flags[name] if value is True else f"{flags[name]}={value}" for name, value in given.items()]
    parsed = parser.parse_args(words)
    return {name: getattr(parsed, name) for name in values}


def _check_init(args: argparse.Namespace, engine: Engine) -> None:
    """Note which parameters a run begins with; raise UsageError if they are not those that it began with before."""
    from mnist_cuda.engine.model import digest

    found, expected = digest(engine.parameters), getattr(args, "init_sha256", None)
    if expected not in (None, found) and "init" not in args.given:
        raise UsageError(f"{args.init}: its weights have sha256 {found[:12]}, and the run began with {expected[:12]}")
    args.init_sha256 = found


def _load(args: argparse.Namespace, config: dict[str, Any] | None) -> Dataset:
    """The data; those of a run that goes on or is repeated with the warning that is in its config.json."""
    from mnist_cuda.data import dataset
    from mnist_cuda.run.training_run import with_recorded_warning

    data = dataset.load(args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)
    _check_data(args, config, data)
    return with_recorded_warning(data, config) if config else data


def _check_data(args: argparse.Namespace, config: dict[str, Any] | None, data: Dataset) -> None:
    """Raise DataError if a run that goes on, or is repeated on the data that it names, would get others."""
    expected = config and config["data"].get("digest")
    if expected in (None, data.digest) or (args.config and args.given & {"dataset", "data_dir"}):
        return
    raise DataError(
        f"{data.name} from {data.source} are not the data of {args.resume or args.config}: expected digest "
        f"{str(expected)[:12]}, found {data.digest[:12]}"
    )


def _last_state(args: argparse.Namespace, folder: RunFolder, data: Dataset, ranks: Ranks | None) -> Saved | None:
    """The latest sound checkpoint of the run; None, to begin anew, where there is none yet."""
    import sys

    from mnist_cuda.errors import CheckpointError
    from mnist_cuda.machine import versions
    from mnist_cuda.run.resume import checkpoints, load_state
    from mnist_cuda.run.training_run import fixed_options
    from mnist_cuda.terminal.console import plural, print_warning

    found = None
    for path in checkpoints(folder.path):
        try:
            found = load_state(path)
            break
        except CheckpointError as error:
            print_warning(f"{error}; looking for an older one")
    if found is None:
        print(f"mnist-cuda: {folder.path} has no checkpoint yet: the run begins anew", file=sys.stderr)
        return None
    wanted = fixed_options(vars(args))
    for name, value in found.facts["options"].items():
        if wanted.get(name) != value:
            raise CheckpointError(f"{found.path}: made with {name} {value}, and config.json says {wanted.get(name)}")
    if found.facts["data_digest"] != data.digest:
        raise CheckpointError(f"{found.path}: was made on other data, of digest {found.facts['data_digest'][:12]}")
    before, now = found.facts.get("ranks", 1), ranks.size if ranks else 1
    if before != now:
        print_warning(
            f"{found.path} was made by {plural(before, 'rank')}, and now it is {now}: the weights will differ "
            "from what they would have been, in their last bits at first"
        )
    made_by, here = found.facts["versions"], versions()
    other = [f"{name} {made_by.get(name)}, now {here[name]}" for name in here if made_by.get(name) != here[name]]
    if other:
        print_warning(f"{found.path} was made by {'; '.join(other)}: the weights may differ in their last bits")
    return found
