"""`mnist-cuda profile` and `Engine.profile`: every op has a name, a time and a cost, and the weights stay."""

import json
from dataclasses import replace
from itertools import pairwise

import cases
import numpy as np
import pytest
from cases import OLDER_ROOFS, ROOFS
from conftest import engine_params
from tiny import prints, tiny_dataset

from mnist_cuda import _native, cli
from mnist_cuda.bench import profile, trace
from mnist_cuda.engine import Engine, OpTime
from mnist_cuda.engine.model import init_parameters

BATCH = 24
FUSED = ["conv_forward", "fc1_forward", "head", "fc1_backward", "conv2_backward", "update"]
WITH_FC = ["conv_forward", "fc", "conv2_backward", "update"]  # of small batches in 16 bits on Hopper
CPU = ["prepare", "conv_forward", "linear_forward", "linear_backward", "conv_backward", "update"]
LAYERS = [
    "gather",
    "normalize",
    *(f"{layer} forward" for layer in ("layer 1", "layer 2", "fc1", "fc2")),
    "record",
    *(f"{layer} backward" for layer in ("fc2", "fc1", "layer 2", "layer 1")),
    "update",
]
LAYERWISE = [
    *("layer 1 forward", "layer 2 forward", "fc1 and fc2", "fc1 backward", "layers 2 and 1 backward", "update")
]
PHASES = {"fused": FUSED, "cpu": CPU, "layerwise": LAYERWISE}


pytestmark = pytest.mark.usefixtures("tiny")


def ready(engine):
    engine.set_parameters(init_parameters(0))
    data = tiny_dataset()
    engine.set_dataset(data.train_images, data.train_labels)
    return engine


@pytest.mark.parametrize("which", engine_params())
def test_ops_of_every_engine(make_engine, which):
    name, _ = which
    engine = ready(make_engine(*which))
    engine.compute_statistics()
    before, statistics = engine.parameters, engine.statistics
    ops = engine.profile(BATCH, 7)
    phases = list(dict.fromkeys(op.phase for op in ops))
    expected = [WITH_FC] if name == "fused" and "fc" in phases else [PHASES.get(name, LAYERS)]
    assert [phase for phase in phases if phase != "backward"] in expected
    assert len({(op.phase, op.op) for op in ops}) == len(ops)
    assert all(op.us > 0 and op.bytes >= 0 and op.flops >= 0 for op in ops)
    steps = len(ops[0].spans)
    assert steps >= 7
    assert all(len(op.spans) == steps for op in ops)
    assert ops[0].spans[0][0] == 0
    in_order = [op.spans[step] for step in range(steps) for op in ops]
    assert all(begin >= start + us - 1e-3 for (start, us), (begin, _) in pairwise(in_order))
    if engine.info.device == "cuda":
        kernels = [kernel for op in ops for kernel in op.kernels]
        assert len(kernels) >= len(ops) - 1  # one may be a copy alone
        for kernel in kernels:
            assert not kernel["name"].startswith("unknown"), kernel
            assert kernel["registers"] > 0
            assert 0 < kernel["occupancy"] <= 1
    assert sum(op.flops for op in ops) > 3 * BATCH * 2 * 9 * 32 * 64 * 196  # conv2, three times
    for key, value in engine.parameters.items():
        assert value.tobytes() == before[key].tobytes(), key
    assert {key: value.tobytes() for key, value in engine.statistics.items()} == {
        key: value.tobytes() for key, value in statistics.items()
    }
    step = profile.measure_step(engine, BATCH).median
    assert sum(op.us for op in ops) < 4 * step  # no lower bound: others on the same GPU slow a step, not its ops


@pytest.mark.parametrize("which", engine_params(precisions=False))
def test_training_after_a_profile_is_the_same(make_engine, which):
    runs = []
    for profiled in (False, True):
        engine = ready(make_engine(*which))
        if profiled:
            engine.profile(BATCH, 3)
        losses, _ = engine.train(np.arange(32), 8, 0.05)
        runs.append((losses.tobytes(), {key: value.tobytes() for key, value in engine.parameters.items()}))
    assert runs[0] == runs[1]


@pytest.mark.gpu
@pytest.mark.parametrize("which", engine_params(precisions=False, without=("cpu", "reference")))
def test_a_data_set_on_the_host_is_refused(make_engine, which):
    engine, data = make_engine(*which), tiny_dataset()
    engine.set_dataset(data.train_images, data.train_labels, "host")
    with pytest.raises(ValueError, match="profile: the data set is on the host"):
        engine.profile(BATCH, 3)


def test_bad_arguments():
    engine = Engine("cpu")
    with pytest.raises(ValueError, match="profile: no data set"):
        engine.profile(BATCH)
    ready(engine)
    with pytest.raises(ValueError, match="profile: batch size is 36, expected 1 to 35"):
        engine.profile(36)
    with pytest.raises(ValueError, match="profile: 0 steps, expected at least 1"):
        engine.profile(BATCH, 0)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_command(capsys, tmp_path, monkeypatch, name):
    monkeypatch.setattr(profile, "BLOCKS", 1)
    file = tmp_path / "profile.json"
    out = prints(capsys, "profile", "--engine", name, "--batch-size", "8", "--steps", "3", "--json", str(file))
    assert out.startswith(f"engine {name} ")
    assert "Medians of 3 steps, together " in out
    assert f"mnist-cuda train --engine {name} --precision " in out
    facts = json.loads(file.read_text())
    assert facts["roofs"] is None
    assert [op["phase"] for op in facts["ops"]][-1] == "update"
    assert facts["step_us"]["median"] > 0
    assert facts["batch_size"] == 8


