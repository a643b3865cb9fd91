"""Train many models, from a grid of options or the rows of a CSV file, and write one table.

Each model gets the weights that `train` gives with the same options. Ctrl-C keeps what is done; --resume continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_engine_flags,
    add_evaluation_flag,
    add_json_flag,
    add_limit_flag,
    add_placement_flag,
    add_rare_group,
    gpu,
    non_negative,
    options_of,
    positive,
    rate,
    run_path,
    schedule,
)
from mnist_cuda.run.names import LATEST
from mnist_cuda.run.options import TrainOptions

EXAMPLES = (
    "mnist-cuda sweep --seeds 3 --lr 0.05 0.1 --epochs 1",
    "mnist-cuda sweep --runs models.csv --save best",
    "mnist-cuda sweep --seeds 10 --epochs 3 --each-epoch --hits",
    "mnist-cuda sweep --resume latest",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = TrainOptions()
    group = parser.add_argument_group("models (one per combination of options, or row of a file)")
    add = group.add_argument
    add("--seeds", type=positive, default=1, metavar="N", help="number of seeds, from --seed on (default: %(default)s)")
    add("-s", "--seed", type=non_negative, default=default.seed, metavar="N",
        help="the first seed, of weights and sample order (default: %(default)s)")  # fmt: skip
    add(
        "--lr",
        type=rate,
        nargs="+",
        default=[default.lr],
        metavar="RATE",
        help=f"learning rates (default: {default.lr})",
    )
    add("-b", "--batch-size", type=positive, nargs="+", default=[default.batch_size], metavar="N",
        help=f"images per step (default: {default.batch_size})")  # fmt: skip
    add(
        "--schedule",
        type=schedule,
        nargs="+",
        default=[default.schedule],
        metavar="SHAPE",
        help="how the learning rate changes (--lr is its peak): constant, linear, triangle[:FRACTION] "
        f"(default: {default.schedule})",
    )
    add("-n", "--epochs", type=positive, nargs="+", default=[default.epochs], metavar="N",
        help=f"passes over the training images (default: {default.epochs})")  # fmt: skip
    add("--runs", type=Path, metavar="FILE",
        help="a CSV file with a row per model and a column per option, such as lr,batch_size,seed; flags give the "
        "other options")  # fmt: skip
    add("--validation", type=non_negative, default=default.validation, metavar="N",
        help="hold out N training images of each model, chosen by its seed, and test it on them")  # fmt: skip
    add_engine_flags(parser, "threads of a CPU engine, shared by the models that it trains at once")
    group = parser.add_argument_group("side by side")
    add = group.add_argument
    add(
        "--jobs",
        type=non_negative,
        default=0,
        metavar="N",
        help="models trained at once (default: one per core; on a GPU one, but fused takes as many as fill it)",
    )
    add("--gpus", type=gpu, nargs="+", metavar="ID",
        help="numbers of the GPUs to use, such as 0 1; each trains its own models")  # fmt: skip
    group = add_data_flags(parser, "auto")
    add_limit_flag(group)
    add_placement_flag(group)
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("-o", "--out", type=Path, metavar="DIR", help="new folder (default: sweeps/<date>-<time>-<engine>)")
    add("--save", choices=("all", "best", "none"), default="none",
        help="which weights to keep; all: in one file, the models as first dimension of each tensor; best: the one "
        "best on the held-out images, or without --validation on the test images (default: %(default)s)")  # fmt: skip
    add("--each-epoch", action="store_true", help="test after each epoch, not only after the last")
    add("--hits", action="store_true",
        help="also keep which test images each model gets right, a bit for each, in hits.safetensors")  # fmt: skip
    add_json_flag(group)
    add("-q", "--quiet", action="store_true", help="print only warnings and the result")
    add("--resume", nargs="?", type=run_path, const=LATEST, metavar="SWEEP",
        help="continue a stopped sweep in its folder: its name, its folder or latest (default: latest)")  # fmt: skip
    group = add_rare_group(parser)
    add_evaluation_flag(group)
    group.add_argument("--parquet", action="store_true", help="also write the table as Parquet (needs pyarrow)")


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.sweeps import sweep_command

    return sweep_command.command(options_of(sweep_command.SweepOptions, args))
