"""Measure a card or a processor for the documentation's table: one JSON file and one Markdown row.

The row has the time of a training step at three batch sizes, the test accuracy after three epochs, the versions and a
digest; on a GPU also every op, checked and timed. --check FILE only verifies such a file; exit code 1 if it fails.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import add_data_flags, add_record_flags, options_of, threads
from mnist_cuda.errors import UsageError

EXAMPLES = (
    "mnist-cuda bench share --json my-card.json",
    "mnist-cuda bench share --check my-card.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-e",
        "--engine",
        default="auto",
        metavar="NAME",
        help="the engine, in all its precisions (default: auto, the best one here)",
    )
    add("-t", "--threads", type=threads, default=0, metavar="N", help="threads of a CPU engine (default: one per core)")
    add("--check", type=Path, metavar="FILE", help="measure nothing; verify this file and print its row")
    add_data_flags(parser, "auto")
    add_record_flags(parser.add_argument_group("output"))


def run(args: argparse.Namespace) -> int:
    if args.check and (unused := sorted(args.given - {"check"})):
        raise UsageError(f"--check does not use --{unused[0].replace('_', '-')}: leave it out")
    from mnist_cuda.bench import share

    return share.command(options_of(share.ShareOptions, args))
