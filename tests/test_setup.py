"""scripts/train and scripts/test: what they install and build, when they do so again, and what they say is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Stands for python3 and, copied into .venv, for the environment's python: writes down what it is asked to install.
FAKE_PYTHON = f"""#!/usr/bin/env bash
root=$(cd "$(dirname "$0")/../.." && pwd)
case "$*" in
"-m venv"*)
  echo venv >>"$LOG"
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
  for tool in cmake ctest mnist-cuda; do cp "$TOOLS/tool" "$3/bin/$tool"; done
  ;;
"-m pip install"*" -r "*)
  echo "pip -r $(tail -n 1 "${{@: -1}}")" >>"$LOG"
  [ -z "$KILL_PIP" ] || kill -9 "$PPID"
  exit "${{PIP_EXIT:-0}}"
  ;;
"-m pip install"*" --editable "*)
  echo "build $CMAKE_ARGS" >>"$LOG"
  mkdir -p "$root/build/Testing/Temporary"
  touch "$root/build/build.ninja" "$root/build/CMakeCache.txt" "$root/build/Testing/Temporary/LastTest.log"
  echo "$root" >"$root/build/.skbuild-info.json"
  exit "${{BUILD_EXIT:-0}}"
  ;;
"-m pip install"*) ;;
"-m pytest"*) exec "$root/.venv/bin/ctest" "$@" ;;
*) exec "{sys.executable}" "$@" ;;
esac
"""

# Stands for mnist-cuda, cmake, ctest and pytest: prints its arguments, one in each pair of brackets.
FAKE_TOOL = """#!/usr/bin/env bash
name=$(basename "$0")
[ "$2" != pytest ] || name=pytest
echo "$name$(printf ' [%s]' "$@")"
[ "$name" != "$FAILING" ]
"""


@dataclass
class Checkout:
    """A copy of the scripts in a folder of their own, with fake tools; `log` is what was installed or built."""

    path: Path
    env: dict[str, str]

    def run(self, script: str, *args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.path / "scripts" / script), *args]
        return subprocess.run(command, cwd=cwd, env=self.env | env, capture_output=True, text=True, check=False)

    def log(self) -> list[str]:
        """The fake tools' calls since the last time this was asked."""
        file = Path(self.env["LOG"])
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    path, tools = tmp_path / "a folder", tmp_path / "tools"
    for folder in (path / "scripts", path / "native", path / "cmake", tools):
        folder.mkdir(parents=True)
    for name in ("setup.sh", "train", "test"):
        shutil.copy(ROOT / "scripts" / name, path / "scripts")
    for name in ("pyproject.toml", "CMakeLists.txt"):
        shutil.copyfile(ROOT / name, path / name)
    (path / "native" / "a.cpp").touch()
    for name, text in {"python3": FAKE_PYTHON, "tool": FAKE_TOOL}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if k not in ("CI", "PYTHON", "CMAKE_ARGS", "CXX", "MNIST_CUDA_PEERS")}
    env = clean | {"PATH": f"{tools}:{os.environ['PATH']}", "TOOLS": str(tools), "LOG": str(tmp_path / "log")}
    return Checkout(path, env | {"KILL_PIP": "", "FAILING": ""})


def test_first_run_sets_up_and_later_ones_do_nothing(checkout: Checkout) -> None:
    result = checkout.run("train", "--epochs", "1", "--out", "two words", cwd=checkout.path.parent)
    assert (result.returncode, result.stdout) == (0, "mnist-cuda [train] [--epochs] [1] [--out] [two words]\n")
    assert [line.split()[0] for line in checkout.log()] == ["venv", "pip", "build"]
    result = checkout.run("train")
    assert (result.returncode, result.stderr, checkout.log()) == (0, "", [])


def test_requirements_come_from_pyproject_alone(checkout: Checkout) -> None:
    checkout.run("train")
    installed = (checkout.path / ".venv" / ".installed").read_text()
    for requirement in ("nanobind>=2.9", "cmake>=", "ninja>=", "numpy>=", "cuda-toolkit[nvcc"):
        assert requirement in installed
    assert "pytest" not in installed
    checkout.log()
    assert checkout.run("test").returncode == 0
    assert checkout.log() == ["pip -r hypothesis>=6.100"]
    pyproject = checkout.path / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"numpy>=1.26"', '"numpy>=1.27"'))
    checkout.run("train")
    assert checkout.log() == ["pip -r numpy>=1.27", "build "]


def _edit_source(checkout: Checkout) -> dict[str, str]:
    (checkout.path / "native" / "a.cpp").write_text("// edited")
    return {}


def _remove_source(checkout: Checkout) -> dict[str, str]:
    (checkout.path / "native" / "a.cpp").unlink()
    return {}


def _remove_build(checkout: Checkout) -> dict[str, str]:
    shutil.rmtree(checkout.path / "build")
    return {}


def _pip_install_elsewhere(checkout: Checkout) -> dict[str, str]:
    (checkout.path / "build" / ".skbuild-info.json").write_text("pip's isolated environment")
    return {}


