"""Evaluation: accuracy and loss, the two kinds of statistics, and the command on a saved model."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import engine_params
from tiny import prints, tiny_dataset

from mnist_cuda import cli, dataset_of, train
from mnist_cuda.commands.predict import _report
from mnist_cuda.data import dataset
from mnist_cuda.data.digit import Digit
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.errors import CheckpointError, DataError
from mnist_cuda.run import confusion
from mnist_cuda.run.checkpoint import save_model
from mnist_cuda.run.confusion import answers_of
from mnist_cuda.run.evaluation import BATCH_SIZE, Predictions, engine_of, evaluate, evaluate_again, predict
from mnist_cuda.run.results import Model
from mnist_cuda.terminal import console


class FixedScores(Engine):
    """An engine whose logits are given."""

    def __init__(self, scores):
        self.scores, self.calls, self.given = scores, [], 0

    def logits(self, images, batch_norm):
        self.calls.append((len(images), batch_norm))
        self.given += len(images)
        return self.scores[self.given - len(images) : self.given]


def test_a_model_of_few_classes_has_a_row_for_each(tmp_path, monkeypatch, capsys):
    """With its name, in the table and in the answers; test images of other classes have rows, too."""
    monkeypatch.chdir(tmp_path)
    rng, names = np.random.default_rng(0), ("bag", "boot", "coat", "dress", "shirt")
    images, labels = rng.integers(0, 256, (60, 28, 28), np.uint8), (np.arange(60) % 5).astype(np.uint8)
    data = replace(dataset_of(images, labels, images, labels), classes=names)
    result = train(data, epochs=1, batch_size=10, engine="cpu", out="runs/five")
    answers = predict("five", images)
    assert answers.names == result.model.names == names
    assert answers.probabilities.shape == (60, 5)
    np.testing.assert_allclose(answers.probabilities.sum(axis=1), 1)
    assert answers.labels == [names[k] for k in answers.classes]
    assert Predictions(np.full((1, 10), np.nan), names).labels == ["-"]
    tempting = np.zeros((1, 10))
    tempting[0, 7] = 9
    assert Predictions(tempting, names).classes.tolist() == [0]
    columns, rows = confusion.table(answers_of(result.engine, images, labels, names=result.model.names))
    assert columns == ("class", "0", "1", "2", "3", "4", "errors", "of", "error %")
    assert [row[0] for row in rows] == [f"{k} {name}" for k, name in enumerate(names)]
    _, rows = confusion.table(answers_of(result.engine, images, labels + 3, names=result.model.names))
    assert [row[0] for row in rows][5:] == ["5", "6", "7"]


def test_accuracy_and_loss_over_several_calls():
    count = 2 * BATCH_SIZE + 7
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(0, 3, (count, 10)), rng.integers(0, 10, count).astype(np.uint8)
    engine = FixedScores(scores)
    result = evaluate(engine, np.zeros((count, 28, 28), np.uint8), labels, "batch")
    assert engine.calls == [(BATCH_SIZE, "batch"), (BATCH_SIZE, "batch"), (7, "batch")]
    assert result.correct == (scores.argmax(1) == labels).sum()
    assert result.accuracy == result.correct / count
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert result.loss == pytest.approx(-np.log(probabilities[np.arange(count), labels]).mean(), rel=1e-12)


def test_large_scores_do_not_overflow():
    scores = np.full((2, 10), -1e4)
    scores[:, 3] = 1e4
    result = evaluate(FixedScores(scores), np.zeros((2, 28, 28), np.uint8), np.array([3, 4], np.uint8), "batch")
    assert result.loss == pytest.approx(1e4)


def test_scores_that_are_not_finite_are_wrong():
    scores = np.zeros((2, 10))
    scores[0] = np.nan
    scores[1, 0] = 1
    result = evaluate(FixedScores(scores), np.zeros((2, 28, 28), np.uint8), np.zeros(2, np.uint8), "batch")
    assert (result.correct, result.count) == (1, 2)
    assert np.isnan(result.loss)


CHANGES = {  # of parameters that have statistics
    "set": lambda engine: engine.set_parameters(init_parameters(6)),
    "set as float": lambda engine: engine.set_parameters(
        {name: value.astype(np.float32) for name, value in init_parameters(6).items()}
    ),
    "the same set": lambda engine: engine.set_parameters(engine.parameters),
    "drawn": lambda engine: engine.init_parameters(6),
    "the same drawn": lambda engine: engine.init_parameters(5),
    "a step": lambda engine: engine.train(np.arange(5), 5, 0.05),
    "a step without a rate": lambda engine: engine.train(np.arange(5), 5, 0.0),
    "many steps": lambda engine: engine.train(np.arange(10), 2, 0.05),
}


@pytest.mark.parametrize("spec", engine_params())
def test_statistics_are_those_of_the_parameters(spec, make_engine):
    """Whatever changes parameters takes the statistics away, and those computed then are what a new engine computes."""
    data = tiny_dataset()
    images, labels = data.train_images[:10], data.train_labels[:10]

    def engine_with(draw):
        engine = make_engine(*spec)
        draw(engine)
        engine.set_dataset(images, labels)
        engine.set_evaluation_set(images, labels)
        return engine

    engine = engine_with(lambda engine: engine.init_parameters(5))
    engine.compute_statistics()
    given = {name: value / 2 for name, value in engine.statistics.items()}
    engine.set_statistics(given)
    for name, value in engine.statistics.items():
        np.testing.assert_array_equal(value, given[name])
    for what, change in CHANGES.items():
        engine.init_parameters(5)
        engine.compute_statistics()
        assert engine.statistics is not None
        change(engine)
        assert engine.statistics is None, what
        for use in (engine.evaluate, lambda: engine.logits(images)):
            with pytest.raises(ValueError, match="no population statistics"):
                use()
        with pytest.raises(CheckpointError, match="no population statistics"):
            predict(engine, images)
        engine.compute_statistics()
        if engine.info.device == "cuda":  # its bits may depend on the step before; conformance.py has bounds for them
            continue
        now = engine.parameters
        fresh = engine_with(lambda engine, now=now: engine.set_parameters(now))
        fresh.compute_statistics()
        for name, value in fresh.statistics.items():
            assert value.tobytes() == engine.statistics[name].tobytes(), (what, name)
        assert fresh.logits(images).tobytes() == engine.logits(images).tobytes(), what
        assert fresh.evaluate() == engine.evaluate(), what


@pytest.mark.parametrize(("seconds", "said"), [(0.0, True), (1e9, False)])
def test_an_evaluation_that_takes_long_begins_with_an_estimate(model, monkeypatch, capsys, seconds, said):
    monkeypatch.setattr(console, "LONG", seconds)
    assert ("it takes about " in prints(capsys, "evaluate", model(True), "--engine", "cpu")) == said


@pytest.mark.parametrize("spec", engine_params())
def test_of_equal_scores_the_first_class_is_taken(spec, make_engine, tmp_path):
    """By every way to an answer, for any two classes that lead alike, and for all ten."""
    data, engine = tiny_dataset(), make_engine(*spec)
    images, labels = data.test_images[:10], data.test_labels[:10]
    engine.set_dataset(images, labels)
    engine.set_evaluation_set(images, labels)
    weights = init_parameters(0) | {"fc2.weight": np.zeros((10, 128))}
    for leading in ([*range(10)], [0, 1], [3, 4], [8, 9], [1, 8]):
        first, bias = leading[0], np.zeros(10)
        bias[leading] = 1
        right = labels == first
        by_class = tuple(np.bincount(labels[right], minlength=10).tolist())
        engine.set_parameters(weights | {"fc2.bias": bias})
        assert engine.probe(images, labels).correct == right.sum()
        _, correct = engine.train(np.arange(len(labels)), 7, 0.0)
        assert correct.tolist() == [right[at : at + 7].sum() for at in range(0, len(labels), 7)]
        assert evaluate(engine, images, labels, "batch").correct_by_class == by_class
        engine.compute_statistics()
        assert evaluate_again(engine).correct_by_class == by_class
        answers = predict(engine, images)
        assert len(np.unique(answers.logits[:, leading])) == 1, "they are equal"
        assert set(answers.classes) == {first}
        found = answers_of(engine, images, labels)
        assert found.matrix[:, first].tolist() == found.counts.tolist()
        digit = Digit(images[0], (0, 0, 28, 28), False, "")
        report = _report(tmp_path, [digit], [(answers.probabilities[0], None)], [str(k) for k in range(10)])
        assert report["digit"] == first


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_of_equal_values_in_a_window_the_first_is_taken(name):
    """Layer 1 passes pixels of three kinds on as they are, or turned about; layer 2 sees images without a pattern."""
    rng, channels = np.random.default_rng(4), np.arange(32)
    images = rng.choice(np.array([0, 130, 255], np.uint8), (12, 28, 28))
    images[8:] = np.array([20, 90, 160, 250], np.uint8)[:, None, None]
    labels = np.arange(12, dtype=np.uint8) % 10
    weights, turned = init_parameters(2), np.where(channels % 2, -1.0, 1.0)
    weights["conv1.weight"] = np.zeros((32, 1, 3, 3))
    weights["conv1.weight"][:, 0, 1, 1] = turned
    weights["bn1.weight"] = np.where(channels // 2 % 2, -1.0, 1.0)
    engine = Engine(name)
    engine.set_parameters(weights)
    probe = engine.probe(images, labels)
    values = (images - images.mean())[:, None] * (turned * weights["bn1.weight"])[:, None, None]
    windows = values.reshape(12, 32, 14, 2, 14, 2).swapaxes(3, 4).reshape(12, 32, 14, 14, 4)
    assert (np.sort(windows)[..., -1] == np.sort(windows)[..., -2]).mean() > 0.5
    np.testing.assert_array_equal(probe.routing[0], np.where(windows.max(-1) > 0, windows.argmax(-1), 4))
    inner = probe.routing[1][8:, :, 1:6, 1:6]
    assert set(np.unique(inner)) == {0, 4}
    reference = Engine("reference")  # where the gradient goes, too
    reference.set_parameters(weights)
    expected = reference.probe(images, labels, routing=probe.routing)
    for tensor, gradient in expected.gradients.items():
        error = np.linalg.norm(probe.gradients[tensor] - gradient)
        assert error <= 1e-4 * np.linalg.norm(gradient), tensor


@pytest.fixture
def model(tiny):
    """A function that saves an untrained model, with or without statistics."""
    data = tiny_dataset()
    engine = Engine("reference")
    engine.set_parameters(init_parameters(5))
    engine.set_dataset(data.train_images, data.train_labels)
    engine.compute_statistics()

    def save(statistics, **metadata):
        path = tiny / "model.safetensors"
        save_model(path, Model(engine.parameters, engine.statistics if statistics else None, metadata), steps=0)
        return str(path)

    return save


def run(capsys, *argv):
    return json.loads(prints(capsys, *argv, "--engine", "reference", "--json"))


def test_absent_statistics_are_computed_from_the_training_images(model, capsys):
    complete = run(capsys, "evaluate", model(True))
    completed = run(capsys, "evaluate", model(False))
    assert (complete.pop("statistics_computed"), completed.pop("statistics_computed")) == (False, True)
    assert complete.pop("trained")["statistics"] == "population"
    assert completed.pop("trained")["statistics"] == "absent"
    assert complete == completed
    assert complete["count"] == 20


def test_batch_statistics_need_no_training_images(model, capsys):
    path = model(False)
    assert run(capsys, "evaluate", path, "--eval-bn", "batch")["statistics_computed"] is False
    out = prints(capsys, "evaluate", path, "--engine", "reference")
    assert "has no population statistics: computing them from the 35 training images of tiny" in out
    assert "% of 20 test images of tiny correct" in out


def test_the_data_set_is_the_one_the_model_was_trained_on(model, capsys):
    path = model(True, dataset="fashion-mnist")
    assert run(capsys, "evaluate", path)["dataset"] == "fashion-mnist"
    assert run(capsys, "evaluate", path, "--dataset", "mnist")["dataset"] == "mnist"
    path = model(True, dataset="synthetic")
    assert run(capsys, "evaluate", path)["dataset"] == "synthetic"
    assert run(capsys, "evaluate", path, "--data-dir", "folder")["dataset"] == "tiny"  # what auto is here


@pytest.mark.parametrize(
    ("trained", "tested", "words"),
    [
        ("synthetic", "synthetic", "(trained on synthetic digits; engine reference"),
        ("synthetic", "mnist", "(trained on synthetic digits; engine reference"),
        ("fashion-mnist", "mnist", "(trained on fashion-mnist; engine reference"),
        ("mnist", "mnist", "(engine reference"),
    ],
)
def test_the_result_says_what_the_model_was_trained_on(model, trained, tested, words, capsys):
    assert cli.main(["evaluate", model(True, dataset=trained), "--dataset", tested, "--engine", "reference"]) == 0
    assert words in capsys.readouterr().out


def test_the_folder_of_the_training_run_is_read_again(tmp_path, monkeypatch, capsys):
    asked = []

    def load(name, *, data_dir=None, **options):
        asked.append((name, data_dir))
        if data_dir is None:
            raise DataError("no network")
        return tiny_dataset("mnist" if name == "auto" else name)

    monkeypatch.setattr(dataset, "load", load)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "files"
    folder.mkdir()
    engine = ("--engine", "reference")
    assert (
        cli.main(["train", *engine, "--epochs", "1", "--batch-size", "35", "--data-dir", "files", "--out", "run"]) == 0
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for file in ("../run", "../run/model.safetensors"):
        capsys.readouterr()
        assert cli.main(["evaluate", file, *engine]) == 0
        assert asked[-1] == ("mnist", folder)
        assert capsys.readouterr().out.startswith(f"reading mnist from {folder}, as the training run did\n")
    assert cli.main(["evaluate", "../run", *engine, "--dataset", "fashion-mnist"]) == 3
    assert asked[-1] == ("fashion-mnist", None)
    assert str(folder) not in capsys.readouterr().err
    assert cli.main(["evaluate", "../run", *engine, "--mirror", "http://m/"]) == 3
    assert asked[-1] == ("mnist", None)
    shutil.rmtree(folder)
    err = prints(capsys, "evaluate", "../run", *engine, code=3)
    assert (
        f"no network; {folder}, which the training run read, is gone: name where its data are now by --data-dir" in err
    )


def test_nothing_named_is_the_newest_run(model, tmp_path, capsys):
    assert prints(capsys, "evaluate", "--engine", "reference", code=2) == (
        "mnist-cuda: error: there is no run with a model in runs/; name the folder or a file of one\n"
    )
    path = model(True)
    for age, name in enumerate(["a", "z", "m"]):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(Path(path).read_bytes() if name == "a" else b"older")
        os.utime(folder / "model.safetensors", ns=(0, 10**18 - age))
    (tmp_path / "runs" / "only-begun").mkdir()
    assert cli.main(["evaluate", "--engine", "reference"]) == 0
    out, err = capsys.readouterr()
    assert err == "mnist-cuda: taking the newest run, runs/a\n"
    assert "% of 20 test images of tiny correct" in out
    assert cli.main(["evaluate", "a", "--engine", "reference"]) == 0  # as `runs` names it
    assert capsys.readouterr().out == out


def test_the_confusion_matrix_counts_the_images(model, capsys):
    path = model(True)
    report = run(capsys, "evaluate", path)
    data, confusion = tiny_dataset(), report["confusion"]
    scores = engine_of(path, "reference", "fp64").logits(data.test_images)
    expected = np.zeros((10, 10), int)
    for label, guess in zip(data.test_labels, scores.argmax(axis=1), strict=True):
        expected[label, guess] += 1
    assert confusion["matrix"] == expected.tolist()
    assert confusion["images"] == [2] * 10
    assert sum(confusion["errors"]) == report["count"] - report["correct"]
    lines = prints(capsys, "evaluate", path, "--engine", "reference", "--confusion").splitlines()
    rows = [line.split() for line in lines[-11:-1]]
    assert [[int(cell.replace(".", "0")) for cell in row[1:11]] for row in rows] == expected.tolist()
    assert [int(row[11]) for row in rows] == confusion["errors"]
    assert lines[-1].endswith("statistics)")
