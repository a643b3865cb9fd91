"""The conformance suite: every engine of the registry, in every precision, against the float64 reference.

Bounds come from mnist_cuda/engine/tolerances.py alone. MNIST_CUDA_TEST_FULL=1 runs every batch size and larger
free-routing batches.
"""

import hashlib
from typing import get_args

import cases
import numpy as np
import pytest
from conformance import (
    A100,
    ALL,
    BIASES,
    EACH_ENGINE,
    FUSED,
    JUDGED,
    OLDER_GPUS,
    ON_GPU,
    ORACLE,
    SMALL_SHARED,
    assert_close,
    assert_gradients,
    assert_probe,
    assert_step,
    assert_update,
    doubles,
    parameter_hash,
    training_bits,
)
from conftest import FULL

from mnist_cuda import _native
from mnist_cuda.engine import Engine, Summation, engines, find_engine
from mnist_cuda.engine.model import PARAMETERS, STATISTICS
from mnist_cuda.engine.tolerances import FLIPS, WILD, error_of, tolerance
from mnist_cuda.errors import UnavailableError, UsageError

BATCHES = (1, 2, 3, 31, 32, 33, 64, 100, 127, 256) if FULL else (1, 3, 33, 64)


@pytest.fixture(scope="session")
def oracle(make_engine):
    """oracle(images, labels, weights, routing=None, upstream=1): the reference's probe, remembered where it is free."""
    engine = make_engine("reference")
    free = {}

    def probe(images, labels, weights, routing=None, upstream=1.0):
        key = None
        if routing is None:
            parts = (images, labels, *weights.values(), np.float64(upstream))
            key = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).digest()
            if key in free:
                return free[key]
        engine.set_parameters(weights)
        result = engine.probe(images, labels, upstream=upstream, routing=routing)
        if key is not None:
            free[key] = result
        return result

    return probe


def frozen(engine, oracle, images, labels, weights, upstream=1.0):
    """An engine's probe, and the oracle's under its routing."""
    engine.set_parameters(weights)
    probe = engine.probe(images, labels, upstream=upstream)
    return probe, oracle(images, labels, weights, probe.routing, upstream)


@pytest.fixture(scope="session")
def trained_weights(make_engine, mnist):
    """Weights after 150 steps on real digits, made by `cpu`: a typical point of a training run, whoever computes it."""
    trainer = make_engine("cpu", threads=2)  # processes beside this one do the same
    trainer.set_parameters(cases.initial_weights())
    count = 150 * 64
    trainer.set_dataset(mnist.train_images[:count], mnist.train_labels[:count])
    losses, _ = trainer.train(np.arange(count), 64, 0.05)
    assert losses[-20:].mean() < 0.5, "these weights were to be trained ones"
    return doubles(trainer.parameters)


# ---- the gradients, arithmetic alone ---------------------------------------------------------------------------------


@JUDGED
@pytest.mark.parametrize("batch", BATCHES)
def test_frozen_step(make_engine, oracle, spec, batch):
    """Every batch size, images of all kinds, batch norm scales of both signs and one that is 0, an upstream of -2.5."""
    engine = make_engine(*spec)
    images, labels, weights = cases.mixed(batch), cases.labels(batch), cases.signed_weights()
    assert_probe(spec, *frozen(engine, oracle, images, labels, weights, upstream=-2.5), batch)


@FUSED
@pytest.mark.parametrize(
    ("layer", "factor"),
    [
        *((layer, factor) for layer in ("conv2.weight", "conv2.weight[0]") for factor in (1e-3, 1e3)),
        *(("conv1.weight", 1e-2), ("conv1.weight", 1e3), ("bn1.weight", 1e3), ("bn2.weight", 1e-3)),
    ],
)
def test_frozen_step_of_scaled_weights(make_engine, oracle, spec, layer, factor):
    """Operands that are kept as fp16 have units, so that it does not matter how large a tensor, or a channel, is."""
    engine, weights = make_engine(*spec), cases.signed_weights()
    name, channel, _ = layer.partition("[0]")
    scaled = weights[name].copy()
    scaled[0 if channel else ...] *= factor
    weights[name] = scaled.astype(np.float32).astype(np.float64)
    assert_gradients(spec, *frozen(engine, oracle, cases.mixed(20), cases.labels(20), weights), 20)


