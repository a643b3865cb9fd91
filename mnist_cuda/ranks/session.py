"""A training's ranks from their meeting to their end: who ends, for whatever reason, tells the others."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import safetensors.numpy

from mnist_cuda import _native
from mnist_cuda.errors import MnistCudaError, OutOfMemoryError, RankLostError, UnavailableError, UsageError
from mnist_cuda.model import PARAMETERS
from mnist_cuda.ranks.group import Ranks
from mnist_cuda.ranks.meeting import Facts, gather, listen, reach
from mnist_cuda.ranks.processes import Processes, parent
from mnist_cuda.ranks.world import World
from mnist_cuda.training import State

# How long after a rank is gone the main thread may still be in what it computes; then the process ends there.
GRACE_SECONDS = 4.0
_CLOSING_SECONDS = 5.0  # for processes to end by themselves


@contextlib.contextmanager
def rank_0(world: World, facts: Facts, seconds: float, argv: Sequence[str]) -> Iterator[Ranks]:
    """Meet the other ranks, which `train --processes` starts with `argv`; waits for them so many seconds at most.

    Its end is the end of the others. Raises RankLostError where one ends before, and what Facts.fault finds.
    """
    processes, met = None, False
    try:
        with listen(world) as listener:
            if world.ports == (0,):
                processes = Processes(world, listener.getsockname()[1], argv)
            connections = gather(listener, world, facts, seconds, processes.watch if processes else lambda: None)
        met = True
        with _ended_by(connections, lambda: _end(processes)) as left, contextlib.ExitStack() as stack:
            to_the_end = [stack.enter_context(connection.dup()) for connection in connections]
            ranks = Ranks(_communicator(world, connections), left)
            try:
                yield ranks
            except RankLostError as error:
                rank, code, reason = ranks.departure
                if reason:
                    error.exit_code = code or error.exit_code
                elif processes and rank > 0:
                    error = processes.lost(rank)
                ranks.leave(error.exit_code, str(error) or "an error")
                raise error from None
            except BaseException as error:
                gone = processes.ended() if processes and isinstance(error, UnavailableError) else 0
                if processes and gone:  # what is wrong with this one's GPU may be its end
                    error = processes.lost(gone)
                    ranks.leave(error.exit_code, str(error))
                    raise error from None
                ranks.leave(_exit_code(error), str(error) or "an error")
                raise
            ranks.leave(ranks.exit_code, "the end")
            _hear_out(to_the_end)
    finally:
        if processes:
            processes.close(_CLOSING_SECONDS if met else 0.5)


@contextlib.contextmanager
def another_rank(world: World, facts: Facts, seconds: float) -> Iterator[Ranks]:
    """Meet rank 0 and those that it has met, and end with it, by RankLostError; that rank prints why, if it can."""

    def watch() -> None:
        if parent() not in (0, os.getppid()):
            raise RankLostError("")

    connection = reach(world, facts, seconds, watch)
    with _ended_by([connection], lambda: os._exit(RankLostError.exit_code)) as left:
        ranks = Ranks(_communicator(world, [connection]), left)
        try:
            yield ranks
        except RankLostError as error:
            _, code, reason = ranks.departure
            if reason:
                raise RankLostError("", code) from None
            if world.rank > 1 or parent():  # otherwise nobody would say it
                raise RankLostError("") from None
            raise error
        except Exception as error:
            ranks.leave(_exit_code(error), str(error) or type(error).__name__)
            if isinstance(error, MnistCudaError | ValueError | MemoryError):
                raise RankLostError("", _exit_code(error)) from None
            raise


def share_state(ranks: Ranks, state: State | None) -> State:
    """Where the training begins, on all ranks: what rank 0 gives."""
    if state is not None:
        stand = np.array([state.epoch, state.step, state.seconds])
        own = {**state.parameters, "stand": stand, "losses": state.losses, "correct": state.correct}
        ranks.from_rank_0(safetensors.numpy.save({name: np.asarray(t, order="C") for name, t in own.items()}))
        return state
    tensors = safetensors.numpy.load(ranks.from_rank_0())
    epoch, step, seconds = tensors["stand"].tolist()
    parameters = {tensor.name: tensors[tensor.name] for tensor in PARAMETERS}
    return State(int(epoch), int(step), parameters, tensors["losses"], tensors["correct"], seconds)


def _communicator(world: World, connections: Sequence[socket.socket]) -> _native.Communicator:
    """Over these connections, by rank, which belong to it from now on."""
    return _native.socket_communicator(world.rank, world.size, [connection.detach() for connection in connections])


@contextlib.contextmanager
def _ended_by(connections: Sequence[socket.socket], end: Callable[[], object]) -> Iterator[threading.Event]:
    """A block in which a thread notices at once when a connection closes, and calls `end` GRACE_SECONDS later.

    Unless the block is over or the event that it gets is set.
    """
    watched, over = [connection.dup() for connection in connections], threading.Event()
    wake, woken = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for connection in watched:
            poll.register(connection, select.POLLRDHUP)
        poll.poll()
        if not over.wait(GRACE_SECONDS):
            end()
        for connection in watched:
            connection.close()
        os.close(wake)

    threading.Thread(target=watch, name="ranks", daemon=True).start()
    try:
        yield over
    finally:
        over.set()
        os.close(woken)


def _hear_out(connections: Sequence[socket.socket]) -> None:
    """Wait until the others have closed: after a reset, as unread bytes make it, a goodbye may not arrive."""
    for connection in connections:
        connection.settimeout(_CLOSING_SECONDS)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


def _end(processes: Processes | None) -> None:
    """End rank 0, which is still computing though another rank is gone."""
    rank = processes.ended() if processes else 0
    error = processes.lost(rank) if processes and rank else RankLostError("a rank is gone")
    with contextlib.suppress(OSError):
        os.write(2, f"mnist-cuda: error: {error}\n".encode())
    os._exit(error.exit_code)


def _exit_code(error: BaseException) -> int:
    """What the command line ends with after this error; cli.main has the same."""
    if isinstance(error, MnistCudaError):
        return error.exit_code
    if isinstance(error, ValueError):
        return UsageError.exit_code
    if isinstance(error, MemoryError):
        return OutOfMemoryError.exit_code
    return 128 + getattr(error, "signum", 2) if isinstance(error, KeyboardInterrupt) else 1
