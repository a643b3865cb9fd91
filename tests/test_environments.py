"""Set-up with the real venv and pip, offline: without ensurepip, and in an environment that has PyTorch's libraries.

The wheels are made here, a few lines each, with the names and the files that matter of the real ones.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tiny import ROOT, checkout_of_scripts

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

# Stands for scikit-build-core: its wheel holds the command alone. Beside it lies what the build saw of CUDA.
BACKEND = """
import os, pathlib, sys, zipfile

def build_editable(folder, settings=None, metadata=None):
    pathlib.Path("build").mkdir(exist_ok=True)
    for name in ("build.ninja", "CMakeCache.txt", ".skbuild-info.json"):
        pathlib.Path("build", name).touch()
    hits = [str(p) for d in sys.path for p in pathlib.Path(d, "nvidia").glob("cu*/bin/nvcc")]
    pathlib.Path("build/nvcc").write_text("\\n".join(hits))
    wheel = "mnist_cuda-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, wheel), "w") as file:
        info = "mnist_cuda-0.1.0.dist-info/"
        file.writestr("stand_in.py", "import sys\\ndef main(): print('mnist-cuda', *sys.argv[1:])\\n")
        file.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: mnist-cuda\\nVersion: 0.1.0\\n")
        file.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(info + "entry_points.txt", "[console_scripts]\\nmnist-cuda = stand_in:main\\n")
        file.writestr(info + "RECORD", "")
    return wheel
"""

# What the wheels of these names own; two of them own the same file of cuDNN.
FILES = {
    "scikit-build-core": ["scikit_build_core/__init__.py"],
    "cuda-toolkit": ["cuda_toolkit/__init__.py"],
    "nvidia-cuda-nvcc": ["nvidia/cu13/bin/nvcc"],
    "nvidia-cuda-runtime": ["nvidia/cu13/lib/libcudart.so.13"],
    "nvidia-cudnn-cu12": ["nvidia/cudnn/lib/libcudnn.so.9"],
    "nvidia-cudnn-cu13": ["nvidia/cudnn/lib/libcudnn.so.9"],
    "nvidia-cublas-cu12": ["nvidia/cublas/lib/libcublasLt.so.12"],
    "nvidia-cublas": ["nvidia/cu13/lib/libcublasLt.so.13"],
    "torch": ["torch/__init__.py"],
}
TORCH = {
    "torch": "2.11.0+cu130",
    "nvidia-cudnn-cu13": "9.19.0.56",
    "nvidia-cublas": "13.1.0.3",
    "nvidia-cuda-runtime": "13.0.96",
    "cuda-bindings": "13.0.3",
}


def make_wheel(folder: Path, name: str, version: str, *requires: str, extras: str = "") -> Path:
    """A wheel whose files, those of `FILES` or one module, say which wheel they are from."""
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Provides-Extra: {extra}" for extra in re.findall(r"\w+", extras)]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in FILES.get(name, [f"{stem}.py"]):
            wheel.writestr(file, f"# {name} {version}\n")
        if name == "scikit-build-core":
            wheel.writestr("scikit_build_core/build.py", BACKEND)
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def unpack_pip(site_packages: Path) -> None:
    """pip as it is in this environment, without asking an index for it."""
    pip = importlib.metadata.distribution("pip")
    for file in pip.files or []:
        if file.parts[0] != ".." and file.suffix != ".pyc":
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pip.locate_file(file), target)


def install_torch(site_packages: Path, tmp_path: Path) -> None:
    """What a machine with PyTorch for CUDA 13 has."""
    for name, version in TORCH.items():
        with zipfile.ZipFile(make_wheel(tmp_path, name, version)) as wheel:
            wheel.extractall(site_packages)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with a wheel for everything that pyproject.toml requires, and with pip itself."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"], "cmake>=3.26", "ninja>=1.5"]
    for line in lines:
        name, extras, version = re.match(r"([\w-]+)(\[.*?\])?\D*(\d[\d.]*\d|\d)", line).groups()  # type: ignore[union-attr]
        requires = []
        if name == "cuda-toolkit":
            requires = [
                f"nvidia-cuda-nvcc=={version}; extra == 'nvcc'",
                f"nvidia-cuda-runtime=={version}; extra == 'cudart'",
            ]
            for requirement in requires:
                make_wheel(folder, requirement.split("==")[0], version)
        if name == "cuda-python":  # every release wants bindings of its own
            for release in ("13.0.3", "13.4.0"):
                make_wheel(folder, "cuda-python", release, f"cuda-bindings=={release}")
                make_wheel(folder, "cuda-bindings", release)
        else:
            make_wheel(folder, name, version, *requires, extras=extras or "")
    pip, version = tmp_path / "pip", importlib.metadata.version("pip")
    unpack_pip(pip)
    shutil.make_archive(str(folder / f"pip-{version}-py3-none-any"), "zip", pip)
    (folder / f"pip-{version}-py3-none-any.zip").rename(folder / f"pip-{version}-py3-none-any.whl")
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts and what they read, with a host compiler that is never asked to compile."""
    return checkout_of_scripts(tmp_path / "checkout")


