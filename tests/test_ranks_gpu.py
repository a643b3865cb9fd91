"""Ranks on GPUs: float64's gradients, and the bits of shares in one process whatever brings the sums.

Ranks of one process reach each other through host memory; test_ranks_processes.py compares the other ways with that.
"""

from functools import cache

import numpy as np
import pytest
from cases import labels, noise, signed_weights, strokes
from conftest import require_gpus
from test_ranks import RATE, assert_same_bits, errors_of_step, on_all, trained

from mnist_cuda import _native
from mnist_cuda.engine import Engine, find_engine
from mnist_cuda.engine.tolerances import RANKS_BESIDE_ONE, TRAJECTORY, error_of, tolerance
from mnist_cuda.errors import UnavailableError

COUNT = 700
PRECISIONS = find_engine("fused").precisions
pytestmark = pytest.mark.gpu


def shuffled(count, seed=6):
    return np.random.default_rng(seed).permutation(COUNT).astype(np.int32)[:count]


@cache  # drawing them takes longer than a training
def bars(count):
    return strokes(count)


@pytest.fixture
def train(make_engine):
    """train(ranks, transport, precision, ...): the results of all ranks, threads with a GPU each or all with one."""

    def run(ranks, transport, precision, *arguments, one_gpu=False, **options):
        make_engine("fused", precision)  # or the reason why not

        def work(communicator):
            device = 0 if one_gpu else communicator.rank
            engine = Engine("fused", precision, device=device)
            return trained(communicator, *arguments, engine=engine, transport=transport, count=COUNT, **options)

        return on_all(_native.in_process_communicators(ranks), work)

    return run


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("ranks", "batch"), [(2, 1), (2, 7), (2, 64), (3, 2), (3, 100), (5, 31)])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_gradients_of_the_whole_batch(train, make_engine, precision, ranks, batch, before):
    """With fewer images than ranks some have none, and with 7 their shares differ; also as the smaller last batch.

    After one batch it is a piece of its own, after two the end of a piece.
    The routing is one engine's, which makes other sums of a batch than its shares: a near-tie may flip, but not in two
    batches of three.
    """
    one, oracle = make_engine("fused", precision), make_engine("naive", "fp64")
    steps = []
    for seed in range(3):
        order, rates = shuffled(133 * before + batch, seed), [*[0] * before, RATE]  # before it nothing moves
        results = train(ranks, "host", precision, order, 133 if before else batch, rates, one_gpu=True)
        for other in results[1:]:
            assert_same_bits(results[0], other)
        steps.append(errors_of_step(results[0], one, oracle, order[133 * before :], COUNT))
    for name in steps[0]:
        errors = sorted(step[name] for step in steps)
        assert errors[1] <= tolerance("fused", precision, name, batch, "frozen"), name
        assert name == "loss" or errors[2] <= tolerance("fused", precision, name, batch, "free").worst, name


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("batch", [16, 133, 265, 600])
def test_a_training_beside_one_engines(train, make_engine, precision, batch):
    """Steps of many sizes, the last of a few images; a rank alone is an engine alone, bit by bit.

    Two ranks round other sums than one, and many small steps drive both apart: where that passes the bound, float64's
    training says how far one engine's rounding alone leads.
    """
    order = shuffled(COUNT)
    alone = trained(None, order, batch, 0.01, images=bars, engine=make_engine("fused", precision), count=COUNT)
    (single,) = train(1, None, precision, order, batch, 0.01, images=bars)
    assert_same_bits(single, alone)
    results = train(2, "host", precision, order, batch, 0.01, images=bars, one_gpu=True)
    assert_same_bits(*results)
    bound = TRAJECTORY[precision]
    apart = [n for n in {*alone} - {"correct", "score"} if not error_of(results[0][n], alone[n]) <= bound]
    if apart:
        exact = trained(None, order, batch, 0.01, images=bars, engine=make_engine("naive", "fp64"), count=COUNT)
    for name in apart:
        own, error = error_of(alone[name], exact[name]), error_of(results[0][name], exact[name])
        assert error <= max(bound, RANKS_BESIDE_ONE * own), f"{name}: {error:.2e}, of one engine {own:.2e}"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_a_rank_did_before_is_no_matter(make_engine, precision):
    """A long call is made in pieces by the time that others took, and within one a step looks ahead to the next."""
    make_engine("fused", precision)
    order = shuffled(COUNT)

    def work(communicator):
        engine = Engine("fused", precision)
        if communicator.rank == 0:
            trained(None, order, 7, 0.01, images=bars, engine=engine, count=COUNT)
        return trained(communicator, order, 7, 0.01, images=bars, engine=engine, transport="host", count=COUNT)

    assert_same_bits(*on_all(_native.in_process_communicators(2), work))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_gpus_have_the_bits_of_shares_on_one(train, precision):
    require_gpus(2)
    for batch in (1, 16, 133, 600):
        order = shuffled(COUNT)[: 60 * batch]
        on_one, on_two = (
            train(2, "host", precision, order, batch, 0.01, images=bars, one_gpu=one_gpu) for one_gpu in (True, False)
        )
        for result in (on_one[1], *on_two):
            assert_same_bits(on_one[0], result)


def test_ranks_of_one_process_take_the_host_and_say_why(make_engine):
    make_engine("fused")

    def work(communicator):
        engine = Engine("fused")
        engine.join(communicator, "")
        return engine.transport

    for rank, text in enumerate(on_all(_native.in_process_communicators(2), work)):
        assert text == (
            f"host memory, which is slow (not by peers: rank {1 - rank} is a thread of the same process; "
            "not by nccl: rank 1 is a thread of the same process as rank 0)"
        )


@pytest.mark.parametrize("transport", ["peers", "nccl"])
def test_a_transport_that_is_not_there(make_engine, transport):
    make_engine("fused")

    def work(communicator):
        with pytest.raises(
            UnavailableError, match=f"^ranks cannot reach each other by {transport}: rank . is a thread"
        ):
            Engine("fused").join(communicator, transport)

    on_all(_native.in_process_communicators(2), work)


def test_what_ranks_cannot_do(make_engine):
    engine = make_engine("fused")

    def work(communicator):
        engine = Engine("fused")
        engine.join(communicator, "host")
        engine.set_parameters(signed_weights())
        engine.set_dataset(noise(8), labels(8), "host")
        with pytest.raises(ValueError, match=r"the data set is on the host, expected it in the GPU's memory"):
            engine.train(np.arange(8, dtype=np.int32), 8, 0.1)

    on_all(_native.in_process_communicators(2), work)
    assert engine.transport == ""
