"""Engines at sizes around every threshold of what they do, as they tell them, and at sizes far beyond.

On a GPU float64 is engine `naive`'s, which test_engines.py and the batches of copies here hold against the reference.
"""

import itertools
import math

import cases
import numpy as np
import pytest
from conformance import (
    A100,
    ALL,
    BY_ORACLE,
    BY_REFERENCE,
    FUSED,
    JUDGED,
    OLDER_GPUS,
    ON_GPU,
    ORACLE,
    assert_close,
    assert_gradients,
    assert_probe,
    assert_rows,
    assert_step,
    assert_update,
    doubles,
    parameter_hash,
    training_bits,
)
from conftest import engine_params

from mnist_cuda import memory
from mnist_cuda.engine.model import STATISTICS
from mnist_cuda.engine.tolerances import BEYOND_32_BITS, PLAIN_BATCH, WILD

FAR = 4229  # beyond the thresholds of engines that know none of theirs; a prime
RATE = 0.02


def sizes_of(engine):
    """Batch sizes in no order: around every threshold of the engine, and the smallest and a large one."""
    thresholds = engine.batch_thresholds()
    assert thresholds == sorted(set(thresholds))
    sizes = {1, 2, 3, 100, FAR} | {threshold + by for threshold in thresholds for by in (-1, 0)}
    return [int(size) for size in np.random.default_rng(1).permutation(sorted(sizes))]


@pytest.fixture(scope="session")
def images():
    """512 images of all kinds, to draw batches from."""
    return cases.mixed(512)


def weights_of(size):
    """Other weights for sizes that follow one another, so that nothing of those before may stay."""
    return cases.signed_weights(5 + size % 3)


def few_that_matter(size, weights, rng):
    """Weights under which every image counts as a 0, and labels that say otherwise of a few, the last among them.

    The gradients are those of these few, so that none of them can be left out or taken for another.
    """
    sure = {**weights, "fc2.bias": np.where(np.arange(10) == 0, 20.0, 0.0)}
    rows = np.unique([0, size - 1, *rng.integers(0, size, 3)])
    labels = np.zeros(size, np.uint8)
    labels[rows] = rng.integers(1, 10, len(rows))
    return sure, labels


def check_sizes(engine, oracle, spec, pool):
    for size in sizes_of(engine):
        check_size(engine, oracle, spec, pool, size)


def check_size(engine, oracle, spec, pool, size):
    """A step from every side: forward, gradients, an update, what follows it, and two steps in one call."""
    rng = np.random.default_rng(size)
    chosen, labels = rng.integers(0, len(pool), 2 * size), rng.integers(0, 10, 2 * size).astype(np.uint8)
    images, weights = pool[chosen], weights_of(size)
    first, second = slice(0, size), slice(size, 2 * size)

    def held(parameters, part, labels):
        probe = engine.probe(images[part], labels)
        oracle.set_parameters(parameters)
        return probe, oracle.probe(images[part], labels, routing=probe.routing)

    engine.set_parameters(weights)
    probe, expected = held(weights, first, labels[first])
    assert_probe(spec, probe, expected, size, WILD)
    assert probe.correct == (probe.logits.argmax(1) == labels[first]).sum()

    # In a library's 16 bits, and in its long sums, rounding drowns what a few images give.
    if engine.info.summation != "library" or (spec[1] == "fp32" and size <= PLAIN_BATCH):
        sure, few = few_that_matter(size, weights, rng)
        engine.set_parameters(sure)
        assert_gradients(spec, *held(sure, first, few), size, WILD)

    engine.set_parameters(weights)
    engine.set_dataset(images, labels)
    order = np.arange(2 * size)
    losses, correct = engine.train(order[first], size, RATE)
    assert (losses[0], correct[0]) == (probe.loss, probe.correct)
    assert_step(engine, weights, probe.gradients, RATE)
    between = doubles(engine.parameters)
    probe, expected = held(between, second, labels[second])
    assert_close(spec, "loss", size, probe.loss, expected.loss, slack=WILD)
    assert_gradients(spec, probe, expected, size, WILD)

    engine.set_parameters(weights)
    together = engine.train(order, size, RATE)
    assert (together[0][0], together[1][0]) == (losses[0], correct[0])
    assert (together[0][1], together[1][1]) == (probe.loss, probe.correct)
    assert_step(engine, between, probe.gradients, RATE)
    at_end = parameter_hash(engine)
    engine.set_parameters(weights)
    engine.train(order[first], size, RATE)
    engine.train(order[second], size, RATE)
    assert parameter_hash(engine) == at_end, "two calls give other bits than one"


