"""Arrays in a GPU's memory, from and for other libraries: DLPack and the CUDA array interface.

An array that comes in is waited for: its library says on which stream it is made. What goes out is complete, so that
it may be used on any stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native
from mnist_cuda.errors import DataError

_DLPACK_CUDA = 2  # DLPack's kDLCUDA
_LEGACY_STREAM = 1  # of both protocols: the legacy default stream


@dataclass(frozen=True, eq=False)
class GpuArray:
    """An array in the memory of GPU `device`, for `torch.from_dlpack`, `cupy.asarray`, numba and others, uncopied.

    shape, dtype: as numpy's. address: of its first number; they lie row by row. The memory lives as long as this object
    or anything that was made of it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    address: int
    _native_array: Any = field(repr=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; stream None: there is nothing to wait for."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
        }

    def __dlpack__(self, **options: Any) -> Any:
        """DLPack's capsule, whatever the stream: there is nothing to wait for."""
        return self._native_array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CUDA, self.device


@dataclass(frozen=True)
class GpuBytes:
    """So many bytes of another library's array in a GPU's memory, complete. `owner` keeps them."""

    address: int
    size: int
    owner: object = field(repr=False)

    def on_host(self) -> NDArray[np.uint8]:
        """A copy on the host, flat."""
        return _native.download(self.address, self.size)


def gpu_bytes(array: object) -> GpuBytes | None:
    """An array (any shape) uint8 in a GPU's memory, or None for anything on the host; waits until it is complete.

    Raises DataError for another dtype and for one that does not lie row by row.
    """
    if isinstance(array, np.ndarray):
        return None
    dlpack_device: Callable[[], tuple[int, int]] | None = getattr(array, "__dlpack_device__", None)
    if dlpack_device is not None:
        kind, device = dlpack_device()
        return _by_dlpack(array, int(device)) if kind == _DLPACK_CUDA else None
    interface = getattr(array, "__cuda_array_interface__", None)
    return None if interface is None else _by_interface(array, interface)


def _by_dlpack(array: Any, device: int) -> GpuBytes:
    capsule = array.__dlpack__(stream=_LEGACY_STREAM)  # from now on that stream waits for the array
    try:
        address, size = _native.gpu_bytes(capsule)
    except TypeError:
        found = f"dtype {getattr(array, 'dtype', '?')} and shape {tuple(getattr(array, 'shape', '?'))}"
        raise DataError(f"the array on GPU {device} has {found}, expected uint8 that lies row by row") from None
    _native.wait_for_stream(address, _LEGACY_STREAM)
    return GpuBytes(address, size, array)


def _by_interface(array: object, interface: dict[str, Any]) -> GpuBytes:
    address, shape, strides = int(interface["data"][0]), tuple(interface["shape"]), interface.get("strides")
    rows = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    if np.dtype(interface["typestr"]) != np.uint8 or (strides is not None and tuple(strides) != rows):
        found = f"type {interface['typestr']}, shape {shape} and strides {strides}"
        raise DataError(f"the array on a GPU has {found}, expected uint8 that lies row by row")
    if interface.get("stream") is not None:  # without one there is nothing to wait for
        _native.wait_for_stream(address, int(interface["stream"]))
    return GpuBytes(address, int(np.prod(shape)), array)
