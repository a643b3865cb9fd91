"""Training: the order of samples, the loop's arithmetic, the run folder, what is printed and recorded."""

import dataclasses
import hashlib
import json
import os
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from tiny import metrics, prints, start, tiny_dataset

from mnist_cuda import cli, machine
from mnist_cuda import engine as engine_module
from mnist_cuda.data import dataset
from mnist_cuda.engine import PIECE_SECONDS, Engine, next_piece
from mnist_cuda.engine.model import PARAMETERS, init_parameters
from mnist_cuda.errors import DataError, UsageError
from mnist_cuda.run import folder as run_folder
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.run.evaluation import evaluate
from mnist_cuda.run.folder import RunFolder
from mnist_cuda.run.training import epoch_order
from mnist_cuda.terminal import console

pytestmark = pytest.mark.usefixtures("tiny")


def train(*argv, code=0):
    defaults = ["--engine", "cpu", "--threads", "1", "--epochs", "1", "--batch-size", "10"]
    assert cli.main(["train", *defaults, *map(str, argv)]) == code


def test_order_is_a_permutation_fixed_by_seed_and_epoch():
    order = epoch_order(3, 2, 1000)
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(1000))
    np.testing.assert_array_equal(order, epoch_order(3, 2, 1000))
    for other in ((3, 1), (2, 2), (4, 2)):
        assert (order != epoch_order(*other, 1000)).mean() > 0.9


def test_order_never_changes():
    """A file's seed must mean the same order in every release."""
    assert epoch_order(0, 1, 10).tolist() == [2, 7, 0, 4, 1, 6, 8, 9, 3, 5]


@pytest.mark.parametrize(
    ("steps", "seconds", "expected"),
    [(1, 5.0, 1), (1, 0.1, 1), (1, 0.01, 2), (100, 0.001, 200), (10, PIECE_SECONDS, 10), (10, 0.4, 2), (9, 0.0, 18)],
)
def test_length_of_a_piece(steps, seconds, expected):
    assert next_piece(steps, steps, seconds) == expected
    assert (
        next_piece(1000, steps, seconds) == (min(1000, int(steps * PIECE_SECONDS / seconds)) if seconds else 1000) or 1
    )


def test_a_call_is_made_in_pieces(monkeypatch):
    """Of which each is at most twice as long as the one before, and none is too short to be worth a call."""
    engine, data, pieces = Engine("cpu", threads=1), tiny_dataset(), []
    engine.set_dataset(data.train_images, data.train_labels)
    train_piece = engine.train_piece
    monkeypatch.setattr(engine, "train_piece", lambda *args: pieces.append(train_piece(*args)) or pieces[-1])
    monkeypatch.setattr(engine_module, "PIECE_SECONDS", 1e9)
    losses, correct = engine.train(np.arange(33, dtype=np.int32), 5, 0.01)  # 6 steps of 5, one of 3
    assert [len(piece.losses) for piece in pieces] == [1, 2, 4]
    np.testing.assert_array_equal(losses, np.concatenate([piece.losses for piece in pieces]))
    np.testing.assert_array_equal(correct, np.concatenate([piece.correct for piece in pieces]))
    with pytest.raises(ValueError, match=r"order\[6\] is 99"):  # before the first step
        engine.train(np.array([*range(6), 99], np.int32), 1, 0.01)
    assert len(pieces) == 3
    engine.train(np.zeros(5, np.int32), 1, 0.01)
    assert [len(piece.losses) for piece in pieces[3:]] == [1, 2, 2]  # another batch size
    engine.train(np.arange(33, dtype=np.int32), 5, 0.01)
    assert [len(piece.losses) for piece in pieces[6:]] == [7]  # how long its steps take is known


def test_a_run_is_the_recipe_and_nothing_else(capsys):
    """Plain steps of Engine.train on epoch_order give the saved weights, bit for bit, whatever the chunks were."""
    train("--epochs", 2, "--lr", 0.02, "--seed", 4, "--out", "run")
    data, engine = tiny_dataset(), Engine("cpu")
    engine.set_parameters(init_parameters(4))
    engine.set_dataset(data.train_images, data.train_labels)
    losses = [engine.train(epoch_order(4, epoch, 35)[:30], 10, 0.02)[0] for epoch in (1, 2)]
    engine.compute_statistics()
    expected = evaluate(engine, data.test_images, data.test_labels)
    saved = load_model(Path("run"))
    for found, wanted in ((saved.parameters, engine.parameters), (saved.statistics, engine.statistics)):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)
    rows = metrics("run")
    assert [row["loss"] for row in rows] == [losses[0].mean(), losses[1].mean()]
    assert [row["steps"] for row in rows] == [3, 3]
    assert (rows[1]["test_accuracy"], rows[1]["test_loss"]) == (expected.accuracy, expected.loss)
    assert saved.metadata["epochs"] == "2"
    assert saved.metadata["steps"] == "6"
    assert saved.metadata["seed"] == "4"
    out = capsys.readouterr().out
    result, time, file, weights = out.splitlines()[-4:]
    assert result == f"result  {100 * expected.accuracy:.2f} % of 20 test images correct after 2 epochs on tiny"
    assert re.fullmatch(r"time    \d+\.\d s; [\d.]+ us/iteration \(mean of the last 5\)", time)
    assert (file, weights[:8]) == ("saved   run/model.safetensors", "weights ")
    assert "\x1b" not in out


