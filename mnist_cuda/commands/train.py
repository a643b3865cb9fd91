"""Train the network and save it with its configuration and metrics in a new folder.

Ctrl-C (or SIGTERM, or a closed terminal) finishes the running steps, saves and exits; a second one exits at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_engine_flags,
    add_evaluation_flag,
    add_json_flag,
    add_placement_flag,
    non_negative,
    positive,
    rate,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("-n", "--epochs", type=positive, default=5, metavar="N", help="default: %(default)s")
    add("-b", "--batch-size", type=positive, default=64, metavar="N", help="images a step (default: %(default)s)")
    add("--lr", type=rate, default=0.05, metavar="RATE", help="learning rate of plain SGD (default: %(default)s)")
    add("--schedule", default="constant", metavar="SHAPE",
        help="of the rate, with --lr its peak: constant, linear (falls to 0) or triangle[:FRACTION], which first rises "
        "for this fraction of the steps, 0.2 if not given (default: %(default)s)")  # fmt: skip
    add(
        "-s",
        "--seed",
        type=non_negative,
        default=0,
        metavar="N",
        help="of weights and sample order (default: %(default)s)",
    )
    add_evaluation_flag(group)
    add_engine_flags(parser)
    add_placement_flag(add_data_flags(parser, "auto"))
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("-o", "--out", type=Path, metavar="DIR", help="new folder of this run (default: runs/<date>-<time>-<engine>)")
    add_json_flag(group)
    add("-q", "--quiet", action="store_true", help="print only warnings and the last line")


def run(args: argparse.Namespace) -> int:
    """Train."""
    from mnist_cuda.startup import Startup

    startup = Startup(args.engine, args.device, args.dataset)
    from mnist_cuda import train

    return train.command(args, startup)
