"""`bench share`: a record of the machine at hand, its row, and files that `--check` must refuse."""

import copy
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from tiny import prints, said, tiny_dataset

from mnist_cuda import machine
from mnist_cuda.bench import ops, share
from mnist_cuda.data.catalogue import DATASETS
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import digest
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.train import train

COMMIT = "0123456789" * 4


def us(median, spread=1.1):
    fast, slow = median / spread, median * spread
    return {"mean": median, "median": median, "p5": fast, "p95": slow, "min": fast, "count": 10}


def op(**more):
    row = {"op": "relu", "variant": "naive", "library": False, "absent": "", "cold_us": 10.0, "warm_us": 5.0}
    return row | {"error": 1e-7, "bound": 1e-5, "percent_of_roof": 60.0, "library_ratio": 0.9} | more


def record(gpu="NVIDIA H200", **more):
    """Such as an honest machine leaves, with its digest."""
    times = {"fp32": (42.0, 91.0, 278.0), "bf16": (28.0, 40.0, 88.0)} if gpu else {"fp32": (5652.0, 23361.0, 83328.0)}
    runs = [{"seed": k, "test_accuracy": 0.989 + k / 1e4, "parameters_sha256": f"{k}" * 64} for k in range(3)]
    roofs = {"bytes_per_second": 4e12, "fma_flops": 6e13}
    recipe = {"epochs": 3, "batch_size": 64, "lr": 0.05}
    value = {
        "started": "2026-11-25T12:00:00+00:00",
        "command": "mnist-cuda bench share",
        "commit": COMMIT,
        "versions": {"mnist-cuda": "0.1.0", "build": "GNU 12", "python": "3.12", "numpy": "2", "platform": "Linux"},
        "machine": {
            "cpu": "A Processor",
            "cores": 2,
            "load_before": [0.1, 0.1, 0.1],
            "driver": "580.1",
            "gpu": {"name": gpu} if gpu else None,
        },
        "card": gpu or "A Processor",
        "engine": "fused" if gpu else "cpu",
        "settings": {"threads": 2},
        "data": {"name": "mnist", "digest": DATASETS["mnist"].digest},
        "steps": [
            {"precision": name, "batch_size": batch, "us": us(median)}
            for name, medians in times.items()
            for batch, median in zip(share.BATCH_SIZES, medians, strict=True)
        ],
        "ops": {"batch_size": 256, "roofs": roofs, "rows": [op()]} if gpu else None,
        "accuracy": [{"precision": name, **recipe, "runs": copy.deepcopy(runs)} for name in times],
    } | more
    return value | {"digest": share.digest_of(value)}


def check(capsys, folder, value):
    file = folder / "card.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return said(capsys, "bench", "share", "--check", file)


def test_a_sound_file_gives_its_row(capsys, tmp_path):
    code, out, err = check(capsys, tmp_path, record())
    assert (code, err) == (0, "")
    sound, row = out.splitlines()
    assert sound.endswith("card.json: sound, of NVIDIA H200")
    assert row == (
        "| NVIDIA H200 | fused | fp32<br>bf16 | 42<br>28 | 91<br>40 | 278<br>88 | 1 of 1 | 98.91 %<br>98.91 % | "
        f"0.1.0 at 0123456, GNU 12, driver 580.1 | 2026-11-25 | {record()['digest'][:12]} |"
    )
    code, out, _ = check(capsys, tmp_path, record(gpu=None))
    assert code == 0
    assert "| A Processor, 2 threads | cpu | fp32 | 5,652 | 23,361 | 83,328 | - | 98.91 % |" in out
    busy = record()["machine"] | {"load_before": [1.5, 0.0, 0.0]}
    assert "| NVIDIA H200 (**busy**: load 1.5) |" in check(capsys, tmp_path, record(machine=busy))[1]


