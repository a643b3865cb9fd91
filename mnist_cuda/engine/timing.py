"""THE clock: what starts it, what stops it, what is outside it. Everyone who reports a time uses it.

An iteration is: batch load + forward + backward + weight update + zero grad. Choosing the samples is outside (the order
of an epoch is known before it starts), and so are set-up, evaluation and files. The clock starts when the engine is
idle and stops when all steps are done and their losses have arrived: `time_steps` here, and `Engine.train_piece`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.engine import Engine, Steps

ITERATION = "batch load + forward + backward + weight update + zero grad"
BLOCK_SECONDS = 0.05  # the shortest block that is worth a sample
WARM_UP_SECONDS = 0.3
REPORTED_ITERATIONS = 100  # a training summary reports the mean over this many


def time_steps(engine: Engine, order: NDArray[np.int32], batch_size: int, lr: float | NDArray[np.floating]) -> Steps:
    """Run one step on each `batch_size` indices of `order` under the clock.

    `Engine.train` starts on an idle engine and returns when every step is done, so that the host's clock is exact for
    every engine; a block must only be long against the cost of reading it (about 50 ns).
    """
    start = time.perf_counter()
    losses, correct = engine.train(order, batch_size, lr)
    return Steps(losses, correct, time.perf_counter() - start)


@dataclass(frozen=True)
class Summary:
    """Microseconds an iteration over a number of blocks."""

    mean: float
    median: float
    p5: float
    p95: float
    min: float
    count: int

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def summarise(us: Sequence[float]) -> Summary:
    """Statistics of samples, each the microseconds an iteration of one block. Needs at least one."""
    p5, median, p95 = (float(v) for v in np.percentile(us, (5, 50, 95)))
    return Summary(float(np.mean(us)), median, p5, p95, float(np.min(us)), len(us))


class TrainingClock:
    """Collects the blocks of a training run, of any length each. The first is warm-up where others follow."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, float]] = []

    def add(self, steps: int, seconds: float) -> None:
        """Record a block."""
        self._blocks.append((steps, seconds))

    @property
    def steps(self) -> int:
        """Iterations so far, warm-up included."""
        return sum(steps for steps, _ in self._blocks)

    @property
    def seconds(self) -> float:
        """Time inside iterations so far, warm-up included."""
        return sum(seconds for _, seconds in self._blocks)

    def recent(self, iterations: int = REPORTED_ITERATIONS) -> tuple[float, int]:
        """Mean microseconds an iteration over the latest blocks that together hold at least `iterations`.

        Returns it with the number of iterations it really covers; (nan, 0) before the first.
        """
        steps, seconds = 0, 0.0
        for block_steps, block_seconds in reversed(self._blocks[1:] or self._blocks):
            steps, seconds = steps + block_steps, seconds + block_seconds
            if steps >= iterations:
                break
        return (1e6 * seconds / steps, steps) if steps else (math.nan, 0)

    def summary(self, first_block: int = 0) -> Summary | None:
        """Statistics over the blocks from `first_block` on, without the warm-up; None if there is none."""
        blocks = self._blocks[max(first_block, 1 if len(self._blocks) > 1 else 0) :]
        return summarise([1e6 * seconds / steps for steps, seconds in blocks]) if blocks else None

    def __len__(self) -> int:
        return len(self._blocks)


class Measurement:
    """Samples of one competitor: warm-up, then blocks of equal length, each at least BLOCK_SECONDS.

    run(n) does n iterations and returns the seconds they took, from idle to done. Several measurements are
    interleaved (A B A B) by calling their `block` in turn.
    """

    def __init__(self, run: Callable[[int], float]) -> None:
        self._run = run
        self.steps_per_block = 1
        self.warm_up_steps = 0
        self.samples: list[float] = []  # microseconds an iteration
        self.seconds = 0.0  # spent, warm-up included

    def _timed(self, steps: int) -> float:
        seconds = self._run(steps)
        self.seconds += seconds
        return seconds

    def warm_up(self) -> None:
        """Run until WARM_UP_SECONDS have passed and find the length of a block."""
        steps = 1
        while True:
            seconds = self._timed(steps)
            self.warm_up_steps += steps
            # 1.5: a machine that gets faster after warm-up must not fall below the shortest block.
            self.steps_per_block = max(1, math.ceil(1.5 * BLOCK_SECONDS * steps / max(seconds, 1e-9)))
            if self.seconds >= WARM_UP_SECONDS:
                return
            steps = min(2 * steps, self.steps_per_block)

    def block(self) -> None:
        """Run one block and keep its sample. A block that came out too short doubles the length and starts over."""
        seconds = self._timed(self.steps_per_block)
        if seconds < BLOCK_SECONDS:
            self.steps_per_block *= 2
            self.samples.clear()
        else:
            self.samples.append(1e6 * seconds / self.steps_per_block)

    def summary(self, blocks: int) -> Summary:
        """Of one competitor alone: warm-up and so many blocks."""
        self.warm_up()
        while len(self.samples) < blocks:
            self.block()
        return summarise(self.samples)
