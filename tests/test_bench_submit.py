"""`bench time-to-accuracy --submit`: an honest program passes, and programs that cheat do not."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, peer_python
from tiny import said, tiny_dataset

from mnist_cuda.bench import submit as bench_submit
from mnist_cuda.bench.competitors import has_module
from mnist_cuda.bench.time_to_accuracy import Run, Runs
from mnist_cuda.data.catalogue import DATASETS

# Nearest mean image, which learns the tiny data set at once.
PROGRAM = """
import sys, time
sys.path[:0] = [{peers!r}, {tests!r}]
import numpy as np
import submission

class Honest:
    def setup(self, images, test_images):
        return {{"means": "1.0"}}

    def prepare(self, seed, images):
        self.images = images.reshape(len(images), -1).astype(float)

    def train(self, labels):
        self.means = np.stack([self.images[labels == k].mean(0) for k in range(10)])

    def classify(self, images):
        flat = images.reshape(len(images), -1).astype(float)
        return ((flat[:, None] - self.means) ** 2).sum(-1).argmin(1)

{cheat}
submission.serve({name}())
"""

CHEATS = {
    "Honest": "",
    # Has the public test labels, in the order of the file.
    "Remembers": """
from tiny import tiny_dataset

class Remembers(Honest):
    def classify(self, images):
        return tiny_dataset().test_labels
""",
    # Trains once, where nobody counts it, and keeps the model.
    "Keeps": """
class Keeps(Honest):
    def train(self, labels):
        if not hasattr(self, "means"):
            super().train(labels)
""",
    # Says that it has trained, and trains while it classifies.
    "Late": """
class Late(Honest):
    def train(self, labels):
        self.labels = labels

    def classify(self, images):
        time.sleep(0.25)
        super().train(self.labels)
        return super().classify(images)
""",
}

pytestmark = pytest.mark.usefixtures("tiny")


def program(folder, name, code=None):
    """A file to submit: one of CHEATS, or other code in its place."""
    file = folder / f"{name.lower()}.py"
    paths = {"peers": str(ROOT / "mnist_cuda" / "peers"), "tests": str(ROOT / "tests")}
    file.write_text(code or PROGRAM.format(cheat=CHEATS[name], name=name, **paths))
    return file


def submit(capsys, file, *argv, python=sys.executable):
    options = ["--submit", file, "--peer-python", python, "--seeds", 5, *argv]
    return said(capsys, "bench", "time-to-accuracy", *options)


def judged(capsys, file, *argv, python=sys.executable):
    """The exit code, stdout, the record and its row."""
    code, out, err = submit(capsys, file, *argv, "--json", "record.json", python=python)
    assert err == ""
    record = json.loads(Path("record.json").read_text())
    (row,) = record["rows"]
    return code, out, record, row


def test_an_honest_program(capsys, tmp_path):
    code, out, record, row = judged(capsys, program(tmp_path, "Honest"))
    assert code == 0
    assert "median of 5 runs at 99 %: reached in" in out
    assert "every run at 99 %: reached in" in out
    assert "(5 of 5)" in out
    assert "no entry: that takes 200 seeds" in out
    assert [run["seed"] for run in row["runs"]] == [0, 1, 2, 3, 4]
    assert (row["competitor"], row["median_accuracy"], row["reached"]) == ("honest.py", 1.0, 5)
    assert all(0 < run["train_seconds"] < run["total_seconds"] for run in row["runs"])
    assert record["versions_of_program"] == {"means": "1.0"}
    assert record["clock"] == bench_submit.CLOCK
    assert int(record["entropy"]) > 0


@pytest.mark.parametrize("name", ["Remembers", "Keeps"])
def test_what_is_remembered_is_a_guess(name, capsys, tmp_path):
    """Labels by position, and the model of an earlier seed: right for one image in ten."""
    code, out, _, row = judged(capsys, program(tmp_path, name), "--seeds", 20)
    assert code == 1
    assert "median of 20 runs at 99 %: not reached" in out
    assert "every run at 99 %: not reached (0 of 20)" in out
    assert 0.01 < row["mean_accuracy"] < 0.25


def test_training_while_it_classifies_counts(capsys, tmp_path):
    code, out, _, row = judged(capsys, program(tmp_path, "Late"))
    assert code == 0
    assert row["train_seconds_median"] < 0.2
    assert row["total_seconds_median"] > 0.25
    reached = out.partition("median of 5 runs at 99 %: reached in ")[2]
    assert float(reached.split()[0]) > 250


def test_the_two_criteria():
    runs = [Run(k, accuracy, 0.03, 0.04) for k, accuracy in enumerate((0.98, 0.99, 0.995))]
    by_median, by_every = bench_submit.verdicts(Runs("x", runs), 0.99)
    assert by_median == "median of 3 runs at 99 %: reached in 40.0 ms (99.000 %)"
    assert by_every == "every run at 99 %: not reached (2 of 3)"
    by_median, by_every = bench_submit.verdicts(Runs("x", runs), 0.991)
    assert by_median == "median of 3 runs at 99.1 %: not reached (99.000 %)"
    assert bench_submit.verdicts(Runs("x", runs[1:]), 0.99)[1] == "every run at 99 %: reached in 40.0 ms (2 of 2)"


def test_what_the_program_sees_and_when(capsys, tmp_path):
    """Labels come under the clock, test images after the training; in another order and naming for each seed."""
    log = tmp_path / "log.jsonl"
    code = f"""
