"""The `bench accuracy` command: some epochs of every engine and precision beside a peer's, over several seeds.

Training is chaotic: a rounding error grows until two correct programs are as far apart as two seeds, about 0.2 points
of test accuracy after three epochs. One run therefore says nothing, and the means over the seeds are compared; their
standard error stands beside the difference.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mnist_cuda.bench import tables
from mnist_cuda.bench.competitors import PEER_PYTHON, Competitor, engine_competitors, first_variants, some_words
from mnist_cuda.bench.process import CompetitorError, CompetitorGroup, write_array, write_data, write_weights
from mnist_cuda.bench.record import Record
from mnist_cuda.bench.time_to_accuracy import Budget, order_of
from mnist_cuda.engine import engines
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.run.options import DataOptions, RecordOptions
from mnist_cuda.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

    from mnist_cuda.data.dataset import Dataset

BOUND = 0.2  # points, for the difference of two means
EVALUATION = "by the statistics of all training images under the weights at hand, each competitor in its own precision"


@dataclass(frozen=True)
class Run:
    """One training from a seed in a process of its own: after each epoch the test accuracy and the last step's loss."""

    seed: int
    test_accuracy: list[float]
    loss: list[float]
    train_seconds: float
    parameters_sha256: str


@dataclass
class Row:
    """A competitor in one precision: its runs by seed, and once more the first seed's."""

    competitor: Competitor
    precision: str
    runs: list[Run] = field(default_factory=list)
    repeat: Run | None = None
    fault: str = ""
    versions: dict[str, str] | None = None
    precision_pinned: str = ""
    peer: Row | None = None

    @property
    def label(self) -> str:
        return f"{self.competitor.label} {self.precision}"

    @property
    def repeats(self) -> bool:
        """Whether the same seed gave the same accuracies and weights, bit by bit."""
        first = self.runs[0]
        return self.repeat is not None and (first.test_accuracy, first.parameters_sha256) == (
            self.repeat.test_accuracy,
            self.repeat.parameters_sha256,
        )

    def finals(self) -> list[float]:
        """Accuracies after the last epoch, in per cent."""
        return [100 * run.test_accuracy[-1] for run in self.runs]

    def means(self) -> list[float]:
        """Mean accuracy over the seeds after each epoch, in per cent."""
        return [float(mean) for mean in 100 * np.mean([run.test_accuracy for run in self.runs], axis=0)]

    def difference(self) -> float | None:
        """This mean after the last epoch less the peer's, in points."""
        if self.fault or self.peer is None or self.peer.fault:
            return None
        return self.means()[-1] - self.peer.means()[-1]

    def standard_error(self) -> float | None:
        """That of the difference, from the scatter over the seeds; None for a single seed."""
        if self.peer is None or len(self.runs) < 2:
            return None
        return math.sqrt(sum(float(np.var(row.finals(), ddof=1)) / len(row.runs) for row in (self, self.peer)))

    def verdict(self) -> str:
        """`ok`, or what is wrong; a peer is not judged."""
        if self.fault:
            return "FAILED"
        if self.competitor.peer:
            return "-"
        difference = self.difference()
        if difference is None:
            return "NO PEER"
        if not self.repeats:
            return "NOT REPEATED"
        return "ok" if abs(difference) <= BOUND else "BROKEN"

    def as_json(self) -> dict[str, Any]:
        sound = not self.fault
        return {
            "competitor": self.competitor.label,
            "peer": self.competitor.peer,
            "device": self.competitor.device,
            "precision": self.precision,
            "precision_pinned": self.precision_pinned or None,
            "versions": self.versions,
            "fault": self.fault or None,
            "mean_accuracy": self.means() if sound else None,
            "difference_points": self.difference(),
            "standard_error_points": self.standard_error() if sound and self.difference() is not None else None,
            "bitwise_repeat": self.repeats if sound else None,
            "verdict": self.verdict(),
            "runs": [asdict(run) for run in self.runs],
            "repeat": asdict(self.repeat) if self.repeat else None,
        }