# Of a tensor, what is made a thousand times smaller, so that the rest decides how large it is at most.
SMALL_PARTS = {
    "bn1-lower-channels": lambda w: w["bn1.weight"][:16],
    "bn2-lower-channels": lambda w: w["bn2.weight"][:32],
    "fc1-first-cells": lambda w: w["fc1.weight"].reshape(128, 64, 49)[:, :, :25],
    "fc1-other-channels": lambda w: w["fc1.weight"].reshape(128, 2, 2, 16, 49)[:, :, 0],
}


@FUSED
@pytest.mark.parametrize("part", SMALL_PARTS)
def test_frozen_step_of_unequal_parts(make_engine, oracle, spec, part):
    """A unit comes from all of its tensor: where one part is small, the other must not overflow."""
    engine, weights = make_engine(*spec), cases.signed_weights()
    SMALL_PARTS[part](weights)[...] *= 2.0**-10
    assert_gradients(spec, *frozen(engine, oracle, cases.mixed(40), cases.labels(40), weights), 40)


@FUSED
def test_step_after_weights_grew(make_engine, oracle, spec):
    """The unit of conv2's weights is that of the step before: they may grow far in one."""
    engine = make_engine(*spec)
    images, labels, weights = cases.mixed(20), cases.labels(20), cases.signed_weights()
    weights["conv2.weight"] = (3e-3 * weights["conv2.weight"]).astype(np.float32).astype(np.float64)
    engine.set_parameters(weights)
    engine.set_dataset(images, labels)
    engine.train(np.arange(20), 20, 0.005)
    grown = doubles(engine.parameters)
    assert np.abs(grown["conv2.weight"]).max() > 100 * np.abs(weights["conv2.weight"]).max()
    probe = engine.probe(images, labels)
    assert_gradients(spec, probe, oracle(images, labels, grown, probe.routing), 20)


@FUSED
@pytest.mark.parametrize("batch", [60, 140, 300])
@pytest.mark.parametrize("limits", [None, *OLDER_GPUS.values()], ids=["this-gpu", *OLDER_GPUS])
def test_frozen_step_of_several_units_a_block(make_engine, monkeypatch, spec, batch, limits):
    """More images, or halves of images, than multiprocessors; also as an older and smaller GPU would cut them up.

    Float64 is the GPU's, as in test_engine_sizes.py: the reference would take 20 s for these images.
    """
    monkeypatch.delenv("MNIST_CUDA_FUSED_LIMITS", raising=False)
    engine = make_engine(*spec, limits=limits)
    assert any(line.startswith("as if this GPU had") for line in engine.algorithms()) == bool(limits)
    assert engine.arithmetic.startswith(spec[1])
    images, labels, weights = cases.mixed(batch), cases.labels(batch), cases.signed_weights()
    engine.set_parameters(weights)
    probe, oracle = engine.probe(images, labels), make_engine(*ORACLE)
    oracle.set_parameters(weights)
    assert_probe(spec, probe, oracle.probe(images, labels, routing=probe.routing), batch)
    engine.set_dataset(images, labels)
    losses, _ = engine.train(np.arange(batch), batch, 0.05)
    assert losses[0] == probe.loss
    assert_step(engine, weights, probe.gradients, 0.05)


@FUSED
@pytest.mark.parametrize("batch", [1, 60, 140, 300])
def test_steps_in_little_shared_memory(make_engine, spec, batch):
    """A step gives the same bits again; in bf16 they are an A100's, where this takes half images, too."""
    images, labels = cases.mixed(2 * batch), cases.labels(2 * batch)
    hashes = []
    for limits in (A100, A100, (A100[0], SMALL_SHARED), (A100[0], SMALL_SHARED)):
        engine = make_engine(*spec, limits=limits)
        engine.set_parameters(cases.signed_weights())
        engine.set_dataset(images, labels)
        engine.train(np.arange(2 * batch), batch, 0.02)
        hashes.append(parameter_hash(engine))
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]
    if spec[1] == "bf16" and batch <= A100[0] // 2:  # then only how much is copied ahead differs
        assert hashes[1] == hashes[2]


