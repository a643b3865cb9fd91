"""Print images and their labels in the terminal, or with --wrong the test images that a model gets wrong."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mnist_cuda.commands.flags import NEWEST, add_data_flags, integer, model_file, positive, run_path
from mnist_cuda.errors import UsageError

if TYPE_CHECKING:
    from mnist_cuda.data.idx import Images


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("index", nargs="*", type=integer, metavar="INDEX", help="number of the image, from 0")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="default: %(default)s")
    text = "show the test images that RUN gets wrong, the worst first (default: the newest run in runs/)"
    parser.add_argument("--wrong", nargs="?", type=run_path, const=NEWEST, metavar="RUN", help=text)
    parser.add_argument("--count", type=positive, default=10, metavar="N", help="with --wrong (default: %(default)s)")
    add_data_flags(parser, "auto")


def run(args: argparse.Namespace) -> int:
    """Print each image; UsageError for an index that the data set does not have."""
    if bool(args.index) == bool(args.wrong):
        raise UsageError("expected either INDEX or --wrong RUN")
    if args.wrong:
        return _run_wrong(args)
    from mnist_cuda.console import print_warning
    from mnist_cuda.data import dataset

    data = dataset.load(args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)
    if data.warning:
        print_warning(data.warning)
    images, labels = (
        (data.train_images, data.train_labels) if args.split == "train" else (data.test_images, data.test_labels)
    )
    for index in args.index:
        if not 0 <= index < len(images):
            raise UsageError(
                f"index {index} is outside the {len(images)} {args.split} images of {data.name}, "
                f"expected 0 to {len(images) - 1}"
            )
    for index in args.index:
        _print(images[index], f"{data.name} {args.split} {index}: {labels[index]}")
    return 0


def _run_wrong(args: argparse.Namespace) -> int:
    """Print the worst mistakes of a model, and how many there are."""
    from mnist_cuda.confusion import score_model, taken_for
    from mnist_cuda.console import print_warning
    from mnist_cuda.engine import Engine

    if args.dataset != "auto" or args.split != "train":
        raise UsageError("--wrong shows test images of the model's own data set: leave out --dataset and --split")
    answers, _, data = score_model(
        Engine(), model_file(args.wrong), data_dir=args.data_dir, offline=args.offline, mirror=args.mirror
    )
    if data.warning:
        print_warning(data.warning)
    mistakes = answers.mistakes()
    for index in mistakes[: args.count]:
        label = answers.labels[index]
        share = f"{label} got {100 * answers.probabilities[index, label]:.2g} %"
        text = f"{label}, taken for {taken_for(answers, index)} ({share})"
        _print(data.test_images[index], f"{data.name} test {index}: {text}")
    shown = min(args.count, len(mistakes))
    print(f"{len(mistakes)} of {len(answers.labels)} test images are wrong, {shown} of them shown")
    return 0


def _print(image: Images, title: str) -> None:
    """A line of text and the image."""
    import os
    import sys

    from mnist_cuda.console import make_console
    from mnist_cuda.data.picture import render

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print(title)
    make_console().file.write(render(image, colour=colour, encoding=sys.stdout.encoding or "ascii") + "\n")
