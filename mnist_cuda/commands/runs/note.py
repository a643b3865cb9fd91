"""Write a note to a run, which `runs` lists; without words, remove it."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.runs import add_folder_flag, add_run_argument

EXAMPLES = ("mnist-cuda runs note latest the learning rate was too high", "mnist-cuda runs note latest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("word", nargs="*", metavar="WORD", help="the note")
    add_folder_flag(parser)


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.run import listing
    from mnist_cuda.run.names import find_folder

    listing.write_note(find_folder(args.run_folder, args.dir), " ".join(args.word))
    return 0
