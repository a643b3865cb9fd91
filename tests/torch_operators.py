"""mnist_cuda.torch against PyTorch's float64; test_torch.py runs this in a process that has PyTorch.

TORCH_TEST_DEVICE is cpu or cuda. PyTorch fills the memory that it hands out with NaN (255 in bytes) here.
"""

import os

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mnist_cuda import _native
from mnist_cuda import torch as operators

DEVICE = os.environ.get("TORCH_TEST_DEVICE", "cpu")
BOUND = {torch.float32: 2e-6, torch.float64: 1e-13}
OPS = torch.ops.mnist_cuda
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of itself
# Batch, channels in and out, side: small and odd, one of each, the network's two layers.
CONVOLUTIONS = [(3, 2, 5, 6), (1, 1, 1, 2), (9, 1, 32, 28), (17, 32, 64, 14)]
# Batch, features in and out: small and odd, one of each, the network's two layers, more than a tile.
LINEARS = [(5, 7, 3), (1, 1, 1), (9, 3136, 128), (70, 128, 10), (130, 65, 131)]


@pytest.fixture(autouse=True)
def _poison():
    torch.use_deterministic_algorithms(True)
    assert torch.empty(4, device=DEVICE).isnan().all()
    assert torch.empty(4).new_empty(4).isnan().all()


def arrays(*shapes, dtype=torch.float32, seed=0):
    """Random tensors that want gradients."""
    rng = np.random.default_rng(seed)
    return [
        torch.tensor(rng.standard_normal(shape), dtype=dtype, device=DEVICE, requires_grad=True) for shape in shapes
    ]


def conv_arrays(batch, inputs, outputs, side, **options):
    """x, weight, bias, gamma, beta; weights that make activations of order 1."""
    shapes = ((batch, inputs, side, side), (outputs, inputs, 3, 3), (outputs,), (outputs,), (outputs,))
    return arrays(*shapes, **options)


def linear_arrays(batch, inputs, outputs, **options):
    return arrays((batch, inputs), (outputs, inputs), (outputs,), **options)


def labels_of(batch, classes):
    return (torch.arange(batch) * 7 % classes).to(torch.uint8).to(DEVICE)


def doubled(tensors):
    """The same numbers in float64 on the host, for PyTorch."""
    return [t.detach().double().cpu().requires_grad_(t.requires_grad) for t in tensors]


def torch_block(x, weight, bias, gamma, beta):
    return F.max_pool2d(F.relu(F.batch_norm(F.conv2d(x, weight, bias, padding=1), None, None, gamma, beta, True)), 2)


def assert_near(name, value, expected):
    """Relative to the largest number expected; a NaN is an error."""
    error = (value.detach().double().cpu() - expected.detach()).abs().max() / max(expected.abs().max().item(), 1e-30)
    assert error <= BOUND[value.dtype] * (1 + 9 * (name != "result")), f"{name}: error {error:.1e}"


def compare(ours, theirs, tensors, names):
    """A result and all gradients of it, times random numbers, against PyTorch's."""
    copies = doubled(tensors)
    result, expected = ours(*tensors), theirs(*copies)
    assert result.shape == expected.shape
    assert_near("result", result, expected)
    upstream = torch.tensor(np.random.default_rng(9).standard_normal(expected.shape))
    result.backward(upstream.to(result))
    expected.backward(upstream)
    for name, tensor, copy in zip(names, tensors, copies, strict=True):
        if name == "bias of conv":
            assert not tensor.grad.any(), "batch norm subtracts the mean: the gradient is exactly 0"
        else:
            assert_near(f"gradient of {name}", tensor.grad, copy.grad)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("sizes", CONVOLUTIONS)
def test_conv_bn_relu_pool(sizes, dtype):
    names = ("x", "weight", "bias of conv", "gamma", "beta")
    compare(lambda *t: operators.conv_bn_relu_pool(*t)[0], torch_block, conv_arrays(*sizes, dtype=dtype), names)


def test_conv_without_a_gradient_of_x():
    tensors = conv_arrays(3, 2, 5, 6)
    tensors[0].requires_grad_(False)
    operators.conv_bn_relu_pool(*tensors)[0].sum().backward()
    assert tensors[0].grad is None
    assert tensors[1].grad.isfinite().all()


