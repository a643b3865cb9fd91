"""A training's ranks from their meeting to their end: whichever ends, for whatever reason, ends the others."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import safetensors.numpy

from mnist_cuda import _native
from mnist_cuda.engine.model import PARAMETERS
from mnist_cuda.errors import MnistCudaError, RankLostError, UnavailableError, exit_code_of
from mnist_cuda.ranks.group import Ranks
from mnist_cuda.ranks.launchers import meet
from mnist_cuda.ranks.processes import Processes
from mnist_cuda.ranks.world import TORCHRUN, World
from mnist_cuda.run.resume import checkpoints
from mnist_cuda.run.training import State
from mnist_cuda.terminal.streams import clean

# How long after a rank is gone the main thread may still be in what it computes; then the process ends there.
GRACE_SECONDS = 4.0
_CLOSING_SECONDS = 5.0  # for processes to end by themselves, after the end; after an error a second


@contextlib.contextmanager
def rank_0(world: World, argv: Sequence[str]) -> Iterator[Ranks]:
    """Start the other ranks of `train --processes` with `argv`; its end is theirs.

    Raises RankLostError where one ends before.
    """
    processes, seconds = Processes(world, [sys.executable, "-m", "mnist_cuda", *argv]), 1.0
    try:
        with _ended_by(processes.sockets, lambda: _end(processes)) as left:
            ranks = Ranks(communicator_of(world, processes.sockets), left)
            try:
                yield ranks
            except RankLostError as error:
                rank, code, reason = ranks.departure
                if reason:
                    error.exit_code = code or error.exit_code
                elif rank > 0:
                    error = processes.lost(rank)
                ranks.leave(error.exit_code, str(error) or "an error")
                raise _advised(error, ranks) from None
            except BaseException as error:
                gone = processes.ended() if isinstance(error, UnavailableError) else 0
                if gone:  # what is wrong with this one's GPU may be its end
                    error = processes.lost(gone)
                    ranks.leave(error.exit_code, str(error))
                    raise error from None
                ranks.leave(exit_code_of(error), str(error) or "an error")
                raise
            if not left.is_set():
                ranks.end()
            seconds = _CLOSING_SECONDS
    finally:
        processes.close(seconds)


@contextlib.contextmanager
def another_rank(world: World, sockets: Sequence[socket.socket]) -> Iterator[Ranks]:
    """What rank_0 started: ends with it, by RankLostError; that rank prints why, if it can."""
    with _ended_by(sockets, lambda: os._exit(RankLostError.exit_code)) as left:
        ranks = Ranks(communicator_of(world, sockets), left)
        try:
            yield ranks
        except RankLostError as error:
            raise RankLostError("", ranks.departure[1] or error.exit_code) from None
        except Exception as error:
            ranks.leave(exit_code_of(error), str(error) or type(error).__name__)
            if isinstance(error, MnistCudaError | ValueError | MemoryError):
                raise RankLostError("", exit_code_of(error)) from None
            raise


@contextlib.contextmanager
def launched(launcher: str, count: int, seconds: float) -> Iterator[tuple[World, Ranks]]:
    """Meet the ranks that a launcher started, within so many seconds; where one fails the launcher ends the others."""
    world, communicator, end_all = meet(launcher, count, seconds)
    ranks = Ranks(communicator)
    try:
        yield world, ranks
        if world.rank == 0:
            ranks.end()
    except RankLostError as error:
        if launcher == TORCHRUN:
            atexit.register(end_all, error.exit_code)
        if world.rank or not str(error):
            raise RankLostError("", error.exit_code) from None
        raise _advised(error, ranks) from None
    except BaseException as error:
        code = exit_code_of(error)
        atexit.register(end_all, code)  # once this error is printed
        if world.rank and isinstance(error, MnistCudaError | ValueError | MemoryError):
            raise RankLostError(f"rank {world.rank}: {error}", code) from None
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


def communicator_of(world: World, sockets: Sequence[socket.socket]) -> _native.Communicator:
    """Over these sockets, which belong to it from now on."""
    return _native.socket_communicator(world.rank, world.size, [end.detach() for end in sockets])


@contextlib.contextmanager
def _ended_by(sockets: Sequence[socket.socket], end: Callable[[], object]) -> Iterator[threading.Event]:
    """A block in which a thread notices at once when a socket's other end closes, and calls `end` GRACE_SECONDS later.

    Unless the block is over or the event that it gets is set.
    """
    watched, over = [one.dup() for one in sockets], threading.Event()
    wake, woken = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for one in watched:
            poll.register(one, select.POLLRDHUP)
        poll.poll()
        if not over.wait(GRACE_SECONDS):
            end()
        for one in watched:
            one.close()
        os.close(wake)

    threading.Thread(target=watch, name="ranks", daemon=True).start()
    try:
        yield over
    finally:
        over.set()
        os.close(woken)


def _end(processes: Processes) -> None:
    """End rank 0, which is still computing though another rank is gone."""
    rank = processes.ended()
    error = processes.lost(rank) if rank else RankLostError("a rank is gone")
    with contextlib.suppress(OSError):
        os.write(2, f"mnist-cuda: error: {clean(str(error))}\n".encode())
    os._exit(error.exit_code)


def _advised(error: RankLostError, ranks: Ranks) -> RankLostError:
    """With how the run goes on, if it can."""
    if not (str(error) and ranks.folder and checkpoints(ranks.folder)):
        return error
    text = f"{error}; `mnist-cuda train --resume {ranks.folder}` goes on from the last checkpoint"
    return RankLostError(text, error.exit_code)
