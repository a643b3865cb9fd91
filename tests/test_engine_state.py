"""What engines keep from step to step: many steps, parameters that come back, weights that grow and shrink."""

import cases
import numpy as np
import pytest
from conformance import (
    ALL,
    FUSED,
    JUDGED,
    ORACLE,
    assert_close,
    assert_gradients,
    assert_probe,
    assert_step,
    doubles,
    parameter_hash,
    training_bits,
)
from numpy.lib.stride_tricks import sliding_window_view

from mnist_cuda.engine import find_engine
from mnist_cuda.engine.model import PARAMETERS
from mnist_cuda.engine.tolerances import MOST_CANCELLATION, WILD


@pytest.fixture(scope="session")
def float64(make_engine):
    """float64(spec): the engine that `spec` is held against, on the GPU where that is one of a GPU."""

    def engine(spec):
        on_gpu = find_engine(spec[0]).device == "cuda" and spec != ORACLE
        return make_engine(*(ORACLE if on_gpu else ("reference", "fp64")))

    return engine


MOST_LEFT_OUT = 2  # of 12 gradients: what cancels so far that no error tells anything; see MOST_CANCELLATION


def rounded(weights):
    return {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}


def assert_as_float64(spec, engine, oracle, images, labels):
    """A probe of the engine as it is, against float64 at its parameters; gives the probe."""
    probe, parameters = engine.probe(images, labels), doubles(engine.parameters)
    oracle.set_parameters(parameters)
    expected = oracle.probe(images, labels, routing=probe.routing)
    slack = dict.fromkeys(expected.gradients, WILD)
    for name, times in cancellations(parameters, expected, labels).items():
        slack[name] = max(WILD, times) if times <= MOST_CANCELLATION else np.inf  # still, it has to be finite
    left_out = [name for name, times in slack.items() if times == np.inf]
    assert len(left_out) <= MOST_LEFT_OUT, f"not compared: {', '.join(left_out)}"
    assert_gradients(spec, probe, expected, len(labels), slack)
    return probe, expected


def cancellations(parameters, expected, labels):
    """What rounding its terms alone, each for itself, does to a gradient, as a multiple of one rounding.

    The gradient of a channel of bn1.bias is the sum of g over the cells that passed the pool, that of a batch norm's
    weight the sum of g * xhat: the root of the sum of their squares, over the sum. It is 1.4 with initial weights, 16.5
    where one feature of fc1 is a thousand times as large, so that a single cell of the 20 images makes the sum, and
    some 10 to 30 for bn1 where an input of conv2 is: a shift of its input passes through batch norm without a trace.
    """
    count = len(labels)
    scores = expected.logits - expected.logits.max(axis=1, keepdims=True)
    d = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    d[np.arange(count), labels] -= 1
    passed = expected.routing[1].reshape(count, 64, 49) != 4
    g = ((d / count @ parameters["fc2.weight"]) * (expected.routing[2] != 0)) @ parameters["fc1.weight"]
    g = g.reshape(count, 64, 49) * passed
    of_bn1 = pooled_gradient_of_conv1(parameters, expected, g).reshape(count, 32, 196)

    def times_xhat(g, values, layer):
        """The terms, and of which channels: by small weights xhat cannot be told from what batch norm gave."""
        scale, shift = parameters[f"{layer}.weight"][:, None], parameters[f"{layer}.bias"][:, None]
        told = np.abs(scale) > 1e-3
        return g * np.divide(values.reshape(g.shape) - shift, scale, where=told, out=np.zeros(g.shape)), told[:, 0]

    found = {}
    for name, (terms, known) in {
        "bn1.weight": times_xhat(of_bn1, expected.a1, "bn1"),
        "bn1.bias": (of_bn1, True),
        "bn2.weight": times_xhat(g, expected.a2, "bn2"),
    }.items():
        gradient = np.where(known, expected.gradients[name], 0)
        assert np.allclose(terms.sum(axis=(0, 2)), gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max()), name
        if gradient.any():
            found[name] = np.linalg.norm(terms) / np.linalg.norm(gradient)
    return found


