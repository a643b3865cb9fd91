"""Kernels of the user's own in an engine: the files of `--with`, what they replace, and how they are compiled."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from mnist_cuda.bench import emulate
from mnist_cuda.errors import NotJudgedError, UsageError
from mnist_cuda.judge import build, nvcc, signatures
from mnist_cuda.judge.build import NotCompiledError, OtherTypesError
from mnist_cuda.judge.signatures import Launcher

ENGINE_LACKS = "inverse"  # of batch_norm_backward: an engine has `var`

OwnOp = tuple[str, str, int, int]  # as OwnOp of native/include/mnist/engine.h


@dataclass(frozen=True)
class OwnFile:
    """A .cu file with launchers of ops."""

    path: Path
    sha256: str
    launchers: tuple[Launcher, ...]


class OwnKernels:
    """The files whose launchers take the place of an engine's. Raises UsageError for one that is none."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = [_read(path) for path in paths]
        self.compiled_for = ""
        by_op: dict[str, str] = {}
        for file in self.files:
            for launcher in file.launchers:
                op, here = launcher.op.launcher, f"{launcher.name} of {file.path}"
                if op in by_op:
                    raise UsageError(f"{by_op[op]} and {here} are both launchers of {op}; keep one")
                by_op[op] = here

    @property
    def sha256(self) -> str:
        """Of all files; empty without any. It decides the bits of a training."""
        return " ".join(sorted(file.sha256 for file in self.files))

    @property
    def words(self) -> str:
        """Which ops, by which file."""
        files = "; ".join(
            f"{', '.join(one.op.launcher for one in file.launchers)} by {file.path}, sha256 {file.sha256[:12]}"
            for file in self.files
        )
        return files + f"; compiled for {self.compiled_for}" * bool(self.compiled_for)

    def facts(self) -> list[dict[str, object]]:
        """What config.json says of them."""
        return [
            {
                "file": str(file.path.absolute()),
                "sha256": file.sha256,
                "launchers": [one.name for one in file.launchers],
            }
            for file in self.files
        ]

    def require_fit(self, engine: str, ops: Sequence[str]) -> None:
        """Raises UsageError where the engine, which takes launchers of these ops, does not take one of them."""
        if not ops:
            raise UsageError(f"--with: engine '{engine}' takes no kernels of yours; `--engine tiled` does")
        for file in self.files:
            for launcher in file.launchers:
                if launcher.op.launcher not in ops:
                    raise UsageError(
                        f"{file.path}: engine '{engine}' has no op {launcher.op.launcher}, expected one of "
                        f"{', '.join(ops)}"
                    )
                if any(p.name == ENGINE_LACKS for p in launcher.parameters):
                    raise UsageError(
                        f"{file.path}: {launcher.name} takes `{ENGINE_LACKS}`, which engine '{engine}' does not "
                        "compute; leave it out"
                    )

    def _ops(self, libraries: Iterable[str]) -> list[OwnOp]:
        found = []
        for file, library in zip(self.files, libraries, strict=True):
            for number, launcher in enumerate(file.launchers):
                taken = {p.name for p in launcher.parameters}
                arrays = [p for p in launcher.op.parameters if p.role in ("out", "in", "scratch")]
                arrays = [p for p in arrays if p.name != ENGINE_LACKS]
                left_out = sum(1 << k for k, p in enumerate(arrays) if p.name not in taken)
                found.append((launcher.op.launcher, library, number, left_out))
        return found

    def compile_for_gpu(self, device: int, folder: Path) -> list[OwnOp]:
        """As shared objects in `folder`. Raises UnavailableError without nvcc, UsageError for what does not compile."""
        compiler, libraries = nvcc.find(device), []
        ours = nvcc.our_objects(compiler, emulate.sources())
        self.compiled_for = compiler.words
        for number, file in enumerate(self.files):
            place = folder / str(number)
            place.mkdir()
            try:
                made = nvcc.compile_own(compiler, file.path, file.launchers, place)
                library = nvcc.link(compiler, [made, *ours], place / "own.so", *nvcc.SHARED, file=file.path)
            except (NotCompiledError, OtherTypesError) as error:
                raise UsageError(_not_compiled(file, error)) from error
            libraries.append(str(library))
        return self._ops(libraries)

    def compile_emulated(self, folder: Path) -> tuple[list[OwnOp], list[Path]]:
        """For a program with an emulated engine: the objects that it needs. Raises as `compile_for_gpu`."""
        objects, names = [], [f"mnist_own_launch_{number}" for number in range(len(self.files))]
        for name, file in zip(names, self.files, strict=True):
            place = folder / name
            place.mkdir()
            try:
                objects.append(build.compile_emulated(file.path, file.launchers, place, name))
            except (NotCompiledError, NotJudgedError, OtherTypesError) as error:
                raise UsageError(_not_compiled(file, error)) from error
        _require_distinct(self.files, objects)
        return self._ops(str(number) for number in range(len(self.files))), objects


def own_kernels(paths: Sequence[Path]) -> OwnKernels | None:
    """The kernels of these files; None without any. Raises UsageError."""
    return OwnKernels(paths) if paths else None


def _not_compiled(file: OwnFile, error: Exception) -> str:
    if isinstance(error, OtherTypesError):
        one = file.launchers[min(error.numbers)]
        return f"{file.path}: {signatures.other_types(one.op, one.name)}"
    return f"{file.path} does not compile: {error}"


def _read(path: Path) -> OwnFile:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--with {path}: {error.strerror}") from error
    if path.suffix != ".cu":
        raise UsageError(f"--with {path}: expected a .cu file")
    found, others = signatures.find(data.decode(errors="replace"))
    if not found:
        raise UsageError(
            f"{path}: {others[0] if others else 'no launcher of an op is in it; `mnist-cuda judge` says more'}"
        )
    return OwnFile(path, hashlib.sha256(data).hexdigest(), tuple(found))


def _require_distinct(files: Sequence[OwnFile], objects: Sequence[Path]) -> None:
    """Raises UsageError where two files define a function of the same name: one would take the other's place."""
    defined = []
    for made in objects:
        done = subprocess.run(["nm", "--defined-only", "-g", "-C", made], capture_output=True, text=True)
        defined.append(set(re.findall(r"^\S+ [TDB] (.*)$", done.stdout, re.MULTILINE)))
    for (one, of_one), (other, of_other) in combinations(zip(files, defined, strict=True), 2):
        if both := sorted(of_one & of_other):
            raise UsageError(f"{one.path} and {other.path} both define {both[0]}: put one into an unnamed namespace")
