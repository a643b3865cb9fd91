"""Print the answer to an exercise, a file that the judge finds right."""

from __future__ import annotations

import argparse

EXAMPLES = ("mnist-cuda exercise solution relu", "mnist-cuda exercise solution tile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of an exercise, as `mnist-cuda exercise` lists it")


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.judge import exercises
    from mnist_cuda.terminal import console

    console.make_console().print(exercises.solution(exercises.find(args.name)).rstrip(), soft_wrap=True)
    return 0
