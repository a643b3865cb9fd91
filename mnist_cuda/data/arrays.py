"""Arrays of other libraries as numpy arrays, and images as the engines take them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.idx import CLASSES, SIDE, Images, Labels

_ON_HOST = (1, 3, 13)  # DLPack's kDLCPU, kDLCUDAHost, kDLCUDAManaged


def as_numpy(array: object) -> NDArray[Any]:
    """A numpy array of an array of any library that is on the host, without a copy where that can be.

    Raises ValueError for one on a GPU.
    """
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return np.asarray(array)
    device = array.__dlpack_device__()
    if device[0] not in _ON_HOST:
        raise ValueError(f"the array is on a GPU (DLPack device {device[0]}), expected one on the host: copy it first")
    try:
        return np.from_dlpack(array)  # type: ignore[arg-type]
    except (BufferError, RuntimeError, TypeError):  # read-only, or of a dtype that numpy has in its own way only
        return np.asarray(array)


def images_of(images: object) -> Images:
    """Images (N,28,28) uint8 from any array on the host: also one image (28,28), (N,784) or (N,1,28,28).

    Raises ValueError for another shape or dtype, and for an array on a GPU.
    """
    array = as_numpy(images)
    if array.dtype != np.uint8:
        raise ValueError(f"they have dtype {array.dtype}, expected uint8")
    shape = array.shape
    one = shape == (SIDE, SIDE)
    many = len(shape) > 1 and shape[1:] in ((SIDE, SIDE), (SIDE * SIDE,), (1, SIDE, SIDE))
    if not one and not many:
        raise ValueError(f"they have shape {shape}, expected (N, {SIDE}, {SIDE})")
    return array.reshape(-1, SIDE, SIDE)


def pair_of(images: object, labels: object, half: str = "") -> tuple[Images, Labels]:
    """Images (N,28,28) uint8 and their labels (N,) uint8, from any arrays on the host: see `images_of`.

    half: which of several such pairs they are, for messages: `training `. Raises ValueError for another shape, dtype or
    label, for no images, and where images and labels differ in number.
    """
    try:
        pixels = images_of(images)
    except ValueError as error:
        raise ValueError(f"{half}images: {error}") from error
    try:
        classes = as_numpy(labels)
    except ValueError as error:
        raise ValueError(f"{half}labels: {error}") from error
    if classes.ndim != 1 or classes.dtype.kind not in "iu":
        found = f"shape {classes.shape} and dtype {classes.dtype}"
        raise ValueError(f"{half}labels: they have {found}, expected (N,) integers")
    if len(pixels) != len(classes) or not len(pixels):
        raise ValueError(f"there are {len(pixels)} {half}images and {len(classes)} labels, expected as many, and some")
    wrong = np.flatnonzero((classes < 0) | (classes >= CLASSES))
    if wrong.size:
        first = int(wrong[0])
        raise ValueError(f"{half}labels: label {first} is {classes[first]}, expected 0 to {CLASSES - 1}")
    return np.ascontiguousarray(pixels), np.ascontiguousarray(classes, np.uint8)
