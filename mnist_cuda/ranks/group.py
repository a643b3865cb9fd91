"""What a training says to its other ranks, beside what the steps do."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnist_cuda import _native
from mnist_cuda.errors import MnistCudaError, RankLostError

_AGREEMENT = struct.Struct("<qq")


class Ranks:
    """All ranks of a training as one of them sees them; every method but `leave` is called on all of them.

    left: set once this one has left, and what the others do no longer matters.
    """

    def __init__(self, communicator: _native.Communicator, left: threading.Event | None = None) -> None:
        self.communicator, self.left = communicator, left or threading.Event()
        self.rank, self.size = communicator.rank, communicator.size
        self.exit_code = 0  # that rank 0 leaves with
        self.folder: Path | None = None  # of rank 0's run

    def agree(self, most: int, stop: int) -> tuple[int, int]:
        """The steps to the next place that all know, which rank 0 decides, and whether to stop, which any rank may."""
        all_of_them = [_AGREEMENT.unpack(one) for one in self._of_all(_AGREEMENT.pack(most, stop))]
        return all_of_them[0][0], next((signum for _, signum in all_of_them if signum), 0)

    def from_rank_0(self, content: bytes = b"") -> bytes:
        """What rank 0 gives."""
        return self._of_all(content)[0]

    def require_same(self, what: str, content: bytes) -> None:
        """Raise RankLostError unless all ranks have the same bytes."""
        first, *others = self._of_all(content)
        for rank, other in enumerate(others, 1):
            if other != first:
                raise RankLostError(f"rank {rank} has other {what} than rank 0")

    def require_facts(self, facts: Mapping[type[MnistCudaError], Mapping[str, Any]]) -> None:
        """Raise an error of that kind where another rank has other facts than rank 0; only that one's has a text."""
        rows = [(kind, name.replace("_", " "), str(value)) for kind, f in facts.items() for name, value in f.items()]
        sent = self._of_all("\n".join(f"{name}\t{value}" for _, name, value in rows).encode())
        first, *others = [dict(row.split("\t", 1) for row in one.decode().splitlines()) for one in sent]
        for rank, other in enumerate(others, 1):
            for kind, name, _ in rows:
                if other.get(name) != first.get(name):
                    if self.rank:
                        raise RankLostError("", kind.exit_code)
                    raise kind(f"rank {rank} has {name} {other.get(name)}, expected rank 0's, {first.get(name)}")

    def end(self) -> None:
        """On rank 0, while the others wait: the training is over, and whoever is lost now no longer matters."""
        self.left.set()
        with contextlib.suppress(RankLostError):
            self._of_all(bytes([self.exit_code]))

    def wait(self) -> None:
        """Until rank 0 ends or a rank is lost, which raises RankLostError; with rank 0's exit code and no text."""
        raise RankLostError("", self.from_rank_0(b"")[0])

    def leave(self, code: int, reason: str) -> None:
        """Tell the others that this rank ends, with this exit code."""
        self.left.set()
        self.communicator.leave(code, reason)

    @property
    def departure(self) -> tuple[int, int, str]:
        """Who ended, after a RankLostError: rank, -1 for none, exit code, and why, empty if it said nothing."""
        return self.communicator.departure

    def _of_all(self, content: bytes) -> list[bytes]:
        """What each rank gives, in their order."""
        lengths = [length for (length,) in struct.iter_unpack("<q", self._gather(struct.pack("<q", len(content))))]
        room = max(lengths)
        gathered = self._gather(content.ljust(room, b"\0"))
        return [gathered[rank * room :][:length] for rank, length in enumerate(lengths)]

    def _gather(self, content: bytes) -> bytes:
        try:
            return self.communicator.all_gather(content)
        except _native.RankLostError as error:
            raise RankLostError(str(error)) from error
