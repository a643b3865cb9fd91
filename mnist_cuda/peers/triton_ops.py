#!/usr/bin/env python3
"""Ops in Triton: a program computes a tile, and the compiler places its threads. Needs triton, torch and numpy.

With TRITON_INTERPRET=1 Triton's interpreter runs the same kernels without a GPU, a program after the other.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import op_baseline
from op_baseline import Kernel

try:
    import torch
    import triton
    from triton import language as tl
except ImportError as error:
    sys.exit(f"error: {sys.executable} has no Triton ({error}); PyTorch for CUDA brings it")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ELEMENTS = 1024  # of a program that treats each by itself
ROWS = 64  # of log_softmax a program
TILE, DEPTH = 64, 32  # linear: outputs of a program on either side, and how far its sum goes at once
POSITIONS = 64  # of a layer's convolution a program
EPSILON = 1e-5  # of batch norm


@triton.jit
def relu_kernel(y, passed, x, count, ELEMENTS: tl.constexpr):
    """y = max(x, 0), and where x passed."""
    k = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = k < count
    values = tl.load(x + k, mask=inside, other=0.0)
    stopped = values <= 0  # a NaN passes
    tl.store(y + k, tl.where(stopped, 0.0, values), mask=inside)
    tl.store(passed + k, tl.where(stopped, 0, 1).to(tl.uint8), mask=inside)


@triton.jit
def log_softmax_kernel(y, x, rows, classes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of whole rows, which are narrow."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    at = row[:, None] * classes + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < classes)
    values = tl.load(x + at, mask=inside, other=float("-inf"))
    highest = tl.max(tl.where(row[:, None] < rows, values, 0.0), 1)
    shifted = values - highest[:, None]
    total = tl.sum(tl.exp(shifted), 1)
    tl.store(y + at, shifted - tl.log(total)[:, None], mask=inside)


@triton.jit
def linear_kernel(
    partial, x, w, batch, inner, outer, depth, TILE: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr
):
    """partial[slice] = x w^T over the slice's terms, one tile per program."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    first = tl.program_id(2) * depth
    last = tl.minimum(first + depth, inner)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for begin in range(first, last, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        of_x = tl.load(
            x + row[:, None] * inner + k[None, :], mask=(row[:, None] < batch) & (k[None, :] < last), other=0.0
        )
        of_w = tl.load(
            w + column[None, :] * inner + k[:, None], mask=(column[None, :] < outer) & (k[:, None] < last), other=0.0
        )
        total = tl.dot(of_x, of_w, total, input_precision=PRECISION)
    at = (tl.program_id(2) * batch + row[:, None]) * outer + column[None, :]
    tl.store(partial + at, total, mask=(row[:, None] < batch) & (column[None, :] < outer))


@triton.jit
def add_slices_kernel(y, partial, bias, count, outer, slices, RELU: tl.constexpr, ELEMENTS: tl.constexpr):
    """y = the slices, first to last, + bias; then relu, if it is to be fused."""
    k = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = k < count
    total = tl.zeros((ELEMENTS,), dtype=tl.float32)
    for piece in range(slices):
        total += tl.load(partial + piece * count + k, mask=inside, other=0.0)
    total += tl.load(bias + k % outer, mask=inside, other=0.0)
    if RELU:
        total = tl.where(total <= 0, 0.0, total)
    tl.store(y + k, total, mask=inside)


@triton.jit
def conv_statistics_kernel(
    z, means, squares, x, w, bias, positions, channels, outputs, SIDE: tl.constexpr, POSITIONS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """z = x convolved with w + bias, as a product of matrices whose left one is gathered; of a program's positions the
    mean, and the squares of the differences from it."""
    row = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    o = tl.arange(0, COLUMNS)
    inside = (row[:, None] < positions) & (o[None, :] < outputs)
    image, p, q = row // (SIDE * SIDE), row // SIDE % SIDE, row % SIDE
    total = tl.zeros((POSITIONS, COLUMNS), dtype=tl.float32)
    for begin in range(0, 9 * channels, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        i, r, s = k // 9, p[:, None] + k[None, :] % 9 // 3 - 1, q[:, None] + k[None, :] % 3 - 1
        within = (r >= 0) & (r < SIDE) & (s >= 0) & (s < SIDE) & (row[:, None] < positions)
        within = within & (k[None, :] < 9 * channels)
        at = ((image[:, None].to(tl.int64) * channels + i[None, :]) * SIDE + r) * SIDE + s
        of_x = tl.load(x + at, mask=within, other=0.0)
        of_w = tl.load(
            w + o[None, :] * 9 * channels + k[:, None],
            mask=(o[None, :] < outputs) & (k[:, None] < 9 * channels),
            other=0.0,
        )
        total = tl.dot(of_x, of_w, total, input_precision="ieee")
    total += tl.load(bias + o, mask=o < outputs, other=0.0)[None, :]
    at = (image[:, None].to(tl.int64) * outputs + o[None, :]) * SIDE * SIDE + (row % (SIDE * SIDE))[:, None]
    tl.store(z + at, total, mask=inside)
    count = tl.minimum(positions - tl.program_id(0) * POSITIONS, POSITIONS)
    mean = tl.sum(tl.where(inside, total, 0.0), 0) / count
    difference = tl.where(inside, total - mean[None, :], 0.0)
    tl.store(means + tl.program_id(0) * outputs + o, mean, mask=o < outputs)
    tl.store(squares + tl.program_id(0) * outputs + o, tl.sum(difference * difference, 0), mask=o < outputs)


@triton.jit
def scale_kernel(
    scale, shift, means, squares, gamma, beta, programs, positions, outputs, POSITIONS: tl.constexpr,
    PROGRAMS: tl.constexpr, EPSILON: tl.constexpr
):  # fmt: skip
    """A channel's batch norm as y = scale z + shift, from what each program of the convolution left (Chan et al.)."""
    o = tl.program_id(0)
    total = 0.0
    for begin in range(0, programs, PROGRAMS):
        k = begin + tl.arange(0, PROGRAMS)
        count = tl.minimum(positions - k * POSITIONS, POSITIONS)
        total += tl.sum(
            tl.where(k < programs, count * tl.load(means + k * outputs + o, mask=k < programs, other=0.0), 0.0)
        )
    mean = total / positions
    square = 0.0
    for begin in range(0, programs, PROGRAMS):
        k = begin + tl.arange(0, PROGRAMS)
        count = tl.minimum(positions - k * POSITIONS, POSITIONS)
        away = tl.load(means + k * outputs + o, mask=k < programs, other=0.0) - mean
        own = tl.load(squares + k * outputs + o, mask=k < programs, other=0.0)
        square += tl.sum(tl.where(k < programs, own + count * away * away, 0.0))
    factor = tl.load(gamma + o) / tl.sqrt(square / positions + EPSILON)
    tl.store(scale + o, factor)
    tl.store(shift + o, tl.load(beta + o) - factor * mean)


@triton.jit
def apply_pool_kernel(y, route, z, scale, shift, count, outputs, SIDE: tl.constexpr, ELEMENTS: tl.constexpr):
    """y = the maximum of four scale z + shift, or 0; route: which of them, 4 where relu lets none pass."""
    k = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = k < count
    half: tl.constexpr = SIDE // 2
    plane, r, s = k // (half * half), k // half % half, k % half
    factor = tl.load(scale + plane % outputs, mask=inside, other=0.0)
    offset = tl.load(shift + plane % outputs, mask=inside, other=0.0)
    first = z + plane.to(tl.int64) * SIDE * SIDE + 2 * r * SIDE + 2 * s
    best = factor * tl.load(first, mask=inside, other=0.0) + offset
    which = tl.zeros((ELEMENTS,), dtype=tl.int32)
    for n in tl.static_range(1, 4):
        other = factor * tl.load(first + n // 2 * SIDE + n % 2, mask=inside, other=0.0) + offset
        which = tl.where(other > best, n, which)
        best = tl.where(other > best, other, best)
    tl.store(y + k, tl.where(best <= 0, 0.0, best), mask=inside)
    tl.store(route + k, tl.where(best <= 0, 4, which).to(tl.uint8), mask=inside)


def launched(compiled: Any, name: str, grid: tuple[int, ...]) -> Kernel:
    """What a launch returned, in the protocol's words; the interpreter returns nothing."""
    if INTERPRETED:
        return Kernel(name, grid, ())
    metadata = compiled.metadata
    return Kernel(name, grid, (32 * metadata.num_warps,), compiled.n_regs, metadata.shared)


def relu(place: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], op_baseline.Run]:
    """x of any shape; y of the same, and where it passed."""
    x = inputs["x"]
    outputs = {"y": place.new(tuple(x.shape), np.float32), "passed": place.new(tuple(x.shape), np.uint8)}
    grid = (triton.cdiv(x.numel(), ELEMENTS),)

    def run() -> list[Kernel]:
        kernel = relu_kernel[grid](outputs["y"], outputs["passed"], x, x.numel(), ELEMENTS)
        return [launched(kernel, "relu_kernel", grid)]

    return outputs, run


def log_softmax(place: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], op_baseline.Run]:
    """x and y (rows, classes)."""
    x = inputs["x"]
    rows, classes = x.shape
    outputs = {"y": place.new((rows, classes), np.float32)}
    grid = (triton.cdiv(rows, ROWS),)

    def run() -> list[Kernel]:
        columns = triton.next_power_of_2(classes)
        kernel = log_softmax_kernel[grid](outputs["y"], x, rows, classes, ROWS, columns)
        return [launched(kernel, "log_softmax_kernel", grid)]

    return outputs, run


def linear(precision: str, fuse_relu: bool) -> op_baseline.Make:
    """y (B,O) = x (B,I) w^T (O,I) + bias (O), with relu or without; products in that `input_precision` of tl.dot."""

    def make(place: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], op_baseline.Run]:
        x, w, bias = (inputs[name] for name in ("x", "w", "bias"))
        (batch, inner), outer = x.shape, w.shape[0]
        slices, depth = op_baseline.slices_of(batch, inner, outer, TILE, DEPTH)
        y, partial = place.new((batch, outer), np.float32), place.new((slices, batch, outer), np.float32)
        tiles = (triton.cdiv(batch, TILE), triton.cdiv(outer, TILE), slices)
        adders = (triton.cdiv(batch * outer, 128),)

        def run() -> list[Kernel]:
            product = linear_kernel[tiles](partial, x, w, batch, inner, outer, depth, TILE, DEPTH, precision)
            sums = add_slices_kernel[adders](y, partial, bias, batch * outer, outer, slices, fuse_relu, 128)
            return [launched(product, "linear_kernel", tiles), launched(sums, "add_slices_kernel", adders)]

        return {"y": y}, run

    return make


def conv_bn_relu_pool(place: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], op_baseline.Run]:
    """y (B,O,S/2,S/2) of x (B,I,S,S): convolution with w (O,I,3,3) + bias, batch norm, relu, pooling; and routing."""
    x, w, bias, gamma, beta = (inputs[name] for name in ("x", "w", "bias", "gamma", "beta"))
    (batch, channels, side, _), outputs = x.shape, len(w)
    positions, count = batch * side * side, batch * outputs * side * side // 4
    grids = ((triton.cdiv(positions, POSITIONS),), (outputs,), (triton.cdiv(count, ELEMENTS),))
    z = place.new((batch, outputs, side, side), np.float32)
    means, squares = (place.new((*grids[0], outputs), np.float32) for _ in range(2))
    scale, shift = (place.new((outputs,), np.float32) for _ in range(2))
    y, route = (place.new((batch, outputs, side // 2, side // 2), kind) for kind in (np.float32, np.uint8))

    def run() -> list[Kernel]:
        columns = max(16, triton.next_power_of_2(outputs))
        kernels = (
            conv_statistics_kernel[grids[0]](
                z, means, squares, x, w, bias, positions, channels, outputs, side, POSITIONS, columns, DEPTH
            ),
            scale_kernel[grids[1]](
                scale, shift, means, squares, gamma, beta, grids[0][0], positions, outputs, POSITIONS, 1024, EPSILON
            ),
            apply_pool_kernel[grids[2]](y, route, z, scale, shift, count, outputs, side, ELEMENTS),
        )
        names = ("conv_statistics_kernel", "scale_kernel", "apply_pool_kernel")
        return [launched(*each) for each in zip(kernels, names, grids, strict=True)]

    return {"y": y, "route": route}, run


VARIANTS = {
    ("relu", "triton"): relu,
    ("log_softmax", "triton"): log_softmax,
    ("linear", "triton"): linear("ieee", False),
    ("linear", "triton_tf32"): linear("tf32", False),
    ("linear_relu", "triton"): linear("ieee", True),
    ("linear_relu", "triton_tf32"): linear("tf32", True),
    ("conv_bn_relu_pool", "triton"): conv_bn_relu_pool,
    ("conv_bn_relu_pool_layer1", "triton"): conv_bn_relu_pool,
}

if __name__ == "__main__":
    versions = {"triton": triton.__version__, "torch": torch.__version__}
    places = op_baseline.HostTorchArrays if INTERPRETED else op_baseline.TorchArrays
    op_baseline.serve(VARIANTS, places, versions)
