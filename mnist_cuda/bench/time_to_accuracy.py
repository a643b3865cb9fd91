"""The `bench time-to-accuracy` command: how long training takes to a target accuracy, and in which recipe.

A budget is a batch size and a number of epochs, and its time hardly depends on anything else. For each budget the
recipe (schedule and peak of the learning rate) is chosen without the test set: every candidate trains on the training
set less some held-out images, a few seeds each, and the best mean accuracy on those wins. Then the budgets train on the
whole training set, in rising time and with other seeds, until the median of the test accuracies over the seeds is at
the target. That budget is the result: it was chosen by the test set, its recipe was not. With `freeze_at` held-out
images choose the budget, too, before a test image is looked at.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import memory
from mnist_cuda.bench import tables
from mnist_cuda.bench.competitors import PEER_PYTHON, Competitor, peer_competitors, some_words, words
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess, write_array, write_data, write_weights
from mnist_cuda.bench.record import Record
from mnist_cuda.data import dataset
from mnist_cuda.engine import Engine, Images, Labels
from mnist_cuda.engine.timing import time_steps
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.run.evaluation import evaluate_again
from mnist_cuda.run.options import DataOptions, EngineOptions, RecordOptions
from mnist_cuda.run.schedule import parse_schedule
from mnist_cuda.run.training import epoch_order
from mnist_cuda.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

CLOCK = (
    "train: wall time of all steps of the training, from an idle engine to the losses on the host, in one call: index "
    "upload, batch load, forward, backward, update and zero grad. total: that, and around it the initial weights, the "
    "population statistics over all training images and the accuracy on the test images, once. Not in either: reading "
    "the data, set_dataset (which also computes the pixel moments of `fused`), sample orders, and one training of "
    "each recipe that does not count, which allocates and captures the graphs. A peer's total is without its initial "
    "weights, which come by file"
)
SELECTION_SEED = 1_000_000  # first of the seeds that choose the recipe; the final ones start at 0
SAMPLED_STEPS = 20  # of each batch size, to say beforehand how long it will take
BUDGETS = (
    "64x1",
    "96x1",
    "64x2",
    "96x2",
    "128x2",
    "192x2",
    "256x2",
    "192x3",
    "256x3",
    "192x4",
    "256x4",
    "64x3",
    "64x5",
)
SCHEDULES = ("triangle:0.2", "triangle:0.4", "linear")
PEAKS = (0.1, 0.2, 0.3, 0.5, 0.8)


@dataclass(frozen=True)
class Budget:
    """What decides the time of a training: images a step, and epochs."""

    batch_size: int
    epochs: int

    def __str__(self) -> str:
        return f"{self.batch_size}x{self.epochs}"


@dataclass(frozen=True)
class Recipe:
    """Plain SGD within a budget: the shape and the peak of the learning rate."""

    budget: Budget
    schedule: str
    peak: float

    def __str__(self) -> str:
        return f"{self.budget} {self.schedule} {self.peak:g}"

    def rates(self, steps: int) -> NDArray[np.float64]:
        """The rate of each of its `steps`, (steps,)."""
        return parse_schedule(self.schedule, self.peak).rates(steps)


def parse_budgets(texts: Iterable[str]) -> list[Budget]:
    """`192x3` is batches of 192 in 3 epochs. Raises UsageError."""
    budgets = []
    for text in texts:
        batch, _, epochs = text.partition("x")
        if not (batch.isdecimal() and epochs.isdecimal() and int(batch) and int(epochs)):
            raise UsageError(f"--budgets has '{text}', expected BATCHxEPOCHS such as 192x3")
        budgets.append(Budget(int(batch), int(epochs)))
    return budgets


def parse_peaks(texts: Iterable[str]) -> list[float]:
    """Rates above 0. Raises UsageError."""
    peaks = []
    for text in texts:
        try:
            peaks.append(float(text))
        except ValueError:
            peaks.append(math.nan)
        if not 0 < peaks[-1] < math.inf:
            raise UsageError(f"--peaks has '{text}', expected a learning rate above 0")
    return peaks


def order_of(budget: Budget, seed: int, count: int) -> NDArray[np.int32]:
    """The samples of all epochs, one after the other, without those that do not fill a batch.

    Raises OutOfMemoryError where they are too many.
    """
    kept = count // budget.batch_size * budget.batch_size
    memory.require(2 * 4 * budget.epochs * kept, f"the order of the images in {budget.epochs} epochs")
    return np.concatenate([epoch_order(seed, epoch, count)[:kept] for epoch in range(1, budget.epochs + 1)])


@dataclass(frozen=True)
class Run:
    """One training: the accuracy after it, and the seconds it took; `total_seconds` with what stands around it."""

    seed: int
    accuracy: float
    train_seconds: float
    total_seconds: float


@dataclass(frozen=True)
class Runs:
    """A competitor's runs."""

    competitor: str
    runs: list[Run]

    @property
    def recipe_text(self) -> str:
        return "its own"

    def accuracies(self) -> NDArray[np.float64]:
        return np.array([run.accuracy for run in self.runs])

    def median(self) -> float:
        """Of the accuracies."""
        return float(np.median(self.accuracies()))

    def mean(self) -> float:
        """Of the accuracies."""
        return float(self.accuracies().mean())

    def interval(self) -> float:
        """Half of the mean's 95 % interval, 1.96 standard errors; NaN for a single run."""
        values = self.accuracies()
        return 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    def reached(self, target: float) -> int:
        """How many runs came to the target."""
        return int((self.accuracies() >= target).sum())

    def train_seconds(self) -> float:
        """Median over the runs."""
        return float(np.median([run.train_seconds for run in self.runs]))

    def total_seconds(self) -> float:
        """Median over the runs."""
        return float(np.median([run.total_seconds for run in self.runs]))

    def as_json(self, target: float) -> dict[str, Any]:
        interval = self.interval()
        return {
            "competitor": self.competitor,
            "seeds": len(self.runs),
            "median_accuracy": self.median(),
            "mean_accuracy": self.mean(),
            "mean_interval": interval if math.isfinite(interval) else None,
            "reached": self.reached(target),
            "train_seconds_median": self.train_seconds(),
            "total_seconds_median": self.total_seconds(),
            "runs": [asdict(run) for run in self.runs],
        }


