"""scripts/docs ladder: docs/ladder.md holds the tables of the code and the times of the record."""

import re
import shutil
from itertools import pairwise

import pytest
from conftest import ROOT
from pages import ladder as script

from mnist_cuda.bench import op_tables
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


def test_every_step_of_the_ladder_is_explained():
    """A comment above each row of a table of ours but the first says why it is faster than the one before, or not."""
    for name, (first, *others) in op_tables.own_tables(ROOT).items():
        assert not first.step, f"{name}: {first.name} has no row above it"
        for row in others:
            assert re.fullmatch(r"[A-Za-z0-9].*\.", row.step), f"{name}: no sentence above {row.name}"
    assert "- `naive` to `coalesced`: A warp's load of w takes 4 sectors" in script.page()


RELU = "native/gpu/kernels/relu/relu.cpp"


def test_a_new_row_and_a_lost_file_are_noticed(copied):
    """A comment above the row is its step."""
    row = (
        '// One,\n      // and two.\n      {"float8", relu_forward_float4, "a \\"test\\" "\n       "in two pieces"},\n'
    )
    copied(RELU, "  };", f"      {row}  }};")
    found = script.ladders()["relu"][2]
    assert (found.why, found.step) == ('a \\"test\\" in two pieces', "One, and two.")
    copied(RELU, 'relu_forward_float4, "a', 'relu_forward_float8, "a')
    with pytest.raises(
        script.StaleError, match=r"relu has no function of `relu_forward_float8`, and 0 files float8\.cu"
    ):
        script.ladders()


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        (RELU, '"one element per thread"', "kReason", r"relu\.cpp: cannot read every row of relu_forward_variants"),
        ("native/gpu/bench/op_cases.cpp", '      {"relu", relu},\n', "", "has the rows of relu_forward_variants"),
    ],
    ids=["row", "table without an op"],
)
def test_a_row_that_cannot_be_read_is_noticed(copied, file, old, new, words):
    copied(file, old, new)
    with pytest.raises(script.StaleError, match=words):
        script.ladders()


def test_a_wrong_row_of_the_record_is_refused():
    row = {"op": "relu", "variant": "naive", "absent": "", "error": None, "bound": 0, "library_ratio": 2.0}
    row |= {"library": False, "cold_us": 12.34}
    assert script.time_of({**row, "error": 0.0}) == "12.3 (2.00x)"
    assert script.time_of({**row, "error": 0.0, "library": True}) == "12.3"
    for error in (1e-9, float("nan")):
        with pytest.raises(script.StaleError, match="relu naive is wrong in the records"):
            script.time_of({**row, "error": error})
