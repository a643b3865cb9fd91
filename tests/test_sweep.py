"""Sweeps: each model is bit for bit the one that `train` gives, and what is done is kept whatever happens."""

import csv
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import engine_params
from safetensors.numpy import load_file
from tiny import start, tiny_dataset

from mnist_cuda import Callback, TrainOptions, UnavailableError, UsageError, _native, cli, memory, sweep, train
from mnist_cuda.engine import Engine, find_engine
from mnist_cuda.engine.model import digest
from mnist_cuda.errors import CheckpointError, OutOfMemoryError, OutputError
from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.sweeps import store as sweep_files
from mnist_cuda.sweeps.grid import grid, read_runs, runs_table
from mnist_cuda.sweeps.store import SweepFiles
from mnist_cuda.sweeps.sweep import Sweep, train_all
from mnist_cuda.sweeps.table import SweptModel, cells, columns, csv_head, csv_row, read_table, write_parquet
from mnist_cuda.sweeps.trainers import Job, Outcome, batches_of, share_of
from mnist_cuda.terminal import console

BASE = TrainOptions(epochs=1, batch_size=5, lr=0.02)
FUSED = find_engine("fused")
LIMIT = 2.0  # seconds from a signal to the end
GRID = ("--engine", "cpu", "--batch-size", "5", "--epochs", "1", "--lr", "0.02")


def table(folder):
    """The rows of a sweep's CSV file, each a dict of texts."""
    with open(Path(folder) / "sweep.csv", newline="") as file:
        return list(csv.DictReader(file))


def but_times(rows):
    return [
        {name: value for name, value in row.items() if name not in ("training_seconds", "row_sha256")} for row in rows
    ]


@pytest.fixture
def tiny(tiny):
    """The command line in this process, on the tiny data set, in a folder of its own."""
    return lambda *argv: cli.main(["sweep", *map(str, argv)])


def test_a_sweep_that_no_memory_holds_is_refused_at_once(tiny, capsys, monkeypatch, tmp_path):
    """Before a row is made: millions of epochs are as many columns, millions of seeds as many models."""
    monkeypatch.setattr(memory, "available", lambda: 10**8)
    assert tiny("--engine", "cpu", "--batch-size", "5", "--epochs", "3000000") == 5
    error = "mnist-cuda: error: a table of 1 model with columns for each of 3000000 epochs needs about 1.2 GB, and 0.1"
    assert capsys.readouterr().err.startswith(error)
    assert os.listdir(tmp_path) == []
    with pytest.raises(OutOfMemoryError, match=r"a sweep of 200000 models needs about 0\.4 GB"):
        grid({"seed": range(100000), "lr": [0.1, 0.2]})
    (tmp_path / "runs.csv").write_text("lr\n" + 1000 * "0.1\n")
    with pytest.raises(OutOfMemoryError, match="a sweep of 1001000 models"):
        read_runs(tmp_path / "runs.csv", {"seed": range(1000), "lr": [1, 2]})
    with pytest.raises(OutOfMemoryError, match="a sweep of 1000000000000000 models"):
        grid({name: range(100000) for name in ("seed", "batch_size", "epochs")})


# ---- the bits --------------------------------------------------------------------------------------------------------

RUNS = [  # each after another kind, on the same engine
    replace(BASE, epochs=2),
    replace(BASE, seed=1, batch_size=8, schedule="triangle", lr=0.05),
    replace(BASE, validation=6),
    replace(BASE, lr=1e30),  # diverges
    replace(BASE, seed=1, eval_bn="batch"),
    replace(BASE, placement="host"),
    replace(BASE, epochs=2),
]


def small_dataset():
    """A part of the tiny one, for engines that take their time."""
    data = tiny_dataset()
    part = {name: getattr(data, name)[:12] for name in ("train_images", "train_labels", "test_images", "test_labels")}
    return replace(data, **part)


def has_fleets(engine):
    """Whether it trains several models side by side here."""
    try:
        engine.fleet(1, 3, 2)
    except UnavailableError:
        return False
    return True


@pytest.mark.parametrize(
    ("jobs", "spec"),
    [
        pytest.param(jobs, *param.values, id=f"{jobs}-{param.id}", marks=param.marks)
        for jobs, without in ((1, ()), (2, ("reference",)))  # which takes its time
        for param in engine_params(without=without)
    ],
)
def test_each_model_is_the_one_that_train_gives(spec, jobs, make_engine, tmp_path):
    engine, data = make_engine(*spec), small_dataset()
    models, engines = {}, {0: engine}
    rows = sweep(
        data,
        RUNS,
        engine=spec[0],
        precision=spec[1],
        jobs=jobs,
        out=tmp_path / "sweep",
        save="all",
        on_model=lambda row, model: models.update({row.index: model}),
    )
    assert [(row.index, row.options) for row in rows] == list(enumerate(RUNS))
    side_by_side = has_fleets(engine)
    stacked = load_file(tmp_path / "sweep" / "weights.safetensors")
    for row, run in zip(rows, RUNS, strict=True):
        weights = {name: tensors[row.index] for name, tensors in stacked.items()}
        if run.lr > 1:
            assert row.fault.startswith("training diverged: ")
            assert (models[row.index], row.weights, row.test_accuracy) == (None, None, None)
            assert all(np.isnan(value).all() for value in weights.values())
            continue
        share = row.multiprocessors
        assert share == (share_of(engine.info, run) if side_by_side and jobs > 1 else 0)
        if share not in engines:
            engines[share] = make_engine(*spec, multiprocessors=share)
        result = train(data, run, engine=engines[share])
        assert row.weights == digest(result.model.parameters)
        for name, value in (result.model.parameters | result.model.statistics).items():
            assert weights[name].tobytes() == models[row.index].__dict__[
                "statistics" if "running" in name else "parameters"
            ][name].tobytes() == value.tobytes(), (row.index, name)  # fmt: skip
        assert row.losses == tuple(epoch["loss"] for epoch in result.epochs)
        assert row.train_accuracies == tuple(epoch["train_accuracy"] for epoch in result.epochs)
        last = result.epochs[-1]
        for name in ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss"):
            assert getattr(row, name) == last.get(name), name
        assert row.correct == result.evaluation.correct_by_class
        assert row.training_seconds > 0
    assert rows[0].weights == rows[6].weights != rows[5].weights


