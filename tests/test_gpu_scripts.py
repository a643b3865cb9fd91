"""scripts/check gpu and sanitize, with stand-ins for Python, ctest and compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checks import sanitize
from tiny import ROOT, run_check, shell_program

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


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the checks, with the stand-ins."""
    path = tmp_path / "a folder"
    shutil.copytree(ROOT / "scripts" / "checks", path / "scripts" / "checks")
    shell_program(path / ".venv" / "bin" / "python", FAKE_PYTHON)
    shell_program(path / ".venv" / "bin" / "ctest", 'echo "$*: 100% tests passed, 0 tests failed out of 12"')
    (path / "build").mkdir()
    (path / "build" / "CTestTestfile.cmake").touch()
    (path / "cases").write_text("\n".join([*CASES, "", f"{len(CASES)}/999 tests collected"]))
    values = {"CASES": str(path / "cases"), "REAL_PYTHON": sys.executable, "SECONDS_ASLEEP": "60"}
    for name, value in (values | {"FAILING": "", "SLEEPING": ""}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MNIST_CUDA_STOPS", raising=False)
    return path


def run(checkout: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`scripts/check gpu ARGS`."""
    command = [sys.executable, checkout / "scripts" / "checks", "gpu", *args]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def table(result: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The rows of the table: exit code, seconds and the rest, by process."""
    head, *lines = result.stdout.partition("\n\n")[0].splitlines()
    assert head.split() == ["what", "rc", "time"]
    return {line.split()[0]: line.split(maxsplit=4)[1:] for line in lines}


def test_gpu_check_runs_every_engine_and_precision(checkout: Path) -> None:
    result = run(checkout, "logs/one")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = table(result)
    units = {f"pytest-{spec}-{unit}" for spec in SPECS for unit in UNITS}
    assert set(rows) == units | {f"sanitize-{spec}" for spec in SPECS} | {"pytest-others", "ctest"}
    assert all(row[0] == "0" and row[2] == "s" for row in rows.values())
    assert rows["pytest-others"][3] == "3 passed in 1.00s"
    logs = checkout / "logs" / "one"
    assert "called: scripts/checks sanitize cudnn bf16\n" in (logs / "sanitize-cudnn-bf16.log").read_text()
    given = [line for log in logs.glob("pytest-*.log") for line in log.read_text().splitlines() if "given: " in line]
    assert sorted(given) == sorted(f"given: {case}" for case in CASES)  # each once
    engines = (logs / "pytest-fused-bf16-engines.log").read_text().splitlines()[1:]
    assert engines[:2] == ["GPU required: 1, stops: ", f"given: {CASES[6 * SPECS.index('fused-bf16')]}"]
    assert "-L gpu -j" in (logs / "ctest.log").read_text()


def test_gpu_check_names_what_failed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILING", CASES[-2])
    result = run(checkout, "--quick", "logs")
    assert result.returncode == 1
    assert {name: row[0] for name, row in table(result).items() if row[0] != "0"} == {f"pytest-{SPECS[-1]}-rest": "1"}
    assert f"FAILED {CASES[-2]}" in result.stdout.splitlines()
    assert "left: " not in result.stdout
    assert "sanitize" not in result.stdout


def test_gpu_check_of_some_parts_and_processes(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEEPING", "scripts/checks")
    monkeypatch.setenv("SECONDS_ASLEEP", "1")
    names = "stops,races,mutations,bench,pytest-others,pytest-naive-fp32"
    result = run(checkout, "--only", names, "--jobs", "3", "logs")
    assert result.returncode == 0, result.stdout + result.stderr
    others = ["pytest-others", "races", "mutations", "bench-steps", "bench-ops"]
    naive = [f"pytest-naive-fp32-{unit}" for unit in UNITS]
    assert sorted(table(result)) == sorted([*others, *naive, *(f"stops-{spec}" for spec in SPECS)])
    assert next(iter(table(result))) == "mutations"  # the longest first, with nothing beside it
    assert {*list(table(result))[-2:]} == {"bench-steps", "bench-ops"}  # with nothing beside them
    logs = checkout / "logs"
    stopped = CASES[6 * SPECS.index("tiled-fp32") + 5]
    assert (logs / "stops-tiled-fp32.log").read_text().splitlines()[1:] == [
        "GPU required: 1, stops: 50",
        f"given: {stopped}",
        "3 passed in 1.00s",
    ]
    assert (
        f"called: scripts/checks mutations --gpu --jobs 3 --build {checkout / 'build'}"
        in (logs / "mutations.log").read_text()
    )
    assert "called: -m mnist_cuda bench ops --busy --json" in (logs / "bench-ops.log").read_text()


def test_gpu_check_ends_with_its_time_and_says_what_is_left(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEEPING", "same_bits[naive-fp32]")
    names = "pytest-naive-fp32-sizes,pytest-naive-fp32-rest,pytest-tiled-fp32-engines"
    result = run(checkout, "--only", names, "--jobs", "1", "--limit", "4", "logs")
    assert result.returncode == 1, result.stdout + result.stderr
    rows = table(result)
    assert list(rows) == ["pytest-naive-fp32-rest"]
    assert rows["pytest-naive-fp32-rest"][0] == "-15"
    assert rows["pytest-naive-fp32-rest"][3] == "ended: the time is over"
    left = result.stdout.splitlines()[-2].removeprefix("left: --only ")
    assert sorted(left.split(",")) == sorted(names.split(","))
    log = (checkout / "logs" / "pytest-naive-fp32-rest.log").read_text()
    assert not Path(f"/proc/{int(log.split()[1])}").exists()
    monkeypatch.setenv("SLEEPING", "")
    result = run(checkout, "--only", left, "more")
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(table(result)) == sorted(names.split(","))


def test_gpu_check_ends_what_takes_too_long(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = checkout / "scripts" / "checks" / "gpu.py"
    text = script.read_text()
    assert text.count("PATIENCE, PATIENT = 4, 300") == 1
    script.write_text(text.replace("PATIENCE, PATIENT = 4, 300", "PATIENCE, PATIENT = 0, 1"))
    monkeypatch.setenv("SLEEPING", "[naive-fp32]")
    result = run(checkout, "--only", "pytest-naive-fp32-sizes,pytest-tiled-fp32-sizes", "logs")
    assert result.returncode == 1
    assert table(result)["pytest-naive-fp32-sizes"][3] == "ended: it took too long"
    assert table(result)["pytest-tiled-fp32-sizes"][0] == "0"
    assert "left: " not in result.stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("build", 2, "is there already"),
        ("logs --build nowhere", 4, "nowhere; name one by --build"),
        ("--only ctest,tests logs", 2, "there is no part tests, expected some of pytest, ctest, sanitize, stops, "),
        ("--only pytest-naive-fp8 logs", 2, "there is no process pytest-naive-fp8"),
    ],
)
def test_gpu_check_refuses_a_wrong_call(checkout: Path, args: str, code: int, words: str) -> None:
    result = run(checkout, *args.split())
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert words in result.stderr
    assert not (checkout / "logs").exists()


Sanitize = Callable[..., tuple[int, str]]


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Sanitize:
    """sanitizer(spec, version, failing=None): the check's exit code and output, with that compute-sanitizer.

    Its tool `failing` finds something, the others tell how they were called.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def call(spec: str, version: str, failing: str | None = None) -> tuple[int, str]:
        text = f"""
case "$*" in
  --version) echo 'NVIDIA (R) Compute Sanitizer'; echo 'Version {version} (build 1)' ;;
  *"--tool {failing} "*) echo 'found something'; exit 86 ;;
  *) echo "called: $*" ;;
