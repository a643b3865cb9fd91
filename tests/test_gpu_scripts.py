"""scripts/gpu_check and scripts/sanitize, with stand-ins for Python, ctest and compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import ENVIRONMENT

from mnist_cuda.engine import engines

ROOT = Path(__file__).parents[1]
SPECS = [
    f"{row.name}-{precision}"
    for row in engines()
    if row.device == "cuda"
    for precision in row.precisions
    if not row.too_old(precision)
]

# Stands for the environment's python: lists the engines as it would, and as pytest prints what its test was named.
FAKE_PYTHON = f"""#!/usr/bin/env bash
[ "$*" != - ] || exec "{sys.executable}" -
while [ "$1" != -k ]; do shift; done
echo "GPU required: $MNIST_CUDA_REQUIRE_GPU, selected: $2"
case "$2" in
  "$FAILING") echo "FAILED tests/test_engines.py::test_wrong[$2]" && echo "1 failed in 1.00s" && exit 1 ;;
  not*) echo "9 deselected in 1.00s" && exit 5 ;;
  *) echo "3 passed in 1.00s" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the scripts, with the stand-ins."""
    path = tmp_path / "a folder"
    for folder in (path / "scripts", path / ".venv" / "bin", path / "build", tmp_path / "tools"):
        folder.mkdir(parents=True)
    for name in ("gpu_check", "sanitize"):
        shutil.copy(ROOT / "scripts" / name, path / "scripts")
    make_tool(path / ".venv" / "bin" / "python", FAKE_PYTHON)
    make_tool(path / ".venv" / "bin" / "ctest", '#!/bin/sh\necho "$*: 100% tests passed, 0 tests failed out of 12"\n')
    (path / "build" / "CTestTestfile.cmake").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.setenv("FAILING", "")
    return path


def make_tool(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run(script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *args], cwd=script.parents[1], capture_output=True, text=True, check=False)


def test_gpu_check_runs_every_engine_and_precision(checkout: Path) -> None:
    make_tool(checkout / "scripts" / "sanitize", '#!/bin/sh\necho "== memcheck: $*"\n')
    result = run(checkout / "scripts" / "gpu_check", "logs/one")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {line.split()[0]: line.split(maxsplit=4)[1:] for line in result.stdout.splitlines() if "-" in line[:9]}
    assert set(rows) == {f"{kind}-{spec}" for spec in SPECS for kind in ("pytest", "sanitize")} | {"pytest-others"}
    assert all(row[0] == "0" for row in rows.values())
    logs = checkout / "logs" / "one"
    assert (logs / "sanitize-cudnn-bf16.log").read_text() == "== memcheck: cudnn bf16\n"
    assert "GPU required: 1, selected: naive-fp32" in (logs / "pytest-naive-fp32.log").read_text()
    assert f"selected: not ({' or '.join(SPECS)})" in (logs / "pytest-others.log").read_text()
    assert "-L gpu --no-tests=error" in (logs / "ctest.log").read_text()


def test_gpu_check_names_what_failed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILING", SPECS[-1])
    (checkout / "build" / "CTestTestfile.cmake").unlink()
    result = run(checkout / "scripts" / "gpu_check", "--quick", "logs")
    assert result.returncode == 1
    assert f"FAILED tests/test_engines.py::test_wrong[{SPECS[-1]}]" in result.stdout
    assert "there is no build in build; name one by --build" in result.stdout
    assert "sanitize" not in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "name a new folder for the logs"),
        (("build",), "is there already"),
        (("--fast", "logs"), "unknown option --fast"),
        (("a", "b"), "one folder is enough"),
        (("logs", "--build"), "--build wants a folder"),
    ],
)
def test_gpu_check_refuses_a_wrong_call(checkout: Path, args: tuple[str, ...], words: str) -> None:
    result = run(checkout / "scripts" / "gpu_check", *args)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--steps", "9"), 2, "--steps is 9, expected at least 10"),
        (("fp16", "bf16"), 2, "precision is fp16, expected some of fp32, tf32, bf16"),
        (("--built", "--delays", "nowhere"), 4, "there is no build with delays in nowhere; leave out --built"),
    ],
)
def test_check_races_refuses_a_wrong_call(tmp_path: Path, args: tuple[str, ...], code: int, words: str) -> None:
    command = [sys.executable, ROOT / "scripts" / "check_races.py", *args]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", f"check_races: {words}\n")


Sanitize = Callable[..., tuple[int, str]]


@pytest.fixture
def sanitize(checkout: Path, tmp_path: Path) -> Sanitize:
    """sanitize(spec, version, failing=None): the script's exit code and output, with that compute-sanitizer.

    Its tool `failing` finds something, the others tell how they were called.
    """

    def call(spec: str, version: str, failing: str | None = None) -> tuple[int, str]:
        text = f"""#!/bin/sh
case "$*" in
  --version) echo 'NVIDIA (R) Compute Sanitizer'; echo 'Version {version} (build 1)' ;;
  *"--tool {failing} "*) echo 'found something'; exit 86 ;;
  *) echo "called: $*" ;;
esac
"""
        make_tool(tmp_path / "tools" / "compute-sanitizer", text)
        result = run(checkout / "scripts" / "sanitize", *spec.split())
        return result.returncode, result.stdout

    return call


@pytest.mark.parametrize(
    ("spec", "version", "tools"),
    [
        ("fused fp32", "2025.3.1.0", "memcheck synccheck"),
        ("naive fp32", "2025.3.1.0", "memcheck racecheck initcheck synccheck"),
        ("fused bf16", "2025.3.1.0", "memcheck synccheck"),
        ("fused tf32", "2025.4.0.0", "memcheck racecheck initcheck synccheck"),
        ("cudnn fp32", "2025.3.1.0", "memcheck racecheck initcheck synccheck"),
        ("cudnn bf16", "2025.3.1.0", "memcheck synccheck"),
        ("cudnn tf32", "2023.1.0.0", "memcheck synccheck"),
        ("cudnn bf16", "2025.4.0.0", "memcheck racecheck initcheck synccheck"),
        ("cudnn bf16", "2026.1.0.0", "memcheck racecheck initcheck synccheck"),
    ],
)
def test_sanitize_leaves_out_what_does_not_follow_hopper_kernels(
    sanitize: Sanitize, spec: str, version: str, tools: str
) -> None:
    code, out = sanitize(spec, version)
    calls = [line.split() for line in out.splitlines() if line.startswith("called: ")]
    assert code == 0
    assert [call[2] for call in calls] == tools.split()
    assert all(call[-2:] == spec.split() for call in calls)
    assert ("not run: racecheck and initcheck" in out) == ("racecheck" not in tools)


def test_sanitize_checks_what_fused_runs_on_other_gpus(sanitize: Sanitize, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MNIST_CUDA_FUSED_LIMITS", "108,166912")
    code, out = sanitize("fused bf16", "2025.3.1.0")
    assert code == 0
    assert out.count("called: ") == 4


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_sanitize_counts_tools_that_found_something(sanitize: Sanitize, tool: str) -> None:
    code, out = sanitize("naive fp32", "2025.3.1.0", tool)
    assert code == 1
    assert "found something" in out
    assert out.count("called: ") == 3
