#!/usr/bin/env python3
"""The baseline in JAX: same network, data, order, recipe and clock. Needs jax and numpy.

Modes: `scan` (jit of lax.scan over up to 100 steps), `step` (one jitted call a step). NHWC, and pooling by reshape
and pairwise maxima, which XLA differentiates faster than reduce_window. The data set lives on the device.

Options: `one-pass` (batch norm's variance is E[z^2] - E[z]^2), `vjp` (the same, with batch norm's gradient written by
hand), `products` (convolutions are matrix products of the 3x3 windows), `conv1-products` (the first one is),
`convolutions` (neither is, also on a CPU), `unroll` (a loop's iteration is 5 steps), `fp16` (activations and filters in
float16, with a scaled loss and steps skipped as PyTorch's GradScaler does it), `tf32x3` (matrix products are sums of
three products of tf32 terms), `floats` (the data set is normalised beforehand, and is kept in the type that the first
layer takes), `graphs` (XLA's loop becomes a CUDA graph), `search` (XLA tries more tilings and cuDNN's matrix products).

Started with torchrun's variables, it is a rank: shard_map of the loop, so that each has an equal share of every batch,
the statistics are those of the whole batch, and XLA adds up the gradients.
"""

from __future__ import annotations

import gzip
import json
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
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ImportError as error:
    sys.exit(f"error: {sys.executable} has no JAX ({error}); install jax and numpy{baseline.or_peers('--jax')}")

MODES = ("scan", "step")
# Steps in one call of the compiled loop: a loop of known length needs no word from the host between its steps.
CALL_LENGTHS = {"scan": (100, 10, 1), "step": (1,)}
# What XLA may compute float32 convolutions and matrix products in.
MATMUL_PRECISION = {"fp32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16", "fp64": "highest"}
PRODUCTS = {"convolutions": (), "conv1-products": ("conv1",), "products": ("conv1", "conv2")}
UNROLLED_STEPS = 5
# Compiler options; those that XLA does not know are left out, and named.
XLA_OPTIONS = {
    "graphs": {
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE",
        "xla_gpu_graph_min_graph_size": 1,
        "xla_gpu_command_buffer_unroll_loops": True,
    },
    "search": {"xla_gpu_exhaustive_tiling_search": True, "xla_gpu_cudnn_gemm_fusion_level": 3},
}
AXIS = "ranks"
FIRST_SCALE, SCALE_INTERVAL = 65536.0, 2000  # of the loss, and the steps after which it is doubled
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


def mean_over_ranks(shares: Any) -> Any:
    """Of means of equal shares, or of a tuple of them."""
    return lax.pmean(shares, AXIS) if baseline.RANKS > 1 else shares


