"""Check every variant of the GPU ops against float64 and time it.

It is timed with an empty L2 cache (cold) and back to back (warm), against the best that this GPU was measured to do.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_json_flag, gpu, options_of, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("--op", default="", metavar="NAME", help="this one only (default: all)")
    text = "images (default: %(default)s)"
    parser.add_argument("-b", "--batch-size", type=positive, default=256, metavar="N", help=text)
    parser.add_argument("--device", type=gpu, default=0, metavar="N", help="GPU (default: %(default)s)")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Check and time the ops."""
    from mnist_cuda.bench import ops

    return ops.command(options_of(ops.OpsOptions, args))
