"""Parsers of the command line: errors in one line, and commands that are imported once they are chosen."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from mnist_cuda.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, instead of after a screen of usage."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(UsageError.exit_code, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")


class CommandParser(Parser):
    """The parser of one command, which gets its description and flags from the command's module when it is used."""

    def __init__(self, *, module: str, **options: Any) -> None:
        super().__init__(**options)
        self._module: str | None = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, with the module's flags; `run` of what is parsed is the module's."""
        if self._module:
            module, self._module = import_module(self._module), None
            self.description = module.__doc__
            self.set_defaults(run=getattr(module, "run", None))
            module.add_arguments(self)
        return super().parse_known_args(args, namespace)


def add_commands(
    parser: argparse.ArgumentParser, package: str, commands: Mapping[str, str], *, required: bool = False, **texts: str
) -> None:
    """Give a parser the commands of a package, by its table of name and help; texts: as for `add_subparsers`."""
    group = parser.add_subparsers(parser_class=CommandParser, required=required, **texts)
    for name, summary in commands.items():
        module = f"{package}.{name.replace('-', '_')}"
        group.add_parser(name, help=summary, allow_abbrev=False, module=module)