@JUDGED
@pytest.mark.parametrize("kind", ["strokes", "noise", "constant", "one_hot", "zeros"])
def test_frozen_step_of_one_kind(make_engine, oracle, spec, kind):
    engine = make_engine(*spec)
    images, labels, weights = cases.IMAGES[kind](10), cases.labels(10), cases.initial_weights()
    assert_probe(spec, *frozen(engine, oracle, images, labels, weights), 10, kind=kind)


@JUDGED
@pytest.mark.parametrize("point", ["init", "trained"])
def test_frozen_step_of_real_digits(make_engine, oracle, request, mnist, spec, point):
    engine = make_engine(*spec)
    weights = cases.initial_weights() if point == "init" else request.getfixturevalue("trained_weights")
    images, labels = mnist.train_images[20000:20064], mnist.train_labels[20000:20064]
    probe, expected = frozen(engine, oracle, images, labels, weights)
    assert_probe(spec, probe, expected, 64)
    assert probe.correct == (probe.logits.argmax(1) == labels).sum()


# ---- the decisions ---------------------------------------------------------------------------------------------------


@JUDGED
@pytest.mark.parametrize("kind", ["strokes", "constant", "mixed"])
def test_routing(make_engine, oracle, spec, kind):
    """The routing is float64's but for near-ties; exact ties, most of these windows, take the first position."""
    engine = make_engine(*spec)
    images, labels = cases.IMAGES[kind](16), cases.labels(16)
    weights = cases.signed_weights() if kind == "mixed" else cases.initial_weights()
    engine.set_parameters(weights)
    found = engine.probe(images, labels).routing
    expected = oracle(images, labels, weights).routing
    for name, mine, theirs in zip(("pool1", "pool2", "relu3"), found, expected, strict=True):
        assert mine.shape == theirs.shape
        share = float((mine != theirs).mean())
        assert share <= FLIPS[spec[1]], f"{name}: {share:.1e} of the decisions differ, bound {FLIPS[spec[1]]:.0e}"


@JUDGED
@pytest.mark.parametrize("point", ["init", "trained"])
def test_free_steps_of_real_digits(make_engine, oracle, request, mnist, spec, point):
    """Fixed batches, each side deciding for itself: the median and the worst error of every gradient.

    20 of 64 images, for which the bounds were made; by the reference, which would take minutes, 10 of 16.
    """
    engine = make_engine(*spec)
    weights = cases.initial_weights() if point == "init" else request.getfixturevalue("trained_weights")
    engine.set_parameters(weights)
    by_gpu = make_engine(*ORACLE) if engine.info.device == "cuda" and spec != ORACLE else None
    if by_gpu:
        by_gpu.set_parameters(weights)
    count, batch = (20, 64) if by_gpu or FULL else (10, 16)
    errors = {tensor.name: [] for tensor in PARAMETERS}
    for k in range(count):
        chosen = slice(30000 + k * batch, 30000 + (k + 1) * batch)
        images, labels = mnist.train_images[chosen], mnist.train_labels[chosen]
        expected = by_gpu.probe(images, labels) if by_gpu else oracle(images, labels, weights)
        for name, gradient in engine.probe(images, labels).gradients.items():
            errors[name].append(error_of(gradient, expected.gradients[name]))
    for name, found in errors.items():
        bound = tolerance(*spec, name, batch, "free")
        assert np.median(found) <= bound.median, f"{name}: median {np.median(found):.2e}, bound {bound.median:.1e}"
        assert max(found) <= bound.worst, f"{name}: worst {max(found):.2e}, bound {bound.worst:.1e}"


