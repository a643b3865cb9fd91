"""Time a training step of batches of all sizes: what does an image cost in each?

The sizes are a regular grid, and both sides of each size at which the engine begins to cut a batch up differently.
Where an image costs over 15 % more than in the batch before, a line says so.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_data_flags, add_record_flags, gpu, options_of, positive, threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("engine")
    add = group.add_argument
    add(
        "-e", "--engine", default="auto", metavar="NAME", help="one that `mnist-cuda engines` lists (default: the best)"
    )
    add("-p", "--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16, fp64 (default: all that it has here)")
    add("-t", "--threads", type=threads, default=0, metavar="N", help="of a host engine (default: one for each core)")
    add("--device", type=gpu, default=0, metavar="N", help="GPU of a CUDA engine (default: %(default)s)")
    text = "sizes from each power of two to the next (default: %(default)s)"
    group.add_argument("--per-octave", type=positive, default=4, metavar="N", help=text)
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_record_flags(group)


def run(args: argparse.Namespace) -> int:
    """Time batches of all sizes."""
    from mnist_cuda.bench import batches

    return batches.command(options_of(batches.BatchesOptions, args))
