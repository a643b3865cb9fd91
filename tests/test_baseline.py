"""The PyTorch baseline as a program: its precision, protocol, training and errors; and scripts/peers' own errors."""

import copy
import importlib.util
import json
import shutil
import subprocess
import sys
from itertools import pairwise

import cases
import numpy as np
import pytest
from conftest import FULL, ROOT

from mnist_cuda.bench.competitors import PEER_SCRIPTS, has_module
from mnist_cuda.bench.process import CompetitorProcess
from mnist_cuda.engine.tolerances import error_of

COMPILES = pytest.mark.skipif(not FULL, reason="compiles for a minute: MNIST_CUDA_TEST_FULL=1")


@pytest.fixture(scope="module")
def files(peer):
    """The setup's fields that name 48 images, weights and an order of two different epochs."""
    order = [np.arange(48), np.arange(48)[::-1]]
    return peer.files(cases.strokes(48), cases.labels(48), cases.initial_weights(), order)


def test_modes_and_layouts_agree(peer):
    """In float64 the layout changes rounding alone; bf16 is bf16."""
    case = (cases.strokes(8), cases.labels(8), cases.signed_weights())
    plain, other_way, rounded = peer.probes(*case, {}, {"channels_last": True, "data": "host"}, {"precision": "bf16"})
    for name, value in plain.items():
        if name not in ("gradient.conv1.bias", "gradient.conv2.bias"):
            assert error_of(other_way[name], value) <= 1e-9, name
    assert 1e-4 <= error_of(rounded["logits"], plain["logits"]) <= 5e-2


@pytest.fixture(scope="module")
def jax_peer(peer):
    python = peer.command[0]
    if not has_module(python, "jax"):
        pytest.skip(f"{python} has no JAX; run scripts/peers --jax")
    found = copy.copy(peer)
    found.command = [python, str(PEER_SCRIPTS / "jax_baseline.py")]
    return found


def test_options_of_jax_compute_the_same(peer, jax_peer):
    """In float64, gradients and all; each has convolutions or batch norms of its own."""
    images = np.random.default_rng(5).integers(0, 256, (8, 28, 28), np.uint8)  # no ties in a pooling window
    case = (images, cases.labels(8), cases.initial_weights())
    options = (["vjp"], ["one-pass", "convolutions"], ["vjp", "conv1-products", "floats"])
    (plain,) = peer.probes(*case, {"options": ["floats"]})
    for probe in jax_peer.probes(*case, *({"mode": "step", "options": words} for words in options)):
        for name, value in plain.items():
            if name not in ("gradient.conv1.bias", "gradient.conv2.bias"):
                assert error_of(probe[name], value) <= 1e-9, name


def steps_of(command, setup, count):
    """The losses of so many single steps, twice, with what the weights were set to in between."""
    with CompetitorProcess(command) as process:
        process.ask(cmd="setup", **setup)
        losses = []
        for _ in range(2):
            losses.append([process.ask(cmd="run", steps=1)["losses"][0] for _ in range(count)])
            process.ask(cmd="restart")
        return losses


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("torch", ("eager",)),
        pytest.param("torch", ("compile",), marks=COMPILES),
        pytest.param("torch", ("compile", "whole"), marks=COMPILES),
        ("jax", ()),
        ("jax", ("one-pass",)),
        ("jax", ("vjp",)),
    ],
)
def test_ranks_train_as_one(request, peer, files, framework, words):
    """In float64: with statistics of a share, or its gradients alone, other losses would follow."""
    who = peer if framework == "torch" else request.getfixturevalue("jax_peer")
    mode, options = (words[0], words[1:]) if framework == "torch" else ("scan", words)
    setup = files | {"mode": mode, "options": options, "precision": "fp64", "batch_size": 8, "threads": 1}
    (expected, _) = steps_of([*who.command, "--serve"], setup, 8)
    fan_out = [sys.executable, "-m", "mnist_cuda.bench.fan_out", "2", *who.command, "--serve"]
    found = steps_of(fan_out, setup, 8)
    assert found[0] == found[1]
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)


def test_fp16_skips_steps_until_its_scale_fits(peer, jax_peer):
    """The same batch over and over: a step that overflows leaves the loss as it was, in either framework's scaler."""
    order = np.tile(np.arange(8), 10)
    weights = cases.initial_weights()
    weights["fc2.weight"] = 30 * weights["fc2.weight"]
    files = peer.files(cases.strokes(8), cases.labels(8), weights, order)
    setup = {"cmd": "setup", "batch_size": 8, "lr": 1e-4, "threads": 1, "options": ["fp16"], **files}
    steps = [{"cmd": "run", "steps": 1}] * 10
    found = []
    for who in (peer, jax_peer):
        answers = who.serve(setup, *steps, {"cmd": "restart"}, *steps)
        losses = [answer["losses"][0] for answer in answers if "losses" in answer]
        assert losses[10:] == losses[:10]  # the scale, too, begins again
        found.append([losses[k + 1] == losses[k] for k in range(9)])
    assert found[0] == found[1]
    assert found[0][0]  # the first scale is too large for these weights
    assert not all(found[0])


