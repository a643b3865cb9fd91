"""The code of our kernels as the compiled module holds it: SASS, what the GPU executes, or PTX."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mnist_cuda import _native
from mnist_cuda.errors import UnavailableError

_WHEELS = "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
REMEDY = f"a CUDA toolkit has it, or run `{sys.executable} -m pip install {_WHEELS}`"


def _tool_path() -> str:
    """Where tools are: in the wheels beside this Python, on PATH, and where a toolkit puts itself."""
    folders = [Path(path, "nvidia", cuda, "bin") for path in sys.path for cuda in ("cu13", "cu12")]
    return os.pathsep.join([*map(str, folders), os.environ.get("PATH", ""), "/usr/local/cuda/bin"])


def find_tool(name: str) -> str:
    """One of CUDA's tools: cuobjdump, nvdisasm, which that calls, or compute-sanitizer. Raises UnavailableError."""
    if tool := shutil.which(name, path=_tool_path()):
        return tool
    of_code = name in ("cuobjdump", "nvdisasm")
    remedy = f"to read machine code with; {REMEDY}" if of_code else "on the PATH or in /usr/local/cuda/bin"
    raise UnavailableError(f"there is no {name} {remedy}")


def kernels_of(op: str, variant: str) -> list[str]:
    """Mangled names of the float32 kernels in the source file of a variant, such as kernels/relu/float4.cu.

    More than the variant launches, where one file has several. Raises UnavailableError if the build has no such file.
    """
    found: dict[str, list[str]] = {}  # by the op's folder
    for part in dump("--dump-resource-usage").split("\nidentifier = ")[1:]:
        file = part.partition("\n")[0]
        match = re.search(r"native/gpu/kernels/(\w+)/(\w+)\.cu$", file)
        if match and match[2] == variant and (match[1] in (op, "peers") or op.startswith(f"{match[1]}_")):
            symbols = re.findall(r"^ *Function (\S+):", part, re.MULTILINE)
            found[match[1]] = [s for s in symbols if not re.search(r"_kernelIdE", s)]
    if not found:
        raise UnavailableError(f"this build ({_native.BUILD}) has no source file of {op}'s variant {variant}")
    return found[max(found, key=len)]


def sass(symbols: Sequence[str], compute_capability: str = "") -> str:
    """The machine code that a GPU of that capability, such as `9.0`, executes; by default for the newest.

    symbols: mangled names of kernels.
    """
    find_tool("nvdisasm")
    architecture = _architecture(compute_capability)
    listing = dump("--dump-sass", "--gpu-architecture", architecture, "--function", ",".join(symbols))
    found = {}
    for part in re.split(r"\n(?=[ \t]*Function : )", listing)[1:]:
        code = re.split(r"\n[ \t]*\.{5,}", part)[0]  # cuobjdump's line of dots below each function
        code = re.sub(r" */\* 0x[0-9a-f]+ \*/", "", code)  # the bits of an instruction
        lines = [line.rstrip() for line in code.splitlines() if line.strip()]
        found[lines[0].split()[-1]] = "\n".join([f"// {architecture}", *lines, ""])
    return _joined(symbols, found, f"machine code for {architecture}")


def ptx(symbols: Sequence[str]) -> str:
    """The code of the virtual machine, which the driver compiles for newer GPUs, where the build kept it."""
    found = {}
    for module in re.split(r"\n(?=\.version )", "\n" + dump("--dump-ptx"))[1:]:
        head = "\n".join(re.findall(r"^\.(?:version|target|address_size).*$", module, re.MULTILINE))
        for entry in re.finditer(r"^(?:\.visible |\.weak )?\.entry (\w+)\(.*?^}$", module, re.MULTILINE | re.DOTALL):
            found[entry[1]] = f"{head}\n\n{entry[0]}\n"
    return _joined(symbols, found, "PTX; an architecture such as 80 or 80-virtual keeps it, 80-real does not")


def dump(*options: str, file: str = _native.__file__) -> str:
    """What cuobjdump prints of a file, by default of the compiled module. Raises UnavailableError."""
    command = [find_tool("cuobjdump"), *options, file]
    environment = {**os.environ, "PATH": _tool_path()}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise UnavailableError(f"{command[0]}: {said[-1] if said else f'it ended with {result.returncode}'}")
    return result.stdout


def _joined(symbols: Sequence[str], found: dict[str, str], what: str) -> str:
    if missing := [symbol for symbol in symbols if symbol not in found]:
        raise UnavailableError(f"this build ({_native.BUILD}) holds of {missing[0]} no {what}")
    return "\n".join(found[symbol] for symbol in symbols)


def _architecture(compute_capability: str) -> str:
    """Of the build's machine code that which the GPU takes, as sm_90a.

    It is the newest of its major version that is not newer, and with a letter it is for that very GPU.
    """
    found = {(int(number), letter) for number, letter in re.findall(r"\.sm_(\d+)([a-z]?)\.cubin", dump("--list-elf"))}
    if compute_capability:
        wanted = int(compute_capability.replace(".", ""))
        found = {
            (number, letter)
            for number, letter in found
            if number // 10 == wanted // 10 and (number == wanted if letter else number <= wanted)
        }
    if not found:
        asked = f" for compute capability {compute_capability}" if compute_capability else ""
        raise UnavailableError(f"this build ({_native.BUILD}) holds no machine code{asked}")
    number, letter = max(found)
    return f"sm_{number}{letter}"