# ---- training --------------------------------------------------------------------------------------------------------


@ALL
def test_update_is_gradient_descent(make_engine, oracle, spec):
    """One step: parameters - lr * gradient, the gradient being float64's under the engine's routing."""
    engine = make_engine(*spec)
    images, labels, weights, lr = cases.strokes(8), cases.labels(8), cases.initial_weights(), 0.05
    engine.set_parameters(weights)
    routing = engine.probe(images, labels).routing
    expected = oracle(images, labels, weights, routing)
    engine.set_dataset(images, labels)
    losses, correct = engine.train(np.arange(8), 8, lr)
    assert_close(spec, "loss", 8, losses[0], expected.loss)
    assert losses.shape == correct.shape == (1,)
    assert_update(spec, engine, weights, expected.gradients, lr, 8)


@JUDGED
def test_update_that_turns_scales_round(make_engine, spec):
    """Scales of batch norm that change their sign in a step: all gradients are of the signs before it."""
    engine = make_engine(*spec)
    images, labels, rate = cases.mixed(12), cases.labels(12), 8.0
    weights = cases.initial_weights()
    for layer in ("bn1", "bn2"):
        signs = np.sign(cases.uniform(9, weights[f"{layer}.weight"].shape, -1, 1))
        weights[f"{layer}.weight"], weights[f"{layer}.bias"] = signs / 64, np.full(signs.shape, 0.25)
    engine.set_parameters(weights)
    probe = engine.probe(images, labels)
    engine.set_dataset(images, labels)
    engine.train(np.arange(12), 12, rate)
    after = engine.parameters
    for layer in ("bn1", "bn2"):
        turned = np.sign(after[f"{layer}.weight"]) != np.sign(weights[f"{layer}.weight"])
        assert turned.sum() >= 4, f"{layer}: scales were to change their sign"
    for name, value in after.items():
        step = rate * probe.gradients[name]
        allowed = 2 * np.finfo(np.float32).eps * (np.linalg.norm(weights[name]) + 2 * np.linalg.norm(step))
        assert np.linalg.norm(value - (weights[name] - step)) <= allowed, name
        assert name in BIASES or np.linalg.norm(step) > 100 * allowed, f"{name}: its step was to be seen"


@ALL
def test_ragged_epoch(make_engine, spec):
    """40 samples in batches of 16 are steps of 16, 16 and 8, bitwise the same in one call or three."""
    engine = make_engine(*spec)
    images, labels = cases.mixed(12), cases.labels(12)
    order = np.random.default_rng(1).integers(0, 12, 40)
    engine.set_parameters(cases.signed_weights())
    engine.set_dataset(images, labels)
    before = engine.parameters
    together = engine.train(order, 16, 0.05)
    assert len(together[0]) == 3
    for name in BIASES:
        np.testing.assert_array_equal(engine.parameters[name], before[name], err_msg=name)
    assert all((engine.parameters[name] != before[name]).any() for name in before if name not in BIASES)
    at_end = parameter_hash(engine)

    engine.set_parameters(cases.signed_weights())
    apart = [engine.train(order[first : first + 16], 16, 0.05) for first in (0, 16, 32)]
    np.testing.assert_array_equal(together[0], np.concatenate([losses for losses, _ in apart]))
    np.testing.assert_array_equal(together[1], np.concatenate([correct for _, correct in apart]))
    assert parameter_hash(engine) == at_end


@ALL
def test_deterministic(make_engine, spec):
    """The same start gives the same bits in a fresh engine, whatever it did before; one flipped pixel gives others."""

    def train(engine, images):
        engine.set_parameters(cases.initial_weights())
        engine.set_dataset(images, cases.labels(12))
        return training_bits(engine, np.arange(24) % 12, 6, 0.05)

    images = cases.mixed(12)
    engine = make_engine(*spec)
    first = train(engine, images)
    assert train(engine, images) == first
    assert train(make_engine(*spec), images) == first
    images[5, 14, 14] ^= 1
    assert train(engine, images)[2] != first[2]


