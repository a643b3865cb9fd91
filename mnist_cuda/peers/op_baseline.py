"""What the ops in other languages for kernels share: arrays, the clock, the protocol.

They run in the baselines' environment, each script as a plain file beside this one, and share no code with the project.
On a GPU PyTorch has the memory, the stream, the graphs and the events. Without one a language runs by a simulator of
its own, Numba on numpy's arrays and Triton on PyTorch's, untimed.

A program drives a script by JSON lines on stdin and reads one JSON line for each:
    {"cmd": "run", "op": "relu", "variant": "triton", "device": 0, "inputs": npz, "outputs": npz}
        -> {"versions", "kernels", "cold_us", "warm_us"}
        device: the GPU's ordinal. The arrays of the op go in and come out by their names. kernels: name, grid, block,
        registers, shared_bytes of each that a run launches. The times are null in a simulator.
    {"cmd": "quit"}
    anything that fails -> {"error": "one line"}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import baseline
import numpy as np

COLD_RUNS, WARM_BLOCKS, BLOCK_SECONDS = 15, 9, 2e-3  # as `mnist-cuda bench ops` times the rest


@dataclass(frozen=True)
class Kernel:
    """A launch: `grid` blocks of `block` threads; registers of a thread and bytes of shared memory of a block."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int | None = None
    shared_bytes: int | None = None


class NumpyArrays:
    """Arrays of a simulator."""

    def __init__(self, device: int = 0) -> None:
        pass

    def put(self, array: np.ndarray) -> Any:
        """The array where a kernel can read it."""
        return array

    def new(self, shape: tuple[int, ...], dtype: type) -> Any:
        """An array for a kernel to write, full of NaN, or of 255 where there is none."""
        return np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else 255, dtype)

    def get(self, array: Any) -> np.ndarray:
        """What the kernels wrote; waits for them."""
        return array

    def times(self, run: Callable[[], Any]) -> tuple[float | None, float | None]:
        """Microseconds of a run, cold and warm; None: a simulator's time says nothing."""
        return None, None


class HostTorchArrays(NumpyArrays):
    """Arrays of PyTorch in the host's memory, for an interpreter or for PyTorch itself."""

    def put(self, array: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(array)

    def new(self, shape: tuple[int, ...], dtype: type) -> Any:
        return self.put(super().new(shape, dtype))

    def get(self, array: Any) -> np.ndarray:
        return array.numpy()


class TorchArrays(HostTorchArrays):
    """Arrays in the GPU's memory, and the clock there."""

    def __init__(self, device: int) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no GPU")
        torch.cuda.set_device(device)
        self.torch = torch
        cache = torch.cuda.get_device_properties().L2_cache_size
        self.flush = torch.empty(4 * cache, dtype=torch.uint8, device="cuda")

    def put(self, array: np.ndarray) -> Any:
        return super().put(array).cuda()

    def get(self, array: Any) -> np.ndarray:
        return super().get(array.cpu())

    def times(self, run: Callable[[], Any]) -> tuple[float | None, float | None]:
        """Microseconds with nothing of it in the L2 cache, and back to back in a CUDA graph; medians."""
        cold = self._cold(run)
        return 1e6 * cold, 1e6 * self._warm(run, cold)

    def _seconds(self, queue: Callable[[], Any]) -> float:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        queue()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3

    def _cold(self, run: Callable[[], Any]) -> float:
        """Between runs something larger than the L2 cache is written, and that takes longer than the host to launch."""
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        launch = time.perf_counter() - begin
        fills = 2 + int(2 * launch / self._seconds(self.flush.zero_))
        times = []
        for _ in range(COLD_RUNS):
            for _ in range(fills):
                self.flush.zero_()
            times.append(self._seconds(run))
        return float(np.median(times))

    def _warm(self, run: Callable[[], Any], estimate: float) -> float:
        repeats = min(max(int(BLOCK_SECONDS / estimate), 1), 1000)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(repeats):
                run()
        graph.replay()
        return float(np.median([self._seconds(graph.replay) / repeats for _ in range(WARM_BLOCKS)]))


# make(arrays, inputs) -> (outputs, run): run() launches the op once and says what it launched.
Run = Callable[[], "list[Kernel]"]
Make = Callable[[Any, "dict[str, Any]"], "tuple[dict[str, Any], Run]"]


def serve(variants: Mapping[tuple[str, str], Make], arrays: Callable[[int], Any], versions: dict[str, str]) -> None:
    """Answer the protocol's commands until `quit` or the end of stdin. variants: by op and name."""

    def run(op: str, variant: str, inputs: str, outputs: str, device: int = 0) -> dict[str, Any]:
        place = arrays(device)
        with np.load(inputs) as given:
            on_place = {name: place.put(array) for name, array in given.items()}
        made, launch = variants[op, variant](place, on_place)
        kernels = launch()
        np.savez(outputs, **{name: place.get(array) for name, array in made.items()})
        cold, warm = place.times(launch)
        return {"versions": versions, "kernels": list(map(asdict, kernels)), "cold_us": cold, "warm_us": warm}

    baseline.answer({"run": run})


def slices_of(batch: int, inner: int, outer: int, tile: int, unit: int) -> tuple[int, int]:
    """How the sum over `inner` is cut where few outputs make few tiles: slices, and terms of each, so many units.

    The cut depends on the shapes alone, and the slices are added in their order: the same input gives the same bits.
    """

    def up(a: int, b: int) -> int:
        return -(-a // b)

    wanted = min(max(512 // (up(batch, tile) * up(outer, tile)), 1), 32)
    depth = up(up(inner, unit), wanted) * unit
    return up(inner, depth), depth
