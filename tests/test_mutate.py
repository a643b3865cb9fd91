"""scripts/check mutations: a row has one place in the code; verdicts are what happened, of which code, on the page."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from checks import code_hashes
from checks import mutations as script
from checks.runner import Problem, tool
from mutations import MUTATIONS, Mutation
from tiny import ROOT, run_check


def test_every_row_has_one_place_in_the_code() -> None:
    script.check(MUTATIONS)
    assert sum("native/gpu/kernels/fused/" in row.file for row in MUTATIONS) >= 60
    assert len(MUTATIONS) >= 120
    for row in MUTATIONS:
        assert row.equivalent or script.needs_gpu(row) or row.by, f"{row.name}: no test is named"
        for test in row.by:
            name = test.removeprefix("ctest ").split()[0]
            folder = Path("tests/native") if test.startswith("ctest ") else Path("tests")
            found = [ROOT / folder / f"{below}{name}.cpp" for below in ("", "gpu/", "emulated/")] + [
                ROOT / folder / name
            ]
            assert name == "-m" or any(path.exists() for path in found), f"{row.name}: there is no {name}"


def test_a_row_that_rots_is_an_error() -> None:
    gone = Mutation("gone", "mnist_cuda/run/training.py", "kind", "no such line", "")
    twice = Mutation("twice", "mnist_cuda/run/training.py", "kind", "self.", "")
    same = Mutation("same", "mnist_cuda/run/training.py", "kind", "DIVERGED_LOSS = 1e6", "DIVERGED_LOSS = 1e6")
    lost = Mutation("gone", "mnist_cuda/no_such_file.py", "kind", "line", "")
    with pytest.raises(Problem) as problem:
        script.check([gone, twice, same, lost])
    lines = str(problem.value).splitlines()
    assert problem.value.code == 2
    assert lines[0] == "gone: mnist_cuda/run/training.py has 0 places like 'no such line', expected 1"
    assert lines[1].startswith("twice: mnist_cuda/run/training.py has ")
    assert lines[2] == "same: it changes nothing"
    assert lines[3:] == [
        "gone: another row has this name",
        "gone: mnist_cuda/no_such_file.py has 0 places like 'line', expected 1",
    ]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs the script on a table of its own: verdicts of every kind."""
    noticed = Mutation(
        "noticed",
        "mnist_cuda/engine/timing.py",
        "unit",
        "1e6 * seconds / self.steps_per_block)",
        "seconds)",
        ("test_timing.py",),
    )
    unnoticed = Mutation(
        "unnoticed",
        "mnist_cuda/engine/timing.py",
        "boundary",
        "            if self.seconds >= WARM_UP_SECONDS:",
        "            if self.seconds > WARM_UP_SECONDS:",
        ("test_timing.py -k summary",),
    )
    nothing = Mutation(
        "nothing",
        "mnist_cuda/engine/timing.py",
        "words",
        '"""For JSON."""',
        '"""For people."""',
        ("test_timing.py -k summary",),
    )
    hangs = Mutation(
        "hangs",
        "mnist_cuda/engine/timing.py",
        "late",
        "            if self.seconds >= WARM_UP_SECONDS:",
        "            if self.seconds >= 1e9:",
        ("test_timing.py -k 'long_enough and 0.7'",),
    )
    monkeypatch.setattr(script, "MUTATIONS", [noticed, unnoticed, nothing, hangs])
    monkeypatch.setattr(script, "PATIENCE", 5)
    monkeypatch.setattr(script, "TIMES", 2)
    results = tmp_path / "verdicts.json"

    def run(*argv: str) -> tuple[int, dict[str, dict[str, str]]]:
        code = run_check(script, "--jobs", "2", "--results", results, *argv)
        rows = json.loads(results.read_text())["mutations"]
        return code, {row["name"]: row for row in rows}

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


