"""Show what an exercise asks for, and how far it is: `mnist-cuda exercise NAME` is short for it."""

from __future__ import annotations

import argparse

EXAMPLES = ("mnist-cuda exercise show relu",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of an exercise, as `mnist-cuda exercise` lists it")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from mnist_cuda.judge import exercises
    from mnist_cuda.terminal import console

    exercise, out = exercises.find(args.name), console.make_console()
    out.print(f"{exercise.name}: {exercise.title}", style="bold")
    for line in exercises.words_of(exercise):
        out.print(line)
    file, done = Path(f"{exercise.name}.cu"), exercises.solved().get(exercise.name)
    if done:
        out.print(f"\nsolved by {done}")
    elif file.exists():
        out.print(f"\nbegun in {file}; when it is done: `mnist-cuda judge {file}`")
    else:
        out.print(f"\nbegin it: `mnist-cuda exercise start {exercise.name}`")
    return 0
