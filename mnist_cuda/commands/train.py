"""Train the network and save it with its configuration, metrics and checkpoints in a new folder.

Ctrl-C (or SIGTERM, or a closed terminal) finishes the running steps, saves and exits, and --resume continues from
there. A second Ctrl-C exits at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from mnist_cuda.commands.flags import (
    RUN,
    add_data_flags,
    add_engine_flags,
    add_evaluation_flag,
    add_json_flag,
    add_limit_flag,
    add_own_flag,
    add_placement_flag,
    add_rare_group,
    non_negative,
    options_of,
    positive,
    processes,
    rate,
    run_path,
    schedule,
)
from mnist_cuda.errors import CheckpointError, UsageError
from mnist_cuda.run.names import LATEST, find_folder
from mnist_cuda.run.options import RunOptions, TrainOptions

# What a run takes over from the config.json of another, where no flag says otherwise.
REPEATED = (
    *("epochs", "batch_size", "lr", "schedule", "seed", "eval_bn", "validation", "init", "init_sha256"),
    *("engine", "precision", "multiprocessors", "threads", "device", "placement", "dataset", "data_dir"),
    *("save_every", "keep", "save_best", "limit", "patience", "emulate"),
    *("processes", "gpus"),
)

EXAMPLES = (
    "mnist-cuda train",
    "mnist-cuda train --engine cpu --epochs 1 --out runs/my-run",
    "mnist-cuda train --limit 3000 --epochs 1",
    "mnist-cuda train --validation 5000 --patience 3",
    "mnist-cuda train --resume latest --epochs 6",
    "mnist-cuda train --config my-run --lr 0.1",
    "mnist-cuda train -e tiled --with conv.cu",
    "mnist-cuda train --emulate -b 4 --steps 10",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(init_sha256=None, own_sha256=None)  # of the run that goes on or is repeated
    default = TrainOptions()
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("-n", "--epochs", type=positive, default=default.epochs, metavar="N",
        help="passes over the training images (default: %(default)s)")  # fmt: skip
    add("-b", "--batch-size", type=positive, default=default.batch_size, metavar="N",
        help="images per step (default: %(default)s)")  # fmt: skip
    add("--lr", type=rate, default=default.lr, metavar="RATE", help="learning rate of plain SGD (default: %(default)s)")
    add("--schedule", type=schedule, default=default.schedule, metavar="SHAPE",
        help="how the learning rate changes (--lr is its peak): constant, linear (falls to 0) or triangle[:FRACTION] "
        "(first rises for this fraction of the steps, 0.2 if not given) (default: %(default)s)")  # fmt: skip
    add("-s", "--seed", type=non_negative, default=default.seed, metavar="N",
        help="seed of initial weights and sample order (default: %(default)s)")  # fmt: skip
    add("--init", type=run_path, metavar="RUN",
        help=f"start from the weights of a run or of a PyTorch state_dict (.safetensors, .pt); RUN: {RUN}")  # fmt: skip
    add("--validation", type=non_negative, default=default.validation, metavar="N",
        help="hold out N training images, chosen by the seed, and test on them after each epoch")  # fmt: skip
    add("--patience", type=non_negative, default=0, metavar="N",
        help="end after N epochs without a better accuracy on the --validation images (default: never)")  # fmt: skip
    add("--steps", type=non_negative, default=0, metavar="N",
        help="stop after N steps; --resume goes on from there (default: after all epochs)")  # fmt: skip
    group = add_engine_flags(parser)
    add_own_flag(group)
    group.add_argument("--emulate", action="store_true",
        help="run the kernels of tiled (default) or naive on the CPU, without CUDA; needs --steps")  # fmt: skip
    group = add_data_flags(parser, "auto")
    add_limit_flag(group)
    add_placement_flag(group)
    group = parser.add_argument_group("ranks (processes that train one model together)")
    add = group.add_argument
    add("--gpus", type=processes, default=1, metavar="N",
        help="start N ranks on this machine, one per GPU, from --device on; torchrun, mpirun and srun start their own "
        "(default: %(default)s)")  # fmt: skip
    add("--processes", type=processes, default=1, metavar="N",
        help="start N ranks on this machine, for the engine cpu (default: %(default)s)")  # fmt: skip
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("-o", "--out", type=Path, metavar="DIR", help="new folder for this run (default: runs/<date>-<time>-<engine>)")
    add("--save-every", default="1epochs", metavar="N[steps|epochs]",
        help="how often to save a checkpoint; the end and a stop save one too (default: every epoch)")  # fmt: skip
    add("--save-best", action="store_true", help="also save the model that is best on the --validation images")
    add_json_flag(group)
    add("-q", "--quiet", action="store_true", help="print only warnings and the result")
    group = parser.add_argument_group("other runs").add_mutually_exclusive_group()
    group.add_argument("--resume", nargs="?", type=run_path, const=LATEST, metavar="RUN",
        help="continue a run, in its folder; more --epochs need a constant --schedule, and flags that would change the "
        f"result are refused; RUN: {RUN} (default: latest)")  # fmt: skip
    group.add_argument("--config", type=run_path, metavar="RUN",
        help="repeat this run, or the one with this config.json; other flags override its options")  # fmt: skip
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
    config = _take_over(args) if args.resume or args.config else None
    from mnist_cuda.run import train_command

    return train_command.command(options_of(RunOptions, args), config)


def _take_over(args: argparse.Namespace) -> dict[str, Any]:
    """Set the arguments that no flag gave to those of the run to resume or to repeat; returns its config.json.

    Raises UsageError for a flag that would change the result of a run that goes on.
    """
    from mnist_cuda.run.folder import read_config, recorded_data
    from mnist_cuda.run.options import FIXED

    if args.resume:
        args.resume = find_folder(args.resume)
    elif args.config.suffix != ".json":
        args.config = find_folder(args.config)
    config = read_config(args.resume or args.config)
    options = config["options"] | {name: config["engine"].get(name) for name in ("precision",)}
    options |= {"engine": config["engine"].get("name")}
    given = args.given
    if not isinstance(config["data"].get("name"), str):
        raise CheckpointError(f"{args.resume or args.config}: not a run's configuration: `data` names no data set")
    if "dataset" not in given:
        options["dataset"], data_dir = recorded_data(config, args.data_dir, where=args.resume or args.config)
        options["data_dir"] = data_dir and str(data_dir)
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