def pooled_gradient_of_conv1(parameters, expected, g):
    """The gradient (B,32,14,14) of pool1's values, from that of pool2's (B,64,49); 0 where ReLU stopped it."""

    def windows(x):
        return sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))

    def by_channel(values):
        return values[None, :, None, None]

    filters, count = parameters["conv2.weight"], len(g)
    z = np.einsum("bihwuv,oiuv->bohw", windows(expected.a1), filters, optimize=True)
    inverse = 1 / np.sqrt(z.var(axis=(0, 2, 3)) + 1e-5)
    xhat = (z - by_channel(z.mean(axis=(0, 2, 3)))) * by_channel(inverse)
    position = expected.routing[1].reshape(count, 64, 7, 1, 7, 1)
    here = np.arange(2).reshape(2, 1, 1) * 2 + np.arange(2)
    dy = np.where(position == here, g.reshape(count, 64, 7, 1, 7, 1), 0).reshape(z.shape)
    mean, slope = dy.mean(axis=(0, 2, 3)), (dy * xhat).mean(axis=(0, 2, 3))
    dz = by_channel(parameters["bn2.weight"] * inverse) * (dy - by_channel(mean) - xhat * by_channel(slope))
    da = np.einsum("bohwuv,oiuv->bihw", windows(dz), filters[:, :, ::-1, ::-1], optimize=True)
    return np.where(expected.routing[0].reshape(da.shape) != 4, da, 0)


# ---- parameters that come back ---------------------------------------------------------------------------------------


@ALL
def test_goes_on_from_its_own_parameters(make_engine, spec):
    """Given its own parameters, or in another engine of its kind, a run goes on with the same bits."""
    images, labels = cases.mixed(30), cases.labels(30)
    order = np.random.default_rng(3).integers(0, 30, 40)
    engine, other = make_engine(*spec), make_engine(*spec)
    for each in (engine, other):
        each.set_dataset(images, labels)
    training_bits(engine, order[:20], 5, 0.01, cases.signed_weights())
    between = engine.parameters
    at_end = training_bits(engine, order[20:], 5, 0.01)
    training_bits(other, order[:8], 5, 0.01, cases.initial_weights())
    for each in (engine, other):
        assert training_bits(each, order[20:], 5, 0.01, between) == at_end


@FUSED
def test_large_batch_after_small_ones(make_engine, spec):
    """Kernels of large batches read what those of small ones do not, and vice versa: as an engine given the weights."""
    images, labels = cases.mixed(300), cases.labels(300)
    engine, other = make_engine(*spec), make_engine(*spec)
    for each in (engine, other):
        each.set_dataset(images, labels)
    for before, then in ((5, 300), (300, 5)):
        engine.set_parameters(cases.signed_weights())
        engine.train(np.arange(4 * before) % 300, before, 0.01)
        other.set_parameters(engine.parameters)
        order = np.arange(then)
        assert training_bits(engine, order, then, 0.01) == training_bits(other, order, then, 0.01)


@ALL
def test_steps_of_engines_of_their_own(make_engine, spec):
    """k steps in one call are k engines of one step each, handed on as parameters."""
    images, labels = cases.mixed(20), cases.labels(20)
    order = np.random.default_rng(4).integers(0, 20, 5 * 7)
    engine = make_engine(*spec)
    engine.set_parameters(cases.signed_weights())
    engine.set_dataset(images, labels)
    losses, correct = engine.train(order, 7, 0.01)
    parameters = cases.signed_weights()
    others = make_engine(*spec), make_engine(*spec)
    for step in range(5):
        each = others[step % 2]  # neither has seen the step before
        each.set_parameters(parameters)
        each.set_dataset(images, labels)
        loss, hits = each.train(order[7 * step : 7 * step + 7], 7, 0.01)
        assert (loss[0], hits[0]) == (losses[step], correct[step]), f"step {step}"
        parameters = each.parameters
    assert parameter_hash(each) == parameter_hash(engine)


@JUDGED
def test_gradients_after_steps(make_engine, float64, spec):
    """What an engine keeps of its weights in other formats is that of the weights after every step."""
    engine, oracle = make_engine(*spec), float64(spec)
    images, labels = cases.mixed(20), cases.labels(20)
    engine.set_parameters(cases.signed_weights())
    engine.set_dataset(images, labels)
    for steps in (1, 2, 5):
        before = doubles(engine.parameters)
        engine.train(np.arange(20 * steps) % 20, 20, 0.05)
        moved = doubles(engine.parameters)
        for name in ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"):
            assert np.linalg.norm(moved[name] - before[name]) > 1e-3 * np.linalg.norm(before[name]), name
        probe, expected = assert_as_float64(spec, engine, oracle, images, labels)
        assert_close(spec, "loss", 20, probe.loss, expected.loss)
        assert_close(spec, "logits", 20, probe.logits, expected.logits)


