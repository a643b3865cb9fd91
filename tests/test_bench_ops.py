"""`bench ops`: the table and its verdicts from made-up rows anywhere, the real thing where there is a GPU."""

import json
import os
from dataclasses import replace

import pytest
from cases import KERNEL, OLDER_ROOFS, ROOFS
from conftest import REQUIRE_GPU, TOO_OLD
from tiny import prints

from mnist_cuda import _native, cli
from mnist_cuda.bench import op_peers, ops
from mnist_cuda.bench.competitors import PEER_PYTHON

ROW = {
    "op": "relu",
    "shape": "(4,64,14,14)",
    "variant": "naive",
    "why": "one element per thread",
    "library": False,
    "unit": "fma",
    "absent": "",
    "bytes": 451584.0,
    "flops": 50176.0,
    "cold_us": 10.0,
    "warm_us": 5.0,
    "error": 0.0,
    "bound": 0.0,
    "percent_of_roof": 1.1,
    "library_ratio": 2.5,
    "kernels": [],
}
ABSENT = {
    **ROW,
    "variant": "fft",
    "absent": "cufft cannot be loaded; install it with `pip install nvidia-cufft-cu12`",
    **dict.fromkeys(("cold_us", "warm_us", "error", "percent_of_roof", "library_ratio")),
}


@pytest.fixture
def reported(monkeypatch):
    def report(*rows):
        monkeypatch.setattr(_native, "bench_ops", lambda *_: {"roofs": ROOFS, "rows": list(rows)})

    return report


@pytest.fixture(autouse=True)
def no_peers(request, monkeypatch):
    """Rows of other languages only where a test asks for them."""
    if request.node.name != "test_other_languages":
        peers = {name: replace(peer, variants=()) for name, peer in op_peers.OP_PEERS.items()}
        monkeypatch.setattr(op_peers, "OP_PEERS", peers)


def test_table(reported, capsys):
    reported(ROW, {**ROW, "variant": "float4", "cold_us": 4.0, "library_ratio": None})
    out = prints(capsys, "bench", "ops")
    assert "4000 GB/s copied, 60.0 TFLOP/s in fp32" in out
    naive, float4 = (line.split() for line in out.splitlines() if line.startswith(("naive", "float4")))
    assert naive[1:8] == ["10.0", "5.00", "45.2", "0.01", "1", "1.0", "2.50"]
    assert float4[6:8] == ["2.5", "-"]


def test_what_the_kernels_take(reported, capsys):
    reported({**ROW, "kernels": [KERNEL, {**KERNEL, "name": "add_kernel"}]})
    lines = [line.split() for line in prints(capsys, "bench", "ops").splitlines()]
    head = next(k for k, line in enumerate(lines) if line[:2] == ["variant", "kernel"])
    assert lines[head][4:] == ["registers", "local", "B", "shared", "B", "blocks/SM", "occupancy"]
    assert lines[head + 1] == ["naive", KERNEL["name"], "392", "256", "12", "0", "1024", "6", "75", "%"]
    assert lines[head + 2][0] == "add_kernel"


def test_an_unknown_op_brings_the_list_of_ops_in_every_build(capsys):
    error = prints(capsys, "bench", "ops", "--op", "lineer", code=2)
    assert "argument --op: 'lineer' is unknown, expected one of linear, " in error
    assert "; did you mean linear?" in error