def processes_in(name: str) -> list[Path]:
    """Those whose working directory has this name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().name == name:
                found.append(process)
    return found


def test_a_stop_ends_all_runs_of_tests(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "PATIENCE", 600)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    wait, interrupted = script.wait, []

    def interrupt(process: object, log: Path, limit: float) -> int | None:
        if log.parent.name == "hangs" and not interrupted:
            interrupted.append(True)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # which wakes it
        code: int | None = wait(process, log, limit)
        return code

    monkeypatch.setattr(script, "wait", interrupt)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run("--only", "hangs")
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupted
    assert time.monotonic() - start < 60
    assert processes_in("hangs") == []


def test_parts_and_samples() -> None:
    def names(**options: object) -> list[str]:
        defaults = {"where": "host", "only": [], "sample": 0, "seed": 0, "part": (1, 1)}
        return [row.name for row in script.chosen(argparse.Namespace(**{**defaults, **options}))]

    everything = names()
    assert sorted(names(part=(1, 2)) + names(part=(2, 2))) == sorted(everything)
    assert len(names(sample=12, seed=4)) == 12
    assert names(sample=12, seed=4) == names(sample=12, seed=4) != names(sample=12, seed=5)
    emulated = {row.name: row for row in MUTATIONS if row.name in names(where="emulated")}
    assert {*everything, *names(where="gpu"), *emulated} == {row.name for row in MUTATIONS}
    assert len(emulated) >= 20
    assert {"ctest emulated_linear", "ctest test_emulator_faults"} <= {
        test for row in emulated.values() for test in script.emulated_tests(row)
    }
    with pytest.raises(Problem, match="no mutation is called nonsense"):
        names(only=["nonsense"])


# ---- what a verdict is about -----------------------------------------------------------------------------------------

ROW = Mutation("row", "mnist_cuda/engine/timing.py", "boundary", "if steps < most:  # not more", "if steps <= most:")


@pytest.mark.parametrize(
    ("changes", "standing"),
    [
        ({}, "today"),
        ({"file": "mnist_cuda/moved.py", "before": "if former <\n most:", "after": "if former <= most:"}, "today"),
        ({"code": "aaa ccc"}, "stale"),
        ({"code": ""}, "stale"),
        ({"after": "if steps <= 2 * most:"}, "stale"),
        ({"after": "if seconds <= most:"}, "stale"),
        ({"compiler": "g++ 2"}, "older"),
        ({"compiler": "g++ 2", "code": "ccc"}, "older"),
        ({"compiler": "g++ 2", "code_by": "g++ 1"}, "older"),
        ({"compiler": "g++ 2", "code_by": "g++ 1", "code": "ccc"}, "stale"),
    ],
)
def test_standing(changes: dict[str, str], standing: str) -> None:
    today = script.Today({"aaa", "bbb"}, {"g++ 1", "nvcc 1"}, [])
    verdict = {"before": ROW.before, "after": ROW.after, "verdict": "killed", "compiler": "g++ 1", "code": "aaa bbb"}
    assert today.standing(ROW, verdict | changes) == standing
    assert today.standing(ROW, None) == "missing"


def test_a_verdict_of_another_compiler_gets_the_hashes_of_this_one() -> None:
    class Build(script.Build):
        def __init__(self) -> None:
            self.targets, self._codes = ("module.so",), {"one.cu.o": {"f": {"aaa"}, "g": {"bbb"}}}

        touched = lambda *_: ["one.cu.o"]  # noqa: E731
        compiler = lambda *_: "nvcc 2"  # noqa: E731
        source = lambda _: "of today"  # noqa: E731

    made = {"before": ROW.before, "after": ROW.after, "verdict": "killed", "compiler": "nvcc 1", "code": "xxx"}
    verdict = made | {"functions": "f", "source": "of today"}
    script.rekey(Build(), ROW, verdict)
    assert verdict == made | {"code": "aaa", "code_by": "nvcc 2"}
    assert script.Today({"aaa"}, {"nvcc 2"}, []).standing(ROW, verdict) == "older"
    assert script.Today({"bbb"}, {"nvcc 2"}, []).standing(ROW, verdict) == "stale"
    with pytest.raises(Problem, match="row was tried on other code"):
        script.rekey(Build(), ROW, made | {"functions": "f", "source": "of yesterday"})


PYTHON = """
class Clock:
    def mean(self, values: list[float]) -> float:
        '''What it says on the tin.'''
        total = sum(values)  # in seconds
        return self.scale * total / len(values)
    def scale_by(self, factor: float) -> None:
        self.scale *= factor
