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
    """Images (N,28,28) uint8 from any array on the host: also one image (28,28), (N,784), (N,1,28,28) or (N,28,28,1).

    Whole numbers from 0 to 255 of another type are copied. Raises ValueError for another shape, dtype or value, and for
    an array on a GPU.
    """
    array = as_numpy(images)
    pixels = array if array.dtype == np.uint8 else _whole_pixels(array)
    shape = array.shape
    one = shape == (SIDE, SIDE)
    many = len(shape) > 1 and shape[1:] in ((SIDE, SIDE), (SIDE * SIDE,), (1, SIDE, SIDE), (SIDE, SIDE, 1))
    if not one and not many:
        raise ValueError(f"they have shape {shape}, expected (N, {SIDE}, {SIDE})")
    return pixels.reshape(-1, SIDE, SIDE)


def _whole_pixels(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels of another type than uint8, which are whole numbers from 0 to 255. ValueError for others.

    Floats up to 1 are others: they may be shares of 255 or nearly black.
    """
    expected = f"they have dtype {array.dtype}, expected uint8 from 0 to 255"
    if array.dtype == bool or (array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1):
        raise ValueError(f"{expected}: (255 * images).round().astype('uint8') makes them of values from 0 to 1")
    if array.dtype.kind not in "iuf":
        raise ValueError(expected)
    wrong = array[~((array >= 0) & (array <= 255) & (np.floor(array) == array))]  # a NaN is, too
    if wrong.size:
        hint = "; give the pixels as they were before they were normalised" if wrong.min() < 0 else ""
        raise ValueError(f"{expected}, or whole numbers in that range, and a pixel is {wrong[0]:g}{hint}")
    return array.astype(np.uint8)


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