@BY_ORACLE
def test_every_size(make_engine, images, spec):
    check_sizes(make_engine(*spec), make_engine(*ORACLE), spec, images)


@FUSED
def test_every_size_of_an_older_gpu(make_engine, images, spec):
    """An A100's multiprocessors and shared memory, and none of Hopper's kernels."""
    engine = make_engine(*spec, limits=A100)
    assert engine.batch_thresholds()
    check_sizes(engine, make_engine(*ORACLE), spec, images)


@FUSED
@pytest.mark.parametrize("gpu", ["rtx4060", "rtx4090"])
def test_every_size_in_little_shared_memory(make_engine, images, spec, gpu):
    check_sizes(make_engine(*spec, limits=OLDER_GPUS[gpu]), make_engine(*ORACLE), spec, images)


# ---- batches of copies: the reference needs to see an image only once ------------------------------------------------

DISTINCT = 24


def copies(count):
    """An order of `count` samples, a multiple of DISTINCT, in which each of so many images is as often."""
    return np.random.default_rng(count).permutation(np.arange(count) % DISTINCT)


def distinct_case():
    """DISTINCT images, their labels, and weights."""
    return cases.mixed(DISTINCT), cases.labels(DISTINCT), cases.signed_weights()


def expected_of(engine, reference, images, labels, weights):
    """The reference's step under the decisions of the engine, which keeps the weights."""
    engine.set_parameters(weights)
    reference.set_parameters(weights)
    return reference.probe(images, labels, routing=engine.probe(images, labels).routing)


@BY_REFERENCE
def test_batch_of_copies(make_engine, spec):
    """It has the loss and the gradients of its images. On both sides of every threshold."""
    engine, distinct, labels, weights = make_engine(*spec), *distinct_case()
    expected = expected_of(engine, make_engine("reference"), distinct, labels, weights)
    far = FAR if engine.info.device == "cuda" else 1
    ends = {threshold - threshold % -DISTINCT for threshold in (*engine.batch_thresholds(), far)}
    for count in sorted(ends | {end - DISTINCT for end in ends if end > DISTINCT}):
        order = copies(count)
        engine.set_parameters(weights)
        engine.set_dataset(distinct[order], labels[order])
        losses, correct = engine.train(np.arange(count), count, 1.0)
        assert_close(spec, "loss", count, losses[0], expected.loss)
        assert correct[0] == count // DISTINCT * expected.correct
        assert_update(spec, engine, weights, expected.gradients, 1, count)


