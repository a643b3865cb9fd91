"""Images from an .npz file, under the names that Keras gives its arrays, or similar ones; nothing in it is run."""

from __future__ import annotations

import contextlib
import lzma
import zipfile
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mnist_cuda.data.idx import MAX_ELEMENTS
from mnist_cuda.data.places import MOST_BYTES, UNSOUND, Member
from mnist_cuda.errors import DataError

ENDING = ".npz"
# For each role the names of its array, in the order in which they are looked for.
_NAMES = {
    "train_images": ("x_train", "train_images", "train_x", "x", "images", "data"),
    "train_labels": ("y_train", "train_labels", "train_y", "y", "labels", "target"),
    "test_images": ("x_test", "test_images", "test_x"),
    "test_labels": ("y_test", "test_labels", "test_y"),
}
_KERAS = ", ".join(names[0] for names in _NAMES.values())


def read_npz(member: Member, content: bytes) -> list[NDArray[Any]]:
    """The arrays by role: images and labels to train on, and the same to test on if there are any.

    Raises DataError for another file, for arrays of other names, of Python objects or too large, before it unpacks one.
    """
    name = member.shown
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            held = {file.removesuffix(".npy").lower(): file for file in archive.namelist() if file.endswith(".npy")}
            chosen = [next((held[key] for key in keys if key in held), None) for keys in _NAMES.values()]
            if None in chosen[:2] or (chosen[2] is None) != (chosen[3] is None):
                keys = ", ".join(sorted(held)[:8]) or "no array"
                raise DataError(f"{name}: expected the arrays {_KERAS}, found {keys}")
            return [_array(archive, file, name) for file in chosen if file]
    except (zipfile.BadZipFile, lzma.LZMAError, OSError, *UNSOUND) as error:
        found = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{name}: expected a sound .npz file, found {found}") from error


def _array(archive: zipfile.ZipFile, file: str, name: str) -> NDArray[Any]:
    """One array, if its header announces no more than the program takes."""
    key = file.removesuffix(".npy")
    with archive.open(file) as stream:
        try:
            shape, dtype = _header(stream)
        except (ValueError, SyntaxError, TypeError, RecursionError, UnicodeDecodeError) as error:
            raise DataError(
                f"{name}: {key}: expected a sound .npy header, found {str(error).splitlines()[0]}"
            ) from error
    elements = 1
    for count in shape:
        elements *= int(count)
    if dtype.hasobject:
        raise DataError(f"{name}: {key} holds Python objects, which are not read as they could run programs")
    if elements > MAX_ELEMENTS or not dtype.itemsize or elements * dtype.itemsize > MOST_BYTES:
        found = f"{' x '.join(map(str, shape))} of {dtype.itemsize} bytes"
        most = f"at most {MAX_ELEMENTS} elements in {MOST_BYTES >> 20} MiB"
        raise DataError(f"{name}: {key}: expected {most}, found {found}")
    if archive.getinfo(file).file_size < elements * dtype.itemsize:
        raise DataError(f"{name}: {key}: expected {elements * dtype.itemsize} bytes for its elements, found fewer")
    with archive.open(file) as stream, contextlib.suppress(ValueError, SyntaxError):
        return np.asarray(npy.read_array(stream, allow_pickle=False))
    raise DataError(f"{name}: {key}: expected {elements} elements, found fewer")


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version[0]}.{version[1]}")
    shape, _, dtype = read(stream)
    if any(count < 0 for count in shape):
        raise ValueError("a negative size")
    return shape, dtype