@COMPILES
@pytest.mark.parametrize("options", [[], ["whole"], ["whole", "floats"]])
def test_a_compiled_step_trains_as_an_eager_one(options, peer, files):
    setup = {"cmd": "setup", "batch_size": 8, "precision": "fp64", "threads": 1, **files}
    compiled = {**setup, "mode": "compile", "channels_last": True, "options": options}
    answers = peer.serve(setup, {"cmd": "run", "steps": 7}, compiled, {"cmd": "run", "steps": 7})
    assert answers[2].get("ok"), answers[2]
    np.testing.assert_allclose(answers[3]["losses"], answers[1]["losses"], rtol=1e-9)


def test_protocol(peer, files, make_engine):
    """A served run gives the losses of the same steps by the reference, also after an error."""
    setup = {"cmd": "setup", "batch_size": 16, "precision": "fp64", "lr": 0.05, "threads": 1, "device": "cpu", **files}
    answers = peer.serve(
        {"cmd": "run", "steps": 1},
        {**setup, "batch_size": 49},
        {**setup, "colour": "red"},
        {"cmd": "jump"},
        setup,
        {"cmd": "run", "steps": 2},
        {"cmd": "run", "steps": 3},
        {"cmd": "restart"},
        {"cmd": "run", "steps": 2},
        {"cmd": "run", "steps": 0},
        {"cmd": "evaluate"},
        {"cmd": "quit"},
    )
    assert [list(answer) for answer in answers[:4]] == [["error"]] * 4
    assert answers[1]["error"] == "batch size 49 exceeds the 48 samples of an epoch"
    assert answers[2]["error"] == "setup knows no colour"
    assert answers[4]["ok"] is True
    assert answers[4]["versions"]["torch"]
    assert "ieee" in answers[4]["precision_pinned"] or "allow_tf32=False" in answers[4]["precision_pinned"]
    assert answers[5]["seconds"] > 0
    assert answers[7] == {"ok": True}
    assert answers[8]["losses"] == answers[5]["losses"]
    assert answers[9:] == [
        {"error": "steps is 0, expected at least 1"},
        {"error": "the data has no test images"},
    ]

    engine = make_engine("reference")
    engine.set_parameters(cases.initial_weights())
    engine.set_dataset(cases.strokes(48), cases.labels(48))
    losses, _ = engine.train(np.tile(np.arange(48), 2)[: 5 * 16], 16, 0.05)
    np.testing.assert_allclose(answers[5]["losses"], losses[[0, 1]], rtol=1e-9)
    np.testing.assert_allclose(answers[6]["losses"], losses[[2, 4]], rtol=1e-9)


def test_training_and_its_accuracy(peer, files, make_engine, tmp_path):
    """Two epochs in the orders given, then the accuracy under population statistics: what the reference finds."""
    with np.load(files["npz"]) as arrays:
        data = dict(arrays)
    data |= {"test_images": cases.strokes(40, seed=9), "test_labels": cases.labels(40, seed=3)}
    np.savez(tmp_path / "data.npz", **data)
    named = ["--npz", str(tmp_path / "data.npz"), "--weights", files["weights"], "--order", files["order"]]
    run = peer.run(*named, "--epochs", "2", "--batch-size", "20", "--precision", "fp64", "--threads", "1", "--json")
    assert run.returncode == 0, run.stderr
    epochs = json.loads(run.stdout)["epochs"]

    engine = make_engine("reference")
    engine.set_parameters(cases.initial_weights())
    engine.set_dataset(data["images"], data["labels"])
    for epoch, order in enumerate((np.arange(48), np.arange(48)[::-1])):
        losses, _ = engine.train(order[:40], 20, 0.05)  # what is left after two batches is dropped
        engine.compute_statistics()
        accuracy = (engine.logits(data["test_images"]).argmax(1) == data["test_labels"]).mean()
        assert epochs[epoch]["loss"] == pytest.approx(losses[-1], rel=1e-9)
        assert epochs[epoch]["test_accuracy"] == pytest.approx(accuracy)


