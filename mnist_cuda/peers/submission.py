"""The program's side of `mnist-cuda bench time-to-accuracy --submit`; docs/mnist-99.md has protocol and rules.

`serve` speaks the protocol for an object with the methods of Submission; OfBaseline is one around a baseline of this
folder. Needs only numpy.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Protocol

import baseline
import numpy as np
from baseline import Data, Setup

# The recipe that our engines, PyTorch and JAX share: images per step, epochs, schedule, peak of the rate.
BATCH_SIZE, EPOCHS, SCHEDULE, PEAK = 192, 4, "triangle:0.2", 0.6


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


def order_of(seed: int, count: int) -> np.ndarray:
    """Rows of BATCH_SIZE samples for all steps; in each epoch those that do not fill a batch are dropped."""
    rng, kept = np.random.default_rng(seed), count // BATCH_SIZE * BATCH_SIZE
    return np.concatenate([rng.permutation(count)[:kept] for _ in range(EPOCHS)]).reshape(-1, BATCH_SIZE)


def rates_of(count: int) -> np.ndarray:
    """The rate of each of these steps."""
    return baseline.schedule_rates(SCHEDULE, PEAK, count // BATCH_SIZE * EPOCHS)


class OfBaseline:
    """A baseline by the recipe above; setup: which precision, mode and device."""

    def __init__(self, trainer_class: Any, **setup: Any) -> None:
        self._class, self._setup = trainer_class, Setup(batch_size=BATCH_SIZE, **setup)

    def setup(self, images: int, test_images: int) -> dict[str, str]:
        pictures, labels = (np.zeros((images, 28, 28), np.uint8), np.zeros(images, np.uint8))
        unseen = np.zeros((test_images, 28, 28), np.uint8)
        data = Data(pictures, labels, unseen, np.zeros(test_images, np.uint8))
        order = order_of(0, images)
        self._steps = len(order)
        self._trainer = self._class(self._setup, data, None, order, rates_of(images))
        self._trainer.classes(unseen)
        return self._trainer.versions

    def prepare(self, seed: int, images: np.ndarray) -> None:
        trainer = self._trainer
        trainer.set_images(images)
        trainer.set_order(order_of(seed, len(images)))
        trainer.set_weights(baseline.initial_weights(seed))
        trainer.restart()

    def train(self, labels: np.ndarray) -> None:
        self._trainer.set_labels(labels)
        self._trainer.run(self._steps)

    def classify(self, images: np.ndarray) -> np.ndarray:
        return self._trainer.classes(images)


def digits(text: str) -> np.ndarray:
    """`504` as [5, 0, 4]."""
    return np.frombuffer(text.encode(), np.uint8) - ord("0")


def serve(submission: Submission) -> None:
    """Answer until `quit` or the end of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a framework prints must not end up between the answers
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {"ok": True}
        try:
            if command["cmd"] == "quit":
                return
            if command["cmd"] == "setup":
                answer["versions"] = submission.setup(command["images"], command["test_images"])
            elif command["cmd"] == "prepare":
                submission.prepare(command["seed"], np.load(command["images"]))
            elif command["cmd"] == "train":
                submission.train(digits(command["labels"]))
            else:
                classes = submission.classify(np.load(command["images"]))
                answer["classes"] = (np.asarray(classes, np.uint8) + ord("0")).tobytes().decode()
        except Exception as error:
            answer = {"error": baseline.one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)
