"""The PyTorch baseline as a program: its precision, protocol, training and errors; and scripts/peers' own errors."""

import copy
import gzip
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise

import cases
import numpy as np
import pytest
from conftest import FULL, ROOT
from data_server import idx, write
from tiny import shell_program

from mnist_cuda.bench.competitors import PEER_SCRIPTS, has_module
from mnist_cuda.bench.process import CompetitorProcess
from mnist_cuda.data import catalogue
from mnist_cuda.engine import find_engine
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


@pytest.fixture
def baseline(monkeypatch):
    """What the baselines share, as a module."""
    spec = importlib.util.spec_from_file_location("baseline", PEER_SCRIPTS / "baseline.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "baseline", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_overlapping_spans_of_a_trace_get_rows_of_their_own(baseline, tmp_path):
    """As kernels side by side in a CUDA graph have; what lies within another stays."""

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


COMPARED = re.compile(
    r"([\d.]+) times as long as `(\w+)` of mnist-cuda, which takes ([\d.]+) us an iteration here "
    r"\(fp32, batch 8, by \S+\)"
)


@pytest.mark.parametrize("arguments", [[], ["--device", "cpu", "--epochs", "2"]])
def test_by_hand_it_takes_what_is_here_and_compares(arguments, peer, tmp_path, monkeypatch):
    """The GPU if there is one, the cached data, and the engine that this machine would train with."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    arrays = 2 * (cases.strokes(48), cases.labels(48))
    files = {f"{name}-ubyte.gz": gzip.compress(idx(array)) for name, array in zip(names, arrays, strict=True)}
    write(tmp_path / "mnist", files)
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path))
    run = peer.run("--batch-size", "8", "--iters", "20", "--threads", "1", *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    times, engine, us = COMPARED.fullmatch(lines[-1]).groups()
    if arguments:
        assert "--device" not in run.stdout
        assert engine == "cpu"
        assert sum(line.startswith("epoch ") for line in lines) == 2
    else:
        finds = subprocess.run(
            [peer.command[0], "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True
        )
        device = "cuda, as PyTorch finds a" if finds.stdout == b"True\n" else "cpu, as PyTorch finds no"
        assert lines[0] == f"--device {device} GPU"
        assert engine == find_engine("auto").name
        median = next(float(line.split()[0]) for line in lines if "us an iteration (median" in line)
        assert float(times) == pytest.approx(median / float(us), rel=0.02, abs=0.006)
    assert f"from {tmp_path / 'mnist'}: setting up" in run.stdout


# Stands for a Python with mnist-cuda: writes down what it is asked, and answers by a clock of its own.
FAKE_ENGINE = r"""
while read -r line; do
  echo "$line" >>"$(dirname "$0")/log"
  case $line in
  *'"setup"'*) echo '{"ok": true, "engine": "fused"}' ;;
  *) steps=${line##*: }; echo "{\"seconds\": ${steps%?}e-3, \"losses\": [1, 1]}" ;;
  esac
done
"""


def of_strokes(baseline, **fields):
    """A set-up, and data for it."""
    images, labels = cases.strokes(24), cases.labels(24)
    return baseline.Setup(**fields), baseline.Data(images, labels, images[:0], labels[:0])


def test_the_engine_runs_the_same_set_up(baseline, tmp_path, monkeypatch):
    python = shell_program(tmp_path / "python", FAKE_ENGINE)
    monkeypatch.setattr(baseline, "interpreter_of_mnist_cuda", lambda: str(python))
    fields = {"batch_size": 6, "lr": 0.25, "precision": "tf32", "threads": 3, "data": "host"}
    found = baseline.compare(2500.0, "auto", *of_strokes(baseline, **fields), 10)
    assert found == (
        "2.50 times as long as `fused` of mnist-cuda, which takes 1000.0 us an iteration here "
        f"(tf32, batch 6, by {python})"
    )
    asked = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert {name: asked[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("echo 'no libm.so' >&2; exit 7", "its process ended with 7: no libm.so"),
        ('read -r line; echo \'{"error": "UsageError: no bf16"}\'', ": no bf16"),
        ("read -r line; echo hello", "JSONDecodeError"),
    ],
)
def test_an_engine_that_cannot_run_is_one_line(baseline, tmp_path, monkeypatch, answer, reason):
    python = shell_program(tmp_path / "python", answer)
    monkeypatch.setattr(baseline, "interpreter_of_mnist_cuda", lambda: str(python))
    found = baseline.compare(2500.0, "auto", *of_strokes(baseline, batch_size=8), 10)
    assert found.startswith("not compared with mnist-cuda: ")
    assert reason in found
    assert "UsageError" not in found
    assert "\n" not in found


def test_without_mnist_cuda_it_says_what_sets_it_up(baseline, tmp_path, monkeypatch):
    """A checkout's script where there is one, of a program that lies in it."""
    assert baseline.interpreter_of_mnist_cuda()
    monkeypatch.setattr(sys, "executable", shell_program(tmp_path / "python", "exit 1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(baseline, "HERE", tmp_path / "checkout" / "mnist_cuda" / "peers")
    remedies = ["activate an environment that has it"]
    for remedy in remedies:
        found = baseline.compare(1.0, "auto", *of_strokes(baseline, batch_size=8), 1)
        assert found == f"not compared with mnist-cuda: no Python here has it built; {remedy}"
        if remedy is remedies[0]:
            script = shell_program(tmp_path / "checkout" / "scripts" / "train", "")
            remedies.append(f"{script} sets one up")


def test_the_cache_s_unpacked_copy_is_enough(baseline, mnist):
    """As `--data-dir` leaves it there."""
    folder = catalogue.cache_folder(catalogue.DATASETS["mnist"])
    assert [path.name for path in folder.iterdir()] == [baseline.UNPACKED]
    assert baseline.cached_mnist() == folder
    found = baseline.load_data(baseline.Setup(data_dir=str(folder)))
    expected = (mnist.train_images, mnist.train_labels, mnist.test_images, mnist.test_labels)
    for array, values in zip((found.images, found.labels, found.test_images, found.test_labels), expected, strict=True):
        np.testing.assert_array_equal(array, values)


def test_a_cache_without_mnist_gets_one_line(baseline, tmp_path, monkeypatch):
    for name in ("MNIST_CUDA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert baseline_error(baseline, f"MNIST is not in the cache, {tmp_path}/.cache/mnist-cuda/mnist; ")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert baseline_error(baseline, f"{tmp_path}/other/mnist-cuda/mnist; ")
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / "own"))
    assert baseline_error(baseline, f"{tmp_path}/own/mnist; ")


def baseline_error(baseline, part):
    """Whether that is said, with the code for data."""
    with pytest.raises(baseline.BaselineError) as error:
        baseline.cached_mnist()
    return part in str(error.value) and error.value.exit_code == 3


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
