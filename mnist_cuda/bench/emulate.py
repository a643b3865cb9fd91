"""`bench ops --emulate`: our kernels on the CPU, by native/emulator, which g++ compiles here once.

docs/emulator.md says what the emulator is and what its numbers mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mnist_cuda import cache
from mnist_cuda.bench import occupancy
from mnist_cuda.bench.record import Record
from mnist_cuda.errors import DataError, UnavailableError, UsageError
from mnist_cuda.files import take_lock
from mnist_cuda.run.options import RecordOptions
from mnist_cuda.terminal import console

COLUMNS = ("variant", "error", "faults", "sectors", "turns", "idle", "bytes", "barriers", "roof")
OPTIONAL = ("barriers", "idle", "bytes")
KERNEL_COLUMNS = ("kernel", "threads", "registers", "spilled B", "shared B", "blocks/SM", "occupancy", "limited by")
KERNEL_OPTIONAL = ("spilled B", "shared B", "threads", "limited by")
OTHER_COLUMNS = ("op", "variant", "by", "error", "why")
LINE_COLUMNS = ("line", "array", "access of a lane", "accesses", "each", "idle")
LINE_OPTIONAL = ("accesses", "idle", "access of a lane")

Files = Mapping[tuple[str, str], Path]  # by op and variant
CompileOne = Callable[[Path, Path], None]  # of a file, to an object


@dataclass(frozen=True)
class Gpu:
    """A GPU at its best: `rates` are operations a second by unit, `clock` is the highest, in Hz."""

    words: str
    bytes_per_second: float
    rates: dict[str, float]
    multiprocessors: int
    clock: float


SHEET = "by its data sheet"
GPUS = {
    "h200": Gpu(
        "an H200; memory and arithmetic as `bench ops` measured them, clock by its data sheet",
        4.1807e12,
        {"fma": 64.573e12, "tf32": 319.35e12},
        132,
        1.98e9,
    ),
    "t4": Gpu(f"a T4, {SHEET}", 320e9, {"fma": 8.1e12}, 40, 1.59e9),
    "a100": Gpu(f"an A100 SXM with 80 GB, {SHEET}", 2.039e12, {"fma": 19.5e12, "tf32": 156e12}, 108, 1.41e9),
    "rtx4090": Gpu(f"an RTX 4090, {SHEET}", 1.008e12, {"fma": 82.6e12, "tf32": 82.6e12}, 128, 2.52e9),
}
SECTORS_A_CYCLE = 4  # 128 bytes that the L1 cache of a multiprocessor gives at most
SHARED = {".h", ".cuh", ".py", ".txt"}  # of what every object is made
KEPT = 7 * 86400  # seconds that what was compiled stays without a use
PACKAGE = Path(__file__).resolve().parent.parent


def sources() -> Path:
    """The folder `native`: the checkout's, or what came with the wheel. Raises UnavailableError where neither is."""
    for folder in (PACKAGE.parent / "native", PACKAGE / "native"):
        if (folder / "emulator" / "rewrite.py").is_file():
            return folder
    raise UnavailableError("the emulator's sources are not here: neither a checkout nor a wheel that has them")


def left_out(native: Path) -> dict[str, str]:
    """Why the kernels of a file are not emulated, by its name without the suffix."""
    lines = (native / "emulator" / "left_out.txt").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line[:1].isalpha())


def require_compiler() -> str:
    """The path of g++. Raises UnavailableError without it or addr2line."""
    compiler = shutil.which("g++")
    if not compiler or not shutil.which("addr2line"):
        raise UnavailableError("the emulator needs g++ 11 or newer for x86-64, and addr2line: apt install g++")
    return compiler


def cache_folder(name: str = "emulator") -> Path:
    """Where compiled objects and programs are kept, made. Raises UnavailableError where nothing can be written."""
    try:
        return cache.writable(name)
    except DataError as error:
        raise UnavailableError(str(error)) from None


def kernel_flags(native: Path) -> list[str]:
    """How g++ compiles a kernel."""
    return [line for line in (native / "emulator" / "flags.txt").read_text().splitlines() if line.startswith("-")]


