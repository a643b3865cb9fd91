"""docs/ladder.md: every technique with its file, its command and its measured time.

The rows of the ops come from the tables in native/gpu and in mnist_cuda/bench/op_peers.py, the times from records of
`mnist-cuda bench ops`, and why a row is faster than the one above it from the comment above its line of the table. Rows
without code of ours have the file that calls them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pages.records import ROOT, loads, read_records

from mnist_cuda.bench import op_tables
from mnist_cuda.bench.op_tables import LADDERS, StaleError, Technique
from mnist_cuda.terminal.console import format_count

PAGE = ROOT / "docs" / "ladder.md"
RECORDS = ROOT / "docs" / "records" / "ops"  # of two records with a row the last by name counts

START = """# The ladder

The techniques of CUDA courses as code that runs here: the file behind each link, the command, and the time.
{measured}
Times are in microseconds, with nothing of the op in the L2 cache; in brackets, as a multiple of the fastest library's in the same arithmetic.
Rows without a time are newer than the records, or the machine lacked something that they need.
Ratios in a row's text, such as "2.4x at 65536", were measured once on an H200.

`mnist-cuda bench ops` runs every row, `--op` and `--variant` select some, `--sass` and `--ptx` print a row's code.
It checks each output against float64, and also prints registers, shared memory and occupancy.
Below the table of an op, *step by step* says why each of our rows is faster than the one above it, or why not.
The header of an op, such as [linear.h](../native/gpu/kernels/linear/linear.h), explains its rows; the [glossary](glossary.md#the-ladder) has the words.
"""  # noqa: E501

# What is not an op: technique, file, command that shows it.
AROUND = (
    ("A first kernel, one thread per output", "native/gpu/kernels/relu/naive.cu",
     "mnist-cuda bench ops --op relu --variant naive"),
    ("Streams, events that one waits for", "native/gpu/cuda/stream.h",
     "mnist-cuda train --engine cudnn --placement host"),
    ("Pinned memory, copies beside the computation", "native/gpu/engines/host_feed.h",
     "mnist-cuda train --engine fused --placement host"),
    ("Two kernels side by side, in two streams", "native/gpu/engines/layerwise.cpp",
     "mnist-cuda train --engine layerwise"),
    ("CUDA graphs", "native/gpu/cuda/graph.h",
     "mnist-cuda train --engine naive"),
    ("The same launches by the host", "native/gpu/cuda/check.h",
     "MNIST_CUDA_SYNC=1 mnist-cuda train --engine naive"),
    ("Times on the GPU's clock", "native/gpu/profile/event_clock.h",
     "mnist-cuda profile --engine naive"),
    ("A timeline for Perfetto", "mnist_cuda/bench/trace.py",
     "mnist-cuda profile --engine fused --trace trace.json"),
    ("NVTX ranges for Nsight", "native/gpu/profile/nvtx.h",
     "nsys profile --trace=cuda,nvtx mnist-cuda profile --engine naive"),
    ("cuBLASLt with epilogues", "native/gpu/libraries/cublas.h",
     "mnist-cuda bench ops --op linear_relu --variant cublasLt"),
    ("cuDNN, compiled for the shape", "native/gpu/libraries/cudnn_graph.h",
     "mnist-cuda bench ops --op batch_norm_forward --variant cudnn"),
    ("mma.sync from registers", "native/gpu/kernels/device/mma.cuh",
     "grep HMMA <(mnist-cuda bench ops --op linear --variant tensor_cores --sass)"),
    ("Asynchronous copies to shared memory by cp.async", "native/gpu/kernels/device/copies.cuh",
     "grep LDGSTS <(mnist-cuda bench ops --op linear --variant tensor_cores --sass)"),
    ("Copies by the copy engine, in bulk", "native/gpu/kernels/device/copies.cuh",
     "grep UBLKCP <(cuobjdump -sass $MODULE)"),
    ("wgmma from shared memory", "native/gpu/kernels/device/wgmma.cuh",
     "grep HGMMA <(cuobjdump -sass $MODULE)"),
    ("Warps with roles, barriers between them", "native/gpu/kernels/device/barriers.cuh",
     "grep SYNCS <(cuobjdump -sass $MODULE)"),
    ("Launches that begin before the one before ends", "native/gpu/kernels/device/dependent_launch.cuh",
     "grep -e ACQBULK -e PREEXIT <(cuobjdump -sass $MODULE)"),
    ("Clusters of blocks, distributed shared memory", "native/gpu/kernels/histogram/cluster.cu",
     "mnist-cuda bench ops --op histogram --variant cluster"),
    ("Kernels fused into six of a step", "native/gpu/engines/fused/steps.h",
     "mnist-cuda profile --engine fused"),
)  # fmt: skip

Row = dict[str, Any]


def ladders() -> dict[str, list[Technique]]:
    """The rows of each op, in the order of the benchmark."""
    return op_tables.ladders(ROOT, ROOT / "mnist_cuda" / "peers")


# ---- the page --------------------------------------------------------------------------------------------------------


def link(text: str, path: Path) -> str:
    """A link from docs/."""
    return f"[{text}](../{path.relative_to(ROOT).as_posix()})"


def time_of(row: Row | None) -> str:
    """Cold microseconds, and the multiple of the library's."""
    if row is None:
        return ""
    if not row["error"] <= row["bound"]:
        raise StaleError(f"{row['op']} {row['variant']} is wrong in the records")
    ratio = row["library_ratio"]
    of_library = f" ({format_count(ratio)}x)" if ratio and not row["library"] else ""
    return format_count(row["cold_us"]) + of_library


def measured_rows(records: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """The rows of the records that ran, by op and variant."""
    return {(row["op"], row["variant"]): row for record in records for row in record["rows"] if not row["absent"]}


def op_section(op: str, techniques: list[Technique], rows: dict[tuple[str, str], Row]) -> Iterator[str]:
    """The table of an op: our rows, then those of the records that are libraries'."""
    measured = {variant: row for (of, variant), row in rows.items() if of == op}
    shape = next((row["shape"] for row in measured.values()), "")
    yield f"\n### {op}\n"
    yield f"{shape and shape + '; '}`mnist-cuda bench ops --op {op}`.\n"
    yield "| row | technique | µs |\n| --- | --- | ---: |"
    named = {technique.name for technique in techniques}
    for technique in techniques:
        time = time_of(measured.get(technique.name))
        yield f"| {link(f'`{technique.name}`', technique.file)} | {technique.why} | {time} |"
    for name, row in measured.items():
        if name not in named and row["library"]:
            yield f"| {link(f'`{name}`', ROOT / LADDERS)} | {row['why']} | {time_of(row)} |"
    steps = [f"- `{above.name}` to `{row.name}`: {row.step}" for above, row in pairwise(techniques) if row.step]
    if steps:
        yield "\nStep by step:\n"
        yield from steps


def around_section() -> Iterator[str]:
    """The techniques that are no op."""
    yield "\n## Around the ops\n"
    yield "`MODULE` is the compiled module, whose machine code `cuobjdump` prints:"
    yield "`MODULE=$(python -c 'from mnist_cuda import _native; print(_native.__file__)')`."
    yield "The row of `nsys` was not run.\n"
    yield "| technique | command |\n| --- | --- |"
    for technique, file, command in AROUND:
        if not (ROOT / file).is_file():
            raise StaleError(f"{file} is not there any more")
        yield f"| {link(technique, ROOT / file)} | `{command}` |"


LEFT_OUT = """
## Not worth code here

Times in microseconds, measured once, on an H200 on 2026-11-22.

- **Unified memory** moves a page when it is touched.
  Reading images that the host wrote took 6564; copying them first, as the engines do once, and reading took 1068.
- **Dynamic parallelism** launches kernels from a kernel, 10.0 per launch.
  A step's launches are known beforehand, so a CUDA graph holds them, 0.74 each; from the host it is 3.54.
- **cuBLASXt** spreads products of large host arrays over GPUs.
  fc1's product at B=256 took 1041 that way, and 26.4 with cuBLAS where the arrays are.
- **MIG** divides a GPU into up to seven.
  A program just sees a smaller GPU; it was not measured.
"""


def measured(records: Sequence[Row]) -> str:
    """Where the times come from."""
    if not records:
        return "The present code has not been timed yet."
    folder = RECORDS.relative_to(ROOT / "docs").as_posix()
    of = " and ".join(sorted({f"{record['machine']['gpu']['name']}, {record['started'][:10]}" for record in records}))
    return f"The times are from one {of} ([records]({folder})).{loads(records)}"


def page() -> str:
    """The whole page."""
    records = read_records(RECORDS)
    lines = [START.format(measured=measured(records)), "## The ops"]
    for op, techniques in ladders().items():
        lines += op_section(op, techniques, measured_rows(records))
    return "\n".join([*lines, *around_section(), LEFT_OUT])
