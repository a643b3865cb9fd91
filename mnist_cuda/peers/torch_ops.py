#!/usr/bin/env python3
"""Ops by the functions of PyTorch that a model calls, on its arrays. Needs torch and numpy; without a GPU, untimed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import op_baseline
import pytorch_baseline

try:
    import torch
    from torch.nn import functional
except ImportError as error:
    sys.exit(f"error: {sys.executable} has no PyTorch ({error})")

Inputs = dict[str, Any]
ON_GPU = torch.cuda.is_available()


def variant(function: Callable[[Inputs], Inputs], tf32: bool = False) -> op_baseline.Make:
    """`function`: the op's inputs to its outputs, new arrays each time."""

    def make(place: Any, inputs: Inputs) -> tuple[Inputs, op_baseline.Run]:
        outputs: Inputs = {}
        pytorch_baseline.pin_precision("tf32" if tf32 else "fp32", "cuda" if ON_GPU else "cpu", None)

        def run() -> list[op_baseline.Kernel]:
            outputs.update(function(inputs))
            return []  # whose kernels these are is PyTorch's choice

        return outputs, run

    return make


def linear(a: Inputs) -> Inputs:
    """y (B,O) = x (B,I) w^T (O,I) + bias (O)."""
    return {"y": functional.linear(a["x"], a["w"], a["bias"])}


def linear_relu(a: Inputs) -> Inputs:
    """The same, then relu in place."""
    return {"y": functional.relu_(functional.linear(a["x"], a["w"], a["bias"]))}


def conv2d(a: Inputs) -> Inputs:
    """y (B,O,S,S) = x (B,I,S,S) convolved with w (O,I,3,3) + bias (O)."""
    return {"y": functional.conv2d(a["x"], a["w"], a["bias"], padding=1)}


def relu(a: Inputs) -> Inputs:
    """x of any shape; y of the same, and where it passed, which PyTorch finds out in a second kernel."""
    return {"y": torch.relu(a["x"]), "passed": ~(a["x"] <= 0)}


def relu_max_pool2d(a: Inputs) -> Inputs:
    """y (P,S,S) of planes x (P,2S,2S)."""
    return {"y": functional.relu_(functional.max_pool2d(a["x"], 2))}


def batch_norm_forward(a: Inputs) -> Inputs:
    """x and y (B,C,A), by the statistics of the batch."""
    return {"y": functional.batch_norm(a["x"], None, None, a["gamma"], a["beta"], training=True)}


def log_softmax(a: Inputs) -> Inputs:
    """x and y (rows, classes)."""
    return {"y": functional.log_softmax(a["x"], 1)}


def transpose(a: Inputs) -> Inputs:
    """y (C,R) of x (R,C)."""
    return {"y": a["x"].t().contiguous()}


def conv_bn_relu_pool(a: Inputs) -> Inputs:
    """y (B,O,S/2,S/2) of x (B,I,S,S): conv2d as above, batch norm by the statistics of the batch, relu and pooling."""
    z = functional.conv2d(a["x"], a["w"], a["bias"], padding=1)
    normal = functional.batch_norm(z, None, None, a["gamma"], a["beta"], training=True)
    return {"y": functional.max_pool2d(functional.relu(normal), 2)}


@functools.cache
def compiled() -> Callable[[Inputs], Inputs]:
    """The same, for each shape that comes."""
    return torch.compile(conv_bn_relu_pool, dynamic=False, mode="max-autotune-no-cudagraphs")


VARIANTS = {
    ("linear", "torch"): variant(linear),
    ("linear", "torch_tf32"): variant(linear, tf32=True),
    ("linear_relu", "torch"): variant(linear_relu),
    ("linear_relu", "torch_tf32"): variant(linear_relu, tf32=True),
    ("conv2d", "torch"): variant(conv2d),
    ("conv2d", "torch_tf32"): variant(conv2d, tf32=True),
    ("relu", "torch"): variant(relu),
    ("relu_max_pool2d", "torch"): variant(relu_max_pool2d),
    ("batch_norm_forward", "torch"): variant(batch_norm_forward),
    ("log_softmax", "torch"): variant(log_softmax),
    ("transpose", "torch"): variant(transpose),
    ("conv_bn_relu_pool", "torch"): variant(conv_bn_relu_pool),
    ("conv_bn_relu_pool_layer1", "torch"): variant(conv_bn_relu_pool),
    ("conv_bn_relu_pool", "torch_compile"): variant(lambda a: compiled()(a)),
    ("conv_bn_relu_pool_layer1", "torch_compile"): variant(lambda a: compiled()(a)),
}

if __name__ == "__main__":
    places = op_baseline.TorchArrays if ON_GPU else op_baseline.HostTorchArrays
    op_baseline.serve(VARIANTS, places, {"torch": torch.__version__, "numpy": np.__version__})
