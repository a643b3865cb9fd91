"""Judge a kernel of your own: run it in an emulator, without a GPU, and say whether it is right, or where it is wrong.
A judged file runs with your rights, in a process that is no sandbox: judge only files that you trust.

The file has a launcher, the host function that starts the kernel, with the name and the parameters of one of ours, such
as linear_forward; `mnist-cuda exercise start` writes one. It runs on cases of many sizes, on the GPU if there is one,
and on the CPU, in the emulator. The command says whether every number is right, where the memory is misused, by file
and line, what the accesses cost, and what to try next. A GPU also gives times, beside those of the ladder's rows. The
first and the last line are the verdict: RIGHT; WRONG, for a number or an access; or NOT JUDGED, for what the emulator
cannot do.

A .py file has a function of that name, which takes the arrays alone: linear_forward(y, x, w, bias). What it imports
decides what runs it: Triton, Numba, CuPy or PyTorch on the GPU; without one Triton's interpreter, Numba's simulator or
PyTorch on the CPU; else NumPy.

Exit codes: 0 right; 1 wrong, memory misused, the goal missed, or it does not compile; 2 no launcher; 4 no g++, a GPU
but no nvcc, or a package that is not here; 8 not judged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = (
    "mnist-cuda judge coalesce.cu",
    "mnist-cuda judge --watch coalesce.cu",
    "mnist-cuda judge --as t4 coalesce.cu",
    "mnist-cuda judge --board linear.cu",
    "mnist-cuda judge --json one.cu two.cu",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a .cu or .py file")
    add = parser.add_argument
    add("--as", dest="on", choices=("h200", "t4", "a100", "rtx4090"), default="",
        help="also compile a .cu file by nvcc for this GPU, and give registers and occupancy")  # fmt: skip
    add("--emulate", action="store_true", help="use the emulator alone, even where there is a GPU")
    add("--board", action="store_true",
        help="print of a right kernel only its times on the GPU between those of the ladder's rows")  # fmt: skip
    add("--watch", action="store_true", help="judge again after each save, until Ctrl-C")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object per file, each on a line")


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.judge import judging

    return judging.command(args.files, args.json, args.on, args.emulate, args.board, args.watch)
