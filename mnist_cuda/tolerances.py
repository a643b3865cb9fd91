"""THE bounds: how far an engine may be from float64, as one function of engine, precision, tensor, batch and routing.

Gradients, activations and statistics are compared by relative L2 norm, losses by their difference. With *frozen*
routing the float64 oracle follows the engine's own decisions (pool argmax, ReLU masks), so that only arithmetic is
compared: this is the comparison that finds bugs. With *free* routing each side decides for itself; a correct engine
then exceeds the median's bound on some batches, where a near-tie flips, so it is asserted over 20 fixed batches.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native


class Free(NamedTuple):
    """Bounds on the median and on the worst of 20 batches."""

    median: float
    worst: float


# How peers add up; of engines the registry's rows say it. PyTorch has the same error against float64 as `naive`.
PEERS_SUMMATION = {"torch": "library"}

# Batches up to which a library's plain sums over all positions of all images are bounded: with more their error grows.
LIBRARY_BATCH = 1024


def summation_of(name: str) -> str:
    """How an engine, or a peer, adds up what is summed over a batch: `partial`, `plain` or `library` (engine.h)."""
    rows = {row["name"]: row["summation"] for row in _native.engines()}
    return str({**PEERS_SUMMATION, **rows}[name])


def tolerance(engine: str, precision: str, tensor: str, batch: int, routing: Literal["frozen", "free"]) -> float | Free:
    """The bound for a tensor: a parameter's name (its gradient), `loss`, or anything else a forward pass gives.

    loss: absolute, for a loss of order 1; the mean over fewer than 64 images averages less noise away. In bf16
    on an H200, over 8 batches of 64 digits, `cudnn` is off by 1e-4 (median) and 4.4e-4 (worst), PyTorch by 6e-4 and
    9e-4.
    The convolutions' biases have gradient exactly 0 (batch norm subtracts the mean): no engine may report another.
    """
    if tensor in ("conv1.bias", "conv2.bias"):
        return 0.0 if routing == "frozen" else Free(0.0, 0.0)
    if tensor == "loss":
        bound = {"fp64": 1e-12, "fp32": 1e-6, "tf32": 1e-4, "bf16": 5e-4}[precision]
        if engine == "torch" and precision == "bf16":
            bound = 1e-3
        return bound * math.sqrt(64 / min(batch, 64))
    if precision == "fp64":
        return 1e-9 if routing == "frozen" else Free(1e-9, 1e-9)
    if precision == "fp32":
        frozen = 1e-5
        if summation_of(engine) != "partial":
            frozen = {"conv1.weight": 1e-2, "conv2.weight": 2e-4}.get(tensor, 1e-5)
            return frozen if routing == "frozen" else Free(3 * frozen, 3e-2)
        return frozen if routing == "frozen" else Free(1e-5, 3e-2)
    if routing == "frozen":
        return {"tf32": 2e-3, "bf16": 2e-2}[precision]
    last_layer = tensor.startswith("fc2")
    if precision == "tf32":
        return Free(3e-3 if last_layer else 5e-2, 1e-1)
    return Free(1e-2 if last_layer else 1.5e-1, 3e-1)


# Largest difference of the loss from float64 over 100 steps with batch 64 at learning rate 0.01; after that, and at
# larger rates, training is chaotic and no pointwise bound holds for any implementation.
TRAJECTORY = {"fp64": 1e-9, "fp32": 5e-3, "tf32": 2e-2, "bf16": 5e-2}

# Share of the routing's cells that may differ from float64's: near-ties and values near 0 that rounding moves across.
FLIPS = {"fp64": 0.0, "fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2}

# How many times the bound of a tensor with a row for each sample the worst row may be off, relative to the root mean
# square of the rows' norms: a sample that is left out of thousands shows here alone.
WORST_ROW = 8

# How many times its bound an error may be where inputs are drawn at random at hundreds of sizes and scales, so that
# some gradients cancel to a small rest. On an H200 the worst was 3.1 times, at sizes alone 2.1 times (fp32), in `cudnn`
# and `naive` as in `fused`.
WILD = 4

# PyTorch's gradient of a convolution's bias is noise around the exact 0.
PEER_BIAS_NOISE = 1e-4


def error_of(value: NDArray[Any], expected: NDArray[Any]) -> float:
    """Relative L2 distance; absolute where nothing but 0 is expected. NaN if there is one in either."""
    distance = float(np.linalg.norm(np.ravel(np.asarray(value, np.float64) - expected)))
    return distance / (float(np.linalg.norm(np.ravel(expected))) or 1.0)
