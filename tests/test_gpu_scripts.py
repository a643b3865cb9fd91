"""scripts/check gpu and sanitize, with stand-ins for Python, ctest and compute-sanitizer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks import gpu, runner, sanitize
from tiny import run_check, shell_program

from mnist_cuda.engine import engines

SPECS = [
    f"{row.name}-{precision}"
    for row in engines()
    if row.device == "cuda"
    for precision in row.precisions
    if not row.too_old(precision)
]

# The cases that pytest is to find: for each engine and precision some of each kind of test, and one of none.
CASES = [
    *(
        f"tests/{test}{spec}]"
        for spec in SPECS
        for test in (
            "test_engines.py::test_wrong_calls[label 10-",
            "test_engine_sizes.py::test_every_size[",
            "test_engine_sizes.py::test_every_size_of_an_older_gpu[",
            "test_engine_sizes.py::test_every_size_in_little_shared_memory[rtx4060-",
            "test_engine_sizes.py::test_every_size_in_little_shared_memory[rtx4090-",
            "test_resume.py::test_a_run_stopped_at_random_ends_in_the_same_bits[",
        )
    ),
    "tests/test_ranks_gpu.py::test_gradients_of_the_whole_batch[2-1-fp32]",
]
UNITS = ("engines", "sizes", "a100", "rtx4060", "rtx4090", "rest")

# Stands for the environment's python: lists cases as pytest does, prints which ones it was given, and says which check
# or command it was to run. The real one says what there is to check.
FAKE_PYTHON = r"""
[ "$*" != - ] || exec "$REAL_PYTHON" -
echo "process $$"
[[ -z "$SLEEPING" || "$*" != *"$SLEEPING"* ]] || sleep "$SECONDS_ASLEEP"
if [[ "$*" == *--collect-only* ]]; then
  cat "$CASES"
