"""scripts/train and scripts/test: what they install and build, when they do so again, and what they say is missing."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny import checkout_of_scripts, shell_program

# Stands for python3 and, copied into .venv, for the environment's python: writes down what it is asked to install.
FAKE_PYTHON = f"""
root=$(cd "$(dirname "$0")/../.." && pwd)
# Ctrl-C, which a terminal sends to all that run; Python answers it by an error, not by dying of the signal.
stop_at() {{
  [ "$STOP_AT" = "$1" ] || return 0
  trap 'echo "KeyboardInterrupt in $1" >&2; exit 1' INT
  kill -INT 0
  sleep 5
}}
case "$*" in
"-m venv"*)
  echo venv >>"$LOG"
  stop_at venv
  [ "$SLOW" != venv ] || sleep 2.5
  mkdir -p "${{@: -1}}/bin"
  cp "$0" "${{@: -1}}/bin/python"
  for tool in cmake ctest mnist-cuda; do cp "$TOOLS/tool" "${{@: -1}}/bin/$tool"; done
  ;;
"-m pip "*"--version") [ -z "$NO_PIP" ] ;;
"-m pip install"*" -r "*)
  echo "pip -r $(tail -n 1 "${{@: -1}}")" >>"$LOG"
  stop_at pip
  [ "$SLOW" != pip ] || sleep 2.5
  [ -z "$HELD_UNTIL" ] || until [ -e "$HELD_UNTIL" ]; do sleep 0.1; done
  [ -z "$KILL_PIP" ] || kill -9 "$PPID"
  exit "${{PIP_EXIT:-0}}"
  ;;
"-m pip install"*" --editable "*)
  echo "build $CMAKE_ARGS" >>"$LOG"
  stop_at build
  [ "$SLOW" != build ] || sleep 2.5
  case "$CMAKE_ARGS" in
  *MNIST_CUDA=OFF*) toolkit=none ;;
  *MNIST_SYSTEM_NVCC=OFF*) toolkit=wheels && echo "-- mnist-cuda: CUDA code for 80 by PyPI's nvcc 13.4" ;;
  *) toolkit=system && echo "-- mnist-cuda: CUDA code for 80 by /opt/nvcc 12.4" ;;
  esac
  echo "[3/9] Building CXX object mnist_native.dir/native/a.cpp.o"
  case "$BROKEN" in *$toolkit*) echo "a.cu(7): error: no such thing" && exit 1 ;; esac
  mkdir -p "$root/build/Testing/Temporary"
  touch "$root/build/build.ninja" "$root/build/CMakeCache.txt" "$root/build/Testing/Temporary/LastTest.log"
  echo "$root" >"$root/build/.skbuild-info.json"
  ;;
"-m pip install"*) ;;
*libcuda.so.1*) [ -n "$LIBCUDA" ] ;;
"-m pytest"*) exec "$root/.venv/bin/ctest" "$@" ;;
*) exec "{sys.executable}" "$@" ;;
esac
"""

# Stands for mnist-cuda, cmake, ctest and pytest: prints its arguments, one in each pair of brackets.
FAKE_TOOL = """
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
    path, tools = checkout_of_scripts(tmp_path / "a folder"), tmp_path / "tools"
    (path / "native" / "a.cpp").touch()
    shell_program(tools / "python3", FAKE_PYTHON)
    shell_program(tools / "tool", FAKE_TOOL)
    ours = ("CI", "PYTHON", "CMAKE_ARGS", "CXX", "CUDACXX", "CUDAARCHS", "CUDA_HOME", "CUDA_PATH", "MNIST_CUDA_PEERS")
    ours += ("MNIST_CUDA_ENV",)
    clean = {k: v for k, v in os.environ.items() if k not in ours}
    env = clean | {"PATH": f"{tools}:{os.environ['PATH']}", "TOOLS": str(tools), "LOG": str(tmp_path / "log")}
    env["MNIST_CUDA_CPU_ONLY"] = "0"  # whatever this machine has
    unset = ("KILL_PIP", "NO_PIP", "STOP_AT", "BROKEN", "FAILING", "LIBCUDA", "SLOW", "HELD_UNTIL")
    return Checkout(path, env | dict.fromkeys(unset, ""))


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    """One that is set up."""
    checkout.run("train")
    checkout.log()
    return checkout


