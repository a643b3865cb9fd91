"""`mnist-cuda data fetch|verify|show`: fill the cache, check it, look at digits."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnist_cuda.data.catalogue import DATASETS, cache_folder
from mnist_cuda.errors import DataError, UsageError

if TYPE_CHECKING:
    from mnist_cuda.data.dataset import Dataset


def fetch(names: Sequence[str], *, mirror: str | None = None) -> None:
    """Put the data sets into the cache, as far as they are not there, and print where it is. Raises DataError."""
    from mnist_cuda.data import dataset, download

    for name in names:
        if name not in DATASETS:
            raise UsageError(f"data set '{name}' cannot be fetched, expected one of {', '.join(DATASETS)}")
    for name in names:
        data = dataset.load(name, data_dir=download.fetch(DATASETS[name], mirror=mirror))
        print(f"{name}: {_sizes(data)}, all files checked, in {data.source}")


def verify(name: str, *, data_dir: str | Path | None = None) -> None:
    """Check every file of a data set, by default in the cache, and print a line for each.

    Raises DataError if one is missing, damaged or another than the published file.
    """
    from mnist_cuda.data import dataset, unpacked

    info = DATASETS[name]
    folder = cache_folder(info) if data_dir is None else dataset.find_folder(info, Path(data_dir))
    checks = [partial(dataset.read_file, file, folder) for file in info.files]
    if data_dir is None and unpacked.path(info).exists():
        checks.append(partial(unpacked.check, info))
    faults = 0
    for check in checks:
        try:
            _, path, sha256 = check()
            print(f"ok     {path}  sha256 {sha256}")
        except DataError as error:
            faults += 1
            print(f"FAULT  {error}")
    if faults:
        remedy = f"run `mnist-cuda data fetch {name}`" if data_dir is None else "replace them"
        raise DataError(f"{faults} of the {len(checks)} files of {name} in {folder} are missing or bad: {remedy}")
    print(f"{name}: {_sizes(dataset.load(name, data_dir=folder))}, all as published")


def show(data: Dataset, indices: Sequence[int], split: str = "train") -> None:
    """Print images of a data set's `train` or `test` half with their labels. Raises UsageError for a wrong index."""
    from mnist_cuda.data.picture import render

    images, labels = (
        (data.train_images, data.train_labels) if split == "train" else (data.test_images, data.test_labels)
    )
    for index in indices:
        if not 0 <= index < len(images):
            raise UsageError(
                f"index {index} is outside the {len(images)} {split} images of {data.name}, "
                f"expected 0 to {len(images) - 1}"
            )
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for index in indices:
        print(f"{data.name} {split} {index}: {labels[index]}")
        print(render(images[index], colour=colour, encoding=sys.stdout.encoding or "ascii"))


def _sizes(data: Dataset) -> str:
    return f"{len(data.train_images)} training images, {len(data.test_images)} test images"


def _run_fetch(args: argparse.Namespace) -> int:
    fetch(args.name or ["mnist"], mirror=args.mirror)
    return 0


def _run_verify(args: argparse.Namespace) -> int:
    verify(args.name, data_dir=args.data_dir)
    return 0


def _run_show(args: argparse.Namespace) -> int:
    from mnist_cuda.console import print_warning
    from mnist_cuda.data.dataset import load

    data = load(args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)
    if data.warning:
        print_warning(data.warning)
    show(data, args.index, args.split)
    return 0


def add_data_commands(subparsers: Any) -> None:
    """`mnist-cuda data` with its sub-commands."""
    from mnist_cuda.cli import add_data_flags

    parser = subparsers.add_parser("data", help="fetch, verify and show data sets", allow_abbrev=False)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    action = actions.add_parser("fetch", help="fetch data sets into the cache", allow_abbrev=False)
    action.description = "Fetch data sets into the cache ($MNIST_CUDA_CACHE or the user's) and check every file."
    action.add_argument("name", nargs="*", metavar="NAME", help=f"{', '.join(DATASETS)} (default: mnist)")
    action.add_argument("--mirror", metavar="URL", help="fetch from this mirror instead (also MNIST_CUDA_MIRROR)")
    action.set_defaults(run=_run_fetch)

    action = actions.add_parser("verify", help="check a data set's files", allow_abbrev=False)
    action.description = "Check that a data set's files are all there and are the published ones."
    action.add_argument("name", nargs="?", default="mnist", choices=DATASETS, metavar="NAME")
    action.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder to check (default: the cache)")
    action.set_defaults(run=_run_verify)

    action = actions.add_parser("show", help="print digits in the terminal", allow_abbrev=False)
    action.description = "Print images and their labels in the terminal."
    action.add_argument("index", nargs="+", type=int, metavar="INDEX", help="number of the image, from 0")
    action.add_argument("--split", choices=("train", "test"), default="train", help="default: %(default)s")
    add_data_flags(action, "auto")
    action.set_defaults(run=_run_show)
