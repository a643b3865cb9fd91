"""Models side by side: each is bit for bit the one that an engine with its share of the multiprocessors makes alone."""

import os

import cases
import numpy as np
import pytest
from tiny import tiny_dataset

from mnist_cuda import _native
from mnist_cuda.run.training import DIVERGED_LOSS, epoch_order

pytestmark = pytest.mark.gpu
PRECISIONS = ("bf16", "tf32", "fp32")
STEPS = 13  # more than one graph, the last ones of few steps
# Models, images of a batch, multiprocessors of a model: tiles that are not full, several of them, several rounds.
CASES = [(1, 3, 2), (3, 5, 4), (16, 64, 8), (5, 65, 4), (3, 100, 33), (2, 300, 66)]


@pytest.fixture(scope="module")
def data():
    """Images enough for the largest batch."""
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (400, 28, 28), np.uint8), rng.integers(0, 10, 400, np.uint8)


@pytest.fixture
def engine_with(make_engine, data):
    """engine_with(precision, multiprocessors): an Engine of fused with the images."""

    def make(precision, multiprocessors=0, **options):
        engine = make_engine("fused", precision, multiprocessors=multiprocessors, **options)
        engine.set_dataset(*data)
        engine.set_evaluation_set(*data)
        return engine

    return make


def asked_of(models, batch, steps=STEPS):
    """Orders (models, steps * batch) and rates (models, steps), each model's and each step's own."""
    images = -(-steps * batch // 400)
    orders = [np.concatenate([epoch_order(model, epoch, 400) for epoch in range(images)]) for model in range(models)]
    rates = np.linspace(0.01, 0.1, models * steps).reshape(models, steps)
    return np.stack(orders)[:, : steps * batch], rates


# Times the weights of models in turn. Bounds of what becomes fp16 are up to a thousand times too large, so what these
# come from differs more than that between neighbours: the gradient behind fc1 4000 times, conv2's weights, too.
SIZES = {
    "conv1.weight": (1, 4, 1 / 4),
    "bn1.weight": (1, 4, 1 / 4),
    "conv2.weight": (1, 1 / 64, 64),
    "bn2.weight": (1, 2, 1 / 2),
    "fc1.weight": (1, 1 / 32, 2),
    "fc2.weight": (1, 1 / 32, 2),
}


def begin(engine, model):
    """A start of each model's own, with batch norm scales of other signs."""
    weights = cases.signed_weights(model)
    engine.set_parameters({name: value * SIZES.get(name, (1,) * 3)[model % 3] for name, value in weights.items()})


def begun(engine, models, batch, multiprocessors):
    """A fleet whose models have begun."""
    fleet = engine.fleet(models, batch, multiprocessors)
    for model in range(models):
        begin(engine, model)
        fleet.store(model)
    return fleet


def alone(engine, model, order, batch, rates):
    """What the engine makes of a model, with its evaluation."""
    begin(engine, model)
    losses, correct = engine.train(order, batch, rates)
    return losses, correct, *holds(engine)


def assert_as_alone(single, engine, fleet, losses, correct, orders, batch, rates):
    """Each model of a fleet that has trained so is the one that `single` makes."""
    for model, (order, rate) in enumerate(zip(orders, rates, strict=True)):
        want = alone(single, model, order, batch, rate)
        assert losses[model].tobytes() == want[0].tobytes()
        assert (correct[model] == want[1]).all()
        fleet.load(model)
        assert engine.statistics is None
        assert holds(engine) == want[2:]


def holds(engine):
    """What an engine holds, in bytes, and what it scores."""
    parameters = {name: value.tobytes() for name, value in engine.parameters.items()}
    engine.compute_statistics()
    statistics = {name: value.tobytes() for name, value in engine.statistics.items()}
    return parameters, statistics, engine.evaluate()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("models", "batch", "multiprocessors"), CASES)
def test_each_model_is_the_one_of_an_engine_alone(models, batch, multiprocessors, precision, engine_with):
    single, engine = engine_with(precision, multiprocessors), engine_with(precision)
    orders, rates = asked_of(models, batch)
    fleet = begun(engine, models, batch, multiprocessors)
    parts = [fleet.train(orders[:, : 5 * batch], rates[:, :5]), fleet.train(orders[:, 5 * batch :], rates[:, 5:])]
    losses, correct = (np.concatenate(values, axis=1) for values in zip(*parts, strict=True))
    assert (losses < DIVERGED_LOSS).all()
    assert_as_alone(single, engine, fleet, losses, correct, orders, batch, rates)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_bit_of_one_model_is_seen(precision, engine_with):
    """The comparison above would notice it, and it is no matter of the models beside it."""
    engine = engine_with(precision)
    orders, rates = asked_of(3, 64)
    found = []
    for changed in (False, True):
        fleet = engine.fleet(3, 64, 8)
        for model in range(3):
            begin(engine, model)
            if changed and model == 1:
                parameters = engine.parameters
                parameters["fc1.weight"].reshape(-1).view(np.uint32)[7] ^= 1 << 16  # lower ones an update rounds off
                engine.set_parameters(parameters)
            fleet.store(model)
        fleet.train(orders, rates)
        found.append([])
        for model in range(3):
            fleet.load(model)
            found[-1].append(holds(engine)[0])
    assert [a == b for a, b in zip(*found, strict=True)] == [True, False, True]


