"""THE bounds: how far an engine may be from float64, as one function of engine, precision, tensor, batch and routing.

Whatever multiplies a bound in a test stands here, too, with its reason. Bounds of single ops and of the phases of
`fused` come from the numbers that they add up; they are beside the C++ tests that compute them.

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

# The weight gradient of a convolution in float32, where it has no closed form: sums of dz times inputs over all
# positions of a batch. Nearly all of it cancels, since the background is flat and batch norm takes the mean of dz away;
# what rounding takes from dz is the same at every position of the background and does not. So the error grows with B.
# Of conv1.weight PyTorch on a CPU has 3e-4 at B=64 and 3e-3 at B=1024. A step emulated with real digits, whose sums
# alone are exact, has 2e-6 B from B=1 to B=1024, and 4e-6 B where each sum is one chain of additions. Of fewer than
# PLAIN_LEAST images flat ones may be most: there it has up to 2e-4. Beyond PLAIN_BATCH images sums in parts keep the
# bound of so many; of conv2.weight that is the bound for fewer, too.
PLAIN_LEAST = 32
PLAIN_BATCH = 1024
PLAIN_SUMS = {"conv1.weight": 1e-2, "conv2.weight": 2e-4}


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
            frozen = PLAIN_SUMS.get(tensor, 1e-5)
            if tensor == "conv1.weight":
                frozen *= min(max(batch, PLAIN_LEAST), PLAIN_BATCH) / PLAIN_BATCH
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
# And of its mean over these steps, where rounding averages out and a gradient that is too small or too large does not.
# `cpu` has 6e-7; with the step of fc1.weight, conv2.weight or fc2.weight 5 % too small it has 2e-2, 3e-3 and 3e-3. On
# an H200 the largest is 2.2e-4 in fp32 (`cudnn`; `fused` 4e-5), 9.3e-4 in tf32 and 1.3e-3 in bf16 (`fused`).
TRAJECTORY_MEAN = {"fp64": 1e-10, "fp32": 1e-3, "tf32": 2e-3, "bf16": 2.5e-3}

# Several ranks add up otherwise than one engine. Largest relative L2 distance of a parameter or a statistic from one
# engine's after five steps on `cpu`; after more, TRAJECTORY, or as many times what one engine's own rounding leads away
# from float64: two runs of independent roundings.
RANKS_APART = 1e-4
RANKS_BESIDE_ONE = 2

# Share of the routing's cells that may differ from float64's: near-ties and values near 0 that rounding moves across.
FLIPS = {"fp64": 0.0, "fp32": 1e-4, "tf32": 2e-3, "bf16": 1e-2}

# How many times the bound of a tensor with a row for each sample the worst row may be off, relative to the root mean
# square of the rows' norms: a sample that is left out of thousands shows here alone.
WORST_ROW = 8

# Where all images of a batch are of one of these kinds (tests/cases.py), only the border or a pixel is not flat, and of
# conv1.weight the bound in fp32 where an engine adds up plainly is that of PLAIN_BATCH images: emulated as above, 10
# black images have 1e-3, 64 have 9e-3, and 10 of one pixel 3e-4. Of 60 random cases, images of other kinds have at most
# half of the bound of their batch.
FLAT_KINDS = ("one_hot", "zeros")

# How many times its bound an error may be where inputs are drawn at random at hundreds of sizes and scales, or made, so
# that some sums cancel to a small rest. On an H200 the worst was 3.1 times, at sizes alone 2.1 times (fp32), in `cudnn`
# and `naive` as in `fused`.
WILD = 4

# The same in a batch of 299,904 images, copies of 24, whose arrays pass 2^31 values. A block adds up 32,000 image rows,
# of which only 336 differ, and a sum in float32 rounds equal terms alike: emulated with random terms, that alone is an
# error of 4.5 bounds. On an H200 `fused` in fp32 has 8.5 times its bound in conv2.weight, the others less than WILD.
# An index that overflows leaves errors of the order of the gradient, 10^5 bounds.
BEYOND_32_BITS = 16

# How many times its bound a gradient may be off that cancels to a small rest, as tests compute it from float64: what
# rounding the terms does to their sum. Beyond, nothing is compared: in bf16 it would be a quarter of the gradient.
MOST_CANCELLATION = 12

# Gradients of random cases, times the bound or PyTorch's error in the same precision, whichever is larger: in 99 % and
# in all, by how an engine adds up what is summed over a batch; the error of partial sums hardly grows with it. On an
# H200 `naive` has 1.36 and 4.66, `tiled` 0.98 and 3.28, `cudnn` 1.14 and 3.01 in tf32 and 1.26 and 2.01 in bf16; in
# fp32 1.01 and, of 96 black images, bn1.bias 11.87.
RANDOM_CASES = {"partial": (1, 2), "plain": (1.5, 5), "library": (1.5, 5)}
OTHER_RANDOM_CASES = {("cudnn", "fp32"): (1.5, 12)}


def limits_of_random_cases(engine: str, precision: str) -> tuple[float, float]:
    """What 99 % of the gradients of random cases and all of them stay below; see RANDOM_CASES."""
    return OTHER_RANDOM_CASES.get((engine, precision), RANDOM_CASES[summation_of(engine)])


# PyTorch's gradient of a convolution's bias is noise around the exact 0.
PEER_BIAS_NOISE = 1e-4


def error_of(value: NDArray[Any], expected: NDArray[Any]) -> float:
    """Relative L2 distance; absolute where nothing but 0 is expected. NaN if there is one in either."""
    distance = float(np.linalg.norm(np.ravel(np.asarray(value, np.float64) - expected)))
    return distance / (float(np.linalg.norm(np.ravel(expected))) or 1.0)
