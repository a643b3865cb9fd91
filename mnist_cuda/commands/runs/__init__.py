"""List the runs of a folder: name, state, accuracy, epochs, engine, time of training and tests, batch, lr and data.

A run is running, done, stopped, diverged or killed. `runs note` writes a note to one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import RUN, add_json_flag, run_path
from mnist_cuda.commands.parser import add_commands
from mnist_cuda.run.names import RUNS

COMMANDS = {
    "show": "what a run recorded",
    "note": "write a note to a run",
    "compare": "how runs differ: options and results",
    "remove": "delete runs",
}


def add_folder_flag(parser: argparse.ArgumentParser) -> None:
    """Where the runs are."""
    parser.add_argument("--dir", type=Path, default=RUNS, metavar="DIR", help="folder of runs (default: %(default)s)")


def add_run_argument(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """One run, or as many as `nargs` says."""
    parser.add_argument("run_folder", nargs=nargs, type=run_path, metavar="RUN", help=RUN)


EXAMPLES = (
    "mnist-cuda runs",
    "mnist-cuda runs --where lr=0.05 'accuracy>98' --sort time",
    "mnist-cuda runs show latest",
    "mnist-cuda runs compare my-run other-run",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_folder_flag(parser)
    names = (
        "an option of `train` (lr, seed, ...), or run, state, accuracy (per cent), done (epochs), time (seconds), "
        "started, batch, data or note"
    )
    parser.add_argument("--sort", metavar="NAME", help=f"sort by NAME: {names}; accuracy: the best first")
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--where", nargs="+", default=(), metavar="NAME=VALUE",
        help="only runs of which this is true; NAME as in --sort; also <, >, <=, >= and !=, in quotes")  # fmt: skip
    add_json_flag(parser)
    add_commands(parser, __name__, COMMANDS, title="commands", metavar="[WHAT]")


def run(args: argparse.Namespace) -> int:
    """Print a table; runs that cannot be read below it."""
    from mnist_cuda.run import listing
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    output = JsonOutput(args.json)
    found, faults = listing.list_runs(args.dir)
    found = listing.chosen(found, args.where)
    if args.sort:
        found = listing.ordered(found, args.sort, reverse=args.reverse != (args.sort == "accuracy"))
    elif args.reverse:
        found.reverse()
    output.write({"folder": str(args.dir), "runs": [listing.as_dict(one) for one in found], "faults": faults})
    if not output.on_stdout:
        out = console.make_console()
        console.print_table(out, *listing.table(found), right=listing.RIGHT, optional=listing.OPTIONAL)
        for fault in faults:
            out.print(f"not listed: {fault}")
    return 0
