"""Ops in other languages for kernels: Numba's in its simulator equal ours, and what is wrong or absent is seen."""

import dataclasses
import shutil
import sys
from pathlib import Path

import cases
import numpy as np
import pytest
from cases import ROOFS

from mnist_cuda.bench import op_peers
from mnist_cuda.bench.competitors import PEER_PYTHON, PEER_SCRIPTS, has_module
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess

NUMBA = {(variant.op, variant.name): variant for variant in op_peers.OP_PEERS["numba"].variants}
OWN = {"op": "relu", "shape": "(4,64,14,14)", "bytes": 4e6, "flops": 1e5, "bound": 0.0, "unit": "fma", "absent": ""}


@pytest.fixture(scope="module")
def numba():
    pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_ENABLE_CUDASIM", "1")
        with CompetitorProcess((sys.executable, str(PEER_SCRIPTS / "numba_ops.py"))) as process:
            yield process


def test_relu_in_the_simulator(numba, tmp_path):
    x = np.random.default_rng(1).standard_normal((3, 5, 7, 3)).astype(np.float32)
    x[0, 0, 0] = 0, -0.0, 1
    row = op_peers.run_variant(numba, NUMBA["relu", "numba"], {"x": x}, tmp_path)
    assert row["error"] == 0
    assert (row["cold_us"], row["warm_us"]) == (None, None)
    assert row["kernels"][0] | {"name": "relu_kernel", "grid": [2], "block": [256]} == row["kernels"][0]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (17, 33, 20)])
def test_a_tiled_linear_in_the_simulator(numba, tmp_path, sizes):
    row = op_peers.run_variant(numba, NUMBA["linear", "numba_tiled"], op_peers.linear_inputs(*sizes), tmp_path)
    assert row["error"] <= 1e-6


def test_a_tiled_linear_equals_the_reference_engine(numba, tmp_path, make_engine):
    """fc2, from what the engine's own fc1 gave it."""
    engine, weights = make_engine("reference"), cases.signed_weights()
    engine.set_parameters(weights)
    probe = engine.probe(cases.strokes(6), cases.labels(6))
    inputs = {"x": probe.h, "w": weights["fc2.weight"], "bias": weights["fc2.bias"]}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    op_peers.run_variant(numba, NUMBA["linear", "numba_tiled"], inputs, tmp_path)
    with np.load(tmp_path / "outputs.npz") as outputs:
        assert op_peers.error_of(dict(outputs), {"y": probe.logits}) <= 1e-6


def test_a_nan_passes_relu(numba, tmp_path):
    """And makes the row wrong, as any output that is no number."""
    row = op_peers.run_variant(numba, NUMBA["relu", "numba"], {"x": np.array([-1, np.nan], np.float32)}, tmp_path)
    with np.load(tmp_path / "outputs.npz") as outputs:
        assert np.array_equal(outputs["y"], [0, np.nan], equal_nan=True)
        assert outputs["passed"].tolist() == [0, 1]
    assert np.isnan(row["error"])


def test_a_fault_in_the_other_process_is_one_line(numba, tmp_path):
    with pytest.raises(CompetitorError, match="KeyError"):
        op_peers.run_variant(numba, op_peers.OpVariant("relu", "nothing", ""), {"x": np.ones(3)}, tmp_path)


def test_error_of():
    right = {"y": np.array([3.0, 4.0])}
    assert op_peers.error_of({"y": np.array([3, 4.5], np.float32)}, right) == pytest.approx(0.1)
    for wrong in ({}, {"y": np.array([3.0])}, {"y": np.array([3.0, np.nan])}):
        assert np.isnan(op_peers.error_of(wrong, right))


def test_references():
    x = np.array([[1.0, 2.0, 4.0], [-2.0, 0.0, 0.5]], np.float32)
    log_p = op_peers.OPS["log_softmax"][1]({"x": x})["y"]
    np.testing.assert_allclose(np.exp(log_p), np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-6)
    inputs = {"x": x, "w": np.array([[1, 0, 0], [0, -1, 0]], np.float32), "bias": np.array([10, 1], np.float32)}
    assert op_peers.OPS["linear"][1](inputs)["y"].tolist() == [[11, -1], [8, 1]]
    assert op_peers.OPS["linear_relu"][1](inputs)["y"].tolist() == [[11, 0], [8, 1]]


def test_rows_without_the_languages(tmp_path):
    """One that the environment lacks stays with the reason; ops that were not asked for have no rows."""
    own = [{**OWN, "variant": "naive", "library": False}]
    rows = op_peers.rows(own, ROOFS, ["triton", "numba"], tmp_path / "python", 4, 0)
    assert [(row["op"], row["variant"], row["cold_us"]) for row in rows] == [
        ("relu", "triton", None),
        ("relu", "numba", None),
    ]
    assert rows[0]["absent"] == f"triton is not installed (there is no {tmp_path}/python); PyTorch for CUDA brings it"
    assert op_peers.rows(own, ROOFS, ["triton", "numba"], tmp_path / "python", 4, 0, variant="float4") == []


def test_rows_are_checked_and_compared(monkeypatch):
    """A made-up language in our own interpreter."""
    variants = (op_peers.OpVariant("relu", "mine", "a test"), op_peers.OpVariant("relu", "broken", "another"))
    monkeypatch.setattr(op_peers, "OP_PEERS", {"mine": op_peers.OpPeer("numba_ops.py", "json", "", variants)})

    def run_variant(process, variant, inputs, folder, device):
        if variant.name == "broken":
            raise CompetitorError("its process ended")
        return {"cold_us": 4.0, "warm_us": 3.0, "kernels": [], "error": 0.0, "versions": {}}

    monkeypatch.setattr(op_peers, "run_variant", run_variant)
    library = {**OWN, "variant": "cudnn", "library": True, "cold_us": 2.0}
    faster = {**library, "unit": "tf32", "cold_us": 1.0}
    rows = op_peers.rows([library, faster], ROOFS, ["mine"], sys.executable, 4, 0)
    assert rows[0]["library_ratio"] == 2
    assert rows[0]["percent_of_roof"] == pytest.approx(25)
    assert rows[1]["absent"] == "its process ended"


