"""Ops in other languages for kernels: THE table of them, and how each is run and checked in the peers' environment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.bench.competitors import PEER_SCRIPTS, has_module
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess, write_arrays
from mnist_cuda.errors import UsageError, did_you_mean
from mnist_cuda.machine import CHECKOUT

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class OpVariant:
    """A row of the ladder. own_error: what the idea brings with it, beside what a plain sum in float32 has."""

    op: str
    name: str
    why: str
    unit: str = "fma"
    own_error: float = 0.0


@dataclass(frozen=True)
class OpPeer:
    """A language for kernels: its script in peers/, what that imports, how to get it, and its rows."""

    script: str
    module: str
    remedy: str
    variants: tuple[OpVariant, ...]


TF32_ERROR = 1e-3  # factors have 11 bits
OP_PEERS = {
    "triton": OpPeer(
        "triton_ops.py",
        "triton",
        "PyTorch for CUDA brings it",
        (
            OpVariant("relu", "triton", "a program does 1024 elements; who loads which is the compiler's choice"),
            OpVariant("log_softmax", "triton", "a program does 64 rows; max and sum are one word each"),
            OpVariant("linear", "triton", "64x64 tiles by tl.dot in fp32; slices of the sum, as register_tiled's"),
            OpVariant("linear", "triton_tf32", "the same on the tensor cores: one word changed", "tf32", TF32_ERROR),
            OpVariant("linear_relu", "triton", "relu in the pass that adds the slices: a constant of the kernel"),
            OpVariant("linear_relu", "triton_tf32", "the same on the tensor cores", "tf32", TF32_ERROR),
        ),
    ),
    "numba": OpPeer(
        "numba_ops.py",
        "numba",
        "`scripts/peers --numba` installs it" if CHECKOUT else "`pip install numba-cuda[cu13]` there brings it",
        (
            OpVariant("relu", "numba", "one element per thread, written in Python"),
            OpVariant("linear", "numba_tiled", "16x16 tiles in shared memory, as tiled's of 32x32, written in Python"),
        ),
    ),
}


def chosen(names: Iterable[str]) -> list[str]:
    """These languages, each once. Raises UsageError for an unknown one."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in OP_PEERS:
            raise UsageError(
                f"peer '{name}' is unknown, expected one of {', '.join(OP_PEERS)}{did_you_mean(name, OP_PEERS)}"
            )
    return names


# ---- the ops in float64 ----------------------------------------------------------------------------------------------


def _linear(inputs: Arrays) -> Arrays:
    x, w, bias = (inputs[name].astype(np.float64) for name in ("x", "w", "bias"))
    return {"y": x @ w.T + bias}


def _linear_relu(inputs: Arrays) -> Arrays:
    return {"y": np.maximum(_linear(inputs)["y"], 0)}


def _relu(inputs: Arrays) -> Arrays:
    return {"y": np.maximum(inputs["x"], 0), "passed": ~(inputs["x"] <= 0)}


def _log_softmax(inputs: Arrays) -> Arrays:
    x = inputs["x"].astype(np.float64)
    shifted = x - x.max(1, keepdims=True)
    return {"y": shifted - np.log(np.exp(shifted).sum(1, keepdims=True))}


def _normal(*shape: int, scale: float = 1, seed: int = 1) -> NDArray[np.float32]:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def linear_inputs(batch: int, inner: int = 3136, outer: int = 128) -> Arrays:
    """x (B,I), w (O,I) and bias (O) of fc1, or of other sizes."""
    return {
        "x": _normal(batch, inner),
        "w": _normal(outer, inner, scale=0.02, seed=2),
        "bias": _normal(outer, seed=3),
    }


# By op: its inputs for so many images, and the reference.
OPS: dict[str, tuple[Callable[[int], Arrays], Callable[[Arrays], Arrays]]] = {
    "linear": (linear_inputs, _linear),
    "linear_relu": (linear_inputs, _linear_relu),
    "relu": (lambda batch: {"x": _normal(batch, 64, 14, 14)}, _relu),
    "log_softmax": (lambda batch: {"x": _normal(batch, 10)}, _log_softmax),
}


