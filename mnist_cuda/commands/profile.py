"""Time a training step op by op, or phase by phase with `cpu` and `fused`, which join ops.

On a GPU it compares the times with the best possible at this GPU's measured rates. It also prints the command lines of
the profilers that look closer. It needs no hardware counters.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_engine_flags,
    add_json_flag,
    add_own_flag,
    file_ending_in,
    options_of,
    positive,
)

EXAMPLES = ("mnist-cuda profile --engine cpu", "mnist-cuda profile -b 1024 --trace trace.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("step")
    group.add_argument(
        "-b", "--batch-size", type=positive, default=64, metavar="N", help="images per step (default: %(default)s)"
    )
    group.add_argument("--steps", type=positive, metavar="N", help="steps to time (default: 100, or what fits in 5 s)")
    add_own_flag(add_engine_flags(parser))
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    text = "write a timeline of ten steps for Perfetto or chrome://tracing"
    group.add_argument("--trace", type=file_ending_in(".json"), metavar="FILE", help=text)
    add_json_flag(group)


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.run.startup import Startup

    Startup(args.engine, args.device, args.dataset)
    from mnist_cuda.bench import profile

    return profile.command(options_of(profile.ProfileOptions, args))
