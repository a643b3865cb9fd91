"""Time a training step of our engines and of other frameworks, which take turns, each in its own process.

Lists take commas or spaces.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.bench.peers import words_of_peers
from mnist_cuda.commands.flags import add_block_flags, add_data_flags, add_record_flags, options_of, positive, threads
from mnist_cuda.commands.parser import add_commands

COMMANDS = {
    "accuracy": "test accuracies against another framework's",
    "time-to-accuracy": "training time to a test accuracy",
    "batches": "the time per image over the batch size",
    "ops": "every variant of every GPU op",
    "sweep": "the time per step and model when many models train at once",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("-e", "--engines", nargs="+", default=["auto"], metavar="NAME", help="our engines (default: auto, the best)")
    add(
        "--peers",
        nargs="*",
        default=["torch", "jax"],
        metavar="NAME",
        help="other frameworks (default: torch jax; none after --peers alone). `torch`: its usual variants. "
        "`torch:WORD:...`: the simplest variant that has all these words (docs/peers.md explains them). "
        f"Words {words_of_peers()}",
    )
    add("--peer-python", type=Path, metavar="FILE", help="their interpreter (default: .venv-peers/bin/python or ours)")
    group = parser.add_argument_group("measurement")
    add = group.add_argument
    add("-b", "--batch-sizes", nargs="+", default=["64", "256", "1024"], metavar="N", help="default: 64 256 1024")
    add("-p", "--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16, fp64 (default: each engine's first)")
    add("--data", nargs="+", choices=("device", "host"), default=["device"], metavar="PLACE",
        help="memory of the training images: device, host, or both in two tables (default: device)")  # fmt: skip
    add("--gpus", nargs="+", type=positive, default=[1], metavar="N",
        help="GPUs that share a step, one row per number; for fused, torch and jax (default: 1)")  # fmt: skip
    add("-t", "--threads", type=threads, default=0, metavar="N", help="CPU threads of each (default: one per core)")
    add_block_flags(group)
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_record_flags(group)
    add_commands(parser, __name__, COMMANDS, title="other benchmarks", metavar="[WHAT]")


def run(args: argparse.Namespace) -> int:
    """Compare engines and peers."""
    from mnist_cuda.bench import compare

    return compare.command(options_of(compare.BenchOptions, args))
