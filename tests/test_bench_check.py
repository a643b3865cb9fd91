"""`mnist-cuda bench check`: what it prints and returns, and that a wrong or missing number breaks a bound."""

import dataclasses
import json

import numpy as np
import pytest
from tiny import said, tiny_dataset

from mnist_cuda.bench.check import Row, compare, tensors_of
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import PARAMETERS, init_parameters

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(scope="module")
def step():
    """The reference's probe of a small batch."""
    engine = Engine("reference")
    engine.set_parameters(init_parameters(0))
    data = tiny_dataset()
    return engine.probe(data.train_images[:4], data.train_labels[:4])


def run(capsys, *argv):
    return said(capsys, "bench", "check", *argv)


@pytest.mark.parametrize(
    ("frozen", "free", "holds"),
    [
        (1e-6, 1e-3, True),
        (None, 1e-3, True),
        (1e-6, 1e-2, True),
        (2e-5, 1e-3, False),
        (1e-6, 2e-2, False),
        (np.nan, 1e-3, False),
        (1e-6, np.nan, False),
        (None, np.nan, False),
    ],
)
def test_a_row_holds(frozen, free, holds):
    """Both errors are at most their bounds; a NaN is not."""
    assert Row("fc1.weight", frozen, None if frozen is None else 1e-5, free, 1e-2).holds == holds


def test_a_right_engine_holds(capsys):
    code, out, _ = run(capsys, "--engines", "cpu,reference", "--batch-size", "8", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["holds"]
    assert [(r["name"], r["precision"]) for r in report["results"]] == [("cpu", "fp32"), ("reference", "fp64")]
    for result in report["results"]:
        names = [row["tensor"] for row in result["rows"]]
        assert set(names) >= {"loss", "h", "logits"} | {t.name for t in PARAMETERS}
        assert all(row["holds"] for row in result["rows"])
    assert 0 < max(row["frozen"] for row in report["results"][0]["rows"]) < 1e-5


def test_a_wrong_gradient_breaks_its_bound(capsys, monkeypatch):
    probe = Engine.probe

    def wrong(self, *args, **kwargs):
        result = probe(self, *args, **kwargs)
        if self.info.name == "cpu":
            result.gradients["conv2.weight"][0] *= 1.01
        return result

    monkeypatch.setattr(Engine, "probe", wrong)
    code, out, _ = run(capsys, "--engines", "cpu", "--batch-size", "8")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines() if line.endswith("BROKEN")] == ["conv2.weight"]
    assert "A bound is broken." in out


@pytest.mark.parametrize("tensor", ["loss", "h", "fc1.weight", "conv1.bias"])
@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_one_wrong_number_breaks_its_row_alone(step, tensor, wrong):
    values = {name: np.array(value) for name, value in tensors_of(step).items()}
    values[tensor].flat[0] += wrong * np.abs(values[tensor]).max() or wrong
    rows = compare("cpu", "fp32", 4, values, tensors_of(step), tensors_of(step))
    assert [row.tensor for row in rows if not row.holds] == [tensor]


def test_free_errors_have_bounds_of_their_own(step):
    """Half a percent of a gradient may be a near-tie that fell the other way, but not under the same routing."""
    expected = tensors_of(step)
    values = expected | {"conv2.weight": expected["conv2.weight"] * 1.005}
    assert all(row.holds for row in compare("cpu", "fp32", 4, values, expected, values))
    assert not all(row.holds for row in compare("cpu", "fp32", 4, values, expected, expected))


def test_a_peer_may_have_noise_where_zero_is_exact(step):
    """A framework computes the gradient of a convolution's bias by rounding; its routing is not known."""
    expected = tensors_of(step)
    values = expected | {"conv1.bias": np.full(32, 1e-6)}
    rows = {row.tensor: row for row in compare("torch", "fp32", 4, values, expected, None)}
    assert rows["conv1.bias"].holds
    assert rows["conv1.bias"].frozen is None
    values["conv1.bias"] = np.full(32, 1e-3)
    assert not {row.tensor: row for row in compare("torch", "fp32", 4, values, expected, None)}["conv1.bias"].holds


def test_activations_that_an_engine_never_forms_are_left_out(step):
    names = tensors_of(dataclasses.replace(step, a1=None))
    assert "a1" not in names
    assert "a2" in names


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--batch-size", "36"], 2, "--batch-size 36 exceeds the 35 images of tiny"),
        (["--engines", "cpu", "--precision", "bf16"], 2, "engine 'cpu' has no precision bf16"),
        (
            ["--peers", "torch", "--peer-python", "/nonexistent", "--batch-size", "8"],
            4,
            "torch is not installed (there is no /nonexistent)",
        ),
        (["--weights", "/nonexistent.safetensors", "--batch-size", "8"], 6, "/nonexistent.safetensors: no such file"),
    ],
)
def test_what_cannot_be_compared_is_one_line(capsys, argv, code, words):
    got, _, err = run(capsys, *argv)
    assert got == code
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_pytorch(peer, capsys):
    """Live, where PyTorch is."""
    argv = ("--engines", "cpu", "--peers", "torch", "--peer-python", peer.command[0], "--batch-size", "8")
    code, out, _ = run(capsys, *argv)
    assert code == 0, out
    assert "torch eager NCHW fp32 against float64" in out
