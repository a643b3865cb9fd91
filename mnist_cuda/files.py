"""Files that are replaced as a whole or not at all, and read without waiting for anybody."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mnist_cuda.errors import CheckpointError

_PART = re.compile(r"mnist-cuda-[0-9a-f]{16}\.part")
_MOST = 1 << 30  # bytes that are read at once


def open_at_once(path: str, flags: int) -> int:
    """An `opener` for `open`: a pipe is opened at once, with a writer or without; other files as ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def open_regular(path: Path, most: int = _MOST) -> BinaryIO:
    """Open a regular file of at most so many bytes to read; OSError for any other."""
    file = open(path, "rb", opener=open_at_once)  # noqa: SIM115
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return file
    file.close()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, expected at most {most}")


def read_regular(path: Path, most: int = _MOST) -> bytes:
    """The content of a regular file of at most so many bytes; OSError for any other."""
    with open_regular(path, most) as file:
        return file.read()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OSError in this block is a CheckpointError that names the file to write."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot write it: {error.strerror or error}") from error


def atomic_write(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, as `replacing` does. Raises CheckpointError where that fails."""
    with writing(path), replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` at the block's end; a crash at any moment leaves the old file or the new.

    Until then it lies beside `path` under a name that nobody can foresee, and is not opened through a link. Only a kill
    leaves it there, for `remove_parts`. Raises OSError where it cannot be written; what was there before stays.
    """
    part = path.with_name(f"mnist-cuda-{os.urandom(8).hex()}.part")
    number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        with open(number, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(number)
            os.replace(part, path)
        if sync:
            sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def remove_parts(folder: Path) -> None:
    """Remove what a kill left of `replacing` in a folder; only for a process that holds the folder's lock alone."""
    with contextlib.suppress(OSError):
        for name in filter(_PART.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                os.unlink(folder / name)


def take_lock(folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> tuple[int, bool]:
    """Open a folder and lock it until that is closed; its number, and False where the file system has no locks.

    Raises BlockingIOError where another process has the lock, and OSError.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, how)
    except BlockingIOError:
        os.close(number)
        raise
    except OSError:
        return number, False
    return number, True


def make_folder(path: Path) -> list[Path]:
    """Make a folder, with those above it, that outlasts a crash of the machine; gives the new ones. Raises OSError."""
    made = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        for folder in [*reversed(made), path]:  # `parents=True` calls itself for each
            folder.mkdir(exist_ok=True)
    except OSError:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    for folder in made:
        sync_folder(folder.parent)
    return made


def sync_folder(path: Path) -> None:
    """Make what was made, renamed or removed in a folder outlast a crash of the machine. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _EnoughError(Exception):
    pass


def require_writable(path: Path) -> None:
    """Raise now the CheckpointError that `atomic_write` of this file would raise later."""
    with contextlib.suppress(_EnoughError), writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with replacing(path):
            raise _EnoughError
