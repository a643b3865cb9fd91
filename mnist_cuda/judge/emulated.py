"""An engine whose kernels run on the CPU, in the emulator: a process, by native/emulator/train/run.cpp."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native
from mnist_cuda.bench import emulate
from mnist_cuda.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from mnist_cuda.judge.own_kernels import OwnKernels

PARTS = ("machine", "checks", "kernels", "tables", "engine")  # of its program, beside a user's files
ENGINES = ("naive", "tiled")
PARAMETERS = sum(size for *_, size in _native.parameters())


class EmulatedEngine:
    """What `Engine` asks of `_native.Engine`, as far as training steps need it.

    Raises UsageError for an engine that is not emulated, UnavailableError without g++.
    """

    transport = ""
    resumable = True
    has_statistics = False

    def __init__(self, name: str, precision: str, own: OwnKernels | None) -> None:
        if name not in ENGINES or precision != "fp32":
            raise UsageError(f"engine '{name}' in {precision} is not emulated, expected {' or '.join(ENGINES)} in fp32")
        self._folder = Path(tempfile.mkdtemp(prefix="mnist-cuda-emulated-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.dataset_size = self.evaluation_size = 0
        ops, objects = own.compile_emulated(self._folder) if own else ([], [])
        words = [str(self._link(objects)), name, *(str(word) for op in ops for word in op)]
        with (self._folder / "errors").open("wb") as errors:
            pipe = subprocess.PIPE
            # In a session of its own, because Ctrl-C is for the training.
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True)
        weakref.finalize(self, _end, self._process)

    def _link(self, objects: list[Path]) -> Path:
        native, parts = emulate.sources(), emulate.objects(*PARTS)
        table, program = self._folder / "own_table.cpp", self._folder / "program"
        names = [f"mnist_own_launch_{number}" for number in range(len(objects))]
        table.write_text(
            '#include <string>\n#include <type_traits>\n#include "judge/own.h"\n'
            + "".join(f'extern "C" std::remove_pointer_t<mnist::OwnLaunch> {name};\n' for name in names)
            + "namespace mnist {\nOwnLaunch open_own(const std::string& library) {\n"
            f"  static constexpr OwnLaunch kAll[] = {{{', '.join([*names, 'nullptr'])}}};\n"
            "  return kAll[std::stoi(library)];\n}\n}\n"
        )
        words = ["-std=c++20", "-Wl,--allow-multiple-definition", f"-I{native / 'gpu'}", *objects, table, *parts]
        emulate.run_compiler([emulate.require_compiler(), *words, "-pthread", "-o", program])
        return program

    def _ask(self, question: str, numbers: Iterable[int] = (), arrays: Iterable[NDArray[Any]] = ()) -> bytes:
        """An answer's bytes. Raises RuntimeError with the engine's words, UnavailableError where the process ended."""
        asking, answers = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        try:
            asking.write(f"{' '.join([question, *map(str, numbers)])}\n".encode())
            for array in arrays:
                asking.write(np.ascontiguousarray(array).tobytes())
            asking.flush()
        except BrokenPipeError:
            pass  # the answer will be missing
        state, _, size = answers.readline().decode().partition(" ")
        data = answers.read(int(size)) if size else b""
        if state == "ok":
            return data
        if state == "error":
            raise RuntimeError(data.decode(errors="replace"))
        said = (self._folder / "errors").read_text(errors="replace").split("\n")[0]
        raise UnavailableError(f"the emulated engine ended{': ' * bool(said)}{said.removeprefix('emulator: ')}")

    def arithmetic(self) -> str:
        return "fp32"

    def algorithms(self) -> list[str]:
        """It has no choice."""
        return []

    def set_parameters(self, values: NDArray[Any]) -> None:
        self._ask("set_parameters", (), [np.asarray(values, np.float64)])

    def get_parameters(self) -> NDArray[np.float64]:
        return np.frombuffer(self._ask("get_parameters"), np.float64)

    def get_float_parameters(self) -> NDArray[np.float32]:
        return self.get_parameters().astype(np.float32)

    def initialize_parameters(self, *words: int) -> None:
        self._ask("initialize_parameters", (), [np.array(words, np.uint64)])

    def set_dataset(self, images: NDArray[np.uint8], labels: NDArray[np.uint8], on_device: bool) -> None:
        self._ask("set_dataset", [len(labels)], [images, labels])
        self.dataset_size = len(labels)

    def set_evaluation_set(self, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
        """Nothing is evaluated: it would take hours."""
        self.evaluation_size = len(labels)

    def train(
        self, order: NDArray[np.int32], batch: int, rates: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Steps: their losses, and how many images were right."""
        found = np.frombuffer(self._ask("train", [len(rates), len(order), batch], [rates, order]), np.float64)
        return found[0::2].copy(), found[1::2].astype(np.int32)

    def gradients(self, images: NDArray[np.uint8], labels: NDArray[np.uint8], orders: int) -> NDArray[np.float64]:
        """Of a batch, with each launch run in so many orders of threads and blocks, which `report` then compares."""
        self._ask("orders", [orders])
        try:
            return np.frombuffer(self._ask("gradients", [len(labels)], [images, labels]), np.float64)
        finally:
            self._ask("orders", [1])

    def report(self) -> dict[str, Any]:
        """What the emulator has seen: `faults`, `lines` and `kernels`, as docs/emulator.md has them."""
        text = re.sub(rb"%b/mnist_own_launch_\d+/" % re.escape(bytes(self._folder)), b"", self._ask("report"))
        report: dict[str, Any] = json.loads(text)
        return report


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