@JUDGED
def test_other_parameters(make_engine, float64, spec):
    """No tensor of the parameters before is left, in any format: one after the other is replaced."""
    engine, oracle = make_engine(*spec), float64(spec)
    images, labels = cases.mixed(5), cases.labels(5)
    weights, others = cases.signed_weights(), cases.signed_weights(6)
    for tensor in PARAMETERS:
        weights = {**weights, tensor.name: others[tensor.name]}
        engine.set_parameters(weights)
        probe = engine.probe(images, labels)
        oracle.set_parameters(weights)
        assert_probe(spec, probe, oracle.probe(images, labels, routing=probe.routing), 5)


# ---- weights that grow from nothing ----------------------------------------------------------------------------------

# What begins at nothing or at a millionth of its size, and how large its largest value is after one update: what is
# kept of weights in fewer bits has room for 16, however small they were. (With more of fc1 scores are hundreds, and a
# rounding decides.)
SEEDLINGS = {
    "conv1": (("conv1.weight",), 8),
    "conv2": (("conv2.weight",), 8),
    "fc1": (("fc1.weight",), 0.5),
    "fc2": (("fc2.weight",), 8),
    "bn1": (("bn1.weight", "bn1.bias"), 1),
    "bn2": (("bn2.weight", "bn2.bias"), 1),
}


@JUDGED
@pytest.mark.parametrize("factor", [0, 1e-6])
@pytest.mark.parametrize("name", SEEDLINGS)
def test_weights_grow_from_nothing(make_engine, float64, spec, name, factor):
    """By more than 500 times in one update: a scale that came from the weights before has to hold those after it."""
    engine, oracle = make_engine(*spec), float64(spec)
    count = 150 if name == "fc1" and factor else 20  # another kernel chooses fc1's scale in large batches
    images, labels, weights = cases.mixed(count), cases.labels(count), cases.signed_weights()
    tensors, size = SEEDLINGS[name]
    if factor == 0 and name in ("bn1", "bn2"):
        factor = 1e-9  # at 0 the gradient is 0: ReLU passes nothing
    start = rounded({**weights, **{tensor: factor * weights[tensor] for tensor in tensors}})
    engine.set_parameters(start)
    engine.set_dataset(images, labels)
    # Gradients through so small weights nearly cancel: how exact they are is no matter here.
    gradients = engine.probe(images, labels).gradients
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    rate = size / max(np.abs(gradients[tensor]).max() for tensor in tensors)
    for _ in range(2):
        engine.train(np.arange(count), count, rate)
        rate = 1e-6 * rate  # the second time on what the update left
        assert_as_float64(spec, engine, oracle, images, labels)
    grown = max(np.abs(engine.parameters[tensor]).max() for tensor in tensors)
    assert grown > size / 2
    assert grown > 500 * max(np.abs(start[tensor]).max() for tensor in tensors)


# ---- weights that grow and shrink ------------------------------------------------------------------------------------

