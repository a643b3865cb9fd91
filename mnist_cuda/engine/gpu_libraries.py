"""Where cuDNN and cuBLAS lie: PyPI wheels, conda or the system, as NVIDIA's cuda-pathfinder finds them."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from mnist_cuda import _native

# What the rows of `bench ops` want; what engines load stands in their rows of the registry.
OP_LIBRARIES = ("cublasLt", "cudnn", "cublas", "cufft")


@cache
def find_libraries(libraries: tuple[str, ...]) -> None:
    """Tell the native code where `libraries` are, once a process and only where there is a GPU.

    It costs about 0.1 s, so it is left until the first question whose answer depends on them. What is not found here
    the native code looks for itself: beside our own wheel, then as the system's loader does; then it says what to
    install.
    """
    if not libraries or not _native.cuda_status()["device_count"]:
        return
    for library in libraries:
        if path := locate(library):
            _native.set_library_path(library, path)


@cache
def find_nccl() -> None:
    """Tell the native code where the wheel of NCCL is, without loading it: few trainings need it."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder) / "lib/libnccl.so.2"
        if library.exists():
            _native.set_library_path("nccl", str(library))


def locate(library: str) -> str | None:
    """Load a library, which then stays in this process, and say where it is; None where it is not found."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        path: str | None = load_nvidia_dynamic_lib(library).abs_path
    except (DynamicLibNotFoundError, RuntimeError):
        return None
    return path