def test_it_learns():
    train("--epochs", 5, "--out", "run")
    assert metrics("run")[-1]["test_accuracy"] == 1


def test_config_records_the_machine(capsys):
    train("--out", "run", "--engine", "auto", "--threads", 0)
    config = json.loads(Path("run/config.json").read_text())
    assert config["engine"]["chosen_by"] == "auto"
    assert config["versions"] == machine.versions()
    assert config["commit"] == machine.commit()
    assert {"cpu", "cores", "cuda", "gpus", "driver", "device", "threads", "libraries"} == config["machine"].keys()
    on_cpu = config["engine"]["device"] == "cpu"
    assert config["machine"]["threads"] == (len(os.sched_getaffinity(0)) if on_cpu else None)
    assert config["machine"]["libraries"].keys() == (
        {"cudnn", "cublasLt"} if config["engine"]["name"] == "cudnn" else set()
    )
    assert len(config["machine"]["gpus"]) == config["machine"]["cuda"]["device_count"]
    assert f"engine  {config['engine']['name']} {config['engine']['precision']}, chosen by auto" in (
        capsys.readouterr().out
    )
    assert not [name for name in os.listdir("run") if name.endswith(".part")]


def test_a_fallback_cannot_be_missed(monkeypatch, capsys):
    monkeypatch.setenv("MNIST_TINY_WARNING", "MNIST IS NOT HERE")
    train("--out", "run", "--quiet")
    out, err = capsys.readouterr()
    assert err == "WARNING: MNIST IS NOT HERE\n"
    assert out.count("\n") == 4
    assert "NOT mnist" in out
    assert json.loads(Path("run/config.json").read_text())["data"]["warning"] == "MNIST IS NOT HERE"
    assert metrics("run")[0]["warning"] == "MNIST IS NOT HERE"


def test_a_folder_with_files_is_never_overwritten(capsys):
    os.makedirs("run")
    Path("run/thesis.txt").touch()
    train("--out", "run", code=2)
    assert os.listdir("run") == ["thesis.txt"]
    err = capsys.readouterr().err
    assert "give --out another folder" in err
    assert err.count("\n") == 1
    os.remove("run/thesis.txt")
    train("--out", "run")


@pytest.mark.parametrize("made", [False, True])
def test_two_runs_never_share_a_folder(made):
    """Both look before either has written anything: the one that comes second is refused."""
    if made:
        os.makedirs("a/run")
    with RunFolder(Path("a/run"), "cpu"):
        with pytest.raises(UsageError, match="give `out` another folder"):
            RunFolder(Path("a/run"), "cpu")
        assert os.listdir("a/run") == ["config.json"]
    assert os.listdir(".") == (["a"] if made else [])


def test_runs_of_the_same_second_have_folders_of_their_own(monkeypatch):
    class Clock:
        now = staticmethod(lambda: datetime(2026, 1, 2, 3, 4, 5))

    monkeypatch.setattr(run_folder, "datetime", Clock)
    for _ in range(3):
        train()
    assert sorted(os.listdir("runs")) == [f"20260102-030405-cpu{n}" for n in ("", "-2", "-3")]


def test_the_folder_is_taken_before_the_data_is_read(monkeypatch, capsys):
    def load(*_, **__):
        assert os.listdir("a/run") == ["config.json"]
        raise DataError("gone")

    monkeypatch.setattr(dataset, "load", load)
    train("--out", "a/run", code=3)
    assert os.listdir(".") == []  # a run that never began leaves nothing


def test_a_path_that_cannot_be_a_folder(capsys):
    Path("file").touch()
    train("--out", "file/run", code=6)
    train("--out", "file", code=6)
    err = capsys.readouterr().err
    assert err.count("\n") == 2
    assert "Not a directory" in err


def test_a_batch_larger_than_the_data_set(capsys):
    train("--batch-size", 36, code=2)
    assert "batch size is 36, expected at most the 35 training images" in capsys.readouterr().err
    assert not os.path.exists("runs")


