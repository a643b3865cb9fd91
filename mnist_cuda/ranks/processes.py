"""The other ranks of `train --gpus` and `--processes`: processes here that rank 0 starts, and that end with it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from mnist_cuda.errors import RankLostError
from mnist_cuda.ranks.world import World


def world_of_processes(count: int, launcher: str = "--processes") -> World:
    """Rank 0 of so many processes here, at a port that the system will choose."""
    return World(launcher, 0, count, count, "127.0.0.1", (0,), secrets.token_hex(16))


class Processes:
    """Ranks 1, 2, ... of a world, each running the command line `argv` of rank 0, which listens at this port.

    They are no part of its terminal's group: Ctrl-C reaches only rank 0. They write nothing on standard output.
    """

    def __init__(self, world: World, port: int, argv: Sequence[str]) -> None:
        shared = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        shared |= {"WORLD_SIZE": str(world.size), "LOCAL_WORLD_SIZE": str(world.size), "MNIST_CUDA_JOB": world.job}
        shared |= {"MASTER_ADDR": world.address, "MASTER_PORT": str(port), "MNIST_CUDA_PARENT": str(os.getpid())}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for rank in range(1, world.size):
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-m", "mnist_cuda", *argv],
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            self.close(0)
            raise

    def watch(self) -> None:
        """Raise RankLostError if one has ended, which then has said why unless it was killed."""
        rank = self.ended()
        if rank:
            error = self.lost(rank)
            raise error if error.exit_code > 128 else RankLostError("", error.exit_code)

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


def parent() -> int:
    """The rank 0 that started this process; 0 where a launcher did."""
    return int(os.environ.get("MNIST_CUDA_PARENT", "0"))
