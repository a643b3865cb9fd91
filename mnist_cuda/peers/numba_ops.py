#!/usr/bin/env python3
"""Ops in Numba: CUDA's threads and shared memory, written in Python. Needs numba, numpy, and on a GPU torch.

With NUMBA_ENABLE_CUDASIM=1 Numba's simulator runs the same kernels without a GPU, a Python thread each.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import op_baseline
from op_baseline import Kernel

# NumPy 2.5 has lost row_stack, another name of vstack, and numba-cuda 0.30.4 still asks for it.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # type: ignore[attr-defined]  # noqa: NPY201

try:
    import numba
    from numba import cuda
except ImportError as error:
    sys.exit(f"error: {sys.executable} has no Numba ({error}); install numba-cuda, or numba for its simulator")

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
THREADS = 256
TILE, PITCH = 16, 17  # of a tile, and of its rows where columns are read: constants of the kernel


@cuda.jit
def relu_kernel(y, passed, x):
    """One element a thread: y = max(x, 0), and where x passed."""
    k = cuda.grid(1)
    if k < x.size:
        passes = not (x[k] <= 0)  # a NaN does
        y[k] = x[k] if passes else np.float32(0)
        passed[k] = np.uint8(passes)


@cuda.jit
def linear_kernel(y, x, w, bias):
    """One block per 16x16 tile of y, one thread per output; tiles of x and w pass through shared memory."""
    of_x = cuda.shared.array((TILE, TILE), numba.float32)
    of_w = cuda.shared.array((TILE, PITCH), numba.float32)  # one more: a column lies in different banks
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    b = cuda.blockIdx.y * TILE + row
    o = cuda.blockIdx.x * TILE + column
    mine = cuda.blockIdx.x * TILE + row  # the row of w that this thread loads from
    total = np.float32(0)
    for begin in range(0, x.shape[1], TILE):
        k = begin + column
        of_x[row, column] = x[b, k] if b < x.shape[0] and k < x.shape[1] else np.float32(0)
        of_w[row, column] = w[mine, k] if mine < w.shape[0] and k < x.shape[1] else np.float32(0)
        cuda.syncthreads()  # both tiles are complete
        for i in range(TILE):
            total += of_x[row, i] * of_w[column, i]
        cuda.syncthreads()  # everyone is done with them
    if b < y.shape[0] and o < y.shape[1]:
        y[b, o] = total + bias[o]


def view(array: Any) -> Any:
    """A kernel's argument: PyTorch's memory as it is, without a copy."""
    return array if SIMULATED else cuda.as_cuda_array(array)


def launch(kernel: Any, name: str, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any) -> Kernel:
    """Queue a kernel on PyTorch's stream, which may be recording a graph."""
    if SIMULATED:
        kernel[grid, block](*arguments)
        return Kernel(name, grid, block)
    import torch

    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    kernel[grid, block, stream](*arguments)
    registers, shared = kernel.get_regs_per_thread(), kernel.get_shared_mem_per_block()  # by signature; one is used
    return Kernel(name, grid, block, *(next(reversed(found.values())) for found in (registers, shared)))


def relu(place: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], op_baseline.Run]:
    """x of any shape; y of the same, and where it passed."""
    x = inputs["x"]
    outputs = {"y": place.new(tuple(x.shape), np.float32), "passed": place.new(tuple(x.shape), np.uint8)}
    flat = [view(array.reshape(-1)) for array in (outputs["y"], outputs["passed"], x)]
    grid = (-(-flat[2].size // THREADS),)
    return outputs, lambda: [launch(relu_kernel, "relu_kernel", grid, (THREADS,), *flat)]


def linear(place: Any, inputs: dict[str, Any]) -> tuple[dict[str, Any], op_baseline.Run]:
    """y (B,O) = x (B,I) w^T (O,I) + bias (O)."""
    x, w, bias = (inputs[name] for name in ("x", "w", "bias"))
    y = place.new((x.shape[0], w.shape[0]), np.float32)
    arguments = [view(array) for array in (y, x, w, bias)]
    grid = (-(-w.shape[0] // TILE), -(-x.shape[0] // TILE))
    return {"y": y}, lambda: [launch(linear_kernel, "linear_kernel", grid, (TILE, TILE), *arguments)]


VARIANTS = {("relu", "numba"): relu, ("linear", "numba_tiled"): linear}

if __name__ == "__main__":
    place = op_baseline.NumpyArrays if SIMULATED else op_baseline.TorchArrays
    op_baseline.serve(VARIANTS, place, {"numba": numba.__version__})