def test_divergence_to_finite_numbers_is_told_at_its_step(monkeypatch, capsys):
    monkeypatch.setenv("MNIST_TINY_IMAGES", "300")
    train("--lr", "100", "--epochs", 3, "--out", "run", code=2)
    err = capsys.readouterr().err
    assert re.search(
        r"training diverged: the loss of step \d+ in epoch 1 is [\d.]+e\+\d+; try a lower learning rate than", err
    )
    assert err.count("\n") == 1
    assert os.listdir("run") == ["config.json"]


def test_divergence_that_no_loss_shows_is_no_fault_of_a_file(monkeypatch, capsys):
    statistics = Engine.statistics.fget
    bad = property(lambda engine: {name: value * np.inf for name, value in statistics(engine).items()})
    monkeypatch.setattr(Engine, "statistics", bad)
    train("--out", "run", code=2)
    assert "training diverged: bn1.running_mean is not finite after epoch 1" in capsys.readouterr().err
    assert os.listdir("run") == ["config.json"]


def test_the_same_run_gives_the_same_file_and_says_its_digest(capsys):
    """In another process, too."""
    out, _ = start("train", "--engine", "cpu", "--epochs", 1, "--batch-size", 10, "--out", "a").communicate()
    content = Path("a/model.safetensors").read_bytes()
    assert (int.from_bytes(content[:8], "little") + 8) % 8 == 0
    saved = load_model(Path("a"))
    expected = hashlib.sha256(b"".join(saved.parameters[t.name].tobytes() for t in PARAMETERS)).hexdigest()
    assert out.splitlines()[-1] == f"weights {expected[:12]}"
    train("--json", "--out", "b")
    assert json.loads(capsys.readouterr().out)["parameters_sha256"] == expected
    assert Path("b/model.safetensors").read_bytes() == content


def test_a_quick_look_trains_on_the_first_images(capsys):
    train("--limit", 12, "--batch-size", 5, "--out", "some")
    config = json.loads(Path("some/config.json").read_text())
    assert (config["data"]["training_images"], config["options"]["limit"]) == (12, 12)
    data = tiny_dataset()
    found = data.first(12)
    assert config["data"]["digest"] == found.digest != data.digest
    np.testing.assert_array_equal(found.train_images, data.train_images[:12])
    assert len(found.test_labels) == 20
    assert cli.main(["train", "--config", "some", "--out", "again", "--quiet"]) == 0
    assert Path("again/model.safetensors").read_bytes() == Path("some/model.safetensors").read_bytes()
    train("--limit", 36, "--out", "more", code=2)
    assert "there are 35 training images, and the first 36 are wanted" in capsys.readouterr().err


def test_what_takes_long_begins_with_an_estimate(monkeypatch, capsys):
    """Once, when the pace is known, with evaluations; and not where it is short."""
    flags = ("--epochs", 3, "--batch-size", 5)
    monkeypatch.setattr(console, "LONG", 1e9)
    train(*flags, "--out", "short")
    assert "takes" not in capsys.readouterr().out
    monkeypatch.setattr(console, "LONG", 0.0)
    monkeypatch.setattr(console, "EARLY", 0.0)
    train(*flags, "--out", "long")
    lines = capsys.readouterr().out.splitlines()
    assert [bool(re.fullmatch(r"takes   about \d+ s", line)) for line in lines[3:6]] == [False, True, False]
    assert sum(line.startswith("takes") for line in lines) == 1
    train(*flags, "--out", "quiet", "--quiet")
    assert "takes" not in capsys.readouterr().out


def test_a_slow_first_step_is_not_the_pace(monkeypatch, capsys):
    """It may include compiling the kernels for this GPU."""
    piece, pieces = Engine.train_piece, []

    def slow_at_first(self, *args):
        pieces.append(piece(self, *args))
        return pieces[-1] if len(pieces) > 1 else dataclasses.replace(pieces[0], seconds=1e5)

    monkeypatch.setattr(Engine, "train_piece", slow_at_first)
    monkeypatch.setattr(console, "LONG", 0.0)
    monkeypatch.setattr(console, "EARLY", 0.0)
    train("--epochs", 3, "--batch-size", 5, "--out", "run")
    assert re.search(r"^takes   about \d+ s$", capsys.readouterr().out, re.MULTILINE)


def test_patience_ends_a_training_that_does_not_get_better(capsys):
    flags = ("--lr", 0, "--epochs", 50, "--batch-size", 5, "--patience", 2)
    train(*flags, "--out", "none", code=2)
    assert "--patience waits for the images of --validation N" in capsys.readouterr().err
    train(*flags, "--validation", 5, "--out", "run", "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["epochs_done"], report["stopped"]) == (3, "no better validation accuracy for 2 epochs")
    assert (report["interrupted"], len(report["epochs"])) == (None, 3)
    assert json.loads(Path("run/config.json").read_text())["ended"] == "stopped"
    assert "ended after 18 steps (3 of 50 epochs)" in prints(capsys, "train", "--resume", "run")