def test_a_model_that_diverges_leaves_the_others_alone(engine_with):
    engine = engine_with("bf16")
    orders, rates = asked_of(3, 64)
    found = []
    for rate in (rates[1], np.full(STEPS, 1e30)):
        rates[1] = rate
        fleet = begun(engine, 3, 64, 8)
        losses, _ = fleet.train(orders, rates)
        fleet.load(2)
        found.append((losses, holds(engine)[0]))
    assert not (found[1][0][1] < DIVERGED_LOSS).all()
    assert (found[0][0][::2] == found[1][0][::2]).all()
    assert found[0][1] == found[1][1]


def test_every_step_checked_gives_the_same_bits(engine_with):
    orders, rates = asked_of(2, 64, 3)
    losses = []
    for check in (False, True):
        engine = engine_with("bf16", check_every_step=check)
        losses.append(begun(engine, 2, 64, 8).train(orders, rates)[0].tobytes())
    assert losses[0] == losses[1]


def test_a_share_decides_the_bits(engine_with):
    """Otherwise the comparisons above would compare nothing but the batch."""
    orders, rates = asked_of(1, 64)
    parameters = [alone(engine_with("bf16", share), 0, orders[0], 64, rates[0])[2] for share in (0, 8)]
    assert parameters[0] != parameters[1]


def test_what_a_fleet_refuses(engine_with):
    engine = engine_with("bf16")
    for asked, words in {
        (0, 64, 8): "fleet: 0 models, expected at least 1",
        (2, 0, 8): "fleet: batch size is 0, expected 1 to 2147483647",
        (2, 8, 8): "fleet: batch size is 8, expected more than the 8 multiprocessors of a model",
        (2, 64, 1): "multiprocessors is 1, expected on this GPU 2 to ",
        (2, 64, 10**6): "multiprocessors is 1000000, expected on this GPU 2 to ",
    }.items():
        with pytest.raises(ValueError, match=words):
            engine.fleet(*asked)
    if _native.gpus()[0]["compute_capability"] == "9.0" and "MNIST_CUDA_FUSED_LIMITS" not in os.environ:
        with pytest.raises(ValueError, match="fleet: batch size 128 takes kernels for one model alone on 64 multiproc"):
            engine.fleet(2, 128, 64)
    fleet = engine.fleet(2, 64, 8)
    orders, rates = asked_of(2, 64, 3)
    with pytest.raises(ValueError, match="store: model is 2, expected 0 to 1"):
        fleet.store(2)
    with pytest.raises(ValueError, match="load: model is -1, expected 0 to 1"):
        fleet.load(-1)
    with pytest.raises(ValueError, match="train: 191 images, expected whole batches of 64"):
        fleet.train(orders[:1, :191], rates[:1])
    with pytest.raises(ValueError, match="train: 6 learning rates, expected one for each of 4 steps"):
        fleet.train(orders[:, :128], rates)
    with pytest.raises(ValueError, match="expected 0 to 399"):
        fleet.train(np.full_like(orders, 400), rates)
    images, labels = tiny_dataset().train_images, tiny_dataset().train_labels
    engine.set_dataset(images, labels, "host")
    with pytest.raises(ValueError, match="train: the data set is on the host, expected it in"):
        fleet.train(np.zeros_like(orders), rates)


OLDER = {"A100": (108, 166912), "L4": (58, 101376), "RTX 4060": (24, 101376)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("gpu", OLDER)
@pytest.mark.parametrize(("models", "batch", "multiprocessors"), [(3, 64, 4), (2, 65, 4), (2, 100, 8), (2, 300, 19)])
def test_models_side_by_side_before_hopper(models, batch, multiprocessors, gpu, precision, engine_with):
    """Under the limits of an older GPU: its kernels, in the sizes that fit."""
    single = engine_with(precision, multiprocessors, limits=OLDER[gpu])
    engine = engine_with(precision, limits=OLDER[gpu])
    orders, rates = asked_of(models, batch, 5)
    fleet = begun(engine, models, batch, multiprocessors)
    assert_as_alone(single, engine, fleet, *fleet.train(orders, rates), orders, batch, rates)


def test_a_share_that_a_smaller_gpu_cannot_give(make_engine):
    """A model in fp32 needs four multiprocessors where shared memory is short, and one of a sweep would have two."""
    engine = make_engine("fused", "fp32", limits=OLDER["L4"])
    with pytest.raises(ValueError, match="multiprocessors is 2, expected on this GPU 4 to 58"):
        engine.fleet(2, 32, 2)
