"""`mnist-cuda bench --all-batches`: what an image costs in a training step, over the size of the batch.

Larger batches should never cost more an image. An engine that cuts a batch up differently from some size on may
break that rule there: so both sides of each such size are timed, and a regular grid between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnist_cuda.bench.competitors import some_words, the_engine
from mnist_cuda.bench.record import Record
from mnist_cuda.engine import Engine
from mnist_cuda.engine.timing import Summary, summarise, time_steps
from mnist_cuda.errors import OutOfMemoryError
from mnist_cuda.machine import gpu
from mnist_cuda.run.options import DataOptions, RecordOptions
from mnist_cuda.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

CLOCK = "wall time of all steps of a call, resident data: batch load, forward, backward, update and zero grad"
BLOCKS, BLOCK_SECONDS = 5, 0.01  # of each size; a graph's first launches and the kernels' start are not in them
RISE = 1.15  # times the batch before's cost of an image: more is named


def batch_sizes(thresholds: Iterable[int], most: int, per_octave: int) -> list[int]:
    """2 to the power k / `per_octave`, rounded, and both sides of each of `thresholds`; at most `most`, ascending."""
    grid = {round(2 ** (k / per_octave)) for k in range(math.ceil(math.log2(most) * per_octave))}
    sides = {size + by for size in thresholds for by in (-1, 0)}
    return sorted(size for size in grid | sides | {most} if 1 <= size <= most)


@dataclass(frozen=True)
class Cost:
    """Microseconds a step of `batch_size` images takes, over the blocks."""

    batch_size: int
    us: Summary

    def an_image(self) -> float:
        """Microseconds, median."""
        return self.us.median / self.batch_size


def measure(engine: Engine, batch_size: int) -> Cost:
    """Time steps of one size on an engine that has its data set: what allocates and records graphs is not in it."""
    rng = np.random.default_rng(0)

    def seconds(steps: int) -> float:
        order = rng.integers(0, engine.dataset_size, steps * batch_size, dtype=np.int32)
        return time_steps(engine, order, batch_size, 0.01).seconds

    seconds(1)
    step = min(seconds(1) for _ in range(3))
    steps = max(1, math.ceil(BLOCK_SECONDS / step))
    for _ in range(2):  # records the graphs of so many steps; the first call is made in pieces that double
        seconds(steps)
    return Cost(batch_size, summarise([1e6 * seconds(steps) / steps for _ in range(BLOCKS)]))


def rises(costs: Sequence[Cost]) -> list[tuple[Cost, Cost]]:
    """Neighbours of which the larger batch costs more than RISE times as much an image."""
    return [(before, cost) for before, cost in itertools.pairwise(costs) if cost.an_image() > RISE * before.an_image()]


def rises_said(costs: Sequence[Cost]) -> list[str]:
    """A sentence for each of the rises, without capital and full stop; or one that there is none."""
    return [
        f"of {cost.batch_size} images each costs {100 * (cost.an_image() / before.an_image() - 1):.0f} % more "
        f"than of {before.batch_size}"
        for before, cost in rises(costs)
    ] or [f"in no batch does an image cost over {100 * RISE - 100:.0f} % more than in the one before"]


@dataclass(frozen=True, kw_only=True)
class BatchesOptions(DataOptions, RecordOptions):
    """Which engine, in which precisions; None is all that it has here. per_octave: sizes from one to its double."""

    engines: Sequence[str] = ("auto",)
    precisions: Sequence[str] | None = None
    per_octave: int = 4
    threads: int = 0


def command(options: BatchesOptions) -> int:
    output = Record(options.json, busy=options.busy)
    info = the_engine(options.engines, "--all-batches")
    here = [name for name in info.precisions if name not in info.unavailable_precisions]
    precisions = some_words("--precisions", options.precisions or here or info.precisions)  # or the engine says why
    engines = [Engine(info.name, name, threads=options.threads) for name in precisions]
    data = options.load()
    out = console.make_console()
    estimate = console.Estimate(out, enabled=not output.on_stdout)
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    while engines:
        engine = engines.pop(0)  # and with the next one its arrays of the largest batch go
        engine.set_dataset(data.train_images, data.train_labels)
        engine.init_parameters(0)
        sizes = batch_sizes(engine.batch_thresholds(), engine.dataset_size, options.per_octave)
        costs = []
        with console.LiveLine(out, enabled=not output.on_stdout) as live:
            for done, size in enumerate(sizes):
                live.show(done / len(sizes), f"{info.name}, {engine.precision}: {size} images a step")
                try:
                    costs.append(measure(engine, size))
                except OutOfMemoryError as error:  # the larger ones would not fit either
                    faults.append(f"{info.name}, {engine.precision}: none of {size} images or more: {error}")
                    break
                blocks = (max(BLOCK_SECONDS, 1e-6 * costs[0].an_image() * larger) for larger in sizes)
                estimate.say(len(precisions) * BLOCKS * sum(blocks))
        rows += [{"engine": info.name, "precision": engine.precision} | asdict(cost) for cost in costs]
        if not output.on_stdout:
            _print(out, f"{info.name}, {engine.precision}", costs)
    if not rows:
        raise OutOfMemoryError("; ".join(faults))
    for fault in faults:
        console.print_warning(fault)
    if output:
        settings = {"blocks": BLOCKS, "block_seconds": BLOCK_SECONDS, "threads": options.threads}
        head = {"clock": CLOCK, "settings": settings, "dataset": data.name, "faults": faults}
        output.write(head | {"rows": rows}, gpu=gpu() if info.device == "cuda" else None)
    return 0


COLUMNS = ("images a step", "us a step", "us an image")


def _print(out: Console, title: str, costs: Sequence[Cost]) -> None:
    out.print(f"\n{title}")
    cells = [(f"{c.batch_size}", console.format_count(c.us.median), f"{c.an_image():.4g}") for c in costs]
    console.print_table(out, COLUMNS, cells, right=COLUMNS)
    for line in rises_said(costs):
        out.print(line)
