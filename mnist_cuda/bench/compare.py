"""The `bench` command: competitors side by side at each batch size, interleaved, under one clock."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda import console
from mnist_cuda.bench import report
from mnist_cuda.bench.competitors import (
    PEER_PYTHON,
    Competitor,
    engine_competitors,
    on_gpus,
    peer_competitors,
    some_words,
    whole_numbers,
    words,
)
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess, write_array, write_arrays
from mnist_cuda.bench.record import Record
from mnist_cuda.checkpoint import Model, save_model
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.model import init_parameters
from mnist_cuda.options import DataOptions, RecordOptions
from mnist_cuda.timing import BLOCK_SECONDS, ITERATION, WARM_UP_SECONDS, Measurement, Summary, summarise
from mnist_cuda.training import epoch_order

# Small, so that a peer whose sums are not deterministic stays near its untimed run; no time depends on it.
LEARNING_RATE = 1e-3
MINIMUM_BLOCKS = 3


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
    ratio: float | None = None  # of the best peer's median in this cell to this one


class Contestant:
    """A competitor at work in one cell: remembers how many steps it made and the loss after its first timed block."""

    def __init__(self, process: CompetitorProcess, row: Row, setup: dict[str, Any]) -> None:
        self._process, self.row = process, row
        self._steps = 0
        self._checked_steps = 0
        self.measurement = Measurement(self._run)
        answer = process.ask(cmd="setup", **setup, **row.competitor.fields)
        row.setup_seconds = answer["setup_seconds"]
        row.versions = answer["versions"]
        row.precision_pinned = answer.get("precision_pinned", row.cell.precision)

    def _run(self, steps: int) -> float:
        answer = self._process.ask(cmd="run", steps=steps)
        self._steps += steps
        self._last_loss = answer["losses"][1]
        return float(answer["seconds"])

    def block(self) -> None:
        """Time one block."""
        self.measurement.block()
        if len(self.measurement.samples) == 1:
            self._checked_steps, self._loss = self._steps, self._last_loss

    def wants_more(self, blocks: int, seconds: float) -> bool:
        """Whether it has neither enough blocks nor used up its time."""
        count = len(self.measurement.samples)
        return count < MINIMUM_BLOCKS or (count < blocks and self.measurement.seconds < seconds)

    def finish(self) -> None:
        """Fill the row; repeat the steps up to the first timed block's end untimed and compare the losses."""
        row, measurement = self.row, self.measurement
        row.steps_per_block = measurement.steps_per_block
        row.samples_us = [us / row.competitor.models for us in measurement.samples]
        row.timing = summarise(row.samples_us)
        self._process.ask(cmd="restart")
        untimed = self._process.ask(cmd="run", steps=self._checked_steps)["losses"][1]
        row.losses = (self._loss, untimed)
        if not abs(self._loss - untimed) <= row.competitor.loss_tolerance * abs(untimed):
            row.fault = f"void: its loss after the timed block is {self._loss:.9g}, in an untimed run {untimed:.9g}"


def run_cell(
    rows: list[Row], setup: dict[str, Any], blocks: int, seconds: float, show: Callable[[float, str], None]
) -> None:
    """Measure the rows of one cell, interleaved block by block. `show` gets the fraction done and what is going on."""
    with ExitStack() as processes:
        contestants: list[Contestant] = []
        started = [processes.enter_context(CompetitorProcess(row.competitor.command)) for row in rows]

        def attempt(step: Callable[[], object], row: Row) -> bool:
            try:
                step()
            except CompetitorError as error:
                row.fault = f"failed: {error}"
                # On several GPUs a rank may wait in a kernel for the one that failed, beside those that are timed.
                next(process for other, process in zip(rows, started, strict=True) if other is row).kill()
                return False
            return True

        for row, process in zip(rows, started, strict=True):  # one at a time; the others import their libraries
            show(0, f"setting up {row.competitor.label}")
            attempt(lambda p=process, r=row: contestants.append(Contestant(p, r, setup)), row)  # type: ignore[misc]
        for contestant in list(contestants):
            show(0, f"warming up {contestant.row.competitor.label}")
            if not attempt(contestant.measurement.warm_up, contestant.row):
                contestants.remove(contestant)
        active = list(contestants)
        while active:
            for contestant in active:
                show(len(contestant.measurement.samples) / blocks, f"timing {contestant.row.competitor.label}")
                if not attempt(contestant.block, contestant.row):
                    contestants.remove(contestant)
            active = [c for c in contestants if c.wants_more(blocks, seconds)]
        for contestant in contestants:
            show(1, f"checking {contestant.row.competitor.label}")
            attempt(contestant.finish, contestant.row)
    set_ratios(rows)


def set_ratios(rows: Iterable[Row]) -> None:
    """Compare each sound row with the best sound peer."""
    sound = [row for row in rows if row.timing and not row.fault]
    peers = [row.timing.median for row in sound if row.timing and row.competitor.peer]
    for row in sound:
        if row.timing and peers:
            row.ratio = min(peers) / row.timing.median


def plan(competitors: list[Competitor], cells: Iterable[Cell], chosen: bool) -> list[Row]:
    """A row for each competitor in each cell it can take part in; with chosen precisions, faults for the others."""
    rows = []
    for cell in cells:
        for competitor in competitors:
            row = Row(competitor, cell)
            if cell.precision not in competitor.precisions:
                if not chosen or competitor.peer:
                    continue
                row.fault = f"has no precision {cell.precision}, it offers {', '.join(competitor.precisions)}"
            elif reason := competitor.reason(cell.precision):
                row.fault, row.absent = reason, True
            rows.append(row)
    return rows


