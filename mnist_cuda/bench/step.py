"""The `bench` command: competitors side by side at each batch size, interleaved, under one clock."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mnist_cuda.bench import tables
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
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess, write_array, write_data, write_weights
from mnist_cuda.bench.record import Record
from mnist_cuda.bench.rows import Cell, Row
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine.timing import BLOCK_SECONDS, ITERATION, WARM_UP_SECONDS, Measurement, summarise
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.run.options import DataOptions, RecordOptions
from mnist_cuda.run.training import epoch_order
from mnist_cuda.terminal import console

# Small, so that a peer whose sums are not deterministic stays near its untimed run; no time depends on it.
LEARNING_RATE = 1e-3
MINIMUM_BLOCKS = 3
# A peer must have our engine's loss after the same steps, relatively: formats differ, and fp16 skips its first steps.
COMMON_STEPS = 50
COMMON_TOLERANCE = 2e-2


class Contestant:
    """A competitor at work in one cell: remembers how many steps it made and the loss after its first timed block."""

    def __init__(self, process: CompetitorProcess, row: Row, setup: dict[str, Any]) -> None:
        self._process, self.row = process, row
        self._steps = 0
        self.checked_steps = 0
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
            self.checked_steps, self._loss = self._steps, self._last_loss

    def wants_more(self, blocks: int, seconds: float) -> bool:
        """Whether it has neither enough blocks nor used up its time."""
        count = len(self.measurement.samples)
        return count < MINIMUM_BLOCKS or (count < blocks and self.measurement.seconds < seconds)

    def finish(self, common_steps: int) -> None:
        """Fill the row; repeat the steps up to the first timed block's end untimed and compare the losses.

        common_steps: after which, on the way, the row gets the loss that the others are compared with.
        """
        row, measurement = self.row, self.measurement
        row.steps_per_block = measurement.steps_per_block
        row.samples_us = [us / row.competitor.models for us in measurement.samples]
        row.timing = summarise(row.samples_us)
        self._process.ask(cmd="restart")
        row.common_loss = untimed = self._process.ask(cmd="run", steps=common_steps)["losses"][1]
        if self.checked_steps > common_steps:
            untimed = self._process.ask(cmd="run", steps=self.checked_steps - common_steps)["losses"][1]
        row.losses = (self._loss, untimed)
        if not abs(self._loss - untimed) <= row.competitor.loss_tolerance * abs(untimed):
            row.fault = f"void: its loss after the timed block is {self._loss:.9g}, in an untimed run {untimed:.9g}"


@dataclass(frozen=True)
class SetUpLimits:
    """Of a cell: how many competitors set themselves up at once, and the seconds after which one is given up."""

    at_once: int = 1
    seconds: float = 600.0


def run_cell(
    rows: list[Row],
    setup: dict[str, Any],
    blocks: int,
    seconds: float,
    show: Callable[[float, str], None],
    limits: SetUpLimits = SetUpLimits(),
) -> None:
    """Measure the rows of one cell, interleaved block by block. `show` gets the fraction done and what is going on."""
    with ExitStack() as processes:
        contestants: list[Contestant] = []
        started = [processes.enter_context(CompetitorProcess(row.competitor.command)) for row in rows]

        @contextmanager
        def faults_of(row: Row) -> Iterator[None]:
            try:
                yield
            except CompetitorError as error:
                row.fault = row.fault or f"failed: {error}"
                # On several GPUs a rank may wait in a kernel for the one that failed, beside those that are timed.
                next(process for other, process in zip(rows, started, strict=True) if other is row).kill()

        def set_up(row: Row, process: CompetitorProcess) -> None:
            show(0, f"setting up {row.competitor.label}")
            watch = threading.Timer(limits.seconds, too_late, (row, process))
            watch.start()
            with faults_of(row):
                contestants.append(Contestant(process, row, setup))
            watch.cancel()

        def too_late(row: Row, process: CompetitorProcess) -> None:
            row.fault = f"failed: it was not set up within {limits.seconds:g} s"
            process.kill()

        with ThreadPoolExecutor(limits.at_once) as pool:  # the others import their libraries meanwhile
            try:
                list(pool.map(set_up, rows, started))
            except BaseException:
                for process in started:
                    process.kill()  # or the pool would wait for their answers
                raise
        contestants.sort(key=lambda contestant: rows.index(contestant.row))
        for contestant in contestants:
            show(0, f"warming up {contestant.row.competitor.label}")
            with faults_of(contestant.row):
                contestant.measurement.warm_up()
        while active := [c for c in contestants if not c.row.fault and c.wants_more(blocks, seconds)]:
            for contestant in active:
                show(len(contestant.measurement.samples) / blocks, f"timing {contestant.row.competitor.label}")
                with faults_of(contestant.row):
                    contestant.block()
        contestants = [c for c in contestants if not c.row.fault]
        common_steps = min([COMMON_STEPS, *(c.checked_steps for c in contestants)])
        for contestant in contestants:
            show(1, f"checking {contestant.row.competitor.label}")
            with faults_of(contestant.row):
                contestant.finish(common_steps)
    compare_losses([c.row for c in contestants], common_steps)
    set_ratios(rows)


def compare_losses(rows: Iterable[Row], steps: int) -> None:
    """Void each peer that has another loss than our first engine here after so many steps from the same weights."""
    alike = [row for row in rows if not row.fault and row.competitor.models == 1]
    ours = next((row for row in alike if not row.competitor.peer), None)
    for row in alike if ours else []:
        assert ours
        far = not abs(row.common_loss - ours.common_loss) <= COMMON_TOLERANCE * abs(ours.common_loss)
        if row.competitor.peer and far:
            found = f"{row.common_loss:.5g}, that of {ours.competitor.label} {ours.common_loss:.5g}"
            row.fault = f"void: its loss after {steps} steps is {found}"


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

    batch_size: numbers as text, lists of which may have commas. precisions: None is each engine's first. placement:
    of the training images, a table each. gpus: how many make a step together, a row for each number. threads: on the
    CPU, 0 is one a core. blocks, seconds: of each competitor. set_ups: at once. set_up_seconds: after which a
    competitor is given up.
    """

    engines: Sequence[str] = ("auto",)
    peers: Sequence[str] = ("torch", "jax")
    peer_python: Path | None = None
    batch_size: Sequence[str] = ("64", "256", "1024")
    precisions: Sequence[str] | None = None
    placement: Sequence[str] = ("device",)
    gpus: Sequence[int] = (1,)
    threads: int = 0
    blocks: int = 20
    seconds: float = 10.0
    set_ups: int = 1
    set_up_seconds: float = 600.0


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
    batch_sizes = whole_numbers("--batch-size", options.batch_size)
    return [Cell(b, data, p) for b in batch_sizes for data in options.placement for p in precisions]