def include_flags(native: Path, rewritten: Path) -> list[str]:
    """Where g++ finds headers; `rewritten` has those of kernels."""
    emulator, gpu = native / "emulator", native / "gpu"
    folders = [emulator / "include", emulator, rewritten, gpu, native / "host", native / "include"]
    return [f"-I{folder}" for folder in folders]


def rewrite(native: Path, source: Path, target: Path, files: Iterable[Path]) -> None:
    """CUDA to C++: `files`, all below `source`, to `target`."""
    run_compiler([sys.executable, native / "emulator" / "rewrite.py", source, target, *files])


def kernel_headers(native: Path) -> list[Path]:
    """Those of the unfused kernels."""
    return [path for path in sorted((native / "gpu").rglob("kernels/**/*.cuh")) if "fused" not in path.parts]


def build() -> Path:
    """The program, compiled unless it was before from the same sources. Raises UnavailableError without g++."""
    compiler, parts = require_compiler(), objects("machine", "checks", "kernels", "tables", "bench")

    def link(_: list[Path], to: Path) -> None:
        run_compiler([compiler, *parts, "-o", to])

    key = _digest(*(path.name.encode() for path in parts))
    return _kept({key: parts}, cache_folder(), "the emulator's program", lambda _, __: link, "")[0]


def part(native: Path, name: str) -> list[Path]:
    """The files of a part of native/emulator/sources.txt that are compiled."""
    lines = (native / "emulator" / "sources.txt").read_text().splitlines()
    patterns = [pattern for line in lines for pattern in line.split()[1:] if line.split()[0] == name]
    found = (path for pattern in patterns for path in sorted(native.glob(pattern)))
    return [path for path in found if path.parent.name != "fused" and path.stem not in left_out(native)]


def objects(*parts: str) -> list[Path]:
    """Those of parts of native/emulator/sources.txt, each compiled unless it was before."""
    compiler, native = require_compiler(), sources()
    gpu = native / "gpu"

    def make(missing: list[Path], work: Path) -> CompileOne:
        rewritten = work / "rewritten"
        rewrite(native, gpu, rewritten, [*(path for path in missing if path.suffix == ".cu"), *kernel_headers(native)])
        flags, includes = kernel_flags(native), include_flags(native, rewritten)

        def compile_one(path: Path, to: Path) -> None:
            of_kernel = [*flags, rewritten / f"{path.relative_to(gpu)}.cpp"] if path.suffix == ".cu" else []
            what = of_kernel or ["-O2", "-DMNIST_WITH_SM80", path]
            run_compiler([compiler, "-std=c++20", *includes, "-c", *what, "-o", to])

        return compile_one

    files = [path for name in parts for path in part(native, name)]
    what = "the emulator and our kernels" if "kernels" in parts else "the emulator"
    return kept(files, native, common_digest(native, *version(compiler)), cache_folder(), what, make)


def precompiled(native: Path, flags: Sequence[str]) -> list[str]:
    """What has g++ begin with `cuda_runtime.h`, as nvcc does, precompiled; flags: those of what it then compiles."""
    compiler = require_compiler()
    header, words = native / "emulator" / "include" / "cuda_runtime.h", [*flags, *include_flags(native, Path("none"))]

    def compile_one(path: Path, to: Path) -> None:
        run_compiler([compiler, *words, "-x", "c++-header", path, "-o", to])

    key = _digest(common_digest(native, *version(compiler), *words).encode())
    (made,) = _kept({key: header}, cache_folder(), "the emulator's headers", lambda *_: compile_one, ".gch")
    plain = made.with_suffix("")  # for a g++ that cannot take it as it is
    plain.write_text(f'#include "{header}"\n')
    return ["-include", str(plain)]


def version(compiler: str) -> tuple[str, str]:
    """Where a compiler is and what it says of itself: objects of another are others."""
    return os.path.realpath(compiler), subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


def common_digest(native: Path, *words: str) -> str:
    """Of what all objects depend on: the headers, this file, and how they are compiled."""
    folders = [native / name for name in ("emulator", "gpu", "host", "include")]
    shared = [path for one in folders for path in sorted(one.rglob("*")) if path.suffix in SHARED]
    return _digest(*map(str.encode, words), *(path.read_bytes() for path in (Path(__file__), *shared)))


