"""Registers and occupancy of a .cu file's kernels on a GPU that need not be here: nvcc compiles the file and says.

Occupancy is the share of a multiprocessor's warps that can be active at once. Blocks become active as long as there is
room for all their registers, shared memory and warps; the rules are those of NVIDIA's cuda_occupancy.h.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mnist_cuda.bench.machine_code import find_tool
from mnist_cuda.errors import UnavailableError

REGISTERS = 1 << 16  # of a multiprocessor, in four parts, each with warps of its own
PARTS = 4
REGISTER_UNIT = 256  # registers that a warp gets a multiple of


@dataclass(frozen=True)
class Multiprocessor:
    """What can be active on it: warps and blocks at most, and bytes of shared memory.

    A block takes `reserved` bytes for the system on top of its own, and all in multiples of `unit`.
    """

    architecture: str  # as nvcc names it
    warps: int
    blocks: int
    shared: int
    reserved: int
    unit: int


# By CUDA's programming guide, "technical specifications per compute capability"; the names are those of emulate.GPUS.
MULTIPROCESSORS = {
    "h200": Multiprocessor("sm_90a", 64, 32, 228 << 10, 1024, 128),
    "t4": Multiprocessor("sm_75", 32, 16, 64 << 10, 0, 256),
    "a100": Multiprocessor("sm_80", 64, 32, 164 << 10, 1024, 128),
    "rtx4090": Multiprocessor("sm_89", 48, 24, 100 << 10, 1024, 128),
}


@dataclass(frozen=True)
class Compiled:
    """A kernel as nvcc made it: of a thread registers and bytes spilled, of a block bytes of static shared memory."""

    name: str
    registers: int
    spilled_bytes: int
    static_bytes: int


@dataclass(frozen=True)
class KernelUse:
    """A kernel in its largest launch; `limited_by`: what keeps another block from being active."""

    name: str
    threads: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    blocks_per_multiprocessor: int
    occupancy: float
    limited_by: list[str]


@dataclass
class Resources:
    """What the kernels take of a multiprocessor of the GPU `gpu`, by nvcc, or `unknown`: why that is not known."""

    gpu: str = ""
    unknown: str = ""
    kernels: list[KernelUse] = field(default_factory=list)


def active_blocks(on: Multiprocessor, threads: int, registers: int, shared: int) -> tuple[int, list[str]]:
    """How many blocks can be active at once, and what limits them; no blocks where not even one fits."""

    def rounded(number: int, unit: int) -> int:
        return -(-number // unit) * unit

    warps = -(-threads // 32)
    most = {
        "registers": REGISTERS // PARTS // rounded(32 * max(1, registers), REGISTER_UNIT) * PARTS // warps,
        "warps": on.warps // warps,
        "the number of blocks": on.blocks,
    }
    if taken := rounded(shared + on.reserved, on.unit):
        most["shared memory"] = on.shared // taken
    blocks = min(most.values())
    return blocks, [name for name, fit in most.items() if fit == blocks]


def compiled(file: Path, on: Multiprocessor, native: Path) -> list[Compiled]:
    """The kernels of a file; `native` is the folder with our headers.

    Raises UnavailableError where there is no nvcc, or it does not compile the file.
    """
    folders = [native / "gpu", native / "host", native / "include", file.resolve().parent]
    with tempfile.TemporaryDirectory(prefix="mnist-cuda-nvcc-") as folder:
        command = [find_tool("nvcc"), "-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-arch={on.architecture}"]
        command += ["-cubin", "-Xptxas=-v", *(f"-I{path}" for path in folders), str(file), "-o", f"{folder}/cubin"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
        raise UnavailableError(f"nvcc does not compile the file: {(errors or ['no word why'])[0]}")
    return told(done.stderr)


def told(text: str) -> list[Compiled]:
    """What ptxas says of kernels."""
    found = []
    for part in text.split("Compiling entry function '")[1:]:
        symbol = part.partition("'")[0]
        spilled = re.search(rf"Function properties for {re.escape(symbol)}\n.* (\d+) bytes spill stores", part)
        used = re.search(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?", part)
        if used:
            found.append((symbol, int(used[1]), int(spilled[1]) if spilled else 0, int(used[2] or 0)))
    symbols = "\n".join(symbol for symbol, *_ in found)
    done = subprocess.run(["c++filt"], input=symbols, capture_output=True, text=True, check=True)
    return [Compiled(plain(name), *rest) for name, (_, *rest) in zip(done.stdout.splitlines(), found, strict=True)]


def plain(function: str) -> str:
    """A demangled name without what it returns, namespaces and parameters, such as `tiled_kernel<true,false>`."""
    name = re.sub(r"^void |\(anonymous namespace\)::", "", function)
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:at]
            break
    before, opening, arguments = name.partition("<")
    return (before.rpartition("::")[2] + opening + arguments).replace(" ", "")


def resources(file: Path, gpu: str, native: Path) -> tuple[list[Compiled], Resources]:
    """A file's kernels, for `uses`, and what is known before a launch: for which GPU, or why nothing is known."""
    try:
        return compiled(file, MULTIPROCESSORS[gpu], native), Resources(gpu)
    except UnavailableError as error:
        return [], Resources(unknown=str(error))


def uses(kernels: list[Compiled], launched: list[dict[str, Any]], gpu: str) -> list[KernelUse]:
    """Those of a file's kernels that the emulator's report has; a template's instances all where it tells none."""
    found = []
    for launch in launched:
        base = plain(launch["name"]).partition("<")[0]
        instances = {plain(function) for function in launch["functions"]}
        named = [kernel for kernel in kernels if kernel.name.partition("<")[0] == base]
        for kernel in [kernel for kernel in named if kernel.name in instances] or named:
            on, threads = MULTIPROCESSORS[gpu], launch["block"]
            shared = kernel.static_bytes + launch["dynamic_bytes"]
            blocks, limits = active_blocks(on, threads, kernel.registers, shared)
            share = blocks * -(-threads // 32) / on.warps
            of_thread = (kernel.registers, kernel.spilled_bytes)
            found.append(KernelUse(kernel.name, threads, *of_thread, shared, blocks, share, limits))
    return found
