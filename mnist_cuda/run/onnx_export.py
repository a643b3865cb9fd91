"""A trained network as an ONNX model (the extra `onnx`): pixels in, logits out, any number of images.

The graph is the network of README.md, as inference runs it: normalise, then conv, batch norm by the population
statistics, relu and max pool twice, then two linear layers. Its parameters have PyTorch's names.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import __version__, _native, rules
from mnist_cuda.errors import CheckpointError, UnavailableError, require_a
from mnist_cuda.run.checkpoint import no_statistics
from mnist_cuda.run.results import Model

Input = Literal["uint8", "float"]

INPUT, OUTPUT = "images", "logits"
_OPSET, _IR = 17, 8  # of 2022: what reads ONNX today reads these
_EPSILON = 1e-5

Floats = NDArray[np.float64]


@rules.checked(kind=rules.choice(*get_args(Input)), fold_bn=rules.SWITCH)
def onnx_model(model: Model, kind: Input = "uint8", *, fold_bn: bool = False) -> bytes:
    """The bytes of an ONNX file that gives logits (N,10) float32 for any number N of images.

    kind: `uint8` takes images (N,28,28) uint8 as the data set has them; `float` takes (N,1,28,28) float32 from 0 to 1,
    as torchvision's ToTensor makes them. Either way the graph normalises. fold_bn: batch norms become part of the
    convolutions before them, which changes the logits by rounding only. The model has passed onnx.checker.
    Raises CheckpointError for a model without population statistics or with weights beyond float32,
    UnavailableError without the package onnx.
    """
    model = require_a(Model, model, "model", "as load_model gives it")
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        remedy = f"run `{sys.executable} -m pip install onnx`"
        raise UnavailableError(f"the package onnx is needed and cannot be imported ({error}): {remedy}") from error
    if model.statistics is None:
        raise no_statistics("the model")
    tensors = {name: np.asarray(value, np.float64) for name, value in model.parameters.items()}
    tensors |= {name: np.asarray(value, np.float64) for name, value in model.statistics.items()}
    if fold_bn:
        tensors = folded(tensors)
    # (u/255 - mean)/std is u * scale + shift.
    tensors["scale"] = np.array(1 / (_native.PIXEL_STD * (255 if kind == "uint8" else 1)))
    tensors["shift"] = np.array(-_native.PIXEL_MEAN / _native.PIXEL_STD)

    nodes = []

    def add(op: str, output: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    x = INPUT
    if kind == "uint8":
        x = add("Cast", "pixels", x, to=TensorProto.FLOAT)
        x = add("Unsqueeze", "channel", x, "axis")
    x = add("Add", "normalised", add("Mul", "scaled", x, "scale"), "shift")
    for layer in ("1", "2"):
        conv, bn = f"conv{layer}", f"bn{layer}"
        x = add("Conv", conv, x, f"{conv}.weight", f"{conv}.bias", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        if not fold_bn:
            names = [f"{bn}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
            x = add("BatchNormalization", bn, x, *names, epsilon=_EPSILON)
        x = add("MaxPool", f"pool{layer}", add("Relu", f"relu{layer}", x), kernel_shape=[2, 2], strides=[2, 2])
    x = add("Flatten", "flat", x)
    x = add("Relu", "relu3", add("Gemm", "fc1", x, "fc1.weight", "fc1.bias", transB=1))
    add("Gemm", OUTPUT, x, "fc2.weight", "fc2.bias", transB=1)

    constants = [numpy_helper.from_array(single(name, value), name) for name, value in tensors.items()]
    if kind == "uint8":
        constants.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    dtype, shape = (TensorProto.UINT8, ("N", 28, 28)) if kind == "uint8" else (TensorProto.FLOAT, ("N", 1, 28, 28))
    graph = helper.make_graph(
        nodes,
        "mnist-cuda",
        [helper.make_tensor_value_info(INPUT, dtype, shape)],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", _native.CLASSES])],
        constants,
    )
    result = helper.make_model(
        graph,
        ir_version=_IR,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        producer_name="mnist-cuda",
        producer_version=__version__,
    )
    helper.set_model_props(result, dict(sorted(model.metadata.items())))
    onnx.checker.check_model(result, full_check=True)
    content: bytes = result.SerializeToString(deterministic=True)
    return content


def folded(tensors: dict[str, Floats]) -> dict[str, Floats]:
    """The tensors with each batch norm in the convolution before it: y = (conv(x) - mean) * factor + bn.bias."""
    result = {name: value for name, value in tensors.items() if not name.startswith("bn")}
    for layer in ("1", "2"):
        conv, bn = f"conv{layer}", f"bn{layer}"
        factor = tensors[f"{bn}.weight"] / np.sqrt(tensors[f"{bn}.running_var"] + _EPSILON)
        result[f"{conv}.weight"] = tensors[f"{conv}.weight"] * factor[:, None, None, None]
        shifted = tensors[f"{conv}.bias"] - tensors[f"{bn}.running_mean"]
        result[f"{conv}.bias"] = shifted * factor + tensors[f"{bn}.bias"]
    return result


def single(name: str, value: Floats) -> NDArray[np.float32]:
    """The tensor in float32. Raises CheckpointError where it does not fit."""
    with np.errstate(over="ignore"):
        rounded = value.astype(np.float32)
    if not np.isfinite(rounded).all():
        raise CheckpointError(f"tensor {name} does not fit float32, which the network is written in")
    return rounded
