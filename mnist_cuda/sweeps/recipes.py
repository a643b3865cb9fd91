"""The recipes of a sweep, the best first: what its models come to that differ in the seed alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnist_cuda.sweeps.grid import OPTIONS
from mnist_cuda.sweeps.table import SweptModel

Numbers = Sequence[float]  # NaN of a model that diverged


def deviation(values: Sequence[float]) -> float:
    """Standard deviation, as of a sample; 0 of fewer than two values."""
    mean = math.fsum(values) / max(1, len(values))
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))


@dataclass(frozen=True)
class Recipe:
    """Models of a sweep that differ in the seed alone.

    options: those in which recipes of the sweep differ, as text. accuracies: on the test images, of each model that
    did not diverge; diverged: how many did. held: the mean on the images held out; None where it is not known of all
    models of the sweep.
    """

    options: dict[str, str]
    accuracies: tuple[float, ...]
    diverged: int
    held: float | None

    @property
    def models(self) -> int:
        """How many there are."""
        return len(self.accuracies) + self.diverged

    @property
    def mean(self) -> float:
        """Mean test accuracy. A model that diverged has 0: no image is right."""
        return math.fsum(self.accuracies) / self.models

    @property
    def deviation(self) -> float:
        """Standard deviation of the accuracies."""
        return deviation(self.accuracies)

    @property
    def name(self) -> str:
        """For people: `lr 0.1, batch 64`."""
        return ", ".join(f"{words(name)} {value}" for name, value in self.options.items())

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints of the best one."""
        return {
            "options": self.options,
            "models": self.models,
            "diverged": self.diverged,
            "mean_accuracy": self.mean,
            "held_out_accuracy": self.held,
        }


def words(option: str) -> str:
    """An option's name for people."""
    return "batch" if option == "batch_size" else option.replace("_", " ")


def varied(options: Mapping[str, Sequence[str]]) -> list[str]:
    """The options, but the seed, in which models differ."""
    return [name for name, cells in options.items() if name != "seed" and len(set(cells)) > 1]


def recipes(options: Mapping[str, Sequence[str]], accuracies: Numbers, held: Numbers = ()) -> list[Recipe]:
    """The recipes of models, the best first: by `held`, without it by the test accuracies; of equals the first.

    options: by name, of each model. held: accuracies on images held out.
    """
    names = varied(options)
    found: dict[tuple[str, ...], list[int]] = {}
    for k in range(len(accuracies)):
        found.setdefault(tuple(options[name][k] for name in names), []).append(k)
    ended = [k for k, value in enumerate(accuracies) if not math.isnan(value)]
    by_held = bool(held and ended) and not any(math.isnan(held[k]) for k in ended)

    def recipe(values: tuple[str, ...], models: Sequence[int]) -> Recipe:
        sound = [k for k in models if not math.isnan(accuracies[k])]
        mean = math.fsum(held[k] for k in sound) / len(models) if by_held else None
        of_test = tuple(accuracies[k] for k in sound)
        shown = {name: _text(name, value) for name, value in zip(names, values, strict=True)}
        return Recipe(shown, of_test, len(models) - len(sound), mean)

    made = [recipe(values, models) for values, models in found.items()]
    return sorted(made, key=lambda one: one.mean if one.held is None else one.held, reverse=True)


def recipes_of(rows: Sequence[SweptModel]) -> list[Recipe]:
    """The recipes of a sweep's rows."""
    texts = {name: [str(getattr(row.options, name)) for row in rows] for name in OPTIONS}
    test = [math.nan if row.test_accuracy is None else row.test_accuracy for row in rows]
    held = [math.nan if row.validation_accuracy is None else row.validation_accuracy for row in rows]
    return recipes(texts, test, held)


def _text(name: str, value: str) -> str:
    return f"{float(value):g}" if name == "lr" else value


def table(found: Sequence[Recipe]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Names of columns and a row for each recipe, accuracies in per cent; without columns that would say nothing."""
    several, held = any(one.models > 1 for one in found), any(one.held is not None for one in found)
    diverged = any(one.diverged for one in found)
    options = list(found[0].options)

    def row(one: Recipe) -> tuple[str, ...]:
        test = [100 * value for value in one.accuracies]
        cells = [*one.options.values(), *([str(one.models)] if several else [])]
        cells += [f"{100 * one.held:.2f}"] if one.held is not None else []
        cells += [f"{100 * one.mean:.2f}"]
        if several:
            cells += [f"{100 * one.deviation:.2f}" if len(test) > 1 else "-"]
            cells += [f"{min(test):.2f}", f"{max(test):.2f}"] if test else ["-", "-"]
        return (*cells, *([str(one.diverged)] if diverged else []))

    spread = ["deviation", "least", "most"] if several else []
    columns = [*map(words, options), *(["models"] if several else []), *(["held out, %"] if held else [])]
    return (*columns, "test, %", *spread, *(["diverged"] if diverged else [])), [row(one) for one in found]
