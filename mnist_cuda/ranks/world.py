"""Which rank this process is, of how many, by what the environment says. Imports nothing heavy."""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from mnist_cuda.errors import UsageError

GPUS = "--gpus"  # the launcher of a rank for each GPU
LAST_PORT = 65535
PORTS = 4  # that rank 0 tries where no launcher gives it one of its own


@dataclass(frozen=True)
class World:
    """The ranks of one training, as one of them sees them.

    launcher: who started them. local_size: how many are on this machine. local_rank: which of these this one is.
    address, ports: where rank 0 listens, on the first of these that is free. job: the same for all ranks, and for those
    of no other training at these ports. bound: the launcher gave each rank cores of its own.
    """

    launcher: str
    rank: int
    size: int
    local_size: int
    address: str
    ports: tuple[int, ...]
    job: str
    bound: bool = False
    local_rank: int = 0

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


def world_of(environment: Mapping[str, str]) -> World | None:
    """The world that torchrun, mpirun or srun made; None for a process that has no other beside it.

    What torchrun says may be set by hand, too, and its MASTER_ADDR and MASTER_PORT go before what the others say.
    Raises UsageError for variables that are not whole.
    """
    for names, find in _LAUNCHERS.items():
        if all(name in environment for name in names):
            world = find(environment)
            if not (world.size >= 1 and 0 <= world.rank < world.size):
                raise UsageError(f"{names[0]} is {world.rank} and there are {world.size} ranks, expected less")
            return world if world.size > 1 else None
    return None


def _torchrun(environment: Mapping[str, str]) -> World:
    size = _number(environment, "WORLD_SIZE")
    # torchrun itself listens at MASTER_PORT, for the processes of PyTorch.
    taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = _text(environment, "MASTER_ADDR"), _port(environment, LAST_PORT - taken)
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    rank, here = _number(environment, "RANK"), is_loopback(address)
    return World(
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in environment else "RANK and WORLD_SIZE",
        rank=rank,
        size=size,
        local_size=_number(environment, "LOCAL_WORLD_SIZE", size if here else 1),
        local_rank=_number(environment, "LOCAL_RANK", rank if here else 0),
        address=address,
        ports=tuple(range(port + 1, min(port + PORTS, LAST_PORT) + 1)) if taken else (port,),
        job=environment.get("MNIST_CUDA_JOB") or f"{environment.get('TORCHELASTIC_RUN_ID', '')}:{port}:{attempt}",
    )


def _open_mpi(environment: Mapping[str, str]) -> World:
    size = _number(environment, "OMPI_COMM_WORLD_SIZE")
    local_size = _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", size)
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid") or ""
    if local_size < size and "MASTER_ADDR" not in environment:
        raise UsageError(
            "mpirun started ranks on several machines, and MASTER_ADDR, the host of rank 0, is not set; "
            "mpirun -x MASTER_ADDR=HOST sets it"
        )
    return World(
        launcher="mpirun",
        rank=_number(environment, "OMPI_COMM_WORLD_RANK"),
        size=size,
        local_size=local_size,
        local_rank=_number(environment, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        address=environment.get("MASTER_ADDR", "127.0.0.1"),
        ports=_ports(environment, f"mpirun {job}"),
        job=f"mpirun {job}",
        bound=True,
    )


def _slurm(environment: Mapping[str, str]) -> World:
    size = _number(environment, "SLURM_STEP_NUM_TASKS")
    job = f"slurm {environment.get('SLURM_JOB_ID', '')}.{environment['SLURM_STEP_ID']}"
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    return World(
        launcher="srun",
        rank=_number(environment, "SLURM_PROCID"),
        size=size,
        local_size=_tasks_here(environment, size),
        local_rank=_number(environment, "SLURM_LOCALID", 0),
        address=environment.get("MASTER_ADDR") or first_host(nodes) or "127.0.0.1",
        ports=_ports(environment, job),
        job=job,
        bound=True,
    )


# By the variables that say that a launcher was there. A batch script of Slurm has SLURM_PROCID, too, but no step.
_LAUNCHERS = {
    ("RANK", "WORLD_SIZE"): _torchrun,
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"): _open_mpi,
    ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"): _slurm,
}


def is_loopback(address: str) -> bool:
    """Whether only this machine is reached by it."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def first_host(nodes: str) -> str:
    """The first host of a list as Slurm writes them: node[01-04,07],gpu3 gives node01."""
    match = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def _ports(environment: Mapping[str, str], job: str) -> tuple[int, ...]:
    """What MASTER_PORT says, or some that all ranks of a job find alike, below those that systems give away."""
    if "MASTER_PORT" in environment:
        return (_port(environment),)
    first = 20000 + PORTS * (zlib.crc32(job.encode()) % 2500)
    return tuple(range(first, first + PORTS))


def _port(environment: Mapping[str, str], last: int = LAST_PORT) -> int:
    port = _number(environment, "MASTER_PORT")
    if not 1 <= port <= last:
        raise UsageError(f"MASTER_PORT is {port}, expected 1 to {last}")
    return port


def _tasks_here(environment: Mapping[str, str], size: int) -> int:
    """Tasks on this node, from such as `2(x3),1`: nodes with 2, 2, 2 and 1."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", str(size))
    counts: list[int] = []
    for count, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = _number(environment, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else 1


def _text(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise UsageError(
            f"RANK and WORLD_SIZE are set, and {name} is not, which says where rank 0 is; unset or set all"
        )
    return environment[name]


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    if otherwise is not None and name not in environment:
        return otherwise
    text = _text(environment, name)
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise UsageError(f"{name} is '{text}', expected a whole number")
    return int(text)
