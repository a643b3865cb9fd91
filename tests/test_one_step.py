"""The programs of examples/one_step: each makes the step that the engine `reference` makes, and stands alone."""

import importlib.util
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from checks import one_step
from checks.one_step import FOLDER, PROGRAMS
from checks.runner import Problem, tool
from tiny import ENVIRONMENT

from mnist_cuda.bench.competitors import PEER_PYTHON, has_module
from mnist_cuda.engine import find_engine

BY_NAME = {program.name: program for program in PROGRAMS}
ON_CPU = [program.name for program in PROGRAMS if not program.on_gpu]


def module(name):
    """A program as a module."""
    spec = importlib.util.spec_from_file_location("program", FOLDER / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def start(mnist, tmp_path_factory):
    """Ten steps of 64 images: the losses of all agree to five digits."""
    file = tmp_path_factory.mktemp("one_step") / "start.bin"
    one_step.write_start(file, None, "--steps", "10", "--tests", "64")
    return file


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_is_short_and_stands_alone(program):
    text = (FOLDER / program.file).read_text()
    assert len(text.splitlines()) <= program.lines
    assert all(line[line.index("include") + 7 :].strip().startswith("<") for line in re.findall(r"#include.*", text))
    if program.name != "9_engine":
        assert "mnist_cuda" not in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", ON_CPU)
def test_a_program_for_a_cpu_is_within_the_bounds(name, start, tmp_path):
    if BY_NAME[name].compiler and not shutil.which("gcc"):
        pytest.skip("no gcc here")
    right, output = one_step.compared(BY_NAME[name], one_step.build(BY_NAME[name], tmp_path), start, tmp_path)
    assert right, output
    assert output.count("  ok\n") == 14


def test_a_wrong_gradient_is_noticed(mnist, tmp_path):
    start = tmp_path / "start.bin"
    one_step.write_start(start, None, "--steps", "1", "--tests", "64")
    text = (FOLDER / "2_numpy.py").read_text()
    right = "/ np.float32(len(labels))"
    assert text.count(right) == 1
    (tmp_path / "wrong.py").write_text(text.replace(right, ""))  # the loss is a mean: here its gradient is of the sum
    command = [sys.executable, str(tmp_path / "wrong.py")]
    found, output = one_step.compared(BY_NAME["2_numpy"], command, start, tmp_path)
    assert not found
    assert re.search(r"fc2.bias +6.3e\+01 .* BROKEN", output)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [p.name for p in PROGRAMS if p.on_gpu and p.name != "9_engine"])
def test_a_program_for_a_gpu_is_within_the_bounds(name, start, tmp_path):
    if reason := find_engine("naive").unavailable:
        pytest.skip(reason)
    program = BY_NAME[name]
    command = one_step.build(program, tmp_path)
    if name == "7_triton":
        if not has_module(PEER_PYTHON, "triton"):
            pytest.skip(f"{PEER_PYTHON} has no triton")
        command[0] = str(PEER_PYTHON)
    right, output = one_step.compared(program, command, start, tmp_path)
    assert right, output


@pytest.mark.parametrize("name", sorted(module("mistakes").MISTAKES))
def test_a_mistake_is_made_in_its_program_as_it_is_today(name):
    file, changes = module("mistakes").MISTAKES[name]
    text = module("mistakes").broken(name)
    assert text != (FOLDER / file).read_text()
    assert all(wrong in text for wrong in changes.values())


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "is_seen"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_mistake_is_seen_in_the_gradients_or_not(name, is_seen, start, tmp_path):
    if reason := find_engine("naive").unavailable:
        pytest.skip(reason)
    mistakes = module("mistakes")
    file, _ = mistakes.MISTAKES[f"mistake_{name}.cu"]
    (tmp_path / file).write_text(mistakes.broken(f"mistake_{name}.cu"))
    program = BY_NAME[file.removesuffix(".cu")]
    command = one_step.build(program, tmp_path, source=tmp_path / file)
    right, output = one_step.compared(program, command, start, tmp_path)
    assert right != is_seen, output


@pytest.mark.parametrize("name", ["4_naive", "5_tiled", "6_libraries", "8_tensor_cores"])
def test_a_cuda_program_compiles(name, tmp_path):
    try:
        nvcc = tool("nvcc")
    except Problem as problem:
        pytest.skip(str(problem))
    if name == "6_libraries" and not list(one_step.NVIDIA.glob("*/include/cudnn.h")):
        pytest.skip("the wheel of cuDNN is not here")
    one_step.build(BY_NAME[name], tmp_path, nvcc=nvcc)


