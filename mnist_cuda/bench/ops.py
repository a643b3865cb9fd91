"""The `bench ops` command: every variant of every GPU op, checked, then timed beside the GPU's best and NVIDIA's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnist_cuda import _native
from mnist_cuda.bench import kernel_use, machine_code, op_peers
from mnist_cuda.bench.competitors import PEER_PYTHON, words
from mnist_cuda.bench.record import Record
from mnist_cuda.engine import _native_errors
from mnist_cuda.engine.gpu_libraries import OP_LIBRARIES, find_libraries
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.machine import gpu, gpu_libraries
from mnist_cuda.run.options import RecordOptions
from mnist_cuda.terminal import console

COLUMNS = ("variant", "cold", "warm", "GB/s", "TFLOP/s", "%roof", "speed-up", "/library", "error", "why")
OPTIONAL = ("why", "error", "GB/s")  # the first to go on a narrow terminal


def measure(op: str, variant: str, batch_size: int, device: int) -> dict[str, Any]:
    """The report: `roofs` (see `roofs_text`) and `rows`, one a variant, plainest first.

    A row's `library_ratio` is its cold time over that of the op's fastest library row of the same `unit` (what
    multiplies: fma or tf32); None if there is none. A row that cannot run here says why in `absent`, and its times and
    `error` are None. `kernels` has what it launches: see native/include/mnist/kernel_use.h.
    op, variant: a name, or empty for all. Raises ValueError for an unknown op, UnavailableError without a usable GPU,
    OutOfMemoryError where the batch does not fit.
    """
    find_libraries(OP_LIBRARIES)
    with _native_errors():
        return _native.bench_ops(op, variant, batch_size, device)


def roofs_text(roofs: dict[str, float]) -> str:
    """What the GPU was measured to do at its best, for people: bytes_per_second, fma_, tf32_ and bf16_flops."""
    text = (
        f"This GPU: {roofs['bytes_per_second'] / 1e9:.0f} GB/s copied, {roofs['fma_flops'] / 1e12:.1f} TFLOP/s in fp32 "
        "multiply-adds"
    )
    if "tf32_flops" not in roofs:
        return f"{text}; tf32 and bf16 were not measured, code for that needs compute capability 8.0"
    return f"{text}; by mma.sync {roofs['tf32_flops'] / 1e12:.0f} in tf32, {roofs['bf16_flops'] / 1e12:.0f} in bf16"


def passes(row: dict[str, Any]) -> bool:
    """Whether the variant is absent or computed what the reference does; a NaN does not pass."""
    return bool(row["absent"] or row["error"] <= row["bound"])


@dataclass(frozen=True, kw_only=True)
class OpsOptions(RecordOptions):
    """What to measure, as `measure` takes it, beside which peers; or whose code to print, as `sass` or as `ptx`."""

    op: str = ""
    variant: str = ""
    batch_size: int = 256
    device: int = 0
    peers: Sequence[str] = ()
    peer_python: Path | None = None
    sass: bool = False
    ptx: bool = False
    emulate: int = 0  # images in the batch; 0: no
    emulate_as: str = "h200"  # the GPU of the roof
    list: bool = False


def command(options: OpsOptions) -> int:
    """`mnist-cuda bench ops`; exit code 1 where a variant is wrong."""
    if options.sass or options.ptx:
        return _print_code(options)
    if options.list:
        from mnist_cuda.bench import op_tables

        return op_tables.command(options.op, options)
    peers, python = op_peers.chosen(words(options.peers)), options.peer_python or PEER_PYTHON
    if options.emulate:
        from mnist_cuda.bench import emulate, op_tables

        emulate.require_compiler()
        files = op_tables.files()
        others = op_peers.simulated_rows(options.op, options.variant, peers, python)
        return emulate.command(
            options.op, options.variant, options.emulate, options.emulate_as, files, options, others=others
        )
    output = Record(options.json, busy=options.busy)
    # A peer's row takes its op's sizes, bound and libraries, so those are measured whatever the variant is.
    of_peer = any(options.variant == v.name for name in peers for v in op_peers.OP_PEERS[name].variants)
    report = measure(options.op, "" if of_peer else options.variant, options.batch_size, options.device)
    found = op_peers.rows(
        report["rows"], report["roofs"], peers, python, options.batch_size, options.device, variant=options.variant
    )
    ops = list(dict.fromkeys(row["op"] for row in report["rows"]))
    rows = sorted([*report["rows"], *found], key=lambda row: ops.index(row["op"]))  # the order within an op stays
    if of_peer:
        rows = [row for row in rows if row["variant"] == options.variant or row["library"]]
    report["rows"] = rows
    if not rows:
        raise UsageError(f"variant '{options.variant}' is unknown; `mnist-cuda bench ops --list` lists all")
    if output:
        output.write(report, gpu=gpu(), libraries=gpu_libraries())
    if output.on_stdout:
        return 0 if all(map(passes, rows)) else 1
    out = console.make_console()
    out.print(
        f"{roofs_text(report['roofs'])}. Times in us. Of cold times: %roof is the least time that these rates allow "
        "over it, speed-up is over the first row, /library the multiple of the fastest library row's time in the same "
        "arithmetic."
    )
    for op in (op for op in ops if any(row["op"] == op for row in rows)):
        ours = [row for row in rows if row["op"] == op]
        out.print(f"\n{op}, {ours[0]['shape']}")
        shown = [cells(row, ours[0]) for row in ours]
        console.print_table(out, COLUMNS, shown, right=COLUMNS[1:-1], optional=OPTIONAL)
        for reason in dict.fromkeys(row["absent"] for row in ours if row["absent"]):
            out.print(f"absent: {', '.join(row['variant'] for row in ours if row['absent'] == reason)}: {reason}")
        for row in ours:
            if not passes(row):
                out.print(f"WRONG: {row['variant']} is off by {row['error']:.1e}, at most {row['bound']:.0e} is right")
        kernel_use.print_table(out, "variant", ((row["variant"], row["kernels"]) for row in ours))
    return 0 if all(map(passes, rows)) else 1


def _print_code(options: OpsOptions) -> int:
    """The code of a variant: of the kernels that it launches, or without a GPU of all in its source file."""
    if not (options.op and options.variant):
        raise UsageError("--sass and --ptx print one variant's code: name it by --op and --variant")
    if reason := _native.cuda_status()["reason"]:
        console.print_warning(
            f"{reason}; so this is all of the variant's source file, not only the kernels that it launches"
        )
        symbols, capability = machine_code.kernels_of(options.op, options.variant), ""
    else:
        rows = measure(options.op, options.variant, 1, options.device)["rows"]
        if not rows:
            raise UsageError(f"op '{options.op}' has no variant '{options.variant}' of ours")
        if rows[0]["absent"]:
            raise UnavailableError(f"{options.variant} cannot run here: {rows[0]['absent']}")
        if rows[0]["library"]:
            raise UsageError(f"{options.variant} is a library's; only our own code is here to print")
        symbols = list(dict.fromkeys(kernel["symbol"] for kernel in rows[0]["kernels"]))
        capability = _native.gpus()[options.device]["compute_capability"]
    print(machine_code.ptx(symbols) if options.ptx else machine_code.sass(symbols, capability), end="")
    return 0


def cells(row: dict[str, Any], first: dict[str, Any]) -> tuple[str, ...]:
    """A row of the report under COLUMNS. first: the row that `speed-up` is over."""
    if row["absent"]:
        return row["variant"], *["-"] * (len(COLUMNS) - 2), "absent, see below"
    seconds, ratio = row["cold_us"] / 1e6, row["library_ratio"]
    return (
        row["variant"],
        console.format_count(row["cold_us"]),
        console.format_count(row["warm_us"]),
        console.format_count(row["bytes"] / seconds / 1e9),
        console.format_count(row["flops"] / seconds / 1e12),
        "-" if row["percent_of_roof"] is None else f"{row['percent_of_roof']:.0f}",
        f"{first['cold_us'] / row['cold_us']:.1f}",
        "-" if ratio is None else console.format_count(ratio),
        f"{row['error']:.0e}",
        row["why"],
    )
