"""Ops in other languages for kernels: THE table of them, and how each is run and checked in the peers' environment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.bench.competitors import PEER_SCRIPTS, has_module, lack
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess, write_arrays
from mnist_cuda.errors import UsageError, did_you_mean
from mnist_cuda.judge import judged_ops
from mnist_cuda.machine import CHECKOUT

Arrays = dict[str, NDArray[Any]]
Reference = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class OpVariant:
    """A row of the ladder. own_error: what the idea brings with it, beside what a plain sum in float32 has."""

    op: str
    name: str
    why: str
    unit: str = "fma"
    own_error: float = 0.0


@dataclass(frozen=True)
class Simulator:
    """How a language runs without a GPU: by what, with which variable set, and of an op the inputs that it can take."""

    name: str
    variable: str
    inputs: Mapping[str, Callable[[], Arrays]]


@dataclass(frozen=True)
class OpPeer:
    """A language for kernels: its script in peers/, what that imports, how to get it, and its rows."""

    script: str
    module: str
    remedy: str
    variants: tuple[OpVariant, ...]
    simulator: Simulator | None = None


TF32_ERROR = 1e-3  # factors have 11 bits
LIBRARY_ERROR = 1e-5  # sums in an order of its own


def _normal(*shape: int, scale: float = 1, seed: int = 1) -> NDArray[np.float32]:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def linear_inputs(batch: int, inner: int = 3136, outer: int = 128) -> Arrays:
    """x (B,I), w (O,I) and bias (O) of fc1, or of other sizes."""
    return {
        "x": _normal(batch, inner),
        "w": _normal(outer, inner, scale=0.02, seed=2),
        "bias": _normal(outer, seed=3),
    }


def layer_inputs(batch: int, channels: int, outputs: int, side: int) -> Arrays:
    """x (B,I,S,S), w (O,I,3,3), bias, gamma and beta (O) of a layer."""
    return {
        "x": _normal(batch, channels, side, side),
        "w": _normal(outputs, channels, 3, 3, scale=0.06, seed=2),
        **{name: _normal(outputs, seed=seed) for name, seed in (("bias", 3), ("gamma", 4), ("beta", 5))},
    }


_SMALL = {
    "relu": lambda: {"x": _normal(2, 300)},
    "log_softmax": lambda: {"x": _normal(70, 10)},
    "linear": lambda: linear_inputs(5, 33, 20),
    "linear_relu": lambda: linear_inputs(5, 33, 20),
    "conv_bn_relu_pool": lambda: layer_inputs(3, 5, 20, 6),
    "conv_bn_relu_pool_layer1": lambda: layer_inputs(2, 1, 9, 10),
}
_LAYERS = ("conv_bn_relu_pool", "conv_bn_relu_pool_layer1")
OP_PEERS = {
    "torch": OpPeer(
        "torch_ops.py",
        "torch",
        "`scripts/peers` installs it" if CHECKOUT else "`pip install torch` there brings it",
        (
            OpVariant("linear", "torch", "torch.nn.functional.linear", own_error=LIBRARY_ERROR),
            OpVariant("linear", "torch_tf32", "the same on the tensor cores", "tf32", TF32_ERROR),
            OpVariant("linear_relu", "torch", "linear, then relu in place", own_error=LIBRARY_ERROR),
            OpVariant("linear_relu", "torch_tf32", "the same on the tensor cores", "tf32", TF32_ERROR),
            OpVariant("conv2d", "torch", "torch.nn.functional.conv2d, by cuDNN", own_error=LIBRARY_ERROR),
            OpVariant("conv2d", "torch_tf32", "the same on the tensor cores", "tf32", TF32_ERROR),
            OpVariant("relu", "torch", "torch.relu, and a comparison for backward's decisions"),
            OpVariant("relu_max_pool2d", "torch", "max_pool2d, then relu in place of a quarter"),
            OpVariant("batch_norm_forward", "torch", "batch_norm in training mode", own_error=LIBRARY_ERROR),
            OpVariant("log_softmax", "torch", "torch.nn.functional.log_softmax", own_error=1e-6),
            OpVariant("transpose", "torch", "x.t().contiguous()"),
            *(
                OpVariant(op, name, why, own_error=LIBRARY_ERROR)
                for op in _LAYERS
                for name, why in (
                    ("torch", "four functions of PyTorch, conv2d by cuDNN; keeps no decisions"),
                    ("torch_compile", "the same four by torch.compile, which fuses what follows conv2d"),
                )
            ),
        ),
    ),
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
            *(
                OpVariant(op, "triton", "three launches: the convolution sums what it has, as conv_statistics")
                for op in _LAYERS
            ),
        ),
        Simulator("Triton's interpreter", "TRITON_INTERPRET", _SMALL),
    ),
    "numba": OpPeer(
        "numba_ops.py",
        "numba",
        "`scripts/peers --numba` installs it" if CHECKOUT else "`pip install numba-cuda[cu13]` there brings it",
        (
            OpVariant("relu", "numba", "one element per thread, written in Python"),
            OpVariant("linear", "numba_tiled", "16x16 tiles in shared memory, as tiled's of 32x32, written in Python"),
        ),
        Simulator("Numba's simulator", "NUMBA_ENABLE_CUDASIM", _SMALL),
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


def _judged(launcher: str, sizes: Callable[[Arrays], tuple[int, ...]], names: Sequence[str] = ("y",)) -> Reference:
    """The judge's answer of an op, whose sizes the inputs show; of its outputs the first ones, by these names."""

    def reference(inputs: Arrays) -> Arrays:
        answers = judged_ops.answer(judged_ops.OPS[launcher], judged_ops.Case(sizes(inputs)), inputs)
        return {name: answer.value for name, answer in zip(names, answers.values(), strict=False)}

    return reference


