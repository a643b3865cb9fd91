"""Train some epochs with every engine and precision and with another framework, and compare the test accuracies.

All start from the same weights and train in the same order; the means over several seeds are compared. Every engine
must also repeat its first run bit by bit. Exit code 1 if a mean is more than 0.2 points from the other
framework's, or a run is not repeated.
Lists take commas or spaces.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_peer_python_flag,
    add_record_flags,
    options_of,
    positive,
    rate,
    threads,
)

EXAMPLES = ("mnist-cuda bench accuracy --engines cpu --seeds 3", "mnist-cuda bench accuracy --peers jax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("-e", "--engines", nargs="+", metavar="NAME",
        help="our engines (default: all that run here, except `reference`)")  # fmt: skip
    add("-p", "--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16, fp64 (default: all of each engine)")
    text = "the other framework: torch, torch:graph, jax, ... (default: %(default)s)"
    add("--peers", default="torch", metavar="NAME", help=text)
    add_peer_python_flag(group)
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--seeds", type=positive, default=10, metavar="N", help="seeds 0 to N-1, one run each (default: %(default)s)")
    add("-n", "--epochs", type=positive, default=3, metavar="N",
        help="passes over the training images (default: %(default)s)")  # fmt: skip
    add("-b", "--batch-size", type=positive, default=64, metavar="N", help="images per step (default: %(default)s)")
    add("--lr", type=rate, default=0.05, metavar="RATE", help="learning rate of plain SGD (default: %(default)s)")
    add("--jobs", type=positive, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    add("-t", "--threads", type=threads, default=0, metavar="N", help="threads of a CPU run (default: cores / jobs)")
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_record_flags(group)


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.bench import accuracy

    return accuracy.command(options_of(accuracy.AccuracyOptions, args))
