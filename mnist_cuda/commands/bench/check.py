"""Check one training step of engines, and of PyTorch or JAX, against the float64 reference.

The step starts from the same weights and batch everywhere; its loss, activations and gradients are compared. Exit code
1 if an error is above its bound, which the table shows. Lists take commas or spaces.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import (
    RUN,
    add_data_flags,
    add_json_flag,
    add_own_flag,
    add_peer_python_flag,
    gpu,
    non_negative,
    options_of,
    positive,
    run_path,
    threads,
)

EXAMPLES = (
    "mnist-cuda bench check",
    "mnist-cuda bench check -e cpu -b 256 --peers torch",
    "mnist-cuda bench check --weights latest",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("-e", "--engines", nargs="+", default=["auto"], metavar="NAME", help="our engines (default: auto, the best)")
    add("--peers", nargs="*", default=[], metavar="NAME", help="also torch or jax (default: neither)")
    add_peer_python_flag(group)
    add_own_flag(group)
    add("-p", "--precision", metavar="P", help="fp32, tf32, bf16 or fp64 (default: each engine's first)")
    add("-t", "--threads", type=threads, default=0, metavar="N", help="threads of CPU engines (default: one per core)")
    add("--device", type=gpu, default=0, metavar="N", help="number of the GPU (default: %(default)s)")
    group = parser.add_argument_group("step")
    add = group.add_argument
    add("-b", "--batch-size", type=positive, default=64, metavar="N", help="images in the batch (default: %(default)s)")
    add(
        "-s",
        "--seed",
        type=non_negative,
        default=0,
        metavar="N",
        help="seed of weights and batch (default: %(default)s)",
    )
    add("--weights", type=run_path, metavar="RUN", help=f"take the weights of a run, not of the seed; RUN: {RUN}")
    add_data_flags(parser, "auto")
    add_json_flag(parser.add_argument_group("output"))


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.bench import check

    return check.command(options_of(check.CheckOptions, args))
