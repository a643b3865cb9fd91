"""Show how runs differ: options, data, versions, machine and results."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_json_flag
from mnist_cuda.commands.runs import add_folder_flag, add_run_argument
from mnist_cuda.errors import UsageError

EXAMPLES = ("mnist-cuda runs compare my-run latest",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser, nargs="+")
    add_folder_flag(parser)
    add_json_flag(parser)
    usage = parser.format_usage().removeprefix("usage: ").strip()
    parser.usage = usage.replace("RUN [RUN", "RUN RUN [RUN")  # argparse has no "two or more"


def run(args: argparse.Namespace) -> int:
    """Print a row for each fact in which they differ; UsageError for fewer than two runs."""
    from mnist_cuda.run import listing
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    if len(args.run_folder) < 2:
        raise UsageError("needs two runs or more; `mnist-cuda runs` lists them")
    output = JsonOutput(args.json)
    found = [listing.find(name, args.dir) for name in args.run_folder]
    names, rows = [one.name for one in found], listing.differences(found)
    output.write({"runs": [listing.as_dict(one) for one in found], "differences": {row[0]: row[1:] for row in rows}})
    if not output.on_stdout:
        out = console.make_console()
        if rows:
            console.print_table(out, ("", *names), rows)
        else:
            out.print("the runs differ in nothing that was recorded")
    return 0
