"""scripts/docs ladder: docs/ladder.md holds the tables of the code and the times of the record."""

import json
import shutil
from itertools import pairwise

import pytest
from conftest import ROOT
from pages import ladder as script
from pages.records import RecordError

from mnist_cuda.bench.op_peers import OP_PEERS
from mnist_cuda.commands.bench.ops import OPS


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The script at work on a copy of the code that it reads."""
    for folder in ("native", "mnist_cuda/peers"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(script, "ROOT", tmp_path)

    def change(file, old, new):
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new))

    return change


def test_the_command_line_knows_the_ops():
    assert tuple(script.ladders()) == OPS


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A record with a time of every row of ours, and of a library."""
    row = {"shape": "(2,2)", "absent": "", "error": 0.0, "bound": 1e-6, "library_ratio": 2.0, "library": False}
    own = [(op, t.name) for op, techniques in script.ladders().items() for t in techniques]
    rows = [{**row, "op": op, "variant": name, "cold_us": 10.0 + k} for k, (op, name) in enumerate(own)]
    rows.append({**row, "op": "relu", "variant": "cudnn", "why": "one call", "cold_us": 5.0, "library": True})
    rows.append({**row, "op": "relu", "variant": "absent_row", "absent": "it needs more", "library": True})
    machine = {"cpu": "A CPU", "cores": 4, "gpu": {"name": "A GPU"}, "load_before": [3.0, 0, 0]}
    record = {"started": "2026-11-23T12:00:00", "command": "mnist-cuda bench ops", "versions": {"build": "x"}}
    record |= {"commit": "0" * 40, "machine": machine, "rows": rows}
    folder = tmp_path / "docs" / "records" / "ops"
    folder.mkdir(parents=True)
    (folder / "ops.json").write_text(json.dumps(record))
    monkeypatch.setattr(script, "RECORDS", folder)
    monkeypatch.setattr(script, "measured", lambda records: f"Measured.{script.loads(records)}")
    return record


def test_every_row_of_the_record_and_of_the_languages_is_there(recorded):
    page = script.page()
    for row in recorded["rows"]:
        section = page.partition(f"\n### {row['op']}\n")[2].partition("\n###")[0]
        lines = [line for line in section.splitlines() if line.startswith(f"| [`{row['variant']}`](")]
        assert [line.endswith(f" | {script.time_of(row)} |") for line in lines] == [True] * (not row["absent"]), row
    names = {(op, technique.name) for op, rows in script.ladders().items() for technique in rows}
    assert {(v.op, v.name) for peer in OP_PEERS.values() for v in peer.variants} < names
    assert "Measured. **The machine was busy before it** (load 3.0 on 4 cores)." in page


def test_a_record_of_a_changed_checkout_is_refused(recorded):
    recorded["commit"] += "-dirty"
    (script.RECORDS / "ops.json").write_text(json.dumps(recorded))
    with pytest.raises(RecordError, match=r"ops\.json lacks a commit without changes"):
        script.page()


def test_every_rung_is_faster_than_the_one_before_or_says_at_which_size():
    """And the last of ours within 1.3 times the library's time, or its row has the number."""
    rows, offenders = script.measured_rows(script.read_records(script.RECORDS)), []
    if not rows:
        pytest.skip("there is no record of `bench ops`")
    others = {(v.op, v.name) for peer in OP_PEERS.values() for v in peer.variants}
    for op, techniques in script.ladders().items():
        own = [(t, rows[op, t.name]) for t in techniques if (op, t.name) in rows and (op, t.name) not in others]
        slower = [t for (_, before), (t, row) in pairwise(own) if row["cold_us"] >= before["cold_us"]]
        last = {row["unit"]: (t, row) for t, row in own}.values()
        far = [t for t, row in last if (row["library_ratio"] or 0) > 1.3]
        offenders += [f"{op} {t.name}: {t.why}" for t in (*slower, *far) if "B=" not in t.why]
    assert offenders == []


def test_files():
    files = {(op, t.name): t.file.relative_to(ROOT).as_posix() for op, rows in script.ladders().items() for t in rows}
    assert files["relu", "float4"] == "native/gpu/kernels/relu/float4.cu"
    assert files["linear", "naive"] == "native/gpu/kernels/linear/naive.cu"  # by a function of the table's own file
    assert files["log_softmax", "warp"] == "native/gpu/kernels/log_softmax/online.cu"
    assert files["batch_norm_backward", "naive"] == "native/gpu/kernels/batch_norm/naive.cu"  # by a template's argument
    assert files["conv2d", "fft"] == "native/gpu/kernels/conv2d/fft.cu"
    assert files["linear", "cutlass"] == "native/gpu/kernels/linear/cutlass.cu"
    assert files["relu", "numba"] == "mnist_cuda/peers/numba_ops.py"


def test_a_new_row_and_a_lost_file_are_noticed(copied):
    table = "native/gpu/kernels/relu/relu.cpp"
    copied(table, "  };", '      {"float8", relu_forward_float4, "a \\"test\\" "\n       "in two pieces"},\n  };')
    assert script.ladders()["relu"][2].why == 'a \\"test\\" in two pieces'
    copied(table, 'relu_forward_float4, "a', 'relu_forward_float8, "a')
    with pytest.raises(
        script.StaleError, match=r"relu has no function of `relu_forward_float8`, and 0 files float8\.cu"
    ):
        script.ladders()


def test_a_row_that_cannot_be_read_is_noticed(copied):
    copied("native/gpu/kernels/relu/relu.cpp", '"one element per thread"', "kReason")
    with pytest.raises(script.StaleError, match=r"relu\.cpp: cannot read every row of relu_forward_variants"):
        script.ladders()


def test_a_table_without_an_op_is_noticed(copied):
    copied("native/gpu/bench/op_cases.cpp", '      {"relu", relu},\n', "")
    with pytest.raises(script.StaleError, match="has the rows of relu_forward_variants"):
        script.ladders()


def test_a_wrong_row_of_the_record_is_refused():
    row = {"op": "relu", "variant": "naive", "absent": "", "error": None, "bound": 0, "library_ratio": 2.0}
    row |= {"library": False, "cold_us": 12.34}
    assert script.time_of({**row, "error": 0.0}) == "12.3 (2.00x)"
    assert script.time_of({**row, "error": 0.0, "library": True}) == "12.3"
    for error in (1e-9, float("nan")):
        with pytest.raises(script.StaleError, match="relu naive is wrong in the records"):
            script.time_of({**row, "error": error})