@dataclass(frozen=True)
class Result(Runs):
    """A competitor's runs of a recipe."""

    recipe: Recipe

    @property
    def recipe_text(self) -> str:
        return str(self.recipe)

    def as_json(self, target: float) -> dict[str, Any]:
        recipe = asdict(self.recipe.budget) | {"schedule": self.recipe.schedule, "peak": self.recipe.peak}
        return super().as_json(target) | {"recipe": recipe}


class EngineTrainee:
    """Trains by recipes: an engine in this process that has the training set and the images that it is scored on."""

    def __init__(self, engine: Engine, images: Images, labels: Labels, scored: tuple[Images, Labels]) -> None:
        self.label = f"{engine.info.name}, {engine.precision}"
        self._engine, self._count = engine, len(labels)
        engine.set_dataset(images, labels)
        engine.set_evaluation_set(*scored)

    def train(self, recipe: Recipe, seed: int) -> Run:
        engine, batch = self._engine, recipe.budget.batch_size
        order = order_of(recipe.budget, seed, self._count)
        rates = recipe.rates(len(order) // batch)
        start = time.perf_counter()
        engine.init_parameters(seed)
        steps = time_steps(engine, order, batch, rates)
        engine.compute_statistics()
        accuracy = evaluate_again(engine).accuracy
        return Run(seed, accuracy, steps.seconds, time.perf_counter() - start)

    def expected_seconds(self, budgets: Iterable[Budget]) -> dict[Budget, float]:
        """About what a training in each budget will take here, by a few steps of each batch size and one evaluation."""
        engine, order = self._engine, epoch_order(0, 0, self._count)
        engine.init_parameters(0)
        start = time.perf_counter()
        engine.compute_statistics()
        evaluate_again(engine)
        around = time.perf_counter() - start

        @functools.cache
        def step(batch: int) -> float:
            few = min(SAMPLED_STEPS, self._count // batch)
            runs = [time_steps(engine, order[: few * batch], batch, np.zeros(few)) for _ in range(2)]
            return runs[-1].seconds / few  # the first allocates and captures the graphs

        return {b: around + b.epochs * (self._count // b.batch_size) * step(b.batch_size) for b in budgets}


class PeerTrainee:
    """Trains by recipes, too: another framework in a process of its own, set up for one budget."""

    def __init__(
        self, process: CompetitorProcess, competitor: Competitor, precision: str, data: dataset.Dataset, folder: Path
    ) -> None:
        self.label = f"{competitor.label}, {precision}"
        self._process, self._fields, self._precision = process, competitor.fields, precision
        self._data, self._count = folder / "data.npz", len(data.train_labels)
        self._files = {name: str(folder / file) for name, file in FILES.items()}
        self._budget: Budget | None = None
        if not self._data.exists():
            write_data(self._data, data)

    def train(self, recipe: Recipe, seed: int) -> Run:
        order = order_of(recipe.budget, seed, self._count)
        steps = len(order) // recipe.budget.batch_size
        write_array(Path(self._files["order"]), order)
        write_array(Path(self._files["rates"]), recipe.rates(steps))
        write_weights(Path(self._files["weights"]), seed)
        if recipe.budget == self._budget:
            self._process.ask(cmd="begin", **self._files)
        else:
            common = {"batch_size": recipe.budget.batch_size, "precision": self._precision, "npz": str(self._data)}
            self._process.ask(cmd="setup", **common, **self._fields, **self._files)
            self._budget = recipe.budget
        seconds = self._process.ask(cmd="run", steps=steps)["seconds"]
        start = time.perf_counter()
        accuracy = self._process.ask(cmd="evaluate")["test_accuracy"]
        return Run(seed, accuracy, seconds, seconds + time.perf_counter() - start)


FILES = {"weights": "weights.safetensors", "order": "order.npy", "rates": "rates.npy"}


def measure(trainee: EngineTrainee | PeerTrainee, recipe: Recipe, seeds: Sequence[int]) -> Result:
    """Train from each of the seeds, after a training that does not count."""
    trainee.train(recipe, seeds[0])
    return Result(trainee.label, [trainee.train(recipe, seed) for seed in seeds], recipe)


def choose(results: Iterable[Result]) -> Result:
    """The best mean accuracy; the first of equals."""
    return max(results, key=Result.mean)


COLUMNS = ("competitor", "recipe", "train ms", "total ms", "median", "mean", "at target")


def print_results(out: Console, results: Iterable[Runs], target: float) -> None:
    """Print a line for each result."""
    cells = []
    for result in results:
        interval = result.interval()
        mean = f"{100 * result.mean():.3f}" + (f" ± {100 * interval:.3f}" if math.isfinite(interval) else "")
        times = (console.format_count(1e3 * s) for s in (result.train_seconds(), result.total_seconds()))
        reached = f"{result.reached(target)} of {len(result.runs)}"
        cells.append(
            (
                result.competitor,
                result.recipe_text,
                *times,
                f"{100 * result.median():.2f} %",
                mean,
                reached,
            )
        )
    console.print_table(out, COLUMNS, cells, right=COLUMNS[2:], optional=("mean", "total ms"))


@dataclass(frozen=True, kw_only=True)
class TimeToAccuracyOptions(EngineOptions, DataOptions, RecordOptions):
    """The target, in per cent of the test images, and the candidates; None of these is BUDGETS, SCHEDULES, PEAKS.

    seeds: of the result. selection_seeds: of each candidate. hold_out: training images to choose by. freeze_at: per
    cent of these that the budget is to have right in the median; None lets the test images choose the budget. peers:
    who trains by the result's recipe, too, by an interpreter that has them.
    """

    target: float = 99.0
    budgets: Sequence[str] | None = None
    schedules: Sequence[str] | None = None
    peaks: Sequence[str] | None = None
    seeds: int = 20
    selection_seeds: int = 5
    hold_out: int = 5000
    freeze_at: float | None = None
    peers: Sequence[str] = ()
    peer_python: Path | None = None


def select(
    engine: Engine,
    data: dataset.Dataset,
    budgets: Sequence[Budget],
    shapes: Sequence[tuple[str, float]],
    options: TimeToAccuracyOptions,
    out: Console,
) -> tuple[list[Result], list[Result]]:
    """The best result of each budget by held-out training images, in rising time, and all results.

    shapes: schedule and peak of the recipes that are tried in each budget.
    """
    count, kept = len(data.train_labels), len(data.train_labels) - options.hold_out
    shuffled = epoch_order(0, 0, count)  # no run trains on an epoch 0
    train, held_out = np.sort(shuffled[:kept]), np.sort(shuffled[kept:])
    scored = data.train_images[held_out], data.train_labels[held_out]
    trainee = EngineTrainee(engine, data.train_images[train], data.train_labels[train], scored)
    seeds = range(SELECTION_SEED, SELECTION_SEED + options.selection_seeds)
    each = sum(trainee.expected_seconds(budgets).values())
    times = (each * len(shapes) * (1 + len(seeds)), each * count / kept * (1 + options.seeds))
    choosing, training = map(console.format_duration, times)
    peers_too = "; the peers come on top of that" if words(options.peers) else ""
    out.print(f"it takes about {choosing} to choose the recipes and at most {training} to train by them{peers_too}")
    chosen, tried = [], []
    with console.LiveLine(out) as live:
        for done, budget in enumerate(budgets):
            live.show(done / len(budgets), f"held-out images choose the recipe of {budget}")
            results = [measure(trainee, Recipe(budget, *shape), seeds) for shape in shapes]
            chosen.append(choose(results))
            tried += results
    chosen.sort(key=Result.train_seconds)
    out.print(
        f"\nthe best recipe of each budget by {options.hold_out} held-out training images, of {len(shapes)} with "
        f"{console.plural(len(seeds), 'seed')} each, after training on the other {kept}:"
    )
    print_results(out, chosen, options.target / 100)
    return chosen, tried


def try_budgets(
    engine: Engine, data: dataset.Dataset, recipes: Sequence[Recipe], options: TimeToAccuracyOptions, out: Console
) -> list[Result]:
    """Results on the test images after training on all others, to the first with its median at the target."""
    rows: list[Result] = []
    trainee = EngineTrainee(engine, data.train_images, data.train_labels, (data.test_images, data.test_labels))
    with console.LiveLine(out) as live:
        for done, recipe in enumerate(recipes):
            live.show(done / len(recipes), f"recipe {recipe}, {options.seeds} seeds")
            rows.append(measure(trainee, recipe, range(options.seeds)))
            if rows[-1].median() >= options.target / 100:
                break
    return rows


def train_peers(
    peers: Sequence[Competitor], precision: str, data: dataset.Dataset, recipe: Recipe, seeds: int, out: Console
) -> tuple[list[Result], list[str]]:
    """Results of other frameworks by this recipe; and why there is none of some."""
    rows, faults = [], []
    with tempfile.TemporaryDirectory() as folder, console.LiveLine(out) as live:
        for done, peer in enumerate(peers):
            live.show(done / len(peers), f"{peer.label}, {seeds} seeds")
            try:
                with CompetitorProcess(peer.command) as process:
                    trainee = PeerTrainee(process, peer, precision, data, Path(folder))
                    rows.append(measure(trainee, recipe, range(seeds)))
            except CompetitorError as error:
                faults.append(f"{peer.label}: {error}")
    return rows, faults


def command(options: TimeToAccuracyOptions) -> int:
    output = Record(options.json, busy=options.busy)
    budgets = list(dict.fromkeys(parse_budgets(some_words("--budgets", options.budgets or BUDGETS))))
    schedules = some_words("--schedules", options.schedules or SCHEDULES)
    peaks = parse_peaks(some_words("--peaks", options.peaks or map(str, PEAKS)))
    for schedule in schedules:
        parse_schedule(schedule, 0)
    engine = options.make()
    peers = peer_competitors(words(options.peers), [engine.info.device], options.peer_python or PEER_PYTHON)
    for peer in peers:
        if peer.unavailable:
            raise UnavailableError(f"{peer.label} cannot run here: {peer.unavailable}")
    data = options.load()
    count, target = len(data.train_labels), options.target / 100
    largest = max(budget.batch_size for budget in budgets)
    if count - options.hold_out < largest:
        raise UsageError(
            f"the {count} training images less {options.hold_out} held out do not fill a batch of {largest}"
        )
    facts = tables.Circumstances(data, options.threads or len(os.sched_getaffinity(0)))
    out = console.make_console(stderr=output.on_stdout)
    out.print(f"training time to {options.target:g} %, {engine.info.name} {engine.precision}, {data.name}")
    chosen, tried = select(engine, data, budgets, list(itertools.product(schedules, peaks)), options, out)

    way = "budgets in rising time, to the first with a median at the target: the test set chose it, but not its recipe"
    if options.freeze_at is not None:
        chosen = [held for held in chosen if held.median() >= options.freeze_at / 100][:1]
        way = f"the shortest budget with a median at {options.freeze_at:g} % of the held-out images, frozen by that"
    out.print(f"\nby the {len(data.test_labels)} test images, after training on all {count}; {way}")
    rows = try_budgets(engine, data, [held.recipe for held in chosen], options, out)
    reached = bool(rows) and rows[-1].median() >= target
    print_results(out, rows, target)

    faults: list[str] = []
    if reached and peers:
        out.print("\nthe same recipe, seeds, weights and orders, in other frameworks:")
        others, faults = train_peers(peers, engine.precision, data, rows[-1].recipe, options.seeds, out)
        print_results(out, others, target)
        rows += others
        for fault in faults:
            out.print(fault)
    if not chosen:
        out.print("\nnone was frozen: no budget came so far")
    elif not reached:
        out.print(f"\nno budget brought half of its seeds to {options.target:g} %")
    if output:
        names = ("target", "seeds", "selection_seeds", "hold_out", "freeze_at", "device")
        settings = {name: getattr(options, name) for name in names}
        settings |= {"engine": engine.info.name, "precision": engine.precision}
        selection = {"selection": [result.as_json(target) for result in tried]}
        records = [result.as_json(target) for result in rows]
        facts.write(output, records, settings, clock=CLOCK, reached=reached, faults=faults, **selection)
        if output.file:
            out.print(f"\nwritten: {output.file}")
    return 0 if reached else 1
