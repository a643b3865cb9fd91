"""Searches for a recipe of docs/mnist-99.md by held-out images: trains `fused` a few thousand times on a GPU.

For each TIME it draws recipes whose training takes so many milliseconds here, or changes one of the ten best a little,
and trains each from a few seeds; the best get more seeds, in the end SEEDS. No test image is read.
The best has the highest mean accuracy, less what few seeds may err; with --worst, less three standard deviations, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from checks.runner import ROOT

SEED = 1_000_000  # the first; those of the judge start at 0
HELD_OUT = 5000
BATCHES = (
    (64, 192, 512),
    (64, 256, 512),
    (64, 256, 384),
    (64, 128, 256, 512),
    (64, 512),
    (96, 512),
    (128, 512),
    (64, 256),
    (192,),
)
PEAKS = (0.06, 0.07, 0.08, 0.09, 0.1, 0.11, 0.12, 0.14, 0.17)
FILTERS = (0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0)
SPREAD = 0.0008  # of an accuracy over the seeds, about
FEW, MORE, MANY = 4, 8, 64  # seeds of a new recipe, at a time, before the last round
DRAWN, KEPT = 40, 20  # recipes before the best are changed, in the record


@dataclass
class Tried:
    """A recipe: the share of the time in each phase, and the accuracies by seed."""

    recipe: Any
    shares: np.ndarray
    accuracies: list[float] = field(default_factory=list)

    def score(self, worst: bool) -> float:
        """By which the best are chosen."""
        found = np.array(self.accuracies)
        spread = max(found.std(), SPREAD / 2)
        return float(found.mean() - spread / np.sqrt(len(found)) - (3 * spread if worst else 0))

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        found = np.array(self.accuracies)
        facts = {"seeds": len(found), "median": np.median(found), "mean": found.mean(), "worst": found.min()}
        return asdict(self.recipe) | facts


class Search:
    """The engine, the images, and what a step takes."""

    def __init__(self, args: argparse.Namespace) -> None:
        sys.path.insert(0, str(ROOT / "mnist_cuda" / "peers"))
        import submission

        from mnist_cuda import Engine, load_dataset
        from mnist_cuda.run.training import epoch_order

        self.recipe, self.args = submission.Recipe, args
        data = load_dataset("mnist", data_dir=args.data_dir)
        self.count = len(data.train_labels) - HELD_OUT
        rows = epoch_order(0, 0, len(data.train_labels))  # no run trains on an epoch 0
        train, held_out = np.sort(rows[: self.count]), np.sort(rows[self.count :])
        self.engine = Engine("fused", "bf16")
        self.images, self.labels = data.train_images[train], data.train_labels[train]
        self.engine.set_dataset(self.images, self.labels)
        self.engine.set_evaluation_set(data.train_images[held_out], data.train_labels[held_out])
        self.engine.init_parameters(0)
        self.ms = {batch: self._step(batch) for batch in sorted({b for row in BATCHES for b in row}, reverse=True)}
        self.rng = np.random.default_rng(SEED)
        self.weights: dict[tuple[int, float], Any] = {}

    def _step(self, batch: int) -> float:
        """Milliseconds a step, the best of some calls: the first captures the graphs."""
        steps, times = 128, []
        order = np.resize(np.arange(self.count, dtype=np.int32), steps * batch)
        for _ in range(4):
            start = time.perf_counter()
            self.engine.train(order, batch, 0.0)
            times.append(1e3 * (time.perf_counter() - start) / steps)
        return min(times)

    def made(self, batches: tuple[int, ...], shares: np.ndarray, ms: float, peak: float, filters: float) -> Tried:
        """A recipe that takes so long here."""
        steps = [max(1, round(ms * share / self.ms[batch])) for batch, share in zip(batches, shares, strict=True)]
        phases = tuple(zip(batches, steps, strict=True))
        return Tried(self.recipe(phases, float(peak), float(filters)), shares)

    def drawn(self, ms: float) -> Tried:
        """Any recipe."""
        batches, rng = BATCHES[self.rng.integers(len(BATCHES))], self.rng
        return self.made(batches, rng.dirichlet(np.full(len(batches), 4.0)), ms, rng.choice(PEAKS), rng.choice(FILTERS))

    def near(self, best: Tried, ms: float) -> Tried:
        """Another one with other shares, another peak or other filters."""
        batches, shares = tuple(batch for batch, _ in best.recipe.phases), best.shares
        peak, filters = best.recipe.peak, best.recipe.filters
        what = self.rng.integers(3)
        if what == 0:
            shares = np.maximum(shares + self.rng.normal(0, 0.07, len(shares)), 0.03)
            shares = shares / shares.sum()
        elif what == 1:
            peak = self.rng.choice(PEAKS)
        else:
            filters = self.rng.choice(FILTERS)
        return self.made(batches, shares, ms, peak, filters)

    def train(self, tried: Tried, seeds: int) -> None:
        """Train from further seeds, up to so many."""
        recipe, engine = tried.recipe, self.engine
        for seed in range(SEED + len(tried.accuracies), SEED + seeds):
            engine.set_parameters(recipe.weights(seed))
            for order, rates in zip(recipe.orders(seed, self.count), recipe.rates(), strict=True):
                engine.train(order.ravel(), order.shape[1], rates)
            engine.set_dataset(self.images[: recipe.statistics], self.labels[: recipe.statistics])
            engine.compute_statistics()
            engine.set_dataset(self.images, self.labels)
            tried.accuracies.append(engine.evaluate()[0] / HELD_OUT)

    def best_of(self, ms: float, seconds: float) -> list[Tried]:
        """All recipes that were tried within so many seconds, the best first."""
        tried: list[Tried] = []
        end, worst = time.monotonic() + seconds, self.args.worst

        def ranked(seeds: int = 1) -> list[Tried]:
            return sorted(tried, key=lambda one: (len(one.accuracies) >= seeds, one.score(worst)), reverse=True)

        while time.monotonic() < end:
            new = self.drawn(ms)
            if len(tried) >= DRAWN and self.rng.random() < 0.85:
                new = self.near(ranked()[self.rng.integers(10)], ms)
            self.train(new, MORE if worst else FEW)
            tried.append(new)
            if len(tried) % 8 == 0:
                for one in ranked()[:6]:
                    self.train(one, min(len(one.accuracies) + MORE, MANY))
        for one in ranked()[:3]:
            self.train(one, self.args.seeds)
        return ranked(self.args.seeds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add = parser.add_argument
    add("times", type=float, nargs="+", metavar="TIME", help="milliseconds of training, without classification")
    add("--worst", action="store_true", help="look for what all seeds reach")
    add("--seconds", type=float, default=60, help="of search for each time, before the last round (default: 60)")
    add("--seeds", type=int, default=128, help="of the last round (default: 128)")
    add("--data-dir", type=Path, metavar="DIR", help="MNIST's files")
    add("--json", type=Path, metavar="FILE", help=f"write a record of the best {KEPT} of each time")


def run(args: argparse.Namespace) -> int:
    """Print the best three recipes of each time, and write the record."""
    from mnist_cuda.bench.record import Record

    record = Record(args.json)
    search, rows = Search(args), []
    for ms in args.times:
        found = search.best_of(ms, args.seconds)
        best = [one.as_json() for one in found[:KEPT]]
        trainings = sum(len(one.accuracies) for one in found)
        print(f"{ms:g} ms: {len(found)} recipes, {trainings} trainings", flush=True)
        for one in best[:3]:
            facts = ", ".join(f"{name} {100 * one[name]:.2f} %" for name in ("median", "mean", "worst"))
            print(f"  {facts} of {one['seeds']} seeds: {one['phases']}, peak {one['peak']}, filters {one['filters']}")
        rows.append({"ms": ms, "recipes": len(found), "trainings": trainings, "best": best})
    record.write({"step_ms": search.ms, "held_out": HELD_OUT, "rows": rows})
    return 0
