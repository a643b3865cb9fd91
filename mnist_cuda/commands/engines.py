"""List the engines, with the reason for each that cannot run here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mnist_cuda.commands.flags import add_json_flag

if TYPE_CHECKING:
    from mnist_cuda.engine import EngineInfo

EXAMPLES = ("mnist-cuda engines", "mnist-cuda engines --json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def _reasons(row: EngineInfo) -> list[str]:
    """Why it cannot run here, or which of its precisions cannot, a line each reason."""
    if row.unavailable:
        return [row.unavailable]
    reasons = dict.fromkeys(row.unavailable_precisions.values())
    of = {r: ", ".join(p for p in row.precisions if row.unavailable_precisions.get(p) == r) for r in reasons}
    return [f"{precisions}: {reason}" for reason, precisions in of.items()]


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from mnist_cuda.engine import engines, find_engine
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    auto = find_engine("auto").name
    output = JsonOutput(args.json)
    output.write({"engines": [asdict(row) for row in engines()], "auto": auto})
    if output.on_stdout:
        return 0
    rows = [
        (
            row.name,
            row.device,
            " ".join(row.precisions),
            "no" if row.unavailable else "yes",
            "\n".join([row.summary, *_reasons(row)]),
        )
        for row in engines()
    ]
    out = console.make_console()
    console.print_table(out, ("engine", "device", "precisions", "here", "what it is, or why it cannot run here"), rows)
    out.print(f"\n`--engine auto` takes {auto}.")
    return 0