@jax.custom_vjp
def batch_norm(z: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """Of z (N, H, W, C) by its own statistics, with the gradient that both passes over z compute."""
    return _batch_norm(z, scale, shift)[0]


def _batch_norm(z: jax.Array, scale: jax.Array, shift: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    mean, var = one_pass_statistics(z.astype(scale.dtype))
    inverse = lax.rsqrt(var + baseline.EPSILON)
    return (z.astype(scale.dtype) - mean) * (inverse * scale) + shift, (z, mean, inverse, scale)


def _batch_norm_gradient(saved: tuple[jax.Array, ...], dy: jax.Array) -> tuple[jax.Array, ...]:
    z, mean, inverse, scale = saved
    normal = (z.astype(scale.dtype) - mean) * inverse
    sums = dy.sum((0, 1, 2)), (dy * normal).sum((0, 1, 2))
    dshift, dscale = lax.psum(sums, AXIS) if baseline.RANKS > 1 else sums
    count = baseline.RANKS * z.size // z.shape[-1]
    dz = (inverse * scale) * (dy - dshift / count - normal * (dscale / count))
    return dz.astype(z.dtype), dscale, dshift


batch_norm.defvjp(_batch_norm, _batch_norm_gradient)


def one_pass_statistics(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance by channel."""
    mean, square = mean_over_ranks((z.mean((0, 1, 2)), (z * z).mean((0, 1, 2))))
    return mean, jnp.maximum(square - mean * mean, 0)


def two_pass_statistics(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same, the variance about the mean."""
    mean = mean_over_ranks(z.mean((0, 1, 2)))
    return mean, mean_over_ranks(jnp.square(z - mean).mean((0, 1, 2)))


class Trainer:
    """Parameters on the device and the compiled loops that train them; see baseline.Trainer."""

    FRAMEWORK = "JAX"
    OPTIONS = (*("one-pass", "vjp", *PRODUCTS, "unroll", "fp16", "tf32x3", "floats"), *XLA_OPTIONS)

    @staticmethod
    def finds_gpu() -> bool:
        try:
            return bool(jax.local_devices(backend="cuda"))
        except RuntimeError:
            return False

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
        if baseline.RANKS > 1:
            baseline.require_shares(setup)
            join(setup)
        self.device = find_device(setup)
        # XLA's gradients of convolutions are slow on a CPU, its matrix products are not.
        usual = "products" if self.device.platform == "cpu" else "convolutions"
        self.by_products = PRODUCTS[next((word for word in PRODUCTS if word in setup.options), usual)]
        jax.config.update("jax_default_device", self.device)
        jax.config.update("jax_enable_x64", setup.precision == "fp64")
        self.scaled = "fp16" in setup.options
        precision = "default" if self.scaled else MATMUL_PRECISION[setup.precision]
        jax.config.update("jax_default_matmul_precision", precision)
        self.setup = setup
        self.dtype = jnp.float64 if setup.precision == "fp64" else jnp.float32
        self.compute_dtype = jnp.bfloat16 if setup.precision == "bf16" else self.dtype
        if self.scaled:
            self.compute_dtype = jnp.float16
        self.product_precision = lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if "tf32x3" in setup.options else None
        self.precision_pinned = f"matmul precision {jax.config.jax_default_matmul_precision}"
        if self.product_precision:
            self.precision_pinned += f", of products {self.product_precision.name}"
        if self.compute_dtype != self.dtype:
            self.precision_pinned += f"; activations and filters cast to {jnp.dtype(self.compute_dtype).name}"
        self.xla_options = {key: value for word in setup.options for key, value in XLA_OPTIONS.get(word, {}).items()}
        self.versions = {
            "jax": jax.__version__,
            "numpy": np.__version__,
            "device": self.device.device_kind.replace(" ", "-"),
        }
        self.set_weights(weights or baseline.initial_weights(setup.seed))
        self.set_images(data.images)
        self.set_labels(data.labels)
        self.set_order(order)
        self.rates = None  # a constant rate is part of the compiled step
        if rates is not None:
            self.set_rates(rates)
        self.restart()
        self._drop_unknown_options()
        first, *others = CALL_LENGTHS.get(setup.mode, CALL_LENGTHS["scan"])
        with baseline.alone(setup):  # what XLA times now, it knows for the others
            self.loops = {first: self._compile(first)}
        self.loops |= {length: self._compile(length) for length in others}

    def _placed(self, value: jax.Array, *axes: str | None) -> jax.Array:
        """On the device; with several ranks on all of their devices, or cut among them along AXIS."""
        if baseline.RANKS == 1:
            return value
        return jax.device_put(np.asarray(value), NamedSharding(mesh_of_ranks(self.setup), PartitionSpec(*axes)))

    def set_images(self, images: np.ndarray) -> None:
        values = jnp.asarray(images)
        if "floats" in self.setup.options:
            values = jax.jit(self._pixels)(values)[..., 0]
        self.images = jax.block_until_ready(self._placed(values))

    def set_labels(self, labels: np.ndarray) -> None:
        self.labels = self._placed(jnp.asarray(labels, jnp.int32))

    def set_order(self, order: np.ndarray) -> None:
        self.order = self._placed(jnp.asarray(order, jnp.int32), None, AXIS)
        self.position = self._placed(jnp.zeros((), jnp.int32))

    def set_rates(self, rates: np.ndarray) -> None:
        self.rates = self._placed(jnp.asarray(rates, self.dtype))

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        self.initial = {name: from_torch(name, weight) for name, weight in weights.items()}

    def restart(self) -> None:
        self.params = {name: self._placed(jnp.array(weight, self.dtype)) for name, weight in self.initial.items()}
        self.position = self._placed(jnp.zeros((), jnp.int32))
        self.scale = self._placed(jnp.array(FIRST_SCALE, self.dtype)) if self.scaled else None  # of the loss
        self.sound_steps = self._placed(jnp.zeros((), jnp.int32)) if self.scaled else None  # since it was last changed

    # ---- the network ----

    def _conv(self, params: Params, layer: str, x: jax.Array) -> jax.Array:
        w, b = (params[f"{layer}.{kind}"].astype(self.compute_dtype) for kind in ("weight", "bias"))
        if layer in self.by_products:
            height, width = x.shape[1:3]
            padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            taps = [padded[:, u : u + height, v : v + width] for u in range(3) for v in range(3)]
            return self._product(jnp.concatenate(taps, -1), w.reshape(-1, w.shape[-1])) + b
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b

    def _linear(self, params: Params, layer: str, x: jax.Array) -> jax.Array:
        w, b = (params[f"{layer}.{kind}"].astype(self.compute_dtype) for kind in ("weight", "bias"))
        return self._product(x, w) + b

    def _product(self, x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.matmul(x, w, precision=self.product_precision)

    def _normalise_and_pool(self, params: Params, layer: str, z: jax.Array, statistics: Any = None) -> jax.Array:
        """Batch norm by the batch's statistics or those given, ReLU, maximum of each 2x2 window."""
        scale, shift = params[f"{layer}.weight"], params[f"{layer}.bias"]
        if "vjp" in self.setup.options and statistics is None:
            y = batch_norm(z, scale, shift)
        else:
            z = z.astype(self.dtype)
            if statistics is None:
                one_pass = "one-pass" in self.setup.options
                statistics = one_pass_statistics(z) if one_pass else two_pass_statistics(z)
            mean, var = statistics
            y = scale * (z - mean) * lax.rsqrt(var + baseline.EPSILON) + shift
        n, height, width, channels = z.shape
        windows = y.astype(self.compute_dtype).reshape(n, height // 2, 2, width // 2, 2, channels)
        # Not windows.max((2, 4)): its gradient looks for values equal to the maximum, and finds none where XLA computes
        # y once more with another rounding. Pairwise maxima only compare.
        rows = jnp.maximum(windows[:, :, 0], windows[:, :, 1])
        return jax.nn.relu(jnp.maximum(rows[:, :, :, 0], rows[:, :, :, 1]))

    def _pixels(self, images: jax.Array) -> jax.Array:
        x = images
        if images.dtype == jnp.uint8:
            x = (images.astype(self.dtype) / 255 - baseline.PIXEL_MEAN) / baseline.PIXEL_STD
        return x[..., None].astype(self.compute_dtype)

    def _loss(self, params: Params, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        a1 = self._normalise_and_pool(params, "bn1", self._conv(params, "conv1", self._pixels(images)))
        a2 = self._normalise_and_pool(params, "bn2", self._conv(params, "conv2", a1))
        h = jax.nn.relu(self._linear(params, "fc1", a2.reshape(len(a2), -1)))
        logits = self._linear(params, "fc2", h).astype(self.dtype)
        log_p = jax.nn.log_softmax(logits)
        loss = mean_over_ranks(-jnp.take_along_axis(log_p, labels[:, None], 1).mean())
        return loss, {"a1": a1, "a2": a2, "h": h, "logits": logits}

    # ---- training ----

    def _drop_unknown_options(self) -> None:
        """Leave out what this XLA does not know, and say so: as flags they would end the process."""
        probe = jax.jit(lambda x: x + 1).lower(jnp.zeros(()))
        for name, value in list(self.xla_options.items()):
            try:
                probe.compile(compiler_options={name: value})
            except jax.errors.JaxRuntimeError:
                del self.xla_options[name]
                self.precision_pinned += f"; XLA does not know {name}"

    def _state(self) -> tuple[Any, ...]:
        return self.params, self.position, self.scale, self.sound_steps

    def _compile(self, length: int) -> Callable[..., Any]:
        arguments = (*self._state(), self.images, self.labels, self.order, self.rates)
        loop = self._loop(length)
        if baseline.RANKS > 1:
            of_order = PartitionSpec(None, AXIS)
            specs = tuple(of_order if argument is self.order else PartitionSpec() for argument in arguments)
            loop = jax.shard_map(loop, mesh=mesh_of_ranks(self.setup), in_specs=specs, out_specs=PartitionSpec())
        lowered = jax.jit(loop, donate_argnums=(0, 1, 2, 3)).lower(*arguments)
        return lowered.compile(compiler_options=self.xla_options)

    def _loop(self, length: int) -> Callable[..., Any]:
        """So many steps from a position of the order on: the state after them, and the losses."""

        def steps(
            params: Params,
            position: jax.Array,
            scale: jax.Array | None,
            sound_steps: jax.Array | None,
            images: jax.Array,
            labels: jax.Array,
            order: jax.Array,
            rates: jax.Array | None,
        ) -> tuple[Any, ...]:
            def step(state: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], jax.Array]:
                params, position, scale, sound_steps = state
                rows = order[position]
                rate = self.setup.lr if rates is None else rates[position]

                def loss_of(params: Params) -> tuple[jax.Array, jax.Array]:
                    loss, _ = self._loss(params, images[rows], labels[rows])
                    return loss if scale is None else loss * scale, loss

                gradients, loss = jax.grad(loss_of, has_aux=True)(params)
                if scale is None:
                    params = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
                else:
                    sound = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]).all()
                    params = jax.tree.map(lambda p, g: jnp.where(sound, p - rate * g / scale, p), params, gradients)
                    grows = sound & (sound_steps + 1 == SCALE_INTERVAL)
                    sound_steps = jnp.where(sound & ~grows, sound_steps + 1, 0)
                    scale = scale * jnp.where(sound, jnp.where(grows, 2.0, 1.0), 0.5)
                return (params, (position + 1) % len(order), scale, sound_steps), loss

            unroll = min(length, UNROLLED_STEPS) if "unroll" in self.setup.options else 1
            state, losses = lax.scan(step, (params, position, scale, sound_steps), length=length, unroll=unroll)
            return *state, losses

        return steps

    def run(self, steps: int) -> tuple[float, list[float]]:
        jax.block_until_ready(self._state())
        if baseline.RANKS > 1:
            multihost_utils.sync_global_devices("run")  # all begin together
        start = baseline.now()
        first = None
        while steps > 0:
            length = next(n for n in self.loops if n <= steps)
            self.params, self.position, self.scale, self.sound_steps, losses = self.loops[length](
                *self._state(), self.images, self.labels, self.order, self.rates
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

    def classes(self, images: np.ndarray, count: int | None = None) -> np.ndarray:
        chunk = baseline.EVALUATION_BATCH
        params, trained_on = jax.tree.map(lambda value: value.addressable_data(0), (self.params, self.images))
        trained_on = trained_on[:count]
        of_conv1, of_conv2, classes = self._passes

        def statistics(
            sums_of: Callable[..., Any], channels: int, area: int, *rest: Any
        ) -> tuple[jax.Array, jax.Array]:
            """Mean and biased variance by channel over these training images.

            Sums of chunks are of the compute type and added in float64. They are taken about the mean of the first
            chunk, so that the square of a large mean does not hide a small variance.
            """
            parts = [trained_on[first : first + chunk] for first in range(0, len(trained_on), chunk)]
            total, _ = sums_of(params, parts[0], jnp.zeros(channels, self.dtype), *rest)
            middle = total / (len(parts[0]) * area)
            queued = [sums_of(params, part, middle, *rest) for part in parts]
            total, squares = (sum(np.asarray(part[k], np.float64) for part in queued) for k in (0, 1))
            values = len(trained_on) * area
            mean, var = np.asarray(middle, np.float64) + total / values, squares / values - (total / values) ** 2
            return jnp.asarray(mean, self.dtype), jnp.asarray(var, self.dtype)

        of1 = statistics(of_conv1, 32, 28 * 28)
        of2 = statistics(of_conv2, 64, 14 * 14, of1)
        parts = [jnp.asarray(images[first : first + chunk]) for first in range(0, len(images), chunk)]
        return np.concatenate([np.asarray(classes(params, part, of1, of2)) for part in parts])

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


def join(setup: Setup) -> None:
    """Meet the other ranks, each with a GPU. NVLink multicast stays off, as in what this is compared with."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if not jax.distributed.is_initialized():
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        gpu = int(os.environ["LOCAL_RANK"]) if setup.device == "cuda" else None
        jax.distributed.initialize(address, baseline.RANKS, baseline.RANK, gpu)


def mesh_of_ranks(setup: Setup) -> Mesh:
    """A device of each rank."""
    return Mesh(np.array(jax.devices(setup.device)), (AXIS,))


def find_device(setup: Setup) -> jax.Device:
    """The CPU or this process's first GPU; BaselineError where JAX has no GPU or the precision needs one."""
    if setup.precision == "tf32" and setup.device != "cuda":
        raise BaselineError("precision tf32 needs --device cuda", 4)
    try:
        return jax.local_devices(backend=setup.device)[0]
    except RuntimeError:
        raise BaselineError(f"device {setup.device}: JAX finds none", 4) from None


if __name__ == "__main__":
    # JAX takes three quarters of the GPU's memory at its start unless told not to.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(baseline.main(Trainer, MODES, __doc__.splitlines()[0]))
