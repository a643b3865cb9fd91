"""`mnist-cuda bench time-to-accuracy`: recipes, what is trained on and scored by, and what counts as reached."""

import json

import numpy as np
import pytest
from tiny import tiny_dataset

from mnist_cuda import cli
from mnist_cuda.bench import time_to_accuracy
from mnist_cuda.bench.time_to_accuracy import SELECTION_SEED, Recipe, Result, Run, choose, parse_recipes
from mnist_cuda.data import dataset
from mnist_cuda.engine import Engine
from mnist_cuda.errors import UsageError
from mnist_cuda.evaluate import evaluate
from mnist_cuda.model import init_parameters
from mnist_cuda.train import epoch_order


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(dataset, "load", tiny_dataset)


def run(capsys, *argv):
    code = cli.main(["bench", "time-to-accuracy", "--engine", "cpu", "--threads", "1", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_recipes():
    constant, falling = parse_recipes(["256:0.1", "128:0.2:4"])
    assert [constant.rate(epoch) for epoch in (1, 2, 9)] == [0.1] * 3
    assert [falling.rate(epoch) for epoch in (1, 2, 3, 4)] == pytest.approx([0.2, 0.15, 0.1, 0.05])
    assert [r.epochs(10) for r in (constant, falling)] == [10, 4]
    assert [str(r) for r in (constant, falling)] == ["256:0.1", "128:0.2:4"]
    for text in ("256", "256:fast", "0:0.1", "64:nan", "64:0.1:-1", "64:0.1:2:3", "64:0"):
        with pytest.raises(UsageError, match=f"--recipes has '{text}', expected BATCH:RATE"):
            parse_recipes([text])


def result_of(recipe, *seconds):
    """A result whose runs took these times, None for never."""
    runs = [
        Run(seed, [0.5, 0.9], [s or 1.0, 1.0], [0.25, 0.25], 1 if s else None)
        for seed, s in enumerate(seconds)
    ]  # fmt: skip
    return Result(recipe, runs)


def test_a_run_that_never_gets_there_is_infinitely_long():
    result = result_of(Recipe(8, 0.1), 3.0, None, 2.0)
    assert (result.median(), result.reached()) == (3.0, 2)
    record = result.as_json()
    assert [record[f"seconds_{name}"] for name in ("median", "min", "max")] == [3.0, 2.0, None]
    assert record["seconds_median_with_evaluation"] == 3.25
    assert record["runs"][1]["seconds"] is None
    assert json.dumps(record, allow_nan=False)


def test_the_smallest_median_wins():
    fast, slow, never = (Recipe(batch, 0.1) for batch in (1, 2, 3))
    results = [result_of(slow, 3.0, 3.0), result_of(never, 1.0, None), result_of(fast, 2.0, 2.5)]
    assert choose(results).recipe == fast
    assert choose([result_of(slow, None, None), result_of(never, 1.0, None)]).recipe == never


def test_the_test_set_takes_no_part_in_the_choice(capsys, tmp_path, monkeypatch):
    """Candidates train on what is not held out, are scored by what is, and share no seed with the final runs."""
    seen, scored = [], []
    set_dataset = Engine.set_dataset
    monkeypatch.setattr(
        Engine, "set_dataset", lambda e, images, *rest: (seen.append(images), set_dataset(e, images, *rest))
    )

    def remember(engine, images, labels):
        scored.append(images)
        return evaluate(engine, images, labels)

    monkeypatch.setattr(time_to_accuracy, "evaluate", remember)
    file = tmp_path / "t.json"
    recipes = ["--recipes", "5:0.05", "5:0.1,10:0.1:2"]
    counts = ["--epochs", 2, "--seeds", 3, "--selection-seeds", 2, "--hold-out", 5, "--target", 0]
    code, out, err = run(capsys, *recipes, *counts, "--json", file)
    assert (code, err) == (0, ""), out

    data = tiny_dataset()
    shuffled = epoch_order(0, 0, 35)
    np.testing.assert_array_equal(seen[0], data.train_images[np.sort(shuffled[:30])])
    np.testing.assert_array_equal(seen[1], data.train_images)
    held_out, of_test = data.train_images[np.sort(shuffled[30:])], data.test_images
    assert len(scored) == 3 * (2 + 2 * 2) + 2 + 3 * 2  # warm-up and runs, of each candidate and of the chosen one
    assert all((images == held_out).all() for images in scored[: 3 * 6])
    assert all((images == of_test).all() for images in scored[3 * 6 :])

    record = json.loads(file.read_text())
    assert {"clock", "chosen", "selection", "commit", "command", "machine"} <= record.keys()
    assert [r["recipe"]["lr"] for r in record["selection"]] == [0.05, 0.1, 0.1]
    assert {r["seed"] for s in record["selection"] for r in s["runs"]} == {SELECTION_SEED, SELECTION_SEED + 1}
    (final,) = record["rows"]
    assert final["recipe"] == record["chosen"]
    assert [r["seed"] for r in final["runs"]] == [0, 1, 2]
    assert "by 5 held-out training images, after training on the other 30" in out


def test_the_epochs_are_those_of_the_recipe(capsys, tmp_path):
    """One recipe needs no choice; the same training by hand gives the same accuracies."""
    file = tmp_path / "t.json"
    code, out, _ = run(capsys, "--recipes", "10:0.1:2", "--seeds", 1, "--target", 60, "--json", file)
    assert code == 0
    assert "held-out" not in out
    record = json.loads(file.read_text())
    assert record["selection"] == []
    (one,) = record["rows"][0]["runs"]
    data, engine = tiny_dataset(), Engine("cpu", threads=1)
    engine.set_parameters(init_parameters(0))
    engine.set_dataset(data.train_images, data.train_labels)
    for epoch, lr in ((1, 0.1), (2, 0.05)):
        engine.train(epoch_order(0, epoch, 35)[:30], 10, lr)
        engine.compute_statistics()
        assert one["accuracy"][epoch - 1] == evaluate(engine, data.test_images, data.test_labels).accuracy
    first = 1 + next(k for k, a in enumerate(one["accuracy"]) if a >= 0.6)
    assert one["reached"] == first
    assert one["seconds"] == pytest.approx(sum(one["train_seconds"][:first]))


def test_a_target_out_of_reach(capsys):
    code, out, err = run(capsys, "--recipes", "10:1e-9,10:5000", "--seeds", 2, "--epochs", 1, "--hold-out", 5)
    assert code == 1
    assert "0 of 2" in out
    assert "WARNING: no recipe brought half of its seeds to the target; 10:" in err
    assert "never" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--recipes", "36:0.1"], "the 35 training images do not fill a batch of 36"),
        (["--recipes", "8:0.1,9:0.1", "--hold-out", "30"], "the 35 training images less 30 held out do not fill"),
        (["--precision", "bf16"], "has no precision bf16"),
    ],
)
def test_usage_errors(capsys, argv, words):
    code, out, err = run(capsys, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
