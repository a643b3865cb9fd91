"""Kernels of the user's in an engine: `train --with`, `--emulate` and `--steps`, without a GPU."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, needs_compiler
from test_judge import RELU

from mnist_cuda import _native, cli
from mnist_cuda.engine import Engine, find_engine
from mnist_cuda.errors import UsageError
from mnist_cuda.judge import signatures
from mnist_cuda.judge.emulated import EmulatedEngine
from mnist_cuda.judge.own_kernels import OwnKernels
from mnist_cuda.run.checkpoint import load_model

KERNELS = ROOT / "native" / "gpu" / "kernels"


@pytest.fixture(autouse=True)
def _folder(tiny, emulator):
    Path("relu.cu").write_text(RELU)


def train(*argv, code=0, capsys=None):
    assert cli.main(["train", "-b", "2", "--epochs", "1", *map(str, argv)]) == code
    return capsys.readouterr() if capsys else None


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_steps_end_a_training_that_goes_on(capsys):
    train("-e", "reference", "--out", "whole")
    shown = train("-e", "reference", "--out", "part", "--steps", 5, capsys=capsys).out
    assert "ended after 5 steps (0 of 1 epochs)" in " ".join(shown.split())
    assert "mnist-cuda train --resume part" in shown
    train("--resume", "part", "--steps", 1)
    assert sorted(path.name for path in Path("part/checkpoints").iterdir()) == ["step-000000006.safetensors"]
    train("--resume", "part")
    whole, part = load_model(Path("whole")), load_model(Path("part"))
    assert all(whole.parameters[name].tobytes() == part.parameters[name].tobytes() for name in whole.parameters)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_every_op_of_the_engine_is_one_of_the_judges():
    taken = find_engine("tiled").own_ops
    assert set(taken) < set(signatures.OPS)
    text = (ROOT / "native" / "gpu" / "engines" / "tiled.cpp").read_text()
    assert all(f'{{options, "{name}"}}' in text for name in taken)
    assert text.count("{options, ") == len(taken)


@pytest.mark.parametrize(
    ("text", "engine", "words"),
    [
        ("int main() {}", "tiled", "no launcher of an op is in it"),
        ("void relu_forward(float* y) {}", "tiled", "relu_forward has other parameters than relu's launchers"),
        (RELU, "cpu", "engine 'cpu' takes no kernels of yours; `--engine tiled` does"),
        (RELU, "fused", "engine 'fused' takes no kernels of yours"),
        (
            RELU + RELU.replace("relu_forward(", "relu_forward_2("),
            "tiled",
            "are both launchers of relu_forward; keep one",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(capsys, text, engine, words):
    Path("mine.cu").write_text(text)
    error = train("-e", engine, "--with", "mine.cu", code=2, capsys=capsys).err
    assert words in error
    assert error.count("\n") == 1


def test_what_the_engine_does_not_have(tmp_path):
    with pytest.raises(UsageError, match=r"expected a \.cu file"):
        OwnKernels([tmp_path / "relu.cu", Path(__file__)])
    with pytest.raises(UsageError, match="No such file"):
        OwnKernels([tmp_path / "none.cu"])
    (tmp_path / "forward.cu").write_text(
        "void batch_norm_forward(float* y, float* statistics, const float* x, const float* gamma, const float* beta, "
        "int64_t batch, int channels, int area, cudaStream_t stream) {}"
    )
    with pytest.raises(
        UsageError, match="engine 'tiled' has no op batch_norm_forward, expected one of conv2d_forward,"
    ):
        OwnKernels([tmp_path / "forward.cu"]).require_fit("tiled", find_engine("tiled").own_ops)
    (tmp_path / "backward.cu").write_text(
        "void batch_norm_backward(float* dx, float* dgamma, float* dbeta, float* partial, const float* dy, "
        "const float* x, const float* gamma, const float* mean, const float* var, const float* inverse, int64_t batch, "
        "int channels, int area, cudaStream_t stream) {}"
    )
    with pytest.raises(UsageError, match="takes `inverse`, which engine 'tiled' does not compute"):
        OwnKernels([tmp_path / "backward.cu"]).require_fit("tiled", find_engine("tiled").own_ops)


def test_arrays_that_a_launcher_leaves_out(tmp_path):
    (tmp_path / "linear.cu").write_text(
        "void linear_forward(float* y, const float* x, const float* w, const float* bias, int64_t batch, int in, "
        "int out, cudaStream_t stream) {}"
    )
    own = OwnKernels([tmp_path / "linear.cu", KERNELS / "conv2d" / "tiled.cu"])
    ops = own._ops(["a.so", "b.so"])
    assert ops[0] == ("linear_forward", "a.so", 0, 0b10)  # partial
    assert [op[:3] for op in ops[1:]] == [("conv2d_forward", "b.so", 0)]
    assert own.sha256 == " ".join(sorted(file.sha256 for file in own.files))


@pytest.mark.skipif(not _native.cuda_status()["reason"], reason="a GPU is here")
def test_without_a_gpu_the_engine_says_so(capsys):
    assert "cannot run here" in train("-e", "tiled", "--with", "relu.cu", code=4, capsys=capsys).err
    assert cli.main(["profile", "-e", "tiled", "--with", "relu.cu"]) == 4
    assert cli.main(["bench", "check", "-e", "tiled", "--with", "relu.cu"]) == 4
    assert cli.main(["bench", "check", "-e", "cpu", "--with", "relu.cu"]) == 2


# ---- emulated --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--steps", 1, "-e", "cpu"), "engine 'cpu' in fp32 is not emulated, expected naive or tiled in fp32"),
        ((), "--emulate tests no images"),
        (("--steps", 10**6), "--emulate tests no images"),
    ],
)
@needs_compiler
def test_what_is_not_emulated(capsys, argv, words):
    assert words in train("--emulate", *argv, code=2, capsys=capsys).err


@needs_compiler
@pytest.mark.parametrize(("engine", "steps"), [("naive", 1), ("tiled", 2)])
def test_an_emulated_step_is_the_references(engine, steps, capsys):
    train("-e", "reference", "--steps", steps, "--out", "reference")
    shown = train("-e", engine, "--emulate", "--steps", steps, "--out", "emulated", capsys=capsys).out
    assert "emulated on the CPU" in shown
    expected, found = load_model(Path("reference")).parameters, load_model(Path("emulated")).parameters
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5 * abs(value).max() + 1e-7, err_msg=name)
    config = json.loads(Path("emulated/config.json").read_text())
    assert config["engine"]["emulated"] is True


@needs_compiler
def test_own_kernels_train(capsys):
    files = ["--with", "relu.cu", "--with", KERNELS / "batch_norm" / "atomics.cu"]
    caught = train("--emulate", "--steps", 1, "--out", "run", *files, capsys=capsys)
    assert "relu_forward by relu.cu" in caught.out
    warning = " ".join(caught.err.split())
    assert "the bits of a step do not repeat with relu_forward by relu.cu" in warning
    config = json.loads(Path("run/config.json").read_text())
    hashes = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files[1::2]]
    assert [fact["sha256"] for fact in config["engine"]["own"]] == hashes
    assert config["options"]["own_sha256"] == " ".join(sorted(hashes))
    for others in ([], ["--with", "relu.cu"]):
        for flag in ("--resume", "--config"):
            error = train(flag, "run", "--steps", 1, *others, code=2, capsys=capsys).err
            assert "that would change its result" in error
            assert error.count("\n") == 1
    train("--resume", "run", "--steps", 1, *files)
    train("-e", "reference", "--out", "plain", "--steps", 1)
    assert "was begun with no --with" in train("--resume", "plain", *files[:2], code=2, capsys=capsys).err


@needs_compiler
def test_faults_of_own_kernels_are_reported(capsys):
    Path("relu.cu").write_text(RELU.replace("k < count", "k <= count").replace("count + 255", "count + 256"))
    caught = train("--emulate", "--steps", 1, "--with", "relu.cu", capsys=capsys)
    assert "relu.cu:6: outside: " in " ".join(caught.err.split())


@needs_compiler
def test_own_kernels_that_do_not_compile_or_collide(capsys):
    Path("broken.cu").write_text(RELU.replace("if (k < count)", "if k < count)"))
    assert (
        "broken.cu does not compile: broken.cu:6:"
        in train("--emulate", "--steps", 1, "--with", "broken.cu", code=2, capsys=capsys).err
    )
    text = (KERNELS / "log_softmax" / "float4.cu").read_text()
    Path("other.cu").write_text(text + RELU.replace("relu_forward(", "helper("))
    error = train("--emulate", "--steps", 1, "--with", "relu.cu", "--with", "other.cu", code=2, capsys=capsys).err
    assert "both define kernel(" in error


@needs_compiler
def test_an_engine_that_ends_is_one_line(tmp_path):
    Path("ends.cu").write_text("#include <cstdlib>\n" + RELU.replace("  kernel<<<", "  std::exit(3);\n  kernel<<<"))
    engine = Engine("tiled", emulated=EmulatedEngine, own=OwnKernels([tmp_path / "ends.cu"]))
    with pytest.raises(Exception, match="the emulated engine ended"):
        engine.emulated.gradients(np.zeros((1, 784), np.uint8), np.zeros(1, np.uint8), 1)
    with pytest.raises(UsageError, match="not emulated"):
        Engine("naive", "fp64", emulated=EmulatedEngine)
