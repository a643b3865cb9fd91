"""What the conformance tests share: the engines that they are run on, and how results are held against float64's."""

import hashlib

import numpy as np
import pytest
from conftest import engine_params

from mnist_cuda.engine.model import PARAMETERS
from mnist_cuda.engine.tolerances import FLAT_KINDS, PLAIN_BATCH, WORST_ROW, error_of, tolerance

BIASES = ("conv1.bias", "conv2.bias")
# As limits: multiprocessors, and bytes of shared memory a thread block.
A100 = (108, 166912)
SMALL_SHARED = 101376  # of RTX 30, 40 and 50, A10, L4, L40S
OLDER_GPUS = {
    "a100": A100,
    "rtx4060": (24, SMALL_SHARED),
    "rtx3060": (28, SMALL_SHARED),
    "l4": (58, SMALL_SHARED),
    "rtx4090": (128, SMALL_SHARED),
}
ORACLE = ("naive", "fp64")  # of the engines on a GPU, where the reference would take minutes

ALL = pytest.mark.parametrize("spec", engine_params())
EACH_ENGINE = pytest.mark.parametrize("spec", engine_params(precisions=False))
# The reference is the oracle; test_pytorch_parity.py holds it against PyTorch.
JUDGED = pytest.mark.parametrize("spec", engine_params(without=("reference",)))
ON_GPU = pytest.mark.parametrize("spec", [param for param in engine_params(precisions=False) if param.marks])
BY_ORACLE = pytest.mark.parametrize(
    "spec", [param for param in engine_params() if param.marks and param.values[0] != ORACLE]
)
BY_REFERENCE = pytest.mark.parametrize(
    "spec", [param for param in engine_params(without=("reference",)) if not param.marks or param.values[0] == ORACLE]
)
FUSED = pytest.mark.parametrize("spec", [param for param in engine_params() if param.values[0][0] == "fused"])


def assert_close(spec, name, batch, value, expected, routing="frozen", slack=1):
    bound = slack * tolerance(*spec, name, batch, routing)
    error = abs(value - expected) if name == "loss" else error_of(value, expected)
    assert error <= bound, f"{name}, batch {batch}: error {error:.2e}, bound {bound:.1e}"


def row_norms(values, batch):
    rows = values.reshape(batch, -1)
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def assert_rows(spec, name, batch, value, expected, slack=1):
    """A tensor with a row for each sample: no row may be far off, however small its share of the whole is."""
    bound = slack * tolerance(*spec, name, batch, "frozen")
    errors, norm = row_norms(value - expected, batch), np.linalg.norm(row_norms(expected, batch)) or 1.0
    error = np.linalg.norm(errors) / norm
    assert error <= bound, f"{name}, batch {batch}: error {error:.2e}, bound {bound:.1e}"
    worst = int(np.argmax(errors))  # NaN, if there is one
    error = errors[worst] * np.sqrt(batch) / norm
    assert error <= WORST_ROW * bound, f"{name}, row {worst} of {batch}: {error:.2e}, bound {WORST_ROW * bound:.1e}"


def assert_probe(spec, probe, expected, batch, slack=1, kind=""):
    """Loss, activations, logits and the 12 gradients of a probe against the oracle's under the probe's routing.

    kind: that of all images.
    """
    assert_close(spec, "loss", batch, probe.loss, expected.loss, slack=slack)
    for name in ("a1", "a2", "h", "logits"):
        if getattr(probe, name) is not None:
            assert_rows(spec, name, batch, getattr(probe, name), getattr(expected, name), slack)
    assert_gradients(spec, probe, expected, bounding_batch(batch, kind), slack)


def bounding_batch(batch, kind):
    """The batch whose bounds the gradients of images of a kind have."""
    return max(batch, PLAIN_BATCH) if kind in FLAT_KINDS else batch


def assert_gradients(spec, probe, expected, batch, slack=1):
    """The 12 gradients of a probe alone. slack: times the bounds, one number or one for each gradient by name."""
    assert list(probe.gradients) == [tensor.name for tensor in PARAMETERS]
    for name, gradient in probe.gradients.items():
        if name in BIASES:
            assert not gradient.any(), f"{name}: expected exactly 0, found up to {np.abs(gradient).max()}"
        else:
            times = slack[name] if isinstance(slack, dict) else slack
            assert_close(spec, name, batch, gradient, expected.gradients[name], slack=times)


def assert_step(engine, before, gradients, lr):
    """The engine's parameters are `before` less lr times the gradients, but for the rounding of an update."""
    for name, value in engine.parameters.items():
        step = lr * gradients[name]
        allowed = np.finfo(engine.dtype).eps * (np.linalg.norm(before[name]) + 2 * np.linalg.norm(step))
        error = np.linalg.norm(value - (before[name] - step))
        assert error <= allowed, f"{name}: the update is off by {error:.2e}, allowed {allowed:.2e}"


def assert_update(spec, engine, before, gradients, lr, batch, slack=1):
    """As assert_step, by the oracle's gradients: within the bounds of the engine's own."""
    for name, value in engine.parameters.items():
        step = -lr * gradients[name]
        bound = slack * tolerance(*spec, name, batch, "frozen") * np.linalg.norm(step)
        allowed = bound + np.finfo(engine.dtype).eps * np.linalg.norm(before[name])
        error = np.linalg.norm(value - before[name] - step)
        assert error <= allowed, f"{name}, batch {batch}: the update is off by {error:.2e}, allowed {allowed:.2e}"


def parameter_hash(engine):
    return hashlib.sha256(b"".join(value.tobytes() for value in engine.parameters.values())).hexdigest()


def training_bits(engine, order, batch, lr, weights=None):
    """Losses, hits and a hash of the parameters after a training from `weights`, or from where the engine is."""
    if weights is not None:
        engine.set_parameters(weights)
    losses, correct = engine.train(order, batch, lr)
    return tuple(losses.tolist()), tuple(correct.tolist()), parameter_hash(engine)


def doubles(parameters):
    """An engine's parameters as float64, for an oracle."""
    return {name: value.astype(np.float64) for name, value in parameters.items()}
