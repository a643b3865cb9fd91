"""Arrays of other libraries as numpy arrays, and images as the engines take them."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
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
    if pixels.size and pixels.flat[: SIDE * SIDE].max() <= 1 and pixels.max() == 1:  # a first black image is rare
        raise ValueError("all pixels are 0 or 1, nearly black, expected 0 to 255: 255 * images makes 1 white")
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


def encoded(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """The distinct values in their order, at most CLASSES, and for each of `values` the number of its own.

    Raises ValueError for more.
    """
    names, places = np.unique(values, return_inverse=True)
    if len(names) > CLASSES:
        shown = ", ".join(map(str, names[: CLASSES + 1]))
        raise ValueError(f"there are {len(names)} classes, expected at most {CLASSES}: {shown[:120]}")
    return names, places.reshape(-1).astype(np.uint8)


def labels_of(labels: object, names: Sequence[str] | None = None) -> tuple[Labels, tuple[str, ...]]:
    """Labels (N,) uint8 from 0 to 9, and the names of the classes, where they are not digits.

    labels: any array (N,) or (N,1) on the host, of integers, of floats that are whole numbers, or of text. Text that
    is all whole numbers means those, other text names of classes, which are numbered in their order; names: those of
    the classes that there are, where that has been decided. Raises ValueError for others.
    """
    array = as_numpy(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        hint = "; labels.argmax(1) makes them of a column for each class" if array.ndim == 2 else ""
        raise ValueError(f"they have shape {array.shape} and dtype {array.dtype}, expected (N,) integers{hint}")
    if array.dtype.kind in "OSUT":
        array = _text_or_numbers(array)
    if array.dtype.kind == "U":
        if names is None:
            found, places = encoded(array)
            return places, tuple(map(str, found))
        place = {name: k for k, name in enumerate(names)}
        for k, name in enumerate(array.tolist()):
            if name not in place:
                expected = ", ".join(names) or f"0 to {CLASSES - 1}"
                raise ValueError(f"label {k} is '{name:.40}', expected {expected}")
        return np.array([place[name] for name in array.tolist()], np.uint8), tuple(names)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"they have shape {array.shape} and dtype {array.dtype}, expected (N,) integers")
    if names and len(array):
        raise ValueError(f"label 0 is {array[0]:g}, expected {', '.join(names)}")
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(~((array >= 0) & (array < CLASSES) & (np.floor(array) == array)))  # a NaN is, too
    if wrong.size:
        raise ValueError(f"label {int(wrong[0])} is {array[wrong[0]]:g}, expected 0 to {CLASSES - 1}")
    return np.ascontiguousarray(array, np.uint8), ()


def _text_or_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """An array of text or of Python objects as one of numbers, where all of them are, or of text."""
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in array.tolist()]
    text = [isinstance(value, str) for value in values]
    if any(text) and not all(text):
        k = text.index(not text[0])
        kinds = "text" if text[0] else "no text"
        raise ValueError(f"label {k} is '{values[k]!s:.40}' and label 0 is {kinds}, expected labels of one kind")
    for k, value in enumerate(values):
        if not (isinstance(value, numbers.Real) or text[k]) or (text[k] and not value.strip()):
            raise ValueError(f"label {k} is '{value!s:.40}', expected a number or a class's name")
    try:
        return np.array(values, float)
    except ValueError:
        return np.array([value.strip() for value in values], str)


def pair_of(images: object, labels: object, half: str = "") -> tuple[Images, Labels]:
    """Images (N,28,28) uint8 and their labels (N,) uint8, from any arrays on the host: see `images_of`, `labels_of`.

    half: which of several such pairs they are, for messages: `training `. Raises ValueError for another shape, dtype or
    label, for no images, and where images and labels differ in number.
    """
    return named_pair_of(images, labels, half, ())[:2]


def named_pair_of(
    images: object, labels: object, half: str, names: Sequence[str] | None
) -> tuple[Images, Labels, tuple[str, ...]]:
    """As `pair_of`, and the names of the classes, which may be given, as `labels_of` takes them."""
    try:
        pixels = images_of(images)
    except ValueError as error:
        raise ValueError(f"{half}images: {error}") from error
    try:
        classes, found = labels_of(labels, names)
    except ValueError as error:
        raise ValueError(f"{half}labels: {error}") from error
    if len(pixels) != len(classes) or not len(pixels):
        raise ValueError(f"there are {len(pixels)} {half}images and {len(classes)} labels, expected as many, and some")
    return np.ascontiguousarray(pixels), classes, found


def hold_out(labels: Labels, share: float = 0.2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the images to train on and of those to test on: of each class this share, chosen by seed 0.

    Always the same for the same labels. A class of one image is trained on. Raises ValueError where nothing is held.
    """
    chosen = np.zeros(len(labels), bool)
    for label in range(CLASSES):
        of_class = np.flatnonzero(labels == label)
        stream = np.random.PCG64(np.random.SeedSequence([0, 3, label]))
        order = np.random.Generator(stream).permutation(len(of_class))
        held = min(max(1, round(share * len(of_class))), len(of_class) - 1)
        chosen[of_class[order[: max(0, held)]]] = True
    if not chosen.any():
        raise ValueError("no class has two images, so none can be held out to test on")
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)