"""


@pytest.mark.parametrize(
    ("old", "new", "standing"),
    [
        ("in seconds", "in milliseconds", "today"),
        ("on the tin", "on the label", "today"),
        ("total", "whole", "today"),
        ("mean", "average", "today"),
        ("scale", "unit", "today"),
        ("class Clock:", "import math\n\n\nclass Clock(dict):", "today"),
        ("factor\n", "factor + 1\n", "today"),
        ("self.scale * total", "self.other * total", "stale"),
        ("sum(", "max(", "stale"),
        ("total /", "total //", "stale"),
    ],
)
def test_names_and_comments_are_no_code_of_python(old: str, new: str, standing: str) -> None:
    assert script.python_changed(PYTHON, PYTHON + ")")[0].startswith("does not compile: ")
    fault, code = script.python_changed(PYTHON, PYTHON.replace("len(values)", "len(values[1:])"))
    assert fault is None
    verdict = {"before": ROW.before, "after": ROW.after, "verdict": "killed", **code}
    assert old in PYTHON
    today = script.Today(set(), set(), ["mean = total = 1\n" + PYTHON.replace(old, new)])
    assert today.standing(ROW, verdict) == standing


CPP = """
#include <stdexcept>
namespace mnist {
void told(const char*, int);
[[noreturn]] void throw_cuda_error(int, const char*, const char*, int);
static int twice(int x) { told("twice", x); return 2 * x; }
double sum(const double* values, int count) {
  if (count < 0) throw_cuda_error(count, "sum", __FILE__, __LINE__);
  double total = 1e-5;
  for (int i = 0; i < count; ++i) total += values[i] * twice(i);
  return total;
}
double other(const double* values) { return sum(values, twice(7)); }
}
"""
CUDA = """
namespace mnist {
namespace {
__global__ void add(float* to, const float* values, int count) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] += 0.5f * values[i];
}
}
void launch(float* to, const float* values, int count) { add<<<1, count>>>(to, values, count); }
}
"""


@pytest.fixture
def codes(tmp_path: Path) -> object:
    """codes(text, suffix): the hashes of all functions of a file by their names' hashes."""

    def codes(text: str, suffix: str) -> dict[str, set[str]]:
        source = tmp_path / str(len(list(tmp_path.iterdir()))) / f"file{suffix}"
        source.parent.mkdir()
        source.write_text(text)
        made = source.with_name(f"file{suffix}.o")
        try:
            nvcc = suffix == ".cu" and tool("cuobjdump") and tool("nvcc")
        except Problem as problem:
            pytest.skip(str(problem))
        compiler = [nvcc, "-gencode=arch=compute_90a,code=sm_90a"] if nvcc else ["c++", "-std=c++20"]
        subprocess.run([*compiler, "-O3", "-c", str(source), "-o", str(made)], check=True)
        return code_hashes.of_object(made)

    return codes


@pytest.mark.parametrize(
    ("text", "suffix", "renamed", "other"),
    [
        (CPP, ".cpp", {"values": "numbers", "sum": "total_of", "twice": "doubled", "told": "said"}, ("1e-5", "1e-6")),
        (CPP, ".cpp", {"mnist": "mnist_2"}, ("i < count", "i <= count")),
        (CUDA, ".cu", {"add": "accumulate", "values": "numbers", "launch": "start"}, ("0.5f", "0.25f")),
    ],
)
def test_names_places_and_comments_are_no_code(
    codes, text: str, suffix: str, renamed: dict[str, str], other: tuple[str, str]
) -> None:
    before = codes(text, suffix)
    same = f"// one line\n// more\n\n{text}"
    assert codes(same, suffix) == before
    for old, new in renamed.items():
        same = re.sub(rf"\b{old}\b", new, same)
    after = codes(same, suffix)
    assert after.keys() != before.keys()
    assert set().union(*after.values()) == set().union(*before.values())
    assert other[0] in text
    assert set().union(*before.values()) - set().union(*codes(text.replace(*other), suffix).values())


def test_a_change_is_one_of_its_function_alone(codes) -> None:
    before, after = codes(CPP, ".cpp"), codes(CPP.replace("twice(7)", "twice(8)"), ".cpp")
    assert len(before) == 2
    assert sum(before[name] != after[name] for name in before) == 1