@ON_GPU
def test_a_smaller_batch_after_a_larger_one(make_engine, spec):
    """What a batch leaves in the engine's arrays beyond the end of the next one is not read, nor where they were."""

    def train(engine, order):
        return training_bits(engine, order, len(order), 0.05, cases.signed_weights())

    used, fresh = make_engine(*spec), make_engine(*spec)
    for engine in (used, fresh):
        engine.set_dataset(cases.mixed(256), cases.labels(256))
    all_images = np.arange(256)
    others = all_images[:-134:-1]
    train(used, all_images[:133])
    train(used, all_images)  # the arrays move
    assert train(used, others) == train(fresh, others)


@ON_GPU
def test_checking_every_step_changes_no_bit(make_engine, monkeypatch, spec):
    """The steps are launched one after the other instead of from graphs: by the option, and by MNIST_CUDA_SYNC=1."""
    results = set()
    for value, option in (("0", None), ("1", None), ("1", False), ("0", True)):
        monkeypatch.setenv("MNIST_CUDA_SYNC", value)
        engine = make_engine(*spec, check_every_step=option)
        engine.set_parameters(cases.signed_weights())
        engine.set_dataset(cases.mixed(12), cases.labels(12))
        results.add(training_bits(engine, np.arange(40) % 12, 6, 0.05))
    assert len(results) == 1


@JUDGED
def test_overfits_64_images(make_engine, spec):
    """Random labels, so that nothing but fitting helps."""
    engine = make_engine(*spec)
    engine.set_parameters(cases.initial_weights())
    engine.set_dataset(cases.strokes(64), cases.labels(64))
    losses, correct = engine.train(np.tile(np.arange(64), 150), 64, 0.1)
    assert losses[-1] < 0.01
    assert correct[-1] == 64


@ALL
def test_scale_of_conv1_does_not_matter(make_engine, spec):
    """Batch norm undoes it but for epsilon: w . dw = gamma dgamma eps / (var + eps) for each channel, exactly."""
    engine = make_engine(*spec)
    images, labels, weights = cases.noise(8), cases.labels(8), cases.signed_weights()
    engine.set_parameters(weights)
    engine.set_dataset(images, labels)
    engine.compute_statistics()
    var = engine.statistics["bn1.running_var"]
    gradients = engine.probe(images, labels).gradients
    w, dw = weights["conv1.weight"].reshape(32, 9), gradients["conv1.weight"].reshape(32, 9)
    expected = weights["bn1.weight"] * gradients["bn1.weight"] * 1e-5 / (var + 1e-5)
    allowed = tolerance(*spec, "conv1.weight", 8, "frozen") * np.linalg.norm(w) * np.linalg.norm(dw)
    assert np.linalg.norm((w * dw).sum(1) - expected) <= allowed


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def population(make_engine):
    """What the reference says of 40 images, which are the population, and of 7 that are scored."""
    engine = make_engine("reference")
    images = cases.mixed(47)
    engine.set_parameters(cases.signed_weights())
    engine.set_dataset(images[:40], cases.labels(40))
    engine.compute_statistics()
    scored = images[40:]
    return images, engine.statistics, engine.logits(scored), engine.logits(scored, "batch")


def check_evaluation(engine, population, spec):
    images, statistics, of_population, of_batch = population
    engine.set_parameters(cases.signed_weights())
    assert engine.statistics is None
    engine.set_dataset(images[:40], cases.labels(40))
    engine.compute_statistics()
    found = engine.statistics
    assert list(found) == [tensor.name for tensor in STATISTICS]
    for name, value in found.items():
        assert_close(spec, name, 40, value, statistics[name])
    assert_close(spec, "logits", 7, engine.logits(images[40:]), of_population)
    assert_close(spec, "logits", 7, engine.logits(images[40:], "batch"), of_batch)


@JUDGED
def test_statistics_and_logits(make_engine, population, spec):
    check_evaluation(make_engine(*spec), population, spec)


