"""Print the next hint to an exercise, below those that were given before."""

from __future__ import annotations

import argparse

EXAMPLES = ("mnist-cuda exercise hint tile",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of an exercise, as `mnist-cuda exercise` lists it")


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.judge import exercises
    from mnist_cuda.terminal import console

    hints, count = exercises.next_hint(exercises.find(args.name))
    out = console.make_console()
    for number, hint in enumerate(hints, 1):
        console.print_fact(out, f"{number} of {count}", hint)
    if len(hints) == count:
        out.print(f"that was the last one; `mnist-cuda exercise solution {args.name}` prints the answer")
    return 0
