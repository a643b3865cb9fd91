"""The network's parameters by their PyTorch names, and their initial values.

The table itself (names, shapes, offsets) is native/include/mnist/model.h; this module reads it from there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mnist_cuda import _native, rules
from mnist_cuda.errors import UsageError


@dataclass(frozen=True)
class Tensor:
    """One row of a slab: PyTorch name, shape, and where it lies in the flat array, in elements."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int


PARAMETERS = tuple(Tensor(*row) for row in _native.parameters())
STATISTICS = tuple(Tensor(*row) for row in _native.statistics())


def unpack(slab: NDArray[Any], table: tuple[Tensor, ...]) -> dict[str, NDArray[Any]]:
    """Split a flat array into named tensors: views of it, in their shapes."""
    return {t.name: slab[t.offset : t.offset + t.size].reshape(t.shape) for t in table}


def empty_slab(table: tuple[Tensor, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """A flat array for all tensors of a table, not filled."""
    return np.empty(sum(t.size for t in table), dtype)


def pack(tensors: Mapping[str, NDArray[np.floating]], table: tuple[Tensor, ...], slab: NDArray[Any]) -> NDArray[Any]:
    """Join named tensors in `slab`, a flat array, and return it; what is too large for its type becomes infinite.

    Raises UsageError where a tensor is missing, has another shape or is not of real numbers; names outside the table
    are ignored.
    """
    if not isinstance(tensors, Mapping):
        raise UsageError(f"the tensors are {rules.shown(tensors)}, expected arrays by name")
    for t in table:
        if t.name not in tensors:
            raise UsageError(f"tensor {t.name} is missing, expected shape {t.shape}")
        value = np.asarray(tensors[t.name])
        if value.shape != t.shape:
            raise UsageError(f"tensor {t.name} has shape {value.shape}, expected {t.shape}")
        if value.dtype.kind not in "fiu":
            raise UsageError(f"tensor {t.name} has dtype {value.dtype}, expected real numbers")
        with np.errstate(over="ignore"):
            slab[t.offset : t.offset + t.size] = value.ravel()
    return slab


def initial_stream(seed: int) -> np.random.PCG64:
    """The random stream that the initial parameters of a seed are drawn from: stream 0 of the seed."""
    return np.random.PCG64(np.random.SeedSequence([rules.NATURAL("seed", seed), 0]))


def digest(parameters: Mapping[str, NDArray[np.floating]]) -> str:
    """sha256 of all parameters in the table's order, in the dtype that they have: the same weights give the same."""
    sha256 = hashlib.sha256()
    for t in PARAMETERS:
        sha256.update(np.ascontiguousarray(parameters[t.name]).data)
    return sha256.hexdigest()


def init_parameters(seed: int) -> dict[str, NDArray[np.float64]]:
    """Initial parameters, distributed as PyTorch initialises Conv2d, BatchNorm2d and Linear.

    Weights and biases of conv and linear layers are uniform on (-k, k) with k = 1/sqrt(fan_in), which is what
    `kaiming_uniform_(a=sqrt(5))` and the bias rule of torch.nn.Conv2d and torch.nn.Linear come to; batch norm starts
    at scale 1 and shift 0. The values are float32 numbers (held as float64), so that every engine starts from the
    same point whatever it stores. The same seed gives the same values on every machine, and `Engine.init_parameters`
    gives them to an engine.
    """
    rng = np.random.Generator(initial_stream(seed))
    shapes = {t.name: t.shape for t in PARAMETERS}
    values = {}
    for t in PARAMETERS:
        layer, kind = t.name.split(".")
        if layer.startswith("bn"):
            value = np.full(t.shape, 1.0 if kind == "weight" else 0.0)
        else:
            bound = 1 / math.sqrt(math.prod(shapes[f"{layer}.weight"][1:]))
            value = rng.uniform(-bound, bound, t.shape)
        values[t.name] = value.astype(np.float32).astype(np.float64)
    return values