def test_a_trace_of_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "BLOCKS", 1)
    file = tmp_path / "trace.json"
    assert cli.main(["profile", "--engine", "cpu", "--batch-size", "8", "--steps", "12", "--trace", str(file)]) == 0
    assert f"wrote {file}" in capsys.readouterr().out
    spans = cases.trace_spans(file)
    steps = [e for e in spans if e["name"].startswith("step ")]
    assert len(steps) == profile.TRACED_STEPS
    assert steps[0]["ts"] == 0
    assert [e["name"] for e in spans if e["tid"] == 2 and e["ts"] < steps[1]["ts"]] == CPU
    for before, after in pairwise(steps):
        assert after["ts"] >= before["ts"] + before["dur"]
    assert cli.main(["profile", "--engine", "cpu", "--trace", str(tmp_path / "no" / "trace.json")]) != 0
    assert "trace.json" in capsys.readouterr().err


def test_command_refuses(capsys):
    assert cli.main(["profile", "--engine", "cpu", "--batch-size", "36"]) == 2
    assert "batch size 36 exceeds the 35 training images" in capsys.readouterr().err
    if _native.cuda_status()["reason"]:
        assert "engine 'fused' cannot run here: " in prints(capsys, "profile", "--engine", "fused", code=4)


@pytest.mark.gpu
@pytest.mark.parametrize("which", engine_params(without=("cpu", "reference")))
def test_command_on_a_gpu(make_engine, which, capsys, tmp_path):
    make_engine(*which)
    name, precision = which
    file = tmp_path / "profile.json"
    argv = ["--engine", name, "--precision", precision, "--batch-size", "32", "--steps", "5", "--json", str(file)]
    assert "nsys profile " in prints(capsys, "profile", *argv)
    facts = json.loads(file.read_text())
    if precision == "fp64":
        assert facts["roofs"] is None
        return
    roofs, units = facts["roofs"], {"memory", "fma"}
    assert all(value > 1e11 for value in roofs.values())
    if "tf32_flops" in roofs:
        assert roofs["fma_flops"] < roofs["tf32_flops"] < roofs["bf16_flops"]
        units |= {"tf32", "3xtf32", "bf16", "fp16", "3xfp16"}
    assert all(op["bound"] in units if op["bound"] else "tf32_flops" not in roofs for op in facts["ops"])


OPS = [
    OpTime("gather", "gather_batch", "fma", 8e6, 0, 4.0),
    OpTime("layer 2 backward", "batch_norm", "fma", 4e6, 1e6, 2.0),
    OpTime("layer 2 backward", "conv2d weight", "3xtf32", 4e6, 1e9, 20.0),
    OpTime("update", "nothing", "fma", 0, 0, 14.0),
]


def test_trace():
    """Three rows of spans, each within the one above, from the first step's beginning on."""
    spans = [
        [(0.0, 4.0), (50.0, 5.0)],
        [(4.0, 2.0), (55.0, 2.0)],
        [(6.0, 20.0), (57.0, 21.0)],
        [(26.0, 1.0), (78.0, 1.0)],
    ]
    ops = [replace(op, spans=times) for op, times in zip(OPS, spans, strict=True)]
    ops[2] = replace(ops[2], kernels=[cases.KERNEL])
    events = trace.trace_events(ops, "a title", 10)["traceEvents"]
    assert cases.check_trace(events) == [e for e in events if e["ph"] == "X"]
    rows = {row: [e for e in events if e["ph"] == "X" and e["tid"] == row] for row in (1, 2, 3)}
    assert [(e["name"], e["ts"], e["dur"]) for e in rows[1]] == [("step 1", 0, 27), ("step 2", 50, 29)]
    assert [(e["name"], e["ts"], e["dur"]) for e in rows[2]][:3] == [
        ("gather", 0, 4),
        ("layer 2 backward", 4, 22),
        ("update", 26, 1),
    ]
    assert [(e["name"], e["ts"], e["dur"]) for e in rows[3]][5:7] == [("batch_norm", 55, 2), ("conv2d weight", 57, 21)]
    assert rows[3][2]["args"][cases.KERNEL["name"]] == (
        "392 blocks of 256 threads, 12 registers, 1024 bytes of shared memory, occupancy 75 %"
    )
    assert len(cases.check_trace(trace.trace_events(ops, "a title", 1)["traceEvents"])) == 1 + 3 + 4


def test_roofs():
    assert profile.roof(OPS[0], ROOFS) == (pytest.approx(2.0), "memory")
    assert profile.roof(OPS[2], ROOFS) == (pytest.approx(10.0), "3xtf32")
    assert profile.roof(OPS[0], OLDER_ROOFS) == (pytest.approx(2.0), "memory")
    assert profile.roof(OPS[2], OLDER_ROOFS) == (None, None)
    assert profile.table(OPS, OLDER_ROOFS)[1][3][-2:] == ("-", "-")


def test_table():
    columns, rows = profile.table(OPS, ROOFS)
    assert columns == ("phase", "us", "share", "GB/s", "TFLOP/s", "%roof", "bound")
    assert rows == [
        ("gather_batch", "4.00", "10.0 %", "2000", "-", "50", "memory"),
        ("layer 2 backward", "22.0", "55.0 %", "", "", "", ""),
        ("  batch_norm", "2.00", "5.0 %", "2000", "0.50", "50", "memory"),
        ("  conv2d weight", "20.0", "50.0 %", "200", "50.0", "50", "3xtf32"),
        ("update: nothing", "14.0", "35.0 %", "-", "-", "-", "-"),
    ]
    columns, rows = profile.table(OPS, None)
    assert columns == ("phase", "us", "share", "GB/s", "GFLOP/s")
    assert rows[3] == ("  conv2d weight", "20.0", "50.0 %", "200", "50000")
