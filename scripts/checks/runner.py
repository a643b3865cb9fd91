"""What the checks share: errors in one line, the checkout's Python, CUDA's tools, builds with an option, and GPUs."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"

# Of processes that run tests side by side on a GPU. The C library keeps what is freed: a probe of 4,229 images hands
# out 320 MB, whose pages would be new ones every time. NumPy's sums take one thread: a process has no more than a core.
ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "OPENBLAS_NUM_THREADS": "1"}

KEPT = re.compile(r"^((?:MNIST_CUDA|Python_EXECUTABLE|CMAKE_(?:BUILD_TYPE|MAKE_PROGRAM|CUDA_ARCHITECTURES)):.+)$", re.M)


class Problem(Exception):
    """What keeps a check from its work, in one sentence; code 2: a wrong call, 4: something is missing."""

    def __init__(self, message: str, code: int = 4) -> None:
        super().__init__(message)
        self.code = code


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> None:  # type: ignore[override]
        """Exit with 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def program(name: str) -> str:
    """A program of .venv, or the one on the PATH."""
    path = ROOT / ".venv" / "bin" / name
    return str(path) if os.access(path, os.X_OK) else name


def python() -> str:
    """The checkout's interpreter, or the one that runs this."""
    path = ROOT / ".venv" / "bin" / "python"
    return str(path) if os.access(path, os.X_OK) else sys.executable


def tool(name: str) -> str:
    """One of CUDA's tools, from the wheels, the PATH or a toolkit. Raises Problem if it is not there."""
    from mnist_cuda.bench.machine_code import find_tool
    from mnist_cuda.errors import UnavailableError

    try:
        return find_tool(name)
    except UnavailableError as error:
        raise Problem(str(error)) from None


def output_of(command: list[str], *, stdin: str = "") -> str:
    """What a command prints. Raises Problem if it fails."""
    done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem(f"{' '.join(command[:4])} failed: {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout


def kill(process: subprocess.Popen[bytes], signum: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that has a session of its own, and to all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signum)


def visible_gpus(count: int) -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them, of a machine with `count`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(gpu) for gpu in range(count)]


def two_ranks(train: Callable[[Any], Any]) -> list[Any]:
    """What `train(communicator)` gives for each of two ranks, which are threads."""
    from mnist_cuda import _native

    def of_rank(communicator: Any) -> Any:
        try:
            return train(communicator)
        except BaseException as error:
            communicator.leave(1, str(error))  # or the other would wait for it
            raise

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(of_rank, _native.in_process_communicators(2)))


def build_with(option: str, folder: Path, target: str) -> None:
    """Make `target` with an option of CMake's in `folder`, as build/ is made otherwise. Raises Problem if it fails."""
    cache = BUILD / "CMakeCache.txt"
    if not cache.exists():
        raise Problem("there is no build in build/; make one by ./scripts/test")
    options = [f"-D{option}" for option in KEPT.findall(cache.read_text())]
    options += ["-GNinja", f"-D{option}=ON", "-DBUILD_TESTING=OFF"]
    for step in (["-S", str(ROOT), "-B", str(folder), *options], ["--build", str(folder), "--target", target]):
        done = subprocess.run([program("cmake"), *step], capture_output=True, text=True, check=False)
        if done.returncode:
            print(*(done.stdout + done.stderr).splitlines()[-20:], sep="\n", file=sys.stderr)
            raise Problem(f"the build with {option} failed, see above")