@pytest.mark.parametrize("dtype", BOUND)
def test_statistics_and_inference(dtype):
    tensors = conv_arrays(4, 3, 5, 8, dtype=dtype)
    x, weight, bias, gamma, beta = doubled(tensors)
    z = F.conv2d(x, weight, bias, padding=1)
    a, mean, var = operators.conv_bn_relu_pool(*tensors)
    assert not mean.requires_grad
    assert not var.requires_grad
    assert_near("result", mean, z.mean((0, 2, 3)))
    assert_near("result", var, z.var((0, 2, 3), correction=0))
    given = operators.conv_bn_relu_pool_inference(*tensors, mean, var)
    assert torch.equal(given, a), "the batch's own statistics, given"
    mean, var = arrays((5,), (5,), dtype=dtype, seed=3)
    mean, var = mean.detach(), var.detach().abs()
    y = F.batch_norm(z, mean.double().cpu(), var.double().cpu(), gamma, beta, False)
    assert_near("result", operators.conv_bn_relu_pool_inference(*tensors, mean, var), F.max_pool2d(F.relu(y), 2))


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("sizes", LINEARS)
@pytest.mark.parametrize("relu", [False, True])
def test_linear(sizes, dtype, relu):
    ours = operators.linear_relu if relu else operators.linear
    names = ("x", "weight", "bias")
    tensors = linear_arrays(*sizes, dtype=dtype)
    compare(ours, lambda *t: F.relu(F.linear(*t)) if relu else F.linear(*t), tensors, names)
    by_ones = torch.autograd.grad(ours(*tensors), tensors, torch.ones_like(ours(*tensors)))
    by_sum = torch.autograd.grad(ours(*tensors).sum(), tensors)  # whose gradient is one number with strides of 0
    assert all(torch.equal(one, other) for one, other in zip(by_ones, by_sum, strict=True))


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("sizes", [(5, 3), (1, 1), (300, 10)])
def test_log_softmax_nll(sizes, dtype):
    labels = labels_of(*sizes)
    expected = labels.long().cpu()
    logits = arrays(sizes, dtype=dtype)
    if sizes == (1, 1):  # one class is certain
        loss = operators.log_softmax_nll(*logits, labels)
        loss.backward()
        assert (loss.item(), logits[0].grad.item()) == (0, 0)
        return
    compare(lambda x: operators.log_softmax_nll(x, labels), lambda x: F.cross_entropy(x, expected), logits, ["logits"])


def test_a_label_that_is_none():
    (logits,) = arrays((4, 3))
    labels = torch.tensor([0, 1, 3, 2], dtype=torch.uint8, device=DEVICE)
    if DEVICE == "cpu":
        with pytest.raises(ValueError, match=r"^log_softmax_nll: labels\[2\] is 3, expected below 3$"):
            operators.log_softmax_nll(logits, labels)
    else:
        assert operators.log_softmax_nll(logits, labels).isnan()


def test_gradcheck():
    """Against finite differences, in float64."""
    block = conv_arrays(3, 2, 4, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *t: operators.conv_bn_relu_pool(*t)[0], block)
    for function in (operators.linear, operators.linear_relu):
        assert torch.autograd.gradcheck(function, linear_arrays(5, 7, 3, dtype=torch.float64))
    labels = labels_of(5, 3)
    assert torch.autograd.gradcheck(lambda x: operators.log_softmax_nll(x, labels), arrays((5, 3), dtype=torch.float64))


def calls():
    """Every operator with arguments."""
    block, layer, (logits,), labels = conv_arrays(3, 2, 4, 6), linear_arrays(5, 7, 3), arrays((5, 3)), labels_of(5, 3)
    mean, var = (t.detach().abs() for t in arrays((4,), (4,)))
    yield OPS.conv_bn_relu_pool, block
    x, weight, bias, gamma, beta = (t.detach() for t in block)
    yield OPS.conv_bn_relu_pool_inference, (x, weight, bias, gamma, beta, mean, var)
    a, *kept = OPS.conv_bn_relu_pool(x, weight, bias, gamma, beta)
    for wanted in (False, True):
        yield OPS.conv_bn_relu_pool_gradient, (torch.ones_like(a), x, weight, gamma, *kept, wanted)
    yield OPS.linear, layer
    yield OPS.linear_relu, layer
    x, weight, bias = (t.detach() for t in layer)
    y, passed = OPS.linear_relu(x, weight, bias)
    for decisions in (None, passed):
        yield OPS.linear_gradient, (torch.ones_like(y), decisions, x, weight)
    yield OPS.log_softmax_nll, (logits, labels)
    loss, log_p = OPS.log_softmax_nll(logits.detach(), labels)
    yield OPS.log_softmax_nll_gradient, (torch.ones_like(loss), log_p, labels)


def test_opcheck():
    """PyTorch's own test of operators: schema, registration of gradients, shapes without values, torch.compile."""
    torch.use_deterministic_algorithms(False)  # it compares what no one wrote: the empty gradient, bytes of NaN
    seen = set()
    for operator, arguments in calls():
        torch.library.opcheck(operator.default, tuple(arguments))
        seen.add(operator.default.name())
    assert seen == {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("mnist_cuda::")}


def network(images, labels, parameters):
    """The loss of the network, whose sizes the parameters say."""
    a, _, _ = operators.conv_bn_relu_pool(images, *parameters[:4])
    a, _, _ = operators.conv_bn_relu_pool(a, *parameters[4:8])
    h = operators.linear_relu(a.flatten(1), *parameters[8:10])
    return operators.log_softmax_nll(operators.linear(h, *parameters[10:]), labels)