def test_first_run_sets_up_and_later_ones_do_nothing(checkout: Checkout) -> None:
    result = checkout.run("train", "--epochs", "1", "--out", "two words", cwd=checkout.path.parent)
    assert (result.returncode, result.stdout) == (0, "mnist-cuda [train] [--epochs] [1] [--out] [two words]\n")
    assert [line.split()[0] for line in checkout.log()] == ["venv", "pip", "build"]
    result = checkout.run("train")
    assert (result.returncode, result.stderr, checkout.log()) == (0, "", [])


@pytest.mark.parametrize("stage", ["venv", "pip", "build"])
def test_ctrl_c_ends_set_up_and_the_next_run_goes_on(checkout: Checkout, stage: str) -> None:
    """A build that was stopped is none that failed: no other compiler is tried."""
    stages = ["venv", "pip", "build"]
    result = subprocess.run(
        [str(checkout.path / "scripts" / "train")], env=checkout.env | {"STOP_AT": stage}, capture_output=True,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "mnist-cuda: stopped by Ctrl-C; the same command goes on from here"
    assert "KeyboardInterrupt" not in result.stderr
    assert "did not build" not in result.stderr
    assert "could not" not in result.stderr
    done = [line.split()[0] for line in checkout.log()]
    assert done == stages[: len(done)]
    assert done[-1] == stage
    assert checkout.run("train").returncode == 0
    assert checkout.log()[-1] == "build "


def test_requirements_come_from_pyproject_alone(checkout: Checkout) -> None:
    checkout.run("train")
    installed = (checkout.path / ".venv" / ".installed").read_text()
    for requirement in ("nanobind>=2.9", "cmake>=", "ninja>=", "numpy>=", "cuda-toolkit[nvcc"):
        assert requirement in installed
    assert "pytest" not in installed
    checkout.log()
    assert checkout.run("test").returncode == 0
    assert checkout.log() == ["pip -r playwright>=1.50"]
    pyproject = checkout.path / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"numpy>=1.26"', '"numpy>=1.27"'))
    checkout.run("train")
    assert checkout.log() == ["pip -r numpy>=1.27", "build "]


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": lambda path: (path / "native" / "a.cpp").write_text("// edited"),
    "removed": lambda path: (path / "native" / "a.cpp").unlink(),
    "no build": lambda path: shutil.rmtree(path / "build"),
    "by pip": lambda path: (path / "build" / ".skbuild-info.json").write_text("pip's isolated environment"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_native_changes_build_again(ready: Checkout, change: str) -> None:
    CHANGES[change](ready.path)
    ready.run("train")
    assert ready.log() == ["build "]
    ready.run("train")
    assert ready.log() == []


def test_other_options_configure_from_scratch(ready: Checkout) -> None:
    cache = ready.path / "build" / "CMakeCache.txt"
    cache.write_text("old")
    ready.run("train", CMAKE_ARGS="-DMNIST_CUDA=OFF")
    assert ready.log() == ["build -DMNIST_CUDA=OFF"]
    assert cache.read_text() == ""


def test_failed_build_is_tried_again(checkout: Checkout) -> None:
    result = checkout.run("train", BROKEN="none", CMAKE_ARGS="-DMNIST_CUDA=OFF")
    assert (result.returncode, result.stdout) == (4, "")
    assert "the native engine did not build: a.cu(7): error: no such thing" in result.stderr
    checkout.log()
    checkout.run("train")
    assert checkout.log() == ["build "]


# Which toolkits cannot build, the builds that follow from that, and what is said of them.
FALLBACKS = {
    "": (["build "], ["CUDA code for 80 by /opt/nvcc 12.4"]),
    "system": (
        ["build ", "build -DMNIST_SYSTEM_NVCC=OFF"],
        ["by /opt/nvcc 12.4", ".venv/build.log); PyPI's nvcc may", "by PyPI's nvcc 13.4"],
    ),
    "system wheels": (
        ["build ", "build -DMNIST_SYSTEM_NVCC=OFF", "build -DMNIST_CUDA=OFF"],
        ["nvcc 12.4", "PyPI's nvcc may", "nvcc 13.4", ".venv/build-2.log); without CUDA it may"],
    ),
}


@pytest.mark.parametrize("broken", FALLBACKS)
def test_a_toolkit_that_cannot_build_leads_to_the_next(checkout: Checkout, broken: str) -> None:
    builds, lines = FALLBACKS[broken]
    result = checkout.run("train", BROKEN=broken)
    assert result.returncode == 0
    assert [line for line in checkout.log() if line.startswith("build")] == builds
    said = result.stderr.splitlines()[-len(lines) :]
    for line, expected in zip(said, lines, strict=True):
        assert expected in line
    result = checkout.run("train", BROKEN=broken)
    assert (result.returncode, result.stderr, checkout.log()) == (0, "", [])


@pytest.mark.parametrize("wish", [{"CUDACXX": "/opt/nvcc"}, {"CMAKE_ARGS": "-DCMAKE_CUDA_COMPILER=/opt/nvcc"}])
def test_a_toolkit_that_was_named_is_not_replaced(checkout: Checkout, wish: dict[str, str]) -> None:
    result = checkout.run("train", BROKEN="system", **wish)
    assert result.returncode == 4
    assert result.stderr.splitlines()[-1].startswith("mnist-cuda: the native engine did not build: a.cu(7): error")
    assert sum(line.startswith("build") for line in checkout.log()) == 1


def test_sources_that_no_longer_build_are_an_error(ready: Checkout) -> None:
    CHANGES["edited"](ready.path)
    assert ready.run("train", BROKEN="system").returncode == 4
    assert ready.log() == ["build "]


def test_an_install_without_cuda(checkout: Checkout) -> None:
    checkout.run("train", MNIST_CUDA_CPU_ONLY="1")
    assert checkout.log()[-1] == "build -DMNIST_CUDA=OFF"
    assert re.findall("cuda|nvidia", (checkout.path / ".venv" / ".installed").read_text()) == []
    checkout.run("train")
    assert checkout.log() == [LAST_OF_CUDA, "build "]


@pytest.fixture
def bare(checkout: Checkout, tmp_path: Path) -> Checkout:
    """One that decides for itself, on a machine without driver and nvcc."""
    others = tmp_path / "others"
    others.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if not tool.name.startswith(("python", "nv")):
            (others / tool.name).symlink_to(tool)
    env = {"MNIST_CUDA_CPU_ONLY": "", "PATH": f"{tmp_path / 'tools'}:{others}"}
    return Checkout(checkout.path, checkout.env | env)


FOR_THE_CPU = (
    "mnist-cuda: set-up is for the CPU alone, as there is no NVIDIA driver and no nvcc; MNIST_CUDA_CPU_ONLY=0 "
)
LAST_OF_CUDA = "pip -r nvidia-cublas-cu12>=12.6,<13"


def lines_of_choice(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith((FOR_THE_CPU, "mnist-cuda: here is "))]


def test_without_driver_and_nvcc_it_is_for_the_cpu_alone(bare: Checkout) -> None:
    """Said once, and kept when other packages come."""
    result = bare.run("train")
    assert (result.returncode, len(lines_of_choice(result))) == (0, 1), result.stderr
    assert bare.log()[-1] == "build -DMNIST_CUDA=OFF"
    assert re.findall("cuda|nvidia", (bare.path / ".venv" / ".installed").read_text()) == []
    result = bare.run("train")
    assert (result.returncode, result.stderr, bare.log()) == (0, "", [])
    assert lines_of_choice(bare.run("test")) == []
    assert bare.log() == ["pip -r playwright>=1.50"]


def test_a_gpu_that_comes_later_is_noticed(bare: Checkout, tmp_path: Path) -> None:
    """And is not forgotten when it goes, nor when an interrupted pip has set-up start over."""
    bare.run("train")
    bare.log()
    smi = shell_program(tmp_path / "tools" / "nvidia-smi", "exit 9")
    result = bare.run("train")
    assert lines_of_choice(result) == [f"mnist-cuda: here is {smi} now: adding what only a GPU needs"]
    assert bare.log() == [LAST_OF_CUDA, "build "]
    smi.unlink()
    result = bare.run("train")
    assert (result.returncode, result.stderr, bare.log()) == (0, "", [])
    assert bare.run("test", KILL_PIP="1").returncode != 0
    bare.log()
    assert lines_of_choice(bare.run("train")) == []
    assert bare.log() == ["venv", LAST_OF_CUDA, "build "]


# What speaks for a GPU: variables, or a program in a folder that they may name.
SIGNS: dict[str, dict[str, str]] = {
    "nvidia-smi": {},
    "nvcc": {},
    "libcuda.so.1": {"LIBCUDA": "1"},
    "toolkit/bin/nvcc": {"CUDA_HOME": "{tools}/toolkit"},
    "toolkit 2/bin/nvcc": {"CUDA_PATH": "{tools}/toolkit 2"},
    "CUDACXX": {"CUDACXX": "/opt/nvcc"},
    "CUDAARCHS": {"CUDAARCHS": "80"},
    "CMAKE_ARGS": {"CMAKE_ARGS": "-DMNIST_WERROR=ON"},
    "the user": {"MNIST_CUDA_CPU_ONLY": "0"},
}


@pytest.mark.parametrize("sign", SIGNS)
def test_whatever_speaks_for_a_gpu_brings_all(bare: Checkout, tmp_path: Path, sign: str) -> None:
    """Which stays when that is gone."""
    tools = tmp_path / "tools"
    if sign.endswith(("nvcc", "smi")):
        shell_program(tools / sign, "exit 1")
    result = bare.run("train", **{name: value.format(tools=tools) for name, value in SIGNS[sign].items()})
    assert result.returncode == 0, result.stderr
    assert lines_of_choice(result) == []
    assert bare.log() == ["venv", LAST_OF_CUDA, f"build {SIGNS[sign].get('CMAKE_ARGS', '')}"]
    if sign.endswith(("nvcc", "smi")):
        (tools / sign).unlink()
    assert lines_of_choice(bare.run("train")) == []
    assert [line for line in bare.log() if line.startswith("pip")] == []
    assert "cuda-toolkit" in (bare.path / ".venv" / ".installed").read_text()


@pytest.mark.parametrize("wish", [{"MNIST_CUDA_CPU_ONLY": "1"}, {"CMAKE_ARGS": "-DMNIST_CUDA=OFF"}])
def test_the_user_may_do_without(bare: Checkout, tmp_path: Path, wish: dict[str, str]) -> None:
    shell_program(tmp_path / "tools" / "nvidia-smi", "echo 9.0")
    result = bare.run("train", **wish)
    assert (result.returncode, lines_of_choice(result)) == (0, [])
    assert bare.log() == ["venv", "pip -r shtab>=1.13,<2", "build -DMNIST_CUDA=OFF"]


def test_a_choice_that_is_none_gets_one_line(bare: Checkout) -> None:
    _expect_one_line(bare.run("train", MNIST_CUDA_CPU_ONLY="yes"), "MNIST_CUDA_CPU_ONLY is 'yes'", "expected 0, 1 or")


def see(checkout: Checkout, **env: str) -> str:
    """What a terminal gets of `scripts/train`."""
    terminal, other_end = pty.openpty()
    command, shown = [checkout.path / "scripts" / "train"], b""
    with subprocess.Popen(command, env=checkout.env | env, stdout=subprocess.DEVNULL, stderr=other_end):
        os.close(other_end)
        with contextlib.suppress(OSError):  # that it has ended
            while some := os.read(terminal, 1 << 16):
                shown += some
    os.close(terminal)
    return shown.decode()


def test_a_terminal_sees_what_is_being_done(checkout: Checkout) -> None:
    shown = see(checkout)
    assert re.search(r"\r\x1b\[K +\d+ s  \[3/9\] a\.cpp\.o\r\x1b\[K$", shown)
    assert "mnist-cuda: CUDA code for 80 by /opt/nvcc 12.4\r\n" in shown


@pytest.mark.parametrize(
    ("stage", "doing"), [("venv", "making .venv with "), ("pip", "installing "), ("build", "building ")]
)
def test_a_terminal_sees_time_pass_in_silence(checkout: Checkout, stage: str, doing: str) -> None:
    """Nothing is written for so long by what runs; other outputs get no such lines."""
    shown = see(checkout, SLOW=stage)
    assert re.search(rf"\r\x1b\[K   [1-9] s  {doing}", shown)
    assert "\r" not in checkout.run("train", PYTHON="python3", SLOW=stage).stderr


def test_who_waits_for_another_set_up_says_for_whom(checkout: Checkout, tmp_path: Path) -> None:
    command, done = [str(checkout.path / "scripts" / "train")], tmp_path / "done"
    held = checkout.env | {"HELD_UNTIL": str(done)}
    with subprocess.Popen(command, env=held, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr
        while not first.stderr.readline().startswith("mnist-cuda: installing"):
            assert first.poll() is None
        with subprocess.Popen(command, env=checkout.env, stderr=subprocess.PIPE, text=True) as second:
            assert second.stderr
            waits = f"mnist-cuda: waiting for process {first.pid} ({command[0]}), which sets up this folder\n"
            assert second.stderr.readline() == waits
            done.touch()
            assert second.stderr.read() == ""
    assert (first.returncode, second.returncode) == (0, 0)
    assert [line.split()[0] for line in checkout.log()] == ["venv", "pip", "build"]


def test_failed_pip_leaves_a_working_environment_alone(checkout: Checkout) -> None:
    assert checkout.run("train").returncode == 0
    assert checkout.run("test", PIP_EXIT="1").returncode == 4
    checkout.log()
    assert checkout.run("train").returncode == 0
    assert checkout.log() == []


def test_foreign_environment_is_left_alone(checkout: Checkout) -> None:
    mine = checkout.path / ".venv" / "bin" / "python"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    _expect_one_line(checkout.run("train"), "was not made by this script", "move it away")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("moved", [True, False])
def test_moved_checkout_starts_over(checkout: Checkout, moved: bool) -> None:
    """And one whose pip was killed."""
    assert bool(checkout.run("train", KILL_PIP="" if moved else "1").returncode) != moved
    checkout.log()
    if moved:
        checkout.path = checkout.path.rename(checkout.path.with_name("elsewhere"))
    assert checkout.run("train").returncode == 0
    assert [line.split()[0] for line in checkout.log()] == ["venv", "pip", "build"]


@pytest.mark.parametrize("failing", ["", "cmake", "ctest", "pytest"])
def test_test_runs_both_suites_and_fails_with_either(checkout: Checkout, failing: str) -> None:
    result = checkout.run("test", "-k", "two words", FAILING=failing)
    assert (result.returncode != 0) == bool(failing)
    if failing != "cmake":
        assert re.findall("^(ctest|pytest) ", result.stdout, re.MULTILINE) == ["ctest", "ctest", "pytest"]
        assert "[-k] [two words]" in result.stdout


# What a sitecustomize.py makes of the interpreter, and what must be said about it.
BROKEN_PYTHONS = {
    "too old": ("import sys; sys.version_info = (3, 9, 2)", "Python 3.10 or newer is needed", "apt install python3"),
    "no venv": ("import sys; sys.modules['venv'] = None", "has no module venv", "apt install python3-venv"),
    "no headers": ("import sysconfig; sysconfig.get_path = lambda name: '/nowhere'", "no Python.h", "-dev)"),
}


@pytest.mark.parametrize("fault", BROKEN_PYTHONS)
def test_unfit_python_gets_one_line(checkout: Checkout, tmp_path: Path, fault: str) -> None:
    breakage, complaint, remedy = BROKEN_PYTHONS[fault]
    (tmp_path / "sitecustomize.py").write_text(breakage)
    _expect_one_line(checkout.run("train", PYTHONPATH=str(tmp_path)), complaint, remedy)
    assert checkout.log() == []


def test_pip_comes_from_elsewhere_without_ensurepip(checkout: Checkout, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ensurepip'] = None")
    env = {"PYTHONPATH": str(tmp_path)}
    nowhere = {"PATH": f"{tmp_path / 'tools'}:/usr/bin:/bin", "NO_PIP": "1"}
    _expect_one_line(checkout.run("train", **env, **nowhere), "has neither ensurepip nor pip 22.3", "or uv")
    shell_program(tmp_path / "tools" / "uv", 'echo "uv $*" >>"$LOG"')
    result = checkout.run("train", **env, NO_PIP="1")
    assert "which has no ensurepip, and with pip from uv" in result.stderr
    assert checkout.log()[:2] == ["venv", f"uv pip install -q pip>=23.1 --python {checkout.path}/.venv/bin/python"]


def test_uv_may_have_the_only_python(checkout: Checkout, tmp_path: Path) -> None:
    tools, others = tmp_path / "tools", tmp_path / "others"
    python = (tools / "python3").rename(tmp_path / "python-of-uv")
    shell_program(tools / "uv", f'[ "$*" = "python find >=3.10" ] && echo {python}')
    others.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if "python" not in tool.name:
            (others / tool.name).symlink_to(tool)
    result = checkout.run("train", PATH=f"{tools}:{others}")
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in checkout.log()] == ["venv", "pip", "build"]


def test_missing_tools_get_one_line(checkout: Checkout, tmp_path: Path) -> None:
    _expect_one_line(checkout.run("train", PYTHON="python9.9"), "there is no python9.9", "apt install python3")
    compiler = shell_program(tmp_path / "tools" / "g++", "echo 10.2.1")
    _expect_one_line(checkout.run("train"), "g++ 11 or newer is needed for C++20 and this one is 10.2.1", "CXX=g++")
    compiler.unlink()
    for tool in ("bash", "dirname", "basename", "cat", "grep", "flock", "mkdir"):
        compiler.with_name(tool).symlink_to(shutil.which(tool) or pytest.fail(f"{tool} is missing"))
    _expect_one_line(checkout.run("train", PATH=str(compiler.parent)), "there is no g++", "apt install g++")


def _expect_one_line(result: subprocess.CompletedProcess[str], complaint: str, remedy: str) -> None:
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr
    assert remedy in result.stderr