# ---- without a GPU ---------------------------------------------------------------------------------------------------


def test_every_simulated_row_has_inputs_and_a_bound():
    for peer in op_peers.OP_PEERS.values():
        for variant in peer.variants if peer.simulator else ():
            assert variant.op in peer.simulator.inputs
            assert variant.op in op_peers.BOUNDS
        assert {variant.op for variant in peer.variants} <= op_peers.OPS.keys()


def test_numba_s_rows_by_its_simulator():
    pytest.importorskip("numba")
    found = op_peers.simulated_rows("", "", ["torch", "numba"], sys.executable)
    assert [(row["op"], row["variant"], row["by"]) for row in found] == [
        ("relu", "numba", "Numba's simulator"),
        ("linear", "numba_tiled", "Numba's simulator"),
    ]
    assert all(row["error"] <= row["bound"] for row in found)
    (one,) = op_peers.simulated_rows("linear", "numba_tiled", ["numba"], sys.executable)
    assert one["shapes"] == {"x": [5, 33], "w": [20, 33], "bias": [20]}


def test_triton_s_rows_by_its_interpreter():
    if not has_module(PEER_PYTHON, "triton"):
        pytest.skip(f"{PEER_PYTHON} has no triton")
    found = op_peers.simulated_rows("", "", ["triton"], PEER_PYTHON)
    assert len(found) == 8
    assert all(row["error"] <= row["bound"] for row in found)


def test_the_routing_of_triton_s_layer(tmp_path):
    if not has_module(PEER_PYTHON, "triton"):
        pytest.skip(f"{PEER_PYTHON} has no triton")
    inputs = op_peers.layer_inputs(2, 3, 5, 6)
    (row,) = (one for one in op_peers.OP_PEERS["triton"].variants if one.op == "conv_bn_relu_pool")
    command = (str(PEER_PYTHON), str(PEER_SCRIPTS / "triton_ops.py"))
    with CompetitorProcess(command, {"TRITON_INTERPRET": "1"}) as process:
        op_peers.run_variant(process, row, inputs, tmp_path)
    with np.load(tmp_path / "outputs.npz") as outputs:
        y, route = outputs["y"], outputs["route"]
    assert np.array_equal(route == 4, y == 0)
    windows = op_peers.layer_before_pooling(inputs).reshape(2, 5, 3, 2, 3, 2).transpose(0, 1, 2, 4, 3, 5)
    largest = windows.reshape(2, 5, 3, 3, 4).argmax(-1)
    assert np.array_equal(route[y > 0], largest[y > 0])


def test_a_simulator_that_is_not_there(tmp_path):
    (row,) = op_peers.simulated_rows("relu", "", ["triton"], tmp_path / "python")
    assert row["absent"] == f"triton is not installed (there is no {tmp_path}/python); PyTorch for CUDA brings it"
    assert row["error"] is None


def test_a_simulator_that_the_interpreter_lacks(monkeypatch):
    numba = dataclasses.replace(op_peers.OP_PEERS["numba"], module="no_such_module")
    monkeypatch.setitem(op_peers.OP_PEERS, "numba", numba)
    (row,) = op_peers.simulated_rows("relu", "", ["numba"], Path(sys.executable))
    assert row["absent"] == f"{sys.executable} has no no_such_module; {numba.remedy}"


@pytest.mark.parametrize("variant", ["torch", "torch_compile"])
@pytest.mark.parametrize("op", ["conv_bn_relu_pool", "conv_bn_relu_pool_layer1"])
def test_pytorch_s_layers(op, variant, tmp_path):
    if not has_module(PEER_PYTHON, "torch") or not shutil.which("g++"):
        pytest.skip(f"{PEER_PYTHON} has no torch, or there is no g++")
    (row,) = (one for one in op_peers.OP_PEERS["torch"].variants if (one.op, one.name) == (op, variant))
    here = {"CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    with CompetitorProcess((str(PEER_PYTHON), str(PEER_SCRIPTS / "torch_ops.py")), here) as process:
        assert op_peers.run_variant(process, row, op_peers.OPS[op][0](2), tmp_path)["error"] <= 1e-6


@pytest.mark.parametrize("op", ["conv2d", "relu_max_pool2d", "batch_norm_forward", "transpose"])
def test_the_references_of_pytorch_s_rows(op):
    make, reference = op_peers.OPS[op]
    inputs = make(2)
    y = reference(inputs)["y"]
    if op == "transpose":
        assert np.array_equal(y, inputs["x"].T)
    elif op == "batch_norm_forward":
        normal = (y - inputs["beta"][:, None]) / inputs["gamma"][:, None]
        assert np.allclose(normal.mean((0, 2)), 0, atol=1e-6)
        assert np.allclose(normal.var((0, 2)), 1, atol=1e-4)
    elif op == "relu_max_pool2d":
        assert y.shape == (64, 14, 14)
        assert y[3, 1, 2] == max(0, inputs["x"][3, 2:4, 4:6].max())
    else:
        x, w = inputs["x"][1, :, 4:7, 2:5].astype(float), inputs["w"][5]
        assert y[1, 5, 5, 3] == pytest.approx((x * w).sum() + inputs["bias"][5])
