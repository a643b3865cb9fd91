"""`mnist-cuda bench time-to-accuracy`: budgets and recipes, what is trained on and scored by, what the result is."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tiny import said, tiny_dataset

from mnist_cuda.bench import time_to_accuracy
from mnist_cuda.bench.time_to_accuracy import (
    SELECTION_SEED,
    Budget,
    EngineTrainee,
    Recipe,
    Result,
    Run,
    choose,
    order_of,
    parse_budgets,
    parse_peaks,
)
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.engine.timing import time_steps
from mnist_cuda.errors import UsageError
from mnist_cuda.run.evaluation import evaluate
from mnist_cuda.run.schedule import Schedule
from mnist_cuda.run.training import epoch_order

pytestmark = pytest.mark.usefixtures("tiny")


def run(capsys, *argv):
    return said(capsys, "bench", "time-to-accuracy", "--engine", "cpu", "--threads", "1", *argv)


def recorded(capsys, *argv):
    """The exit code, stdout and the record."""
    code, out, _ = run(capsys, *argv, "--json", "record.json")
    return code, out, json.loads(Path("record.json").read_text())


def test_budgets_and_recipes():
    assert parse_budgets(["192x3", "64x2"]) == [Budget(192, 3), Budget(64, 2)]
    assert str(Recipe(Budget(192, 3), "triangle:0.2", 0.5)) == "192x3 triangle:0.2 0.5"
    for text in ("192", "x3", "0x3", "64x0", "64x2x3", "64x-1"):
        with pytest.raises(UsageError, match=f"--budgets has '{text}', expected BATCHxEPOCHS"):
            parse_budgets([text])
    for text in ("0", "-1", "nan", "inf", "fast"):
        with pytest.raises(UsageError, match=f"--peaks has '{text}'"):
            parse_peaks([text])
    order = order_of(Budget(8, 2), 3, 35)
    assert order.tolist() == [*epoch_order(3, 1, 35)[:32], *epoch_order(3, 2, 35)[:32]]


def test_what_a_result_says():
    runs = [Run(k, a, 0.03 + 0.01 * k, 0.05) for k, a in enumerate((0.98, 0.99, 0.992))]
    result = Result("x", runs, Recipe(Budget(8, 1), "linear", 0.1))
    assert (result.median(), result.reached(0.99), result.train_seconds()) == (0.99, 2, 0.04)
    spread = np.std([0.98, 0.99, 0.992], ddof=1)
    assert result.interval() == pytest.approx(1.96 * spread / 3**0.5)
    worse = Result("x", [Run(0, 0.98, 1, 1)], result.recipe)
    assert choose([worse, result]) is result
    assert np.isnan(worse.interval())
    assert json.dumps(worse.as_json(0.99), allow_nan=False)


def test_the_test_set_takes_no_part_in_the_choice_of_a_recipe(capsys, monkeypatch):
    """Candidates train on what is not held out, are scored by what is, and share no seed with the final runs."""
    seen, scored = [], []
    set_dataset, set_evaluation_set = Engine.set_dataset, Engine.set_evaluation_set
    monkeypatch.setattr(
        Engine, "set_dataset", lambda e, images, *rest: (seen.append(images), set_dataset(e, images, *rest))
    )
    monkeypatch.setattr(
        Engine,
        "set_evaluation_set",
        lambda e, images, labels: (scored.append(images), set_evaluation_set(e, images, labels)),
    )
    options = ["--budgets", "5x1", "10x2", "--schedules", "linear,constant", "--peaks", "0.05", "0.1"]
    counts = ["--seeds", 3, "--selection-seeds", 2, "--hold-out", 5, "--target", 0]
    code, out, record = recorded(capsys, *options, *counts)
    assert code == 0, out

    data = tiny_dataset()
    shuffled = epoch_order(0, 0, 35)
    np.testing.assert_array_equal(seen[0], data.train_images[np.sort(shuffled[:30])])
    np.testing.assert_array_equal(seen[1], data.train_images)
    np.testing.assert_array_equal(scored[0], data.train_images[np.sort(shuffled[30:])])
    np.testing.assert_array_equal(scored[1], data.test_images)
    assert (len(seen), len(scored)) == (2, 2)

    assert {"clock", "reached", "selection", "commit", "command", "machine"} <= record.keys()
    assert len(record["selection"]) == 2 * 2 * 2
    assert {r["seed"] for s in record["selection"] for r in s["runs"]} == {SELECTION_SEED, SELECTION_SEED + 1}
    (final,) = record["rows"]  # every accuracy is at a target of 0, so the fastest budget is enough
    assert [r["seed"] for r in final["runs"]] == [0, 1, 2]
    same = [s for s in record["selection"] if s["recipe"]["batch_size"] == final["recipe"]["batch_size"]]
    assert final["recipe"] == max(same, key=lambda s: s["mean_accuracy"])["recipe"]
    assert "by 5 held-out training images" in " ".join(out.split())


def test_a_run_is_the_training_that_its_recipe_says(capsys):
    """The same training by hand gives the same accuracies."""
    options = ["--budgets", "10x2", "--schedules", "triangle:0.4", "--peaks", "0.1", "--hold-out", 5]
    code, _, record = recorded(capsys, *options, "--seeds", 2, "--selection-seeds", 1, "--target", 1)
    assert code == 0
    (row,) = record["rows"]
    data, engine = tiny_dataset(), Engine("cpu", threads=1)
    engine.set_dataset(data.train_images, data.train_labels)
    rates = Schedule(0.1, 0.4).rates(6)
    for seed, one in enumerate(row["runs"]):
        engine.set_parameters(init_parameters(seed))
        for epoch in (1, 2):
            engine.train(epoch_order(seed, epoch, 35)[:30], 10, rates[3 * (epoch - 1) : 3 * epoch])
        engine.compute_statistics()
        assert one["accuracy"] == evaluate(engine, data.test_images, data.test_labels).accuracy
        assert 0 < one["train_seconds"] < one["total_seconds"]


def test_budgets_are_tried_in_rising_time_until_one_reaches_the_target(capsys):
    options = ["--budgets", "5x9", "30x1", "--schedules", "linear", "--peaks", "0.1", "--hold-out", 5, "--target", 60]
    code, _, record = recorded(capsys, *options, "--seeds", 2, "--selection-seeds", 1)
    assert [row["recipe"]["batch_size"] for row in record["rows"]] == [30, 5]
    assert [row["median_accuracy"] >= 0.6 for row in record["rows"]] == [False, True]
    assert (code, record["reached"]) == (0, True)


@pytest.mark.parametrize(
    ("budgets", "percent", "frozen"), [(["5x9", "30x1"], 0, 30), (["5x9", "30x1"], 100, 5), (["30x1"], 100, None)]
)
def test_held_out_images_can_choose_the_budget_too(budgets, percent, frozen, capsys):
    """The shortest that is good enough on them, whatever it does on the test images; no other is tested."""
    options = ["--budgets", *budgets, "--schedules", "linear", "--peaks", "0.1", "--hold-out", 5, "--target", 60]
    options += ["--seeds", 2, "--selection-seeds", 1, "--freeze-at", percent]
    code, out, record = recorded(capsys, *options)
    assert [row["recipe"]["batch_size"] for row in record["rows"]] == [frozen] * (frozen is not None)
    assert code == (0 if frozen == 5 else 1)
    assert record["settings"]["freeze_at"] == percent
    assert f"the shortest budget with a median at {percent:g} % of the held-out images" in " ".join(out.split())
    assert ("none was frozen" in out) == (frozen is None)


def test_it_says_first_how_long_it_will_take(capsys, monkeypatch):
    """By steps as slow as they are said to be: 30 of 35 images in 6 steps of 5, all of them in 7."""
    train, printed = EngineTrainee.train, []

    def watched(trainee, recipe, seed):
        printed.append(capsys.readouterr().out)
        return train(trainee, recipe, seed)

    def slow(engine, order, batch, rates):
        return dataclasses.replace(time_steps(engine, order, batch, rates), seconds=10.0 * len(rates))

    monkeypatch.setattr(EngineTrainee, "train", watched)
    monkeypatch.setattr(time_to_accuracy, "time_steps", slow)
    options = ["--budgets", "5x2", "10x1", "--schedules", "linear", "--peaks", "0.1,0.2", "--hold-out", 5]
    assert run(capsys, *options, "--seeds", 2, "--selection-seeds", 3, "--target", 0)[0] == 0
    # A training takes 2 x 6 steps of 10 s in one budget and 3 in the other; 2 recipes with 4 trainings each, then 3.
    assert "it takes about 20:00 to choose the recipes and at most 8:45 to train by them\n" in printed[0]


def test_a_target_out_of_reach(capsys):
    options = ["--budgets", "10x1", "--schedules", "constant", "--peaks", "1e-9", "--hold-out", 5]
    code, out, _ = run(capsys, *options, "--seeds", 2, "--selection-seeds", 1)
    assert code == 1
    assert "0 of 2" in out
    assert "no budget brought half of its seeds to 99 %" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--budgets", "36x1"], "the 35 training images less 5 held out do not fill a batch of 36"),
        (["--schedules", "cosine"], "--schedule is 'cosine'"),
    ],
)
def test_usage_errors(capsys, argv, words):
    code, out, err = run(capsys, "--hold-out", 5, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_peer_trains_by_the_same_recipe(capsys, peer):
    """PyTorch in float32 from the same weights, in the same order and at the same rates: nearly the same accuracy."""
    options = ["--budgets", "5x6", "--schedules", "triangle:0.4", "--peaks", "0.1", "--hold-out", 5, "--target", 1]
    options += ["--seeds", 2, "--selection-seeds", 1, "--peers", "torch:eager:NCHW", "--peer-python", peer.command[0]]
    code, out, record = recorded(capsys, *options)
    assert code == 0, out
    ours, theirs = record["rows"]
    assert theirs["competitor"] == "torch eager NCHW, fp32"
    for one, other in zip(ours["runs"], theirs["runs"], strict=True):
        assert other["seed"] == one["seed"]
        assert abs(other["accuracy"] - one["accuracy"]) <= 0.1  # two of 20 images
    assert ours["median_accuracy"] > 0.5
