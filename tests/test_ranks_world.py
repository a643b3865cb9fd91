"""Which launcher started a process, what a rank gets of its machine, and what ranks must have in common."""

import re
import sys

import pytest
from test_ranks import on_all
from tiny import prints

from mnist_cuda import _native
from mnist_cuda.errors import DataError, RankLostError, UnavailableError, UsageError
from mnist_cuda.ranks.group import Ranks
from mnist_cuda.ranks.processes import inherited
from mnist_cuda.ranks.world import GPUS, World, launcher_of

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "3"}
MPICH = {"PMI_SIZE": "5"}
SRUN = {"SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "6"}


def test_a_process_alone():
    batch_script = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "77", "SLURM_NTASKS": "6"}
    for variables in ({}, {"WORLD_SIZE": "4"}, TORCHRUN | {"WORLD_SIZE": "1"}, batch_script):
        assert launcher_of(variables) == ("", 1)
    assert inherited(TORCHRUN) is None


def test_launchers():
    """Of several the inner one: torchrun in mpirun's process, mpirun's process that srun started."""
    assert launcher_of(SRUN) == ("srun", 6)
    assert launcher_of(MPICH | SRUN) == ("mpirun", 5)
    assert launcher_of(MPIRUN | MPICH | SRUN) == ("mpirun", 3)
    assert launcher_of(TORCHRUN | MPIRUN | SRUN) == ("torchrun", 4)


@pytest.mark.parametrize("text", ["x", "0", "-1", "", "1e3"])
def test_a_number_of_ranks_that_is_none(text):
    with pytest.raises(UsageError, match=f"^{re.escape(f'WORLD_SIZE is {text!r}, expected how many ranks there are')}"):
        launcher_of(TORCHRUN | {"WORLD_SIZE": text})


@pytest.mark.parametrize("text", ["", "--processes", "--processes 1 x", "--processes 1 2 99999"])
def test_a_place_that_nobody_gave(text):
    with pytest.raises(UsageError, match=f"^MNIST_CUDA_RANK is '{text}', which only mnist-cuda sets; unset it"):
        inherited({"MNIST_CUDA_RANK": text})


@pytest.mark.parametrize(("variables", "package"), [(MPIRUN, "mpi4py"), (SRUN, "mpi4py"), (TORCHRUN, "torch")])
def test_what_to_install(monkeypatch, capsys, variables, package):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, package, None)
    line = prints(capsys, "train", "--engine", "cpu", code=4)
    assert line.startswith(f"mnist-cuda: error: {launcher_of(variables)[0]} started ")
    assert line.endswith(f": python -m pip install {package}\n")
    assert line.count("\n") == 1


def test_the_gpu_of_a_rank():
    """From the first on, one for each rank of the machine; a launcher may show each rank its own alone."""

    def gpu(first, count, launcher="torchrun"):
        return World(launcher, 3, 4, 1, 2).gpu(first, count)

    assert [gpu(0, 2), gpu(0, 8), gpu(2, 4), gpu(0, 1)] == [1, 1, 3, 0]
    with pytest.raises(UsageError, match=r"^torchrun starts 2 ranks here, from GPU 3 on, and there are 4: expected"):
        gpu(3, 4)
    with pytest.raises(UsageError, match=r"^--gpus starts 2 ranks here, from GPU 0 on, and there is 1: expected"):
        gpu(0, 1, GPUS)


def test_threads_of_a_rank():
    """A part of the cores of its own set, or of the machine where the launcher binds each rank to its part."""

    def world(local_size, bound):
        return World("", 0, 8, 0, local_size, bound)

    assert [world(size, False).threads(8, 64) for size in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    assert [world(4, True).threads(cores, 32) for cores in (1, 8, 16, 32)] == [1, 8, 8, 8]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (UsageError, "batch_size", 128),
        (UsageError, "precision", "bf16"),
        (DataError, "data digest", "cd"),
        (UnavailableError, "build", "GNU 12"),
        (UnavailableError, "instructions", None),
    ],
)
def test_what_ranks_have_in_common(kind, name, value):
    """All end with the code of the error, and rank 0 says it."""
    facts = {
        UsageError: {"batch_size": 64, "precision": "fp32"},
        DataError: {"data digest": "ab"},
        UnavailableError: {"build": "GNU 13", "instructions": "avx2"},
    }
    other = facts | {kind: facts[kind] | {name: value}}

    def compare(communicator):
        try:
            Ranks(communicator).require_facts(other if communicator.rank == 2 else facts)
        except (UsageError, DataError, UnavailableError, RankLostError) as error:
            return type(error), str(error), error.exit_code

    text = f"rank 2 has {name.replace('_', ' ')} {value}, expected rank 0's, {facts[kind][name]}"
    silent = (RankLostError, "", kind.exit_code)
    assert on_all(_native.in_process_communicators(3), compare) == [(kind, text, kind.exit_code), silent, silent]
    assert on_all(_native.in_process_communicators(2), compare) == [None, None]
