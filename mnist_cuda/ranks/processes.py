"""Ranks that are processes of one machine, connected by the socket pairs that they inherit: nothing listens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mnist_cuda.errors import RankLostError, UsageError
from mnist_cuda.ranks.world import World

_PLACE = "MNIST_CUDA_RANK"  # of a process: launcher, rank, number of ranks and its sockets


def connected(count: int) -> list[list[socket.socket]]:
    """The sockets of each rank: of rank 0 one to each of the others, by rank, of these the one to rank 0."""
    pairs = [socket.socketpair() for _ in range(count - 1)]
    return [[first for first, _ in pairs], *([second] for _, second in pairs)]


def start(command: Sequence[str], place: World, sockets: Sequence[socket.socket], **more: Any) -> subprocess.Popen[Any]:
    """Start this rank, which owns the sockets from now on. more: for Popen; variables are added to its `env`."""
    descriptors = [end.fileno() for end in sockets]
    words = [place.launcher, place.rank, place.size, *descriptors]
    environment = more.pop("env", os.environ) | {_PLACE: " ".join(map(str, words))}
    process = subprocess.Popen(command, env=environment, pass_fds=descriptors, **more)
    for end in sockets:
        end.close()
    return process


def inherited(environment: Mapping[str, str]) -> tuple[World, list[socket.socket]] | None:
    """What `start` gave this process; None if it did not start it."""
    if _PLACE not in environment:
        return None
    try:
        launcher, *numbers = environment[_PLACE].split()
        rank, size, *descriptors = map(int, numbers)
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    except (ValueError, OSError):
        raise UsageError(f"{_PLACE} is '{environment[_PLACE]}', which only mnist-cuda sets; unset it") from None
    for end in sockets:
        end.set_inheritable(False)
    return World(launcher, rank, size, rank, size), sockets


class Processes:
    """Ranks 1, 2, ... of rank 0's world, each running this command.

    They are no part of its terminal's group: Ctrl-C reaches only rank 0. They write nothing on standard output.
    """

    def __init__(self, world: World, command: Sequence[str]) -> None:
        self.sockets, *others = connected(world.size)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True}
        try:
            for rank, sockets in enumerate(others, 1):
                place = World(world.launcher, rank, world.size, rank, world.size)
                self._processes[rank] = start(command, place, sockets, **quiet)
        except BaseException:
            self.close(0)
            raise

    def ended(self) -> int:
        """A rank that has ended; 0 for none."""
        return next((rank for rank, process in self._processes.items() if process.poll() is not None), 0)

    def lost(self, rank: int) -> RankLostError:
        """What there is to say of a rank that is gone."""
        try:
            code = self._processes[rank].wait(1.0)
        except subprocess.TimeoutExpired:
            return RankLostError(f"rank {rank} is gone")
        if code < 0:
            return RankLostError(f"rank {rank} was killed by {signal.Signals(-code).name}", 128 - code)
        return RankLostError(f"rank {rank} ended with exit code {code}", code or RankLostError.exit_code)

    def close(self, seconds: float) -> None:
        """Wait for all to end, which they do by themselves once rank 0 has left, and end those that do not."""
        end = time.monotonic() + seconds
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            process.kill()
            process.wait()
