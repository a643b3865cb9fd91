"""Write an exercise's file: the statement, and a kernel with a hole. An existing file is never overwritten."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = ("mnist-cuda exercise start relu", "mnist-cuda exercise start tile --out tile_2.cu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of an exercise, as `mnist-cuda exercise` lists it")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the file (default: NAME.cu)")


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.judge import judging
    from mnist_cuda.terminal import console

    file = judging.start(args.name, args.out)
    console.make_console().print(f"wrote {file}; when it is done: `mnist-cuda judge {file}`")
    return 0
