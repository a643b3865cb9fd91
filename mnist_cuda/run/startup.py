"""From the command to the first training step: what can begin before the imports, and where the time went."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from mnist_cuda.data import unpacked
from mnist_cuda.data.catalogue import DATASETS, SYNTHETIC
from mnist_cuda.errors import DataError


def _now() -> float:
    """Seconds since the machine was booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _process_start() -> float:
    """When this process was started, by the kernel's account: up to one of its ticks, 10 ms, too early.

    Where there is no /proc to ask, now.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # from the third on; the second may hold spaces
    except OSError:
        return _now()
    return int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")


def _make_context(engine: str, device: int) -> None:
    """Make the GPU's context, without the GIL, if `engine` needs one, or may need one.

    What goes wrong is left for the engine to meet again and report.
    """
    with contextlib.suppress(Exception):
        from mnist_cuda import _native

        if engine == "auto" or engine in (row["name"] for row in _native.engines() if row["device"] == "cuda"):
            _native.warm_up(device)


class Startup:
    """The start of one command, made as soon as it is known which engine, GPU and data set it will ask for.

    It begins two threads that hardly need the interpreter: one reads the data set from the cache, one makes the GPU's
    context; who needs either waits for it then. The stages of the main thread follow each other without a gap, from
    the start of the process on: `end` says which one is over.
    """

    def __init__(self, engine: str, device: int, dataset: str | None) -> None:
        self._last = _process_start()
        self._stages: dict[str, float] = {}
        context = unpacked.Early(f"context of GPU {device}", lambda: _make_context(engine, device))
        context.start()
        self._threads = {"gpu": context}
        info = {**DATASETS, SYNTHETIC.name: SYNTHETIC}.get("mnist" if dataset in ("auto", None) else dataset)
        if info:
            with contextlib.suppress(DataError):  # no home: whoever loads from the cache says so
                self._threads["data"] = unpacked.begin(info)
        self.end("command_line")

    def end(self, stage: str) -> None:
        """The stage that follows the last one is over; only the first of a name counts."""
        if stage not in self._stages:
            now = _now()
            self._stages[stage] = now - self._last
            self._last = now

    def report(self) -> dict[str, Any]:
        """Seconds of each stage and of all together, and of what was done meanwhile."""
        meanwhile = {name: thread.seconds for name, thread in self._threads.items()}
        return {**self._stages, "total": sum(self._stages.values()), "meanwhile": meanwhile}