import json, sys
import numpy as np
for line in sys.stdin:
    command = json.loads(line)
    if "images" in command and isinstance(command["images"], str):
        command["images"] = np.load(command["images"]).tolist()
    print(json.dumps(command), file=open({str(log)!r}, "a"))
    answer = {{"ok": True}}
    if command["cmd"] == "classify":
        answer["classes"] = "0" * len(command["images"])
    print(json.dumps(answer), flush=True)
"""
    assert submit(capsys, program(tmp_path, "logs", code), "--seeds", 2, "--target", 0)[0] == 0
    setup, *runs = [json.loads(line) for line in log.read_text().splitlines()]
    assert setup == {"cmd": "setup", "images": 35, "test_images": 20}
    assert [command["cmd"] for command in runs] == 3 * ["prepare", "train", "classify"]
    assert [command["seed"] for command in runs[::3]] == [2, 0, 1]  # the first does not count
    data = tiny_dataset()
    seen = set()
    for prepare, train, classify in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
        assert prepare.keys() == {"cmd", "seed", "images"}
        assert classify.keys() == {"cmd", "images"}
        names = {}
        for image, digit in zip(prepare["images"], train["labels"], strict=True):
            (at,) = np.flatnonzero((data.train_images == np.uint8(image)).all((1, 2)))
            assert names.setdefault(int(data.train_labels[at]), digit) == digit
        assert sorted(names.values()) == list("0123456789")
        assert np.array_equal(np.sort(np.uint8(prepare["images"]), 0), np.sort(data.train_images, 0))
        assert np.array_equal(np.sort(np.uint8(classify["images"]), 0), np.sort(data.test_images, 0))
        seen |= {train["labels"], json.dumps(prepare["images"]), json.dumps(classify["images"]), str(names)}
    assert len(seen) == 3 * 4


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('{"classes": "012"}', "its classes are '012', expected a text of 20 digits"),
        ('{"classes": [1, 2]}', "its classes are '[1, 2]'"),
        ("{}", "its classes are 'None'"),
        ('{"classes": "%s"}' % ("\\u0663" * 20), "expected a text of 20 digits"),
        ('{"error": "out of luck"}', "out of luck"),
    ],
)
def test_a_broken_protocol_is_one_line(answer, words, capsys, tmp_path):
    code = f"""
import sys
for line in sys.stdin:
    print({answer!r} if "classify" in line else '{{"ok": true}}', flush=True)