def test_one_variant_by_its_name(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(_native, "bench_ops", lambda *args: asked.append(args) or {"roofs": ROOFS, "rows": []})
    assert cli.main(["bench", "ops", "--op", "relu", "--variant", "flaot4"]) == 2
    assert asked == [("relu", "flaot4", 256, 0)]
    assert "variant 'flaot4' is unknown" in capsys.readouterr().err


def test_an_absent_row_stays_and_says_why(reported, capsys):
    reported(ROW, ABSENT)
    out = prints(capsys, "bench", "ops")
    assert f"absent: fft: {ABSENT['absent']}" in out
    row = next(line for line in out.splitlines() if line.startswith("fft "))
    assert row.split() == ["fft", *["-"] * 8, "absent,", "see", "below"]
    report = json.loads(prints(capsys, "bench", "ops", "--json"))
    assert report["rows"][1]["cold_us"] is None
    assert report.keys() >= {"command", "commit", "versions", "machine", "roofs"}


def test_a_library_on_tensor_cores_that_our_code_cannot_measure(monkeypatch, capsys):
    tf32 = {**ROW, "variant": "cublasLt_tf32", "unit": "tf32", "library": True, "percent_of_roof": None}
    monkeypatch.setattr(_native, "bench_ops", lambda *_: {"roofs": OLDER_ROOFS, "rows": [ROW, tf32]})
    out = prints(capsys, "bench", "ops")
    assert "tf32 and bf16 were not measured, code for that needs compute capability 8.0" in " ".join(out.split())
    assert next(line for line in out.splitlines() if line.startswith("cublasLt_tf32")).split()[5] == "-"


@pytest.mark.parametrize("error", [0.1, float("nan")])
def test_a_wrong_variant_fails(reported, capsys, error):
    reported(ROW, {**ROW, "variant": "float4", "error": error, "bound": 1e-6})
    assert cli.main(["bench", "ops"]) == 1
    assert "WRONG: float4 is off by " in capsys.readouterr().out
    assert cli.main(["bench", "ops", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["rows"][1]["variant"] == "float4"


def test_without_a_gpu(capsys):
    if not _native.cuda_status()["reason"]:
        pytest.skip("this machine has a usable GPU")
    assert prints(capsys, "bench", "ops", code=4).startswith("mnist-cuda: error: bench ops cannot run here: ")


@pytest.mark.gpu
def test_every_variant_is_right(capsys):
    if reason := _native.cuda_status()["reason"]:
        pytest.skip(f"no usable GPU: {reason}")
    rows = json.loads(prints(capsys, "bench", "ops", "--batch-size", "33", "--json"))["rows"]
    assert len({row["op"] for row in rows}) >= 10
    assert any(row["library"] for row in rows)
    for row in rows:
        if row["absent"]:  # without the libraries of engine `cudnn` the rest of the suite fails too
            library = not REQUIRE_GPU and row["variant"] in ("cublas", "fft")
            optional = row["variant"] == "cutlass"  # the build may have found no headers
            assert library or optional or TOO_OLD in row["absent"], f"{row['op']} {row['variant']}: {row['absent']}"
            continue
        if row["library"]:
            assert row["library_ratio"] >= 1
        assert row["kernels"]
        for kernel in row["kernels"]:
            assert not kernel["name"].startswith("unknown"), kernel
            assert kernel["registers"] > 0
            assert 0 < kernel["occupancy"] <= 1
        assert row["warm_us"] > 0
        assert row["cold_us"] > 0
    with pytest.raises(ValueError, match="op 'nothing' is unknown, expected one of linear, "):
        ops.measure("nothing", "", 33, 0)


@pytest.mark.gpu
def test_other_languages(capsys):
    """Every row of a language that the peers' environment has is right, with its kernels; the others say why not."""
    if reason := _native.cuda_status()["reason"]:
        pytest.skip(f"no usable GPU: {reason}")
    python = os.environ.get("MNIST_CUDA_PEER_PYTHON") or str(PEER_PYTHON)
    rows = json.loads(prints(capsys, "bench", "ops", "--batch-size", "33", "--peer-python", python, "--json"))["rows"]
    for peer in op_peers.OP_PEERS.values():
        for variant in peer.variants:
            (row,) = (row for row in rows if (row["op"], row["variant"]) == (variant.op, variant.name))
            if row["absent"]:  # PyTorch brings Triton; Numba may be missing, or not for this version of numpy
                assert peer.module == "numba" or not REQUIRE_GPU, row["absent"]
                continue
            assert row["warm_us"] > 0
            assert all(kernel["registers"] > 0 for kernel in row["kernels"])
