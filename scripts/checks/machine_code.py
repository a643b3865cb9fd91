"""Whether two builds have the same kernels, byte for byte: the proof that a change of CUDA code only moved or renamed.

OLD and NEW are each a cubin, an object, a library, or a folder that holds some.
Kernels are told apart by architecture and machine code, because a rename changes their names: every kernel of OLD must
have one of NEW with the same instructions, registers, stack and static shared memory, and the other way round. What
differs is listed with its size, and then the exit code is 1; 2 is a wrong call, 4 a missing tool. Objects are opened by
cuobjdump, which comes with a CUDA toolkit and with PyPI's nvcc; a cubin needs no tool.

A kernel whose arguments moved differs in the offsets at which it reads them. `--arguments` leaves these, the bank of
constants 0, out of the comparison; that needs nvdisasm, too.
"""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from checks.runner import Problem, tool

SUFFIXES = {".cubin", ".o", ".a", ".so"}
FRAME_SIZE, REGISTER_COUNT = 0x11, 0x2F  # attributes of .nv.info


@dataclass(frozen=True)
class Kernel:
    """A kernel as it is compared; its name is only shown."""

    architecture: int
    code: bytes | str
    registers: int
    shared: int  # bytes, static
    stack: int  # bytes of a thread
    name: str = field(compare=False)

    def __str__(self) -> str:
        return (
            f"sm_{self.architecture} {self.name}: {len(self.code)} bytes of code, {self.registers} registers, "
            f"{self.shared} bytes of shared memory, {self.stack} of stack"
        )


def cubins(path: Path, into: Path) -> list[Path]:
    """The ELF files for GPUs in a file or in all files of a folder."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        return [cubin for k, file in enumerate(found) for cubin in cubins(file, into / str(k))]
    if path.suffix == ".cubin":
        return [path]
    into.mkdir(parents=True)
    command = [tool("cuobjdump"), "-xelf", "all", str(path.resolve())]
    subprocess.run(command, cwd=into, check=False, capture_output=True)  # fails for a file without any
    return sorted(into.glob("*.cubin"))


def text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def per_function(info: bytes, wanted: int) -> dict[int, int]:
    """Of .nv.info: the values of an attribute by the index of a function's symbol."""
    values, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute == wanted:
            symbol, value = struct.unpack_from("<II", info, at + 4)
            values[symbol] = value
        at += 4 + (size if form == 4 else 0)
    return values


def kernels(path: Path) -> list[Kernel]:
    """Every kernel of a cubin: the sections .text.<name>, and what the others say about it."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF":
        raise Problem(f"{path} is not an ELF file", 2)
    abi = data[8]
    (table,) = struct.unpack_from("<Q", data, 40)
    (flags,) = struct.unpack_from("<I", data, 48)
    entry, count, names_at = struct.unpack_from("<HHH", data, 58)
    # name, type, flags, address, offset, size, link, info
    headers = [struct.unpack_from("<IIQQQQII", data, table + k * entry) for k in range(count)]
    sections = {text(data, headers[names_at][4] + header[0]): header for header in headers}
    info = sections.get(".nv.info")
    attributes = data[info[4] : info[4] + info[5]] if info else b""
    frames, registers = per_function(attributes, FRAME_SIZE), per_function(attributes, REGISTER_COUNT)
    result = []
    for name, header in sections.items():
        if not name.startswith(".text."):
            continue
        shared = sections.get(f".nv.shared.{name[6:]}")
        result.append(
            Kernel(
                architecture=flags >> 8 & 0xFFFF if abi >= 8 else flags & 0xFF,
                code=data[header[4] : header[4] + header[5]],
                registers=registers[header[7] & 0xFFFFFF],
                shared=shared[5] if shared else 0,
                stack=frames.get(header[7] & 0xFFFFFF, 0),
                name=name[6:],
            )
        )
    return result


def without_arguments(path: Path) -> list[Kernel]:
    """The same with disassembled code, in which offsets into the bank of constants 0 are left out."""
    listing = subprocess.run(
        [tool("nvdisasm"), "--print-code", str(path)], check=True, capture_output=True, text=True
    ).stdout
    bodies = dict(re.findall(r"^\.text\.(\S+):\n(.*?)(?=^\.text\.|\Z)", listing, re.MULTILINE | re.DOTALL))
    left_out = r"c\[0x0\]\[[^]]*\]|/\*[^*]*\*/|\S*{}\S*"
    return [replace(k, code=re.sub(left_out.format(re.escape(k.name)), "", bodies[k.name])) for k in kernels(path)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--arguments", action="store_true", help="do not compare where arguments lie")


def run(args: argparse.Namespace) -> int:
    """Compare; the exit code."""
    for path in (args.old, args.new):
        if not path.exists():
            raise Problem(f"{path} does not exist", 2)
    builds = []
    with tempfile.TemporaryDirectory() as folder:
        for which, path in (("old", args.old), ("new", args.new)):
            read = without_arguments if args.arguments else kernels
            builds.append(Counter(k for cubin in cubins(path, Path(folder) / which) for k in read(cubin)))
    old, new = builds
    if not old or not new:
        raise Problem(f"{args.new if old else args.old} holds no kernel", 2)
    for sign, kernel in [("-", k) for k in (old - new).elements()] + [("+", k) for k in (new - old).elements()]:
        print(sign, kernel)
    print(f"{(old & new).total()} kernels are the same; {(old - new).total()} of the old ones differ")
    return int(old != new)
