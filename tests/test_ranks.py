"""Several ranks train one model: the same bits on every rank and by every transport, one engine's within its bounds.

Here the ranks are threads of this process; test_ranks_processes.py has real processes.
"""

import threading
import time

import numpy as np
import pytest
from cases import labels, noise, signed_weights, strokes

from mnist_cuda import _native
from mnist_cuda.engine import Engine, engines
from mnist_cuda.engine.tolerances import RANKS_APART, error_of, tolerance
from mnist_cuda.errors import RankLostError

IMAGES = 90
RATE = 1e6  # an update of this rate is the gradient, as far as float32 shows it


def on_all(communicators, work):
    """work(communicator) of each rank in a thread of its own; the results in the ranks' order."""
    results = [None] * len(communicators)

    def run(rank):
        try:
            results[rank] = work(communicators[rank])
        except Exception as error:
            results[rank] = error
            communicators[rank].leave(1, str(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(communicators))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def trained(communicator, order, batch, rate, *, threads=1, images=noise, engine=None, transport=None, count=IMAGES):
    """All that a training leaves: losses, hits, parameters, statistics, and the score of other images.

    The last two not of a step at RATE on a GPU: weights that grow that fast fit no fp16 term.
    """
    engine = engine or Engine("cpu", threads=threads)
    if communicator:
        engine.join(communicator, transport)
    engine.set_parameters(signed_weights())
    engine.set_dataset(images(count), labels(count))
    engine.set_evaluation_set(strokes(21), labels(21))
    losses, correct = engine.train(order, batch, rate)
    if np.max(rate) == RATE and engine.info.device == "cuda":
        return {"losses": losses, "correct": correct, **engine.parameters}
    engine.compute_statistics()
    return {"losses": losses, "correct": correct, **engine.parameters, **engine.statistics, "score": engine.evaluate()}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.isfinite(value).all()
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def shuffled(count):
    return np.random.default_rng(5).permutation(IMAGES).astype(np.int32)[:count]


@pytest.mark.parametrize(
    ("ranks", "batch", "before"),
    [*((ranks, batch, 0) for ranks in (2, 3, 5) for batch in (1, 2, 7, 64)), (2, 5, 16), (3, 2, 64), (5, 6, 7)],
)
def test_gradients_of_the_whole_batch(ranks, batch, before):
    """Against float64 under one engine's routing; with fewer images than ranks some have none.

    Also as the smaller last batch, after one of `before` images that moves nothing.
    """
    order, rates = shuffled(before + batch), np.array([0, RATE] if before else [RATE])
    results = on_all(
        _native.in_process_communicators(ranks),
        lambda communicator: trained(communicator, order, before or batch, rates),
    )
    for other in results[1:]:
        assert_same_bits(results[0], other)
    for name, error in errors_of_step(results[0], Engine("cpu"), Engine("reference"), order[before:]).items():
        assert error <= tolerance("cpu", "fp32", name, batch, "frozen"), name


class Recorded:
    """The native engine of an Engine: the first step takes so long, and `pieces` has the steps of each call."""

    def __init__(self, native, seconds):
        self.native, self.seconds, self.pieces = native, seconds, []

    def __getattr__(self, name):
        return getattr(self.native, name)

    def train(self, order, batch, rates):
        result = self.native.train(order, batch, rates)
        time.sleep(0 if self.pieces else self.seconds)  # after the step, in which the other ranks would wait as long
        self.pieces.append(len(rates))
        return result


def test_pieces_of_a_call_are_the_same_on_all_ranks():
    """Whatever time they take on each, and whatever it did before."""
    order = np.arange(9, dtype=np.int32)

    def work(communicator):
        engine = Engine("cpu", threads=1)
        engine.set_dataset(noise(IMAGES), labels(IMAGES))
        if communicator.rank == 0:
            engine.train(order, 1, 0.01)
        engine._native = Recorded(engine._native, 0.3 * communicator.rank)
        engine.join(communicator)
        try:
            engine.train(order, 1, 0.01)
        finally:
            communicator.leave(0, "the end")
        return engine._native.pieces

    first, second = on_all(_native.in_process_communicators(2), work)
    assert first == second
    assert len(first) > 1


def errors_of_step(result, one, oracle, order, count=IMAGES):
    """How far what a last step at RATE has left is from the oracle's, whose decisions are those of the engine `one`.

    Of the gradients of its batch `order`, and of the loss.
    """
    images, targets, weights = noise(count)[order], labels(count)[order], signed_weights()
    for engine in (one, oracle):
        engine.set_parameters(weights)
    want = oracle.probe(images, targets, routing=one.probe(images, targets).routing)
    assert result["correct"][-1] == want.correct
    gradients = {name: (weights[name] - result[name]) / RATE for name in want.gradients}
    errors = {name: error_of(gradient, want.gradients[name]) for name, gradient in gradients.items()}
    return errors | {"loss": abs(result["losses"][-1] - want.loss) / want.loss}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_training_beside_one_engines(ranks):
    """Five steps, of which the last is of a few images; threads change no bit, and a rank alone is an engine alone."""
    order, batch = shuffled(67), 16
    alone = trained(None, order, batch, 0.01, images=strokes)
    results = [
        on_all(
            _native.in_process_communicators(ranks),
            lambda communicator, threads=threads: trained(
                communicator, order, batch, 0.01, threads=threads, images=strokes
            ),
        )
        for threads in (1, 2)
    ]
    for other in [*results[0], *results[1]]:
        assert_same_bits(results[0][0], other)
    if ranks == 1:
        assert_same_bits(results[0][0], alone)
    for name, value in alone.items():
        assert error_of(np.array(results[0][0][name]), np.array(value)) <= RANKS_APART, name


@pytest.mark.parametrize("name", [row.name for row in engines() if not row.shares_batches and row.device == "cpu"])
def test_an_engine_that_shares_no_batch_says_so(name):
    with pytest.raises(ValueError, match=f"engine '{name}' shares no batch with other ranks"):
        Engine(name).join(_native.in_process_communicators(2)[0])


def test_a_rank_that_leaves_ends_the_others():
    ranks = _native.in_process_communicators(3)
    ranks[1].leave(5, "host memory ran out")
    with pytest.raises(RankLostError, match="rank 1: host memory ran out"):
        trained(ranks[0], shuffled(8), 8, 0.1)
    assert ranks[0].departure == (1, 5, "host memory ran out")
