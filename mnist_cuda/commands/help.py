"""Print the help of a command, as its flag --help does."""

from __future__ import annotations

import argparse

EXAMPLES = ("mnist-cuda help train", "mnist-cuda help bench ops")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the command (default: the program itself)")


def run(args: argparse.Namespace) -> int:
    from mnist_cuda import cli

    cli.make_parser().parse_args([*args.command, "--help"])  # which ends the program
    return 0
