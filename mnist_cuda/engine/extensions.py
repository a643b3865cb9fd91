"""What an engine may be given beyond its own code, as it sees them: mnist_cuda/judge has both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Own(Protocol):
    """Kernels of the user's: judge/own_kernels.py."""

    files: Any  # each with its `path`

    @property
    def words(self) -> str:
        """Which ops, by which file."""

    def facts(self) -> list[dict[str, object]]:
        """What config.json says of them."""

    def require_fit(self, engine: str, ops: Sequence[str]) -> None:
        """Raises UsageError where the engine, which takes launchers of these ops, does not take one of them."""

    def compile_for_gpu(self, device: int, folder: Path) -> list[tuple[str, str, int, int]]:
        """As OwnOp of native/include/mnist/engine.h."""


class Emulated(Protocol):
    """An engine's kernels on the CPU, beside what `_native.Engine` has: judge/emulated.py."""

    def gradients(self, images: NDArray[np.uint8], labels: NDArray[np.uint8], orders: int) -> NDArray[np.float64]:
        """Of a batch, in so many orders of threads and blocks."""

    def report(self) -> dict[str, Any]:
        """What the emulator has seen."""


class MakeEmulated(Protocol):
    """Makes it for an engine and a precision."""

    def __call__(self, name: str, precision: str, own: Any) -> Emulated:
        """Raises UsageError for one that is not emulated."""
