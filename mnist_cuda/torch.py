"""The network's layers as PyTorch operators with gradients, computed by this project's own kernels.

    from mnist_cuda.torch import conv_bn_relu_pool, linear, linear_relu, log_softmax_nll

On the CPU and on a GPU, in float32 and float64. Arrays are neither copied nor moved: what a kernel cannot read as it
lies is refused with a ValueError. Work is queued on PyTorch's current stream, memory comes from PyTorch, and nothing
waits. docs/operators.md explains how such an operator is written. Importing this module needs PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mnist_cuda import _native
from mnist_cuda.engine import _native_errors
from mnist_cuda.errors import UnavailableError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise UnavailableError(
        f"mnist_cuda.torch needs PyTorch, which cannot be imported ({error}): `pip install torch`, then "
        "`pip install --no-deps mnist-cuda`, which leaves its CUDA libraries as they are"
    ) from error

_TYPES = {torch.float32: "float32", torch.float64: "float64"}


# ---- for users -------------------------------------------------------------------------------------------------------


def conv_bn_relu_pool(
    x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """3x3 convolution with padding 1, batch norm by the batch's statistics, relu and 2x2 max pooling.

    x (B,I,S,S) with an even S, weight (O,I,3,3), bias, gamma, beta (O). Returns a (B,O,S/2,S/2), and mean and biased
    variance (O) that batch norm took, which have no gradient. The gradient of bias is exactly 0, because batch norm
    subtracts it again. Raises ValueError for a wrong shape, dtype, device or stride.
    """
    a, _, mean, var, _ = _conv(x, weight, bias, gamma, beta)
    return a, mean, var


def conv_bn_relu_pool_inference(
    x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    """The same by given statistics, as in evaluation; without a gradient. Returns a (B,O,S/2,S/2)."""
    return _conv_inference(x, weight, bias, gamma, beta, mean, var)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (B,I), weight (O,I), bias (O). Returns x weight^T + bias (B,O)."""
    return _linear(x, weight, bias)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu of `linear`, in one operator. Returns (B,O)."""
    return _linear_relu(x, weight, bias)[0]


def log_softmax_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean negative log likelihood of labels (B) uint8 under the log-softmax of logits (B,K). Returns ().

    A label that is not below K: ValueError on the CPU; on a GPU, where asking would have to wait, a loss of NaN.
    """
    return _log_softmax_nll(logits, labels)[0]


# ---- what all operators share ----------------------------------------------------------------------------------------


def _operator(name: str, signature: str, outputs: Callable[..., Any], fill: Callable[..., None]) -> Any:
    """An operator of PyTorch. `outputs` checks the arguments and makes the results without values, `fill` sets them.

    PyTorch calls `outputs` alone where it only wants to know shapes, such as in torch.compile.
    """

    def run(*arguments: Any) -> Any:
        results = outputs(*arguments)
        fill(results, *arguments)
        return results

    operator = torch.library.custom_op(f"mnist_cuda::{name}", run, mutates_args=(), schema=signature)
    operator.register_fake(outputs)
    return operator


def _require(name: str, like: Tensor, **tensors: tuple[Tensor, tuple[int, ...]]) -> None:
    """ValueError unless each tensor has its shape, the dtype and device of `like`, and lies row by row."""
    if like.dtype not in _TYPES or like.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: found {like.dtype} on {like.device}, expected float32 or float64 on cpu or cuda")
    for argument, (tensor, shape) in tensors.items():
        dtype = torch.uint8 if argument == "labels" else like.dtype
        if (tensor.dtype, tensor.device) != (dtype, like.device):
            found = f"{tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name}: {argument} is {found}, expected {dtype} on {like.device}")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: {argument} has shape {tuple(tensor.shape)}, expected {shape}")
        if 0 in shape:
            raise ValueError(f"{name}: {argument} has shape {shape}, expected none of them to be 0")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: {argument} has strides {tensor.stride()}: pass {argument}.contiguous()")


def _call(name: str, like: Tensor, *arguments: Tensor | int | None) -> Any:
    """Call a method of native/include/mnist/operators.h for `like`'s dtype, device and current stream."""
    device, stream = -1, 0
    if like.is_cuda:
        device, stream = like.device.index, torch.cuda.current_stream(like.device).cuda_stream
        _require_gpu(device)
    numbers = [a.data_ptr() if isinstance(a, Tensor) else 0 if a is None else a for a in arguments]
    with _native_errors():
        return getattr(_native, f"{name}_{_TYPES[like.dtype]}")(device, stream, *numbers)


@functools.cache
def _require_gpu(device: int) -> None:
    """Raise UnavailableError if this build has no code for that GPU."""
    if reasons := _native.unavailable("naive", device):
        raise UnavailableError(f"mnist_cuda.torch cannot run on GPU {device}: {next(iter(reasons.values()))}")


# ---- conv2d, batch norm, relu, max pool ------------------------------------------------------------------------------


