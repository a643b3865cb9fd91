"""What a training says to its other ranks, beside what the steps do."""

from __future__ import annotations

import struct
import threading

from mnist_cuda import _native
from mnist_cuda.errors import RankLostError

_AGREEMENT = struct.Struct("<q?q")


class Ranks:
    """All ranks of a training as one of them sees them; every method but `leave` is called on all of them.

    left: set once this one has left, and what the others do no longer matters.
    """

    def __init__(self, communicator: _native.Communicator, left: threading.Event | None = None) -> None:
        self.communicator, self._left = communicator, left or threading.Event()
        self.rank, self.size = communicator.rank, communicator.size
        self.exit_code = 0  # that rank 0 leaves with

    def agree(self, chunk: int, settle: bool, stop: int) -> tuple[int, bool, int]:
        """How many steps come next and whether to settle, which rank 0 decides, and whether to stop, which any may."""
        all_of_them = list(_AGREEMENT.iter_unpack(self._gather(_AGREEMENT.pack(chunk, settle, stop))))
        return *all_of_them[0][:2], next((signum for *_, signum in all_of_them if signum), 0)

    def from_rank_0(self, content: bytes = b"") -> bytes:
        """What rank 0 gives."""
        (length,) = struct.unpack_from("<q", self._gather(struct.pack("<q", len(content))))
        return self._gather(content if self.rank == 0 else bytes(length))[:length]

    def require_same(self, what: str, content: bytes) -> None:
        """Raise RankLostError unless all ranks have the same bytes."""
        gathered = self._gather(content)
        for rank in range(1, self.size):
            if gathered[rank * len(content) : (rank + 1) * len(content)] != gathered[: len(content)]:
                raise RankLostError(f"rank {rank} has other {what} than rank 0")

    def wait(self) -> None:
        """Until a rank leaves, which raises RankLostError."""
        while True:
            self._gather(b"")

    def leave(self, code: int, reason: str) -> None:
        """Tell the others that this rank ends, with this exit code."""
        self._left.set()
        self.communicator.leave(code, reason)

    @property
    def departure(self) -> tuple[int, int, str]:
        """Who ended, after a RankLostError: rank, -1 for none, exit code, and why, empty if it said nothing."""
        return self.communicator.departure

    def _gather(self, content: bytes) -> bytes:
        try:
            return self.communicator.all_gather(content)
        except _native.RankLostError as error:
            raise RankLostError(str(error)) from error
