#!/usr/bin/env python3
"""The baseline in JAX: same network, data, order, recipe and clock, at JAX's best. Needs jax and numpy.

Modes: `scan` (jit of lax.scan over up to 100 steps), `step` (one jitted call a step). NHWC, and pooling by reshape
and pairwise maxima, which XLA differentiates faster than reduce_window. The data set lives on the device.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import baseline
import numpy as np
from baseline import BaselineError, Data, Setup

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError as error:
    sys.exit(f"error: {sys.executable} has no JAX ({error}); install jax and numpy, or run scripts/peers --jax")

MODES = ("scan", "step")
# Steps in one call of the compiled loop: a loop of known length needs no word from the host between its steps.
CALL_LENGTHS = {"scan": (100, 10, 1), "step": (1,)}
# What XLA may compute float32 convolutions and matrix products in.
MATMUL_PRECISION = {"fp32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16", "fp64": "highest"}
Params = dict[str, Any]


def from_torch(name: str, value: np.ndarray) -> np.ndarray:
    """A parameter in this network's layout: filters HWIO, fc1's inputs in the order H, W, C, matrices (in, out)."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if name == "fc1.weight":
        return value.reshape(128, 64, 7, 7).transpose(2, 3, 1, 0).reshape(3136, 128)
    return value.T


def to_torch(name: str, value: np.ndarray) -> np.ndarray:
    """The inverse of from_torch."""
    if value.ndim == 4:
        return value.transpose(3, 2, 0, 1)
    if name == "fc1.weight":
        return value.reshape(7, 7, 64, 128).transpose(3, 2, 0, 1).reshape(128, 3136)
    return value.T


