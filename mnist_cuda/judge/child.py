"""The process that runs a judged .py file. It knows inputs and no answers. Needs numpy and what the file imports.

Usage: child.py FILE PACKAGE WHERE TASKS INPUTS OUTPUTS RESULTS, with PACKAGE as in python_files.RUNNERS and WHERE cpu
or gpu; python_files.py writes TASKS, a line each in JSON, and native/gpu/judge/run.cpp says what the other files are.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GUARD = 256  # bytes around an array
SEEN = 0xA5  # in all of them
LARGE = 1 << 28  # bytes, more than an L2 cache holds
DELAY = 16  # times these are written before a call, which the host launches meanwhile
WARM_SECONDS = 0.02  # of calls back to back


class Array:
    """An argument: its bytes between guards."""

    def __init__(self, name: str, role: str, kind: str, shape: list[int], shifted: bool) -> None:
        self.name, self.role, self.kind, self.shape = name, role, kind, shape
        each = np.dtype(kind).itemsize
        self.bytes = int(np.prod(shape)) * each
        self.first = GUARD + (each if shifted else 0)
        self.all = np.full(self.first + self.bytes + GUARD, SEEN, np.uint8)
        self.own = self.all[self.first : self.first + self.bytes]
        self.sets: list[bytes] = []

    def outside(self) -> bool:
        """Whether a guard was written."""
        return bool((self.all[: self.first] != SEEN).any() or (self.all[self.first + self.bytes :] != SEEN).any())

    def fill(self, inputs: int) -> None:
        """With the set of inputs of that number; an output with NaN."""
        self.own[:] = np.frombuffer(self.sets[inputs], np.uint8) if self.role == "in" else 0xFF


class Cpu:
    """Arrays where they are."""

    def __init__(self, package: str) -> None:
        self._tensors = package in ("torch", "triton")

    def call(self, function: Callable[..., Any], arguments: list[Any], warm: bool) -> dict[str, Any]:
        """Call it; warm: back to back."""
        function(*(self._wrapped(one) if isinstance(one, Array) else one for one in arguments))
        return {}

    def _wrapped(self, array: Array) -> Any:
        values = array.own.view(array.kind).reshape(array.shape)
        if not self._tensors:
            return values
        import torch

        return torch.from_numpy(values)


class Gpu:
    """Copies of the arrays on the GPU, and its clock, by the package of the file."""

    def __init__(self, package: str) -> None:
        self.graphs = False
        self.dtype: Callable[[str], Any] = str
        if package == "cupy":
            import cupy  # type: ignore[import-not-found]

            self.to, self.back, self.synchronize = cupy.asarray, cupy.asnumpy, cupy.cuda.Device().synchronize
            self.event, self.elapsed_ms = cupy.cuda.Event, cupy.cuda.get_elapsed_time
            self.write = cupy.copyto
        elif package == "numba":
            from numba import cuda

            self.to, self.back, self.synchronize = cuda.to_device, lambda a: a.copy_to_host(), cuda.synchronize
            self.event, self.elapsed_ms = cuda.event, cuda.event_elapsed_time
            self.write = lambda to, values: to.copy_to_device(values)
        else:
            import torch

            self.to, self.back = lambda a: torch.from_numpy(a).cuda(), lambda a: a.cpu().numpy()
            self.synchronize, self.graphs = torch.cuda.synchronize, True
            self.write = torch.Tensor.copy_
            self.event = lambda: torch.cuda.Event(enable_timing=True)
            self.elapsed_ms = lambda start, stop: start.elapsed_time(stop)
            self.dtype = lambda kind: getattr(torch, kind)
        self._large = [self.to(np.zeros(LARGE, np.uint8)) for _ in range(2)]
        self._cold: list[float] = []

    def call(self, function: Callable[..., Any], arguments: list[Any], warm: bool) -> dict[str, Any]:
        """Call it with empty caches, timed; warm: back to back, if that can be recorded."""
        arrays = [one for one in arguments if isinstance(one, Array)]
        there = {id(array): self.to(array.all) for array in arrays}
        values = [one if not isinstance(one, Array) else self._view(there[id(one)], one) for one in arguments]
        for _ in range(DELAY):
            self.write(*self._large)
        seconds, untimed = 0.0, ""
        if warm and self.graphs:
            seconds, untimed = self._warm(lambda: function(*values))
        elif warm:
            untimed = "only PyTorch and Triton record calls in a CUDA graph"
        if not seconds:
            start, stop = self.event(), self.event()
            start.record()
            function(*values)
            stop.record()
            self.synchronize()
            self._cold.append(self.elapsed_ms(start, stop) / 1e3)
        for array in arrays:
            array.all[:] = self.back(there[id(array)])
        return {"seconds": seconds if warm else self._cold[-1], "untimed": untimed}

    def _view(self, there: Any, array: Array) -> Any:
        own = there[array.first : array.first + array.bytes]
        return own.view(self.dtype(array.kind)).reshape(tuple(array.shape))

    def _warm(self, call: Callable[[], Any]) -> tuple[float, str]:
        """Seconds of a call among many, or why there are none."""
        import torch

        count = min(1000, max(1, int(WARM_SECONDS / max(min(self._cold), 1e-6))))
        graph, start, stop = torch.cuda.CUDAGraph(), self.event(), self.event()
        try:
            with torch.cuda.graph(graph):
                for _ in range(count):
                    call()
        except Exception as error:
            return 0.0, f"a CUDA graph cannot record it: {type(error).__name__}"
        graph.replay()
        start.record()
        graph.replay()
        stop.record()
        self.synchronize()
        return self.elapsed_ms(start, stop) / 1e3 / count, ""


def main(file: str, package: str, where: str, tasks: str, inputs: str, outputs: str, results: str) -> None:
    word = sys.stdin.buffer.read().decode()  # with which a result counts
    spec = importlib.util.spec_from_file_location("judged", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).parent))
    machine = Gpu(package) if where == "gpu" else Cpu(package)
    with open(inputs, "rb") as given, open(outputs, "wb") as left, open(results, "w") as lines:
        failed = ""
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            failed = words(error, file)
        for number, line in enumerate(Path(tasks).read_text().splitlines()):
            task = json.loads(line)
            arguments: list[Any] = [Array(**one) if "name" in one else one["value"] for one in task["arguments"]]
            arrays = [one for one in arguments if isinstance(one, Array)]
            for _ in range(max(task["sets"]) + 1):
                for array in arrays:
                    if array.role == "in":
                        array.sets.append(given.read(array.bytes))
            first = b""
            for call, inputs_of in enumerate(task["sets"]):
                for array in arrays:
                    array.fill(inputs_of)
                why, clock = failed, {"seconds": 0.0, "untimed": ""}
                if not why:
                    try:
                        warm = task["timed"] and call + 1 == len(task["sets"])
                        clock |= machine.call(getattr(module, task["function"]), arguments, warm)
                    except Exception as error:
                        why = words(error, file)
                outside = [array.name for array in arrays if array.outside()]
                if outside and not why:
                    why = f"writes outside of {', '.join(outside)}"
                found = b"".join(array.own.tobytes() for array in arrays if array.role == "out")
                left.write(found)
                left.flush()
                changed = [k for k, a in enumerate(arrays) if a.role == "in" and a.own.tobytes() != a.sets[inputs_of]]
                differs, first = call == 1 and not task["timed"] and found != first, first or found
                sys.stdout.flush()
                report: dict[str, Any] = {"faults": [], "lines": [], "kernels": [{}]}
                answer = {"word": word, "task": number, "call": call, "failed": why, "refused": False}
                answer |= {"changed": changed, "differs": differs, "report": report, **clock}
                print(json.dumps(answer), file=lines, flush=True)


def words(error: Exception, file: str) -> str:
    """What was raised, and by which line of the file."""
    place, traceback = "", error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == file:
            place = f"line {traceback.tb_lineno}: "
        traceback = traceback.tb_next
    return f"{place}{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
