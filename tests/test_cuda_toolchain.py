"""CMake's choice of a CUDA compiler, with stand-ins for the toolkits and the driver: one line says which and why."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import ROOT, shell_program

BROKEN_NVCC = """
[ "$1" != --version ] ||
  { echo "nvcc: NVIDIA (R) Cuda compiler driver" && echo "Cuda compilation tools, release %s, V%s.1" && exit; }
[ "$1" != --list-gpu-arch ] || { echo compute_80 && exit; }
echo "nvcc fatal : Unsupported host compiler" && exit 1
"""
OLD_DRIVER = 'extern "C" int cuDriverGetVersion(int* version) { return *version = 12040, 0; }'


def make_nvcc(folder: Path, version: str) -> Path:
    """An nvcc that tells its version and an architecture, and compiles nothing."""
    (folder / "nvvm" / "libdevice").mkdir(parents=True)  # by which CMake knows a toolkit
    return shell_program(folder / "bin" / "nvcc", BROKEN_NVCC % (version, version))


@pytest.fixture
def system(tmp_path: Path) -> Path:
    return make_nvcc(tmp_path / "system", "12.4")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """What sys.path has to hold for CMake to see these wheels before any real ones."""
    make_nvcc(tmp_path / "wheels" / "nvidia" / "cu13", "13.4")
    return tmp_path / "wheels"


def configure(build: Path, *options: str, nvcc: Path | None = None, **env: str) -> tuple[int, list[str], str]:
    """The exit code, the lines for the user and all the output of configuring the project; `nvcc` is put on PATH."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert cmake
    ours = ("CUDACXX", "CUDAARCHS", "CUDA_HOME", "CUDA_PATH", "CUDAHOSTCXX")
    clean = {key: value for key, value in os.environ.items() if key not in ours}
    if nvcc:
        clean["PATH"] = f"{nvcc.parent}:{clean['PATH']}"
    command = [cmake, "-S", ROOT, "-B", build, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *options]
    command += [f"-DCMAKE_MAKE_PROGRAM={Path(cmake).with_name('ninja')}"] * Path(cmake).with_name("ninja").exists()
    result = subprocess.run(command, env=clean | env, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    return result.returncode, re.findall("^-- mnist-cuda: (.*)$", output, re.MULTILINE), output


def test_no_toolkit_that_builds_leaves_the_engines_of_the_host(tmp_path: Path, system: Path, wheels: Path) -> None:
    build = tmp_path / "build"
    code, lines, output = configure(build, nvcc=system, PYTHONPATH=str(wheels))
    why = "fails a test compile (nvcc fatal : Unsupported host compiler, see {}/cuda-probe/{}.log)"
    expected = [f"{system} 12.4 " + why.format(build, "system"), "PyPI's nvcc 13.4 " + why.format(build, "wheels")]
    assert (code, lines) == (0, ["no CUDA code, engines for the host only: " + "; ".join(expected)]), output
    assert "Unsupported host compiler" in (build / "cuda-probe" / "system.log").read_text()
    assert len(output.splitlines()) < 30
    assert configure(build, nvcc=system, PYTHONPATH=str(wheels))[1] == lines


def test_a_driver_too_old_for_a_toolkit_counts(tmp_path: Path, wheels: Path) -> None:
    source = tmp_path / "libcuda.cpp"
    source.write_text(OLD_DRIVER)
    driver = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", tmp_path / "libcuda.so.1"]
    subprocess.run([shutil.which("g++") or pytest.skip("no g++"), *driver], check=True)
    env = {"PYTHONPATH": str(wheels), "LD_LIBRARY_PATH": str(tmp_path)}
    code, lines, output = configure(tmp_path / "build", "-DMNIST_SYSTEM_NVCC=OFF", **env)
    assert code == 0, output
    (line,) = lines
    assert line.endswith(
        "PyPI's nvcc 13.4 needs a driver for CUDA 13 (580 or newer for 13, 525 for 12) and this one is for 12.4"
    )
    assert not (tmp_path / "build" / "cuda-probe").exists()


@pytest.mark.parametrize("wish", ["CUDACXX", "CMAKE_CUDA_COMPILER", "WHEELS"])
def test_what_was_named_is_not_replaced(tmp_path: Path, system: Path, wheels: Path, wish: str) -> None:
    env = {"PYTHONPATH": str(wheels)} | ({"CUDACXX": str(system)} if wish == "CUDACXX" else {})
    options = {"WHEELS": ["-DMNIST_CUDA=WHEELS"], "CMAKE_CUDA_COMPILER": [f"-DCMAKE_CUDA_COMPILER={system}"]}
    code, lines, output = configure(tmp_path / "build", *options.get(wish, []), **env)
    assert code != 0, output
    name = "PyPI's nvcc 13.4" if wish == "WHEELS" else f"{wish}={system}"
    assert lines[0].startswith(f"no CUDA code, engines for the host only: {name} fails a test compile (nvcc fatal")
    assert len(lines) == 1


@pytest.fixture
def toolkit() -> Path:
    """That of the real wheels."""
    try:
        return Path(str(importlib.metadata.distribution("nvidia-cuda-nvcc").locate_file("nvidia/cu13")))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the wheels of nvcc are not installed")


@pytest.mark.usefixtures("toolkit")
def test_the_wheels_follow_a_toolkit_that_fails(tmp_path: Path, system: Path) -> None:
    code, lines, output = configure(tmp_path / "build", "-DCMAKE_CUDA_ARCHITECTURES=80-real", nvcc=system)
    assert code == 0, output
    (line,) = lines
    assert re.match(rf"CUDA code for 80-real by PyPI's nvcc \d+\.\d+: {system} 12.4 fails a test compile \(", line)


def test_a_build_tree_keeps_its_toolkit(tmp_path: Path, toolkit: Path) -> None:
    system = shell_program(tmp_path / "bin" / "nvcc", f'exec {toolkit}/bin/nvcc "-L{toolkit}/lib" "$@"')
    build = tmp_path / "build"
    code, lines, output = configure(build, "-DCMAKE_CUDA_ARCHITECTURES=80-real", nvcc=system)
    assert (code, len(lines), f"by {system} 13." in output) == (0, 1, True), output
    for _ in range(2):
        code, lines, output = configure(build, "-DMNIST_CUDA=WHEELS", nvcc=system)
        assert (code, lines) == (1, []), output
        words = " ".join(output.split())
        assert f"{build} was configured with {system}, which CMake keeps; for PyPI's nvcc 13." in words
