"""`bench ops --emulate`: our kernels on the CPU, by native/emulator, which g++ compiles here once.

docs/emulator.md says what the emulator is and what its numbers mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mnist_cuda import console
from mnist_cuda.bench.record import Record
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.options import RecordOptions

COLUMNS = ("variant", "right", "faults", "sectors", "turns", "idle", "bytes", "barriers")
PACKAGE = Path(__file__).resolve().parent.parent


def sources() -> Path:
    """The folder `native`: the checkout's, or what came with the wheel. Raises UnavailableError where neither is."""
    for folder in (PACKAGE.parent / "native", PACKAGE / "native"):
        if (folder / "emulator" / "rewrite.py").is_file():
            return folder
    raise UnavailableError("the emulator's sources are not here: neither a checkout nor a wheel that has them")


def build() -> Path:
    """The program, compiled unless it was before from the same sources. Raises UnavailableError without g++."""
    compiler, native = shutil.which("g++"), sources()
    if not compiler or not shutil.which("addr2line"):
        raise UnavailableError("the emulator needs g++ 11 or newer for x86-64, and addr2line: apt install g++")
    emulator, gpu = native / "emulator", native / "gpu"
    flags = [line for line in (emulator / "flags.txt").read_text().splitlines() if line.startswith("-")]
    left_out = {line.split()[0] for line in (emulator / "left_out.txt").read_text().splitlines() if line[:1].isalpha()}
    kernels = [
        path
        for path in sorted([*gpu.glob("kernels/*.cu"), *gpu.glob("kernels/*/*.cu")])
        if path.stem not in left_out and path.parent.name != "fused"
    ]
    headers = [path for path in sorted(gpu.rglob("kernels/**/*.cuh")) if "fused" not in path.parts]
    hosts = [
        *(path for path in sorted(gpu.glob("kernels/*/*.cpp")) if path.parent.name != "fused"),
        *(path for path in sorted(emulator.glob("*.cpp"))),
        gpu / "bench" / "op_cases.cpp",
        native / "host" / "cpu" / "reference_ops.cpp",
    ]
    digest = hashlib.sha256(compiler.encode())
    for path in sorted(
        path for path in native.rglob("*") if path.suffix in {".cu", ".cuh", ".h", ".cpp", ".py", ".txt"}
    ):
        digest.update(str(path).encode() + path.read_bytes())
    import platformdirs

    cache = Path(platformdirs.user_cache_dir("mnist-cuda", appauthor=False)) / "emulator"
    program = cache / digest.hexdigest()[:16]
    if program.exists():
        return program
    work = cache / f"{program.name}.{os.getpid()}"
    rewritten = work / "rewritten"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    note = "compiling the emulator and the kernels, once: about a minute of processor time"
    console.make_console(stderr=True).print(note)
    try:
        rewrite = [sys.executable, emulator / "rewrite.py", gpu, rewritten, *kernels, *headers]
        _run(rewrite)
        folders = [emulator / "include", emulator, rewritten, gpu, native / "host", native / "include"]
        common = [compiler, "-std=c++20", *(f"-I{folder}" for folder in folders), "-c"]
        objects = [work / f"{number}.o" for number in range(len(kernels) + len(hosts))]
        commands = [
            [*common, *flags, rewritten / f"{path.relative_to(gpu)}.cpp", "-o", to]
            for path, to in zip(kernels, objects, strict=False)
        ] + [
            [*common, "-O2", "-DMNIST_WITH_SM80", path, "-o", to]
            for path, to in zip(hosts, objects[len(kernels) :], strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        _run([compiler, *objects, "-o", work / "program"])
        (work / "program").replace(program)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return program


def _run(command: list[Any]) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
        raise UnavailableError(f"the emulator could not be compiled: {errors[0] if errors else command[0]}")


def rows(op: str, variant: str, batch_size: int) -> list[dict[str, Any]]:
    """Each row with `error`, `bound`, `wrong` (the first wrong element, or empty) and the emulator's `report`."""
    done = subprocess.run([str(build()), op, variant, str(batch_size)], capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"the emulator stopped: {(done.stderr.strip().splitlines() or ['no word why'])[-1]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def passes(row: dict[str, Any]) -> bool:
    """Whether the row is absent, or right and without a fault; a NaN does not pass."""
    if row["absent"]:
        return True
    right = row["error"] is not None and row["error"] <= row["bound"]
    return bool(right and not row["failed"] and not row["report"]["faults"])


def command(op: str, variant: str, batch_size: int, options: RecordOptions) -> int:
    """`mnist-cuda bench ops --emulate`; exit code 1 where a row is wrong or has a fault."""
    output = Record(options.json, busy=options.busy)
    found = rows(op, variant, batch_size)
    if not found:
        raise UsageError(f"op '{op}' or its variant '{variant}' is unknown; `mnist-cuda bench ops --emulate` names all")
    if output:
        output.write({"emulated": True, "batch_size": batch_size, "rows": found})
    if output.on_stdout:
        return 0 if all(map(passes, found)) else 1
    out = console.make_console()
    out.print(
        "On the CPU, in three orders of threads and blocks; no times. Of an access of a warp: sectors of 32 bytes in "
        "global memory, and turns of the banks of shared memory, each beside the least for the same bytes; the lanes "
        "that are idle. Bytes of global memory that warps ask for, beside those that are touched at all."
    )
    for name in dict.fromkeys(row["op"] for row in found):
        ours = [row for row in found if row["op"] == name]
        out.print(f"\n{name}, {ours[0]['shape']}")
        console.print_table(out, COLUMNS, [_cells(row) for row in ours], right=COLUMNS[1:])
        for row in ours:
            if row["absent"]:
                out.print(f"absent: {row['variant']}: {row['absent']}")
                continue
            if row["wrong"] or row["failed"]:
                out.print(f"WRONG: {row['variant']}: {row['failed'] or row['wrong']}")
            for fault in row["report"]["faults"]:
                other = f"; the other is at {fault['other_file']}:{fault['other_line']}" if fault["other_line"] else ""
                out.print(f"{fault['file']}:{fault['line']}: {fault['kind']}: {fault['words']}{other}")
    return 0 if all(map(passes, found)) else 1


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["absent"]:
        return row["variant"], *["-"] * (len(COLUMNS) - 1)
    report = row["report"]
    lines, kernels = report["lines"], report["kernels"]

    def of(unit: str) -> str:
        chosen = [line for line in lines if unit in line]
        accesses = sum(line["accesses"] for line in chosen)
        if not accesses:
            return "-"
        cost, least = sum(line[unit] for line in chosen), sum(line["least"] for line in chosen)
        return f"{cost / accesses:.1f} of {least / accesses:.1f}"

    accesses, lanes = sum(line["accesses"] for line in lines), sum(line["lanes"] for line in lines)
    moved, least = (sum(kernel[key] for kernel in kernels) for key in ("bytes", "least_bytes"))
    error = row["error"]
    return (
        row["variant"],
        "NaN" if error is None else f"{error:.0e}" if error <= row["bound"] else f"{error:.0e}, no",
        str(len(report["faults"])),
        of("sectors"),
        of("turns"),
        f"{100 - 100 * lanes / (32 * accesses):.0f} %" if accesses else "-",
        f"{moved / least:.1f} x {console.format_count(least)}" if least else "-",
        str(sum(kernel["barriers"] for kernel in kernels)),
    )