# Powers of ten in one channel, block or value; what follows is divided by as much where the scores would follow.
# name -> (tensor, where, tensor that follows, where)
CHANNELS = {
    "first filters of conv1": ("conv1.weight", np.s_[:2], None, None),
    "last filter of conv1": ("conv1.weight", np.s_[31], None, None),
    "first tap of a filter of conv1": ("conv1.weight", np.s_[9, 0, 0, 0], None, None),
    "last tap of a filter of conv1": ("conv1.weight", np.s_[22, 0, 2, 2], None, None),
    "first scale of bn1": ("bn1.weight", np.s_[0], "conv2.weight", np.s_[:, 0]),
    "last scale of bn1": ("bn1.weight", np.s_[31], "conv2.weight", np.s_[:, 31]),
    "first filter of conv2": ("conv2.weight", np.s_[0], None, None),
    "last filters of conv2": ("conv2.weight", np.s_[56:], None, None),
    "an input of conv2": ("conv2.weight", np.s_[:, 17], None, None),
    "first value of conv2": ("conv2.weight", np.s_[0, 0, 0, 0], None, None),
    "last value of conv2": ("conv2.weight", np.s_[63, 31, 2, 2], None, None),
    "a middle value of conv2": ("conv2.weight", np.s_[33, 14, 1, 0], None, None),
    "first scale of bn2": ("bn2.weight", np.s_[0], "fc1.weight", np.s_[:, :49]),
    "last scale of bn2": ("bn2.weight", np.s_[63], "fc1.weight", np.s_[:, 63 * 49 :]),
    "first feature of fc1": ("fc1.weight", np.s_[:, 0], "fc2.weight", np.s_[:]),
    "last feature of fc1": ("fc1.weight", np.s_[:, 3135], "fc2.weight", np.s_[:]),
    "a cell of fc1": ("fc1.weight", np.s_[:, 24::49], "fc2.weight", np.s_[:]),
    "first units of fc1": ("fc1.weight", np.s_[:16], "fc2.weight", np.s_[:, :16]),
    "last unit of fc1": ("fc1.weight", np.s_[127], "fc2.weight", np.s_[:, 127]),
}


def scaled(weights, name, factor):
    tensor, where, follower, there = CHANNELS[name]
    values = {**weights, tensor: weights[tensor].copy()}
    values[tensor][where] *= factor
    if follower and factor > 1:
        values[follower] = values[follower].copy()
        values[follower][there] /= factor
    return rounded(values)


@FUSED
@pytest.mark.parametrize("name", CHANNELS)
def test_weights_of_all_sizes(make_engine, float64, spec, name):
    """A channel, block or value that is a thousand times as large as its fellows, then a thousandth, then as they are.

    All in one engine, with steps after each change: what it derives from the size of its weights has to follow.
    """
    engine, oracle = make_engine(*spec), float64(spec)
    images, labels = cases.mixed(20), cases.labels(20)
    engine.set_dataset(images, labels)
    followed = CHANNELS[name][2] is not None
    for factor in (1e3, 1e-3, 1.0):
        engine.set_parameters(scaled(cases.signed_weights(), name, factor))
        assert_as_float64(spec, engine, oracle, images, labels)
        before = engine.parameters
        rate = 1e-7 if followed and factor > 1 else 1e-4  # the scores do not run away
        losses, _ = engine.train(np.arange(60) % 20, 20, rate)
        assert np.isfinite(losses).all()
        assert all(np.isfinite(value).all() for value in engine.parameters.values())
        assert any((engine.parameters[key] != before[key]).any() for key in before)
        assert_as_float64(spec, engine, oracle, images, labels)


@FUSED
def test_conv2_grows_for_many_steps(make_engine, float64, spec):
    """From a thousandth of its size, while its gradient is that much larger, to many times that, step by step."""
    engine, oracle = make_engine(*spec), float64(spec)
    images, labels = cases.mixed(20), cases.labels(20)
    start = rounded({**cases.signed_weights(), "conv2.weight": 1e-3 * cases.signed_weights()["conv2.weight"]})
    engine.set_parameters(start)
    engine.set_dataset(images, labels)
    for _ in range(6):
        losses, _ = engine.train(np.arange(40) % 20, 20, 2e-4)
        assert np.isfinite(losses).all()
        assert_as_float64(spec, engine, oracle, images, labels)
    grown = np.abs(engine.parameters["conv2.weight"]).max() / np.abs(start["conv2.weight"]).max()
    assert grown > 10, f"conv2.weight was to grow far and grew {grown:.1f} times"


@FUSED
@pytest.mark.parametrize("row", [0, 15, 16, 70, 132, 140, 299])
def test_one_image_makes_the_gradient(make_engine, float64, spec, row):
    """All others are certain: wherever it lies, what is derived from the size of gradients has to see it."""
    engine, oracle = make_engine(*spec), float64(spec)
    images, weights = cases.mixed(300), cases.signed_weights()
    weights["fc2.bias"] = np.where(np.arange(10) == 0, 30.0, 0.0)
    labels = np.zeros(300, np.uint8)
    labels[row] = 7
    engine.set_parameters(weights)
    engine.set_dataset(images, labels)
    probe, _ = assert_as_float64(spec, engine, oracle, images, labels)
    engine.train(np.arange(300), 300, 0.05)
    assert_step(engine, weights, probe.gradients, 0.05)