@pytest.mark.parametrize("change", [_edit_source, _remove_source, _remove_build, _pip_install_elsewhere])
def test_native_changes_build_again(checkout: Checkout, change: Callable[[Checkout], dict[str, str]]) -> None:
    checkout.run("train")
    checkout.log()
    change(checkout)
    checkout.run("train")
    assert checkout.log() == ["build "]
    checkout.run("train")
    assert checkout.log() == []


def test_other_options_configure_from_scratch(checkout: Checkout) -> None:
    checkout.run("train")
    checkout.log()
    cache = checkout.path / "build" / "CMakeCache.txt"
    cache.write_text("old")
    checkout.run("train", CMAKE_ARGS="-DMNIST_CUDA=OFF")
    assert checkout.log() == ["build -DMNIST_CUDA=OFF"]
    assert cache.read_text() == ""


def test_failed_build_is_tried_again(checkout: Checkout) -> None:
    result = checkout.run("train", BUILD_EXIT="1")
    assert (result.returncode, result.stdout) == (4, "")
    assert "the native engine did not build" in result.stderr
    checkout.log()
    checkout.run("train")
    assert checkout.log() == ["build "]


def test_failed_pip_leaves_a_working_environment_alone(checkout: Checkout) -> None:
    assert checkout.run("train").returncode == 0
    assert checkout.run("test", PIP_EXIT="1").returncode == 4
    checkout.log()
    assert checkout.run("train").returncode == 0
    assert checkout.log() == []


def test_interrupted_pip_starts_over(checkout: Checkout) -> None:
    assert checkout.run("train", KILL_PIP="1").returncode != 0
    checkout.log()
    assert checkout.run("train").returncode == 0
    assert [line.split()[0] for line in checkout.log()] == ["venv", "pip", "build"]


def test_foreign_environment_is_left_alone(checkout: Checkout) -> None:
    mine = checkout.path / ".venv" / "bin" / "python"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    _expect_one_line(checkout.run("train"), "was not made by this script", "move it away")
    assert mine.read_text() == "mine"


def test_moved_checkout_starts_over(checkout: Checkout) -> None:
    checkout.run("train")
    checkout.log()
    checkout.path = checkout.path.rename(checkout.path.with_name("elsewhere"))
    assert checkout.run("train").returncode == 0
    assert [line.split()[0] for line in checkout.log()] == ["venv", "pip", "build"]


@pytest.mark.parametrize("failing", ["", "cmake", "ctest", "pytest"])
def test_test_runs_both_suites_and_fails_with_either(checkout: Checkout, failing: str) -> None:
    result = checkout.run("test", "-k", "two words", FAILING=failing)
    assert (result.returncode != 0) == bool(failing)
    if failing != "cmake":
        assert re.findall("^(ctest|pytest) ", result.stdout, re.MULTILINE) == ["ctest", "pytest"]
        assert "[-k] [two words]" in result.stdout


def test_peers_are_made_when_asked(checkout: Checkout) -> None:
    peers = checkout.path / "scripts" / "peers"
    peers.write_text("#!/bin/sh\necho peers\n")
    peers.chmod(0o755)
    assert "peers\n" not in checkout.run("test").stdout
    assert "peers\n" in checkout.run("test", CI="true").stdout
    assert "peers\n" in checkout.run("test", MNIST_CUDA_PEERS="1").stdout


# What a sitecustomize.py makes of the interpreter, and what must be said about it.
BROKEN_PYTHONS = {
    "too old": ("import sys; sys.version_info = (3, 9, 2)", "Python 3.10 or newer is needed", "apt install python3"),
    "no venv": ("import sys; sys.modules['ensurepip'] = None", "cannot make virtual environments", "-venv)"),
    "no headers": ("import sysconfig; sysconfig.get_path = lambda name: '/nowhere'", "no Python.h", "-dev)"),
}


@pytest.mark.parametrize("fault", BROKEN_PYTHONS)
def test_unfit_python_gets_one_line(checkout: Checkout, tmp_path: Path, fault: str) -> None:
    breakage, complaint, remedy = BROKEN_PYTHONS[fault]
    (tmp_path / "sitecustomize.py").write_text(breakage)
    _expect_one_line(checkout.run("train", PYTHONPATH=str(tmp_path)), complaint, remedy)
    assert checkout.log() == []


def test_missing_tools_get_one_line(checkout: Checkout, tmp_path: Path) -> None:
    _expect_one_line(checkout.run("train", PYTHON="python9.9"), "there is no python9.9", "apt install python3")
    compiler = tmp_path / "tools" / "g++"
    compiler.write_text("#!/bin/sh\necho 10.2.1\n")
    compiler.chmod(0o755)
    _expect_one_line(checkout.run("train"), "g++ 11 or newer is needed for C++20 and this one is 10.2.1", "CXX=g++")
    compiler.unlink()
    for tool in ("bash", "dirname", "basename", "cat", "grep", "flock"):
        compiler.with_name(tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing"))
    _expect_one_line(checkout.run("train", PATH=str(compiler.parent)), "there is no g++", "apt install g++")


def _expect_one_line(result: subprocess.CompletedProcess[str], complaint: str, remedy: str) -> None:
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr
    assert remedy in result.stderr
