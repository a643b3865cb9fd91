"""Whether engine `fused` gives the same bits when its warps, and its host, sleep at random.

Trains in the installed build and in one with delays (CMake's MNIST_DELAYS), in processes side by side, at a batch size
of every schedule, from the GPU's memory and from the host's, then models side by side and two ranks that share the GPU,
and compares losses and parameters bit by bit. For a machine with a GPU where the project is built. DIR, by default
build/delays, is the folder of the other build; what is missing or older than the sources there is built with the
options of build/.
Exits with 1 if a bit differs, 2 for a wrong call, 4 if something is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from checks.runner import BUILD, ROOT, Problem, build_with, two_ranks

import mnist_cuda


def load(folder: Path) -> None:
    """Take `folder`'s _native for mnist_cuda's; before anything else asks for it."""
    [path] = folder.glob("_native*.so")
    spec = importlib.util.spec_from_file_location("mnist_cuda._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "random delays" in module.BUILD, f"{path} is a build without delays: {module.BUILD}"
    sys.modules["mnist_cuda._native"] = mnist_cuda._native = module


def digest(*arrays: Any) -> str:
    """Of their bytes."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def each_size(precision: str, steps: int, images: Any, labels: Any) -> Iterator[tuple[str, str]]:
    """Each batch size and what an engine alone makes of it."""
    from mnist_cuda.engine import Engine, Placement
    from mnist_cuda.engine.model import init_parameters

    engine = Engine("fused", precision)
    places: tuple[tuple[Placement, int], ...] = ("device", steps - steps // 10), ("host", steps // 10)
    thresholds = engine.batch_thresholds()
    rng = np.random.default_rng(0)
    for size in (1, *thresholds, thresholds[-1] + 37):
        engine.set_parameters(init_parameters(size))
        found = []
        for placement, count in places:
            engine.set_dataset(images, labels, placement)
            losses, _ = engine.train(rng.integers(0, len(images), count * size), size, 0.01)
            assert np.isfinite(losses).all(), f"batch {size}: losses {losses}"
            found.append(losses)
        yield f"batch {size}", digest(*found, *engine.parameters.values())


def models(precision: str, steps: int, images: Any, labels: Any) -> Iterator[tuple[str, str]]:
    """The same of models side by side, with the share of the GPU that a sweep gives them; nothing where none can be."""
    from mnist_cuda.engine import Engine

    engine = Engine("fused", precision)
    if not engine.info.fleets:
        return
    engine.set_dataset(images, labels)
    rng = np.random.default_rng(1)
    for size in (64, 300):
        fleet = engine.fleet(3, size, engine.share_for(size))
        for model in range(3):
            engine.init_parameters(model)
            fleet.store(model)
        losses, _ = fleet.train(rng.integers(0, len(images), (3, steps * size), np.int32), np.full((3, steps), 0.01))
        assert np.isfinite(losses).all(), f"3 models, batch {size}: losses {losses}"
        found = [losses]
        for model in range(3):
            fleet.load(model)
            found += engine.parameters.values()
        yield f"3 models, batch {size}", digest(*found)


def ranks(precision: str, steps: int, images: Any, labels: Any) -> Iterator[tuple[str, str]]:
    """The same of two ranks that share the GPU, whose sums go through the host: of unequal shares, and of none."""
    from mnist_cuda.engine import Engine
    from mnist_cuda.engine.model import init_parameters

    sizes, rng = (1, 7, 133, 600), np.random.default_rng(2)
    orders = [rng.integers(0, len(images), max(1, steps // 10) * size) for size in sizes]

    def train(communicator: Any) -> list[str]:
        engine = Engine("fused", precision)
        engine.join(communicator, "host")
        engine.set_dataset(images, labels)
        found = []
        for size, order in zip(sizes, orders, strict=True):
            engine.set_parameters(init_parameters(size))
            losses, _ = engine.train(order, size, 0.01)
            assert np.isfinite(losses).all(), f"2 ranks, batch {size}: losses {losses}"
            found.append(digest(losses, *engine.parameters.values()))
        return found

    one, other = two_ranks(train)
    for size, mine, its in zip(sizes, one, other, strict=True):
        assert mine == its, f"2 ranks, batch {size}: not the same bits"
        yield f"2 ranks, batch {size}", mine


def work(precision: str, steps: int) -> None:
    """Print a line for each training, what it is and the digest of all losses and the parameters at the end."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (2048, 28, 28), np.uint8) * (rng.random((2048, 28, 28)) < 0.2)
    labels = rng.integers(0, 10, len(images), np.uint8)
    for part in (each_size, models, ranks):
        for line in part(precision, steps, images, labels):
            print(json.dumps(line), flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("precisions", nargs="*", metavar="precision", help="default: all")
    parser.add_argument("--steps", type=int, default=1000, help="at each batch size")
    parser.add_argument("--seed", type=int, default=1, help="changes who sleeps when")
    parser.add_argument("--delays", type=Path, default=BUILD / "delays", metavar="DIR")
    parser.add_argument("--built", action="store_true", help="take what is in DIR as it is")
    parser.add_argument("--worker", choices=("plain", "delayed"), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Build, start a process for each precision and build, compare what they print; the exit code."""
    if args.steps < 10:
        raise Problem(f"--steps is {args.steps}, expected at least 10", 2)
    if args.worker:
        if args.worker == "delayed":
            load(args.delays)
        work(args.precisions[0], args.steps)
        return 0

    from mnist_cuda.engine import find_engine

    info = find_engine("fused")
    precisions = args.precisions or info.precisions
    if unknown := set(precisions) - set(info.precisions):
        known = ", ".join(info.precisions)
        raise Problem(f"precision is {', '.join(sorted(unknown))}, expected some of {known}", 2)
    if args.built and not list(args.delays.glob("_native*.so")):
        raise Problem(f"there is no build with delays in {args.delays}; leave out --built")
    if not args.built:
        build_with("MNIST_DELAYS", args.delays, "_native")
    if info.unavailable:
        raise Problem(f"engine fused cannot run here: {info.unavailable}")
    start, failed = time.monotonic(), False
    options = ["--steps", str(args.steps), "--delays", str(args.delays)]
    environment = {**os.environ, "MNIST_DELAYS_SEED": str(args.seed)}
    runs = {
        (precision, which): subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "checks"), "races", precision, *options, "--worker", which],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for precision in precisions
        for which in ("plain", "delayed")
    }
    for precision in precisions:
        plain, delayed = (
            dict(json.loads(line) for line in runs[precision, which].communicate()[0].splitlines())
            for which in ("plain", "delayed")
        )
        codes = [runs[precision, which].returncode for which in ("plain", "delayed")]
        wrong = [what for what, bits in plain.items() if delayed.get(what) != bits]
        if codes == [0, 0] and plain and not wrong:
            verdict = "the same bits"
        else:
            failed, verdict = True, f"FAILED: exit codes {codes}, different or missing at {wrong}"
        print(f"fused {precision}, {len(plain)} trainings of {args.steps} steps, of ranks a tenth: {verdict}")
    print(f"{time.monotonic() - start:.0f} s with random delays, seed {args.seed}")
    return int(failed)
