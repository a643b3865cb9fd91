"""scripts/mutate: every row of its table has one place in the code; verdicts are what happened, and docs/trust.md's."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
from mutations import MUTATIONS, Mutation
from script_module import load_script

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("mutate")


def test_every_row_has_one_place_in_the_code(script: ModuleType) -> None:
    script.check(MUTATIONS)
    assert sum("native/kernels/fused/" in row.file for row in MUTATIONS) >= 60
    assert len(MUTATIONS) >= 120
    for row in MUTATIONS:
        assert row.equivalent or script.needs_gpu(row) or row.by, f"{row.name}: no test is named"
        for test in row.by:
            name = test.removeprefix("ctest ").split()[0]
            folder = Path("tests/native") if test.startswith("ctest ") else Path("tests")
            found = [ROOT / folder / f"{name}.cpp", ROOT / folder / "gpu" / f"{name}.cpp", ROOT / folder / name]
            assert name == "-m" or any(path.exists() for path in found), f"{row.name}: there is no {name}"


def test_a_row_that_rots_is_an_error(script: ModuleType) -> None:
    gone = Mutation("gone", "mnist_cuda/training.py", "kind", "no such line", "")
    twice = Mutation("twice", "mnist_cuda/training.py", "kind", "self.", "")
    same = Mutation("same", "mnist_cuda/training.py", "kind", "CHUNK_SECONDS = 0.1", "CHUNK_SECONDS = 0.1")
    lost = Mutation("gone", "mnist_cuda/no_such_file.py", "kind", "line", "")
    with pytest.raises(script.Problem) as problem:
        script.check([gone, twice, same, lost])
    lines = str(problem.value).splitlines()
    assert problem.value.code == 2
    assert lines[0] == "gone: mnist_cuda/training.py has 0 places like 'no such line', expected 1"
    assert lines[1].startswith("twice: mnist_cuda/training.py has ")
    assert lines[2] == "same: it changes nothing"
    assert lines[3:] == [
        "gone: another row has this name",
        "gone: mnist_cuda/no_such_file.py has 0 places like 'line', expected 1",
    ]


@pytest.fixture
def run(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Runs the script on a table of two rows: one that test_timing.py notices, and one that nothing could."""
    noticed = Mutation(
        "noticed",
        "mnist_cuda/timing.py",
        "unit",
        "1e6 * seconds / self.steps_per_block)",
        "seconds)",
        ("test_timing.py",),
    )
    unnoticed = Mutation(
        "unnoticed",
        "mnist_cuda/timing.py",
        "words",
        '"""For JSON."""',
        '"""For people."""',
        ("test_timing.py -k summary",),
    )
    hangs = Mutation(
        "hangs",
        "mnist_cuda/timing.py",
        "late",
        "            if self.seconds >= WARM_UP_SECONDS:",
        "            if self.seconds >= 1e9:",
        ("test_timing.py -k 'long_enough and 0.7'",),
    )
    monkeypatch.setattr(script, "MUTATIONS", [noticed, unnoticed, hangs])
    monkeypatch.setattr(script, "PATIENCE", 5)
    monkeypatch.setattr(script, "TIMES", 2)
    results = tmp_path / "verdicts.json"

    def run(*argv: str) -> tuple[int, dict[str, dict[str, str]]]:
        monkeypatch.setattr("sys.argv", ["scripts/mutate", "--jobs", "2", "--results", str(results), *argv])
        code = script.main()
        rows = json.loads(results.read_text())["mutations"]
        return code, {row["name"]: row for row in rows}

    return run


def test_verdicts(run, script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, rows = run()
    assert code == 1
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "noticed": "killed",
        "unnoticed": "survived",
        "hangs": "killed",
    }
    assert rows["noticed"]["by"].startswith("test_timing.py::test_measurement_finds_a_block")
    assert rows["hangs"]["by"].startswith("test_timing.py::test_measurement_finds_a_block")
    assert rows["hangs"]["by"].endswith("(hangs)")
    assert rows["unnoticed"]["by"] is None
    assert "2 killed, 1 survived" in capsys.readouterr().out

    monkeypatch.setattr(script.Runner, "run", lambda *_: pytest.fail("it was killed before"))
    assert run("--only", "noticed")[0] == 0


def processes_in(name: str) -> list[Path]:
    """Those whose working directory has this name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().name == name:
                found.append(process)
    return found


def test_a_stop_ends_all_runs_of_tests(run, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_parts_and_samples(script: ModuleType) -> None:
    def names(**options: object) -> list[str]:
        defaults = {"gpu": False, "only": [], "sample": 0, "seed": 0, "part": (1, 1)}
        return [row.name for row in script.chosen(argparse.Namespace(**{**defaults, **options}))]

    everything = names()
    assert sorted(names(part=(1, 2)) + names(part=(2, 2))) == sorted(everything)
    assert len(names(sample=12, seed=4)) == 12
    assert names(sample=12, seed=4) == names(sample=12, seed=4) != names(sample=12, seed=5)
    assert len(everything) + len(names(gpu=True)) == len(MUTATIONS)
    with pytest.raises(script.Problem, match="no mutation is called nonsense"):
        names(only=["nonsense"])


def test_the_page_shows_the_committed_verdicts_and_no_survivor(script: ModuleType) -> None:
    """`scripts/mutate --publish` writes it."""
    assert (ROOT / "docs" / "trust.md").read_text() == script.published()
    rows = {
        row["name"]: row for path in script.RECORDS.glob("*.json") for row in json.loads(path.read_text())["mutations"]
    }
    assert [name for name, row in rows.items() if row["verdict"] not in ("killed", "equivalent")] == []
    missing = [row.name for row in MUTATIONS if row.name not in rows and not script.needs_gpu(row)]
    assert missing == [], "run scripts/mutate and commit its verdicts"
