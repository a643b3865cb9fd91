"""A row of a comparison: a competitor in a cell, and its figures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mnist_cuda.bench.competitors import Competitor
from mnist_cuda.engine.timing import Summary


@dataclass(frozen=True)
class Cell:
    """What the competitors of one comparison have in common."""

    batch_size: int
    data: str
    precision: str


@dataclass
class Row:
    """A competitor in a cell: its figures, or in `fault` why there are none. `absent`: it could not even start."""

    competitor: Competitor
    cell: Cell
    fault: str = ""
    absent: bool = False
    setup_seconds: float = math.nan
    versions: dict[str, str] | None = None
    precision_pinned: str = ""
    steps_per_block: int = 0
    samples_us: list[float] | None = None
    timing: Summary | None = None
    losses: tuple[float, float] = (math.nan, math.nan)  # after the first timed block, and of the untimed run
    common_loss: float = math.nan  # after the steps that all competitors of the cell made
    ratio: float | None = None  # of the best peer's median in this cell to this one