@dataclass(frozen=True, kw_only=True)
class BenchOptions(DataOptions, RecordOptions):
    """What to measure: engines and peers, by an interpreter that has these, and the cells in which they compete.

    batch_sizes: numbers as text, lists of which may have commas. precisions: None is each engine's first. data: places
    of the training images, a table each. gpus: how many make a step together, a row for each number. threads: on the
    CPU, 0 is one a core. blocks, seconds: of each competitor.
    """

    engines: Sequence[str] = ("auto",)
    peers: Sequence[str] = ("torch",)
    peer_python: Path | None = None
    batch_sizes: Sequence[str] = ("64", "256", "1024")
    precisions: Sequence[str] | None = None
    data: Sequence[str] = ("device",)
    gpus: Sequence[int] = (1,)
    threads: int = 0
    blocks: int = 20
    seconds: float = 10.0


def _choose(options: BenchOptions) -> tuple[list[Competitor], list[Cell]]:
    """The competitors and the cells that the flags ask for."""
    ours = engine_competitors(some_words("--engines", options.engines))
    if not any(not c.unavailable for c in ours):
        raise UnavailableError(f"engine '{ours[0].label}' cannot run here: {ours[0].unavailable}")
    peers = peer_competitors(words(options.peers), (c.device for c in ours), options.peer_python or PEER_PYTHON)
    counts = tuple(dict.fromkeys(options.gpus))
    rows = on_gpus(ours, counts)
    if not rows:
        names = ", ".join(c.label for c in ours)
        raise UsageError(f"--gpus is {' '.join(map(str, counts))}, expected 1: no batch is shared by engine {names}")
    return rows + on_gpus(peers, counts), cells_of(options, ours)


def cells_of(options: BenchOptions, ours: Sequence[Competitor]) -> list[Cell]:
    """The cells that the flags ask for. Raises UsageError."""
    if options.precisions is None:
        precisions = list(dict.fromkeys(c.precisions[0] for c in ours))
    else:
        precisions = some_words("--precisions", options.precisions)
        offered = list(dict.fromkeys(p for c in ours for p in c.precisions))
        if not set(precisions) <= set(offered):
            raise UsageError(f"--precisions is {' '.join(precisions)}, expected some of {', '.join(offered)}")
    batch_sizes = whole_numbers("--batch-sizes", options.batch_sizes)
    return [Cell(b, data, p) for b in batch_sizes for data in options.data for p in precisions]


def command(options: BenchOptions) -> int:
    """`mnist-cuda bench`."""
    output = Record(options.json, busy=options.busy)
    competitors, cells = _choose(options)
    data = options.load()
    return measure(plan(competitors, cells, options.precisions is not None), data, options, output)


def measure(rows: list[Row], data: Dataset, options: BenchOptions, output: Record, step: str = "iteration") -> int:
    """Time the rows, cell by cell, print a table of each batch size and write the JSON; returns the exit code.

    step: what takes the microseconds. Raises UsageError for a batch that is larger than the data set.
    """
    cells = list(dict.fromkeys(row.cell for row in rows))
    largest = max(cell.batch_size for cell in cells)
    if largest > len(data.train_labels):
        raise UsageError(f"--batch-sizes has {largest}, expected at most the {len(data.train_labels)} images")
    threads = options.threads or len(os.sched_getaffinity(0))
    out = console.make_console(stderr=output.on_stdout)
    facts = report.Facts(data, threads)
    out.print(facts.headline(step))
    if facts.busy():
        console.print_warning(facts.busy())
    report.print_absent_peers(out, rows)
    with tempfile.TemporaryDirectory(prefix="mnist-cuda-") as folder:
        files = {name: str(Path(folder) / name) for name in ("data.npz", "weights.safetensors", "order.npy")}
        write_arrays(Path(files["data.npz"]), images=data.train_images, labels=data.train_labels)
        weights = {name: value.astype(np.float32) for name, value in init_parameters(0).items()}
        save_model(Path(files["weights.safetensors"]), Model(weights), steps=0)
        write_array(Path(files["order.npy"]), epoch_order(0, 1, len(data.train_labels)))
        finished: list[Row] = []
        for batch_size, placement in dict.fromkeys((c.batch_size, c.data) for c in cells):
            of_table = [r for r in rows if (r.cell.batch_size, r.cell.data) == (batch_size, placement)]
            with console.LiveLine(out) as live:  # gone before the table is printed
                for cell in dict.fromkeys(r.cell for r in of_table):
                    setup = {
                        "batch_size": batch_size,
                        "lr": LEARNING_RATE,
                        "seed": 0,
                        "precision": cell.precision,
                        "threads": threads,
                        "data": placement,
                        "npz": files["data.npz"],
                        "weights": files["weights.safetensors"],
                        "order": files["order.npy"],
                    }
                    run_cell(
                        [r for r in of_table if r.cell == cell and not r.fault],
                        setup,
                        options.blocks,
                        options.seconds,
                        lambda fraction, text, c=cell: live.show(  # type: ignore[misc]
                            fraction, f"batch {c.batch_size} {c.precision}", text
                        ),
                    )
            report.print_rows(out, batch_size, placement, of_table)
            finished += of_table
            if output.file or len(finished) == len(rows):  # a benchmark that is stopped keeps the tables it has
                facts.write(
                    output,
                    [report.row_as_json(row) for row in finished],
                    {"blocks": options.blocks, "seconds": options.seconds, "lr": LEARNING_RATE},
                    step=step,
                    iteration=ITERATION,
                    block_seconds=BLOCK_SECONDS,
                    warm_up_seconds=WARM_UP_SECONDS,
                )
    report.print_arithmetic(out, rows)
    if output.file:
        out.print(f"\nwritten: {output.file}")
    if any(row.fault and not row.absent for row in rows):
        return 1
    return UnavailableError.exit_code if any(row.absent and not row.competitor.peer for row in rows) else 0
