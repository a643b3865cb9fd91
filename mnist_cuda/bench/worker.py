"""One engine in a process of its own, driven by JSON lines: `python -m mnist_cuda.bench.worker ENGINE`.

Each line on stdin is a command, each line on stdout its answer; peers/baseline.py, which the peers share, speaks the
same protocol and says what the fields mean. Here `device` of the set-up is the GPU's ordinal.
    {"cmd": "setup", "batch_size", "lr", "precision", "threads", "device", "data", "npz", "weights", "order"}
        -> {"ok": true, "engine": the one that `auto` is, "setup_seconds", "versions"}; without weights, those of seed 0
    {"cmd": "run", "steps": 100} -> {"seconds", "losses": [first, last]}; the batches follow the order round and round
    {"cmd": "restart"} -> {"ok": true}   (the weights and the batch that the setup began with)
    {"cmd": "evaluate"} -> {"test_accuracy", "parameters_sha256"}
    {"cmd": "quit"}
    anything that fails -> {"error": "one line"}
Started several times, as bench/fan_out.py does, the engines join, and each has the GPU of its rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda.engine import Engine, Fleet, find_engine
from mnist_cuda.engine.model import digest, init_parameters
from mnist_cuda.engine.timing import time_steps
from mnist_cuda.machine import versions
from mnist_cuda.ranks.processes import inherited
from mnist_cuda.ranks.session import communicator_of
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.run.evaluation import evaluate


class Worker:
    """Holds the engine between the commands."""

    def __init__(self, engine: str) -> None:
        self._name = engine

    def setup(self, command: dict[str, Any]) -> dict[str, Any]:
        """A fresh engine at step 0. Reading the files is not part of `setup_seconds`."""
        with np.load(command["npz"]) as arrays:
            images, labels = arrays["images"], arrays["labels"]
            self._test = (arrays["test_images"], arrays["test_labels"]) if "test_images" in arrays else None
        weights = command.get("weights")
        self._weights = load_model(Path(weights)).parameters if weights else init_parameters(0)
        self._batch, self._lr = int(command["batch_size"]), float(command["lr"])
        order = np.load(command["order"]).astype(np.int32)
        steps = len(order) // self._batch
        if steps == 0:
            raise ValueError(f"batch size {self._batch} exceeds the {len(order)} images of the order")
        models = int(command.get("models", 1))
        self._orders = np.stack([np.roll(order[: steps * self._batch], -m * self._batch) for m in range(models)])
        self._position = 0
        start = time.perf_counter()
        place = inherited(os.environ)
        on_gpu = find_engine(self._name).device == "cuda"
        device = command.get("device", 0) + (place[0].local_rank if place and on_gpu else 0)
        self._engine = Engine(self._name, command["precision"], threads=command["threads"], device=device)
        self._ranks = communicator_of(*place) if place else None
        if self._ranks:
            self._engine.join(self._ranks)
        self._engine.set_parameters(self._weights)
        self._engine.set_dataset(images, labels, command["data"])
        self._fleet = None
        if models > 1:
            self._fleet = self._engine.fleet(models, self._batch, self._engine.share_for(self._batch))
            self._store(self._fleet)
        return {
            "ok": True,
            "engine": self._engine.info.name,
            "setup_seconds": time.perf_counter() - start,
            "versions": versions(),
            "precision_pinned": self._engine.arithmetic,
        }

    def restart(self, command: dict[str, Any]) -> dict[str, Any]:
        """The weights and the batch again that the setup began with."""
        self._engine.set_parameters(self._weights)
        if self._fleet:
            self._store(self._fleet)
        self._position = 0
        return {"ok": True}

    @staticmethod
    def _store(fleet: Fleet) -> None:
        for model in range(fleet.models):
            fleet.store(model)

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """`steps` steps from where the last ones ended; which samples they take is settled before the clock starts."""
        count = command["steps"] * self._batch
        orders = np.take(self._orders, range(self._position, self._position + count), axis=1, mode="wrap")
        self._position = (self._position + count) % self._orders.shape[1]
        if self._ranks:
            self._ranks.all_gather(b"")  # all begin together
        if self._fleet:
            rates = np.full((len(orders), command["steps"]), self._lr)
            start = time.perf_counter()
            losses = self._fleet.train(orders, rates)[0].mean(axis=0)
            seconds = time.perf_counter() - start
        else:
            steps = time_steps(self._engine, orders[0], self._batch, self._lr)
            losses, seconds = steps.losses, steps.seconds
        return {"seconds": seconds, "losses": [float(losses[0]), float(losses[-1])]}

    def evaluate(self, command: dict[str, Any]) -> dict[str, Any]:
        """Accuracy on the npz's test images, by the statistics of all training images; a hash of the parameters."""
        if self._test is None:
            raise ValueError("the npz has no test images")
        self._engine.compute_statistics()
        accuracy = evaluate(self._engine, *self._test).accuracy
        return {"test_accuracy": accuracy, "parameters_sha256": digest(self._engine.parameters)}


def serve(engine: str) -> None:
    """Answer until `quit` or the end of stdin."""
    worker = Worker(engine)
    answers = {"setup": worker.setup, "run": worker.run, "restart": worker.restart, "evaluate": worker.evaluate}
    for line in sys.stdin:
        try:
            command = json.loads(line)
            if command["cmd"] == "quit":
                return
            answer = answers[command["cmd"]](command)
        except Exception as error:  # the other side decides what becomes of it
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        print(json.dumps(answer), flush=True)


def end_with_parent() -> None:
    """End this process, even in a native call, soon after the benchmark's is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark's process ends this one
    serve(sys.argv[1])
