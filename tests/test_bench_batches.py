"""`mnist-cuda bench --all-batches`: which sizes, what an image costs in them, what is called a rise."""

import json

import numpy as np
import pytest
from tiny import prints, tiny_dataset

from mnist_cuda import cli
from mnist_cuda.bench import batches
from mnist_cuda.bench.batches import Cost, batch_sizes, measure, rises
from mnist_cuda.engine import Engine
from mnist_cuda.engine.timing import Steps, summarise
from mnist_cuda.errors import OutOfMemoryError

pytestmark = pytest.mark.usefixtures("tiny")


def test_sizes_are_a_grid_and_both_sides_of_each_threshold():
    assert batch_sizes([], 16, 1) == [1, 2, 4, 8, 16]
    assert batch_sizes([], 20, 2) == [1, 2, 3, 4, 6, 8, 11, 16, 20]
    assert batch_sizes([1, 7, 20, 21], 20, 1) == [1, 2, 4, 6, 7, 8, 16, 19, 20]


def test_a_rise_is_over_15_percent_an_image():
    costs = [Cost(size, summarise([us])) for size, us in ((10, 10), (11, 12.6), (12, 13.8), (24, 55.2))]
    assert rises(costs) == [(costs[2], costs[3])]


def test_microseconds_are_those_of_the_steps(monkeypatch):
    """Each call takes 7 us a step, the first ones, which are not to count, a second more."""
    calls = []

    def steps(engine, order, batch_size, rate):
        calls.append(len(order) // batch_size)
        assert order.min() >= 0
        assert order.max() < engine.dataset_size
        return Steps(np.zeros(0), np.zeros(0, np.int32), 7e-6 * calls[-1] + (len(calls) < 2))

    monkeypatch.setattr(batches, "time_steps", steps)
    engine = Engine("cpu", threads=1)
    data = tiny_dataset()
    engine.set_dataset(data.train_images, data.train_labels)
    cost = measure(engine, 4)
    assert cost.us.median == pytest.approx(7)
    assert cost.an_image() == pytest.approx(7 / 4)
    assert calls[4:] == [int(np.ceil(batches.BLOCK_SECONDS / 7e-6))] * (2 + batches.BLOCKS)  # two to warm up


def test_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(batches, "BLOCK_SECONDS", 1e-4)
    words = ["bench", "--all-batches", "--engines", "cpu", "--threads", "1", "--per-octave", "1"]
    lines = prints(capsys, *words, "--json", str(tmp_path / "b.json")).splitlines()
    assert lines[1] == "cpu, fp32"
    record = json.loads((tmp_path / "b.json").read_text())
    sizes = [row["batch_size"] for row in record["rows"]]
    assert sizes == batch_sizes(Engine("cpu").batch_thresholds(), 35, 1)
    assert sizes[-1] == 35
    assert all(row["us"]["median"] > 0 and row["us"]["count"] == batches.BLOCKS for row in record["rows"])
    assert [int(line.split()[0]) for line in lines if line.split()[:1] and line.split()[0].isdecimal()] == sizes


def test_what_has_no_room_is_named_and_the_rest_kept(monkeypatch, capsys, tmp_path):
    def train(engine, batch_size):
        if batch_size > most:
            raise OutOfMemoryError("a step needs 9 GB")
        return Cost(batch_size, summarise([1.0]))

    monkeypatch.setattr(batches, "measure", train)
    words = ["bench", "--all-batches", "--engines", "cpu", "--per-octave", "1", "--json", str(tmp_path / "b.json")]
    most = 8
    assert cli.main(words) == 0
    fault = "cpu, fp32: none of 16 images or more: a step needs 9 GB"
    assert f"WARNING: {fault}\n" in capsys.readouterr().err
    record = json.loads((tmp_path / "b.json").read_text())
    assert [row["batch_size"] for row in record["rows"]] == [1, 2, 4, 8]
    assert record["faults"] == [fault]
    most = 0
    assert cli.main(words) == OutOfMemoryError.exit_code
