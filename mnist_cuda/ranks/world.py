"""Which rank a process is, of how many, and whether a launcher started it. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mnist_cuda.errors import UsageError

GPUS = "--gpus"  # the launcher of a rank for each GPU
TORCHRUN = "torchrun"

# By the variables that say that a launcher was there, the last of them how many ranks it started. A batch script of
# Slurm has SLURM_PROCID, too, but no step. mpirun may start its ranks by srun.
_LAUNCHERS = {
    ("RANK", "WORLD_SIZE"): TORCHRUN,
    ("OMPI_COMM_WORLD_SIZE",): "mpirun",
    ("PMI_SIZE",): "mpirun",
    ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"): "srun",
}


@dataclass(frozen=True)
class World:
    """The ranks of one training, as one of them sees them.

    launcher: who started them. local_size: how many are on this machine. local_rank: which of these this one is.
    bound: the launcher gave each rank cores of its own.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    bound: bool = False

    def threads(self, cores: int, of_machine: int) -> int:
        """For an engine: this rank's part of the cores that it may run on, of all that the machine has."""
        part = max(1, (of_machine if self.bound else cores) // self.local_size)
        return min(cores, part)

    def gpu(self, first: int, count: int) -> int:
        """For an engine: the GPU of this rank, counted from `first`, of `count` that it sees.

        Where it sees a single one, that: a launcher may give each rank its own. Raises UsageError where there are
        fewer than ranks.
        """
        if count == 1 and self.launcher != GPUS:
            return first
        if first + self.local_size > count:
            raise UsageError(
                f"{self.launcher} starts {self.local_size} ranks here, from GPU {first} on, and there "
                f"{'is' if count == 1 else 'are'} {count}: expected a GPU for each"
            )
        return first + self.local_rank


def launcher_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """torchrun, mpirun or srun, and how many ranks it started; no name and 1 for a process that has no other beside it.

    What torchrun says may be set by hand, too. Raises UsageError for a number that is none.
    """
    for names, launcher in _LAUNCHERS.items():
        if all(name in environment for name in names):
            text = environment[names[-1]]
            if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
                raise UsageError(f"{names[-1]} is '{text}', expected how many ranks there are")
            return (launcher, int(text)) if int(text) > 1 else ("", 1)
    return "", 1
