"""Learning rates over a training: their shapes, and that chunks of steps do not change a bit."""

import numpy as np
import pytest
from conftest import engine_params
from tiny import prints

from mnist_cuda.engine.model import init_parameters
from mnist_cuda.run.schedule import Schedule, parse_schedule


def expected_rate(step, steps, peak, rise):
    """The formula of Schedule, a step at a time."""
    t = (step + 0.5) / steps
    return peak * (t / rise if t < rise else (1 - t) / (1 - rise))


@pytest.mark.parametrize("rise", [0.0, 0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_a_triangle_rises_and_falls(rise, steps):
    rates = Schedule(0.5, rise).rates(steps)
    assert rates.tolist() == pytest.approx([expected_rate(k, steps, 0.5, rise) for k in range(steps)], rel=1e-12)
    assert ((rates > 0) & (rates <= 0.5)).all()
    top = int(rates.argmax())
    assert (np.diff(rates[: top + 1]) > 0).all()
    assert (np.diff(rates[top + 1 :]) < 0).all()  # two steps may share the top


@pytest.mark.parametrize(
    ("text", "rise"), [("constant", None), ("linear", 0.0), ("triangle", 0.2), ("triangle:0.35", 0.35)]
)
def test_shapes_by_name(text, rise):
    schedule = parse_schedule(text, 0.1)
    assert schedule == Schedule(0.1, rise)
    assert parse_schedule(str(schedule), 0.1) == schedule
    if rise is None:
        assert schedule.rates(5).tolist() == [0.1] * 5


@pytest.mark.parametrize("text", ["", "cosine", "linear:0.5", "constant:1", "triangle:", "triangle:2", "triangle:nan"])
def test_other_shapes_are_refused(text, tiny, capsys):
    assert "--schedule" in prints(capsys, "train", "--schedule", text, "--out", "out", "--batch-size", "5", code=2)
    assert not (tiny / "out").exists()


def data_of(count):
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (count, 28, 28), np.uint8) * (rng.random((count, 28, 28)) < 0.3)
    return images.astype(np.uint8), rng.integers(0, 10, count, np.uint8)


@pytest.mark.parametrize(
    ("placement", "spec"),
    [
        pytest.param(placement, *engine.values, id=f"{placement}-{engine.id}", marks=engine.marks)
        for placement in ("device", "host")
        for engine in engine_params()
        if placement == "device" or engine.marks  # to an engine on the host they are the same
    ],
)
def test_calls_of_any_length_give_the_same_bits(placement, spec, make_engine):
    batch, steps = 8, 70  # more than two of the longest graphs of `fused`
    if spec[0] in ("reference", "cpu"):
        batch, steps = 2, 12
    images, labels = data_of(64)
    order = np.random.default_rng(1).integers(0, 64, batch * steps + 1).astype(np.int32)
    rates = Schedule(0.2, 0.3).rates(steps + 1)
    results = []
    engine = make_engine(*spec)
    for cuts in ([steps + 1], [1, steps], [steps - 5, 1, 2, 3], [33, 33, 5] if steps == 70 else [7, 5, 1]):
        engine.set_parameters(init_parameters(3))
        engine.set_dataset(images, labels, placement)
        losses, done = [], 0
        for cut in cuts:
            part = slice(done, done + cut)
            samples = order[done * batch : (done + cut) * batch]
            losses.append(engine.train(samples, batch, rates[part])[0])
            done += cut
        assert done == steps + 1
        results.append((np.concatenate(losses), engine.parameters))
    for losses, parameters in results[1:]:
        assert losses.tobytes() == results[0][0].tobytes()
        for name, value in parameters.items():
            assert value.tobytes() == results[0][1][name].tobytes(), name
    engine.set_parameters(init_parameters(3))  # every rate counts: another one near the end changes the weights
    changed = rates.copy()
    changed[steps - 2] *= 1.001
    engine.train(order, batch, changed)
    assert any(value.tobytes() != results[0][1][name].tobytes() for name, value in engine.parameters.items())


@pytest.mark.parametrize("spec", engine_params(precisions=False))
def test_a_rate_of_its_own_for_each_step(spec, make_engine):
    """Steps with a rate of 0 between others change nothing; each other is the step that a call of its own makes.

    But for a rounding: `fused` takes the scales of fp16 values from a bound that knows the step before.
    """
    images, labels = data_of(16)
    order = np.arange(16, dtype=np.int32)
    one, other = make_engine(*spec), make_engine(*spec)
    for engine in (one, other):
        engine.set_parameters(init_parameters(3))
        engine.set_dataset(images, labels)
    one.train(np.concatenate([order, order, order]), 8, np.array([0.1, 0, 0, 0.02, 0, 0]))
    other.train(order[:8], 8, 0.1)
    other.train(order[8:], 8, 0.02)
    for name, value in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_rates_that_make_no_sense_are_refused(make_engine):
    engine = make_engine("cpu")
    images, labels = data_of(4)
    engine.set_dataset(images, labels)
    order = np.arange(4, dtype=np.int32)
    for rates in ([0.1], [0.1, 0.1, 0.1], [0.1, -1], [0.1, np.nan], [np.inf, 0.1], [[0.1, 0.1]]):
        with pytest.raises((ValueError, TypeError)):
            engine.train(order, 2, np.array(rates))


@pytest.mark.parametrize("spec", engine_params(precisions=False))
def test_initial_parameters_are_the_same_numbers(spec, make_engine):
    for seed in (0, 1, 12345678901234567890):
        engine = make_engine(*spec)
        engine.init_parameters(seed)
        for name, value in init_parameters(seed).items():
            assert np.array_equal(engine.parameters[name], value), (seed, name)


@pytest.mark.parametrize("spec", engine_params())
def test_parameters_survive_a_round_trip(spec, make_engine):
    rng = np.random.default_rng(9)
    engine = make_engine(*spec)
    want = {name: rng.standard_normal(value.shape).astype(np.float32) for name, value in engine.parameters.items()}
    for dtype in (np.float32, np.float64):
        engine.set_parameters({name: value.astype(dtype) for name, value in want.items()})
        got = engine.parameters
        for name, value in want.items():
            assert np.array_equal(got[name], value), name
            assert got[name].flags.writeable
    engine.init_parameters(0)
    for name, value in want.items():
        assert np.array_equal(got[name], value), "what was handed out changed with the engine"


@pytest.mark.parametrize("spec", engine_params())
def test_evaluation_on_the_engine(spec, make_engine):
    """`evaluate` counts what the scores say, whatever the chunks that they are asked for in."""
    count = 700 if spec[0] not in ("reference",) else 30
    images, labels = data_of(count)
    engine = make_engine(*spec)
    engine.init_parameters(1)
    engine.set_dataset(images, labels)
    engine.train(np.arange(16, dtype=np.int32), 8, 0.05)
    engine.compute_statistics()
    engine.set_evaluation_set(images, labels)
    correct, loss = engine.evaluate()
    chunk = 500  # libraries may choose their algorithm by the batch size, and Engine::do_evaluate takes this one
    scores = np.concatenate([engine.logits(images[first : first + chunk]) for first in range(0, count, chunk)])
    assert correct == (scores.argmax(axis=1) == labels).sum()
    top = scores.max(axis=1)
    want = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(count), labels]
    assert loss == pytest.approx(want.mean(), rel=1e-6)
    assert engine.evaluate() == (correct, loss)
    if spec[0] in ("fused", "cpu", "reference"):
        pieces = [engine.logits(images[first : first + 13]) for first in range(0, count, 13)]
        assert np.concatenate(pieces).tobytes() == scores.tobytes()


@pytest.mark.parametrize("spec", engine_params())
def test_scores_that_are_not_finite_are_wrong(spec, make_engine):
    """Weights so large that scores overflow: nothing is right, and the loss says so."""
    images, labels = data_of(20)
    engine = make_engine(*spec)
    weights = init_parameters(1)
    weights["fc2.bias"][:] = 3e38 if engine.dtype == np.float32 else 1.7e308
    weights["fc2.weight"][:] = weights["fc2.bias"][0]
    engine.set_parameters(weights)
    engine.set_dataset(images, labels)
    engine.compute_statistics()
    engine.set_evaluation_set(images, labels)
    correct, loss = engine.evaluate()
    assert correct == 0
    assert not np.isfinite(loss)
