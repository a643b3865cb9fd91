"""List the runs of a folder: name, accuracy, epochs, engine, time of training and evaluation, batch, lr and data."""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import RUN, add_json_flag, run_path
from mnist_cuda.commands.parser import add_commands
from mnist_cuda.run.names import RUNS

COMMANDS = {
    "show": "what a run recorded",
    "compare": "how runs differ: options and results",
    "remove": "delete runs",
}


def add_folder_flag(parser: argparse.ArgumentParser) -> None:
    """Where the runs are."""
    parser.add_argument("--dir", type=Path, default=RUNS, metavar="DIR", help="folder of runs (default: %(default)s)")


def add_run_argument(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """One run, or as many as `nargs` says."""
    parser.add_argument("run_folder", nargs=nargs, type=run_path, metavar="RUN", help=RUN)


EXAMPLES = ("mnist-cuda runs", "mnist-cuda runs show latest", "mnist-cuda runs compare first second")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_folder_flag(parser)
    add_json_flag(parser)
    add_commands(parser, __name__, COMMANDS, title="commands", metavar="[WHAT]")


def run(args: argparse.Namespace) -> int:
    """Print a table; runs that cannot be read below it."""
    from mnist_cuda.run import listing
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    output = JsonOutput(args.json)
    found, faults = listing.list_runs(args.dir)
    output.write({"folder": str(args.dir), "runs": [listing.as_dict(one) for one in found], "faults": faults})
    if not output.on_stdout:
        out = console.make_console()
        console.print_table(
            out, listing.COLUMNS, [listing.row(one) for one in found], right=("accuracy", "time", "batch", "lr"),
            optional=("data", "lr", "batch"),
        )  # fmt: skip
        for fault in faults:
            out.print(f"not listed: {fault}")
    return 0
