"""What is here for mnist-cuda to run on, and what is wrong with it: the facts and the sentences of `doctor`."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnist_cuda import _native, machine, memory
from mnist_cuda.data import unpacked
from mnist_cuda.data.catalogue import DATASETS, cache_folder
from mnist_cuda.engine import engines, find_engine
from mnist_cuda.engine.gpu_libraries import OP_LIBRARIES, locate
from mnist_cuda.errors import DataError

Facts = dict[str, Any]

NVIDIA, DISPLAYS = "0x10de", ("0x0300", "0x0302")  # PCI vendor; classes of graphics and of compute cards
LOW_DISK, LOW_MEMORY = 200e6, 500e6  # bytes: MNIST unpacked and its files; the images and a small batch
_SMI_FIELDS = ("name", "driver_version", "compute_cap", "memory.total")
_SMI_REMEDIES = (  # of what nvidia-smi says when it fails
    ("version mismatch", "the driver was updated while the old one runs: restart the machine"),
    ("communicate with the NVIDIA driver", "load the driver (`sudo modprobe nvidia`), or install driver 580 or newer"),
    ("No devices were found", "look for errors of the GPU in `sudo dmesg | grep -i nvrm`"),
)


def examine() -> Facts:
    """Everything that `doctor --json` prints; `problems` has a sentence each, with its remedy."""
    smi, smi_fault = ask_nvidia_smi()
    facts: Facts = {
        **machine.circumstances(nvidia_smi=smi, pci_gpus=pci_gpus()),
        "python": sys.executable,
        "package": str(Path(__file__).parent),
        "toolkits": toolkits(),
        "libraries": [library(name) for name in OP_LIBRARIES],
        "engines": [asdict(row) for row in engines()],
        "auto": find_engine("auto").name,
        "caches": caches(),
        "disk": {str(folder): shutil.disk_usage(folder).free for folder in _folders()},
        "memory": {"total": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "available": memory.available()},
    }
    facts["gpu_there"] = bool(facts["machine"]["gpus"] or smi or facts["machine"]["pci_gpus"])
    facts["gpu_usable"] = any(row["device"] == "cuda" and not row["unavailable"] for row in _of_all_gpus())
    facts["problems"] = list(problems(facts, smi_fault))
    return facts


def _of_all_gpus() -> Iterator[dict[str, Any]]:
    """The registry's rows as each GPU can run them, with the GPU's ordinal as `gpu`."""
    for gpu in range(max(1, len(_native.gpus()))):
        for row in engines(gpu):
            yield {"gpu": gpu, "too_old": row.too_old(row.precisions[0]), **asdict(row)}


def problems(facts: Facts, smi_fault: str) -> Iterator[str]:
    """A sentence for each thing that is wrong, and what to do about it."""
    cuda, gpus, pci = facts["machine"]["cuda"], facts["machine"]["gpus"], facts["machine"]["pci_gpus"]
    if smi_fault:
        yield smi_fault
    if facts["gpu_there"] and not gpus:
        named = facts["machine"]["nvidia_smi"]
        where = named[0]["name"] if named else f"an NVIDIA GPU at {pci[0]}"
        if cuda["compiled"] and cuda["driver_version"] == 0:
            yield (
                f"{where} is here, and {cuda['reason']}: install driver 580 or newer, or start the container with the "
                "GPU (docker: --gpus all)"
            )
        else:
            yield f"{where} is here, and {cuda['reason']}"
    if gpus:
        reasons = {row["unavailable"]: None for row in _of_all_gpus() if row["device"] == "cuda" and not row["too_old"]}
        yield from (reason for reason in reasons if reason)
    for cache in facts["caches"]:
        if cache["fault"]:
            yield cache["fault"]
    for folder, free in facts["disk"].items():
        if free < LOW_DISK:
            yield f"{folder}: {free / 1e6:.0f} MB of disk are free, a data set and a run want {LOW_DISK / 1e6:.0f}"
    available = facts["memory"]["available"]
    if available is not None and available < LOW_MEMORY:
        yield (
            f"{available / 1e6:.0f} MB of memory are free, training wants {LOW_MEMORY / 1e6:.0f}: end other programs, "
            "or give the container more"
        )


def ask_nvidia_smi() -> tuple[list[dict[str, str]], str]:
    """What nvidia-smi says of each GPU, and a sentence with the remedy if it fails."""
    rows, fault = machine.ask_nvidia_smi(*_SMI_FIELDS)
    remedies = (remedy for words, remedy in _SMI_REMEDIES if words in fault)
    return rows, fault and f"nvidia-smi {fault}: {next(remedies, 'install the NVIDIA driver again')}"


def pci_gpus(root: Path = Path("/")) -> list[str]:
    """PCI addresses of NVIDIA's GPUs, whether or not they have a driver; a container sees those of its host."""
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text()
        except OSError:
            continue
        if vendor == NVIDIA and kind.startswith(DISPLAYS):
            found.append(device.name)
    return found