@FUSED
@pytest.mark.parametrize("gpu", OLDER_GPUS)
def test_evaluation_of_an_older_gpu(make_engine, population, spec, gpu):
    """It cuts up few images as many, and their scores are those of each alone."""
    images, *_ = population
    engine = make_engine(*spec, limits=OLDER_GPUS[gpu])
    check_evaluation(engine, population, spec)
    together = engine.logits(images[40:])
    for i in range(7):
        assert np.array_equal(engine.logits(images[40 + i : 41 + i])[0], together[i])


@ALL
def test_population_logits_do_not_depend_on_the_batch(make_engine, population, spec):
    images, statistics, *_ = population
    engine = make_engine(*spec)
    engine.set_parameters(cases.signed_weights())
    engine.set_statistics(statistics)
    together = engine.logits(images[40:])
    assert_close(spec, "logits", 3, engine.logits(images[42:45]), together[2:5])


@JUDGED
@pytest.mark.parametrize(("layer", "ratio"), [("bn1", 1e2), ("bn1", 1e4), ("bn2", 1e2), ("bn2", 1e6)])
def test_scores_where_shifts_are_far_larger_than_scales(make_engine, spec, layer, ratio):
    """A batch norm whose bias decides how large its output is, by the population's statistics and by a batch's.

    What conv2 makes of a plane that is nearly flat cancels but for the border.
    """
    engine, reference = make_engine(*spec), make_engine("reference")
    images, labels, weights = cases.mixed(47), cases.labels(47), cases.signed_weights()
    shift = np.where(np.arange(len(weights[f"{layer}.bias"])) % 3 == 0, -5.0, 5.0)
    weights[f"{layer}.bias"] = shift * cases.uniform(8, shift.shape, 1, 2)
    weights[f"{layer}.weight"] = weights[f"{layer}.weight"] / ratio
    weights = {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}
    for each in (engine, reference):
        each.set_parameters(weights)
        each.set_dataset(images[:40], labels[:40])
        each.compute_statistics()
    images, labels = images[40:], labels[40:]
    engine.set_evaluation_set(images, labels)
    for given in (engine.statistics, reference.statistics):
        for each in (engine, reference):
            each.set_statistics(given)
        scores = engine.logits(images)
        assert_close(spec, "logits", 7, scores, reference.logits(images), slack=WILD)
        correct, loss = engine.evaluate()
        assert correct == (scores.argmax(1) == labels).sum()
        assert np.isfinite(loss)
    assert_close(spec, "logits", 7, engine.logits(images, "batch"), reference.logits(images, "batch"), slack=WILD)


@ALL
def test_a_step_or_other_parameters_make_statistics_stale(make_engine, spec):
    engine = make_engine(*spec)
    engine.set_parameters(cases.initial_weights())
    engine.set_dataset(cases.strokes(4), cases.labels(4))
    for change in (lambda: engine.train(np.arange(4), 4, 0.05), lambda: engine.set_parameters(engine.parameters)):
        engine.compute_statistics()
        assert engine.statistics is not None
        change()
        assert engine.statistics is None
        with pytest.raises(ValueError, match="no population statistics"):
            engine.logits(cases.strokes(4))


# ---- what goes in and comes out --------------------------------------------------------------------------------------


@ALL
def test_parameters_round_trip(make_engine, spec):
    engine = make_engine(*spec)
    weights = {name: value.astype(engine.dtype) for name, value in cases.signed_weights().items()}
    if spec[1] == "fp64":
        weights = {name: value + 1e-12 for name, value in weights.items()}
    engine.set_parameters(weights)
    for name, value in engine.parameters.items():
        assert value.dtype == engine.dtype
        np.testing.assert_array_equal(value, weights[name], err_msg=name)