class EmulatedFleet:
    """A fleet of an engine that has none: its models are trained one after another."""

    def __init__(self, engine, models):
        self.engine, self.models, self._held = engine, models, [None] * models

    def store(self, model):
        self._held[model] = self.engine.parameters

    def load(self, model):
        self.engine.set_parameters(self._held[model])

    def train(self, orders, rates):
        steps = []
        for model, (order, rate) in enumerate(zip(orders, rates, strict=True)):
            try:
                self.load(model)
            except ValueError:  # it diverged: a GPU goes on with it
                steps.append((np.full(len(rate), np.nan), np.zeros(len(rate), np.int32)))
                continue
            steps.append(self.engine.train(order, len(order) // len(rate), rate))
            self.store(model)
        return tuple(np.stack(values) for values in zip(*steps, strict=True))


@pytest.fixture
def fleets(monkeypatch):
    """The host engine has fleets, on a GPU of 8 multiprocessors; gives models, batch size and share of each."""
    made, rows = [], _native.engines()

    def fleet(engine, *asked):
        made.append(asked)
        return EmulatedFleet(engine, asked[0])

    monkeypatch.setattr(_native, "engines", lambda: [{**row, "fleets": row["name"] == "cpu"} for row in rows])
    share_for = _native.share_for
    monkeypatch.setattr(_native, "share_for", lambda _, batch_size: share_for("fused", batch_size))
    monkeypatch.setattr(_native, "gpus", lambda: [{"multiprocessors": 8}])
    monkeypatch.setattr(Engine, "fleet", fleet)
    return made


def test_models_go_side_by_side(fleets, tmp_path):
    """Those of the same batch size and number of epochs, as many as the GPU has shares for; the others alone."""
    data, several = tiny_dataset(), [replace(BASE, seed=seed, lr=0.01 * seed) for seed in range(2, 7)]
    sizes = [replace(BASE, batch_size=size) for size in (33, 33, 33, 2)]
    runs = [*RUNS, *several, *sizes, *(replace(BASE, epochs=2, schedule="linear", seed=seed) for seed in range(3))]
    rows = sweep(data, runs, engine="cpu", out=tmp_path / "sweep")
    assert fleets[:2] == 2 * [(1, 3, 2)]  # to see whether it can, with two to take turns
    want = [(1, 8, 2), (1, 33, 3), (2, 5, 2), (2, 33, 3), (3, 5, 2), (4, 5, 2)]
    # Of the two batches that want (3, 5, 2), both have one fleet if the same one of the two takes them in a row.
    assert sorted(fleets[2:]) in (want, sorted([*want, (3, 5, 2)]))
    for row, run in zip(rows, runs, strict=True):
        alone = run.validation or run.placement == "host" or run.batch_size == 2
        assert (row.options, row.multiprocessors) == (run, 0 if alone else 3 if run.batch_size == 33 else 2)
    want = sweep(data, runs, engine="cpu", jobs=1)
    assert {row.multiprocessors for row in want} == {0}
    assert len(fleets) == 9
    times = {"training_seconds": None, "multiprocessors": 0}
    assert [replace(row, **times) for row in rows] == [replace(row, **times) for row in want]
    assert "diverged" in rows[3].fault
    assert read_table(tmp_path / "sweep" / "sweep.csv", 2) == rows


def test_how_many_go_side_by_side(fleets, tiny, capsys):
    assert tiny(*GRID, "--seeds", 3, "--jobs", 2) == 0
    assert "plan    3 models, 2 at once" in capsys.readouterr().out
    assert sorted(fleets[2:]) == [(1, 5, 2), (2, 5, 2)]
    assert tiny(*GRID, "--seeds", 3, "--validation", 6) == 0
    assert "one after another" not in capsys.readouterr().out
    assert len(fleets) == 4  # not even asked for
    assert tiny(*GRID[:2], "--epochs", 1, "--batch-size", 2, 5, "--lr", 0.02) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "plan    2 models, 2 at once",
        "        1 model of them one after another: images on the host, images held out, or a batch too small or too "
        "large for a share of the GPU",
    ]


def test_a_share_that_the_gpu_does_not_have(fleets, monkeypatch):
    """A model of a batch so large goes one after another, beside fleets of others."""
    monkeypatch.setattr(_native, "gpus", lambda: [{"multiprocessors": 2}])
    runs = [replace(BASE, batch_size=size, seed=seed) for size in (33, 5) for seed in (1, 2)]
    with Sweep(tiny_dataset(), runs, engine="cpu", jobs=2) as task:
        task.run()
    assert sorted(fleets[2:]) == [(2, 5, 2)]
    assert [task.rows[index].multiprocessors for index in range(4)] == [0, 0, 2, 2]
    assert task.remarks[0].startswith("2 models of them one after another: ")


def test_shares():
    """They are part of what a sweep's models are: another share gives other bits."""
    shares = {1: 0, 2: 0, 3: 2, 32: 2, 33: 3, 2048: 128, 2049: 0, 2**40: 0}
    assert {size: FUSED.share_for(size) for size in shares} == shares
    assert find_engine("cpu").share_for(64) == 0
    for alone in ({"placement": "host"}, {"validation": 5}):
        assert share_of(FUSED, replace(BASE, batch_size=64, **alone)) == 0


def test_a_gpu_that_trains_one_at_a_time_is_announced(fleets, tiny, monkeypatch, capsys):
    def fleet(*_):
        raise UnavailableError("this GPU is too old")

    monkeypatch.setattr(Engine, "fleet", fleet)
    assert tiny(*GRID, "--seeds", 3) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["plan    3 models, 1 at once", "        this GPU is too old"]
    assert {row["multiprocessors"] for row in table(next(Path("sweeps").iterdir()))} == {"0"}


# ---- the runs --------------------------------------------------------------------------------------------------------


def test_a_grid_has_every_combination_with_the_seeds_fastest(tiny, tmp_path):
    assert tiny(*GRID[:2], "--epochs", 1, "--lr", 0.1, 0.2, "-b", 5, 7, "--seeds", 2, "-s", 3, "-o", "out", "-q") == 0
    found = [(row["batch_size"], row["lr"], row["seed"]) for row in table("out")]
    assert found == [(b, lr, s) for b in ("5", "7") for lr in ("0.1", "0.2") for s in ("3", "4")]


def test_runs_of_a_file(tiny, tmp_path):
    Path("runs.csv").write_text("\ufefflr, seed\r\n0.1, 3\r\n\r\n0.25,4\r\n")
    axes = {"batch_size": [5, 7], "seed": [9], "epochs": [2]}
    runs = read_runs(Path("runs.csv"), axes)
    assert [(r.lr, r.seed, r.batch_size, r.epochs) for r in runs] == [
        (0.1, 3, 5, 2), (0.1, 3, 7, 2), (0.25, 4, 5, 2), (0.25, 4, 7, 2)
    ]  # fmt: skip
    Path("again.csv").write_bytes(runs_table(runs))
    assert read_runs(Path("again.csv"), {}) == runs
    assert tiny("--runs", "runs.csv", *GRID[:6], "--out", "out", "--quiet") == 0
    assert [(row["lr"], row["seed"], row["batch_size"]) for row in table("out")] == [
        ("0.1", "3", "5"),
        ("0.25", "4", "5"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no run in it"),
        ("lr\n", "there is no run in it"),
        ("lr,sed\n0.1,1\n", r"runs.csv:1: column 'sed' is unknown, expected some of .*; did you mean seed\?"),
        ("lr,lr\n0.1,1\n", "runs.csv:1: column 'lr' is there twice"),
        ("lr,seed\n0.1,1\n0.1\n", "runs.csv:3: there are 1 cells, expected one for each of 2 columns"),
        ("lr\n0.1\nfast\n", "runs.csv:3: lr is 'fast', expected a number"),
        ("seed\n1.5\n", "runs.csv:2: seed is '1.5', expected a whole number"),
        ("seed\n-1\n", "runs.csv:2: seed is -1, expected a whole number of at least 0"),
        ("eval_bn\nnone\n", "runs.csv:2: eval_bn is 'none', expected population or batch"),
        ('lr\n"0.1\n', "runs.csv:"),
        (b"lr\n\xff\n", "it is no UTF-8 text"),
    ],
)
def test_a_file_that_is_no_table_of_runs_is_refused(text, words, tmp_path):
    file = tmp_path / "runs.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=words):
        read_runs(file, {})


def test_files_that_cannot_be_read(tmp_path):
    for name in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(OutputError, match="cannot be read"):
            read_runs(name, {})


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("--batch-size", "5", "36"), 2, "run 1 of the sweep: batch size is 36, expected at most the 35"),
        (("--batch-size", "5", "--gpus", "0", "1"), 2, "engine 'cpu' runs on the CPU"),
        (("--batch-size", "5", "--gpus", "0", "--device", "1"), 2, "leave out one of the two"),
        (("--batch-size", "5", "--resume"), 2, "there is no sweep in sweeps/"),
        (("--batch-size", "5", "--seed", str(2**63), "--parquet"), 2, "whole numbers below 2^63"),
        (("--batch-size", "5", "--precision", "bf16"), 2, "has no precision bf16"),
    ],
)
def test_what_is_impossible_is_refused_before_anything_is_made(argv, code, words, tiny, capsys):
    if "--parquet" in argv:
        pytest.importorskip("pyarrow")
    assert tiny("--engine", "cpu", *argv) == code
    assert words in capsys.readouterr().err
    assert not Path("sweeps").exists()


