"""Find the shortest training time to a test accuracy.

For each budget of batch size and epochs, choose the learning rate's schedule and peak on held-out training images; then
train with it on the whole training set, the shortest budget first, until the median test accuracy of the seeds is at
the target. Lists take commas or spaces. Exit code 1 if no budget gets there.

--submit FILE judges another program instead, by the rules of our page "mnist-99"; that program chooses its own recipe.
Exit code 1 if its median is below the target.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_engine_flags,
    add_peer_python_flag,
    add_record_flags,
    options_of,
    percent,
    positive,
)
from mnist_cuda.errors import UsageError

EXAMPLES = (
    "mnist-cuda bench time-to-accuracy --target 98.5",
    "mnist-cuda bench time-to-accuracy --budgets 192x3",
    "mnist-cuda bench time-to-accuracy --submit program.py",
)

# What a foreign program does not choose.
OF_SUBMIT = {"submit", "target", "seeds", "peer_python", "dataset", "data_dir", "mirror", "offline", "json", "busy"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--target", type=percent, default=99.0, metavar="P", help="test accuracy in per cent (default: %(default)g)")
    add("--budgets", nargs="+", metavar="BxE", help="batch size and epochs, such as 192x3 (default: 13 of them)")
    add("--schedules", nargs="+", metavar="SHAPE", help="to choose from (default: triangle:0.2 triangle:0.4 linear)")
    add("--peaks", nargs="+", metavar="RATE", help="peak rates to choose from (default: 0.1 0.2 0.3 0.5 0.8)")
    text = "seeds of the result (default: %(default)s; with --submit 200)"
    add("--seeds", type=positive, default=20, metavar="N", help=text)
    add("--selection-seeds", type=positive, default=5, metavar="N", help="seeds per candidate (default: %(default)s)")
    add("--hold-out", type=positive, default=5000, metavar="N", help="images to choose by (default: %(default)s)")
    text = (
        "choose the budget by held-out images: the shortest that gets P per cent of them right (default: choose it by "
        "test images: the shortest that reaches --target)"
    )
    add("--freeze-at", type=percent, metavar="P", help=text)
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("--peers", nargs="+", default=[], metavar="NAME", help="also train the result in torch:graph, jax, ...")
    add_peer_python_flag(group)
    text = "judge this program only: Python for --peer-python if it ends in .py, else an executable"
    add("--submit", type=Path, metavar="FILE", help=text)
    add_engine_flags(parser)
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_record_flags(group)


def run(args: argparse.Namespace) -> int:
    """Find the least training time, or judge a program."""
    if args.submit:
        if unused := sorted(args.given - OF_SUBMIT):
            raise UsageError(f"--submit does not use --{unused[0].replace('_', '-')}: leave it out")
        from mnist_cuda.bench import submit

        args.seeds = args.seeds if "seeds" in args.given else submit.RULE_SEEDS
        return submit.command(options_of(submit.SubmitOptions, args))
    from mnist_cuda.bench import time_to_accuracy

    return time_to_accuracy.command(options_of(time_to_accuracy.TimeToAccuracyOptions, args))
