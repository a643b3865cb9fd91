"""Ask, then delete runs with their folders. A run whose folder also holds other files is not deleted."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.runs import add_folder_flag, add_run_argument
from mnist_cuda.errors import UsageError

EXAMPLES = ("mnist-cuda runs remove my-run", "mnist-cuda runs remove my-run other-run --yes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser, nargs="+")
    add_folder_flag(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Delete them, if all are runs and nothing else; UsageError where nobody is there to be asked."""
    import sys

    from mnist_cuda.run import listing
    from mnist_cuda.terminal.console import plural

    found = {one.path.resolve(): one for one in (listing.find(name, args.dir) for name in args.run_folder)}
    for name in args.run_folder:
        if name.is_file():
            raise UsageError(f"{name}: a file; a run is removed as a whole: name it or its folder")
    for one in found.values():
        listing.own_files(one)
    if not args.yes:
        if not sys.stdin.isatty():
            raise UsageError("standard input is no terminal to ask on: give --yes to delete without a question")
        listed = "\n".join(f"  {one.path}: {', '.join(listing.row(one)[1:5])}" for one in found.values())
        print(f"{listed}\nDelete {plural(len(found), 'run')} with all that is in there? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing deleted")
            return 0
    for one in found.values():
        listing.remove(one)
        print(f"deleted {one.path}")
    return 0
