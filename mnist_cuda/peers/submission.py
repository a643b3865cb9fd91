"""The program's side of `mnist-cuda bench time-to-accuracy --submit`; docs/mnist-99.md has protocol and rules.

`serve` speaks the protocol for an object with the methods of Submission; OfBaseline is one around a baseline of this
folder. Needs only numpy.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Protocol

import baseline
import numpy as np
from baseline import Data, Setup

RISE = 0.05  # share of the images before the rate is at its peak


@dataclass(frozen=True)
class Recipe:
    """Plain SGD in phases of rising batch size.

    phases: images per step, and steps, of each. peak: of the rate of 64 images per step; B images have sqrt(B / 64)
    times as much. filters: factor of the initial weights of both convolutions. It changes no output, because batch norm
    follows, and a small one lets the same rate turn the filters further. statistics: batch norm's population statistics
    are taken from so many training images, the first ones.
    """

    phases: tuple[tuple[int, int], ...]
    peak: float
    filters: float
    statistics: int = 10_000

    def rates(self) -> list[np.ndarray]:
        """The rates of each phase, (steps,). They rise linearly and fall as the square root of the images left."""
        done, images, rates = 0, sum(batch * steps for batch, steps in self.phases), []
        for batch, steps in self.phases:
            t = (done + batch * (np.arange(steps) + 0.5)) / images
            shape = np.minimum(t / RISE, np.sqrt((1 - t) / (1 - RISE)))
            rates.append(self.peak * math.sqrt(batch / 64) * shape)
            done += batch * steps
        return rates

    def orders(self, seed: int, count: int) -> list[np.ndarray]:
        """Rows of samples of each phase, (steps, batch); all `count` samples come before one comes again."""
        rng, images = np.random.default_rng(seed), sum(batch * steps for batch, steps in self.phases)
        order = np.concatenate([rng.permutation(count) for _ in range(-(-images // count))])[:images].astype(np.int32)
        ends = np.cumsum([batch * steps for batch, steps in self.phases])[:-1]
        return [part.reshape(-1, batch) for part, (batch, _) in zip(np.split(order, ends), self.phases, strict=True)]

    def weights(self, seed: int) -> dict[str, np.ndarray]:
        """Initial ones."""
        weights = baseline.initial_weights(seed)
        factors = {"conv1.weight": self.filters, "conv2.weight": self.filters}
        return {name: factors.get(name, 1.0) * value for name, value in weights.items()}


# What our engines, PyTorch and JAX share: for half of the runs at 99 %, and for all of them.
RECIPES = {
    "median": Recipe(((64, 359), (192, 174), (512, 112)), peak=0.12, filters=0.5),
    "every": Recipe(((64, 1223), (192, 715), (512, 154)), peak=0.11, filters=0.25),
}
RECIPE = RECIPES[os.environ.get("RECIPE", "median")]


class Submission(Protocol):
    """What trains. The judge's clock runs from before `train` to after `classify`."""

    def setup(self, images: int, test_images: int) -> dict[str, str]:
        """Compile, allocate, warm up for so many images; returns the versions of what computes."""

    def prepare(self, seed: int, images: np.ndarray) -> None:
        """Everything before the labels: initial weights and order by the seed, the images (N,28,28) uint8 in place."""

    def train(self, labels: np.ndarray) -> None:
        """Train on the images and these labels (N,) uint8; return when it is done, on a GPU too."""

    def classify(self, images: np.ndarray) -> np.ndarray:
        """The classes (M,) of the test images (M,28,28) uint8."""


class OfBaseline:
    """A baseline by the recipe; setup: which precision, mode and device. Between phases the weights go by the host."""

    def __init__(self, trainer_class: Any, **setup: Any) -> None:
        self._class, self._setup = trainer_class, setup

    def setup(self, images: int, test_images: int) -> dict[str, str]:
        pictures, labels = (np.zeros((images, 28, 28), np.uint8), np.zeros(images, np.uint8))
        unseen = np.zeros((test_images, 28, 28), np.uint8)
        data = Data(pictures, labels, unseen, np.zeros(test_images, np.uint8))
        self._trainers = [
            self._class(Setup(batch_size=order.shape[1], **self._setup), data, None, order, rates)
            for order, rates in zip(RECIPE.orders(0, images), RECIPE.rates(), strict=True)
        ]
        self._trainers[-1].classes(unseen, RECIPE.statistics)
        return self._trainers[-1].versions

    def prepare(self, seed: int, images: np.ndarray) -> None:
        for trainer, order in zip(self._trainers, RECIPE.orders(seed, len(images)), strict=True):
            trainer.set_images(images)
            trainer.set_order(order)
        self._begin(0, RECIPE.weights(seed))

    def _begin(self, phase: int, weights: dict[str, np.ndarray]) -> None:
        self._trainers[phase].set_weights(weights)
        self._trainers[phase].restart()

    def train(self, labels: np.ndarray) -> None:
        for phase, (trainer, (_, steps)) in enumerate(zip(self._trainers, RECIPE.phases, strict=True)):
            trainer.set_labels(labels)
            if phase:
                self._begin(phase, self._trainers[phase - 1].parameters())
            trainer.run(steps)

    def classify(self, images: np.ndarray) -> np.ndarray:
        return self._trainers[-1].classes(images, RECIPE.statistics)


def digits(text: str) -> np.ndarray:
    """`504` as [5, 0, 4]."""
    return np.frombuffer(text.encode(), np.uint8) - ord("0")


def serve(submission: Submission) -> None:
    """Answer until `quit` or the end of stdin."""

    def setup(images: int, test_images: int) -> dict[str, Any]:
        return {"ok": True, "versions": submission.setup(images, test_images)}

    def prepare(seed: int, images: str) -> None:
        submission.prepare(seed, np.load(images, mmap_mode="r"))

    def train(labels: str) -> None:
        submission.train(digits(labels))

    def classify(images: str) -> dict[str, str]:
        classes = submission.classify(np.load(images, mmap_mode="r"))
        return {"classes": (np.asarray(classes, np.uint8) + ord("0")).tobytes().decode()}

    baseline.answer({"setup": setup, "prepare": prepare, "train": train, "classify": classify})
