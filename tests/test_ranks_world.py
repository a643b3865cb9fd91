"""Which rank a process is, by the variables of torchrun, mpirun and srun; and what ranks must have in common."""

import re

import pytest

from mnist_cuda.errors import DataError, UnavailableError, UsageError
from mnist_cuda.ranks.meeting import Facts
from mnist_cuda.ranks.world import GPUS, World, first_host, is_loopback, world_of

BY_HAND = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = BY_HAND | {
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "PMIX_NAMESPACE": "1234.1",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_JOB_ID": "77",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NODELIST": "gpu[03-05],login1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)",
}


def test_a_process_alone():
    assert world_of({}) is None
    assert world_of({"WORLD_SIZE": "4"}) is None
    assert world_of(BY_HAND | {"RANK": "0", "WORLD_SIZE": "1"}) is None
    batch_script = {name: SRUN[name] for name in ("SLURM_PROCID", "SLURM_JOB_ID", "SLURM_NODEID")}
    assert world_of(batch_script | {"SLURM_NTASKS": "6"}) is None


def test_by_hand():
    world = world_of(BY_HAND)
    assert (world.rank, world.size, world.local_size, world.address) == (1, 4, 1, "node1")
    assert world.ports == (29500,)
    assert world_of(BY_HAND | {"MASTER_ADDR": "127.0.0.1"}).local_size == 4


def test_torchrun():
    """Its agent listens at MASTER_PORT; another attempt is another job."""
    world = world_of(TORCHRUN)
    assert (world.launcher, world.rank, world.size, world.local_size) == ("torchrun", 1, 4, 2)
    assert world.ports == (29501, 29502, 29503, 29504)
    assert world.job != world_of(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "1"}).job
    assert world_of(TORCHRUN | MPIRUN | SRUN) == world


def test_mpirun():
    world = world_of(MPIRUN | SRUN)
    assert (world.launcher, world.rank, world.size, world.local_size) == ("mpirun", 2, 3, 3)
    assert world.address == "127.0.0.1"
    other = world_of(MPIRUN | {"OMPI_COMM_WORLD_RANK": "0"})
    assert (other.ports, other.job) == (world.ports, world.job)
    assert all(20000 <= port < 32768 for port in world.ports)  # below Linux's ephemeral ports
    assert world_of(MPIRUN | {"PMIX_NAMESPACE": "1234.2"}).job != world.job
    here = {"MASTER_ADDR": "node7", "MASTER_PORT": "1234"}
    assert world_of(MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"} | here).ports == (1234,)
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        world_of(MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"})


def test_srun():
    world = world_of(SRUN)
    assert (world.launcher, world.rank, world.size, world.local_size) == ("srun", 5, 6, 1)
    assert world.address == "gpu03"
    assert world_of(SRUN | {"SLURM_NODEID": "1"}).local_size == 2
    assert world_of(SRUN | {"MASTER_ADDR": "gpu09"}).address == "gpu09"
    assert world_of(SRUN | {"SLURM_STEP_ID": "1"}).job != world.job


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("a1", "a1"), ("a1,b2", "a1"), ("n[01-04,07],m", "n01"), ("n[5]", "n5"), ("r[1-2]-x,r9", "r1-x"), ("", "")],
)
def test_first_host_of_slurms_list(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RANK": "x"}, "RANK is 'x', expected a whole number"),
        ({"RANK": "4"}, "RANK is 4 and there are 4 ranks"),
        ({"WORLD_SIZE": "0"}, "RANK is 1 and there are 0 ranks"),
        ({"MASTER_ADDR": ""}, "RANK and WORLD_SIZE are set, and MASTER_ADDR is not"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT is '-1', expected a whole number"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0, expected 1 to 65535"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536, expected 1 to 65535"),
        (TORCHRUN | {"MASTER_PORT": "65535"}, "MASTER_PORT is 65535, expected 1 to 65534"),
    ],
)
def test_variables_that_are_not_whole(changed, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        world_of(BY_HAND | changed)


def test_no_port_is_beyond_the_last():
    assert world_of(TORCHRUN | {"MASTER_PORT": "65533"}).ports == (65534, 65535)
    with pytest.raises(UsageError, match="MASTER_PORT is 70000, expected 1 to 65535"):
        world_of(MPIRUN | {"MASTER_PORT": "70000"})


def test_loopback():
    assert all(is_loopback(address) for address in ("127.0.0.1", "localhost", "::1"))
    assert not any(is_loopback(address) for address in ("node1", "10.0.0.1"))


def test_the_place_on_a_machine():
    hand = BY_HAND | {"MASTER_ADDR": "localhost"}
    places = [world_of(variables).local_rank for variables in (BY_HAND, hand, TORCHRUN | {"RANK": "3"}, MPIRUN)]
    assert places == [0, 1, 1, 2]
    assert world_of(SRUN | {"SLURM_LOCALID": "1"}).local_rank == 1


def test_the_gpu_of_a_rank():
    """From the first on, one for each rank of the machine; a launcher may show each rank its own alone."""

    def gpu(first, count, launcher="torchrun"):
        return World(launcher, 3, 4, 2, "", (), "", local_rank=1).gpu(first, count)

    assert [gpu(0, 2), gpu(0, 8), gpu(2, 4), gpu(0, 1)] == [1, 1, 3, 0]
    with pytest.raises(UsageError, match=r"^torchrun starts 2 ranks here, from GPU 3 on, and there are 4: expected"):
        gpu(3, 4)
    with pytest.raises(UsageError, match=r"^--gpus starts 2 ranks here, from GPU 0 on, and there is 1: expected"):
        gpu(0, 1, GPUS)


def test_threads_of_a_rank():
    """A part of the cores of its own set, or of the machine where the launcher binds each rank to its part."""

    def world(local_size, bound):
        return World("", 0, 8, local_size, "", (), "", bound)

    assert [world(size, False).threads(8, 64) for size in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    assert [world(4, True).threads(cores, 32) for cores in (1, 8, 16, 32)] == [1, 8, 8, 8]


@pytest.mark.parametrize(
    ("part", "name", "value", "kind"),
    [
        ("options", "lr", 0.1, UsageError),
        ("options", "precision", "bf16", UsageError),
        ("data", "digest", "cd", DataError),
        ("build", "build", "GNU 12", UnavailableError),
        ("build", "instructions", None, UnavailableError),
    ],
)
def test_what_ranks_have_in_common(part, name, value, kind):
    facts = Facts({"lr": 0.05, "precision": "fp32"}, {"digest": "ab"}, {"build": "GNU 13", "instructions": "avx2"})
    found = facts.as_json()
    assert facts.fault(3, found) is None
    mine = found[part][name]
    found[part][name] = value
    fault = facts.fault(3, found)
    assert type(fault) is kind
    assert str(fault) == f"rank 3 has {name} {value}, expected rank 0's, {mine}"
    assert facts.fault(3, None) is not None
