"""scripts/check mutations: a row that rots is named; verdicts are what happened, of which code, on the page."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pytest
from checks import mutations as script
from checks.runner import Problem
from mutations import MUTATIONS, Mutation
from tiny import run_check


def test_a_row_that_rots_is_an_error() -> None:
    file, line, by = "mnist_cuda/run/training.py", "DIVERGED_LOSS = 1e6", ("test_train.py -k x",)
    rotten = [
        Mutation("gone", file, "kind", "no such line", "", by),
        Mutation("twice", file, "kind", "self.", "", by),
        Mutation("same", file, "kind", line, line, by),
        Mutation("gone", "mnist_cuda/no_such_file.py", "kind", "line", "", by),
        Mutation("unnoticed", file, "kind", line, "1"),
        Mutation("lost", file, "kind", line, "1", ("ctest test_step", "ctest test_nothing -k x")),
    ]
    with pytest.raises(Problem) as problem:
        script.check(rotten)
    lines = str(problem.value).splitlines()
    assert problem.value.code == 2
    assert lines.pop(1).startswith("twice: mnist_cuda/run/training.py has ")
    assert lines == [
        "gone: mnist_cuda/run/training.py has 0 places like 'no such line', expected 1",
        "same: it changes nothing",
        "gone: another row has this name",
        "gone: mnist_cuda/no_such_file.py has 0 places like 'line', expected 1",
        "unnoticed: it names no test",
        "lost: there is no test ctest test_nothing",
    ]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs the script on a table of its own: verdicts of every kind."""
    file, warm_up = "mnist_cuda/engine/timing.py", "            if self.seconds >= WARM_UP_SECONDS:"
    unit, words = "1e6 * seconds / self.steps_per_block)", '"""For JSON."""'
    longer, summary = ("test_timing.py -k 'long_enough and 0.7'",), ("test_timing.py -k summary",)
    rows = [
        Mutation("noticed", file, "unit", unit, "seconds)", longer),
        Mutation("unnoticed", file, "boundary", warm_up, warm_up.replace(">=", ">"), summary),
        Mutation("nothing", file, "words", words, f"{words}  # and people", summary),
        Mutation("hangs", file, "late", warm_up, warm_up.replace("WARM_UP_SECONDS", "1e9"), longer),
    ]
    monkeypatch.setattr(script, "MUTATIONS", rows)
    monkeypatch.setattr(script, "PATIENCE", 5)
    monkeypatch.setattr(script, "TIMES", 2)
    results = tmp_path / "verdicts.json"

    def run(*argv: str) -> tuple[int, dict[str, dict[str, str]]]:
        code = run_check(script, "--jobs", "2", "--results", results, *argv)
        rows = json.loads(results.read_text())["mutations"]
        return code, {row["name"]: row for row in rows}

    make = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **options: make(**options | {"dir": tmp_path}))
    return run


def test_verdicts(run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, rows = run()
    assert code == 1
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "noticed": "killed",
        "unnoticed": "survived",
        "nothing": "broken",
        "hangs": "killed",
    }
    assert rows["noticed"]["by"].startswith("test_timing.py::test_measurement_finds_a_block")
    assert rows["hangs"]["by"].startswith("test_timing.py::test_measurement_finds_a_block")
    assert rows["hangs"]["by"].endswith("(hangs)")
    assert rows["unnoticed"]["by"] is None
    assert rows["nothing"]["by"] == "it changes no code"
    assert "2 killed, 1 survived, 1 broken" in capsys.readouterr().out

    monkeypatch.setattr(script.Runner, "run", lambda *_: pytest.fail("it was killed before"))
    assert run("--only", "noticed")[0] == 0
    assert run("--only", "unnoticed", "--limit", "1e-9")[0] == 0
    assert "1 left" in capsys.readouterr().out


def test_samples() -> None:
    def names(**options: object) -> list[str]:
        defaults = {"where": "host", "only": [], "sample": 0, "seed": 0}
        return [row.name for row in script.chosen(argparse.Namespace(**{**defaults, **options}))]

    assert len(names(sample=12, seed=4)) == 12
    assert names(sample=12, seed=4) == names(sample=12, seed=4) != names(sample=12, seed=5)
    assert {*names(), *names(where="gpu"), *names(where="emulated")} == {row.name for row in MUTATIONS}


# ---- what a verdict is about -----------------------------------------------------------------------------------------

PYTHON = """import math

LIMIT = 3


def mean(values):
    total = sum(values)  # in seconds

    return total / len(values)


def most(values):
    return max(values)
"""
CPP = """// Sums.
namespace mnist {

double sum(const double* values, int count) {
  double total = 0;  // in seconds

  for (int i = 0; i < count; ++i) total += values[i];
  return total;
}

double most(const double* values);
}
"""


@pytest.mark.parametrize(
    ("text", "row", "old", "new", "same"),
    [
        (PYTHON, ("x.py", "total / len(values)", "total"), "in seconds", "in milliseconds", True),
        (PYTHON, ("x.py", "total / len(values)", "total"), "max(", "min(", True),
        (PYTHON, ("x.py", "total / len(values)", "total"), "LIMIT = 3", "LIMIT = 4\n\n\nUNIT = 1", True),
        (PYTHON, ("x.py", "total / len(values)", "total"), "sum(values)", "sum(values[1:])", False),
        (CPP, ("x.cpp", "i < count", "i <= count"), "in seconds", "in milliseconds", True),
        (CPP, ("x.cpp", "i < count", "i <= count"), "++i) total", "++i)\n    total", True),
        (CPP, ("x.cpp", "i < count", "i <= count"), "most(const double*", "most(const float*", True),
        (CPP, ("x.cpp", "i < count", "i <= count"), "total = 0", "total = 1", False),
    ],
)
def test_a_verdict_is_about_one_function_without_comments_and_layout(
    text: str, row: tuple[str, str, str], old: str, new: str, same: bool, tmp_path: Path
) -> None:
    def code(text: str, after: str = row[2]) -> str:
        (tmp_path / row[0]).write_text(text)
        found: str = script.code_of(Mutation("row", row[0], "kind", row[1], after), tmp_path)
        return found

    assert old in text
    assert (code(text) == code(text.replace(old, new))) is same
    assert code(text) != code(text, row[2] + " * 2")
    assert code(text, row[1] + "  ") == ""


def test_the_page_counts_verdicts_on_todays_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slip = ("mnist_cuda/run/training.py", "kind", "DIVERGED_LOSS = 1e6", "1", ("test_train.py",))
    rows = [Mutation(name, *slip) for name in "abcd"]
    found = {"a": "killed", "b": "killed", "c": "survived"}
    codes = {"a": script.code_of(rows[0]), "b": "another", "c": script.code_of(rows[2])}
    verdicts = [{"name": name, "verdict": verdict, "code": codes[name]} for name, verdict in found.items()]
    (tmp_path / "host.json").write_text(json.dumps({"machine": "A Processor", "mutations": verdicts}))
    monkeypatch.setattr(script, "MUTATIONS", rows)
    monkeypatch.setattr(script, "RECORDS", tmp_path)
    monkeypatch.setattr(script, "PAGE", tmp_path / "trust.md")
    (tmp_path / "trust.md").write_text("Before\n<!-- summary -->\n<!-- /summary -->\n")
    assert run_check(script, "--publish", "--check") == 1
    assert run_check(script, "--publish") == 0
    assert "| [host](records/mutations/host.json) | 4 | 1 | 0 | 2 | A Processor |\n" in script.PAGE.read_text()
    assert run_check(script, "--publish", "--check") == 0