def changed(*path, to):
    """A record with another value at a place, and the digest that fits it."""
    value = record()
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return value | {"digest": share.digest_of(value)}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[]", "expected what `mnist-cuda bench share --json FILE` wrote: it is a list, expected an object"),
        ("{", "it is no JSON"),
        ({"started": "2026"}, "`command` is missing"),
        (record() | {"engine": "cpu"}, "it was changed later"),
        (changed("commit", to=COMMIT + "-dirty"), "expected 40 digits"),
        (changed("started", to="yesterday"), "it was started at 'yesterday'"),
        (changed("card", to="NVIDIA B200"), "its card is 'NVIDIA B200' and its machine has 'NVIDIA H200'"),
        (changed("data", "digest", to="ab" * 32), "expected MNIST"),
        (changed("ops", to=None), "it has a GPU without ops"),
        (changed("machine", "load_before", to=[]), "has not three numbers"),
        (changed("settings", "threads", to=0), "it was measured by 0 threads"),
        (changed("steps", to=[]), "it has no steps"),
        (changed("steps", 0, "batch_size", to=65), "its steps in fp32 are of [65, 256, 1024] images"),
        (changed("steps", 0, "us", "p95", to=1.0), "no min <= p5 <= median <= p95"),
        (changed("steps", 3, "us", to=us(0.3)), "a step of 64 images in bf16 takes 0.3 us, and nothing"),
        (changed("steps", 2, "us", to=us(50.0)), "takes 50 us, less than one of fewer images with 91"),
        (changed("ops", "rows", 0, "error", to=1e-3), "op relu, variant naive is off by 1.0e-03"),
        (changed("ops", "rows", 0, "cold_us", to=None), "has no error or no time"),
        (changed("ops", "rows", 0, "percent_of_roof", to=300.0), "is at 300 % of the best"),
        (changed("accuracy", 1, "runs", 2, "test_accuracy", to=0.9991), "has a test accuracy of 99.91 %"),
        (changed("accuracy", 0, "runs", 1, "seed", to=0), "not of the seeds 0 to 2"),
        (changed("accuracy", 0, "runs", 1, "parameters_sha256", to="0" * 64), "not 3 different SHA-256"),
        (changed("accuracy", 0, "lr", to=0.1), "it was trained by epochs, batch size and rate"),
        (changed("accuracy", 0, "precision", to="fp64"), "not of the precisions of its steps"),
    ],
    ids=lambda value: value.replace(" ", "-")[:40] if isinstance(value, str) else "",
)
def test_a_bad_file_is_one_line(capsys, tmp_path, value, words):
    code, out, err = check(capsys, tmp_path, value)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err
    assert "card.json: " in err


def test_a_file_that_is_not_there_and_flags_that_measure(capsys, tmp_path):
    code, _, err = said(capsys, "bench", "share", "--check", tmp_path / "no.json")
    assert (code, err.count("\n")) == (6, 1)
    code, _, err = said(capsys, "bench", "share", "--check", tmp_path / "no.json", "--engine", "cpu")
    assert (code, err.count("\n")) == (2, 1)
    assert "--check does not use --engine" in err


def test_an_absent_op_is_no_fault(capsys, tmp_path):
    absent = op(absent="it needs compute capability 9.0", cold_us=None, warm_us=None, error=None, library_ratio=None)
    report = record()["ops"] | {"rows": [op(library_ratio=1.2), op(variant="float4", library_ratio=0.8), absent]}
    assert check(capsys, tmp_path, record(ops=report))[0] == 0
    assert share.ops_text(report) == "1 of 1"
    assert share.ops_text(report | {"rows": [op(library_ratio=1.2)]}) == "0 of 1"


