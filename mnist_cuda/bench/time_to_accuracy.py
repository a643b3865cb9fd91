"""The `bench time-to-accuracy` command: how long training takes until the test accuracy reaches a target.

The recipe is chosen without the test set: every candidate trains on the training set less 5,000 held-out images, some
seeds each, and the one with the smallest median time to the target on those wins. It then trains on the whole training
set with other seeds. Accuracy is taken after each epoch, and the first epoch at the target ends the time.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnist_cuda import console
from mnist_cuda.bench import report
from mnist_cuda.bench.competitors import words
from mnist_cuda.data import dataset
from mnist_cuda.engine import Engine, Images, Labels
from mnist_cuda.errors import UsageError
from mnist_cuda.evaluate import evaluate
from mnist_cuda.model import init_parameters
from mnist_cuda.timing import time_steps
from mnist_cuda.train import epoch_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

CLOCK = (
    "the sum of Engine.train's wall time over the epochs, one call an epoch, from an idle engine to all losses on the "
    "host: index upload, batch load, forward, backward, update and zero grad. Not in it: reading the data, set_dataset "
    "(which also precomputes the pixel moments of `fused`), initial weights, sample orders, evaluation, and a warm-up "
    "of two epochs and an evaluation for each recipe, which allocates and captures the graphs"
)
SELECTION_SEED = 1_000_000  # first of the seeds that choose the recipe; the final ones start at 0


@dataclass(frozen=True)
class Recipe:
    """Plain SGD: images a step and learning rate, constant, or falling in equal steps an epoch to 0 after `decay`."""

    batch_size: int
    lr: float
    decay: int = 0

    def __str__(self) -> str:
        return f"{self.batch_size}:{self.lr:g}" + (f":{self.decay}" if self.decay else "")

    def rate(self, epoch: int) -> float:
        """The learning rate of epoch 1, 2, ..."""
        return self.lr * (1 - (epoch - 1) / self.decay) if self.decay else self.lr

    def epochs(self, limit: int) -> int:
        """How many epochs it can use."""
        return min(self.decay, limit) if self.decay else limit


# The candidates where none are named.
RECIPES = (
    Recipe(64, 0.05),
    Recipe(128, 0.05),
    Recipe(128, 0.1),
    Recipe(256, 0.1),
    Recipe(256, 0.2),
    Recipe(512, 0.2),
    Recipe(512, 0.4),
)


@dataclass(frozen=True)
class Run:
    """One training: after each epoch its accuracy, and the seconds that it and its evaluation took."""

    seed: int
    accuracy: list[float]
    train_seconds: list[float]
    evaluation_seconds: list[float]
    reached: int | None  # the first epoch at the target

    def seconds(self) -> float:
        """Training time until the target; infinite if it was never reached."""
        return math.inf if self.reached is None else sum(self.train_seconds[: self.reached])

    def seconds_with_evaluation(self) -> float:
        """The same with the evaluation after each of these epochs."""
        return self.seconds() + sum(self.evaluation_seconds[: self.reached])

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        times = {"seconds": self.seconds(), "seconds_with_evaluation": self.seconds_with_evaluation()}
        return asdict(self) | {name: finite(value) for name, value in times.items()}


@dataclass(frozen=True)
class Result:
    """The runs of a recipe. A run that never reached the target counts as an infinite time."""

    recipe: Recipe
    runs: list[Run]

    def median(self) -> float:
        """Seconds."""
        return float(np.median([run.seconds() for run in self.runs]))

    def median_with_evaluation(self) -> float:
        """Seconds."""
        return float(np.median([run.seconds_with_evaluation() for run in self.runs]))

    def reached(self) -> int:
        """How many runs came to the target."""
        return sum(run.reached is not None for run in self.runs)

    def best(self) -> float:
        """The best accuracy of a run, mean over the runs."""
        return float(np.mean([max(run.accuracy) for run in self.runs]))

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        times = [run.seconds() for run in self.runs]
        return {
            "recipe": asdict(self.recipe),
            "seconds_median": finite(self.median()),
            "seconds_min": finite(min(times)),
            "seconds_max": finite(max(times)),
            "seconds_median_with_evaluation": finite(self.median_with_evaluation()),
            "reached": self.reached(),
            "seeds": len(self.runs),
            "runs": [run.as_json() for run in self.runs],
        }


def finite(seconds: float) -> float | None:
    """JSON has no infinity."""
    return seconds if math.isfinite(seconds) else None


def parse_recipes(texts: Sequence[str]) -> tuple[Recipe, ...]:
    """`256:0.1` or, with a decay over 3 epochs, `256:0.2:3`. Raises UsageError."""
    recipes = []
    for text in texts:
        try:
            batch, lr, *decay = text.split(":")
            recipe = Recipe(int(batch), float(lr), *map(int, decay))
        except (ValueError, TypeError):
            recipe = Recipe(0, 0)
        if recipe.batch_size < 1 or not 0 < recipe.lr < math.inf or recipe.decay < 0:
            raise UsageError(f"--recipes has '{text}', expected BATCH:RATE or BATCH:RATE:EPOCHS such as 256:0.2:3")
        recipes.append(recipe)
    return tuple(recipes)


@dataclass(frozen=True)
class Trial:
    """An engine that has the training set, `count` images, and the images to score it on."""

    engine: Engine
    count: int
    images: Images
    labels: Labels
    target: float  # a fraction
    limit: int  # epochs

    def result(self, recipe: Recipe, seeds: Sequence[int]) -> Result:
        """Train by the recipe from each of the seeds, after a warm-up."""
        for _ in range(2):  # an evaluation may need larger buffers, and graphs captured before it then go
            self._run(recipe, seeds[0], epochs=1)
        return Result(recipe, [self._run(recipe, seed, recipe.epochs(self.limit)) for seed in seeds])

    def _run(self, recipe: Recipe, seed: int, epochs: int) -> Run:
        engine, batch = self.engine, recipe.batch_size
        accuracies, train_seconds, evaluation_seconds = [], [], []
        engine.set_parameters(init_parameters(seed))
        for epoch in range(1, epochs + 1):
            order = epoch_order(seed, epoch, self.count)[: self.count // batch * batch]
            train_seconds.append(time_steps(engine, order, batch, recipe.rate(epoch)).seconds)
            start = time.perf_counter()
            engine.compute_statistics()
            accuracies.append(evaluate(engine, self.images, self.labels).accuracy)
            evaluation_seconds.append(time.perf_counter() - start)
        reached = next((epoch for epoch, a in enumerate(accuracies, 1) if a >= self.target), None)
        return Run(seed, accuracies, train_seconds, evaluation_seconds, reached)


def choose(results: list[Result]) -> Result:
    """The smallest median time; where no recipe has one, the most runs at the target, then the best accuracy."""
    return min(results, key=lambda result: (result.median(), -result.reached(), -result.best()))


def print_results(out: Console, results: Sequence[Result]) -> None:
    """Print a line for each recipe."""

    def ms(seconds: float) -> str:
        return console.format_count(1e3 * seconds) if math.isfinite(seconds) else "never"

    cells = []
    for result in results:
        times = [run.seconds() for run in result.runs]
        epochs = float(np.median([run.reached or math.inf for run in result.runs]))
        cells.append(
            (
                str(result.recipe),
                f"{result.reached()} of {len(result.runs)}",
                f"{epochs:g}" if math.isfinite(epochs) else "never",
                *map(ms, (result.median(), min(times), max(times), result.median_with_evaluation())),
                f"{100 * result.best():.2f} %",
            )
        )
    columns = ("recipe", "reached", "epochs", "median ms", "min", "max", "with evaluation", "best accuracy")
    console.print_table(out, columns, cells, right=columns[1:])


def command(args: argparse.Namespace) -> int:
    """`mnist-cuda bench time-to-accuracy`."""
    recipes = parse_recipes(words(args.recipes)) or RECIPES
    engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)
    data = dataset.load(args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)
    if data.warning:
        console.print_warning(data.warning)
    count, target = len(data.train_labels), args.target / 100
    kept = count - args.hold_out if len(recipes) > 1 else count
    largest = max(recipe.batch_size for recipe in recipes)
    if kept < largest:
        held = f" less {args.hold_out} held out" if kept < count else ""
        raise UsageError(f"the {count} training images{held} do not fill a batch of {largest}")
    facts = report.Facts(data, args.threads or len(os.sched_getaffinity(0)))
    out = console.make_console()
    out.print(f"training time to {args.target:g} %, {engine.info.name} {engine.precision}, {data.name}")

    def measure(trial: Trial, candidates: Sequence[Recipe], seeds: Sequence[int]) -> list[Result]:
        with console.LiveLine(out) as live:
            results = []
            for done, recipe in enumerate(candidates):
                live.show(done / len(candidates), f"recipe {recipe}")
                results.append(trial.result(recipe, seeds))
        print_results(out, results)
        return results

    selection: list[Result] = []
    if len(recipes) > 1:
        shuffled = epoch_order(0, 0, count)  # no run trains on an epoch 0
        train, held_out = np.sort(shuffled[:kept]), np.sort(shuffled[kept:])
        engine.set_dataset(data.train_images[train], data.train_labels[train])
        scored = data.train_images[held_out], data.train_labels[held_out]
        out.print(f"\nby {args.hold_out} held-out training images, after training on the other {kept}:")
        seeds = range(SELECTION_SEED, SELECTION_SEED + args.selection_seeds)
        selection = measure(Trial(engine, kept, *scored, target, args.epochs), recipes, seeds)
    recipe = choose(selection).recipe if selection else recipes[0]
    if selection and not math.isfinite(choose(selection).median()):
        console.print_warning(f"no recipe brought half of its seeds to the target; {recipe} came closest and is taken")
    engine.set_dataset(data.train_images, data.train_labels)
    out.print(f"\nby the {len(data.test_labels)} test images, after training on all {count}:")
    trial = Trial(engine, count, data.test_images, data.test_labels, target, args.epochs)
    (final,) = measure(trial, [recipe], range(args.seeds))
    if args.json:
        names = ("target", "seeds", "selection_seeds", "hold_out", "epochs", "device")
        settings = {name: getattr(args, name) for name in names}
        settings |= {"engine": engine.info.name, "precision": engine.precision}
        chosen = {"chosen": asdict(recipe), "selection": [result.as_json() for result in selection]}
        facts.write(args.json, [final.as_json()], settings, clock=CLOCK, **chosen)
        out.print(f"\nwritten: {args.json}")
    return 0 if math.isfinite(final.median()) else 1
