"""`bench time-to-accuracy --submit FILE`: a foreign program trains, and is judged by this clock and these test images.

The program reads a JSON line for each command and answers with one; peers/submission.py is its side in Python.
    {"cmd": "setup", "images": 60000, "test_images": 10000} -> {"ok": true, "versions": {...}}
    for each seed:
    {"cmd": "prepare", "seed": 0, "images": "train.npy"} -> {"ok": true}   (uint8 (N,28,28), without their labels)
    {"cmd": "train", "labels": "504..."} -> {"ok": true}   (a digit for each image; here the clock starts)
    {"cmd": "classify", "images": "test.npy"} -> {"classes": "721..."}   (a digit for each image; here it stops)
    {"cmd": "quit"}
    anything that fails -> {"error": "one line"}
For each seed the judge draws another order of the training images, another order of the test images, and another digit
for each class. So a table of the public labels by position, or a model of an earlier seed, is as good as a guess.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mnist_cuda.bench import tables
from mnist_cuda.bench.competitors import PEER_PYTHON
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess, write_array
from mnist_cuda.bench.record import Record
from mnist_cuda.bench.time_to_accuracy import Run, Runs, print_results
from mnist_cuda.data.catalogue import DATASETS
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import Labels
from mnist_cuda.errors import MnistCudaError, UnavailableError, UsageError
from mnist_cuda.run.options import DataOptions, RecordOptions
from mnist_cuda.terminal import console

CLOCK = (
    "this process's wall time. total: from before the training labels are sent to after the classes of the test images "
    "have come, and so with the way of both, population statistics and classification. train: to the program's word "
    "that it has trained. Not in either: set-up, the training images without labels, initial weights, orders, and one "
    "training that does not count"
)
RULE_SEEDS = 200  # that an entry of docs/mnist-99.md takes


def command_of(file: Path, python: Path) -> tuple[str, ...]:
    """How to start the program. Raises UsageError for what is no program, UnavailableError without the interpreter."""
    if not file.is_file():
        raise UsageError(f"--submit {file}: there is no such file")
    if file.suffix != ".py":
        if not os.access(file, os.X_OK):
            raise UsageError(f"--submit {file}: expected a Python program that ends in .py, or an executable file")
        return (str(file.resolve()),)
    if not python.exists():
        raise UnavailableError(f"there is no {python} to run {file} by; name an interpreter by --peer-python")
    return str(python), str(file)


def digits(values: Labels) -> str:
    """[5, 0, 4] as `504`."""
    return bytes(values + ord("0")).decode()


class Judge:
    """A program that is set up, and what it is judged by."""

    def __init__(self, process: CompetitorProcess, data: Dataset, folder: Path, rng: np.random.Generator) -> None:
        self._process, self._data, self._rng = process, data, rng
        self._train, self._test = folder / "train.npy", folder / "test.npy"
        counts = {"images": len(data.train_labels), "test_images": len(data.test_labels)}
        self.versions = process.ask(cmd="setup", **counts).get("versions")

    def run(self, seed: int) -> Run:
        """One training and its accuracy. Raises CompetitorError."""
        data, rng = self._data, self._rng
        order, test_order = rng.permutation(len(data.train_labels)), rng.permutation(len(data.test_labels))
        names = rng.permutation(10).astype(np.uint8)
        write_array(self._train, data.train_images[order])
        write_array(self._test, data.test_images[test_order])
        labels, right = digits(names[data.train_labels[order]]), names[data.test_labels[test_order]]
        self._process.ask(cmd="prepare", seed=seed, images=str(self._train))
        start = time.perf_counter()
        self._process.ask(cmd="train", labels=labels)
        trained = time.perf_counter()
        answer = self._process.ask(cmd="classify", images=str(self._test))
        end = time.perf_counter()
        found = answer.get("classes")
        if not (isinstance(found, str) and len(found) == len(right) and found.isascii() and found.isdecimal()):
            raise CompetitorError(f"its classes are {str(found)[:40]!r}, expected a text of {len(right)} digits")
        return Run(seed, sum(map(str.__eq__, found, digits(right))) / len(right), trained - start, end - start)


def verdicts(result: Runs, target: float) -> list[str]:
    """A sentence by each of the two criteria."""
    count, reached, at = len(result.runs), result.reached(target), f"{100 * target:g} %"
    ms = 1e3 * result.total_seconds()
    in_time = f"reached in {console.format_count(ms)} ms"
    return [
        f"median of {count} runs at {at}: {in_time if result.median() >= target else 'not reached'} "
        f"({100 * result.median():.3f} %)",
        f"every run at {at}: {in_time if reached == count else 'not reached'} ({reached} of {count})",
    ]


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(DataOptions, RecordOptions):
    """Which program, by which interpreter if it is in Python; the target in per cent of the test images; the seeds."""

    submit: Path
    peer_python: Path | None = None
    target: float = 99.0
    seeds: int = RULE_SEEDS


def command(options: SubmitOptions) -> int:
    """Judge the program; exit code 1 where its median is below the target."""
    file, output = options.submit, Record(options.json, busy=options.busy)
    words = command_of(file, options.peer_python or PEER_PYTHON)
    data, target = options.load(), options.target / 100
    facts = tables.Circumstances(data, len(os.sched_getaffinity(0)))
    out = console.make_console(stderr=output.on_stdout)
    out.print(f"{file} on {data.name}, {console.plural(options.seeds, 'seed')}; total ms is what counts")
    entropy = np.random.SeedSequence().entropy  # nobody can foresee it
    runs = []
    with tempfile.TemporaryDirectory(prefix="mnist-cuda-") as folder, console.LiveLine(out) as live:
        live.show(0, "setting up")
        try:
            with CompetitorProcess(words) as process:
                judge = Judge(process, data, Path(folder), np.random.default_rng(entropy))
                live.show(0, "a training that does not count")
                estimate = console.Estimate(out)
                judge.run(options.seeds)
                estimate.after(1 / (options.seeds + 1))
                for seed in range(options.seeds):
                    live.show(seed / options.seeds, f"seed {seed}")
                    runs.append(judge.run(seed))
        except CompetitorError as error:
            raise MnistCudaError(f"{file}: {error}") from None
    result = Runs(file.name, runs)
    print_results(out, [result], target)
    for text in verdicts(result, target):
        out.print(text)
    if options.seeds < RULE_SEEDS:
        out.print(f"no entry: that takes {RULE_SEEDS} seeds")
    if data.digest != DATASETS["mnist"].digest:
        out.print("no entry: that takes MNIST")
    settings = {"target": options.target, "seeds": options.seeds, "submit": str(file)}
    more = {"clock": CLOCK, "entropy": str(entropy), "versions_of_program": judge.versions}
    facts.write(output, [result.as_json(target)], settings, **more)
    if output.file:
        out.print(f"\nwritten: {output.file}")
    return 0 if result.median() >= target else 1
