#!/usr/bin/env python3
"""Whether engine `fused` gives the same bits when its warps, and its host, sleep at random.

    .venv/bin/python scripts/check_races.py [--steps 1000] [--seed 1] [--delays DIR] [precision ...]

Trains in the installed build and in one with delays (CMake's MNIST_DELAYS), in processes side by side, at a batch size
of every schedule, from the GPU's memory and from the host's, and compares losses and parameters bit by bit. For a
machine with a GPU where the project is built. DIR, by default build/delays, is the folder of the other build; what is
missing or older than the sources there is built with the options of build/.
Exits with 1 if a bit differs, 2 for a wrong call, 4 if something is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import mnist_cuda

ROOT = Path(__file__).resolve().parents[1]
KEPT = re.compile(r"^((?:MNIST_CUDA|Python_EXECUTABLE|CMAKE_(?:BUILD_TYPE|MAKE_PROGRAM|CUDA_ARCHITECTURES)):.+)$", re.M)


def refuse(code: int, why: str) -> int:
    """Say in one line why nothing is checked; gives the exit code."""
    print(f"check_races: {why}", file=sys.stderr)
    return code


def build(folder: Path) -> str:
    """Make _native with delays in `folder`, as build/ is made otherwise. Gives the reason why not; empty if it did."""
    cache = ROOT / "build" / "CMakeCache.txt"
    if not cache.exists():
        return "there is no build in build/; make one by ./scripts/test"
    cmake = ROOT / ".venv" / "bin" / "cmake"
    command = str(cmake) if cmake.exists() else "cmake"
    options = [f"-D{option}" for option in KEPT.findall(cache.read_text())]
    options += ["-GNinja", "-DMNIST_DELAYS=ON", "-DBUILD_TESTING=OFF"]
    for step in (
        [command, "-S", str(ROOT), "-B", str(folder), *options],
        [command, "--build", str(folder), "--target", "_native"],
    ):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            print(*(done.stdout + done.stderr).splitlines()[-20:], sep="\n", file=sys.stderr)
            return "the build with delays failed, see above"
    return ""


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


def work(precision: str, steps: int) -> None:
    """Print, for each batch size, a line with the digest of all losses and the parameters at the end."""
    from mnist_cuda.engine import Engine
    from mnist_cuda.model import init_parameters

    engine = Engine("fused", precision)
    thresholds = engine.batch_thresholds()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2048, 28, 28), np.uint8) * (rng.random((2048, 28, 28)) < 0.2)
    labels = rng.integers(0, 10, len(images), np.uint8)
    for size in (1, *thresholds, thresholds[-1] + 37):
        digest = hashlib.sha256()
        engine.set_parameters(init_parameters(size))
        for placement, count in (("device", steps - steps // 10), ("host", steps // 10)):
            engine.set_dataset(images, labels, placement)
            losses, _ = engine.train(rng.integers(0, len(images), count * size), size, 0.01)
            assert np.isfinite(losses).all(), f"batch {size}: losses {losses}"
            digest.update(losses.tobytes())
        for value in engine.parameters.values():
            digest.update(value.tobytes())
        print(json.dumps([size, digest.hexdigest()]), flush=True)


def main() -> int:
    """Build, start a process for each precision and build, compare what they print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precisions", nargs="*", metavar="precision", help="default: all")
    parser.add_argument("--steps", type=int, default=1000, help="at each batch size")
    parser.add_argument("--seed", type=int, default=1, help="changes who sleeps when")
    parser.add_argument("--delays", type=Path, default=ROOT / "build" / "delays", metavar="DIR")
    parser.add_argument("--built", action="store_true", help="take what is in DIR as it is")
    parser.add_argument("--worker", choices=("plain", "delayed"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 10:
        return refuse(2, f"--steps is {args.steps}, expected at least 10")
    if args.worker:
        if args.worker == "delayed":
            load(args.delays)
        work(args.precisions[0], args.steps)
        return 0

    from mnist_cuda.engine import find_engine

    info = find_engine("fused")
    precisions = args.precisions or info.precisions
    if unknown := set(precisions) - set(info.precisions):
        return refuse(2, f"precision is {', '.join(sorted(unknown))}, expected some of {', '.join(info.precisions)}")
    if args.built and not list(args.delays.glob("_native*.so")):
        return refuse(4, f"there is no build with delays in {args.delays}; leave out --built")
    if not args.built and (missing := build(args.delays)):
        return refuse(4, missing)
    if info.unavailable:
        return refuse(4, f"engine fused cannot run here: {info.unavailable}")
    start, failed = time.monotonic(), False
    options = ["--steps", str(args.steps), "--delays", str(args.delays)]
    environment = {**os.environ, "MNIST_DELAYS_SEED": str(args.seed)}
    runs = {
        (precision, which): subprocess.Popen(
            [sys.executable, __file__, precision, *options, "--worker", which], stdout=subprocess.PIPE, env=environment
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
        wrong = [size for size, digest in plain.items() if delayed.get(size) != digest]
        if codes == [0, 0] and plain and not wrong:
            verdict = "the same bits"
        else:
            failed, verdict = True, f"FAILED: exit codes {codes}, different or missing at {wrong}"
        sizes = f"each of {len(plain)} batch sizes up to {max(plain, default=0)}"
        print(f"fused {precision}, {args.steps} steps at {sizes}: {verdict}")
    print(f"{time.monotonic() - start:.0f} s with random delays, seed {args.seed}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
