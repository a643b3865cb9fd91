"""Download data sets into the cache ($MNIST_CUDA_CACHE, or the user's cache folder) and check every file."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.data import sizes
from mnist_cuda.data.catalogue import DATASETS
from mnist_cuda.errors import UsageError

EXAMPLES = ("mnist-cuda data fetch", "mnist-cuda data fetch mnist fashion-mnist")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"{', '.join(DATASETS)} (default: mnist)")
    parser.add_argument("--mirror", metavar="URL", help="download from this mirror (also MNIST_CUDA_MIRROR)")


def run(args: argparse.Namespace) -> int:
    """Fetch what is not in the cache, and print where it is."""
    from mnist_cuda.data import dataset, download

    names = args.name or ["mnist"]
    for name in names:
        if name not in DATASETS:
            raise UsageError(f"data set '{name}' cannot be fetched, expected one of {', '.join(DATASETS)}")
    for name in names:
        data = dataset.load(name, data_dir=download.fetch(DATASETS[name], mirror=args.mirror))
        print(f"{name}: {sizes(data)}, all files checked, in {data.source}")
    return 0
