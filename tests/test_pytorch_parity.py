"""The reference against PyTorch's float64 autograd, golden and live, and every engine's training against it."""

from pathlib import Path

import cases
import numpy as np
import pytest
from conftest import engine_params

from mnist_cuda.engine.tolerances import PEER_BIAS_NOISE, TRAJECTORY, TRAJECTORY_MEAN, error_of, tolerance

GOLDEN = Path(__file__).resolve().parent / "golden" / "values.npz"


@pytest.fixture(scope="module")
def reference(make_engine):
    return make_engine("reference")


@pytest.fixture(scope="module", params=cases.GOLDEN)
def golden(request, reference):
    """(what torch said, what the reference's probe says, the case's name)."""
    with np.load(GOLDEN) as arrays:
        prefix = request.param + "/"
        values = {name[len(prefix) :]: arrays[name] for name in arrays if name.startswith(prefix)}
    assert values["digest"] == cases.digest(request.param), "the inputs changed: run tests/golden/make.py again"
    images, labels, weights = cases.GOLDEN[request.param]
    reference.set_parameters(weights)
    return values, reference.probe(images, labels), request.param


def assert_gradient(name, gradient, expected, *, sketched=False):
    """Within the reference's bound of torch's float64; exactly 0 for a convolution's bias, where torch has noise."""
    bound = tolerance("reference", "fp64", name, len(gradient), "frozen")
    if bound == 0:
        assert not gradient.any(), f"{name}: expected exactly 0, found up to {np.abs(gradient).max()}"
        assert np.abs(expected).max() <= PEER_BIAS_NOISE
        return
    error = error_of(cases.sketch(gradient) if sketched else gradient, expected)
    assert error <= bound, f"{name}: error {error:.2e}, bound {bound:.0e}"


def test_golden_loss_and_logits(golden):
    values, probe, _ = golden
    assert abs(probe.loss - values["loss"]) <= tolerance("reference", "fp64", "loss", 32, "frozen")
    assert error_of(probe.logits, values["logits"]) <= tolerance("reference", "fp64", "logits", 32, "frozen")


@pytest.mark.parametrize("name", cases.SHAPES)
def test_golden_gradient(golden, name):
    values, probe, _ = golden
    assert_gradient(name, probe.gradients[name], values[f"gradient/{name}"], sketched=True)
    if not name.startswith("conv") or name.endswith("weight"):
        assert np.linalg.norm(probe.gradients[name]) == pytest.approx(values[f"norm/{name}"], rel=1e-9)


def test_golden_statistics(golden, reference):
    """Over several of the engine's chunks: the same 32 images nine times have the statistics of the 32."""
    values, _, case = golden
    images, labels, weights = cases.GOLDEN[case]
    reference.set_parameters(weights)
    reference.set_dataset(np.tile(images, (9, 1, 1)), np.tile(labels, 9))
    reference.compute_statistics()
    for name, value in reference.statistics.items():
        error = error_of(value, values[name])
        assert error <= tolerance("reference", "fp64", name, 32, "frozen"), f"{name}: error {error:.2e}"


def assert_parity(peer, reference, images, labels, weights):
    (expected,) = peer.probes(images, labels, weights, {})
    reference.set_parameters(weights)
    probe = reference.probe(images, labels)
    assert abs(probe.loss - expected["loss"]) <= tolerance("reference", "fp64", "loss", 64, "frozen")
    for name in ("a1", "a2", "h", "logits"):
        assert error_of(getattr(probe, name), expected[name]) <= tolerance("reference", "fp64", name, 64, "frozen"), (
            name
        )
    for name, gradient in probe.gradients.items():
        assert_gradient(name, gradient, expected[f"gradient.{name}"])


def test_live_gradients(peer, reference):
    """Images of all kinds, signed scales and one scale of 0."""
    assert_parity(peer, reference, cases.mixed(8), cases.labels(8), cases.signed_weights(7))


def test_live_gradients_of_real_digits(peer, reference, mnist):
    assert_parity(peer, reference, mnist.train_images[:32], mnist.train_labels[:32], cases.initial_weights(8))


def test_directional_derivatives(reference):
    """The gradient along 100 random directions against central differences of the loss."""
    images, labels, weights = cases.strokes(2, seed=11), cases.labels(2), cases.initial_weights(12)
    reference.set_parameters(weights)
    probe = reference.probe(images, labels)
    rng = np.random.default_rng(13)
    step = 1e-6

    def loss_at(direction, distance):
        reference.set_parameters({name: value + distance * direction[name] for name, value in weights.items()})
        logits = reference.logits(images, "batch")
        shifted = logits - logits.max(1, keepdims=True)
        return float((np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]).mean())

    for _ in range(100):
        direction = {name: rng.standard_normal(value.shape) / 10 for name, value in weights.items()}
        slope = sum(float((probe.gradients[name] * d).sum()) for name, d in direction.items())
        measured = (loss_at(direction, step) - loss_at(direction, -step)) / (2 * step)
        # Two losses of order 1 rounded at 1e-16 and divided by 2e-6, and the cubic term of the difference.
        assert abs(measured - slope) <= 1e-7 * max(1, abs(slope))


@pytest.mark.parametrize("engine", engine_params())
def test_trajectory(make_engine, engine, mnist):
    """100 steps from the same weights over the same real digits; the reference with a smaller batch, for time."""
    name, precision = engine
    trainer = make_engine(name, precision)
    batch = min(cases.TRAJECTORY_BATCHES) if name == "reference" else max(cases.TRAJECTORY_BATCHES)
    with np.load(GOLDEN) as arrays:
        expected = arrays[f"trajectory/{batch}"]
    order = np.arange(cases.TRAJECTORY_STEPS * batch)
    trainer.set_parameters(cases.initial_weights())
    trainer.set_dataset(mnist.train_images[: len(order)], mnist.train_labels[: len(order)])
    losses, _ = trainer.train(order, batch, cases.TRAJECTORY_RATE)
    assert expected[-20:].mean() < expected[:20].mean() - 0.5, "the comparison is worth nothing if nothing is learnt"
    error = np.abs(losses - expected).max()
    assert error <= TRAJECTORY[precision], f"loss differs by {error:.2e}, bound {TRAJECTORY[precision]:.0e}"
    mean = abs((losses - expected).mean())
    assert mean <= TRAJECTORY_MEAN[precision], f"on average by {mean:.2e}, bound {TRAJECTORY_MEAN[precision]:.0e}"