@ALL
def test_probe_changes_nothing(make_engine, spec):
    engine = make_engine(*spec)
    engine.set_parameters(cases.initial_weights())
    before = parameter_hash(engine)
    first = engine.probe(cases.strokes(3), cases.labels(3))
    again = engine.probe(cases.strokes(3), cases.labels(3))
    assert parameter_hash(engine) == before
    assert first.loss == again.loss
    for name, gradient in first.gradients.items():
        np.testing.assert_array_equal(gradient, again.gradients[name], err_msg=name)


IMAGES = cases.strokes(4)
LABELS = cases.labels(4)
WEIGHTS = cases.initial_weights()
BAD_STATISTICS = {tensor.name: np.full(tensor.shape, -1.0) for tensor in STATISTICS}
# what -> (a wrong call, the start of what every engine says)
WRONG_CALLS = {
    "label 10": (lambda e: e.set_dataset(IMAGES, np.array([0, 10, 1, 2], np.uint8)), "set_dataset: label 1 is 10"),
    "no images": (lambda e: e.set_dataset(IMAGES[:0], LABELS[:0]), "set_dataset: no images"),
    "count": (lambda e: e.set_dataset(IMAGES, LABELS[:3]), "set_dataset: 3136 pixels for 3 labels, expected 2352"),
    "dtype": (lambda e: e.set_dataset(IMAGES.astype(float), LABELS), "the array has dtype float64, expected uint8"),
    "NaN": (lambda e: e.set_parameters({**WEIGHTS, "fc2.bias": np.full(10, np.nan)}), r"set_parameters: fc2.bias\[0\]"),
    "transposed": (
        lambda e: e.set_parameters({**WEIGHTS, "fc2.weight": np.zeros((128, 10))}),
        r"tensor fc2.weight has shape \(128, 10\), expected \(10, 128\)",
    ),
    "missing": (lambda e: e.set_parameters({}), "tensor conv1.weight is missing"),
    "variance": (lambda e: e.set_statistics(BAD_STATISTICS), r"set_statistics: bn1.running_var\[0\] is -1"),
    "index": (lambda e: e.train(np.array([0, 4]), 2, 0.1), r"train: order\[1\] is 4, expected 0 to 3"),
    "negative": (lambda e: e.train(np.array([-1]), 1, 0.1), r"train: order\[0\] is -1, expected 0 to 3"),
    "float order": (
        lambda e: e.train(np.array([0.0, 1.9]), 2, 0.1),
        r"train: order has shape \(2,\) and dtype float64, expected a row of integers",
    ),
    "two rows": (lambda e: e.train(np.zeros((2, 2), np.int32), 2, 0.1), r"train: order has shape \(2, 2\)"),
    "index of 64 bits": (
        lambda e: e.train(np.array([0, 2**32 + 1]), 2, 0.1),
        r"train: order\[1\] is 4294967297, expected the index of one of 4 images",
    ),
    "batch 0": (lambda e: e.train(np.arange(4), 0, 0.1), "train: batch size is 0"),
    "batch 2^40": (lambda e: e.train(np.arange(4), 2**40, 0.1), "train: batch size is 1099511627776, expected 1 to "),
    "rate": (lambda e: e.train(np.arange(4), 4, float("nan")), "train: learning rate of step 0 is -?nan"),
    "complex rate": (
        lambda e: e.train(np.arange(4), 4, 0.1j),
        r"train: lr has shape \(\) and dtype complex128, expected a row of real numbers",
    ),
    "complex rates": (
        lambda e: e.train(np.arange(4), 2, np.full(2, 0.1 + 1j)),
        r"train: lr has shape \(2,\) and dtype complex128, expected a row of real numbers",
    ),
    "probe label": (lambda e: e.probe(IMAGES, np.full(4, 255, np.uint8)), "probe: label 0 is 255"),
    "stale": (lambda e: e.logits(IMAGES), "logits: no population statistics"),
    "batch norm": (
        lambda e: e.logits(IMAGES, "Population"),
        "logits: batch_norm is 'Population', expected population or batch",
    ),
    "placement": (
        lambda e: e.set_dataset(IMAGES, LABELS, "gpu"),
        "set_dataset: placement is 'gpu', expected device or host",
    ),
    "complex": (
        lambda e: e.set_parameters({**WEIGHTS, "fc2.bias": np.full(10, 1 + 2j)}),
        "tensor fc2.bias has dtype complex128, expected real numbers",
    ),
}


