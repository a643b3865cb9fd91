"""What programs read: the object of `--json`, printed or in a file; never a NaN, which JSON does not have."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from mnist_cuda.errors import CheckpointError, OutputError
from mnist_cuda.files import atomic_write, require_writable
from mnist_cuda.terminal import streams

STDOUT = Path("-")
VERSION = 1  # of the objects: a key that is removed, or means something else, makes it one more


def dumps(value: Any, indent: int | None = None) -> str:
    """JSON text of `value`; null for a number that is not finite."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonOutput:
    """Where the flag `--json` wants the object: nowhere (None), on standard output (STDOUT) or in a file.

    Raises CheckpointError at once for a file that cannot be written.
    printed: whether this command has printed its object.
    """

    printed = False

    def __init__(self, target: Path | None) -> None:
        self._target = target
        self.on_stdout = target == STDOUT  # what people read then belongs on stderr
        self.file = None if target is None or self.on_stdout else target
        if self.file:
            require_writable(self.file)
            streams.outlive_stdout()  # the file is what the work is done for

    def __bool__(self) -> bool:
        return self._target is not None

    def write(self, value: dict[str, Any]) -> None:
        """Deliver the object, if it is wanted.

        Raises CheckpointError for a file that cannot be written, and prints the object first.
        """
        value = {"version": VERSION, **value}
        if self.on_stdout:
            JsonOutput.printed = True
            print(dumps(value), flush=True)
        elif self.file:
            try:
                atomic_write(self.file, dumps(value, indent=2).encode() + b"\n")
            except CheckpointError:
                print(dumps(value), flush=True)
                raise


def print_error(message: str, code: int) -> None:
    """Print the object of a command that failed, unless it has printed its own."""
    if not JsonOutput.printed:
        JsonOutput.printed = True
        with contextlib.suppress(OSError, OutputError):
            print(dumps({"version": VERSION, "error": message, "exit_code": code}), flush=True)