"""
    file = program(tmp_path, "breaks", code)
    exit_code, _, err = submit(capsys, file)
    assert (exit_code, err.count("\n")) == (1, 1)
    assert f"{file}: " in err
    assert words in err


def test_an_executable_of_any_language(capsys, tmp_path):
    file = tmp_path / "program"
    file.write_text(f"#!/bin/sh\nexec {sys.executable} {program(tmp_path, 'Honest')}\n")
    code, _, err = submit(capsys, file)
    assert (code, err.count("\n")) == (2, 1)
    assert "expected a Python program that ends in .py, or an executable file" in err
    file.chmod(0o755)
    assert submit(capsys, file)[0] == 0


def test_usage_errors(capsys, tmp_path):
    file = program(tmp_path, "Honest")
    for argv, code, words in (
        (["--submit", tmp_path / "none.py"], 2, "there is no such file"),
        (["--submit", file, "--peer-python", tmp_path / "python"], 4, "to run"),
        (["--submit", file, "--peaks", "0.1", "--engine", "cpu"], 2, "--submit does not use --engine"),
    ):
        found, out, err = said(capsys, "bench", "time-to-accuracy", *argv)
        assert (found, out, err.count("\n")) == (code, "", 1)
        assert words in err


def test_an_entry_takes_two_hundred_seeds_of_mnist(capsys, tmp_path, monkeypatch):
    file = program(tmp_path, "Honest")
    monkeypatch.setattr(bench_submit, "RULE_SEEDS", 2)
    _, out, _ = said(capsys, "bench", "time-to-accuracy", "--submit", file, "--peer-python", sys.executable)
    assert "median of 2 runs" in out
    assert "no entry: that takes MNIST\n" in out
    monkeypatch.setattr(bench_submit, "DATASETS", {"mnist": replace(DATASETS["mnist"], digest=tiny_dataset().digest)})
    assert "no entry" not in submit(capsys, file)[1]


def test_the_recipe(monkeypatch):
    """Every image comes before one comes again, and the rate of 64 images rises to its peak and falls to nothing."""
    monkeypatch.syspath_prepend(str(ROOT / "mnist_cuda" / "peers"))
    submission = pytest.importorskip("submission")
    recipe = submission.Recipe(((64, 50), (256, 20)), peak=0.1, filters=0.5)
    orders, rates = recipe.orders(3, 1000), recipe.rates()
    assert [order.shape for order in orders] == [(50, 64), (20, 256)]
    shown = np.concatenate([order.ravel() for order in orders])
    assert all(len(set(shown[k : k + 1000])) == 1000 for k in (0, 1000, 7000))
    assert not np.array_equal(shown[:1000], shown[1000:2000])
    of_64 = np.concatenate([rates[0], rates[1] / 2])
    top = int(of_64.argmax())
    assert 0.095 < of_64[top] <= 0.1
    assert (np.diff(of_64[: top + 1]) > 0).all()
    assert (np.diff(of_64[top:]) < 0).all()
    assert top * 64 / 8320 <= submission.RISE <= (top + 1) * 64 / 8320
    assert 0 < of_64[-1] < 0.02
    weights, plain = recipe.weights(5), submission.baseline.initial_weights(5)
    assert np.array_equal(weights["conv2.weight"], plain["conv2.weight"] / 2)
    assert np.array_equal(weights["fc1.weight"], plain["fc1.weight"])


# ---- the examples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine", "pytorch", "jax"])
def test_the_examples_are_submissions(name, capsys, tmp_path, monkeypatch):
    """By a recipe for the tiny data set, which they learn; a guess is right for one image in ten."""
    monkeypatch.setenv("MNIST_TINY_IMAGES", "200")
    python, module = sys.executable, {"pytorch": "torch"}.get(name, name)
    if name != "engine":
        python = peer_python()
        if not has_module(python, module):
            pytest.skip(f"no {module} by {python}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'mnist_cuda' / 'peers'}")
    code = (ROOT / "examples" / "submissions" / f"{name}_submission.py").read_text()
    imported, found, rest = code.partition("import submission\n")
    assert found
    recipe = "submission.RECIPE = submission.Recipe(((10, 40), (20, 20)), peak=0.15, filters=0.5)\n"
    file = program(tmp_path, "example", imported + found + recipe + rest)
    code, out, _, row = judged(capsys, file, "--seeds", 2, "--target", 70, python=python)
    assert code == 0, out
    assert row["mean_accuracy"] >= 0.7