def _conv_sizes(name: str, x: Tensor, weight: Tensor, **of_channels: Tensor) -> tuple[int, int, int, int]:
    """Batch, channels in and out, side; ValueError unless all arguments fit together."""
    if x.dim() != 4 or weight.dim() != 4 or x.shape[3] % 2:
        shapes = f"x {tuple(x.shape)} and weight {tuple(weight.shape)}"
        raise ValueError(f"{name}: found {shapes}, expected (B,I,S,S) with an even S and (O,I,3,3)")
    batch, inputs, _, side = x.shape
    outputs = weight.shape[0]
    shapes_of_channels = {key: (tensor, (outputs,)) for key, tensor in of_channels.items()}
    shape = (outputs, inputs, 3, 3)
    _require(name, x, x=(x, (batch, inputs, side, side)), weight=(weight, shape), **shapes_of_channels)
    return batch, inputs, outputs, side


def _scratch(name: str, like: Tensor, *sizes: int) -> Tensor:
    return like.new_empty(_call(f"{name}_scratch", like, *sizes))


def _conv_outputs(x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    batch, _, outputs, side = _conv_sizes("conv_bn_relu_pool", x, weight, bias=bias, gamma=gamma, beta=beta)
    a = x.new_empty(batch, outputs, side // 2, side // 2)
    z = x.new_empty(batch, outputs, side, side)
    return a, z, torch.empty_like(gamma), torch.empty_like(gamma), torch.empty_like(a, dtype=torch.uint8)


def _conv_fill(
    results: tuple[Tensor, ...], x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor
) -> None:
    sizes = (*x.shape[:2], weight.shape[0], x.shape[3])
    scratch = _scratch("conv_bn_relu_pool", x, *sizes)
    _call("conv_bn_relu_pool_forward", x, *results, scratch, x, weight, bias, gamma, beta, True, *sizes)


def _conv_inference_outputs(x: Tensor, weight: Tensor, *of_channels: Tensor) -> Tensor:
    names = ("bias", "gamma", "beta", "mean", "var")
    named = dict(zip(names, of_channels, strict=True))
    batch, _, outputs, side = _conv_sizes("conv_bn_relu_pool_inference", x, weight, **named)
    return x.new_empty(batch, outputs, side // 2, side // 2)


def _conv_inference_fill(
    a: Tensor, x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor
) -> None:
    sizes = (*x.shape[:2], weight.shape[0], x.shape[3])
    z = x.new_empty(sizes[0], sizes[2], sizes[3], sizes[3])
    route = torch.empty_like(a, dtype=torch.uint8)
    scratch = _scratch("conv_bn_relu_pool", x, *sizes)
    arguments = (a, z, mean, var, route, scratch, x, weight, bias, gamma, beta)
    _call("conv_bn_relu_pool_forward", x, *arguments, False, *sizes)


def _conv_gradient_outputs(
    da: Tensor, x: Tensor, weight: Tensor, gamma: Tensor, z: Tensor, mean: Tensor, var: Tensor, route: Tensor, dx: bool
) -> tuple[Tensor, ...]:
    shape = tuple(route.shape)
    _require("conv_bn_relu_pool's gradient", x, da=(da, shape))
    gradient_of_x = torch.empty_like(x) if dx else x.new_empty(0)
    return gradient_of_x, torch.empty_like(weight), torch.empty_like(gamma), torch.empty_like(gamma)


def _conv_gradient_fill(
    results: tuple[Tensor, ...],
    da: Tensor,
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    z: Tensor,
    mean: Tensor,
    var: Tensor,
    route: Tensor,
    dx: bool,
) -> None:
    sizes = (*x.shape[:2], weight.shape[0], x.shape[3])
    scratch = _scratch("conv_bn_relu_pool", x, *sizes)
    gradients = (results[0] if dx else None, *results[1:])
    arguments = (*gradients, scratch, da, x, z, mean, var, route, weight, gamma)
    _call("conv_bn_relu_pool_backward", x, *arguments, *sizes)


_conv = _operator(
    "conv_bn_relu_pool",
    "(Tensor x, Tensor weight, Tensor bias, Tensor gamma, Tensor beta) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _conv_outputs,
    _conv_fill,
)
_conv_gradient = _operator(
    "conv_bn_relu_pool_gradient",
    "(Tensor da, Tensor x, Tensor weight, Tensor gamma, Tensor z, Tensor mean, Tensor var, Tensor route, bool dx)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _conv_gradient_outputs,
    _conv_gradient_fill,
)
_conv_inference = _operator(
    "conv_bn_relu_pool_inference",
    "(Tensor x, Tensor weight, Tensor bias, Tensor gamma, Tensor beta, Tensor mean, Tensor var) -> Tensor",
    _conv_inference_outputs,
    _conv_inference_fill,
)


def _conv_keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, gamma, _ = inputs
    ctx.save_for_backward(x, weight, gamma, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _conv_backward(ctx: Any, da: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if da is None:
        return (None,) * 5
    wanted = ctx.needs_input_grad[0]
    dx, dw, dgamma, dbeta = _conv_gradient(da.contiguous(), *ctx.saved_tensors, wanted)
    return dx if wanted else None, dw, torch.zeros_like(dbeta), dgamma, dbeta


_conv.register_autograd(_conv_backward, setup_context=_conv_keep)


# ---- linear, with and without relu -----------------------------------------------------------------------------------


def _linear_outputs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if x.dim() != 2 or weight.dim() != 2:
        raise ValueError(f"linear: found x {tuple(x.shape)} and weight {tuple(weight.shape)}, expected (B,I) and (O,I)")
    (batch, inputs), outputs = x.shape, weight.shape[0]
    _require("linear", x, x=(x, (batch, inputs)), weight=(weight, (outputs, inputs)), bias=(bias, (outputs,)))
    return x.new_empty(batch, outputs)


def _linear_relu_outputs(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    y = _linear_outputs(x, weight, bias)
    return y, torch.empty_like(y, dtype=torch.uint8)


def _linear_fill(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
    _linear_relu_fill((y, None), x, weight, bias)


def _linear_relu_fill(results: tuple[Tensor, Tensor | None], x: Tensor, weight: Tensor, bias: Tensor) -> None:
    sizes = (*x.shape, weight.shape[0])
    _call("linear_forward", x, *results, _scratch("linear", x, *sizes), x, weight, bias, *sizes)


def _linear_gradient_outputs(dy: Tensor, passed: Tensor | None, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    _require("linear's gradient", x, dy=(dy, (x.shape[0], weight.shape[0])))
    return torch.empty_like(x), torch.empty_like(weight), x.new_empty(weight.shape[0])


def _linear_gradient_fill(
    results: tuple[Tensor, ...], dy: Tensor, passed: Tensor | None, x: Tensor, weight: Tensor
) -> None:
    sizes = (*x.shape, weight.shape[0])
    _call("linear_backward", x, *results, _scratch("linear", x, *sizes), dy, passed, x, weight, *sizes)


_linear = _operator("linear", "(Tensor x, Tensor weight, Tensor bias) -> Tensor", _linear_outputs, _linear_fill)
_linear_relu = _operator(
    "linear_relu",
    "(Tensor x, Tensor weight, Tensor bias) -> (Tensor, Tensor)",
    _linear_relu_outputs,
    _linear_relu_fill,
)
_linear_gradient = _operator(
    "linear_gradient",
    "(Tensor dy, Tensor? passed, Tensor x, Tensor weight) -> (Tensor, Tensor, Tensor)",
    _linear_gradient_outputs,
    _linear_gradient_fill,
)


def _linear_keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(None, *inputs[:2])


def _linear_relu_keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:2])
    ctx.set_materialize_grads(False)


def _linear_backward(ctx: Any, dy: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 3
    gradients: tuple[Tensor, ...] = _linear_gradient(dy.contiguous(), *ctx.saved_tensors)
    return gradients


_linear.register_autograd(_linear_backward, setup_context=_linear_keep)
_linear_relu.register_autograd(_linear_backward, setup_context=_linear_relu_keep)


# ---- log-softmax and negative log likelihood -------------------------------------------------------------------------


def _loss_outputs(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if logits.dim() != 2:
        raise ValueError(f"log_softmax_nll: logits have shape {tuple(logits.shape)}, expected (B,K)")
    batch, classes = logits.shape
    _require("log_softmax_nll", logits, logits=(logits, (batch, classes)), labels=(labels, (batch,)))
    return logits.new_empty(()), torch.empty_like(logits)


def _loss_fill(results: tuple[Tensor, Tensor], logits: Tensor, labels: Tensor) -> None:
    _call("log_softmax_nll_forward", logits, *results, logits, labels, *logits.shape)


def _loss_gradient_outputs(upstream: Tensor, log_p: Tensor, labels: Tensor) -> Tensor:
    _require("log_softmax_nll's gradient", log_p, upstream=(upstream, ()))
    return torch.empty_like(log_p)


def _loss_gradient_fill(dlogits: Tensor, upstream: Tensor, log_p: Tensor, labels: Tensor) -> None:
    _call("log_softmax_nll_backward", log_p, dlogits, upstream, log_p, labels, *log_p.shape)


_log_softmax_nll = _operator(
    "log_softmax_nll", "(Tensor logits, Tensor labels) -> (Tensor, Tensor)", _loss_outputs, _loss_fill
)
_loss_gradient = _operator(
    "log_softmax_nll_gradient",
    "(Tensor upstream, Tensor log_p, Tensor labels) -> Tensor",
    _loss_gradient_outputs,
    _loss_gradient_fill,
)


def _loss_keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], inputs[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _loss_backward(ctx: Any, upstream: Tensor | None, _: None) -> tuple[Tensor | None, None]:
    return None if upstream is None else _loss_gradient(upstream, *ctx.saved_tensors), None


_log_softmax_nll.register_autograd(_loss_backward, setup_context=_loss_keep)