@pytest.mark.parametrize("gpus", [("--gpus", 0, 1000), ("--device", 1000)], ids=["several", "one"])
def test_a_gpu_that_is_not_here_is_refused(gpus, tiny, capsys):
    """Though the models would train side by side, which asks for the size of each GPU."""
    assert tiny(*GRID, "--engine", "fused", *gpus) == (4 if _native.cuda_status()["reason"] else 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mnist-cuda: error: ")
    assert not Path("sweeps").exists()


# ---- what is kept ----------------------------------------------------------------------------------------------------


def row_of(index, accuracy=0.5, **more):
    fields = {"test_accuracy": accuracy, "test_loss": 1 / 3, "correct": tuple(range(10)), "weights": "ab", **more}
    return SweptModel(index, replace(BASE, seed=index), (0.1 + 0.2,), training_seconds=1e-7, **fields)


def test_a_row_survives_the_table_in_every_bit(tmp_path):
    fault = SweptModel(1, replace(BASE, seed=1), (), fault='training diverged: "so", it says;\nno')
    rows = [row_of(0), fault, row_of(2, validation_accuracy=2 / 3, validation_loss=1e-300)]
    files = SweepFiles(tmp_path, [row.options for row in rows], "none", np.float32, resume=False)
    for row in reversed(rows):
        files.add(row, None)
    files.close()
    assert read_table(tmp_path / "sweep.csv", 1) == rows
    text = (tmp_path / "sweep.csv").read_text()
    flipped = text.replace("1e-07", "3e-07", 1)  # a row that nobody else would find odd
    for damage in (flipped, text[:-9], text.replace("0.5,", "half,", 1), text.replace("lr", "rate", 1), text + "3,1\n"):
        (tmp_path / "sweep.csv").write_text(damage)
        with pytest.raises(CheckpointError, match="not a sweep's table"):
            read_table(tmp_path / "sweep.csv", 1)


def test_parquet_has_the_same_table(tiny, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert tiny(*GRID, "--lr", 0.02, 1e30, "--epochs", 2, "--out", "out", "--parquet", "--quiet") == 0
    rows = read_table(Path("out/sweep.csv"), 2)
    found = parquet.read_table("out/sweep.parquet").to_pylist()
    assert found == [dict(zip(columns(2), cells(row, 2), strict=True)) for row in rows]
    assert rows[1].fault


def test_parquet_needs_pyarrow(tiny, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError, match=rf"run `{re.escape(sys.executable)} -m pip install pyarrow`"):
        write_parquet(tmp_path / "table", [], 1)
    assert tiny(*GRID, "--parquet") == 4  # at once
    assert not Path("sweeps").exists()


def test_the_table_is_replaced_once_a_second_and_as_a_whole(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(sweep_files.time, "monotonic", lambda: now[0])
    runs = [replace(BASE, seed=index) for index in range(9)]
    files = SweepFiles(tmp_path, runs, "none", np.float32, resume=False)
    seen = []
    for index in range(9):
        now[0] += 0.4
        files.add(row_of(index), None)
        files.tick()
        seen.append(len(read_table(tmp_path / "sweep.csv", 1)))
    assert seen == [1, 1, 1, 4, 4, 4, 7, 7, 7]
    files.close()
    assert len(read_table(tmp_path / "sweep.csv", 1)) == 9


def test_the_best_model_is_the_one_that_train_saves(tmp_path):
    data = tiny_dataset()
    runs = [replace(BASE, lr=lr, epochs=2) for lr in (1e-6, 0.02, 0.01, 1e30)]
    rows = sweep(data, runs, engine="cpu", out=tmp_path / "out", save="best")
    best = max(rows[:3], key=lambda row: (row.test_accuracy, -row.test_loss))
    assert best.index != 0
    save_model(tmp_path / "model.safetensors", train(data, best.options, engine="cpu").model)
    assert (tmp_path / "out/best.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_the_best_is_chosen_by_the_images_held_out():
    def rank(index, test, validation=None, loss=1.0):
        held = {} if validation is None else {"validation_accuracy": validation, "validation_loss": loss}
        return row_of(index, test, **held).rank

    assert rank(0, 0.9, 0.5) < rank(1, 0.1, 0.6)
    assert rank(0, 0.9, 0.5, 2.0) < rank(1, 0.1, 0.5, 1.0)
    assert rank(0, 0.9) > rank(1, 0.9)  # of equals the first, in whatever order they are done
    assert rank(0, 0.0) > SweptModel(1, BASE, (), fault="diverged").rank


def hits_of(folder, images):
    """What hits.safetensors says of each model and tested epoch."""
    return np.unpackbits(load_file(folder / "hits.safetensors")["hits"], axis=2, count=images).astype(bool)


def test_each_epoch_and_each_image_are_kept(fleets, tmp_path):
    """By models side by side, too; epoch by epoch they are what `train` scores, image by image what its engine says."""
    data, runs = tiny_dataset(), [*RUNS, replace(BASE, epochs=3, seed=2)]
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        found = sweep(data, runs, engine="cpu", jobs=jobs, out=folder, each_epoch=True, hits=True)
        assert any(row.multiprocessors for row in found) == (jobs == 2)
        kept, arrays = hits_of(folder, 20), found.arrays
        np.testing.assert_array_equal(arrays["hits"], kept)
        assert kept.shape == (len(runs), 3, 20)
        for row, run in zip(found, runs, strict=True):
            if row.fault:
                assert (row.hits, row.test_accuracies, kept[row.index].any()) == (None, (), False)
                continue
            rights = []
            result = train(data, run, engine="cpu", callbacks=[Scores(data, rights)])
            np.testing.assert_array_equal(row.hits, rights)
            np.testing.assert_array_equal(kept[row.index], np.pad(rights, ((0, 3 - run.epochs), (0, 0))))
            for series, key in (("test_accuracies", "test_accuracy"), ("validation_accuracies", "validation_accuracy")):
                assert getattr(row, series) == tuple(e[key] for e in result.epochs if key in e)
            assert row.test_accuracies[-1] == row.test_accuracy == row.hits[-1].mean()
        assert any(len({hits.tobytes() for hits in row.hits}) > 1 for row in found if row.hits is not None)
        again = sweep(data, runs, engine="cpu", jobs=jobs, out=folder, each_epoch=True, hits=True, resume=True)
        assert again == found
        np.testing.assert_array_equal(again.arrays["hits"], kept)


class Scores(Callback):
    """Which test images are right after each epoch, by the engine's logits."""

    def __init__(self, data, rights):
        self.data, self.rights = data, rights

    def on_start(self, trainer):
        self.trainer = trainer

    def on_epoch(self, record):
        engine, by = self.trainer.engine, self.trainer.options.eval_bn
        self.rights.append(engine.logits(self.data.test_images, by).argmax(axis=1) == self.data.test_labels)


def test_hits_alone_are_of_the_last_epoch(tmp_path):
    data, runs = tiny_dataset(), [replace(BASE, epochs=epochs) for epochs in (1, 3)]
    found = sweep(data, runs, engine="cpu", out=tmp_path / "out", hits=True)
    assert found.arrays["hits"].shape == (2, 1, 20)
    assert [row.test_accuracies for row in found] == [(), ()]
    assert [row.hits.mean() for row in found] == [row.test_accuracy for row in found]
    assert "hits" not in sweep(data, runs[:1], engine="cpu").arrays


def test_hits_that_changed_are_trained_again(tmp_path):
    data, runs, again = tiny_dataset(), [replace(BASE, seed=seed, epochs=2) for seed in range(3)], []
    common = {"engine": "cpu", "out": tmp_path / "out", "hits": True, "each_epoch": True}
    found = sweep(data, runs, **common)
    file = tmp_path / "out" / "hits.safetensors"
    content = bytearray(file.read_bytes())
    content[-7] ^= 4  # model 1's last byte of the last epoch: 20 images are 3 bytes, 4 of whose bits say nothing
    file.write_bytes(content)
    assert sweep(data, runs, **common, resume=True, on_model=lambda *_: pytest.fail("nothing is said there")) == found
    content[-7] ^= 64
    file.write_bytes(content)
    result = sweep(data, runs, **common, resume=True, on_model=lambda row, _: again.append(row.index))
    assert again == [1]
    np.testing.assert_array_equal(result.arrays["hits"], found.arrays["hits"])


def test_the_command_keeps_them_as_the_library_does(tiny, capsys):
    flags = ("--epochs", 2, "--each-epoch", "--hits")
    assert tiny(*GRID, *flags, "--seeds", 2, "--out", "out", "--json", "out.json", "--quiet") == 0
    report, rows = json.loads(Path("out.json").read_text()), read_table(Path("out/sweep.csv"), 2, True)
    assert report["hits"] == "out/hits.safetensors"
    assert report["best"]["test_accuracies"] in [list(row.test_accuracies) for row in rows]
    want = sweep(tiny_dataset(), [row.options for row in rows], engine="cpu", each_epoch=True, hits=True)
    assert [row.test_accuracies for row in want] == [row.test_accuracies for row in rows]
    np.testing.assert_array_equal(hits_of(Path("out"), 20), want.arrays["hits"])
    assert tiny("--resume", "out", "--quiet") == 0


@pytest.mark.parametrize(
    ("free", "keep", "words"),
    [
        (2, {"hits": True}, r"the hits need 0\.0 MB and 0\.0 MB are free; keep none of them"),
        (10**6, {"save": "all"}, r"all weights need 1\.7 MB and 1\.0 MB are free"),
    ],
)
def test_what_is_kept_needs_disk(free, keep, words, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_files.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(CheckpointError, match=words):
        sweep(tiny_dataset(), [BASE], engine="cpu", out=tmp_path / "out", **keep)
    assert not (tmp_path / "out").exists()


def test_an_array_of_hits_needs_memory(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 10**5)
    data = tiny_dataset()
    many = replace(data, test_images=data.test_images.repeat(100, axis=0), test_labels=data.test_labels.repeat(100))
    with pytest.raises(OutOfMemoryError, match="an array of the hits of 60 models needs about"):
        sweep(many, [BASE] * 60, engine="cpu", jobs=1, hits=True)


# ---- stopped and resumed ---------------------------------------------------------------------------------------------

LONG = (*GRID[:4], "--epochs", "2", "--lr", "0.02", "1e30", "--seeds", "6", "--threads", "1")  # the later half diverges


def rows_of(folder, at_least, epochs=2):
    """Wait until so many models are in the table, which is whole whenever it is read."""
    end = time.monotonic() + 30
    while True:
        assert time.monotonic() < end
        if (folder / "sweep.csv").exists():
            rows = read_table(folder / "sweep.csv", epochs)
            if len(rows) >= at_least:
                return rows
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    process = start("sweep", *LONG, "--save", "all", "--out", folder, MNIST_TINY_IMAGES="400")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), (out, err)
    assert "12 models in" in out.splitlines()[-1]
    assert "; 6 diverged; saved" in out.splitlines()[-1]
    return folder


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_stopped_goes_on_to_the_same_bits(signum, whole, tmp_path):
    folder = tmp_path / "out"
    process = start("sweep", *LONG, "--save", "all", "--out", folder, MNIST_TINY_IMAGES="400")
    rows_of(folder, 1)
    sent = time.monotonic()
    process.send_signal(signum)
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - sent <= LIMIT
    done = len(rows_of(folder, 1))
    assert done < 12
    if signum != signal.SIGKILL:
        assert process.returncode == 128 + signum
        *_, hint, last = out.splitlines()
        assert hint == f"`mnist-cuda sweep --resume {folder}` goes on from here"
        assert last.startswith(f"stopped by {signum.name} after {done} model{'s' * (done > 1)} of 12 in ")
    again = start("sweep", "--resume", folder, "--json", MNIST_TINY_IMAGES="400")
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    report = json.loads(out)
    assert (report["models_done"], report["models_trained"], report["diverged"]) == (12, 12 - done, 6)
    assert but_times(table(folder)) == but_times(table(whole))
    assert (folder / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()
    assert json.loads((folder / "config.json").read_text())["resumed"][0]["models"] == done


@pytest.mark.gpu
def test_a_sweep_of_fleets_that_was_killed_goes_on_to_the_same_bits(make_engine, tmp_path):
    """On a GPU: two fleets are at work whenever the signal comes, and both are trained again."""
    if not has_fleets(make_engine("fused", "bf16")):
        pytest.skip("this GPU trains one model at a time")
    argv = ("--engine", "fused", "--precision", "bf16", "--batch-size", "8", "--epochs", "2", "--lr", "0.02")
    argv = ("sweep", *argv, "--seeds", "240", "--jobs", "6")
    images = {"MNIST_TINY_IMAGES": "4000"}
    for name in ("whole", "killed"):
        process = start(*argv, "--out", tmp_path / name, **images)
        if name == "killed":
            rows_of(tmp_path / name, 1)
            process.kill()
        process.communicate(timeout=120)
    done = len(rows_of(tmp_path / "killed", 1))
    assert done < 240
    again = start("sweep", "--resume", tmp_path / "killed", "--json", **images)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert json.loads(out)["models_trained"] == 240 - done
    assert but_times(table(tmp_path / "killed")) == but_times(table(tmp_path / "whole"))


def test_a_command_is_left_while_an_engine_works(tmp_path):
    """One step takes many seconds here; what is done is kept all the same."""
    argv = ("--engine", "reference", "--batch-size", "5", "--epochs", "1", "--jobs", "2")
    (tmp_path / "runs.csv").write_text("batch_size,seed,lr\n5,0,1e30\n3000,1,0\n")
    process = start(
        "sweep", *argv, "--runs", tmp_path / "runs.csv", "--out", tmp_path / "out", MNIST_TINY_IMAGES="3000"
    )
    rows_of(tmp_path / "out", 1, epochs=1)
    assert process.poll() is None
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert time.monotonic() - sent <= LIMIT
    assert process.returncode == 130
    assert [row["model"] for row in table(tmp_path / "out")] == ["0"]


@pytest.mark.parametrize("save", ["all", "best"])
def test_weights_that_changed_are_trained_again(save, tmp_path):
    """One bit in the file of all models, and a file of the best one that is not its own."""
    data, runs, again = tiny_dataset(), [replace(BASE, seed=seed) for seed in range(3)], []
    common = {"engine": "cpu", "out": tmp_path / "out", "save": save}
    rows = sweep(data, runs, **common)
    changed = 1 if save == "all" else rows.best.index
    if save == "all":
        file = tmp_path / "out/weights.safetensors"
        content = bytearray(file.read_bytes())
        content[8 + int.from_bytes(content[:8], "little") + 32 * 9 * 4] ^= 1  # conv1.weight of model 1
        file.write_bytes(content)
    else:
        file = tmp_path / "out/best.safetensors"
        save_model(file, train(data, replace(BASE, seed=9), engine="cpu").model)
    result = sweep(data, runs, **common, resume=True, on_model=lambda row, _: again.append(row.index))
    assert again == [changed]
    assert [row.weights for row in result] == [row.weights for row in rows]
    assert save == "all" or digest(load_model(file).parameters) == rows[changed].weights


def test_what_would_change_the_result_is_refused(tmp_path):
    data, runs = tiny_dataset(), [replace(BASE, seed=seed) for seed in range(2)]
    folder = tmp_path / "out"
    sweep(data, runs, engine="cpu", out=folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    for changed, word in [
        ({"runs": runs[:1]}, "runs"),
        ({"engine": "reference"}, "engine, precision"),
        ({"save": "best"}, "save"),
        ({"each_epoch": True}, "each_epoch"),
        ({"hits": True}, "hits"),
        ({"data": replace(data, train_labels=data.train_labels[::-1].copy())}, "data"),
    ]:
        wanted = {"data": data, "runs": runs, "engine": "cpu"} | changed
        with pytest.raises(UsageError, match=f"with another value of: {word};"):
            sweep(wanted.pop("data"), wanted.pop("runs"), out=folder, resume=True, **wanted)
    with pytest.raises(UsageError, match="a folder with files in it"):
        sweep(data, runs, engine="cpu", out=folder)
    with pytest.raises(UsageError, match="give `out`"):
        sweep(data, runs, engine="cpu", resume=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


OTHER = {  # another value of each option of a run
    "epochs": 2,
    "batch_size": 6,
    "lr": np.nextafter(BASE.lr, 1),
    "schedule": "linear",
    "seed": 1 << 40,
    "eval_bn": "batch",
    "placement": "host",
    "validation": 1,
}


def test_a_resumed_sweep_of_every_option_is_the_one_that_was_begun(tmp_path):
    data, runs = tiny_dataset(), [BASE, replace(BASE, **OTHER), *(replace(BASE, **{k: OTHER[k]}) for k in OTHER)]
    assert list(OTHER) == list(vars(BASE))
    rows = sweep(data, runs, engine="cpu", out=tmp_path / "out")
    again = sweep(data, runs, engine="cpu", out=tmp_path / "out", resume=True, on_model=lambda *_: pytest.fail("done"))
    assert again == rows


@pytest.mark.parametrize("index", [0, 2])
def test_a_resumed_sweep_differs_in_no_option_of_no_run(index, tmp_path):
    """From what it was begun with (runs.csv), and rows that are done (sweep.csv) from either."""
    data, runs = tiny_dataset(), [replace(BASE, epochs=2, seed=9), replace(BASE, seed=1), replace(BASE, seed=2)]
    common = {"engine": "cpu", "out": tmp_path / "out"}
    sweep(data, runs, **common)
    file = tmp_path / "out/sweep.csv"
    good, rows = file.read_text(), read_table(file, 2)
    for name, value in (OTHER | {"epochs": 3 - runs[index].epochs}).items():
        changed = list(runs)
        changed[index] = replace(runs[index], **{name: value})
        file.write_text(good)
        with pytest.raises(UsageError, match="with another value of: runs;"):
            sweep(data, changed, **common, resume=True)
        for wrong in ({"options": changed[index]}, {"index": 3 - index}):
            lines = [csv_row(replace(row, **wrong) if row.index == index else row, 2) for row in rows]
            file.write_text("".join([csv_head(2), *lines]))
            with pytest.raises(CheckpointError, match=r"sweep.csv: model \d is not that of runs.csv$"):
                sweep(data, runs, **common, resume=True)


def test_every_option_of_the_grid_is_kept_by_a_sweep_that_goes_on(tiny, capsys):
    assert tiny(*GRID, "--out", "out", "--quiet") == 0
    flags = {f"--{name.replace('_', '-')}": str(OTHER[name]) for name in OTHER}
    flags |= {"--runs": "runs.csv", "--precision": "fp32", "--engine": "cpu", "--save": "all", "--out": "x"}
    for flag, value in (flags | {"--seeds": "3", "--each-epoch": None, "--hits": None}).items():
        assert tiny("--resume", "out", flag, *([] if value is None else [value])) == 2
        assert f"{flag}: a sweep that goes on keeps what it was begun with" in capsys.readouterr().err.replace("_", "-")


def test_a_sweep_is_no_run_and_a_run_no_sweep(tiny, capsys):
    assert tiny(*GRID, "--out", "sweep", "--quiet") == 0
    assert cli.main(["train", *GRID, "--out", "run", "--quiet"]) == 0
    capsys.readouterr()
    assert cli.main(["train", "--resume", "sweep"]) == 6
    assert tiny("--resume", "run") == 6
    assert capsys.readouterr().err.count("not a run's configuration") == 2


def test_what_is_done_is_kept_when_somebody_raises(tmp_path):
    runs = [replace(BASE, seed=seed) for seed in range(6)]

    def look(row, model):
        if row.index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(tiny_dataset(), runs, engine="cpu", jobs=1, out=tmp_path / "out", on_model=look)
    assert [row["model"] for row in table(tmp_path / "out")] == ["0", "1", "2"]
    again = sweep(tiny_dataset(), runs, engine="cpu", out=tmp_path / "out", resume=True)
    assert [row.index for row in again] == list(range(6))


# ---- who trains ------------------------------------------------------------------------------------------------------


class Fake:
    """Trainers that note what they get."""

    def __init__(self, fails_at=None):
        self.fails_at, self.batches, self.stopped = fails_at, [], None

    def train(self, batch, stop):
        self.batches.append([job.index for job in batch])
        if self.fails_at in self.batches[-1]:
            raise UnavailableError("the GPU fell off")
        self.stopped = stop
        return [Outcome(row_of(job.index), None) for job in reversed(batch)]


def jobs_of(count, **options):
    return [Job(index, replace(BASE, **options)) for index in range(count)]


def alone(count):
    return [[job] for job in jobs_of(count)]


def test_trainers_get_batches_as_they_are():
    fake, jobs = Fake(), jobs_of(10)
    found = [o.row.index for o in train_all([fake], [jobs[:4], jobs[4:]], lambda: False) if o]
    assert fake.batches == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert sorted(found) == list(range(10))
    assert fake.stopped()


def test_each_model_is_trained_by_one_of_several():
    fakes = [Fake(), Fake(), Fake()]
    found = [outcome.row.index for outcome in train_all(fakes, alone(200), lambda: False) if outcome]
    assert sorted(found) == list(range(200))
    assert sorted(index for fake in fakes for batch in fake.batches for index in batch) == list(range(200))


def test_an_error_of_one_ends_all():
    fakes = [Fake(fails_at=5), Fake(fails_at=5)]
    with pytest.raises(UnavailableError, match="the GPU fell off"):
        list(train_all(fakes, alone(10**4), lambda: False))
    assert len(fakes[0].batches) + len(fakes[1].batches) < 10**4


def sizes(jobs, devices):
    """Batch size and number of models of each batch, for a GPU with 132 multiprocessors."""
    batches = batches_of(jobs, lambda run: 132 // share if (share := share_of(FUSED, run)) else 0, devices)
    assert sorted(job.index for batch in batches for job in batch) == sorted(job.index for job in jobs)
    return [(batch[0].options.batch_size, len(batch)) for batch in batches]


def test_batches_are_even_and_as_many_for_each_gpu():
    jobs = jobs_of(200, batch_size=64)
    assert sizes(jobs, 1) == [(64, 29)] * 6 + [(64, 26)]
    assert sizes(jobs, 2) == [(64, 25)] * 8
    assert sizes(jobs, 4) == [(64, 25)] * 8
    assert sizes(jobs[:3], 4) == [(64, 1)] * 3
    longer = [Job(200 + k, replace(BASE, batch_size=64, epochs=2)) for k in range(3)]
    assert sizes([*jobs[:3], *longer], 1) == [(64, 3)] * 2
    kinds = [*jobs_of(9, batch_size=256), Job(9, replace(BASE, batch_size=2)), Job(10, replace(BASE, batch_size=8))]
    assert sizes(kinds, 1) == [(2, 1), (8, 1), (256, 5), (256, 4)]
    assert sizes(kinds, 2) == [(2, 1), (8, 1), (256, 5), (256, 4)]


@pytest.mark.gpu
def test_every_gpu_trains_the_same_bits(make_engine, monkeypatch):
    """Here all of them are the first one; what each gets is what `gpus` of a machine with several get."""
    engine = make_engine("fused", "bf16")
    if not has_fleets(engine):
        pytest.skip("this GPU trains one model at a time")
    runs = [replace(BASE, seed=seed) for seed in range(9)] + [replace(BASE, lr=1e30), replace(BASE, batch_size=35)]
    rows = sweep(tiny_dataset(), runs, engine="fused", precision="bf16", jobs=2)
    devices, found = [], _native.gpus()
    monkeypatch.setattr(_native, "gpus", lambda: found[:1] * 3)
    make = Engine.__init__

    def first(self, *args, device=0, **more):
        devices.append(device)
        make(self, *args, **more)

    monkeypatch.setattr(Engine, "__init__", first)
    again = sweep(tiny_dataset(), runs, engine="fused", precision="bf16", jobs=2, gpus=(0, 1, 2))
    assert sorted(devices) == [0, 0, 1, 1, 2, 2]
    assert [replace(row, training_seconds=None) for row in again] == [
        replace(row, training_seconds=None) for row in rows
    ]


def test_engines_that_train_one_model_at_a_time_do_so_on_each_gpu(monkeypatch):
    rows, made, make = _native.engines(), [], Engine.__init__
    monkeypatch.setattr(_native, "engines", lambda: [{**row, "device": "cuda"} for row in rows])

    def on_the_host(self, *args, device=0, **more):
        made.append(device)
        make(self, *args, **more)

    monkeypatch.setattr(Engine, "__init__", on_the_host)
    runs = [replace(BASE, seed=seed) for seed in range(8)]
    found = sweep(tiny_dataset(), runs, engine="cpu", gpus=(0, 1))
    assert made == [0, 1]
    want = sweep(tiny_dataset(), runs, engine="cpu")
    assert [row.weights for row in found] == [row.weights for row in want]


# ---- what people see -------------------------------------------------------------------------------------------------


def test_what_it_prints(tiny, capsys):
    assert tiny(*GRID, "--seeds", 12, "--jobs", 1, "--out", "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["engine", "data", "plan", "folder"]
    assert lines[2] == "plan    12 models, 1 at once"
    shown = [line.split()[0] for line in lines[4:-1]]
    assert shown == [f"{done}/12" for done in (2, 3, 4, 5, 6, 8, 9, 10, 11, 12)]
    assert all(" models/s  " in line and " left  test " in line for line in lines[4:-1])
    accuracies = [100 * float(row["test_accuracy"]) for row in table("out")]
    mean, deviation = np.mean(accuracies), np.std(accuracies, ddof=1)
    text = f"; test {mean:.2f} ± {deviation:.2f} %, {min(accuracies):.2f} to {max(accuracies):.2f}; saved out/sweep.csv"
    assert lines[-1].startswith("12 models in ")
    assert lines[-1].endswith(f" on tiny{text}")


def test_a_long_sweep_begins_with_an_estimate(tiny, capsys, monkeypatch):
    """By the images that are trained on, before a model is done."""
    monkeypatch.setattr(console, "LONG", 0.0)
    monkeypatch.setattr(console, "EARLY", 0.0)
    said = []
    monkeypatch.setattr(console.Estimate, "say", lambda self, seconds: said.append(seconds))
    with Sweep(tiny_dataset(), [replace(BASE, epochs=2, seed=seed) for seed in range(4)], engine="cpu") as task:
        estimate, fractions = console.Estimate(console.make_console()), []
        task.run(on_wait=lambda: (fractions.append(task.fraction), estimate.after(task.fraction)))
    assert fractions == sorted(fractions)
    work = 2 * 35 + (35 + 20) / 3
    assert fractions[-1] == pytest.approx(2 * 35 / work)
    assert len(said) == sum(fraction > 0 for fraction in fractions)


def test_a_long_sweep_says_it_once(tiny, capsys, monkeypatch):
    monkeypatch.setattr(console, "LONG", 0.0)
    monkeypatch.setattr(console, "EARLY", 0.0)
    assert tiny(*GRID, "--seeds", 3, "--out", "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" about")[0] for line in lines].count("takes  ") == 1
    assert tiny(*GRID, "--seeds", 3, "--out", "again", "--quiet") == 0
    assert "takes" not in capsys.readouterr().out


@pytest.mark.parametrize("fails", [False, True])
def test_the_library_shows_how_far_it_is(monkeypatch, fails):
    """Where `display` shows it; taken away at the end, also by an error."""
    wanted, shown, closed = [], [], []
    line = SimpleNamespace(show=lambda *what: shown.append(what), close=lambda: closed.append(True))
    module = sys.modules["mnist_cuda.sweeps.sweep"]
    monkeypatch.setattr(module, "display", lambda progress: (wanted.append(progress), line)[1])
    runs = [replace(BASE, seed=seed) for seed in range(3)]
    if fails:
        with pytest.raises(ZeroDivisionError):
            sweep(tiny_dataset(), runs, engine="cpu", progress=True, on_model=lambda *_: 1 / 0)
    else:
        sweep(tiny_dataset(), runs, engine="cpu")
        fractions, models, _ = zip(*shown, strict=True)
        assert list(fractions) == sorted(fractions)
        assert models[-1] == "3/3 models"
    assert (wanted, closed) == ([True if fails else None], [True])


def test_of_recipes_it_prints_the_best_and_no_mean_over_them(tiny, capsys):
    argv = ("--engine", "cpu", "--batch-size", 5, 8, "--lr", 0.02, 0.1, 1e30, "--epochs", 2, "--seeds", 2)
    assert tiny(*argv, "--jobs", 1, "--out", "out", "--json", "out.json") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = table("out")
    right = {}
    for row in rows:
        accuracy = 100 * float(row["test_accuracy"] or 0)
        right.setdefault((row["batch_size"], f"{float(row['lr']):g}"), []).append(accuracy)
    ranked = sorted(right.items(), key=lambda item: -np.mean(item[1]))
    (batch, lr), best = ranked[0]
    at = next(k for k, line in enumerate(lines) if line.startswith("batch"))
    assert lines[at].split() == ["batch", "lr", "models", "test,", "%", "deviation", "least", "most", "diverged"]
    assert [line.split()[:4] for line in lines[at + 1 : at + 6]] == [
        [*values, "2", f"{np.mean(found):.2f}"] for values, found in ranked[:5]
    ]
    assert lines[at + 6] == "the best 5 of 6; `mnist-cuda report out` shows all"
    said = f"best recipe: batch {batch}, lr {lr}; test {np.mean(best):.2f} % (mean of 2 seeds); 4 diverged"
    assert lines[-1].endswith(f" on tiny; {said}; saved out/sweep.csv")
    assert not any("±" in line for line in lines), "a mean over different recipes says nothing"
    report = json.loads(Path("out.json").read_text())
    assert (report["recipes"], report["mean_accuracy"]) == (6, None)
    assert report["best_recipe"] == {
        "options": {"batch_size": batch, "lr": lr},
        "models": 2,
        "diverged": 0,
        "mean_accuracy": pytest.approx(np.mean(best) / 100),
        "held_out_accuracy": None,
    }
    assert tiny(*GRID, "--validation", 5, "--lr", 0.02, 0.03, "--out", "held", "--quiet") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.search(
        r"; best recipe: lr 0\.0[23]; test [0-9.]+ %, chosen by [0-9.]+ % of the images held out; saved held/sweep",
        line,
    )
    assert tiny(*GRID, "--out", "alone", "--quiet") == 0
    assert re.search(r" on tiny; test [0-9.]+ %; saved alone/sweep\.csv\n$", capsys.readouterr().out)


def test_config_records_what_it_was(tiny):
    assert tiny(*GRID, "--seeds", 2, "--jobs", 2, "--save", "best", "--quiet") == 0
    (folder,) = Path("sweeps").iterdir()
    config = json.loads((folder / "config.json").read_text())
    kept = {"save": "best", "each_epoch": False, "hits": False}
    assert config["sweep"] == {"models": 2, **kept, "data_dir": None, "limit": 0}
    assert config["engine"] == {"name": "cpu", "precision": "fp32", "device": "cpu", "chosen_by": "name"}
    assert (config["at_once"], config["data"]["digest"]) == (2, tiny_dataset().digest)
    axes = {"seed": range(2), "epochs": [1], "batch_size": [5], "lr": [0.02]}
    assert read_runs(folder / "runs.csv", {}) == grid(axes)
    assert tiny("--resume", "--quiet") == 0  # the newest


def test_what_a_sweep_returns_is_also_arrays_and_a_data_frame():
    data = tiny_dataset()
    runs = [TrainOptions(epochs=epochs, batch_size=5, lr=lr) for epochs, lr in ((1, 0.02), (2, 1e30), (2, 0.02))]
    found = sweep(data, runs, engine="cpu")
    assert [row.options for row in found] == runs
    columns = found.arrays
    assert columns["lr"].tolist() == [0.02, 1e30, 0.02]
    assert columns["correct"].shape == (3, 10)
    assert columns["losses"].shape == columns["train_accuracies"].shape == (3, 2)
    assert columns["test_accuracies"].shape == (3, 0)
    for k, row in enumerate(found):
        assert np.isnan(columns["test_accuracy"][k]) == bool(row.fault)
        np.testing.assert_array_equal(columns["losses"][k][: len(row.losses)], row.losses)
        assert np.isnan(columns["losses"][k][len(row.losses) :]).all()
    assert columns["correct"][2].sum() == 20 * columns["test_accuracy"][2]
    assert found.best is max(found, key=lambda row: row.rank)
    assert (
        repr(found) == f"SweepResult(3 models, best {100 * found.best.test_accuracy:.2f} %, model {found.best.index})"
    )
    assert found._repr_html_().count("<tr>") == 4
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = found.frame()
    assert frame.shape[0] == 3
    assert frame["loss_2"].tolist()[2] == found[2].losses[1]
    assert frame["train_accuracy_2"].tolist()[2] == found[2].train_accuracies[1]
    assert frame["correct_9"].tolist()[0] == found[0].correct[9]
