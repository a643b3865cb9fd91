"""Time a training step of our engines and of other frameworks, in turns, each in its own process.

Lists take commas or spaces.
"""

from __future__ import annotations

import argparse

from mnist_cuda.bench.variants import words_of_peers
from mnist_cuda.commands.flags import (
    add_data_flags,
    add_peer_python_flag,
    add_rare_group,
    add_record_flags,
    options_of,
    positive,
    rate,
    threads,
)
from mnist_cuda.commands.parser import add_commands
from mnist_cuda.errors import UsageError

COMMANDS = {
    "accuracy": "test accuracies against another framework's",
    "time-to-accuracy": "training time to a test accuracy",
    "check": "a training step against float64",
    "around": "start-up, initial values, statistics and evaluation",
    "ops": "every variant of every GPU op",
    "share": "one row of your card or processor, for a table of cards",
}

EXAMPLES = (
    "mnist-cuda bench --engines cpu --peers",
    "mnist-cuda bench -e fused -b 64 1024 --peers torch:graph",
    "mnist-cuda bench -e fused --placement device host",
    "mnist-cuda bench -e fused --all-batches",
    "mnist-cuda bench -e fused --models 16 64",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    text = "our engines, only one with --models or --all-batches (default: auto, the best)"
    add("-e", "--engines", nargs="+", default=["auto"], metavar="NAME", help=text)
    add(
        "--peers",
        nargs="*",
        default=["torch", "jax"],
        metavar="NAME",
        help="other frameworks (default: torch jax; `--peers` without a name: none). `torch`: its usual variants. "
        "`torch:WORD:...`: the simplest variant that has all these words. "
        f"Words {words_of_peers()}",
    )
    group = parser.add_argument_group("measurement")
    add = group.add_argument
    add("-b", "--batch-size", nargs="+", metavar="N",
        help="images per step (default: 64 256 1024; with --models 64 256)")  # fmt: skip
    add("-p", "--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16, fp64 (default: each engine's first)")
    add("--placement", nargs="+", choices=("device", "host"), default=["device"], metavar="PLACE",
        help="memory of the training images: device, host, or both in two tables (default: device)")  # fmt: skip
    add("--gpus", nargs="+", type=positive, default=[1], metavar="N",
        help="GPUs that share a step, one row per number; for fused, torch and jax (default: 1)")  # fmt: skip
    text = "CPU threads per competitor (default: one per core)"
    add("-t", "--threads", type=threads, default=0, metavar="N", help=text)
    text = "timed groups of steps, each at least 50 ms long (default: %(default)s)"
    add("--blocks", type=positive, default=20, metavar="N", help=text)
    text = "stop timing a competitor after this time, but not before three groups (default: %(default)g)"
    add("--seconds", type=rate, default=10.0, metavar="S", help=text)
    group = parser.add_argument_group("other questions, about one engine").add_mutually_exclusive_group()
    add = group.add_argument
    add("--models", nargs="+", metavar="N",
        help="time a step per model when N models train at once, by fused and in other frameworks; our engine is also "
        "timed with as many as fill the GPU, and one after another")  # fmt: skip
    add("--all-batches", action="store_true",
        help="the time per image at batch sizes from 1 to all images: a regular grid, plus both sides of each size at "
        "which the engine starts to divide a batch differently; in all its precisions, without peers")  # fmt: skip
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_record_flags(group)
    group = add_rare_group(parser)
    add = group.add_argument
    add_peer_python_flag(group)
    add("--per-octave", type=positive, default=4, metavar="N",
        help="how many sizes --all-batches takes between one and its double (default: %(default)s)")  # fmt: skip
    text = "competitors to set up at the same time; more are faster, but disturb each other (default: %(default)s)"
    add("--set-ups", type=positive, default=1, metavar="N", help=text)
    text = "give up on a competitor whose set-up, such as compilation, takes longer (default: %(default)g)"
    add("--set-up-seconds", type=rate, default=600.0, metavar="S", help=text)
    add_commands(parser, __name__, COMMANDS, title="other benchmarks", metavar="[WHAT]")


# What a flag that asks another question has no use for.
UNUSED = {
    "models": ("placement", "gpus", "threads", "per_octave"),
    "all_batches": ("peers", "peer_python", "batch_size", "placement", "gpus", "blocks", "seconds", "set_ups",
                    "set_up_seconds"),
}  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Compare engines and peers, or answer another question."""
    for asked, unused in UNUSED.items():
        for name in unused:
            if {asked, name} <= args.given:
                flags = (f"--{word.replace('_', '-')}" for word in (asked, name))
                raise UsageError(f"{' does not use '.join(flags)}: leave it out")
    if args.all_batches:
        from mnist_cuda.bench import batches

        return batches.command(options_of(batches.BatchesOptions, args))
    args.batch_size = args.batch_size or ["64", "256", *([] if args.models else ["1024"])]
    if args.models:
        from mnist_cuda.bench import models

        return models.command(options_of(models.ModelsOptions, args))
    from mnist_cuda.bench import step

    return step.command(options_of(step.BenchOptions, args))
