"""When the thread blocks of a step of engine `fused` pass the trace points of its kernels, and what lies between these.

For each phase, by the clock of the GPU: when the first block, the median and the last one pass each point, in us after
the step began; shared/trace.cuh of the kernels says what the points are. Then, by the multiprocessors' clocks:
the cycles of a block from each point of a role to the next one. Medians over eight steps of a graph of 32.
--raw keeps every passage: batch size, step, phase, point, block, ns, cycles, multiprocessor.

For a machine with a GPU where the project is built. DIR, by default build/trace, is the folder of a build with trace
points (CMake's MNIST_TRACE), which make a step slower; what is missing or older than the sources there is built with
the options of build/. Exits with 4 if something is missing.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

from checks.runner import BUILD, Problem, build_with

PHASES = ("conv_forward", "fc1_forward", "head", "fc1_backward", "conv2_backward", "update")
WITH_FC = ("conv_forward", "fc", "conv2_backward", "update")  # fc's points have fc1_forward's number
WAITED, FIRST_OF_ITEMS = 1, 16  # points
ROLES = {0: (40,), 3: (48,), 4: (32, 48)}  # where the points of a phase's other roles begin, by their TracedItems

Passages = dict[tuple[int, int], dict[tuple[int, int], tuple[int, int]]]  # [phase, point][step, block]: ns and cycles


def parse(lines: list[str]) -> Passages:
    """What the program prints below its first line."""
    passages: Passages = defaultdict(dict)
    for line in lines:
        step, phase, point, block, ns, cycles, _ = map(int, line.split())
        passages[phase, point][step, block] = ns, cycles
    return passages


def times(passages: Passages) -> list[str]:
    """A line for each point of a phase: when blocks pass it after the first one has waited for conv_forward's start."""
    steps = sorted({step for step, _ in passages[0, WAITED]})
    starts = {step: min(ns for (k, _), (ns, _) in passages[0, WAITED].items() if k == step) for step in steps}
    names = [*PHASES[:1], PHASES[1] if any(phase == 2 for phase, _ in passages) else WITH_FC[1], *PHASES[2:]]
    lines = []
    for phase, point in sorted(key for key in passages if key[1] < FIRST_OF_ITEMS):
        of_steps = [
            [(ns - starts[step]) / 1000 for (k, _), (ns, _) in passages[phase, point].items() if k == step]
            for step in steps
        ]
        first, middle, last = (median(of(us) for us in of_steps if us) for of in (min, median, max))
        blocks = max(map(len, of_steps))
        lines.append(f"{names[phase]:14} {point:2}  {first:8.2f} {middle:8.2f} {last:8.2f}  {blocks} blocks")
    return lines


def cycles(passages: Passages) -> list[str]:
    """A line for each pair of points of a role that follow each other: median, tenth and ninetieth percentile."""
    lines = []
    for (phase, point), (same, following) in pairwise(sorted(key for key in passages if key[1] >= FIRST_OF_ITEMS)):
        if phase != same or any(point < first <= following for first in ROLES.get(phase, ())):
            continue
        before, after = passages[phase, point], passages[phase, following]
        taken = sorted(after[at][1] - clock for at, (_, clock) in before.items() if at in after)
        if taken:
            low, high = taken[len(taken) // 10], taken[len(taken) * 9 // 10]
            lines.append(f"{PHASES[phase]:14} {point:2} to {following:2}  {median(taken):8.0f}  {low} to {high}")
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("precision", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("batch", type=int, nargs="+")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--trace", type=Path, default=BUILD / "trace", metavar="DIR")
    parser.add_argument("--raw", type=Path, metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Build, trace and print; the exit code."""
    from mnist_cuda.data.dataset import load
    from mnist_cuda.machine import gpu

    build_with("MNIST_TRACE", args.trace, "trace_step")
    images, labels, *_ = load(data_dir=args.data_dir).arrays
    data = struct.pack("<q", len(labels)) + images.tobytes() + labels.tobytes()
    card = gpu()
    name = card["name"] if card else "a GPU"
    raw: list[str] = []
    for batch in args.batch:
        command = [args.trace / "trace_step", args.precision, str(batch)]
        done = subprocess.run(command, input=data, capture_output=True, check=False)
        if done.returncode:
            raise Problem(done.stderr.decode().strip())
        (_, middle, least, most), *lines = (line.split() for line in done.stdout.decode().splitlines())
        rows = [" ".join(line) for line in lines]
        raw += [f"{batch} {row}" for row in rows]
        passages = parse(rows)
        us = f"{middle} us a step with trace points, {least} to {most}"
        print(f"fused {args.precision}, {batch} images: {us}, {name}")
        print("phase point: us when the first block passes it, the median one, the last one")
        print(*times(passages), "phase points: cycles between them, of most blocks", *cycles(passages), sep="\n")
    if args.raw:
        args.raw.write_text("\n".join(raw) + "\n")
    return 0
