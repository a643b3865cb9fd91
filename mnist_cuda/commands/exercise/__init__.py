"""List the exercises: what is solved, and what is next."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_json_flag
from mnist_cuda.commands.parser import add_commands

COMMANDS = {
    "start": "write an exercise's file",
    "show": "what an exercise asks for",
    "hint": "print a hint, and with each call one more",
    "solution": "print the answer",
}

EXAMPLES = ("mnist-cuda exercise", "mnist-cuda exercise relu", "mnist-cuda exercise start relu")


def spelled_out(words: list[str]) -> list[str]:
    """The words after `exercise`, where a name alone is short for `show NAME`."""
    return words if not words or words[0].startswith("-") or words[0] in COMMANDS else ["show", *words]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)
    add_commands(parser, __name__, COMMANDS, title="commands", metavar="[WHAT]")


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.judge import exercises
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    output = JsonOutput(args.json)
    done = exercises.solved()
    following = exercises.following(done)
    rows = [
        {"name": name, "title": each.title, "solved": name in done, "file": done.get(name, ""), "answer": each.answer}
        for name, each in exercises.EXERCISES.items()
    ]
    output.write({"exercises": rows, "next": following})
    if not output.on_stdout:
        out = console.make_console()
        marks = [("solved" if row["solved"] else "next" if row["name"] == following else "") for row in rows]
        table = [(str(row["name"]), mark, str(row["title"])) for row, mark in zip(rows, marks, strict=True)]
        console.print_table(out, ("exercise", "", "what it teaches"), table)
        out.print(
            f"\n{len(done)} of {len(rows)} solved"
            + (f"; next: `mnist-cuda exercise start {following}`" * bool(following))
        )
    return 0
