"""Time a training step at batch sizes from 1 to all images, and show the time per image.

The sizes form a regular grid, plus both sides of each size at which the engine starts to divide a batch differently.
A line names each size at which an image costs over 15 % more than at the size before.
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
    add("-p", "--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16, fp64 (default: all of the engine)")
    add("-t", "--threads", type=threads, default=0, metavar="N", help="threads of a CPU engine (default: one per core)")
    add("--device", type=gpu, default=0, metavar="N", help="number of the GPU (default: %(default)s)")
    text = "sizes per doubling of the batch (default: %(default)s)"
    group.add_argument("--per-octave", type=positive, default=4, metavar="N", help=text)
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_record_flags(group)


def run(args: argparse.Namespace) -> int:
    """Time batches of all sizes."""
    from mnist_cuda.bench import batches

    return batches.command(options_of(batches.BatchesOptions, args))