@JUDGED
def test_logits_of_many_images(make_engine, spec):
    """More than an engine takes at once, three times, and a rest."""
    engine, reference = make_engine(*spec), make_engine("reference")
    distinct, weights = cases.mixed(DISTINCT), cases.signed_weights()
    for each in (engine, reference):
        each.set_parameters(weights)
    reference.set_dataset(distinct, cases.labels(DISTINCT))
    reference.compute_statistics()
    engine.set_statistics(reference.statistics)
    order = copies(3 * engine.evaluation_chunk() // DISTINCT * DISTINCT + DISTINCT)
    for count in (len(order), engine.evaluation_chunk(), engine.evaluation_chunk() + 1):
        found = engine.logits(distinct[order[:count]])
        assert_rows(spec, "logits", count, found, reference.logits(distinct)[order[:count]])
    assert_rows(
        spec, "logits", len(order), engine.logits(distinct[order], "batch"), reference.logits(distinct, "batch")[order]
    )


@ALL
def test_statistics_of_many_images(make_engine, spec):
    """Of more than an engine takes at once, three times, and a rest; kept where it trains, and by the host.

    From dark to bright: the statistics of what is taken at once are far from those of all.
    """
    engine, reference = make_engine(*spec), make_engine("reference")
    distinct, labels, weights = cases.mixed(DISTINCT), cases.labels(DISTINCT), cases.signed_weights()
    reference.set_parameters(weights)
    reference.set_dataset(distinct, labels)
    reference.compute_statistics()
    expected = reference.statistics
    order = copies(math.ceil((3 * engine.evaluation_chunk() + 1) / DISTINCT) * DISTINCT)
    order = order[np.argsort(distinct.mean((1, 2))[order], kind="stable")]
    for placement in ("device", "host") if engine.info.device == "cuda" else ("host",):
        engine.set_parameters(weights)
        engine.set_dataset(distinct[order], labels[order], placement)
        engine.compute_statistics()
        for tensor in STATISTICS:
            assert_close(spec, tensor.name, len(order), engine.statistics[tensor.name], expected[tensor.name])


# ---- offsets beyond 32 bits ------------------------------------------------------------------------------------------

MANY = DISTINCT * 230_000  # images, whose bytes pass 2**32 and whose moments in `fused` pass 2**31 bytes
# Images of a batch. `fused` keeps 32 * 14 * 16 values of each in its first layer, which pass 2**31, and twice as many
# in its second, which pass 2**32; the others keep 32 * 28 * 28, which pass 2**31.
LARGE, LARGE_UNFUSED = DISTINCT * 12_496, DISTINCT * 3_600


def require_memory_for_many():
    need = 3 * MANY * 784  # an engine copies them, and may do so on the way
    there = memory.available()
    if there is not None and there < need:
        pytest.skip(f"{MANY} images need {need / 1e9:.0f} GB of memory, and {there / 1e9:.0f} GB are free")


@pytest.mark.parametrize("spec", engine_params(precisions=False, without=("reference",)))
def test_images_beyond_32_bits(make_engine, spec):
    """Steps on images from the front, the middle and the far end of a large data set: the same bits."""
    engine = make_engine(*spec)
    require_memory_for_many()
    places, few = (0, MANY // 2, MANY - DISTINCT), (cases.mixed(DISTINCT), cases.labels(DISTINCT))
    data = np.zeros((MANY, 28, 28), np.uint8), np.zeros(MANY, np.uint8)  # pages that nothing is written to take no time
    for place, (array, values) in itertools.product(places, zip(data, few, strict=True)):
        array[place : place + DISTINCT] = values
    for placement in ("device", "host") if engine.info.device == "cuda" else ("host",):
        engine.set_dataset(*data, placement)
        order = np.random.default_rng(3).integers(0, DISTINCT, 33)
        found = {training_bits(engine, place + order, 8, 0.01, cases.signed_weights()) for place in places}
        assert len(found) == 1, placement


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "host"])
def test_passes_beyond_32_bits(make_engine, placement):
    """Statistics, hits and scores of many images are those of the few that they are copies of."""
    engine, reference = make_engine("fused"), make_engine("reference")
    require_memory_for_many()
    few = cases.mixed(DISTINCT), cases.labels(DISTINCT)
    many_images = np.tile(few[0], (MANY // DISTINCT, 1, 1)), np.tile(few[1], MANY // DISTINCT)
    for each, data in (reference, few), (engine, many_images):
        each.set_parameters(cases.signed_weights())
        each.set_dataset(*data, placement)
        each.compute_statistics()
    spec = "fused", engine.precision
    for name, value in engine.statistics.items():
        assert_close(spec, name, MANY, value, reference.statistics[name])
    engine.set_evaluation_set(*few)
    of_few, loss_of_few = engine.evaluate()
    engine.set_evaluation_set(*many_images)
    correct, loss = engine.evaluate()
    assert correct == MANY // DISTINCT * of_few
    assert_close(spec, "loss", MANY, loss, loss_of_few)
    scores = engine.logits(many_images[0]).reshape(-1, DISTINCT, 10)
    assert (scores == engine.logits(few[0])).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "spec", [param for param in engine_params(without=("cudnn",)) if param.marks and param.values[0][1] != "fp64"]
)
def test_activations_beyond_32_bits(make_engine, spec):
    """A batch of copies: scores of its images and, where sums do not lose too much over so many, their gradients.

    cuDNN takes no tensor of so many values and says so.
    """
    engine, distinct, labels, weights = make_engine(*spec), *distinct_case()
    expected = expected_of(engine, make_engine("reference"), distinct, labels, weights)
    repeats = (LARGE if spec[0] == "fused" else LARGE_UNFUSED) // DISTINCT
    count = repeats * DISTINCT
    images = np.tile(distinct, (repeats, 1, 1))
    assert_rows(spec, "logits", count, engine.logits(images, "batch"), np.tile(expected.logits, (repeats, 1)), WILD)
    engine.set_dataset(images, np.tile(labels, repeats))
    losses, correct = engine.train(np.arange(count), count, 1.0)
    assert_close(spec, "loss", count, losses[0], expected.loss, slack=WILD)
    assert correct[0] == repeats * expected.correct
    assert all(np.isfinite(value).all() for value in engine.parameters.values())
    if engine.info.summation == "partial":
        assert_update(spec, engine, weights, expected.gradients, 1, count, BEYOND_32_BITS)


# ---- many steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", engine_params(without=("reference",)))
def test_long_call(make_engine, spec):
    """131 steps and a rest, in one call, in two and in 132: the same losses, hits and bits."""
    images, labels = cases.mixed(40), cases.labels(40)
    order = np.random.default_rng(2).integers(0, 40, 131 * 3 + 2)
    engine = make_engine(*spec)
    engine.set_dataset(images, labels)

    def run(ends):
        engine.set_parameters(cases.signed_weights())
        calls = [engine.train(order[begin:end], 3, 0.01) for begin, end in zip([0, *ends], [*ends, None], strict=True)]
        return *(np.concatenate(parts).tolist() for parts in zip(*calls, strict=True)), parameter_hash(engine)

    together = run([])
    assert len(together[0]) == 132
    assert np.isfinite(together[0]).all()
    assert run([64 * 3]) == together
    assert run(range(3, 132 * 3, 3)) == together


# Data sets and batches in an order that comes back to each of them: what is kept for one must not serve another.
MOVES = [
    (data, placement, size)
    for data, size in (("few", 8), ("many", 8), ("few", 6), ("many", 20), ("few", 8))
    for placement in ("host", "device", "host", "device")
]


@JUDGED
def test_data_move_to_and_fro(make_engine, spec):
    """From the host to the device and back, other data, other batch sizes: the bits of an engine that saw no other."""
    sets = {"few": (cases.mixed(24), cases.labels(24)), "many": (cases.strokes(60), cases.labels(60))}

    def run(engine, data, placement, size):
        engine.set_parameters(cases.signed_weights())
        engine.set_dataset(*sets[data], placement)
        order = np.random.default_rng(size).integers(0, len(sets[data][1]), 3 * size + 1)
        found = training_bits(engine, order, size, 0.01)
        engine.compute_statistics()
        return found, {name: value.tobytes() for name, value in engine.statistics.items()}

    alone = {
        (data, size): run(make_engine(*spec), data, "device", size) for data, size in {(d, s) for d, _, s in MOVES}
    }
    engine = make_engine(*spec)
    for k, (data, placement, size) in enumerate(MOVES):
        assert run(engine, data, placement, size) == alone[data, size], f"{data} on the {placement}, batch {size}"
        if k == len(MOVES) // 2:
            engine.probe(*sets["many"])  # more images than any batch: arrays move


@ON_GPU
@pytest.mark.parametrize(("large", "small"), [(192, 160), (257, 256), (385, 384)])
def test_a_smaller_batch_is_cut_finer(make_engine, spec, large, small):
    """What was reserved for a larger batch has room for a smaller one, which may be cut into more pieces."""
    images, labels = cases.mixed(large), cases.labels(large)

    def run(engine, sizes):
        engine.set_dataset(images, labels)
        for size in sizes:
            found = training_bits(engine, np.arange(size), size, 0.01, cases.signed_weights())
        return found

    assert run(make_engine(*spec), (large, small)) == run(make_engine(*spec), (small,))


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [param for param in engine_params() if param.marks])
@pytest.mark.parametrize("size", [1, 64, 133, 1057, FAR])
def test_fed_from_the_host(make_engine, images, spec, size):
    """Ten times what an engine queues from the host's memory at once: the same bits as from the GPU's."""
    steps = 10 * min(32, max(1, 8192 // size)) + 1 if spec[0] == "fused" else 11
    labels = cases.labels(len(images))
    order = np.random.default_rng(size).integers(0, len(images), steps * size - size // 2)
    engine = make_engine(*spec)
    results = []
    for placement in ("device", "host"):
        engine.set_parameters(cases.initial_weights())
        engine.set_dataset(images, labels, placement)
        results.append(training_bits(engine, order, size, 0.01))
    assert np.isfinite(results[0][0]).all()
    assert results[0] == results[1]