elif [ "$1 $2" = "-m pytest" ]; then
  echo "GPU required: $MNIST_CUDA_REQUIRE_GPU, stops: $MNIST_CUDA_STOPS"
  for case in "$@"; do [[ "$case" != tests/* ]] || echo "given: $case"; done
  [[ -z "$FAILING" || "$*" != *"$FAILING"* ]] || { echo "FAILED $FAILING" && echo "1 failed in 1.00s" && exit 1; }
  echo "3 passed in 1.00s"
else
  echo "called: $*"
fi
"""


Run = Callable[..., tuple[int, dict[str, list[str]], list[str]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*args): `scripts/check gpu ARGS` in a folder with the stand-ins.

    Gives the exit code, the table's rows by process (exit code, seconds and the rest), and the lines below it.
    """
    monkeypatch.chdir(tmp_path)
    shell_program(tmp_path / ".venv" / "bin" / "python", FAKE_PYTHON)
    shell_program(tmp_path / ".venv" / "bin" / "ctest", 'echo "$*: 100% tests passed, 0 tests failed out of 12"')
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "CTestTestfile.cmake").touch()
    (tmp_path / "cases").write_text("\n".join([*CASES, "", f"{len(CASES)}/999 tests collected"]))
    values = {"CASES": str(tmp_path / "cases"), "REAL_PYTHON": sys.executable, "SECONDS_ASLEEP": "60"}
    for name, value in (values | {"FAILING": "", "SLEEPING": ""}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MNIST_CUDA_STOPS", raising=False)
    for module in (runner, gpu):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "BUILD", tmp_path / "build")

    def run(*args: str) -> tuple[int, dict[str, list[str]], list[str]]:
        code = run_check(gpu, *args)
        table, _, rest = capsys.readouterr().out.partition("\n\n")
        return code, {line.split()[0]: line.split(maxsplit=4)[1:] for line in table.splitlines()[1:]}, rest.splitlines()

    return run


def test_gpu_check_runs_every_engine_and_precision(run: Run) -> None:
    code, rows, _ = run("logs/one")
    assert code == 0
    units = {f"pytest-{spec}-{unit}" for spec in SPECS for unit in UNITS}
    assert set(rows) == units | {f"sanitize-{spec}" for spec in SPECS} | {"pytest-others", "ctest"}
    assert all(row[0] == "0" and row[2] == "s" for row in rows.values())
    assert rows["pytest-others"][3] == "3 passed in 1.00s"
    logs = Path("logs/one")
    assert "called: scripts/checks sanitize cudnn bf16\n" in (logs / "sanitize-cudnn-bf16.log").read_text()
    given = [line for log in logs.glob("pytest-*.log") for line in log.read_text().splitlines() if "given: " in line]
    assert sorted(given) == sorted(f"given: {case}" for case in CASES)  # each once
    engines = (logs / "pytest-fused-bf16-engines.log").read_text().splitlines()[1:]
    assert engines[:2] == ["GPU required: 1, stops: ", f"given: {CASES[6 * SPECS.index('fused-bf16')]}"]
    assert "-L gpu -j" in (logs / "ctest.log").read_text()


def test_gpu_check_names_what_failed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILING", CASES[-2])
    code, rows, lines = run("--quick", "logs")
    assert code == 1
    assert {name: row[0] for name, row in rows.items() if row[0] != "0"} == {f"pytest-{SPECS[-1]}-rest": "1"}
    assert f"FAILED {CASES[-2]}" in lines
    assert not [line for line in lines if line.startswith("left: ")]
    assert not [name for name in rows if name.startswith("sanitize")]


def test_gpu_check_of_some_parts_and_processes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEEPING", "scripts/checks")
    monkeypatch.setenv("SECONDS_ASLEEP", "1")
    names = "stops,races,mutations,bench,pytest-others,pytest-naive-fp32"
    code, rows, _ = run("--only", names, "--jobs", "3", "logs")
    assert code == 0
    others = ["pytest-others", "races", "mutations", "bench-steps", "bench-ops"]
    naive = [f"pytest-naive-fp32-{unit}" for unit in UNITS]
    assert sorted(rows) == sorted([*others, *naive, *(f"stops-{spec}" for spec in SPECS)])
    assert next(iter(rows)) == "mutations"  # the longest first, with nothing beside it
    assert {*list(rows)[-2:]} == {"bench-steps", "bench-ops"}  # with nothing beside them
    assert Path("logs/stops-tiled-fp32.log").read_text().splitlines()[1:] == [
        "GPU required: 1, stops: 50",
        f"given: {CASES[6 * SPECS.index('tiled-fp32') + 5]}",
        "3 passed in 1.00s",
    ]
    mutations = f"called: scripts/checks mutations --gpu --jobs 3 --build {Path('build').absolute()}"
    assert mutations in Path("logs/mutations.log").read_text()
    assert "called: -m mnist_cuda bench ops --busy --json" in Path("logs/bench-ops.log").read_text()


def test_gpu_check_ends_with_its_time_and_says_what_is_left(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEEPING", "same_bits[naive-fp32]")
    names = "pytest-naive-fp32-sizes,pytest-naive-fp32-rest,pytest-tiled-fp32-engines"
    code, rows, lines = run("--only", names, "--jobs", "1", "--limit", "4", "logs")
    assert code == 1
    assert list(rows) == ["pytest-naive-fp32-rest"]
    assert rows["pytest-naive-fp32-rest"][0] == "-15"
    assert rows["pytest-naive-fp32-rest"][3] == "ended: the time is over"
    left = lines[-2].removeprefix("left: --only ")
    assert sorted(left.split(",")) == sorted(names.split(","))
    log = Path("logs/pytest-naive-fp32-rest.log").read_text()
    assert not Path(f"/proc/{int(log.split()[1])}").exists()
    monkeypatch.setenv("SLEEPING", "")
    code, rows, _ = run("--only", left, "more")
    assert (code, sorted(rows)) == (0, sorted(names.split(",")))


def test_gpu_check_ends_what_takes_too_long(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PATIENCE", 0)
    monkeypatch.setattr(gpu, "PATIENT", 1)
    monkeypatch.setenv("SLEEPING", "[naive-fp32]")
    code, rows, lines = run("--only", "pytest-naive-fp32-sizes,pytest-tiled-fp32-sizes", "logs")
    assert code == 1
    assert rows["pytest-naive-fp32-sizes"][3] == "ended: it took too long"
    assert rows["pytest-tiled-fp32-sizes"][0] == "0"
    assert not [line for line in lines if line.startswith("left: ")]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("build", 2, "is there already"),
        ("logs --build nowhere", 4, "nowhere; name one by --build"),
        ("--only pytest-naive-fp8 logs", 2, "there is no process pytest-naive-fp8"),
    ],
)
def test_gpu_check_refuses_a_wrong_call(run: Run, args: str, code: int, words: str) -> None:
    with pytest.raises(runner.Problem, match=words) as problem:
        run(*args.split())
    assert problem.value.code == code
    assert not Path("logs").exists()


SANITIZER = """
case "$*" in
  --version) echo 'NVIDIA (R) Compute Sanitizer'; echo "Version $VERSION (build 1)" ;;
  *"--tool $FAILING "*) exit 86 ;;
  *) echo "called: $*" ;;
esac
"""
ALL = "memcheck racecheck initcheck synccheck"


@pytest.mark.parametrize(
    ("spec", "version", "limits", "tools"),
    [
        ("fused fp32", "2025.3.1.0", "", "memcheck synccheck"),
        ("fused bf16", "2025.3.1.0", "108,166912", ALL),  # its kernels for other GPUs
        ("naive fp32", "2025.3.1.0", "", ALL),
        ("fused tf32", "2025.4.0.0", "", ALL),
        ("cudnn fp32", "2025.3.1.0", "", ALL),
        ("cudnn tf32", "2023.1.0.0", "", "memcheck synccheck"),
        ("cudnn bf16", "2026.1.0.0", "", ALL),
    ],
)
def test_sanitize_leaves_out_what_does_not_follow_hopper_kernels(
    spec: str, version: str, limits: str, tools: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """And counts tools that found something."""
    shell_program(tmp_path / "compute-sanitizer", SANITIZER)
    values = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VERSION": version, "MNIST_CUDA_FUSED_LIMITS": limits}
    for failing in ("", *ALL.split()):
        for name, value in (values | {"FAILING": failing}).items():
            monkeypatch.setenv(name, value)
        code, out = run_check(sanitize, *spec.split()), capfd.readouterr().out
        calls = [line.split() for line in out.splitlines() if line.startswith("called: ")]
        assert [call[2] for call in calls] == [tool for tool in tools.split() if tool != failing]
        assert all(call[-2:] == spec.split() for call in calls)
        assert code == (failing in tools.split())
        assert ("not run: racecheck and initcheck" in out) == ("racecheck" not in tools)
