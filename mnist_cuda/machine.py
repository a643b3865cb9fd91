"""What this machine and this installation are: one account for `doctor`, a run's config.json and every benchmark."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from mnist_cuda import __version__, _native
from mnist_cuda.data.catalogue import without_password

COMMIT_VARIABLE = "MNIST_CUDA_COMMIT"
_ROOT = Path(__file__).parents[1]
# The checkout that this package belongs to; None where it was installed from a wheel.
CHECKOUT = _ROOT if (_ROOT / "scripts" / "peers").is_file() else None


def circumstances(**more: Any) -> dict[str, Any]:
    """The command line, commit and versions, and what this machine is; `more` is what else there is to say of it."""
    return {
        "command": command_line(),
        "commit": commit(),
        "versions": versions(),
        "machine": {
            "cpu": cpu_model(),
            "cores": cores(),
            "cuda": _native.cuda_status(),
            "gpus": _native.gpus(),
            "driver": driver(),
            **more,
        },
    }


def command_line() -> str:
    """What was called, for a shell, without passwords."""
    program = "scripts/check" if Path(sys.argv[0]).parent.name == "checks" else "mnist-cuda"
    return shlex.join([program, *map(without_password, sys.argv[1:])])


def versions() -> dict[str, str]:
    """What ran: this project, its native build, Python, the libraries that touch numbers or files."""
    return {
        "mnist-cuda": __version__,
        "build": _native.BUILD,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
    }


def build() -> dict[str, str]:
    """What the bits of host engines depend on: the version, the native build, the instructions that it uses here."""
    return {"version": __version__, "build": _native.BUILD, "instructions": _native.host_instructions()}


def engine_libraries(engine: str) -> dict[str, str]:
    """Versions of the GPU libraries that this engine, which runs, computes with."""
    if not any(row["libraries"] for row in _native.engines() if row["name"] == engine):
        return {}
    return gpu_libraries()


def gpu_libraries() -> dict[str, str]:
    """Versions of the GPU libraries that engines and ops compute with."""
    return {name: version for name, version, _, _ in _native.gpu_libraries()}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """The processor's name, as the kernel has it."""
    try:
        with open("/proc/cpuinfo") as file:  # long where there are many cores: only up to the first such line
            names = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
            return next(names, "unknown CPU")
    except OSError:
        return "unknown CPU"


def driver(root: Path = Path("/")) -> str | None:
    """Version of NVIDIA's kernel driver, such as 580.65.06; None where the kernel does not say (WSL's does not)."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found[0] if found else None


def ask_nvidia_smi(*fields: str) -> tuple[list[dict[str, str]], str]:
    """These fields of each GPU, and what went wrong if that failed; neither where there is no nvidia-smi."""
    import subprocess

    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return [], ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"does not answer ({error})"
    rows = [line.split(", ") for line in result.stdout.strip().splitlines()]
    if result.returncode == 0 and all(len(row) == len(fields) for row in rows):
        return [dict(zip(fields, row, strict=True)) for row in rows], ""
    said = " ".join((result.stdout + result.stderr).split()) or f"exit code {result.returncode}"
    return [], f"fails, {said[:200]!r}"


def gpu() -> dict[str, str] | None:
    """Name, driver, clocks (MHz), temperature and power of the first GPU by nvidia-smi; None without one."""
    fields = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw")
    rows, _ = ask_nvidia_smi(*fields)
    return rows[0] if rows else None


def commit() -> str | None:
    """The checkout's commit, with -dirty where files differ from it; None where nothing says it.

    The variable MNIST_CUDA_COMMIT says it for a wheel and for a copy without git. git is asked once a process; whoever
    calls while another thread asks waits for the answer.
    """
    with _ASKING:
        return _ask_for_commit() or os.environ.get(COMMIT_VARIABLE) or None


def changed_files() -> list[str]:
    """The files that make the checkout differ from its commit, from its root; none where there is no git."""
    return _git("diff", "--name-only", "HEAD").splitlines() if (commit() or "").endswith("-dirty") else []


_ASKING = threading.Lock()


@cache
def _ask_for_commit() -> str | None:
    return _git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or None


def _git(*words: str) -> str:
    """What git says of the checkout; nothing where one of the two is missing."""
    if CHECKOUT is None:
        return ""
    import subprocess

    command = ["git", "--no-optional-locks", "-C", str(CHECKOUT), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