def kept(
    files: Sequence[Path],
    native: Path,
    common: str,
    cache: Path,
    what: str,
    make: Callable[[list[Path], Path], CompileOne],
) -> list[Path]:
    """The objects of files below `native`, each compiled unless `cache` has it, sound.

    common: a digest of all else that they depend on. what: the words for them. make: given those that are missing and a
    folder to work in, it gives the function that compiles one file to another. Raises UnavailableError.
    """
    keys = [_digest(common.encode(), str(path.relative_to(native)).encode(), path.read_bytes()) for path in files]
    return _kept(dict(zip(keys, files, strict=True)), cache, what, make)


def _kept(
    wanted: Mapping[str, Any], cache: Path, what: str, make: Callable[[list[Any], Path], Any], suffix: str = ".o"
) -> list[Path]:
    """What is made of each value, by its key, in that order; its file in the cache is named by its sha256, too."""
    there = _sound(cache, wanted, suffix)
    if len(there) < len(wanted):
        with _alone(cache, what) as work:
            there |= _sound(cache, wanted.keys() - there, suffix)  # another process has made them
            missing = {key: wanted[key] for key in wanted if key not in there}
            if missing:
                there |= _make_all(missing, cache, work, what, make([*missing.values()], work), suffix)
    for path in there.values():
        path.touch()
    return [there[key] for key in wanted]


def _make_all(
    missing: Mapping[str, Any], cache: Path, work: Path, what: str, make_one: Any, suffix: str
) -> dict[str, Path]:
    def make_and_keep(key: str) -> Path:
        made = work / key
        make_one(missing[key], made)
        return made.replace(cache / f"{key}-{_digest(made.read_bytes())}{suffix}")

    err, there = console.make_console(stderr=True), {}
    with console.LiveLine(err) as line, ThreadPoolExecutor(os.cpu_count()) as pool:
        if not line.shown:
            err.print(f"compiling {what}, once: {len(missing)} file{'s' * (len(missing) > 1)}")
        running = {pool.submit(make_and_keep, key): key for key in missing}
        try:
            for done, one in enumerate(as_completed(running)):
                there[running[one]] = one.result()
                line.show(done / len(missing), f"compiling {what}", f"{done} of {len(missing)} files", "once")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return there


def _sound(cache: Path, keys: Collection[str], suffix: str) -> dict[str, Path]:
    """Those that are there by key; what is damaged is removed."""
    there = {}
    for path in cache.glob(f"*-*{suffix}"):
        key, _, digest = path.stem.partition("-")
        with contextlib.suppress(OSError):  # another process has removed it
            if key in keys and _digest(path.read_bytes()) == digest:
                there[key] = path
            elif key in keys:
                path.unlink()
    return there


