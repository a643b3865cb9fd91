"""The clock: what it counts, its statistics, its blocks."""

import time

import numpy as np
import pytest

from mnist_cuda.engine import timing
from mnist_cuda.engine.timing import BLOCK_SECONDS, WARM_UP_SECONDS, Measurement, TrainingClock, summarise


def test_summary():
    summary = summarise([float(v) for v in range(101)])
    assert summary.as_dict() == {"mean": 50, "median": 50, "p5": 5, "p95": 95, "min": 0, "count": 101}


def test_training_clock_leaves_the_warm_up_out():
    clock = TrainingClock()
    assert np.isnan(clock.recent()[0])
    clock.add(1, 1.0)  # warm-up
    assert clock.recent() == (1e6, 1)
    clock.add(10, 0.001)
    assert clock.recent() == (pytest.approx(100), 10)  # rather fewer than the warm-up too
    for _ in range(29):
        clock.add(10, 0.001)
    assert clock.steps == 301
    assert clock.seconds == pytest.approx(1.03)
    assert clock.recent() == (pytest.approx(100), 100)
    assert clock.recent(95) == (pytest.approx(100), 100)  # whole blocks
    assert clock.summary().count == 30
    assert clock.summary().median == pytest.approx(100)
    assert clock.summary(first_block=21).count == 10


def test_recent_weighs_blocks_by_their_steps():
    clock = TrainingClock()
    for steps, seconds in ((1, 1), (90, 90e-6), (10, 1010e-6)):
        clock.add(steps, seconds)
    assert clock.recent() == (pytest.approx(11), 100)


class Competitor:
    """Takes exactly `seconds` a step, on a clock of its own."""

    def __init__(self, seconds):
        self.seconds, self.calls = seconds, []

    def __call__(self, steps):
        self.calls.append(steps)
        return self.seconds * steps


@pytest.mark.parametrize("seconds", [20e-6, 1e-3, 0.04, 0.7, 9.0])
def test_measurement_finds_a_block_that_is_long_enough(seconds):
    run = Competitor(seconds)
    measurement = Measurement(run)
    measurement.warm_up()
    warm_up = sum(run.calls) * seconds
    assert WARM_UP_SECONDS <= warm_up <= max(2 * WARM_UP_SECONDS, seconds)
    assert measurement.warm_up_steps == sum(run.calls)
    measurement.block()
    measurement.block()
    assert run.calls[-1] == run.calls[-2] == measurement.steps_per_block
    assert max(BLOCK_SECONDS, seconds) <= run.calls[-1] * seconds <= max(0.2, seconds)
    assert measurement.samples == pytest.approx([1e6 * seconds] * 2)
    assert measurement.seconds == pytest.approx(sum(run.calls) * seconds)


def test_blocks_that_became_too_short_are_not_kept():
    run = Competitor(1e-3)
    measurement = Measurement(run)
    measurement.warm_up()
    measurement.block()
    run.seconds = 1e-4
    for _ in range(6):
        measurement.block()
    assert measurement.samples == pytest.approx([100] * len(measurement.samples))
    assert len(measurement.samples) >= 2
    assert measurement.steps_per_block * 1e-4 >= BLOCK_SECONDS


class SpinningEngine:
    """Spins 20 ms a step and knows how long it really took."""

    def train(self, order, batch_size, lr):
        steps = -(-len(order) // batch_size)
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < 0.02 * steps:
            pass
        self.elapsed = elapsed
        return np.zeros(steps), np.zeros(steps, np.int32)


def test_a_spin_of_known_length_is_measured_within_three_percent():
    engine = SpinningEngine()
    steps = timing.time_steps(engine, np.zeros(64 * 5, np.int32), 64, 0.1)
    assert len(steps.losses) == 5
    assert engine.elapsed <= steps.seconds <= 1.03 * engine.elapsed