def train(checkout: Path, wheels: Path, **env: str) -> subprocess.CompletedProcess[str]:
    ours = ("PYTHON", "PYTHONPATH", "CMAKE_ARGS", "CUDACXX", "MNIST_CUDA_ENV", "MNIST_CUDA_CPU_ONLY")
    clean = {key: value for key, value in os.environ.items() if key not in ours and not key.startswith("PIP_")}
    offline = {
        "MNIST_CUDA_CPU_ONLY": "0",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "CXX": "g++",
    }
    command = [checkout / "scripts" / "train", "--epochs", "1"]
    return subprocess.run(command, env=clean | offline | env, capture_output=True, text=True, check=False)


def contents(site_packages: Path) -> dict[str, bytes]:
    """Every file of CUDA's libraries and of PyTorch, by name."""
    files = [path for folder in ("nvidia", "torch") for path in (site_packages / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(site_packages)): path.read_bytes() for path in files if path.suffix != ".pyc"}


def test_a_python_without_ensurepip_sets_up(checkout: Path, wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('removed')")
    result = train(checkout, wheels, PYTHON=sys.executable, PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (0, "mnist-cuda train --epochs 1\n"), result.stderr
    assert "which has no ensurepip, and with its pip" in result.stderr
    again = train(checkout, wheels, PYTHONPATH=str(tmp_path))
    assert (again.returncode, again.stderr) == (0, "")

    # Somebody installs PyTorch into .venv, over our cuDNN; what set-up installs later leaves it alone.
    (site_packages,) = (checkout / ".venv").glob("lib/python3*/site-packages")
    install_torch(site_packages, tmp_path)
    before = contents(site_packages)
    make_wheel(wheels, "nvidia-cudnn-cu12", "9.11")
    pyproject = checkout / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("nvidia-cudnn-cu12>=9.10", "nvidia-cudnn-cu12>=9.11"))
    result = train(checkout, wheels, PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "nvidia-cudnn-cu13==9.19.0.56, which is there" in result.stderr
    assert contents(site_packages) == before


def test_torch_keeps_its_libraries(checkout: Path, wheels: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    unpack_pip(site_packages)
    install_torch(site_packages, tmp_path)
    before = contents(site_packages)
    assert len(before) == 4

    env = {"MNIST_CUDA_ENV": "active", "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    result = train(checkout, wheels, **env)
    assert (result.returncode, result.stdout) == (0, "mnist-cuda train --epochs 1\n"), result.stderr
    assert contents(site_packages) == before
    assert f"using the active environment of {environment}/bin/python3" in result.stderr
    for library in ("nvidia-cudnn-cu13==9.19.0.56", "nvidia-cublas==13.1.0.3"):
        assert f"using {library}, which is there" in result.stderr
    installed_now = {path.name for path in site_packages.glob("*.dist-info")}
    assert {f"{name.replace('-', '_')}-{version}.dist-info" for name, version in TORCH.items()} <= installed_now
    assert "cuda_python-13.0.3.dist-info" in installed_now
    assert not (checkout / ".venv").exists()
    nvcc = (checkout / "build" / "nvcc").read_text()
    assert nvcc == str(checkout / ".venv-active" / "cuda" / "nvidia" / "cu13" / "bin" / "nvcc")

    again = train(checkout, wheels, **env, MNIST_CUDA_CPU_ONLY="")  # what was chosen is kept
    assert (again.returncode, again.stderr) == (0, "")
