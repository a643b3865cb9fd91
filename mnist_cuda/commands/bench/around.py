"""Time what surrounds the steps of a training.

It times commands, and a training of one epoch, stage by stage from the start of the process to the first step; then
calls of an engine: initial values, parameters in and out, batch norm's statistics and evaluation.
Lists take commas or spaces.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_data_flags, add_record_flags, options_of, positive

EXAMPLES = ("mnist-cuda bench around", "mnist-cuda bench around -e cpu fused:bf16 --runs 3")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measurement")
    text = "engines, as NAME or NAME:PRECISION (default: all that run here, except `reference`)"
    group.add_argument("-e", "--engines", nargs="+", metavar="NAME", help=text)
    text = "images per step of the training (default: %(default)s)"
    group.add_argument("-b", "--batch-size", type=positive, default=256, metavar="N", help=text)
    text = "runs of each, after one that does not count (default: %(default)s)"
    group.add_argument("--runs", type=positive, default=10, metavar="N", help=text)
    add_data_flags(parser, "mnist")
    add_record_flags(parser.add_argument_group("output"))


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.bench import around

    return around.command(options_of(around.AroundOptions, args))