def train(row: Row, setup: dict[str, Any], epochs: int, steps: int, group: CompetitorGroup) -> Run:
    """Train `epochs` of `steps` each in the competitor's process, evaluating after each. Raises CompetitorError."""
    accuracies, losses, seconds, digest = [], [], 0.0, ""
    with group.start(row.competitor.command) as process:
        answer = process.ask(cmd="setup", precision=row.precision, **setup, **row.competitor.fields)
        row.versions = answer["versions"]
        row.precision_pinned = answer.get("precision_pinned", row.precision)
        for _ in range(epochs):
            ran = process.ask(cmd="run", steps=steps)
            evaluated = process.ask(cmd="evaluate")
            seconds += ran["seconds"]
            losses.append(ran["losses"][1])
            accuracies.append(evaluated["test_accuracy"])
            digest = evaluated["parameters_sha256"]
            if not math.isfinite(losses[-1]):
                raise CompetitorError(f"training diverged: its loss is {losses[-1]:g}")
    return Run(setup["seed"], accuracies, losses, seconds, digest)


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions(DataOptions, RecordOptions):
    """Who trains, and how. engines, precisions: None is all that run here. peer: one, by an interpreter that has it.

    seeds: runs, of seeds from 0 on. jobs: runs at a time. threads: of a run on the CPU, 0 divides the cores by jobs.
    """

    engines: Sequence[str] | None = None
    precisions: Sequence[str] | None = None
    peers: str = "torch"
    peer_python: Path | None = None
    seeds: int = 10
    epochs: int = 3
    batch_size: int = 64
    lr: float = 0.05
    jobs: int = 1
    threads: int = 0


def plan(options: AccuracyOptions) -> list[Row]:
    """A row for each engine and precision, and one of the peer for each of these precisions."""
    names = [row.name for row in engines() if not row.unavailable and row.name != "reference"]
    if options.engines is not None:
        names = some_words("--engines", options.engines)
    ours = engine_competitors(names)
    for engine in ours:
        if engine.unavailable:
            raise UnavailableError(f"engine '{engine.label}' cannot run here: {engine.unavailable}")
    offered = list(dict.fromkeys(p for engine in ours for p in engine.precisions))
    wanted = None if options.precisions is None else some_words("--precisions", options.precisions)
    rows = [
        Row(engine, p)
        for engine in ours
        for p in engine.precisions
        if (p in wanted if wanted is not None else not engine.reason(p))
    ]
    for row in rows:
        if reason := row.competitor.reason(row.precision):
            raise UnavailableError(f"engine '{row.competitor.label}' cannot run here in {row.precision}: {reason}")
    if not rows:
        raise UsageError(f"--precisions is {' '.join(wanted or offered)}, expected some of {', '.join(offered)}")
    device = "cuda" if any(row.competitor.device == "cuda" for row in rows) else "cpu"
    (peer,) = first_variants([options.peers], device, options.peer_python or PEER_PYTHON)
    of_peer = {precision: Row(peer, precision) for precision in dict.fromkeys(row.precision for row in rows)}
    for row in rows:
        row.peer = of_peer[row.precision]
    return [*of_peer.values(), *rows]


def write_files(folder: Path, data: Dataset, options: AccuracyOptions) -> list[dict[str, Any]]:
    """Write the data and each seed's initial weights and order of all epochs; returns the set-ups' fields, by seed."""
    npz = folder / "data.npz"
    write_data(npz, data)
    setups = []
    for seed in range(options.seeds):
        weights, order = folder / f"weights{seed}.safetensors", folder / f"order{seed}.npy"
        write_weights(weights, seed)
        write_array(order, order_of(Budget(options.batch_size, options.epochs), seed, len(data.train_labels)))
        setups.append({"seed": seed, "npz": str(npz), "weights": str(weights), "order": str(order)})
    return setups


