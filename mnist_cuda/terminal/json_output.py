"""What programs read: the object of `--json`, printed or in a file; never a NaN, which JSON does not have."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mnist_cuda.errors import CheckpointError
from mnist_cuda.files import atomic_write, require_writable
from mnist_cuda.terminal import streams

STDOUT = Path("-")


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
    """

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
        if self.on_stdout:
            print(dumps(value), flush=True)
        elif self.file:
            try:
                atomic_write(self.file, dumps(value, indent=2).encode() + b"\n")
            except CheckpointError:
                print(dumps(value), flush=True)
                raise
