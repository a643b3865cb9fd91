"""How ranks meet that a launcher started: by MPI under mpirun and srun, by torch.distributed under torchrun.

Each function returns this rank's world, its communicator, and what ends this rank, under MPI all, after an error.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta

from mnist_cuda import _native
from mnist_cuda.errors import RankLostError, UnavailableError
from mnist_cuda.ranks.world import TORCHRUN, World

_FOREVER = timedelta(days=3650)  # a rank that neither computes nor ends is waited for
Meeting = tuple[World, _native.Communicator, Callable[[int], object]]


def meet(launcher: str, count: int, seconds: float) -> Meeting:
    """Wait for all that the launcher started, under torchrun for so many seconds at most.

    Raises UnavailableError where MPI or PyTorch is not there, RankLostError where not all came.
    """
    return _by_torch(launcher, seconds) if launcher == TORCHRUN else _by_mpi(launcher, count)


def _by_mpi(launcher: str, count: int) -> Meeting:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError without the MPI library itself
        raise UnavailableError(
            f"{launcher} started {count} ranks, which meet by mpi4py, and that cannot be imported "
            f"({error}): python -m pip install mpi4py"
        ) from None
    ranks = MPI.COMM_WORLD
    if ranks.size != count:
        library = MPI.Get_library_version().split(",")[0]
        raise UnavailableError(
            f"{launcher} started {count} ranks, and mpi4py finds {ranks.size} by {library}: expected the MPI of "
            f"{launcher}; under srun name its interface, as in srun --mpi=pmix"
        )
    here = ranks.Split_type(MPI.COMM_TYPE_SHARED)
    world = World(launcher, ranks.rank, count, here.rank, here.size, bound=True)

    def gather(mine: memoryview, of_all: memoryview) -> None:
        ranks.Allgather([mine, MPI.BYTE], [of_all, MPI.BYTE])

    return world, _native.launched_communicator(world.rank, count, gather), ranks.Abort


def _by_torch(launcher: str, seconds: float) -> Meeting:
    try:
        import torch
        from torch import distributed
    except ImportError as error:
        raise UnavailableError(
            f"{launcher} started this rank, ranks meet there by PyTorch, and that cannot be imported ({error}): "
            "python -m pip install torch"
        ) from None
    try:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=seconds))
        group = distributed.new_group(timeout=_FOREVER)
    except RuntimeError as error:
        raise RankLostError(f"the ranks of {launcher} did not meet within {seconds:g} s: {error}") from None
    atexit.register(distributed.destroy_process_group)  # ends gloo's threads; the interpreter's end may abort in them
    size = distributed.get_world_size()
    local_rank, local_size = (int(os.environ.get(f"LOCAL_{name}", n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    world = World(launcher, distributed.get_rank(), size, local_rank, local_size)

    def gather(mine: memoryview, of_all: memoryview) -> None:
        own, parts = (torch.frombuffer(memory, dtype=torch.uint8) for memory in (mine, of_all))
        try:
            distributed.all_gather(list(parts.chunk(size)), own, group=group)
        except RuntimeError:  # a connection is closed
            raise RankLostError("another rank is gone") from None

    return world, _native.launched_communicator(world.rank, size, gather), _exit_at_once


def _exit_at_once(code: int) -> None:
    """Leave out the interpreter's end: where another rank is gone, it may abort in gloo's threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