def initial_weights(seed: int) -> dict[str, np.ndarray]:
    """PyTorch's default: conv and linear uniform on +-1/sqrt(fan_in), batch norm at scale 1 and shift 0."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in baseline.SHAPES.items():
        layer, kind = name.split(".")
        bound = 1 / math.sqrt(math.prod(baseline.SHAPES[f"{layer}.weight"][1:]))
        constant = np.full(shape, float(kind == "weight"))
        weights[name] = constant if layer.startswith("bn") else rng.uniform(-bound, bound, shape)
    return weights


class Trainer:
    """Parameters on the device and the compiled loops that train them; see baseline.Trainer."""

    def __init__(
        self,
        setup: Setup,
        data: Data,
        weights: dict[str, np.ndarray] | None,
        order: np.ndarray,
        rates: np.ndarray | None = None,
    ) -> None:
        if setup.data == "host":
            raise BaselineError("data host: this baseline keeps the data set on the device")
        self.device = find_device(setup)
        # XLA's gradients of convolutions are slow on a CPU, its matrix products are not.
        self.by_products = self.device.platform == "cpu"
        jax.config.update("jax_default_device", self.device)
        jax.config.update("jax_enable_x64", setup.precision == "fp64")
        jax.config.update("jax_default_matmul_precision", MATMUL_PRECISION[setup.precision])
        self.setup = setup
        self.dtype = jnp.float64 if setup.precision == "fp64" else jnp.float32
        self.compute_dtype = jnp.bfloat16 if setup.precision == "bf16" else self.dtype
        self.precision_pinned = f"matmul precision {jax.config.jax_default_matmul_precision}" + (
            "; activations and filters cast to bfloat16" if setup.precision == "bf16" else ""
        )
        self.versions = {
            "jax": jax.__version__,
            "numpy": np.__version__,
            "device": self.device.device_kind.replace(" ", "-"),
        }
        self.set_weights(weights or initial_weights(setup.seed))
        self.images, self.labels = jnp.asarray(data.images), jnp.asarray(data.labels, jnp.int32)
        self.set_order(order)
        self.rates = None  # a constant rate is part of the compiled step
        if rates is not None:
            self.set_rates(rates)
        self.restart()
        self.loops = {length: self._compile(length) for length in CALL_LENGTHS.get(setup.mode, CALL_LENGTHS["scan"])}

    def set_order(self, order: np.ndarray) -> None:
        self.order = jnp.asarray(order, jnp.int32)
        self.position = jnp.zeros((), jnp.int32)

    def set_rates(self, rates: np.ndarray) -> None:
        self.rates = jnp.asarray(rates, self.dtype)

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        self.initial = {name: from_torch(name, weight) for name, weight in weights.items()}

    def restart(self) -> None:
        self.params = {name: jnp.array(weight, self.dtype) for name, weight in self.initial.items()}
        self.position = jnp.zeros((), jnp.int32)

    # ---- the network ----

    def _conv(self, params: Params, layer: str, x: jax.Array) -> jax.Array:
        w, b = (params[f"{layer}.{kind}"].astype(self.compute_dtype) for kind in ("weight", "bias"))
        if self.by_products:
            height, width = x.shape[1:3]
            padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            taps = [padded[:, u : u + height, v : v + width] for u in range(3) for v in range(3)]
            return jnp.concatenate(taps, -1) @ w.reshape(-1, w.shape[-1]) + b
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b

    def _linear(self, params: Params, layer: str, x: jax.Array) -> jax.Array:
        w, b = (params[f"{layer}.{kind}"].astype(self.compute_dtype) for kind in ("weight", "bias"))
        return x @ w + b

    def _normalise_and_pool(self, params: Params, layer: str, z: jax.Array, statistics: Any = None) -> jax.Array:
        """Batch norm by the batch's statistics or those given, ReLU, maximum of each 2x2 window."""
        z = z.astype(self.dtype)
        mean, var = statistics or (z.mean((0, 1, 2)), z.var((0, 1, 2)))
        y = params[f"{layer}.weight"] * (z - mean) * lax.rsqrt(var + baseline.EPSILON) + params[f"{layer}.bias"]
        n, height, width, channels = z.shape
        windows = y.astype(self.compute_dtype).reshape(n, height // 2, 2, width // 2, 2, channels)
        # Not windows.max((2, 4)): its gradient looks for values equal to the maximum, and finds none where XLA computes
        # y once more with another rounding. Pairwise maxima only compare.
        rows = jnp.maximum(windows[:, :, 0], windows[:, :, 1])
        return jax.nn.relu(jnp.maximum(rows[:, :, :, 0], rows[:, :, :, 1]))

    def _pixels(self, images: jax.Array) -> jax.Array:
        x = (images.astype(self.dtype) / 255 - baseline.PIXEL_MEAN) / baseline.PIXEL_STD
        return x[..., None].astype(self.compute_dtype)

    def _loss(self, params: Params, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        a1 = self._normalise_and_pool(params, "bn1", self._conv(params, "conv1", self._pixels(images)))
        a2 = self._normalise_and_pool(params, "bn2", self._conv(params, "conv2", a1))
        h = jax.nn.relu(self._linear(params, "fc1", a2.reshape(len(a2), -1)))
        logits = self._linear(params, "fc2", h).astype(self.dtype)
        log_p = jax.nn.log_softmax(logits)
        loss = -jnp.take_along_axis(log_p, labels[:, None], 1).mean()
        return loss, {"a1": a1, "a2": a2, "h": h, "logits": logits}

    # ---- training ----

    def _compile(self, length: int) -> Callable[..., Any]:
        arguments = (self.params, self.position, self.images, self.labels, self.order, self.rates)
        return jax.jit(self._loop(length), donate_argnums=(0, 1)).lower(*arguments).compile()

    def _loop(self, length: int) -> Callable[..., Any]:
        """So many steps from a position of the order on: the parameters and the position after them, and the losses."""

        def steps(
            params: Params,
            position: jax.Array,
            images: jax.Array,
            labels: jax.Array,
            order: jax.Array,
            rates: jax.Array | None,
        ) -> tuple[Params, jax.Array, jax.Array]:
            def step(carry: tuple[Params, jax.Array], _: None) -> tuple[tuple[Params, jax.Array], jax.Array]:
                params, position = carry
                rows = order[position]
                loss, gradients = jax.value_and_grad(lambda p: self._loss(p, images[rows], labels[rows])[0])(params)
                rate = self.setup.lr if rates is None else rates[position]
                params = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
                return (params, (position + 1) % len(order)), loss

            (params, position), losses = lax.scan(step, (params, position), length=length)
            return params, position, losses

        return steps

    def run(self, steps: int) -> tuple[float, list[float]]:
        jax.block_until_ready((self.params, self.position))
        start = baseline.now()
        first = None
        while steps > 0:
            length = next(n for n in self.loops if n <= steps)
            self.params, self.position, losses = self.loops[length](
                self.params, self.position, self.images, self.labels, self.order, self.rates
            )
            first = losses if first is None else first
            steps -= length
        jax.block_until_ready((self.params, losses))
        return baseline.now() - start, [float(first[..., 0].mean()), float(losses[..., -1].mean())]

    @cached_property
    def _passes(self) -> tuple[Callable[..., Any], ...]:
        """Compiled once: sums by channel of conv1's and conv2's outputs about a middle, and the predicted classes."""

        def sums(z: jax.Array, middle: jax.Array) -> tuple[jax.Array, jax.Array]:
            d = z.astype(self.dtype) - middle
            return d.sum((0, 1, 2)), (d * d).sum((0, 1, 2))

        def z1(params: Params, images: jax.Array) -> jax.Array:
            return self._conv(params, "conv1", self._pixels(images))

        def z2(params: Params, images: jax.Array, of1: Any) -> jax.Array:
            return self._conv(params, "conv2", self._normalise_and_pool(params, "bn1", z1(params, images), of1))

        def classes(params: Params, images: jax.Array, of1: Any, of2: Any) -> jax.Array:
            a2 = self._normalise_and_pool(params, "bn2", z2(params, images, of1), of2)
            h = jax.nn.relu(self._linear(params, "fc1", a2.reshape(len(a2), -1)))
            return self._linear(params, "fc2", h).argmax(1)

        return (
            jax.jit(lambda params, images, middle: sums(z1(params, images), middle)),
            jax.jit(lambda params, images, middle, of1: sums(z2(params, images, of1), middle)),
            jax.jit(classes),
        )

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        params, chunk = self.params, baseline.EVALUATION_BATCH
        of_conv1, of_conv2, classes = self._passes

        def statistics(
            sums_of: Callable[..., Any], channels: int, area: int, *rest: Any
        ) -> tuple[jax.Array, jax.Array]:
            """Mean and biased variance by channel over all training images.

            Sums of chunks are of the compute type and added in float64. They are taken about the mean of the first
            chunk, so that the square of a large mean does not hide a small variance.
            """
            parts = [self.images[first : first + chunk] for first in range(0, len(self.images), chunk)]
            total, _ = sums_of(params, parts[0], jnp.zeros(channels, self.dtype), *rest)
            middle = total / (len(parts[0]) * area)
            queued = [sums_of(params, part, middle, *rest) for part in parts]
            total, squares = (sum(np.asarray(part[k], np.float64) for part in queued) for k in (0, 1))
            count = len(self.images) * area
            mean, var = np.asarray(middle, np.float64) + total / count, squares / count - (total / count) ** 2
            return jnp.asarray(mean, self.dtype), jnp.asarray(var, self.dtype)

        of1 = statistics(of_conv1, 32, 28 * 28)
        of2 = statistics(of_conv2, 64, 14 * 14, of1)
        parts = [jnp.asarray(images[first : first + chunk]) for first in range(0, len(labels), chunk)]
        predicted = np.concatenate([np.asarray(classes(params, part, of1, of2)) for part in parts])
        return int((predicted == labels).sum()) / len(labels)

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: to_torch(name, np.asarray(value)) for name, value in self.params.items()}

    def trace(self, steps: int) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                for k in range(steps):
                    with jax.profiler.TraceAnnotation(f"step {k + 1}"):
                        self.run(1)
            (path,) = Path(folder).rglob("*.trace.json.gz")
            events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        return [e for e in events if not e.get("name", "").startswith("$")]  # Python's own calls

    def probe(self) -> dict[str, np.ndarray]:
        rows = self.order[0]
        loss_and_gradient = jax.jit(jax.value_and_grad(self._loss, has_aux=True))
        (loss, inside), gradients = loss_and_gradient(self.params, self.images[rows], self.labels[rows])
        arrays = {"loss": loss, **inside}
        arrays = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
        for name in ("a1", "a2"):
            arrays[name] = arrays[name].transpose(0, 3, 1, 2)
        for name, value in gradients.items():
            arrays[f"gradient.{name}"] = to_torch(name, np.asarray(value, np.float64))
        return arrays


def find_device(setup: Setup) -> jax.Device:
    """The CPU or the first GPU; BaselineError where JAX has no GPU or the precision needs one."""
    if setup.precision == "tf32" and setup.device != "cuda":
        raise BaselineError("precision tf32 needs --device cuda", 4)
    try:
        return jax.devices(setup.device)[0]
    except RuntimeError:
        raise BaselineError(f"device {setup.device}: JAX finds none", 4) from None


if __name__ == "__main__":
    # JAX takes three quarters of the GPU's memory at its start unless told not to.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(baseline.main(Trainer, MODES, __doc__.splitlines()[0]))