def test_timing(peer, files):
    named = [part for key, path in files.items() for part in (f"--{key}", path)]
    run = peer.run(*named, "--batch-size", "8", "--iters", "20", "--threads", "1", "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    times = report["iteration"]
    assert 0 < times["min_us"] <= times["p5_us"] <= times["median_us"] <= times["p95_us"]
    assert times["iterations"] == times["blocks"] * times["iterations_per_block"] >= 20
    assert times["median_us"] * times["iterations_per_block"] >= 0.5 * 50_000
    assert report["setup_seconds"] > 0


def test_trace(peer, files, tmp_path):
    """Spans from the first step's beginning on, in steps that follow one another."""
    named = [part for key, path in files.items() for part in (f"--{key}", path)]
    run = peer.run(*named, "--batch-size", "8", "--threads", "1", "--trace", str(tmp_path / "t.json"))
    assert run.returncode == 0, run.stderr
    events = cases.trace_spans(tmp_path / "t.json")
    steps = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("step ")]
    assert [name for name, _, _ in steps] == [f"step {k + 1}" for k in range(10)]
    assert steps[0][1] == 0
    assert all(end <= start for (_, _, end), (_, start, _) in pairwise(steps))
    assert sum("conv" in e["name"] for e in events) >= 40  # two layers forward and backward


def test_overlapping_spans_of_a_trace_get_rows_of_their_own(tmp_path):
    """As kernels side by side in a CUDA graph have; what lies within another stays."""
    spec = importlib.util.spec_from_file_location("baseline", PEER_SCRIPTS / "baseline.py")
    baseline = importlib.util.module_from_spec(spec)
    sys.modules["baseline"] = baseline  # dataclasses look there
    spec.loader.exec_module(baseline)

    def span(name, ts, dur, tid=7):
        return {"ph": "X", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}

    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "ts": 3, "args": {"name": "stream"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 9, "args": {"name": "empty"}},
        *(span("step 1", 100, 40, 8), span("step 2", 150, 40, 8), span("before", 90, 5), span("after", 190, 5)),
        *(span("a", 110, 20), span("within a", 115, 5), span("beside a", 120, 15), span("beside both", 125, 20)),
        *(span("next", 150, 1), {"ph": "i", "name": "an instant", "pid": 1, "tid": 7, "ts": 101}),
    ]
    baseline.write_trace(str(tmp_path / "t.json"), events, 2)
    spans = cases.trace_spans(tmp_path / "t.json")
    assert {e["name"]: (e["ts"], e["tid"]) for e in spans} == {
        **{"step 1": (0, 8), "step 2": (50, 8), "a": (10, 7), "within a": (15, 7), "next": (50, 7)},
        **{"beside a": (20, 9), "beside both": (25, 10)},
    }
    written = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in written if e["ph"] == "M"}
    assert names == {7: "stream", 9: "stream (2)", 10: "stream (3)"}


def test_errors_of_setup(peer, files):
    wrong = {
        "name the data by exactly one of data_dir and npz": {"npz": None},
        "/nowhere: there is no such file or folder": {
            "npz": None,
            "data_dir": "/nowhere",
        },
        "batch size is 0, expected at least 1": {"batch_size": 0},
        "learning rate is nan, expected a finite number >= 0": {"lr": float("nan")},
        "option 'fp8' is unknown, expected some of whole, fp16, floats": {"options": ["fp16", "fp8"]},
        "option whole is of modes compile and max-autotune": {"options": ["whole"]},
        "precision is 'fp8', expected one of fp32, tf32, bf16, fp64": {"precision": "fp8"},
        "mode graph captures a CUDA graph and needs --device cuda": {"mode": "graph"},
        "precision tf32 needs --device cuda": {"precision": "tf32"},
        f"{files['npz']}: expected one or more rows of integers from 0 to 47": {"order": files["npz"]},
    }
    setup = {"cmd": "setup", "batch_size": 16, **files}
    answers = peer.serve(*({**setup, **change} for change in wrong.values()))
    assert [answer.get("error") for answer in answers] == list(wrong)


def test_an_error_is_one_line_and_an_exit_code(peer, files):
    run = peer.run("--npz", files["npz"], "--batch-size", "49")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "error: batch size 49 exceeds the 48 samples of an epoch\n"


def test_peers_names_what_is_wrong(tmp_path):
    """A copy, so that no environment of the checkout is touched."""
    script = tmp_path / "scripts" / "peers"
    for name in ("scripts/peers", "scripts/setup.sh", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for arguments, python, code, text in (
        (["--nonsense"], "python3", 2, "unknown argument '--nonsense'"),
        ([], "/no/such/python", 4, "there is no /no/such/python"),
    ):
        run = subprocess.run([script, *arguments], env={"PATH": "/usr/bin:/bin", "PYTHON": python}, capture_output=True)
        assert run.returncode == code
        assert text in run.stderr.decode()
        assert run.stderr.count(b"\n") == 1
    assert not (tmp_path / ".venv-peers").exists()
