"""Runs compute-sanitizer's four tools over training steps of several batch sizes and an evaluation of an engine.

Of fused also over models side by side and two ranks on this GPU. Needs compute-sanitizer, which comes with a CUDA
toolkit, and a GPU. Exits with the number of tools that found something.
Engine cudnn in tf32 and bf16 (cuBLASLt's kernels) and fused synchronise by mbarriers and store by bulk copies on
Hopper. Before 2025.4 racecheck and initcheck do not follow these (see the release notes): the first reports races
inside of them or fails, the second takes what they wrote for uninitialised. There they are left out, which is
announced. MNIST_CUDA_FUSED_LIMITS (see docs/fused.md) has them check fused's kernels for other GPUs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from typing import Any

from checks.runner import ROOT, output_of, tool, two_ranks

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def work(name: str, precision: str) -> None:
    """What runs under each tool."""
    import numpy as np

    from mnist_cuda.engine import Engine, Placement

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 28, 28), np.uint8) * (rng.random((300, 28, 28)) < 0.2)
    labels = rng.integers(0, 10, 300, np.uint8)
    engine = Engine(name, precision)
    weights = {
        name: (1.0 if name.endswith("weight") and value.ndim == 1 else 0.05)
        * (np.ones(value.shape) if value.ndim == 1 else rng.standard_normal(value.shape))
        for name, value in engine.parameters.items()
    }
    engine.set_parameters(weights)
    places: tuple[Placement, ...] = ("device", "host")
    for placement in places:
        engine.set_dataset(images, labels, placement)
        for samples, batch in ((50, 32), (67, 67), (140, 140), (300, 300)):  # kernels differ by batch size; 18: a rest
            losses, _ = engine.train(np.arange(samples), batch, 0.01)
            assert np.isfinite(losses).all(), losses
    engine.compute_statistics()
    assert np.isfinite(engine.logits(images[:50])).all()
    if name != "fused":
        return

    def rank(communicator: Any) -> None:
        one = Engine(name, precision)
        one.join(communicator, "host")
        one.set_parameters(weights)
        one.set_dataset(images, labels)
        losses, _ = one.train(np.arange(136), 135, 0.01)  # shares of 67 and 68, then of none and 1
        assert np.isfinite(losses).all(), losses

    engine.set_dataset(images, labels)
    for batch in (67, 300):
        fleet = engine.fleet(2, batch, 20)
        for model in range(2):
            fleet.store(model)
        losses, _ = fleet.train(np.array([np.arange(batch)] * 2, np.int32), np.full((2, 1), 0.01))
        assert np.isfinite(losses).all(), losses
    two_ranks(rank)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("engine", nargs="?", default="naive", help="default: %(default)s")
    parser.add_argument("precision", nargs="?", default="fp32", help="default: %(default)s")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the tools; the exit code."""
    if args.worker:
        work(args.engine, args.precision)
        return 0
    sanitizer = tool("compute-sanitizer")
    found = re.search(r"Version (\d+)\.(\d+)\.", output_of([sanitizer, "--version"]))
    of_fused = args.engine == "fused" and not os.environ.get("MNIST_CUDA_FUSED_LIMITS")
    hopper = of_fused or (args.engine == "cudnn" and args.precision in ("tf32", "bf16"))
    old = hopper and found is not None and (int(found[1]), int(found[2])) < (2025, 4)
    if old:
        print("not run: racecheck and initcheck, which before 2025.4 do not follow mbarriers and bulk copies")
    failures = 0
    for name in TOOLS:
        if old and name in ("racecheck", "initcheck"):
            continue
        print(f"== {name}: {args.engine} {args.precision}", flush=True)
        command = [sanitizer, "--tool", name, "--error-exitcode", "1", "--print-limit", "100"]
        if hopper and name == "synccheck":
            command += ["--num-cuda-barriers", "16384"]  # it tracks too few mbarriers by default
        worker = [str(ROOT / "scripts" / "checks"), "sanitize", "--worker", args.engine, args.precision]
        failures += subprocess.run([*command, sys.executable, *worker], cwd=ROOT, check=False).returncode != 0
    return failures
