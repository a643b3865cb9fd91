"""The learning rate over a training: a shape and its peak, as one rate for each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import memory
from mnist_cuda.errors import option
from mnist_cuda.rules import SCHEDULE, rise_of


@dataclass(frozen=True)
class Schedule:
    """Rates of plain SGD that depend on nothing but the step and how many there are.

    Step k = 0 .. n - 1 of n is at t = (k + 1/2) / n. A triangle rises in proportion to t up to t = `rise`, where it is
    `peak`, and falls linearly to 0 at t = 1; `rise` 0 only falls, `rise` None is constant. (A single triangle is what
    Smith and Topin, "Super-Convergence", 2018, call one cycle, here from and to 0.)
    """

    peak: float
    rise: float | None = None

    def __str__(self) -> str:
        return "constant" if self.rise is None else "linear" if self.rise == 0 else f"triangle:{self.rise:g}"

    def rates(self, steps: int) -> NDArray[np.float64]:
        """The rates of all `steps` of a training, (steps,). Raises OutOfMemoryError where they are too many."""
        memory.require(4 * 8 * steps, f"the learning rate of each of {steps} steps")
        t = (np.arange(steps) + 0.5) / max(steps, 1)
        if self.rise is None:
            return np.full(steps, self.peak)
        falling = (1 - t) / (1 - self.rise) if self.rise < 1 else np.full(steps, np.inf)
        rising = t / self.rise if self.rise > 0 else np.full(steps, np.inf)
        return self.peak * np.minimum(rising, falling)


def parse_schedule(shape: str, peak: float) -> Schedule:
    """A shape as `--schedule` takes it. Raises UsageError."""
    return Schedule(peak, rise_of(SCHEDULE(option("schedule"), shape)))
