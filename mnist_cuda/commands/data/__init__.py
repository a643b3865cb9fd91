"""Fetch, verify and show data sets."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mnist_cuda.commands.parser import add_commands

if TYPE_CHECKING:
    from mnist_cuda.data.dataset import Dataset

COMMANDS = {
    "fetch": "fetch data sets into the cache",
    "verify": "check a data set's files",
    "show": "print digits in the terminal",
}

EXAMPLES = ("mnist-cuda data fetch mnist", "mnist-cuda data verify", "mnist-cuda data show 7")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, __name__, COMMANDS, title="commands", metavar="COMMAND", required=True)


def sizes(data: Dataset) -> str:
    """How many images a data set has, for people."""
    return f"{len(data.train_images)} training images, {len(data.test_images)} test images"
