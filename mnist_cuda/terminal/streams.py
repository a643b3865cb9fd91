"""Standard streams that are closed, full, without a reader or of a narrow encoding. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import TextIO

from mnist_cuda.errors import OutputError

# What moves a terminal's cursor, starts its escape sequences or turns the direction of text; not tab and newline.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text that a terminal shows and does not obey: names, cells and messages come from files and other machines."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class Stream(io.TextIOWrapper):
    """Standard output or error; what is written is cleaned, and what its encoding lacks becomes an escape.

    Where it cannot be written it raises OutputError, or BrokenPipeError for a pipe without a reader. A `tolerant` one
    raises nothing: it says so once on standard error. Either way whatever is written later is dropped.
    """

    tolerant = False

    def write(self, text: str) -> int:
        """Write `text`, cleaned; returns its length."""
        return self.write_styled(clean(text))

    def write_styled(self, text: str) -> int:
        """Write text whose escape sequences are our own; returns its length."""
        with self._failing():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._failing():
            super().flush()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # What is still buffered has to go somewhere, now and when Python ends.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            reason = f"standard output cannot be written: {error.strerror or error}"
            if not self.tolerant:
                if isinstance(error, BrokenPipeError):
                    raise
                raise OutputError(reason) from error
            if self is not sys.stderr:
                print(f"mnist-cuda: {reason}; the run goes on without it", file=sys.stderr)


def prepare() -> None:
    """Make sys.stdout a Stream and sys.stderr a tolerant one.

    One that is closed is opened so that it cannot be written: otherwise the next file would get its number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)  # gets the lowest free number, this one
            os.set_inheritable(number, True)
    sys.stdout = _stream(sys.stdout, 1)
    sys.stderr = _stream(sys.stderr, 2)
    sys.stderr.tolerant = True


def outlive_stdout() -> None:
    """From now on nothing that happens to standard output ends the program."""
    if isinstance(sys.stdout, Stream):
        sys.stdout.tolerant = True


def _stream(old: TextIO | None, number: int) -> Stream:
    if old is None:
        return Stream(open(number, "wb", closefd=False), errors="backslashreplace")
    assert isinstance(old, io.TextIOWrapper)
    errors = "backslashreplace" if old.errors == "strict" else old.errors
    return Stream(old.buffer, old.encoding, errors, "\n", old.line_buffering, old.write_through)