@contextlib.contextmanager
def _alone(cache: Path, what: str) -> Iterator[Path]:
    """A folder to work in, when no other process works in `cache`; what killed ones left and old files are removed."""
    cache.mkdir(parents=True, exist_ok=True)
    holder = cache / "holder"
    try:
        lock, _ = take_lock(cache)
    except BlockingIOError:
        who = holder.read_text() if holder.exists() else "another process"
        console.make_console(stderr=True).print(f"waiting for {who}, which is compiling in {cache}")
        lock, _ = take_lock(cache, fcntl.LOCK_EX)
    try:
        for path in cache.iterdir():
            with contextlib.suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                elif time.time() - path.stat().st_mtime > KEPT:
                    path.unlink()
        holder.write_text(f"process {os.getpid()} ({' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:80]})")
        work = Path(tempfile.mkdtemp(dir=cache))
        try:
            yield work
        finally:
            holder.unlink(missing_ok=True)
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UnavailableError(f"{what} cannot be kept in {cache}: {error.strerror}") from error
    finally:
        os.close(lock)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def run_compiler(command: list[Any]) -> None:
    """Raises UnavailableError with the first line that names an error."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
        raise UnavailableError(f"what this needs could not be compiled: {errors[0] if errors else command[0]}")


def rows(op: str, variant: str, batch_size: int) -> list[dict[str, Any]]:
    """Each row with `error`, `bound`, `wrong` (the first wrong element, or empty) and the emulator's `report`."""
    done = subprocess.run([str(build()), op, variant, str(batch_size)], capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"the emulator stopped: {(done.stderr.strip().splitlines() or ['no word why'])[-1]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def passes(row: dict[str, Any]) -> bool:
    """Whether the row, ours or another language's, is absent, or right and without a fault; a NaN does not pass."""
    if row["absent"]:
        return True
    faulty = row["failed"] or ("report" in row and row["report"]["faults"])
    return not faulty and row["error"] is not None and bool(row["error"] <= row["bound"])


def roof(row: dict[str, Any], gpu: Gpu) -> tuple[float, str] | None:
    """Seconds that the row takes at least on a GPU with empty caches, and what says so; None where it cannot run.

    What the op must move and compute, over the GPU's rates; or for each launch, one after the other, the sectors and
    the turns of the banks over what the multiprocessors give that have a block.
    """
    if row["unit"] not in gpu.rates:
        return None
    least = {"memory": row["bytes"] / gpu.bytes_per_second, row["unit"]: row["flops"] / gpu.rates[row["unit"]]}
    for what, cycles in (("sectors", 1 / SECTORS_A_CYCLE), ("turns", 1)):
        seconds = 0.0
        for kernel in row["report"]["kernels"]:
            busy = min(gpu.multiprocessors, kernel["blocks"] / kernel["launches"])
            units = sum(line.get(what, 0) for line in row["report"]["lines"] if line["kernel"] == kernel["name"])
            seconds += units * cycles / (busy * gpu.clock)
        least[what] = seconds
    what = max(least, key=lambda name: least[name])
    return least[what], what


def command(
    op: str,
    variant: str,
    batch_size: int,
    on: str,
    files: Files,
    options: RecordOptions,
    others: Sequence[dict[str, Any]] = (),
) -> int:
    """`mnist-cuda bench ops --emulate`; exit code 1 where a row is wrong or has a fault.

    others: rows of other languages, by their own simulators (op_peers.simulated_rows).
    """
    output = Record(options.json, busy=options.busy)
    estimate = console.Estimate(console.make_console(stderr=output.on_stdout))
    found, names = [], [op] if op else list(dict.fromkeys(name for name, _ in files))
    for done, name in enumerate(names, 1):
        found += rows(name, variant, batch_size)
        estimate.after(done / len(names))
    right = all(map(passes, (*found, *others)))
    if not (found or others):
        raise UsageError(f"variant '{variant}' is unknown; `mnist-cuda bench ops --list` lists all")
    known = _resources(found, files, on) if variant else {}
    if output:
        roofs = [roof(row, GPUS[on]) if not row["absent"] else None for row in found]
        for row, least in zip(found, roofs, strict=True):
            row["least_us"], row["least_by"] = (1e6 * least[0], least[1]) if least else (None, "")
            if row["op"] in known:
                row["resources"] = asdict(known[row["op"]])
        head = {"emulated": True, "batch_size": batch_size, "bound_for": GPUS[on].words}
        output.write({**head, "rows": found, "others": others})
    if output.on_stdout:
        return 0 if right else 1
    out = console.make_console()
    out.print(
        "Each variant ran on the CPU, in three orders of threads and blocks; nothing is timed. Per access of a warp, "
        "sectors: 32-byte sectors of global memory, and the fewest that hold the same bytes; turns: of the banks of "
        "shared memory, and the fewest; idle: lanes that take no part. bytes: what warps ask of global memory, as a "
        "multiple of the bytes touched. roof: the least possible microseconds, and what sets them, on "
        f"{GPUS[on].words}; no prediction."
    )
    for name in dict.fromkeys(row["op"] for row in found):
        ours = [row for row in found if row["op"] == name]
        out.print(f"\n{name}, {ours[0]['shape']}")
        console.print_table(out, COLUMNS, [_cells(row, GPUS[on]) for row in ours], right=COLUMNS[1:], optional=OPTIONAL)
        for row in ours:
            _print_more(out, row, lines=bool(variant), known=known.get(name), on=on)
    if others:
        _print_others(out, others)
    return 0 if right else 1


def _print_more(out: Console, row: dict[str, Any], lines: bool, known: occupancy.Resources | None, on: str) -> None:
    """What the table leaves out of a row: the accesses of each line, the kernels' resources, and what is wrong."""
    if row["absent"]:
        out.print(f"absent: {row['variant']}: {row['absent']}")
        return
    report = row["report"]
    if lines:
        costly = sorted(report["lines"], key=lambda line: -line.get("sectors", line.get("turns", 0)))
        cells = [_line_cells(line) for line in costly]
        console.print_table(out, LINE_COLUMNS, cells, right=LINE_COLUMNS[3:], optional=LINE_OPTIONAL)
    if known:
        _print_resources(out, known, on)
    if row["wrong"] or row["failed"]:
        out.print(f"WRONG: {row['variant']}: {row['failed'] or row['wrong']}")
    for fault in report["faults"]:
        other = f"; the other is at {fault['other_file']}:{fault['other_line']}" if fault["other_line"] else ""
        out.print(f"{fault['file']}:{fault['line']}: {fault['kind']}: {fault['words']}{other}")


def _print_others(out: Console, others: Sequence[dict[str, Any]]) -> None:
    out.print("\nother languages, by their own simulators and on small inputs; these find no faults and count nothing")
    cells = [(row["op"], row["variant"], row["by"], _error(row), row["why"]) for row in others]
    console.print_table(out, OTHER_COLUMNS, cells, optional=("why",))
    for reason in dict.fromkeys(row["absent"] for row in others if row["absent"]):
        out.print(f"absent: {', '.join(row['variant'] for row in others if row['absent'] == reason)}: {reason}")
    for row in others:
        if row["failed"]:
            out.print(f"WRONG: {row['variant']}: {row['failed']}")


def _resources(found: list[dict[str, Any]], files: Files, on: str) -> dict[str, occupancy.Resources]:
    """By op, of the rows of one variant, what its file's kernels take of a multiprocessor."""
    known = {}
    for row in found:
        file = files.get((row["op"], row["variant"]))
        if row["absent"] or file is None:
            continue
        compiled, resources = occupancy.resources(file, on, sources())
        resources.kernels = occupancy.uses(compiled, row["report"]["kernels"], on)
        known[row["op"]] = resources
    return known


def _print_resources(out: Console, known: occupancy.Resources, on: str) -> None:
    if known.unknown:
        out.print(f"registers and occupancy on {on} are not known: {known.unknown}")
        return
    rows = [
        (
            use.name,
            *map(str, (use.threads, use.registers, use.spilled_bytes, use.shared_bytes, use.blocks_per_multiprocessor)),
            f"{100 * use.occupancy:.0f} %",
            " and ".join(use.limited_by),
        )
        for use in known.kernels
    ]
    if rows:
        console.print_table(out, KERNEL_COLUMNS, rows, right=KERNEL_COLUMNS[1:-1], optional=KERNEL_OPTIONAL)


def _line_cells(line: dict[str, Any]) -> tuple[str, ...]:
    """Of the accesses of one array in one line of the source, by warps."""
    unit, count = ("sectors" if "sectors" in line else "turns"), line["accesses"]
    return (
        f"{line['file']}:{line['line']}",
        line["array"],
        f"{'store' if line['write'] else 'load'} of {line['bytes']} bytes",
        str(count),
        f"{line[unit] / count:.1f} of {line['least'] / count:.1f} {unit}",
        f"{100 - 100 * line['lanes'] / (32 * count):.0f} %",
    )


def _error(row: dict[str, Any]) -> str:
    if row["absent"] or row["failed"]:
        return "absent" if row["absent"] else "failed"
    error = row["error"]
    return "NaN" if error is None else f"{error:.0e}" + ("" if error <= row["bound"] else ", no")


def _cells(row: dict[str, Any], gpu: Gpu) -> tuple[str, ...]:
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
    least_time = roof(row, gpu)
    return (
        row["variant"],
        _error(row),
        str(len(report["faults"])),
        of("sectors"),
        of("turns"),
        f"{100 - 100 * lanes / (32 * accesses):.0f} %" if accesses else "-",
        f"{moved / least:.1f} x {console.format_count(least)}" if least else "-",
        str(sum(kernel["barriers"] for kernel in kernels)),
        f"{console.format_count(1e6 * least_time[0])} {least_time[1]}" if least_time else "-",
    )