def error_of(got: Arrays, want: Arrays) -> float:
    """The greatest relative L2 distance of an output; NaN if anything is not a number or has another shape."""
    errors = []
    for name, right in want.items():
        if name not in got or got[name].shape != right.shape or not np.isfinite(got[name]).all():
            return float("nan")
        distance = np.linalg.norm(got[name].astype(np.float64) - right)
        errors.append(float(distance / max(np.linalg.norm(right.astype(np.float64)), np.finfo(float).tiny)))
    return max(errors)


# ---- rows ------------------------------------------------------------------------------------------------------------


def run_variant(
    process: CompetitorProcess, variant: OpVariant, inputs: Arrays, folder: Path, device: int = 0
) -> dict[str, Any]:
    """One row's `error`, `cold_us`, `warm_us`, `kernels` and `versions`. Raises CompetitorError."""
    given, left = folder / "inputs.npz", folder / "outputs.npz"
    write_arrays(given, **inputs)
    left.unlink(missing_ok=True)  # of the row before
    files = {"inputs": str(given), "outputs": str(left)}
    answer = process.ask(cmd="run", op=variant.op, variant=variant.name, device=device, **files)
    with np.load(left) as outputs:
        error = error_of(dict(outputs), OPS[variant.op][1](inputs))
    return answer | {"error": error}


def _absent(row: dict[str, Any], reason: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("cold_us", "warm_us", "error", "percent_of_roof", "library_ratio"))
    return row | nothing | {"absent": reason, "kernels": []}


def rows(
    rows: Sequence[dict[str, Any]],
    roofs: dict[str, float],
    peers: Iterable[str],
    python: Path,
    batch: int,
    device: int,
    *,
    variant: str = "",
) -> list[dict[str, Any]]:
    """Rows of these languages for the ops of `rows`, which are `bench ops`'s own and have sizes, bounds and libraries.

    device: the GPU's ordinal. variant: this one only; empty for all.
    """
    found = []
    for name in peers:
        peer = OP_PEERS[name]
        wanted = [v for v in peer.variants if any(row["op"] == v.op for row in rows) and variant in ("", v.name)]
        if not wanted:
            continue
        if not has_module(python, peer.module):
            reason = f"{python} has no {peer.module}; {peer.remedy}"
            found += [_absent(_row(one, rows), reason) for one in wanted]
            continue
        command = (str(python), str(PEER_SCRIPTS / peer.script))
        with CompetitorProcess(command) as process, tempfile.TemporaryDirectory() as folder:
            for one in wanted:
                row = _row(one, rows)
                try:
                    row |= run_variant(process, one, OPS[one.op][0](batch), Path(folder), device)
                    found.append(row | _ratios(row, rows, roofs))
                except CompetitorError as error:
                    found.append(_absent(row, str(error)))
    return found


def _row(variant: OpVariant, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is known of a row before it runs; sizes and the bound of a plain sum are its op's."""
    ours = [row for row in rows if row["op"] == variant.op]
    bound = max(min(row["bound"] for row in ours), variant.own_error)
    return {key: ours[0][key] for key in ("op", "shape", "bytes", "flops")} | {
        "variant": variant.name,
        "why": variant.why,
        "library": False,
        "unit": variant.unit,
        "bound": bound,
        "absent": "",
    }


def _ratios(row: dict[str, Any], rows: Iterable[dict[str, Any]], roofs: dict[str, float]) -> dict[str, Any]:
    """How near it comes to the roof and to the fastest library, as op_bench.cpp has it of the others."""
    flops = roofs.get("fma_flops" if row["unit"] == "fma" else "tf32_flops")
    seconds = row["cold_us"] / 1e6
    least = max(row["bytes"] / roofs["bytes_per_second"], row["flops"] / flops) if flops else None
    libraries = [
        other["cold_us"]
        for other in rows
        if other["library"] and not other["absent"] and (other["op"], other["unit"]) == (row["op"], row["unit"])
    ]
    return {
        "percent_of_roof": 100 * least / seconds if least else None,
        "library_ratio": row["cold_us"] / min(libraries) if libraries else None,
    }
