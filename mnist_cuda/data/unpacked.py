"""The arrays of a data set as one file in the cache, so that nothing is unzipped twice.

A load that unzips the published files, or draws the synthetic digits, leaves their four arrays here, one after the
other. Every later load reads all of
it into memory and compares its sha256 with the catalogue's digest. That fixes each byte of the arrays as the hashes of
the published files do, so that nothing is taken on trust: neither the disk nor whoever wrote the file. If it is missing
or damaged, or cannot be written, the files are unzipped, or the digits drawn, as before.

Only the standard library is used, so that reading can begin before NumPy is imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mnist_cuda.data.catalogue import ArraysInfo, cache_folder
from mnist_cuda.errors import DataError
from mnist_cuda.files import open_at_once, replacing, take_lock

NAME = "arrays.u8"


class Early(threading.Thread):
    """A thread that does `work` before its result is asked for. Joined, it has the `result`.

    The GIL should be free nearly all the time. seconds: how long it took.
    """

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        super().__init__(name=name)
        self._work = work
        self.result: Any = None
        self.seconds = 0.0

    def run(self) -> None:
        """Work."""
        start = time.perf_counter()
        self.result = self._work()
        self.seconds = time.perf_counter() - start


_begun: dict[Path, Early] = {}


def path(info: ArraysInfo) -> Path:
    return cache_folder(info) / NAME


def begin(info: ArraysInfo) -> Early:
    """Begin to read in a thread; the next `read` of this data set takes what comes of it."""

    def content() -> bytes | None:
        with contextlib.suppress(DataError, MemoryError):
            return check(info)[0]
        return None

    reading = _begun[path(info)] = Early(f"read {info.name}", content)
    reading.start()
    return reading


def read(info: ArraysInfo) -> bytes | None:
    """Training images, training labels, test images and test labels, checked; None if there is no sound file."""
    reading = _begun.pop(path(info), None)
    if reading:
        reading.join()
        content: bytes | None = reading.result
        return content
    with contextlib.suppress(DataError):
        return check(info)[0]
    return None


def check(info: ArraysInfo) -> tuple[bytes, Path, str]:
    """The content of the file, its path and sha256. Raises DataError if it is missing or not what it should be."""
    file = path(info)
    try:
        with open(
            file, "rb", buffering=0, opener=open_at_once
        ) as opened:  # one call reads all, straight into the result
            size = os.fstat(opened.fileno()).st_size
            content = opened.read() if size == info.array_bytes else b""
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    if size != info.array_bytes:
        raise DataError(f"{file}: expected {info.array_bytes} bytes, found {size}")
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != info.digest:
        raise DataError(f"{file}: expected sha256 {info.digest}, found {sha256}")
    return content, file, sha256


def write(info: ArraysInfo, arrays: Iterable[memoryview]) -> None:
    """Keep the arrays, whose sha256 is the catalogue's digest; where that cannot be done, nothing happens.

    Processes that do this at once do not disturb each other: each writes a file of its own and renames it. It is not
    synced to the disk, since a file that a crash has cut short is found out by its hash.
    """
    target = path(info)
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(target.parent, fcntl.LOCK_SH)[0]  # or download.py may take the part for a leftover
        try:
            with replacing(target, sync=False) as file:
                for array in arrays:
                    file.write(array)
            _begun.pop(target, None)  # it may have found no file yet
        finally:
            os.close(lock)
