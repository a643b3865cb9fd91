"""The errors a user can cause or meet, each with the exit code the command line ends with.

Every message is one line: what, where, expected, found, what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Kind = TypeVar("Kind")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown word: `; did you mean NAME?`, or nothing where no name is close to it."""
    import difflib  # here, for the few who need it

    by_spelling = {name.lstrip("-").casefold(): name for name in names}
    close = difflib.get_close_matches(word.lstrip("-").replace("_", "-").casefold(), by_spelling, n=1)
    return f"; did you mean {by_spelling[close[0]]}?" if close else ""


_by_flags = False


def name_by_flags(on: bool) -> bool:
    """Have messages name options by their flags, as on the command line, or by parameters; returns what it was."""
    global _by_flags
    before, _by_flags = _by_flags, on
    return before


def option(name: str, parameter: str = "") -> str:
    """An option in a message: `--save-every` on the command line, in Python `save_every` or another `parameter`."""
    return f"--{name.replace('_', '-')}" if _by_flags else f"`{parameter or name}`"


class MnistCudaError(Exception):
    """Base of all errors that end the program with one line instead of a traceback."""

    exit_code = 1


class UsageError(MnistCudaError, ValueError):
    """An argument, or a word on the command line, asks for something impossible, or is of another type."""

    exit_code = 2


def require_a(kind: type[Kind], value: object, name: str, remedy: str) -> Kind:
    """The argument `value`. Raises UsageError for one of another type; remedy: what gives the right one."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} is of type {type(value).__name__}, expected {kind.__name__}, {remedy}")
    return value


class DivergedError(UsageError):
    """A training whose loss or weights left every bound: its learning rate was too high."""


class DataError(MnistCudaError, ValueError):
    """Images or labels, in arrays or in a data set's files, are missing, unreachable or not what they should be."""

    exit_code = 3


class DataWarning(UserWarning):
    """Data that can be used, but hardly as they are: inverted images, for one. A command prints it as a line."""


class UnavailableError(MnistCudaError):
    """This machine or build lacks what was asked for by name: a GPU, a library, an engine, a peer."""

    exit_code = 4


class OutOfMemoryError(MnistCudaError):
    """Host or device memory ran out."""

    exit_code = 5


class RankLostError(MnistCudaError):
    """Another rank of the training ended, or is gone; `exit_code` is its own where that is known.

    Without a text where another process prints one.
    """

    exit_code = 7

    def __init__(self, text: str, exit_code: int = exit_code) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class CheckpointError(MnistCudaError):
    """A model file cannot be read, written or used."""

    exit_code = 6


class OutputError(MnistCudaError):
    """Standard output, or a file or folder other than a model's or a data set's, cannot be read or written."""

    exit_code = 6


class NotJudgedError(MnistCudaError):
    """A judged file needs what the emulator does not have, so nothing is known of it."""

    exit_code = 8


def exit_code_of(error: BaseException) -> int:
    """What the command line ends with after this error; 1 for one that is our own fault."""
    if isinstance(error, MnistCudaError):
        return error.exit_code
    if isinstance(error, ValueError):
        return UsageError.exit_code
    if isinstance(error, MemoryError):
        return OutOfMemoryError.exit_code
    # signals.Interrupted says which signal.
    return 128 + getattr(error, "signum", 2) if isinstance(error, KeyboardInterrupt) else 1