def small_network():
    shapes = [(4, 1, 3, 3), *[(4,)] * 3, (6, 4, 3, 3), *[(6,)] * 3, (5, 24), (5,), (3, 5), (3,)]
    (images,) = arrays((7, 1, 8, 8))
    return images.detach(), labels_of(7, 3), arrays(*shapes, seed=1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_graph_break(backend):
    """fullgraph=True raises at a break. The kernels are the same, so the numbers are the same to the last bit."""
    images, labels, parameters = small_network()
    loss = network(images, labels, parameters)
    expected = torch.autograd.grad(loss, parameters)
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend=backend)(images, labels, parameters)
    assert compiled.item() == loss.item()
    for got, want in zip(torch.autograd.grad(compiled, parameters), expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.skipif("DEVICE != 'cuda'")
def test_work_of_a_step_in_a_cuda_graph():
    """What is captured ran on the caller's stream, waited for nothing and took memory from PyTorch alone."""
    images, labels, parameters = small_network()
    given = torch.empty_like(images)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # as PyTorch wants it before a capture
        given.copy_(images)
        torch.autograd.grad(network(given, labels, parameters), parameters)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = network(given, labels, parameters)
        gradients = torch.autograd.grad(loss, parameters)
    for scale in (1.0, -2.0):
        with torch.no_grad():
            given.copy_(images * scale)
        graph.replay()
        expected = network(given, labels, parameters)
        assert loss.item() == expected.item()
        for got, want in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
            assert torch.equal(got, want)


def refused():
    x, weight, bias, gamma, beta = (t.detach() for t in conv_arrays(3, 2, 4, 6))
    lx, lw, lb = (t.detach() for t in linear_arrays(5, 7, 3))
    conv, logits = operators.conv_bn_relu_pool, torch.zeros(5, 3, device=DEVICE)
    yield conv, (x[0], weight, bias, gamma, beta), "conv_bn_relu_pool: found x (2, 6, 6) and weight (4, 2, 3, 3), exp"
    yield conv, (x[..., :5], weight, bias, gamma, beta), "with an even S and (O,I,3,3)"
    yield conv, (x[:, :, :4], weight, bias, gamma, beta), "x has shape (3, 2, 4, 6), expected (3, 2, 6, 6)"
    yield (
        conv,
        (x[:, :1].contiguous(), weight, bias, gamma, beta),
        "weight has shape (4, 2, 3, 3), expected (4, 1, 3, 3)",
    )
    yield conv, (x, weight, bias, gamma[:3], beta), "gamma has shape (3,), expected (4,)"
    yield conv, (x[:0], weight, bias, gamma, beta), "none of them to be 0"
    yield conv, (x.half(), weight, bias, gamma, beta), "found torch.float16 on"
    yield conv, (x, weight.double(), bias, gamma, beta), "weight is torch.float64 on"
    yield conv, (x.transpose(2, 3), weight, bias, gamma, beta), "pass x.contiguous()"
    yield operators.conv_bn_relu_pool_inference, (x, weight, bias, gamma, beta, beta, beta[:1]), "var has shape (1,)"
    yield operators.linear, (lx[0], lw, lb), "linear: found x (7,) and weight (3, 7), expected (B,I) and (O,I)"
    yield operators.linear_relu, (lx, lw.T, lb), "weight has shape (7, 3), expected (7, 7)"
    yield operators.linear, (lx, lw, lb.to("meta")), "bias is torch.float32 on meta"
    yield operators.log_softmax_nll, (logits[0], labels_of(5, 3)), "logits have shape (3,), expected (B,K)"
    yield operators.log_softmax_nll, (logits, labels_of(5, 3).long()), "labels is torch.int64 on"
    yield operators.log_softmax_nll, (logits, labels_of(4, 3)), "labels has shape (4,), expected (5,)"


def test_what_is_refused():
    for function, arguments, sentence in refused():
        with pytest.raises(ValueError) as error:  # noqa: PT011
            function(*arguments)
        assert sentence in str(error.value)


@pytest.mark.skipif("DEVICE != 'cuda'")
def test_a_gpu_that_cannot_run_it(monkeypatch):
    from mnist_cuda.errors import UnavailableError

    monkeypatch.setattr(_native, "unavailable", lambda name, device: {"fp32": f"no code for GPU {device}"})
    operators._require_gpu.cache_clear()
    with pytest.raises(UnavailableError, match="cannot run on GPU 0: no code for GPU 0"):
        operators.linear(*linear_arrays(5, 7, 3))
    monkeypatch.undo()
    operators._require_gpu.cache_clear()
    operators.linear(*linear_arrays(5, 7, 3))
