"""Check that a data set is complete and every file is the published one.

Unpacked images in the cache are accepted in place of the files, if their content is right.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from mnist_cuda.commands.data import sizes
from mnist_cuda.data.catalogue import DATASETS, cache_folder
from mnist_cuda.errors import DataError

EXAMPLES = ("mnist-cuda data verify", "mnist-cuda data verify fashion-mnist --data-dir files")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"{', '.join(DATASETS)} (default: %(default)s)"
    parser.add_argument("name", nargs="?", default="mnist", choices=tuple(DATASETS), metavar="NAME", help=text)
    parser.add_argument("-d", "--data-dir", type=Path, metavar="DIR", help="folder to check (default: the cache)")


def run(args: argparse.Namespace) -> int:
    """Print a line for each file; DataError if one is missing, damaged or another than the published one."""
    from collections.abc import Callable
    from functools import partial

    from mnist_cuda.data import dataset, unpacked
    from mnist_cuda.data.file_roles import ROLES
    from mnist_cuda.data.places import Member, Place

    info = DATASETS[args.name]
    folder = args.data_dir or cache_folder(info)
    found: tuple[Place, dict[str, Member]] = Place(folder, (), False, ()), {}
    with contextlib.suppress(DataError) if args.data_dir is None else contextlib.nullcontext():
        found = dataset.find_files(info, folder)
    files = dict(zip(ROLES, info.files, strict=True))
    checks: list[Callable[[], tuple[bytes, Path | Member, str]]] = []
    if args.data_dir is None and unpacked.path(info).exists():
        checks.append(partial(unpacked.check, info))
        if unpacked.read(info):  # the files that are not there are not needed
            files = {role: file for role, file in files.items() if role in found[1]}
    checks = [partial(dataset.read_file, role, file, *found) for role, file in files.items()] + checks
    faults, missing = 0, len(info.files) - len(files)
    for check in checks:
        try:
            _, file, sha256 = check()
            print(f"ok     {getattr(file, 'shown', file)}  sha256 {sha256}")
        except DataError as error:
            faults += 1
            print(f"FAULT  {error}")
    if faults:
        remedy = f"run `mnist-cuda data fetch {info.name}`" if args.data_dir is None else "replace them"
        raise DataError(f"{faults} of the {len(checks)} files of {info.name} in {folder} are missing or bad: {remedy}")
    data = dataset.load(info.name, data_dir=args.data_dir, offline=args.data_dir is None)
    print(f"{info.name}: {sizes(data)}, all as published")
    if missing:
        absent = f"{missing} of the {len(info.files)} published files are not in the cache"
        print(f"{absent}; they are not needed, as the unpacked copy holds their content")
    return 0
