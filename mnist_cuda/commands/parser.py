"""Parsers of the command line: errors in one line, and commands that are imported once they are chosen."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from mnist_cuda.errors import UsageError, did_you_mean

# What a command or a flag of one was called once, and its name now.
RENAMED = {
    "mnist-cuda compare": "mnist-cuda bench check",
    "mnist-cuda bench batches": "mnist-cuda bench --all-batches",
    "mnist-cuda bench sweep": "mnist-cuda bench --models 16 64",
    "mnist-cuda bench --batch-sizes": "--batch-size",
    "mnist-cuda bench --data": "--placement",
    "mnist-cuda bench accuracy --peer": "--peers",
    "mnist-cuda data show --count": "mnist-cuda evaluate RUN --mistakes N",
    "mnist-cuda data show --wrong": "mnist-cuda evaluate RUN --mistakes N",
    "mnist-cuda sweep --data": "--placement",
    "mnist-cuda train --data": "--placement",
}

_Commands = argparse._SubParsersAction
_NUMBER = re.compile(r"-\.?\d")  # negative: no option, and no argument that is missing


class Formatter(argparse.HelpFormatter):
    """Wraps each paragraph of a description by itself, and leaves one that is indented as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(part if part.startswith(" ") else fill(part, width, indent) for part in paragraphs)


def examples(*lines: str) -> str:
    """The end of a help text."""
    return "\n  ".join(["examples:\n", *lines])


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong and what may have been meant, instead of after a screen of usage."""

    fault = ""  # the last one, for who reads JSON

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Formatter, **options)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        message = re.sub("ignored explicit argument", "takes no value, found", " ".join(message.splitlines()))
        Parser.fault = message
        self.exit(UsageError.exit_code, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but what it does not know is an error at once, and of this parser, not of the first one."""
        words = sys.argv[1:] if args is None else list(args)
        self._negative_number_matcher = _NUMBER
        if not words and any(isinstance(action, _Commands) and action.required for action in self._actions):
            self.print_help()
            self.exit()
        self._require_known_options(words)
        namespace, rest = super().parse_known_args(words, namespace)
        if rest:
            self.error(f"unexpected argument '{rest[0]}'")
        return namespace, rest

    def _require_known_options(self, words: Sequence[str]) -> None:
        """All of them up to a command, which has its own."""
        known = self._option_string_actions
        commands = next((action for action in self._actions if isinstance(action, _Commands)), None)
        for word in words:
            name = word.partition("=")[0]
            self._require_todays_name(name)
            if word == "--" or (commands and word in commands.choices):
                return
            if not name.startswith("-") or name == "-" or name in known or _NUMBER.match(name):
                continue
            if f"-{name}" in known:  # -epochs would be -e with `pochs`
                self.error(f"there is no option {name}; did you mean -{name}?")
            if name.startswith("--") or name[:2] not in known:
                place = " before the command" if commands and commands.required else ""
                self.error(f"there is no option {name}{place}{did_you_mean(name, known)}")

    def _require_todays_name(self, word: str) -> None:
        now = RENAMED.get(f"{self.prog} {word}")
        if now:
            kind = "option" if word.startswith("-") else "command"
            self.error(f"there is no {kind} {word} any more, it is `{now}` now")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        command = isinstance(action, _Commands)
        what = f"there is no command '{value}'" if command else f"'{value}' is unknown"
        known = list(map(str, action.choices))
        text = f"{what}, expected one of {', '.join(known)}{did_you_mean(str(value), known)}"
        raise argparse.ArgumentError(None if command else action, text)


class CommandParser(Parser):
    """The parser of one command, which gets its description and flags from the command's module when it is used."""

    def __init__(self, *, module: str, **options: Any) -> None:
        super().__init__(**options)
        self._module: str | None = module
        self._spelled_out: Callable[[list[str]], list[str]] = list

    def fill(self) -> None:
        """Take description and flags from the module, if that is not yet done."""
        if self._module:
            module, self._module = import_module(self._module), None
            self.description, self.epilog = module.__doc__, examples(*module.EXAMPLES)
            self.set_defaults(run=getattr(module, "run", None))
            self._spelled_out = getattr(module, "spelled_out", list)
            module.add_arguments(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, with the module's flags.

        `run` of what is parsed is the module's, `given` the names of those that are on the command line; both are of
        the innermost command.
        """
        self.fill()
        words = self._spelled_out(sys.argv[1:] if args is None else list(args))
        found, rest = super().parse_known_args(words, namespace)
        if hasattr(found, "given"):  # a command of this one has said so
            return found, rest
        unset = object()  # what is there already argparse gives no default
        again = argparse.Namespace(**{action.dest: unset for action in self._actions})
        super().parse_known_args(words, again)
        found.given = {action.dest for action in self._actions if getattr(again, action.dest, unset) is not unset}
        return found, rest


def add_commands(
    parser: argparse.ArgumentParser, package: str, commands: Mapping[str, str], *, required: bool = False, **texts: str
) -> None:
    """Give a parser the commands of a package, by its table of name and help; texts: as for `add_subparsers`."""
    group = parser.add_subparsers(parser_class=CommandParser, required=required, **texts)
    for name, summary in commands.items():
        module = f"{package}.{name.replace('-', '_')}"
        group.add_parser(name, help=summary, allow_abbrev=False, module=module)


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """`parser` and the parsers of all commands below it, with their flags."""
    if isinstance(parser, CommandParser):
        parser.fill()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from all_parsers(command)