def test_triton_s_program_by_its_interpreter(mnist, tmp_path, monkeypatch):
    if not has_module(PEER_PYTHON, "triton"):
        pytest.skip(f"{PEER_PYTHON} has no triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    one_step.write_start(tmp_path / "start.bin", None, "--steps", "1", "--batch", "2", "--tests", "2")
    command = [str(PEER_PYTHON), str(FOLDER / "7_triton.py")]
    right, output = one_step.compared(BY_NAME["7_triton"], command, tmp_path / "start.bin", tmp_path)
    assert right, output


def test_scalars_agree_with_finite_differences():
    value = module("1_autograd").Value

    def loss(a, b, c):
        a, b, c = value(a), value(b), value(c)
        hidden = (a * b + c).relu() + a * c  # a and c are used twice
        return (hidden.exp() + b * b * value(0.5)).log(), (a, b, c)

    at = np.array([0.7, 1.3, 0.2])
    result, inputs = loss(*at)
    result.backward()
    h = 6e-6
    for k, number in enumerate(inputs):
        step = h * np.eye(3)[k]
        assert number.grad == pytest.approx(
            (loss(*(at + step))[0].data - loss(*(at - step))[0].data) / (2 * h), rel=1e-9
        )


def test_scalars_agree_with_numpy_by_hand():
    """A tiny network: convolution, batch norm, ReLU, pooling, linear layer, log-softmax, of 4 x 4 images."""
    value, by_hand = module("1_autograd").Value, module("2_numpy")
    rng = np.random.default_rng(0)
    batch, channels, classes = 3, 2, 3
    x, labels = rng.normal(size=(batch, 1, 4, 4)), np.array([0, 2, 1])
    arrays = [
        rng.normal(size=shape) for shape in ((channels, 1, 3, 3), (channels,), (channels,), (classes, 4 * channels))
    ]
    w, gamma, beta, v = (np.vectorize(value, otypes=[object])(array) for array in arrays)
    minus, half = value(-1.0), value(-0.5)

    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    z = np.empty((batch, channels, 4, 4), object)
    for b, o, p, q in np.ndindex(z.shape):
        z[b, o, p, q] = sum(
            (w[o, 0, i, j] * value(padded[b, 0, p + i, q + j]) for i, j in np.ndindex(3, 3)), value(0.0)
        )
    y = np.empty_like(z)
    for c in range(channels):
        mean = sum(z[:, c].ravel(), value(0.0)) * value(1 / z[:, c].size)
        centred = [number + mean * minus for number in z[:, c].ravel()]
        variance = sum((number * number for number in centred), value(0.0)) * value(1 / z[:, c].size)
        inverse = ((variance + value(1e-5)).log() * half).exp()
        y[:, c] = np.reshape([number * inverse * gamma[c] + beta[c] for number in centred], z[:, c].shape)
    total = value(0.0)
    for b in range(batch):
        a = [max(y[b, c, 2 * p : 2 * p + 2, 2 * q : 2 * q + 2].ravel(), key=lambda n: n.data).relu()
             for c, p, q in np.ndindex(channels, 2, 2)]  # fmt: skip
        logits = [sum((v[k, n] * a[n] for n in range(len(a))), value(0.0)) for k in range(classes)]
        log_sum = sum((number.exp() for number in logits), value(0.0)).log()
        total = total + (logits[labels[b]] + log_sum * minus) * value(-1 / batch)
    total.backward()

    zero = np.zeros(channels)
    y_hand, zhat, sigma = by_hand.bn_forward(by_hand.conv_forward(x, arrays[0], zero), arrays[1], arrays[2])
    a_hand, choice = by_hand.pool_forward(y_hand)
    flat = a_hand.reshape(batch, -1)
    scores = flat @ arrays[3].T
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    d = (np.exp(log_p) - np.eye(classes)[labels]) / batch
    dy = by_hand.pool_backward((d @ arrays[3]).reshape(a_hand.shape), a_hand, choice)
    dz, dgamma, dbeta = by_hand.bn_backward(dy, zhat, sigma, arrays[1])
    expected = by_hand.conv_backward(dz, x, arrays[0])[1], dgamma, dbeta, d.T @ flat
    assert total.data == pytest.approx(-log_p[np.arange(batch), labels].mean(), rel=1e-6)
    for numbers, gradient in zip((w, gamma, beta, v), expected, strict=True):
        np.testing.assert_allclose(np.vectorize(lambda number: number.grad)(numbers), gradient, rtol=1e-5, atol=1e-8)


def test_a_damaged_start_is_refused(start, tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    (command,) = one_step.build(BY_NAME["3_plain"], tmp_path)
    content = start.read_bytes()
    for size in (0, 15, 16, len(content) - 1, len(content) + 1):
        (tmp_path / "damaged.bin").write_bytes((content + b"\0")[:size])
        result = subprocess.run([command, "damaged.bin"], cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 1
        assert re.fullmatch(r"damaged.bin: (cannot be read|has another size)\n", result.stderr)
    missing = subprocess.run(
        [command, "none.bin"], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT | {"LC_ALL": "C"}
    )
    assert (missing.returncode, missing.stderr) == (1, "none.bin: No such file or directory\n")