def toolkits() -> list[dict[str, str]]:
    """Every nvcc that set-up would look at, in its order, and its version."""
    candidates = [os.environ.get("CUDACXX"), shutil.which("nvcc")]
    candidates += [f"{root}/bin/nvcc" for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))]
    candidates += ["/usr/local/cuda/bin/nvcc"]
    candidates += [
        str(nvcc) for p in sys.path for nvcc in sorted(Path(p, "nvidia").glob("cu[0-9]*/bin/nvcc"), reverse=True)
    ]
    found: dict[str, dict[str, str]] = {}
    for path in candidates:
        if path and os.path.isfile(path):
            found.setdefault(os.path.realpath(path), {"path": path, "version": _nvcc_version(path)})
    return list(found.values())


def _nvcc_version(path: str) -> str:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    found = re.search(r"release (\d+\.\d+)", text)
    return found[1] if found else "does not say its version"


def library(name: str) -> dict[str, str | None]:
    """Path and version of a GPU library as the engines find it; None for both where it is not here."""
    path = locate(name)
    return {"name": name, "version": _library_version(name, path) if path else None, "path": path}


def _library_version(name: str, path: str) -> str | None:
    """By the function that every library of CUDA has: NAMEGetProperty(MAJOR, MINOR or PATCH, int*)."""
    value, parts = ctypes.c_int(), []
    try:
        ask = getattr(ctypes.CDLL(path), f"{name}GetProperty")
    except (OSError, AttributeError):
        return None
    for part in range(3):
        if ask(part, ctypes.byref(value)) != 0:
            return None
        parts.append(str(value.value))
    return ".".join(parts)


def caches() -> list[dict[str, Any]]:
    """The cache folder of each data set: how much is in it, and a sentence where it cannot be used."""
    found = []
    for info in DATASETS.values():
        try:
            folder = cache_folder(info)
        except DataError as error:
            return [{"dataset": info.name, "folder": None, "bytes": 0, "unpacked": False, "fault": str(error)}]
        there = next(p for p in (folder, *folder.parents) if p.exists())
        fault = (
            ""
            if os.access(there, os.W_OK | os.X_OK) and there.is_dir()
            else (f"{there}: cannot write here, where {info.name} is kept: name another folder by MNIST_CUDA_CACHE")
        )
        size = sum(file.stat().st_size for file in folder.glob("*") if file.is_file())
        row = {"dataset": info.name, "folder": str(folder), "bytes": size, "unpacked": unpacked.path(info).exists()}
        found.append({**row, "fault": fault})
    return found


def _folders() -> list[Path]:
    """Where something is written, one for each file system: the current folder for runs, and the cache's."""
    folders = [Path.cwd()]
    for cache in caches():
        if cache["folder"]:
            folder = Path(cache["folder"])
            folders.append(next(p for p in (folder, *folder.parents) if p.exists()))
    return list({folder.stat().st_dev: folder for folder in reversed(folders)}.values())[::-1]
