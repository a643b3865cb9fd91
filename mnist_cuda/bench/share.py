"""The `bench share` command: a record of a card or a processor, its row in docs/cards.md, and the check of both."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from mnist_cuda import _native, machine
from mnist_cuda.bench import ops
from mnist_cuda.bench.record import QUIET_LOAD, Record
from mnist_cuda.bench.step import LEARNING_RATE
from mnist_cuda.data.catalogue import DATASETS
from mnist_cuda.engine import Engine, find_engine
from mnist_cuda.engine.model import digest
from mnist_cuda.engine.timing import Measurement, Summary, time_steps
from mnist_cuda.errors import MnistCudaError, OutputError, UnavailableError, UsageError
from mnist_cuda.run.options import DataOptions, RecordOptions, TrainOptions
from mnist_cuda.run.train import train
from mnist_cuda.terminal import console
from mnist_cuda.terminal.json_input import read_json
from mnist_cuda.terminal.json_output import JsonOutput, dumps

BATCH_SIZES = (64, 256, 1024)
BLOCKS = 10  # of each batch size
SEEDS = 3
TRAINING = TrainOptions(epochs=3)
OPS_BATCH = 256
OTHER_MACHINES = ("MNIST_CUDA_FUSED_LIMITS", "MNIST_CUDA_SYNC")

_STEPS = tuple(f"B={batch}" for batch in BATCH_SIZES)
COLUMNS = ("card", "engine", "precision", *_STEPS, "ops", "accuracy", "versions", "day", "digest")

_US = {"mean": float, "median": float, "p5": float, "p95": float, "min": float, "count": int}
_OP = {
    "op": str, "variant": str, "library": bool, "absent": str, "cold_us": (float, None), "warm_us": (float, None),
    "error": (float, None), "bound": float, "percent_of_roof": (float, None), "library_ratio": (float, None),
}  # fmt: skip
KIND = {
    "started": str,
    "command": str,
    "commit": str,
    "versions": {"mnist-cuda": str, "build": str, "python": str, "numpy": str, "platform": str},
    "machine": {"cpu": str, "cores": int, "load_before": [float], "driver": (str, None), "gpu": ({"name": str}, None)},
    "card": str,
    "engine": str,
    "settings": {"threads": int},
    "data": {"name": str, "digest": str},
    "steps": [{"precision": str, "batch_size": int, "us": _US}],
    "ops": ({"batch_size": int, "roofs": {"bytes_per_second": float, "fma_flops": float}, "rows": [_OP]}, None),
    "accuracy": [
        {"precision": str, "epochs": int, "batch_size": int, "lr": float,
         "runs": [{"seed": int, "test_accuracy": float, "parameters_sha256": str}]}
    ],
    "digest": str,
}  # fmt: skip

# What no honest record leaves. Multiply-adds of an image's step, of the convolutions and fc1 and fc2, thrice (forward,
# and backward for inputs and weights; conv1 has no gradient of its input), two operations each.
IMAGE_FLOPS = 2 * (2 * 32 * 9 * 784 + 3 * (64 * 288 * 196 + 3136 * 128 + 128 * 10))
# Operations a second: of a core with two 512-bit multiply-adds per cycle at 6 GHz, times 2.25, which Winograd spares;
# of a GPU four times what H200s do in bf16 by NVIDIA's table.
CORE_FLOPS, GPU_FLOPS = 2.25 * 64 * 6e9, 4 * 989e12
# Test accuracies after three epochs: those of docs/records/accuracy are 98.62 to 99.15 %.
ACCURACIES = (0.975, 0.995)
LONGER = 0.9  # times the time of a smaller batch: a larger one takes at least that


def digest_of(record: dict[str, Any]) -> str:
    """SHA-256 of all else but the version of its form, so that a slip in a copy is noticed; it is no signature."""
    rest = {key: value for key, value in json.loads(dumps(record)).items() if key not in ("version", "digest")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def time_step(engine: Engine, batch_size: int) -> Summary:
    """Microseconds of a step, on an engine that has its data set and parameters."""
    rng = np.random.default_rng(0)

    def run(steps: int) -> float:
        order = rng.integers(0, engine.dataset_size, steps * batch_size, dtype=np.int32)
        return time_steps(engine, order, batch_size, LEARNING_RATE).seconds

    return Measurement(run).summary(BLOCKS)


# ---- the check -------------------------------------------------------------------------------------------------------


def read_card(file: Path) -> dict[str, Any]:
    """The record in a file. Raises OutputError where it cannot be read, MnistCudaError where it fails the check."""
    try:
        record: dict[str, Any] = read_json(file, KIND)
    except OSError as error:
        raise OutputError(f"{file}: cannot read it: {error.strerror or error}") from error
    except ValueError as error:
        raise MnistCudaError(f"{file}: expected what `mnist-cuda bench share --json FILE` wrote: {error}") from error
    if fault := next(faults(record), ""):
        raise MnistCudaError(f"{file}: {fault}")
    return record


def faults(record: dict[str, Any]) -> Iterator[str]:
    """A sentence for each thing that an honest record of KIND would not have."""
    if record["digest"] != (found := digest_of(record)):
        yield f"its digest is {record['digest']:.12}, that of its content {found:.12}: it was changed later"
    if not re.fullmatch("[0-9a-f]{40}", record["commit"]):
        yield f"its commit is '{record['commit']:.60}', expected 40 digits: measure it again from a clean commit"
    if not re.match(r"\d{4}-\d\d-\d\dT", record["started"]):
        yield f"it was started at '{record['started']:.40}', expected such as 2026-11-25T12:00:00+00:00"
    on_gpu = record["machine"]["gpu"]
    if (on_gpu is None) != (record["ops"] is None):
        yield "it has a GPU without ops, or ops without a GPU"
    machine_name = on_gpu["name"] if on_gpu else record["machine"]["cpu"]
    if record["card"] != machine_name:
        yield f"its card is '{record['card']:.60}' and its machine has '{machine_name:.60}'"
    if record["settings"]["threads"] < 1:
        yield f"it was measured by {record['settings']['threads']} threads"
    if len(record["machine"]["load_before"]) != 3:
        yield "its `machine.load_before` has not three numbers"
    expected = DATASETS["mnist"].digest
    if record["data"]["digest"] != expected:
        yield f"its data are '{record['data']['name']:.40}' with digest {record['data']['digest']:.12}, expected MNIST"
    yield from _faults_of_steps(record, GPU_FLOPS if on_gpu else CORE_FLOPS * record["machine"]["cores"])
    for row in (record["ops"] or {"rows": []})["rows"]:
        name = f"op {row['op']}, variant {row['variant']}"
        if row["absent"]:
            continue
        if row["error"] is None or not min(row["cold_us"] or 0, row["warm_us"] or 0) > 0:
            yield f"{name} has no error or no time"
        elif not ops.passes(row):
            yield f"{name} is off by {row['error']:.1e}, expected at most {row['bound']:.0e}"
        elif (row["percent_of_roof"] or 0) > 110:
            yield f"{name} is at {row['percent_of_roof']:.0f} % of the best that this GPU was measured to do"
    yield from _faults_of_accuracy(record)


def _faults_of_steps(record: dict[str, Any], most_flops: float) -> Iterator[str]:
    for precision in precisions_of(record):
        rows = {row["batch_size"]: row["us"] for row in record["steps"] if row["precision"] == precision}
        if tuple(sorted(rows)) != BATCH_SIZES:
            yield f"its steps in {precision} are of {sorted(rows)} images, expected {', '.join(map(str, BATCH_SIZES))}"
            return
        before = 0.0
        for batch, us in sorted(rows.items()):
            where = f"a step of {batch} images in {precision}"
            if not 0 < us["min"] <= us["p5"] <= us["median"] <= us["p95"] or us["count"] < 3:
                yield f"{where} has no min <= p5 <= median <= p95 of at least 3 blocks"
            elif us["median"] < (least := 1e6 * batch * IMAGE_FLOPS / most_flops):
                yield f"{where} takes {us['median']:.3g} us, and nothing that we know of does it in {least:.3g}"
            elif us["median"] < LONGER * before:
                yield f"{where} takes {us['median']:.4g} us, less than one of fewer images with {before:.4g}"
            before = us["median"]
    if not record["steps"]:
        yield "it has no steps"


def _faults_of_accuracy(record: dict[str, Any]) -> Iterator[str]:
    if [row["precision"] for row in record["accuracy"]] != precisions_of(record):
        yield "its accuracies are not of the precisions of its steps"
    least, most = ACCURACIES
    for row in record["accuracy"]:
        recipe = tuple(row[name] for name in ("epochs", "batch_size", "lr"))
        if recipe != (TRAINING.epochs, TRAINING.batch_size, TRAINING.lr):
            yield f"it was trained by epochs, batch size and rate {recipe}"
        if [run["seed"] for run in row["runs"]] != list(range(SEEDS)):
            yield f"its trainings in {row['precision']} are not of the seeds 0 to {SEEDS - 1}"
        for run in row["runs"]:
            if not least <= run["test_accuracy"] <= most:
                found = f"{100 * run['test_accuracy']:.2f} %, expected {100 * least:g} to {100 * most:g} %"
                yield f"seed {run['seed']} in {row['precision']} has a test accuracy of {found}"
        hashes = {run["parameters_sha256"] for run in row["runs"]}
        if len(hashes) != len(row["runs"]) or not all(re.fullmatch("[0-9a-f]{64}", text) for text in hashes):
            yield f"the weights of its seeds in {row['precision']} are not {SEEDS} different SHA-256"


# ---- the row ---------------------------------------------------------------------------------------------------------


def precisions_of(record: dict[str, Any]) -> list[str]:
    """Those of its steps, in their order."""
    return list(dict.fromkeys(row["precision"] for row in record["steps"]))


def markdown_row(record: dict[str, Any], file: str = "") -> str:
    """A card's row under COLUMNS. file: where the digest links to."""
    names = precisions_of(record)
    us = {(row["precision"], row["batch_size"]): row["us"]["median"] for row in record["steps"]}
    means = [fmean(run["test_accuracy"] for run in row["runs"]) for row in record["accuracy"]]
    load, threads = record["machine"]["load_before"][0], console.plural(record["settings"]["threads"], "thread")
    card = record["card"] if record["machine"]["gpu"] else f"{record['card']}, {threads}"
    if load > QUIET_LOAD * record["machine"]["cores"]:
        card += f" (**busy**: load {load:.1f})"
    driver = record["machine"]["driver"]
    versions = f"{record['versions']['mnist-cuda']} at {record['commit']:.7}, {record['versions']['build']}"
    short = record["digest"][:12]
    cells = [
        card,
        record["engine"],
        "<br>".join(names),
        *("<br>".join(_count(us[name, batch]) for name in names) for batch in BATCH_SIZES),
        ops_text(record["ops"]),
        "<br>".join(f"{100 * mean:.2f} %" for mean in means),
        versions + (f", driver {driver}" if driver and record["machine"]["gpu"] else ""),
        record["started"][:10],
        f"[{short}]({file})" if file else short,
    ]
    return f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |"


