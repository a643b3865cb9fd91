"""Runs a judged file on cases, in a process of its own, and reads what that left.

The process is the file's own: whatever it writes, prints or leaves undone, reading it takes bounded time and memory. A
result counts only with the word that the judge's program was given before any code of the file ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.judge import judged_ops
from mnist_cuda.judge.signatures import Launcher

SECONDS = 30  # that a call may take
WORDS = ("failed", "refused", "changed", "differs", "report")  # on a call
MORE_WORDS = ("outside", "seconds", "untimed")  # of a program that looks
REPORT = ("faults", "lines", "kernels")
MOST_BYTES = 64 << 20  # of a result
MOST_WRITTEN = 256 << 20  # that the process may write to a file beyond the outputs
SHOWN = 5  # lines of what the file prints
WIDTH = 200  # characters of each
PRINTED = 2000  # bytes that are read
FORGED = "wrote where only the judge's own program writes"

_Call = tuple[judged_ops.Case, judged_ops.Arrays, int]


@dataclass(frozen=True)
class Ran:
    """A call: the program's words on it, and its outputs; `stopped` says why there are none.

    stored: by output, which elements were stored, where the program knows.
    """

    case: judged_ops.Case
    number: int
    given: judged_ops.Arrays
    words: dict[str, Any]
    outputs: judged_ops.Arrays
    stored: dict[str, NDArray[np.bool_]]
    stopped: str = ""


class Program(contextlib.AbstractContextManager["Program"]):
    """A judged file that can be run: `folder` is its own until it is closed, `by` says what runs it."""

    by = ""
    words: tuple[Any, ...] = ()  # the command, without the files
    knows_stores = False  # whether it says which elements of the outputs were stored
    warnings: list[str]  # the compiler's, of the file

    def __init__(self, file: Path) -> None:
        self.file = file
        self.limit = SECONDS
        self.folder = Path(tempfile.mkdtemp(prefix="mnist-cuda-judge-"))
        self.seconds = 0.0  # that compiling took
        self.warnings = []
        self._printed = b""

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
        tasks, of_calls, room = [], [], MOST_WRITTEN
        with (self.folder / "inputs").open("wb") as inputs:
            for case in cases:
                given = {seed: judged_ops.inputs(launcher.op, case, seed) for seed in set(case.sets)}
                of_calls += [(case, given[seed], n) for n, seed in enumerate(case.sets)]
                for seed in sorted(given):
                    for p in launcher.parameters:
                        if p.role == "in":
                            inputs.write(given[seed][p.name].tobytes())
                tasks.append(self.task(number, launcher, case))
                room += 2 * case.calls * sum(map(_size_of(launcher, case), launcher.op.arrays("out")))
        (self.folder / "tasks").write_text("\n".join(tasks) + "\n")
        with contextlib.ExitStack() as stack:
            # Opened before any code of the file runs, which may put what it likes in their places.
            outputs, printed, errors = (
                (stack.enter_context(path.open("wb")), stack.enter_context(path.open("rb")))
                for path in (self.folder / name for name in ("outputs", "printed", "errors"))
            )
            word = secrets.token_hex(16)
            asking, told = map(stack.enter_context, _pipe())
            told.write(word.encode())
            told.close()
            results, writing = map(stack.enter_context, _pipe())
            given_files = [outputs[0].fileno(), writing.fileno()]
            names = [self.folder / "tasks", self.folder / "inputs", *(f"/dev/fd/{file}" for file in given_files)]
            child = subprocess.Popen(
                [str(word) for word in (*self.words, *names)],
                stdin=asking,
                stdout=printed[0],
                stderr=errors[0],
                pass_fds=given_files,
                start_new_session=True,
                cwd=self.folder,
                env=self.environment(),
            )
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (room, room))
            writing.close()
            try:
                yield from self._read(child, word, results, outputs[1], errors[1], launcher, of_calls)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                self._printed = printed[1].read(PRINTED + 1)

    def _read(
        self,
        child: subprocess.Popen[bytes],
        word: str,
        results: IO[bytes],
        outputs: IO[bytes],
        errors: IO[bytes],
        launcher: Launcher,
        calls: list[_Call],
    ) -> Iterator[Ran]:
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(results, selectors.EVENT_READ)
            deadline = time.monotonic() + self.limit
            for case, given, n in calls:

                def stopped(why: str, case: judged_ops.Case = case, given: Any = given, n: int = n) -> Ran:
                    return Ran(case, n, given, {}, {}, {}, why)

                while b"\n" not in rest:
                    left = deadline - time.monotonic()
                    if left <= 0 or not selector.select(left):
                        yield stopped(f"did not end within {self.limit} s")
                        return
                    data = os.read(results.fileno(), 1 << 20)
                    if not data:
                        try:
                            code = child.wait(max(0.0, deadline - time.monotonic()))
                        except subprocess.TimeoutExpired:
                            yield stopped(f"did not end within {self.limit} s")
                            return
                        said = errors.read(PRINTED).decode(errors="replace").splitlines()
                        yield stopped(_end(code, said))
                        return
                    rest += data
                    if len(rest) > MOST_BYTES:
                        yield stopped(FORGED)
                        return
                line, rest = rest.split(b"\n", 1)
                line = line.replace(bytes(self.folder) + b"/", b"")
                try:
                    words = _words(line, word)
                    outs, stored = self._outputs(launcher, case, outputs)
                except (ValueError, TypeError, KeyError, RecursionError):
                    yield stopped(FORGED)
                    return
                yield Ran(case, n, given, words, outs, stored)
                deadline = time.monotonic() + self.limit

    def _outputs(
        self, launcher: Launcher, case: judged_ops.Case, file: IO[bytes]
    ) -> tuple[judged_ops.Arrays, dict[str, NDArray[np.bool_]]]:
        found: judged_ops.Arrays = {}
        stored: dict[str, NDArray[np.bool_]] = {}
        for p in (p for p in launcher.parameters if p.role == "out"):
            shape, size = judged_ops.shape_of(p, launcher.op.sizes(case)), _size_of(launcher, case)(p)
            found[p.name] = np.frombuffer(file.read(size), p.kind).reshape(shape)
            if self.knows_stores:  # a bit for each byte
                bits = np.unpackbits(np.frombuffer(file.read((size + 7) // 8), np.uint8), bitorder="little")[:size]
                stored[p.name] = np.asarray(bits.reshape(*shape, p.kind.itemsize).all(-1))
        return found, stored

    def printed(self) -> list[str]:
        """The first lines that the last launcher printed."""
        shown = [line[:WIDTH] for line in self._printed[:PRINTED].decode(errors="replace").splitlines()[:SHOWN]]
        if len(self._printed) <= len("\n".join(shown).encode()) + 1:
            return shown
        return [*shown, f"and more: of what it prints, {SHOWN} lines of {WIDTH} characters are shown"]


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "wb", buffering=0)


def _size_of(launcher: Launcher, case: judged_ops.Case) -> Any:
    """Of an array of the case, in bytes."""
    of = launcher.op.sizes(case)
    return lambda p: p.kind.itemsize * int(np.prod(judged_ops.shape_of(p, of)))


def _words(line: bytes, word: str) -> dict[str, Any]:
    """On a call. Raises ValueError, TypeError, KeyError or RecursionError for what the program did not write."""
    words = json.loads(line)
    if words["word"] != word:
        raise ValueError
    found = {name: words[name] for name in WORDS} | {k: words[k] for k in MORE_WORDS if k in words}
    report = found["report"]
    found["report"] = {name: report[name] for name in REPORT} | {"notes": report.get("notes", [])}
    return found


def _end(code: int, words: list[str]) -> str:
    if code == -signal.SIGXFSZ:
        return f"printed or wrote more than {MOST_WRITTEN >> 20} MB"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}" + (f": {words[0]}" if words else "")
    if words:
        return words[0].removeprefix("emulator: ")
    return f"ended the program, with exit code {code}"
