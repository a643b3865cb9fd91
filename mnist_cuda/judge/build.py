"""Compiles a judged file with the emulator, runs it on cases in a process of its own, and reads what it left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda.bench import emulate
from mnist_cuda.errors import UnavailableError
from mnist_cuda.judge import judged_ops
from mnist_cuda.judge.signatures import Launcher

EMULATOR = "the emulator"
PARTS = ("machine", "checks", "judge")  # of the emulator's program, beside a user's file
SECONDS = 30  # that a call may take
WORDS = ("failed", "refused", "changed", "differs", "report")  # on a call
MORE_WORDS = ("outside", "seconds", "untimed")  # of a program that looks

_Call = tuple[judged_ops.Case, judged_ops.Arrays, int]


class NotCompiledError(Exception):
    """The file is no C++; the text is the compiler's."""


class Program(contextlib.AbstractContextManager["Program"]):
    """A judged file that can be run: `folder` is its own until it is closed, `by` says what runs it."""

    by = ""
    words: tuple[Any, ...] = ()  # the command, without the files

    def __init__(self, file: Path) -> None:
        self.file = file
        self.limit = SECONDS
        self.folder = Path(tempfile.mkdtemp(prefix="mnist-cuda-judge-"))
        self.seconds = 0.0  # that compiling took

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def task(self, number: int, launcher: Launcher, case: judged_ops.Case) -> str:
        """What the process is told of a case, as a line."""
        raise NotImplementedError

    def takes(self, op: judged_ops.Op, case: judged_ops.Case) -> bool:
        """Whether the case is not too large for it."""
        return True

    def last_case(self, op: judged_ops.Op) -> judged_ops.Case:
        """Beside the op's own: whose accesses are counted."""
        return judged_ops.Case(op.cost.sizes, calls=1)

    def run(self, number: int, launcher: Launcher, cases: Iterable[judged_ops.Case]) -> Iterator[Ran]:
        """The calls of the file's launcher of that number, as they end; the last one may say that it did not."""
        tasks, of_calls = [], []
        with (self.folder / "inputs").open("wb") as inputs:
            for case in cases:
                given = {seed: judged_ops.inputs(launcher.op, case, seed) for seed in set(case.sets)}
                of_calls += [(case, given[seed], n) for n, seed in enumerate(case.sets)]
                for seed in sorted(given):
                    for p in launcher.parameters:
                        if p.role == "in":
                            inputs.write(given[seed][p.name].tobytes())
                tasks.append(self.task(number, launcher, case))
        (self.folder / "tasks").write_text("\n".join(tasks) + "\n")
        reading, writing = os.pipe()
        names = [self.folder / "tasks", self.folder / "inputs", self.folder / "outputs", f"/dev/fd/{writing}"]
        (self.folder / "outputs").touch()
        with (self.folder / "printed").open("wb") as printed, (self.folder / "errors").open("wb") as errors:
            child = subprocess.Popen(
                [str(word) for word in (*self.words, *names)],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                pass_fds=[writing],
                start_new_session=True,
                cwd=self.folder,
                env=self.environment(),
            )
        os.close(writing)
        try:
            yield from self._read(child, reading, launcher, of_calls)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _read(self, child: subprocess.Popen[bytes], pipe: int, launcher: Launcher, calls: list[_Call]) -> Iterator[Ran]:
        rest = b""
        with selectors.DefaultSelector() as selector, (self.folder / "outputs").open("rb") as outputs:
            selector.register(pipe, selectors.EVENT_READ)
            deadline = time.monotonic() + self.limit
            for case, given, n in calls:
                while b"\n" not in rest:
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        yield Ran(case, n, given, {}, {}, f"did not end within {self.limit} s")
                        return
                    data = os.read(pipe, 1 << 20)
                    if not data:
                        errors = (self.folder / "errors").read_text(errors="replace").splitlines()
                        yield Ran(case, n, given, {}, {}, _end(child.wait(), errors))
                        return
                    rest += data
                line, rest = rest.split(b"\n", 1)
                line = line.replace(bytes(self.folder) + b"/", b"")
                try:
                    words = json.loads(line)
                    words = {name: words[name] for name in WORDS} | {k: words[k] for k in MORE_WORDS if k in words}
                    ran = Ran(case, n, given, words, _outputs(launcher, case, outputs))
                except (ValueError, TypeError, KeyError):
                    yield Ran(case, n, given, {}, {}, "wrote where only the judge's own program writes")
                    return
                yield ran
                deadline = time.monotonic() + self.limit

    def printed(self) -> list[str]:
        """The first lines that the file printed."""
        return (self.folder / "printed").read_bytes()[:2000].decode(errors="replace").splitlines()[:5]


def own_source(file: Path, launchers: Iterable[Launcher]) -> str:
    """C++ that includes a user's file and makes its launchers callable by number: judge/own.h."""
    calls = ", ".join(
        f"judge::launcher(static_cast<void (*)({', '.join(p.type for p in each.parameters)})>(&{each.qualified}))"
        for each in launchers
    )
    return (
        f'#include "{file}"\n#include "judge/call.h"\n'
        "static const std::vector<judge::Launcher>& judge::launchers() {\n"
        f"  static const std::vector<judge::Launcher> all{{{calls}}};\n  return all;\n}}\n"
    )


