"""What a benchmark leaves behind: tables for people, JSON with everything that the figures depend on."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mnist_cuda.bench.record import Record, is_busy, load_text
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine.timing import ITERATION
from mnist_cuda.machine import cpu_model, gpu
from mnist_cuda.terminal import console

if TYPE_CHECKING:
    from mnist_cuda.bench.rows import Row

COLUMNS = ("competitor", "precision", "set-up", "median us", "p5", "p95", "n", "ratio")
OPTIONAL = ("p5", "p95", "set-up", "n")  # the first to go on a narrow terminal


def print_rows(out: Console, batch_size: int, placement: str, rows: list[Row]) -> None:
    """Print the table of one batch size, and below it why a row has no figures."""
    where = ", training images in the host's memory" if placement == "host" else ""
    out.print(f"\nbatch {batch_size}{where}", style="bold")
    rows = [row for row in rows if not (row.absent and row.competitor.peer)]
    cells = []
    for row in rows:
        figures = ["-"] * 6
        if row.timing and not row.fault:
            t = row.timing
            figures = [f"{row.setup_seconds:.2f} s", *map(console.format_count, (t.median, t.p5, t.p95)), str(t.count)]
            figures.append(f"{row.ratio:.2f}x" if row.ratio else "-")
        cells.append((row.competitor.label, row.cell.precision, *figures))
    console.print_table(out, COLUMNS, cells, right=COLUMNS[2:], optional=OPTIONAL)
    for text in dict.fromkeys(f"{row.competitor.label} {row.cell.precision}: {row.fault}" for row in rows if row.fault):
        out.print(text)


def print_arithmetic(out: Console, rows: list[Row]) -> None:
    """Print a line for each engine and precision that is more than its name says: what it computes with."""
    ours = [row for row in rows if row.precision_pinned not in ("", row.cell.precision) and not row.competitor.peer]
    for text in dict.fromkeys(f"{row.competitor.label} in {row.precision_pinned}" for row in ours):
        out.print(text)


class Circumstances:
    """The circumstances, taken once before the first measurement and once after the last."""

    def __init__(self, data: Dataset, threads: int) -> None:
        self._data, self._threads = data, threads
        self._load_before = os.getloadavg()[0]
        self._gpu_before = gpu()

    def headline(self, step: str) -> str:
        """What all tables have in common. step: what takes the microseconds."""
        gpu_name = f"{self._gpu_before['name']}; " if self._gpu_before else ""
        return (
            f"microseconds per {step}: {ITERATION}\n"
            f"{gpu_name}{cpu_model()}, {console.plural(self._threads, 'thread')}; data: {self._data.name}\n"
            "ratio: the median of the best peer, divided by this one's"
        )

    def busy(self) -> str:
        """A sentence if other programs were at work before the first measurement, or nothing."""
        if not is_busy(self._load_before):
            return ""
        return f"This machine is busy ({load_text(self._load_before)}): do not rely on figures of the CPU."

    def write(self, output: Record, rows: list[dict[str, Any]], settings: dict[str, Any], **more: Any) -> None:
        """Write the circumstances, the settings, the rows and whatever `more` there is to say, if JSON is wanted.

        Raises CheckpointError if that fails.
        """
        report = {
            **more,
            "settings": {"threads": self._threads, **settings},
            "data": {"name": self._data.name, "source": self._data.source, "digest": self._data.digest},
            "rows": rows,
        }
        output.write(report, gpu=self._gpu_before, gpu_after=gpu())


def row_as_json(row: Row) -> dict[str, Any]:
    """A row of `mnist-cuda bench`."""
    sound = row.timing is not None and not row.fault
    return {
        "competitor": row.competitor.label,
        "peer": row.competitor.peer,
        "device": row.competitor.device,
        "models": row.competitor.models,
        **asdict(row.cell),
        "storage": row.competitor.storage(row.cell.precision),
        "fault": row.fault or None,
        "setup_seconds": row.setup_seconds if sound else None,
        "us": row.timing.as_dict() if row.timing and sound else None,
        "ratio": row.ratio,
        "steps_per_block": row.steps_per_block if sound else None,
        "samples_us": row.samples_us if sound else None,
        "loss_timed_untimed": row.losses if sound else None,
        "common_loss": row.common_loss if sound else None,
        "precision_pinned": row.precision_pinned or None,
        "versions": row.versions,
    }