esac"""
        shell_program(tmp_path / "compute-sanitizer", text)
        return run_check(sanitize, *spec.split()), capfd.readouterr().out

    return call


@pytest.mark.parametrize(
    ("spec", "version", "tools"),
    [
        ("fused fp32", "2025.3.1.0", "memcheck synccheck"),
        ("naive fp32", "2025.3.1.0", "memcheck racecheck initcheck synccheck"),
        ("fused tf32", "2025.4.0.0", "memcheck racecheck initcheck synccheck"),
        ("cudnn fp32", "2025.3.1.0", "memcheck racecheck initcheck synccheck"),
        ("cudnn tf32", "2023.1.0.0", "memcheck synccheck"),
        ("cudnn bf16", "2026.1.0.0", "memcheck racecheck initcheck synccheck"),
    ],
)
def test_sanitize_leaves_out_what_does_not_follow_hopper_kernels(
    sanitizer: Sanitize, spec: str, version: str, tools: str
) -> None:
    code, out = sanitizer(spec, version)
    calls = [line.split() for line in out.splitlines() if line.startswith("called: ")]
    assert code == 0
    assert [call[2] for call in calls] == tools.split()
    assert all(call[-2:] == spec.split() for call in calls)
    assert ("not run: racecheck and initcheck" in out) == ("racecheck" not in tools)


def test_sanitize_checks_what_fused_runs_on_other_gpus(sanitizer: Sanitize, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNIST_CUDA_FUSED_LIMITS", "108,166912")
    code, out = sanitizer("fused bf16", "2025.3.1.0")
    assert code == 0
    assert out.count("called: ") == 4


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_sanitize_counts_tools_that_found_something(sanitizer: Sanitize, tool: str) -> None:
    code, out = sanitizer("naive fp32", "2025.3.1.0", tool)
    assert code == 1
    assert "found something" in out
    assert out.count("called: ") == 3