@EACH_ENGINE
@pytest.mark.parametrize("what", WRONG_CALLS)
def test_wrong_calls(make_engine, spec, what):
    """One ValueError in one sentence, the same from every engine, and the engine works on as before."""
    call, text = WRONG_CALLS[what]
    engine = make_engine(*spec)
    engine.set_parameters(WEIGHTS)
    engine.set_dataset(IMAGES, LABELS)
    before = parameter_hash(engine)
    with pytest.raises(ValueError, match=f"^{text}[^\n]*$"):
        call(engine)
    assert parameter_hash(engine) == before
    assert engine.train(np.arange(4), 4, 0.0)[0].shape == (1,)


@FUSED
@pytest.mark.parametrize("limits", [(1, 166912), (9999, 166912), (108, 1024), (108, 9999999)])
def test_wrong_limits(make_engine, spec, limits):
    text = "limits are {} multiprocessors and {} bytes of shared memory a block, expected on this GPU 2 to "
    with pytest.raises(ValueError, match="^" + text.format(*limits)):
        make_engine(*spec, limits=limits)


def test_train_needs_a_data_set(make_engine):
    with pytest.raises(ValueError, match="train: no data set"):
        make_engine("reference").train(np.arange(4), 4, 0.1)


@JUDGED
def test_follows_a_routing(make_engine, oracle, spec):
    """Where the registry says so: decisions that nobody would take, as the reference follows them; else a refusal."""
    engine = make_engine(*spec)
    engine.set_parameters(WEIGHTS)
    routing = tuple(
        (values + np.arange(values.size).reshape(values.shape)) % limit
        for values, limit in zip(engine.probe(IMAGES, LABELS).routing, (5, 5, 2), strict=True)
    )
    routing = tuple(values.astype(np.uint8) for values in routing)
    if not engine.info.follows_routing:
        with pytest.raises(ValueError, match=f"probe: engine '{spec[0]}' follows no routing, expected none"):
            engine.probe(IMAGES, LABELS, routing=routing)
        return
    probe = engine.probe(IMAGES, LABELS, routing=routing)
    for given, used in zip(routing, probe.routing, strict=True):
        np.testing.assert_array_equal(given, used)
    assert_probe(spec, probe, oracle(IMAGES, LABELS, WEIGHTS, routing), 4)
    free = engine.probe(IMAGES, LABELS)
    assert any((given != used).any() for given, used in zip(routing, free.routing, strict=True))


# ---- the registry ----------------------------------------------------------------------------------------------------


def test_registry():
    rows = engines()
    assert [row.name for row in rows] == ["reference", "cpu", "naive", "tiled", "layerwise", "cudnn", "fused"]
    assert sorted(row.rank for row in rows) == [1, 2, 3, 4, 5, 6, 7]
    for row in rows:
        assert row.summary
        assert row.summation in get_args(Summation)
        assert "\n" not in row.unavailable
        if row.unavailable:
            with pytest.raises(UnavailableError, match=f"engine '{row.name}' cannot run here: ") as caught:
                Engine(row.name)
            assert caught.value.exit_code == 4
    assert find_engine("auto") == min((row for row in rows if not row.unavailable), key=lambda row: row.rank)


def test_an_engine_without_fleets_says_so():
    assert [row["name"] for row in _native.engines() if row["fleets"]] == ["fused"]
    with pytest.raises(UnavailableError, match="engine 'cpu' trains one model at a time"):
        Engine("cpu").fleet(2, 8, 2)


def test_unknown_engine_and_precision():
    with pytest.raises(UsageError, match="engine 'nonsense' is unknown, expected auto or one of reference"):
        Engine("nonsense")
    with pytest.raises(UsageError, match="engine 'reference' has no precision bf16, it offers fp64"):
        Engine("reference", "bf16")
