"""Compares what the emulator counts with ncu's counters, for kernels of the ladders on 2 images.

Sectors of global memory, and turns of the banks of shared memory (ncu's wavefronts), by kernel. The emulator counts the
source's accesses; nvcc may leave some out or merge them. Needs a GPU whose counters may be read, ncu and g++.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

from checks.runner import output_of, python, tool

ROWS = (
    ("relu", "naive"),
    ("relu", "float4"),
    ("linear", "naive"),
    ("linear", "coalesced"),
    ("linear", "tiled"),
    ("transpose", "naive"),
    ("transpose", "tiled"),
    ("transpose", "padded"),
    ("conv2d", "naive"),
    ("conv2d", "tiled"),
    ("row_sums", "naive"),
    ("row_sums", "warp"),
    ("log_softmax", "naive"),
)
METRICS = {
    "global read": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global write": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared read": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared write": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}


def bench(op: str, variant: str) -> list[str]:
    """The command that runs one row."""
    return [python(), "-m", "mnist_cuda", "bench", "ops", "-b", "2", "--op", op, "--variant", variant]


def counts_of(row: dict[str, Any]) -> dict[str, Counter[str]]:
    """By kernel, of a row of the emulator."""
    kernels: dict[str, Counter[str]] = {}
    for line in row["report"]["lines"]:
        kind = f"{line['memory']} {'write' if line['write'] else 'read'}"
        kernels.setdefault(line["kernel"].partition("<")[0], Counter())[kind] += line.get(
            "sectors", line.get("turns", 0)
        )
    return kernels


def counted(op: str, variant: str, kernels: list[str]) -> dict[str, Counter[str]]:
    """ncu's, of the first launch of each."""
    names = "regex:^(" + "|".join(kernels) + ")$"
    counting = [tool("ncu"), "--csv", "--page", "raw", "--kernel-name", names, "--launch-count", str(len(kernels))]
    text = output_of([*counting, "--kill", "yes", "--metrics", ",".join(METRICS.values()), *bench(op, variant)])
    lines = text[text.index('"ID"') :]
    found: dict[str, Counter[str]] = {}
    for row in list(csv.DictReader(io.StringIO(lines)))[1:]:  # the first has the units
        name = row["Kernel Name"].partition("(")[0].partition("<")[0].rpartition(" ")[2].rpartition("::")[2]
        values = {kind: int(float(row[metric].replace(",", ""))) for kind, metric in METRICS.items()}
        found.setdefault(name, Counter(values))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record")


def run(args: argparse.Namespace) -> int:
    """Print both counts of each kernel, where there are any."""
    from mnist_cuda.bench import emulate
    from mnist_cuda.bench.record import Record

    record, rows = Record(args.json, busy=True), []
    print(f"{'':52}{'emulator':>10}{'ncu':>10}")
    for op, variant in ROWS:
        ours = counts_of(emulate.rows(op, variant, 2)[0])
        theirs = counted(op, variant, list(ours))
        for kernel, kinds in ours.items():
            for kind in METRICS:
                pair = kinds[kind], theirs.get(kernel, Counter())[kind]
                if any(pair):
                    rows.append({"kernel": kernel, "variant": f"{op} {variant}", "kind": kind, "counts": pair})
                    unit = "sectors" if kind.startswith("global") else "turns"
                    print(f"{kernel + ', ' + kind + ' ' + unit:52.52}{pair[0]:>10}{pair[1]:>10}", flush=True)
    record.write({"metrics": METRICS, "rows": rows})
    return 0