def run_all(
    rows: list[Row], setups: list[dict[str, Any]], epochs: int, steps: int, jobs: int, live: console.LiveLine,
    estimate: console.Estimate,
) -> None:  # fmt: skip
    """Fill the rows with a run for each set-up and a second one for the first, `jobs` at a time."""
    passes = [(setup, False) for setup in setups] + [(setups[0], True)]
    pool, group = ThreadPoolExecutor(jobs), CompetitorGroup()
    try:
        tasks = {
            pool.submit(train, row, setup, epochs, steps, group): (row, repeat)
            for setup, repeat in passes
            for row in rows
        }
        for done, task in enumerate(as_completed(tasks), 1):
            row, repeat = tasks[task]
            live.show(done / len(tasks), f"{done} of {console.plural(len(tasks), 'run')}", row.label)
            estimate.after(max(done, min(jobs, len(tasks))) / len(tasks))
            try:
                run = task.result()
            except CompetitorError as error:
                row.fault = str(error)
                continue
            if repeat:
                row.repeat = run
            else:
                row.runs.append(run)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        group.end()  # what still runs then is not waited for
        pool.shutdown()
    for row in rows:
        row.runs.sort(key=lambda run: run.seed)


def print_rows(out: Console, rows: list[Row], epochs: int) -> None:
    """Print the table, and below it why a row has no figures."""
    sign = "+-" if out.options.ascii_only else "±"
    cells = []
    for row in rows:
        figures = ["-"] * (epochs + 3)
        if not row.fault:
            difference, error, finals = row.difference(), row.standard_error(), row.finals()
            figures = [f"{mean:.2f}" for mean in row.means()]
            figures.append(f"{min(finals):.2f} {max(finals):.2f}")
            figures.append(
                "-" if difference is None else f"{difference:+.2f}" + (f" {sign}{error:.2f}" if error else "")
            )
            figures.append("yes" if row.repeats else "no")
        cells.append((row.competitor.label, row.precision, *figures, row.verdict()))
    of_epochs = [f"epoch {epoch}" for epoch in range(1, epochs + 1)]
    columns = ["competitor", "precision", *of_epochs, "min max", "difference", "repeats", "verdict"]
    console.print_table(out, columns, cells, right=columns[2:-2], optional=[*of_epochs[:-1], "min max"])
    for row in rows:
        if row.fault:
            out.print(f"{row.label}: {row.fault}")


def command(options: AccuracyOptions) -> int:
    output = Record(options.json, busy=options.busy)
    rows = plan(options)
    data = options.load()
    count = len(data.train_labels)
    steps = count // options.batch_size
    if steps == 0:
        raise UsageError(f"--batch-size {options.batch_size} exceeds the {count} images of {data.name}")
    threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.jobs)
    facts = tables.Circumstances(data, threads)
    out = console.make_console(stderr=output.on_stdout)
    out.print(
        f"test accuracy in per cent, mean over {console.plural(options.seeds, 'seed')}: "
        f"{console.plural(options.epochs, 'epoch')} on {data.name}, batch {options.batch_size}, lr {options.lr:g}, the "
        "same initial weights and sample order for all\n"
        "difference: from the peer in the same precision after the last epoch, with its standard error\n"
    )
    with tempfile.TemporaryDirectory(prefix="mnist-cuda-") as folder, console.LiveLine(out) as live:
        common = {"batch_size": options.batch_size, "lr": options.lr, "threads": threads, "data": "device"}
        setups = [common | files for files in write_files(Path(folder), data, options)]
        run_all(rows, setups, options.epochs, steps, options.jobs, live, console.Estimate(out))
    print_rows(out, rows, options.epochs)
    if output:
        settings = {name: getattr(options, name) for name in ("epochs", "batch_size", "lr", "seeds", "jobs")}
        settings["bound_points"] = BOUND
        facts.write(output, [row.as_json() for row in rows], settings, evaluation=EVALUATION)
        if output.file:
            out.print(f"\nwritten: {output.file}")
    return 0 if all(row.verdict() in ("ok", "-") for row in rows) else 1
