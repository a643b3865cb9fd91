"""Compiles files of the user's by nvcc for the GPU that is here, as a shared object or as the judge's program."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnist_cuda import _native
from mnist_cuda.bench import emulate
from mnist_cuda.bench.machine_code import find_tool
from mnist_cuda.errors import UnavailableError
from mnist_cuda.judge.build import OWN_NAME, CudaProgram, NotCompiledError, OtherTypesError, complaint, own_source
from mnist_cuda.judge.judged_ops import Case, Op
from mnist_cuda.judge.signatures import Launcher

GPU_SECONDS = 20  # that a call may take: a GPU is faster than the emulator, but has to be woken
TENSOR_CAPABILITY = 80  # below it, kernels of ours that multiply in tf32 do not compile
REMEDY = "a CUDA toolkit has it, or `pip install 'cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]'`"


# A shared object calls its own CUDA runtime, whatever another library of the process exports.
SHARED = ("-shared", "-Xlinker=-Bsymbolic", "-Xlinker=--exclude-libs=ALL")


@dataclass(frozen=True)
class Nvcc:
    """The compiler and a GPU: `capability` as in 90 for 9.0; `architecture`, what the code is for, as nvcc takes it."""

    path: str
    capability: int
    architecture: str

    @property
    def words(self) -> str:
        """What it compiles for: machine code of the GPU, or PTX that its driver compiles."""
        code = self.architecture.rpartition("=")[2]
        return code if code.startswith("sm_") else f"{code}, the newest that nvcc knows, by the driver"

    @property
    def flags(self) -> list[str]:
        """Those of every call."""
        root = Path(self.path).resolve().parent.parent
        wheels = [f"-L{root / 'lib'}"] if (root / "lib" / "libcudart_static.a").is_file() else []
        return [
            "-std=c++20",
            "-O3",
            "-lineinfo",
            "--expt-relaxed-constexpr",
            "-Xcompiler=-fPIC",
            "-Xcompiler=-fno-gnu-unique",  # or statics of templates would be one for all libraries
            self.architecture,
            *wheels,
        ]

    def run(self, words: Iterable[Any], file: Path) -> None:
        """Call it for a user's file. Raises NotCompiledError."""
        done = subprocess.run([self.path, *self.flags, *map(str, words)], capture_output=True, text=True)
        if numbers := re.findall(r"types of launcher (\d+)", done.stderr) if done.returncode else []:
            raise OtherTypesError(map(int, numbers))
        if done.returncode:
            raise NotCompiledError(complaint(done.stderr, file.resolve()).replace(OWN_NAME, file.name))


def find(device: int = 0) -> Nvcc:
    """For GPU `device`. Raises UnavailableError without nvcc, and where it compiles nothing that this GPU runs."""
    gpus = _native.gpus()
    if not 0 <= device < len(gpus):
        raise UnavailableError(f"there is no GPU {device}, expected one of 0 to {len(gpus) - 1}")
    gpu = gpus[device]
    capability = int(gpu["compute_capability"].replace(".", ""))
    try:
        nvcc = find_tool("nvcc")
    except UnavailableError:
        raise UnavailableError(f"kernels of yours need nvcc, CUDA's compiler, on the PATH: {REMEDY}") from None
    done = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True)
    known = sorted(int(number) for number in re.findall(r"compute_(\d+)\s", done.stdout + "\n"))
    if capability in known:
        letter = "a" if capability == 90 else ""  # as our own build, with Hopper's own instructions
        return Nvcc(nvcc, capability, f"-gencode=arch=compute_{capability}{letter},code=sm_{capability}{letter}")
    older = [number for number in known if number < capability]
    if older:
        return Nvcc(nvcc, capability, f"-gencode=arch=compute_{older[-1]},code=compute_{older[-1]}")
    least = f"{known[0] / 10:.1f}" if known else "nothing"
    raise UnavailableError(
        f"{nvcc} compiles for compute capability {least} and newer, and the {gpu['name']} has "
        f"{gpu['compute_capability']}: an older CUDA toolkit on the PATH compiles for it"
    )


def includes(native: Path) -> list[str]:
    """Where our headers are."""
    return [f"-I{native / name}" for name in ("gpu", "host", "include")]


def our_objects(nvcc: Nvcc, native: Path, *more: Path) -> list[Path]:
    """Those of our kernels, which a user's file may call, and of `more`, each compiled unless it was before."""
    kernels = [
        path
        for path in emulate.part(native, "kernels")
        if nvcc.capability >= TENSOR_CAPABILITY or path.stem != "tensor_cores"
    ]
    version = subprocess.run([nvcc.path, "--version"], capture_output=True, text=True).stdout
    common = emulate.common_digest(native, nvcc.path, version, *nvcc.flags)
    what = f"our kernels for {nvcc.words}"

    def compile_one(path: Path, to: Path) -> None:
        emulate.run_compiler([nvcc.path, *nvcc.flags, *includes(native), "-c", path, "-o", to])

    cache = emulate.cache_folder("nvcc")
    sources = [*kernels, *emulate.part(native, "checks"), *more]
    return emulate.kept(sources, native, common, cache, what, lambda *_: compile_one)


def compile_own(nvcc: Nvcc, file: Path, launchers: Iterable[Launcher], folder: Path) -> Path:
    """The object of a user's file with judge/own.h's function. Raises NotCompiledError."""
    source, made = folder / "own.cu", folder / "own.o"
    shutil.copyfile(file, folder / OWN_NAME)
    source.write_text(own_source(folder / OWN_NAME, launchers))
    where = [*includes(emulate.sources()), f"-I{file.resolve().parent}"]
    nvcc.run([*where, "-Dmain=own_main", "-c", source, "-o", made], file)
    return made


def link(nvcc: Nvcc, objects: Iterable[Path], to: Path, *more: str, file: Path) -> Path:
    """A program, or what `more` says. What comes first takes the place of our kernels of that name."""
    nvcc.run([*objects, "-o", to, "-Xlinker=--allow-multiple-definition", *more], file)
    return to


class GpuProgram(CudaProgram):
    """A .cu file, compiled for GPU 0. Raises UnavailableError without nvcc, NotCompiledError."""

    by = "the GPU"

    def __init__(self, file: Path, launchers: Iterable[Launcher]) -> None:
        self.compiler, native = find(), emulate.sources()
        super().__init__(file, launchers, our_objects(self.compiler, native, *emulate.part(native, "gpu")))
        self.limit = GPU_SECONDS

    def make(self, program: Path, launchers: Iterable[Launcher], parts: Iterable[Path]) -> None:
        own = compile_own(self.compiler, self.file, launchers, self.folder)
        link(self.compiler, [own, *parts], program, "-ldl", file=self.file)

    def last_case(self, op: Op) -> Case:
        """The one that is timed."""
        return op.network