def _linear_sizes(inputs: Arrays) -> tuple[int, ...]:
    return *inputs["x"].shape, len(inputs["w"])


def _conv2d_sizes(inputs: Arrays) -> tuple[int, ...]:
    batch, channels, side, _ = inputs["x"].shape
    return batch, channels, len(inputs["w"]), side


_conv2d = _judged("conv2d_forward", _conv2d_sizes)


def layer_before_pooling(inputs: Arrays) -> NDArray[np.float64]:
    """Convolution, batch norm by the batch's statistics, and relu."""
    z = _conv2d(inputs)["y"]
    normal = (z - z.mean((0, 2, 3), keepdims=True)) / np.sqrt(z.var((0, 2, 3), keepdims=True) + 1e-5)
    return np.asarray(np.maximum(inputs["gamma"][:, None, None] * normal + inputs["beta"][:, None, None], 0))


def _layer(inputs: Arrays) -> Arrays:
    y = layer_before_pooling(inputs)
    batch, outputs, side, _ = y.shape
    return {"y": y.reshape(batch, outputs, side // 2, 2, side // 2, 2).max((3, 5))}


# By op: its inputs for so many images, and the reference.
OPS: dict[str, tuple[Callable[[int], Arrays], Reference]] = {
    "conv2d": (lambda batch: layer_inputs(batch, 32, 64, 14), _conv2d),
    "conv_bn_relu_pool": (lambda batch: layer_inputs(batch, 32, 64, 14), _layer),
    "conv_bn_relu_pool_layer1": (lambda batch: layer_inputs(batch, 1, 32, 28), _layer),
    "relu_max_pool2d": (
        lambda batch: {"x": _normal(batch * 32, 28, 28)},
        _judged("relu_max_pool2d_forward", lambda a: (len(a["x"]), 14)),
    ),
    "batch_norm_forward": (
        lambda batch: {"x": _normal(batch, 32, 784), "gamma": _normal(32, seed=2), "beta": _normal(32, seed=3)},
        _judged("batch_norm_forward", lambda a: a["x"].shape),
    ),
    "transpose": (lambda batch: {"x": _normal(batch, 3136)}, _judged("transpose", lambda a: a["x"].shape)),
    "linear": (linear_inputs, _judged("linear_forward", _linear_sizes)),
    "linear_relu": (linear_inputs, _judged("linear_relu_forward", _linear_sizes)),
    "relu": (
        lambda batch: {"x": _normal(batch, 64, 14, 14)},
        _judged("relu_forward", lambda a: (a["x"].size,), ("y", "passed")),
    ),
    "log_softmax": (lambda batch: {"x": _normal(batch, 10)}, _judged("log_softmax_forward", lambda a: a["x"].shape)),
}


# What a plain sum in float32 may have, as op_cases.cpp has it.
BOUNDS = {"relu": 0.0, "log_softmax": 1e-6, "linear": 1e-5, "linear_relu": 1e-5, **dict.fromkeys(_LAYERS, 5e-6)}


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
            reason = f"{lack(python, peer.module)}; {peer.remedy}"
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


def simulated_rows(op: str, variant: str, peers: Iterable[str], python: Path) -> list[dict[str, Any]]:
    """Rows of these languages by their simulators, on inputs that those get done; op, variant: empty for all.

    `by` names the simulator, `shapes` has the inputs' shapes; `absent` or `failed` says why there is no `error`.
    """
    found = []
    for name in peers:
        peer = OP_PEERS[name]
        wanted = [v for v in peer.variants if op in ("", v.op) and variant in ("", v.name)]
        if peer.simulator is None or not wanted:
            continue
        inputs = {one: peer.simulator.inputs[one.op]() for one in wanted}
        rows: list[dict[str, Any]] = [
            {
                "op": one.op,
                "variant": one.name,
                "why": one.why,
                "by": peer.simulator.name,
                "absent": "",
                "failed": "",
                "error": None,
            }
            | {"bound": max(BOUNDS[one.op], one.own_error)}
            | {"shapes": {array: list(values.shape) for array, values in inputs[one].items()}}
            for one in wanted
        ]
        found += rows
        if not has_module(python, peer.module):
            for row in rows:
                row["absent"] = f"{lack(python, peer.module)}; {peer.remedy}"
            continue
        command, on = (str(python), str(PEER_SCRIPTS / peer.script)), {peer.simulator.variable: "1"}
        with CompetitorProcess(command, on) as process, tempfile.TemporaryDirectory() as folder:
            for one, row in zip(wanted, rows, strict=True):
                try:
                    row["error"] = run_variant(process, one, inputs[one], Path(folder))["error"]
                except CompetitorError as error:
                    row["failed"] = str(error)
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
