"""Print images and their labels in the terminal."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_data_flags, integer
from mnist_cuda.errors import UsageError

EXAMPLES = ("mnist-cuda data show 7", "mnist-cuda data show 0 1 2 --split test")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("index", nargs="+", type=integer, metavar="INDEX", help="number of the image, from 0")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="default: %(default)s")
    add_data_flags(parser, "auto")


def run(args: argparse.Namespace) -> int:
    """Print each image; UsageError for an index that the data set does not have."""
    from mnist_cuda.data.picture import print_image
    from mnist_cuda.run.options import DataOptions
    from mnist_cuda.terminal.console import make_console

    where = DataOptions(dataset=args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)
    data = where.load()
    images, labels = (
        (data.train_images, data.train_labels) if args.split == "train" else (data.test_images, data.test_labels)
    )
    for index in args.index:
        if not 0 <= index < len(images):
            raise UsageError(
                f"index {index} is outside the {len(images)} {args.split} images of {data.name}, "
                f"expected 0 to {len(images) - 1}"
            )
    out = make_console()
    for index in args.index:
        print_image(out, images[index], f"{data.name} {args.split} {index}: {labels[index]}")
    return 0
