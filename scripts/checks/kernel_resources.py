"""What every kernel of a build takes, as the committed table has it: registers, memory, some of its instructions.

Says what differs from docs/kernel_resources.csv, and fails; with --write, writes that from the built module.
With --built, compares only the architectures that the build has, as .ci/run does, and says which they are.

cuobjdump reads them from the machine code, by nvdisasm, so nothing is compiled. Both come with a CUDA toolkit, and with
the extra `wheels` of pyproject.toml; c++filt comes with a C++ compiler. The table is for one version of nvcc, which its
first line names. The check fails for another version, for an architecture of the build that the table lacks, and
without --built for one of the table that the build lacks.

Exit codes: 0 the same, 1 something differs, 4 a tool or a build with CUDA is missing.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from checks.runner import ROOT

from mnist_cuda import _native
from mnist_cuda.bench.machine_code import dump, find_tool
from mnist_cuda.errors import UnavailableError

TABLE = ROOT / "docs" / "kernel_resources.csv"
HEADER = (
    "# By nvcc {version}. Of a thread: registers, and bytes of stack, what is spilled among them. Of a thread block:",
    "# bytes of shared memory that it declares, from 9.0 on with 1024 of the system's. Instructions, of sm_90a alone:",
    "# fences that show stores to the tensor cores and the copy engine; accesses to local memory (STL, LDL); moves to",
    "# uniform registers (R2UR), of which wgmma takes its operands. By scripts/check kernel-resources.",
)
COUNTED = "90a"  # the only architecture whose kernels have tensor cores read shared memory
INSTRUCTIONS = re.compile(r"(?P<fences>FENCE\.VIEW\.ASYNC)|(?P<local>STL|LDL)\b|(?P<r2ur>R2UR)\b")
PRECISIONS = ("fp64", "fp32", "tf32", "bf16")  # of native/include/mnist/engine.h, in order

Key = tuple[str, str]  # kernel and architecture


class Use(NamedTuple):
    """What a kernel takes: the columns of the table after its key."""

    registers: int
    stack: int
    shared: int
    fences: int = 0
    local: int = 0
    r2ur: int = 0


WORDS = ("registers", "bytes of stack", "of shared memory", "fences", "accesses to local memory", "R2UR")


def readable(symbols: list[str]) -> dict[str, str]:
    """Names to read and to sort by; two that would be the same keep their parameters."""

    def demangled(*flags: str) -> list[str]:
        try:
            run = subprocess.run(
                ["c++filt", *flags], input="\n".join(symbols), capture_output=True, text=True, check=True
            )
        except FileNotFoundError:
            raise UnavailableError("there is no c++filt; it comes with the C++ compiler's binutils") from None
        text = run.stdout
        for number, precision in enumerate(PRECISIONS):
            text = re.sub(rf"mnist::fused::Policy<\(mnist::Precision\){number}> ?", precision, text)
        text = re.sub(r"(?m)^void |\(anonymous namespace\)::|mnist::(kernels::)?", "", text)
        return re.sub(r"\((int|bool|unsigned int)\)(-?\d+)", r"\2", text).replace(" >", ">").splitlines()

    names, whole = demangled("--no-params"), demangled()
    return {
        symbol: full if names.count(name) > 1 else name
        for symbol, name, full in zip(symbols, names, whole, strict=True)
    }


def parse(listing: str) -> dict[Key, Use]:
    """What `cuobjdump --dump-resource-usage` lists, by symbol."""
    found: dict[Key, Use] = {}
    architecture = symbol = ""
    for line in listing.splitlines():
        if match := re.match(r"arch = sm_(\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            symbol = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) ", line):
            found[symbol, architecture] = Use(int(match[1]), int(match[2]), int(match[3]))
    return found


def instructions(listing: str) -> dict[str, Counter[str]]:
    """How many of INSTRUCTIONS `cuobjdump --dump-sass` shows, by symbol."""
    found: dict[str, Counter[str]] = {}
    symbol = ""
    for line in listing.splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            symbol = match[1]
        elif match := INSTRUCTIONS.search(line):
            found.setdefault(symbol, Counter())[str(match.lastgroup)] += 1
    return found


def measured(files: list[Path]) -> dict[Key, Use]:
    """The kernels of built files, by readable names."""
    found: dict[Key, Use] = {}
    for file in files:
        kernels = parse(dump("--dump-resource-usage", file=str(file)))
        if any(architecture == COUNTED for _, architecture in kernels):
            find_tool("nvdisasm")
            listing = dump("--dump-sass", "--gpu-architecture", f"sm_{COUNTED}", file=str(file))
            for symbol, counts in instructions(listing).items():
                kernels[symbol, COUNTED] = kernels[symbol, COUNTED]._replace(**counts)
        found |= kernels
    if not found:
        raise UnavailableError(f"{files[0] if files else 'the build'} holds no machine code for a GPU")
    names = readable(sorted({symbol for symbol, _ in found}))
    return {(names[symbol], architecture): use for (symbol, architecture), use in found.items()}


def compiler() -> str:
    """The version of nvcc that made the module."""
    match = re.search(r"nvcc ([\d.]+)", _native.BUILD)
    if match is None:
        raise UnavailableError(f"the module was built without CUDA: {_native.BUILD}")
    return match[1]


def order(key: Key) -> tuple[str, int, str]:
    """By kernel, then by architecture."""
    return key[0], int(re.sub(r"\D", "", key[1])), key[1]


def architectures(found: dict[Key, Use]) -> list[str]:
    """Those that the build has code for."""
    return sorted({architecture for _, architecture in found}, key=lambda architecture: order(("", architecture)))


def table(found: dict[Key, Use], version: str) -> str:
    """The text of the table."""
    text = io.StringIO()
    text.writelines(line.format(version=version) + "\n" for line in HEADER)
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["kernel", "architecture", *Use._fields])
    rows.writerows([*key, *found[key]] for key in sorted(found, key=order))
    return text.getvalue()


def read_table(text: str) -> dict[Key, Use]:
    """The kernels of table()."""
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {(row["kernel"], row["architecture"]): Use(*(int(row[name]) for name in Use._fields)) for row in rows}


def differences(committed: str, found: dict[Key, Use], version: str, *, built: bool) -> list[str]:
    """What is not as the table has it, a line each; of the architectures that are built alone, if asked."""
    first, _, _ = committed.partition("\n")
    if f"nvcc {version}." not in first:
        return [f"the table is {first.removeprefix('# ').partition('. ')[0].lower()}, this build by nvcc {version}"]
    known = read_table(committed)
    if built:
        known = {key: use for key, use in known.items() if key[1] in architectures(found)}

    def words(use: Use | None) -> str:
        if use is None:
            return "not there"
        return ", ".join(f"{value} {name}" for name, value in zip(WORDS, use, strict=True))

    return [
        f"{kernel}, sm_{architecture}: {words(known.get((kernel, architecture)))} in the table, "
        f"{words(found.get((kernel, architecture)))} in this build"
        for kernel, architecture in sorted(known.keys() | found.keys(), key=order)
        if known.get((kernel, architecture)) != found.get((kernel, architecture))
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--built", action="store_true", help="compare only architectures that the build has")
    parser.add_argument("--nvcc", metavar="VERSION", help="the compiler of FILEs, instead of the module's")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="object files instead of the module")


def run(args: argparse.Namespace) -> int:
    """Compare or write; the exit code."""
    version = args.nvcc or compiler()
    found = measured(args.files or [Path(_native.__file__)])
    if args.write:
        TABLE.write_text(table(found, version))
        print(f"{len(found)} rows in {TABLE.relative_to(ROOT)}")
        return 0
    lines = differences(TABLE.read_text(), found, version, built=args.built)
    for line in lines:
        print(line)
    remedy = "; if that is meant, run scripts/check kernel-resources --write and commit its table" if lines else ""
    names = ", ".join(f"sm_{architecture}" for architecture in architectures(found))
    print(f"{len(found)} kernels for {names}: {len(lines)} lines differ{remedy}")
    return bool(lines)