def compile_emulated(file: Path, launchers: Iterable[Launcher], folder: Path, name: str = "mnist_own_launch") -> Path:
    """The object of a user's file for the emulator; name: of its function of judge/own.h. Raises NotCompiledError."""
    native = emulate.sources()
    source, rewritten, made = folder / file.name, folder / "rewritten", folder / "own.o"
    shutil.copyfile(file, source)
    emulate.rewrite(native, native / "gpu", rewritten, emulate.kernel_headers(native))
    emulate.rewrite(native, folder, rewritten / "own", [source])
    own = folder / "own.cpp"
    own.write_text(own_source(rewritten / "own" / f"{file.name}.cpp", launchers))
    includes = [*emulate.include_flags(native, rewritten), f"-I{file.resolve().parent}"]
    flags = ["-std=c++20", *emulate.kernel_flags(native), "-Dmain=own_main"]  # a learner's, which is not run
    begin = emulate.precompiled(native, flags)
    _compile([*flags, *begin, f"-Dmnist_own_launch={name}", *includes, "-c", own, "-o", made], source)
    return made


def _compile(words: Iterable[Any], file: Path) -> None:
    done = subprocess.run([emulate.require_compiler(), *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise NotCompiledError(complaint(done.stderr, file))


def complaint(text: str, file: Path) -> str:
    """The lines of a compiler's output that say what is wrong, three at most."""
    text = text.replace(str(file), file.name)
    found = [line for line in text.splitlines() if re.search(r"\b(error|fatal)\b.*:|undefined reference", line)]
    return "; ".join(found[:3]) or " ".join(text.split())[-300:] or "the compiler gives no reason"


class CudaProgram(Program):
    """A .cu file, compiled and run by native/gpu/judge/run.cpp; parts: the other objects. Raises NotCompiledError."""

    def __init__(self, file: Path, launchers: Iterable[Launcher], parts: Iterable[Path]) -> None:
        super().__init__(file)
        self.words = (self.folder / "program",)
        started = time.monotonic()
        try:
            self.make(self.folder / "program", launchers, parts)
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - started

    def make(self, program: Path, launchers: Iterable[Launcher], parts: Iterable[Path]) -> None:
        raise NotImplementedError

    def task(self, number: int, launcher: Launcher, case: judged_ops.Case) -> str:
        """Words, as native/gpu/judge/run.cpp reads them."""
        of = launcher.op.sizes(case)
        reals = [judged_ops.UPSTREAM for p in launcher.parameters if p.role == "real"]
        words: list[Any] = [number, int(case.timed), case.calls, *case.sets]
        words += [len(case.sizes), *case.sizes, len(reals), *reals]
        arrays = [p for p in launcher.parameters if p.role in ("out", "in", "scratch")]
        words.append(len(arrays))
        for p in arrays:
            each = p.kind.itemsize
            bytes_of = p.shape if p.role == "scratch" else each * int(np.prod(judged_ops.shape_of(p, of)))
            words += [p.role, bytes_of, each if p.name in case.shifted else 0]
        return " ".join(map(str, words))


class EmulatedProgram(CudaProgram):
    """A .cu file, compiled with the emulator. Raises UnavailableError where that does not run."""

    by = EMULATOR

    def __init__(self, file: Path, launchers: Iterable[Launcher]) -> None:
        if os.uname().machine != "x86_64":
            raise UnavailableError("the emulator runs on x86-64 only")
        super().__init__(file, launchers, emulate.objects(*PARTS))

    def make(self, program: Path, launchers: Iterable[Launcher], parts: Iterable[Path]) -> None:
        own = compile_emulated(self.file, launchers, self.folder)
        try:
            _compile([own, *parts, "-o", program], self.file)
        except NotCompiledError as error:
            if "undefined reference to `mnist::kernels::" not in str(error):
                raise
            # It calls ours. What comes first takes the place of our kernels of that name.
            ours = emulate.objects("kernels", "tables")
            _compile(["-Wl,--allow-multiple-definition", own, *parts, *ours, "-o", program], self.file)


@dataclass(frozen=True)
class Ran:
    """A call: the program's words on it, and its outputs; `stopped` says why there are none."""

    case: judged_ops.Case
    number: int
    given: judged_ops.Arrays
    words: dict[str, Any]
    outputs: judged_ops.Arrays
    stopped: str = ""


def _outputs(launcher: Launcher, case: judged_ops.Case, file: Any) -> judged_ops.Arrays:
    of, found = launcher.op.sizes(case), {}
    for p in launcher.parameters:
        if p.role == "out":
            shape, kind = judged_ops.shape_of(p, of), p.kind
            data = file.read(int(np.prod(shape)) * kind.itemsize)
            found[p.name] = np.frombuffer(data, kind).reshape(shape)
    return found


def _end(code: int, words: list[str]) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}" + (f": {words[0]}" if words else "")
    if words:
        return words[0].removeprefix("emulator: ")
    return f"ended the program, with exit code {code}"
