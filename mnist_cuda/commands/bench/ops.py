"""Check every variant of the GPU ops against float64, and time it.

Times are with an empty L2 cache (cold) and back to back (warm), against the best that this GPU was measured to do.
A second table shows each kernel's registers, shared memory and occupancy. --sass and --ptx print a variant's code.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import add_record_flags, gpu, options_of, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("--op", default="", metavar="NAME", help="only this one (default: all)")
    text = "images in the batch (default: %(default)s)"
    parser.add_argument("-b", "--batch-size", type=positive, default=256, metavar="N", help=text)
    parser.add_argument("--device", type=gpu, default=0, metavar="N", help="number of the GPU (default: %(default)s)")
    parser.add_argument("--variant", default="", metavar="NAME", help="only this one (default: all)")
    add = parser.add_argument
    add("--peers", nargs="*", default=["triton", "numba"], metavar="NAME",
        help="kernels in other languages: triton, numba or none (default: both)")  # fmt: skip
    add("--peer-python", type=Path, metavar="FILE", help="their interpreter (default: .venv-peers/bin/python or ours)")
    add("--emulate", type=positive, nargs="?", const=2, default=0, metavar="N",
        help="without a GPU: run our rows on the CPU, on N images (default: 2), find their faults and count their "
        "memory accesses")  # fmt: skip
    add("--as", dest="emulate_as", choices=("h200", "t4", "a100", "rtx4090"), default="h200",
        help="whose bound on the time --emulate shows (default: %(default)s)")  # fmt: skip
    add("--list", action="store_true", help="only name the rows and their files; needs neither a GPU nor a compiler")
    code = parser.add_mutually_exclusive_group()
    code.add_argument("--sass", action="store_true", help="print the machine code of --op's --variant (by cuobjdump)")
    code.add_argument("--ptx", action="store_true", help="print its PTX, if the build keeps it")
    add_record_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check and time the ops."""
    from mnist_cuda.bench import ops

    return ops.command(options_of(ops.OpsOptions, args))