@pytest.fixture
def quick(tiny, monkeypatch):
    """On the tiny data set, taken for MNIST, with few and small blocks."""
    monkeypatch.setenv("MNIST_TINY_IMAGES", "100")
    monkeypatch.setenv("MNIST_CUDA_COMMIT", COMMIT)
    monkeypatch.setattr(share, "BLOCKS", 3)
    monkeypatch.setattr(share, "BATCH_SIZES", (5, 50))
    monkeypatch.setattr(share, "ACCURACIES", (0.0, 1.0))
    monkeypatch.setattr(machine, "commit", lambda: COMMIT)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    info = replace(DATASETS["mnist"], digest=tiny_dataset().digest)
    monkeypatch.setattr(share, "DATASETS", {"mnist": info})


def test_what_it_measures(quick, capsys, tmp_path):
    """The record of this machine passes its own check, and its trainings are those of `train`."""
    file = tmp_path / "me.json"
    code, out, err = said(capsys, "bench", "share", "--engine", "cpu", "--threads", 1, "--json", file)
    assert code == 0, err
    found = json.loads(file.read_text())
    assert found["digest"][:12] in out
    assert f"written: {file}" in err
    assert [row["batch_size"] for row in found["steps"]] == [5, 50]
    assert all(row["us"]["count"] == 3 for row in found["steps"])
    engine = Engine("cpu", threads=1)
    again = train(tiny_dataset(), TrainOptions(epochs=3, seed=1), engine=engine)
    run = found["accuracy"][0]["runs"][1]
    assert (run["test_accuracy"], run["parameters_sha256"]) == (again.accuracy, digest(again.model.parameters))
    checked = prints(capsys, "bench", "share", "--check", file)
    assert checked.splitlines()[1] == out.strip()


def test_a_step_is_timed_by_the_clock(monkeypatch):
    """The steps of a block, times the batch, are the images that it trains on."""
    calls = []

    class Fake:
        dataset_size = 7

        def train(self, order, batch, lr):
            calls.append((len(order), batch, int(order.max())))
            return np.zeros(1), np.zeros(1)

    monkeypatch.setattr(share, "BLOCKS", 2)
    monkeypatch.setattr("time.perf_counter", iter(np.arange(0, 1e6, 0.2)).__next__)
    summary = share.time_step(Fake(), 3)
    assert {batch for _, batch, _ in calls} == {3}
    assert all(count % 3 == 0 and most < 7 for count, _, most in calls)
    steps = calls[-1][0] // 3
    assert summary.median == pytest.approx(0.2e6 / steps)


def test_the_ops_of_a_gpu_are_in_it(quick, capsys, tmp_path, monkeypatch):
    """As if engine cpu were on a GPU; the ops of which are made up."""
    info = replace(share.find_engine("cpu"), device="cuda")
    monkeypatch.setattr(share, "find_engine", lambda _: info)
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA X"})
    report = {"roofs": {"bytes_per_second": 4e12, "fma_flops": 6e13}, "rows": [op(shape="(4,)", kernels=[])]}
    monkeypatch.setattr(ops, "measure", lambda *asked: report if asked == ("", "", 256, 0) else None)
    file = tmp_path / "me.json"
    assert said(capsys, "bench", "share", "--json", file)[0] == 0
    found = json.loads(file.read_text())
    assert found["ops"]["rows"] == [op()]
    assert (found["card"], found["machine"]["gpu"]) == ("NVIDIA X", {"name": "NVIDIA X"})


def test_synthetic_digits_are_no_row(quick, capsys, monkeypatch):
    monkeypatch.setattr(share, "DATASETS", DATASETS)
    err = prints(capsys, "bench", "share", "--engine", "cpu", "--threads", 1, code=1)
    assert "--check would refuse it: its data are 'tiny'" in err


def test_an_emulated_card_is_no_row(capsys, monkeypatch):
    monkeypatch.setenv("MNIST_CUDA_FUSED_LIMITS", "58,101376")
    code, _, err = said(capsys, "bench", "share")
    assert (code, err.count("\n")) == (2, 1)
    assert "MNIST_CUDA_FUSED_LIMITS is set" in err
