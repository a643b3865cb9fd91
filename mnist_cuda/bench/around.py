"""`mnist-cuda bench around`: how long commands take to start, and what surrounds the steps of a training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from mnist_cuda.bench.competitors import words
from mnist_cuda.bench.record import Record
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import Engine, engines, find_engine
from mnist_cuda.errors import UnavailableError
from mnist_cuda.machine import gpu
from mnist_cuda.run.options import DataOptions, RecordOptions
from mnist_cuda.terminal import console

if TYPE_CHECKING:
    from rich.console import Console

MNIST_CUDA = [sys.executable, "-m", "mnist_cuda"]
COMMANDS = {
    "python, nothing": [sys.executable, "-c", "pass"],
    "import mnist_cuda": [sys.executable, "-c", "import mnist_cuda"],
    "mnist-cuda --help": [*MNIST_CUDA, "--help"],
    "mnist-cuda engines": [*MNIST_CUDA, "engines"],
}


@dataclass(frozen=True, kw_only=True)
class AroundOptions(DataOptions, RecordOptions):
    """engines: as NAME or NAME:PRECISION. runs: of each command and call."""

    engines: Sequence[str] | None = None
    batch_size: int = 256
    runs: int = 10


def seconds_of(command: Sequence[str], folder: Path) -> tuple[float, str]:
    """What a command takes from its start to its end, and what it prints. Raises UnavailableError if it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise UnavailableError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return seconds, done.stdout


def stages_of(engine: Engine, options: AroundOptions, folder: Path) -> dict[str, float]:
    """Seconds of an epoch of training by stage; `thread: ` marks what was done meanwhile."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [*MNIST_CUDA, "train", f"--engine={engine.info.name}", f"--precision={engine.precision}", "--epochs=1"]
    command += [f"--batch-size={options.batch_size}", f"--dataset={options.dataset}", "--out=run", "--quiet", "--json"]
    command += [f"--data-dir={options.data_dir.absolute()}"] if options.data_dir else []
    seconds, out = seconds_of(command, folder)
    report = json.loads(out)
    stages: dict[str, float] = report["startup_seconds"]
    meanwhile = {f"thread: {name}": spent for name, spent in report["startup_seconds"].pop("meanwhile").items()}
    return stages | meanwhile | {"training": report["training_seconds"], "command": seconds}


def calls_of(engine: Engine, data: Dataset, batch: int) -> dict[str, Callable[[], object]]:
    """What is called beside the steps of a training, by name; after a hundred steps of it."""
    engine.init_parameters(0)
    engine.set_dataset(data.train_images, data.train_labels)
    engine.set_evaluation_set(data.test_images, data.test_labels)
    order = np.random.default_rng(0).integers(0, len(data.train_labels), batch * 100, dtype=np.int32)
    engine.train(order, batch, 0.05)
    parameters = engine.parameters
    return {
        "initial parameters": lambda: engine.init_parameters(0),
        "parameters in": lambda: engine.set_parameters(parameters),
        "parameters out": lambda: engine.parameters,
        f"statistics of {len(data.train_labels)} images": engine.compute_statistics,
        f"accuracy of {len(data.test_labels)} images": engine.evaluate,
        f"logits of {len(data.test_labels)} images of the caller": lambda: engine.logits(data.test_images),
    }


def seconds_of_call(call: Callable[[], object]) -> float:
    """What a call takes, by the host's clock: it returns when all is done."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def command(options: AroundOptions) -> int:
    output = Record(options.json, busy=options.busy)
    usual = [row.name for row in engines() if not row.unavailable and row.name != "reference"]
    chosen = [name.partition(":") for name in words(options.engines or usual)]
    made = [Engine(find_engine(name).name, precision or None) for name, _, precision in chosen]
    data = options.load()
    # Seconds of every run: by command; by engine and stage; by engine and call.
    commands: dict[str, list[float]] = {label: [] for label in COMMANDS}
    trainings: dict[str, list[dict[str, float]]] = {label_of(engine): [] for engine in made}
    calls: dict[str, dict[str, list[float]]] = {}
    estimate = console.Estimate(console.make_console(stderr=output.on_stdout))
    with tempfile.TemporaryDirectory() as name:
        for run in range(options.runs + 1):
            for label, command in COMMANDS.items():
                commands[label].append(seconds_of(command, Path(name))[0])
            for engine in made:
                trainings[label_of(engine)].append(stages_of(engine, options, Path(name)))
            estimate.after((run + 1) / (options.runs + 1))
    commands = {label: runs[1:] for label, runs in commands.items()}  # the first does not count
    trainings = {label: runs[1:] for label, runs in trainings.items()}
    for engine in made:
        work = calls_of(engine, data, options.batch_size)
        calls[label_of(engine)] = {
            what: [seconds_of_call(call) for _ in range(options.runs + 1)][1:] for what, call in work.items()
        }
    if not output.on_stdout:
        out = console.make_console()
        out.print(f"milliseconds, median of {options.runs}\n")
        _print(out, "command", {"": commands})
        stages = {
            label: {stage: [run[stage] for run in runs] for stage in runs[0]} for label, runs in trainings.items()
        }
        _print(out, "\nstage of a training of one epoch", stages)
        _print(out, "\ncall", calls)
    output.write(
        {"runs": options.runs, "unit": "seconds", "commands": commands, "trainings": trainings, "calls": calls},
        gpu=gpu(),
    )
    return 0


def label_of(engine: Engine) -> str:
    return f"{engine.info.name} {engine.precision}"


def _print(out: Console, title: str, columns: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """A table of medians; columns: seconds by what took them."""
    out.print(title)
    named = dict.fromkeys(what for found in columns.values() for what in found)
    rows = [
        [what, *(f"{1e3 * median(found[what]):.3f}" if what in found else "-" for found in columns.values())]
        for what in named
    ]
    console.print_table(out, ("", *columns), rows, right=tuple(columns))
