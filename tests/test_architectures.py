"""cmake/CudaArchitectures.cmake: what a build is for by default, and what is said of what nobody can compile for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import ROOT, shell_program

CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
CUDA_12_4 = "50 60 61 70 75 80 86 89 90"
CUDA_13 = "75 80 86 87 88 89 90 100 110 103 120 121"

pytestmark = pytest.mark.skipif(CMAKE is None, reason="there is no cmake")


def run(folder: Path, command: str, known: str, smi: str | None) -> subprocess.CompletedProcess[str]:
    """A command of the module, with an nvcc that knows these architectures and an nvidia-smi that runs `smi`."""
    tools = {"nvcc": f"printf 'compute_%s\\n' {known}", "nvidia-smi": smi}
    for name, text in tools.items():
        if text is not None:
            shell_program(folder / name, text)
    script = folder / "script.cmake"
    script.write_text(f'include("{ROOT}/cmake/CudaArchitectures.cmake")\n{command}\nmessage(STATUS "is ${{list}}")\n')
    path = os.pathsep.join([str(folder), *(p for p in os.environ["PATH"].split(os.pathsep) if smi or not has_smi(p))])
    arguments = [str(CMAKE), f"-DCMAKE_CUDA_COMPILER={folder / 'nvcc'}", "-P", str(script)]
    return subprocess.run(arguments, env=os.environ | {"PATH": path}, capture_output=True, text=True)


def has_smi(folder: str) -> bool:
    return Path(folder, "nvidia-smi").exists()


@pytest.mark.parametrize(
    ("smi", "known", "expected"),
    [
        (None, CUDA_13, "75-real;80;90a-real"),
        ("exit 9", CUDA_13, "75-real;80;90a-real"),
        ("echo '[N/A]'", CUDA_13, "75-real;80;90a-real"),
        ("echo 9.0", CUDA_13, "90a-real"),
        ("printf '8.6\\n12.0\\n8.6\\n'", CUDA_13, "86-real;120-real"),
        ("echo 6.1", CUDA_12_4, "61-real"),
        ("echo 12.0", CUDA_12_4, "90"),  # PTX; that of 90a would serve 9.0 alone
    ],
)
def test_default(tmp_path: Path, smi: str | None, known: str, expected: str) -> None:
    result = run(tmp_path, "mnist_default_cuda_architectures(list)", known, smi)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", f"-- is {expected}\n")


@pytest.mark.parametrize(
    ("smi", "known", "warning"),
    [
        ("echo 6.1", CUDA_13, "does not compile for compute capability 6.1, which CUDA 13 has dropped; a CUDA 12 "),
        ("echo 5.2", CUDA_12_4, "has no code to compile for 5.2: the project's is for 6.0 and newer"),
    ],
)
def test_a_gpu_that_is_too_old_is_announced(tmp_path: Path, smi: str, known: str, warning: str) -> None:
    result = run(tmp_path, "mnist_default_cuda_architectures(list)", known, smi)
    announced, chosen = result.stdout.splitlines()
    assert announced.startswith(
        f"-- mnist-cuda: there is a GPU of compute capability {smi[5:]}, and {tmp_path}/nvcc {warning}"
    )
    assert (result.returncode, result.stderr, chosen) == (0, "", "-- is 75-real;80;90a-real")
    both = run(tmp_path, "mnist_default_cuda_architectures(list)", known, f"echo 8.0; {smi}")
    assert both.stdout.endswith("is 80-real\n")


@pytest.mark.parametrize(
    ("architectures", "known", "problem"),
    [
        ("75-real;80;90a-real;121-virtual", CUDA_13, ""),
        ("61", CUDA_12_4, ""),
        ("", CUDA_13, ""),
        ("61", "; exit 1", ""),  # what is wrong with it, the probe will find out
        ("80;61-real", CUDA_13, "does not compile for compute capability 6.1, which CUDA 13 has dropped; a CUDA 12 "),
        ("52", CUDA_12_4, "has no code to compile for 5.2: the project's is for 6.0 and newer"),
        ("120a", CUDA_12_4, "does not know compute capability 12.0; a newer one may"),
        ("native", CUDA_13, "cannot compile for 'native' (CMAKE_CUDA_ARCHITECTURES wants numbers such as 75-real,80,"),
    ],
)
def test_what_cannot_be_compiled(tmp_path: Path, architectures: str, known: str, problem: str) -> None:
    for asked in (f'set(CMAKE_CUDA_ARCHITECTURES "{architectures}")', f'set(ENV{{CUDAARCHS}} "{architectures}")'):
        result = run(tmp_path, f'{asked}\nmnist_architecture_problem(list "{tmp_path}/nvcc")', known, None)
        said = result.stdout.removeprefix("-- is ").rstrip("\n")
        assert (result.returncode, result.stderr, bool(said)) == (0, "", bool(problem))
        assert said.startswith(problem)


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [("75-real;80;90a-real;100-virtual", "80;90a-real;100-virtual"), ("75-virtual", ""), ("61;75", "")],
)
def test_what_is_compiled_for_tensor_cores(tmp_path: Path, architectures: str, expected: str) -> None:
    result = run(tmp_path, f"mnist_architectures_from(80 list {architectures})", CUDA_13, None)
    assert (result.stderr, result.stdout) == ("", f"-- is {expected}\n")
