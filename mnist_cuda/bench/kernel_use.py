"""What kernels take of a multiprocessor, as a table: registers, shared memory, blocks that fit, occupancy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from mnist_cuda.terminal import console

Kernel = dict[str, Any]  # of _native: native/include/mnist/kernel_use.h; of a peer: what it knows of these

COLUMNS = ("kernel", "blocks", "threads", "registers", "local B", "shared B", "blocks/SM", "occupancy")
OPTIONAL = ("local B", "blocks", "threads")  # the first to go on a narrow terminal
PRECISIONS = ("fp64", "fp32", "tf32", "bf16")  # of native/include/mnist/engine.h, in order
LONGEST_NAME = 60  # letters; a library's can have hundreds


def _cells(kernel: Kernel) -> tuple[str, ...]:
    name = re.sub(r"fused::Policy<\(Precision\)(\d)>", lambda m: PRECISIONS[int(m[1])], str(kernel["name"]))
    occupancy = kernel.get("occupancy")

    def number(key: str) -> str:
        value = kernel.get(key)
        return "-" if value is None else str(value)

    return (
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}...",
        str(math.prod(kernel["grid"])),
        str(math.prod(kernel["block"])),
        *map(number, ("registers", "local_bytes", "shared_bytes", "blocks_per_multiprocessor")),
        "-" if occupancy is None else f"{100 * occupancy:.0f} %",
    )


def print_table(out: Console, heading: str, kernels: Iterable[tuple[str, Iterable[Kernel]]]) -> None:
    """A row for each kernel, behind the name of what launches it under `heading`; nothing where there is none."""
    rows = []
    for name, launched in kernels:
        for k, kernel in enumerate(launched):
            rows.append(("" if k else name, *_cells(kernel)))
    if rows:
        console.print_table(out, (heading, *COLUMNS), rows, right=COLUMNS[1:], optional=OPTIONAL)
