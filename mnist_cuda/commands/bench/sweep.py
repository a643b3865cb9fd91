"""Time a training step of one of many models, trained side by side or in turn, here and in other frameworks.

Competitors take turns, each in its own process. Lists take commas or spaces.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.flags import add_block_flags, add_data_flags, add_record_flags, options_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("-e", "--engines", nargs=1, default=["auto"], metavar="NAME", help="our engines (default: auto, the best)")
    add("--models", nargs="+", default=["16", "64"], metavar="N",
        help="models at once; ours also with as many as fill the GPU (default: 16 64)")  # fmt: skip
    add("--peers", nargs="*", default=["torch", "jax"], metavar="NAME",
        help="torch, jax, jax:vmap:products, ... or none (default: torch jax)")  # fmt: skip
    add("--peer-python", type=Path, metavar="FILE", help="their interpreter (default: .venv-peers/bin/python or ours)")
    group = parser.add_argument_group("measurement")
    add = group.add_argument
    add("-b", "--batch-sizes", nargs="+", default=["64", "256"], metavar="N", help="default: 64 256")
    add("-p", "--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16 (default: the engine's first)")
    add_block_flags(group)
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_record_flags(group)


def run(args: argparse.Namespace) -> int:
    """Compare a model's step among many."""
    from mnist_cuda.bench import sweep

    return sweep.command(options_of(sweep.SweepBenchOptions, args))