def command(options: BenchOptions) -> int:
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
        raise UsageError(f"--batch-size has {largest}, expected at most the {len(data.train_labels)} images")
    threads = options.threads or len(os.sched_getaffinity(0))
    out = console.make_console(stderr=output.on_stdout)
    facts = tables.Circumstances(data, threads)
    out.print(facts.headline(step))
    if facts.busy():
        console.print_warning(facts.busy())
    for reason in dict.fromkeys(row.fault for row in rows if row.absent and row.competitor.peer):
        out.print(f"left out: {reason}")
    timed = [row for row in rows if not row.fault]
    more = "; setting the peers up comes on top of that" if any(row.competitor.peer for row in timed) else ""
    console.Estimate(out, "it takes at most").say(len(timed) * (WARM_UP_SECONDS + options.seconds), more)
    with tempfile.TemporaryDirectory(prefix="mnist-cuda-") as folder:
        npz, weights, order = (Path(folder) / name for name in ("data.npz", "weights.safetensors", "order.npy"))
        write_data(npz, data)
        write_weights(weights, 0)
        write_array(order, epoch_order(0, 1, len(data.train_labels)))
        files = {"npz": str(npz), "weights": str(weights), "order": str(order)}
        # Of all benchmarks of this user, which may set up competitors at once.
        files["tuning_lock"] = str(Path(tempfile.gettempdir()) / f"mnist-cuda-tuning-{os.getuid()}.lock")
        common = {"lr": LEARNING_RATE, "seed": 0, "threads": threads, **files}
        finished: list[Row] = []
        for batch_size, placement in dict.fromkeys((c.batch_size, c.data) for c in cells):
            of_table = [r for r in rows if (r.cell.batch_size, r.cell.data) == (batch_size, placement)]
            with console.LiveLine(out) as live:  # gone before the table is printed
                for cell in dict.fromkeys(r.cell for r in of_table):
                    run_cell(
                        [r for r in of_table if r.cell == cell and not r.fault],
                        common | asdict(cell),
                        options.blocks,
                        options.seconds,
                        lambda fraction, text, c=cell: live.show(  # type: ignore[misc]
                            fraction, f"batch {c.batch_size} {c.precision}", text
                        ),
                        SetUpLimits(options.set_ups, options.set_up_seconds),
                    )
            tables.print_rows(out, batch_size, placement, of_table)
            finished += of_table
            if output.file or len(finished) == len(rows):  # a benchmark that is stopped keeps the tables it has
                facts.write(
                    output,
                    [tables.row_as_json(row) for row in finished],
                    {name: getattr(options, name) for name in ("blocks", "seconds", "set_ups")} | {"lr": LEARNING_RATE},
                    step=step,
                    iteration=ITERATION,
                    block_seconds=BLOCK_SECONDS,
                    warm_up_seconds=WARM_UP_SECONDS,
                )
    tables.print_arithmetic(out, rows)
    if output.file:
        out.print(f"\nwritten: {output.file}")
    if any(row.fault and not row.absent for row in rows):
        return 1
    return UnavailableError.exit_code if any(row.absent and not row.competitor.peer for row in rows) else 0
