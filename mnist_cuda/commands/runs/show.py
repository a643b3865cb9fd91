"""Show a run: how it ended, its result, options and machine, and each epoch."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_json_flag
from mnist_cuda.commands.runs import add_folder_flag, add_run_argument

EXAMPLES = ("mnist-cuda runs show latest", "mnist-cuda runs show my-run --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    add_folder_flag(parser)
    parser.add_argument("--all", action="store_true", help="everything that config.json records, by dotted names")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print a summary or everything, then the epochs as a table."""
    from mnist_cuda.run import listing
    from mnist_cuda.run.folder import METRICS_COLUMNS
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    output = JsonOutput(args.json)
    found = listing.find(args.run_folder, args.dir)
    output.write({**listing.as_dict(found), "config": found.config, "epochs": found.epochs})
    if not output.on_stdout:
        out = console.make_console()
        for word, text in listing.summary(found):
            console.print_fact(out, word, text)
        if args.all:
            console.print_table(out, ("", ""), listing.flat(found).items())
        if found.epochs:
            out.print()
            rows = [[listing.cell(epoch.get(name)) for name in METRICS_COLUMNS] for epoch in found.epochs]
            optional = ("images_per_second", "evaluation_seconds", "train_seconds", "steps")
            console.print_table(out, METRICS_COLUMNS, rows, right=METRICS_COLUMNS, optional=optional)
    return 0