def _count(us: float) -> str:
    return f"{us:,.{0 if us >= 25 else 1}f}"


def ops_text(report: dict[str, Any] | None) -> str:
    """How many ops have a variant of ours that is as fast as NVIDIA's libraries, of those that these have, too."""
    if report is None:
        return "-"
    ratios: dict[str, float] = {}
    for row in report["rows"]:
        if not (row["library"] or row["absent"] or row["library_ratio"] is None):
            ratios[row["op"]] = min(row["library_ratio"], ratios.get(row["op"], row["library_ratio"]))
    return f"{sum(ratio <= 1 for ratio in ratios.values())} of {len(ratios)}"


# ---- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShareOptions(DataOptions, RecordOptions):
    """Which engine, with how many threads on a CPU, 0 is one per core. check: a file that is checked instead."""

    engine: str = "auto"
    threads: int = 0
    check: Path | None = None


def command(options: ShareOptions) -> int:
    if options.check:
        record = read_card(options.check)
        print(f"{options.check}: sound, of {record['card']}")
        print(markdown_row(record))
        return 0
    if given := [name for name in OTHER_MACHINES if os.environ.get(name)]:
        raise UsageError(f"{given[0]} is set, with which times are not those of this card: unset it")
    output = Record(options.json, busy=options.busy)
    info = find_engine(options.engine)
    if info.unavailable:
        raise UnavailableError(f"engine '{info.name}' cannot run here: {info.unavailable}")
    data = options.load()
    on_gpu = info.device == "cuda"
    facts = (machine.gpu() or {"name": _native.gpus()[0]["name"]}) if on_gpu else None
    out = console.make_console(stderr=True)
    precisions = [name for name in info.precisions if name not in info.unavailable_precisions]
    steps, accuracy = [], []
    estimate = console.Estimate(out)
    with console.LiveLine(out) as live:
        for done, name in enumerate(precisions):
            engine = Engine(info.name, name, threads=options.threads)
            engine.set_dataset(data.train_images, data.train_labels)
            engine.init_parameters(0)
            for batch in BATCH_SIZES:
                live.show(done / len(precisions), f"{info.name}, {name}: timing a step of {batch} images")
                us = time_step(engine, batch).as_dict()
                steps.append({"precision": name, "batch_size": batch, "us": us})
            runs = []
            for seed in range(SEEDS):
                live.show((done + 0.5) / len(precisions), f"{info.name}, {name}: training from seed {seed}")
                result = train(data, TrainOptions(epochs=TRAINING.epochs, seed=seed), engine=engine, progress=False)
                weights = digest(result.model.parameters)
                runs.append({"seed": seed, "test_accuracy": result.accuracy, "parameters_sha256": weights})
                estimate.after((done + (seed + 1) / SEEDS) / len(precisions))
            recipe = {"epochs": TRAINING.epochs, "batch_size": TRAINING.batch_size, "lr": TRAINING.lr}
            accuracy.append({"precision": name, **recipe, "runs": runs})
            del engine  # the next one's arrays take its place
        report = None
        if on_gpu:
            live.show(1, "timing every op")
            found = ops.measure("", "", OPS_BATCH, 0)
            rows = [{key: row[key] for key in _OP} for row in found["rows"]]
            report = {"batch_size": OPS_BATCH, "roofs": found["roofs"], "rows": rows}
    value = {
        "card": facts["name"] if facts else machine.cpu_model(),
        "engine": info.name,
        "settings": {"blocks": BLOCKS, "lr": LEARNING_RATE, "threads": options.threads or machine.cores()},
        "data": {"name": data.name, "digest": data.digest},
        "steps": steps,
        "ops": report,
        "accuracy": accuracy,
    }
    record = output.whole(value, gpu=facts)
    record["digest"] = digest_of(record)
    JsonOutput.write(output, record)
    if not output.on_stdout:
        print(markdown_row(record))
    if output.file:
        out.print(f"written: {output.file}")
    if fault := next(faults(json.loads(dumps(record))), ""):
        console.print_warning(f"--check would refuse it: {fault}")
    return 1 if fault else 0
