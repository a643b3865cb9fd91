"""Files that are replaced as a whole or not at all, and read without waiting for anybody."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mnist_cuda.errors import CheckpointError


def open_at_once(path: str, flags: int) -> int:
    """An `opener` for `open`: a pipe is opened at once, with a writer or without; other files as ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_regular(path: Path) -> bytes:
    """The content of a regular file; OSError for any other, which might never end."""
    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read()


def atomic_write(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, as `replacing` does."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` at the block's end; a crash at any moment leaves the old file or the new.

    Raises CheckpointError where the file cannot be written; what was there before stays.
    """
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot write it: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def make_folder(path: Path) -> list[Path]:
    """Make a folder, with those above it, that outlasts a crash of the machine; gives the new ones. Raises OSError."""
    made = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    path.mkdir(parents=True, exist_ok=True)
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


def require_writable(path: Path) -> None:
    """Raise now the CheckpointError that `atomic_write` of this file would raise later."""
    part = path.with_name(path.name + ".part")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with open(part, "wb"):
            pass
        part.unlink()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot write it: {error.strerror or error}") from error
