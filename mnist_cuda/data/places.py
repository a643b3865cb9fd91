"""What `--data-dir` names, looked into: a folder, a zip archive, one file, or the files whose names begin alike."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from mnist_cuda.errors import DataError
from mnist_cuda.files import open_regular

MOST_BYTES = 1 << 30  # of a file, or of what one unpacks to
# What Python's modules raise for damaged gzip data and archives, but for OSError and zipfile's own error.
UNSOUND = (zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, struct.error)
_NAMED_AS_A_FILE = re.compile("images|labels|csv|tsv|npz")  # a folder that may hold a file of its own name
_NAMED = 8  # entries of a place that an error lists


@dataclass(frozen=True)
class Member:
    """A file in a place. parts: its path there. shown: its path for messages. opened: opens it, unpacked from a zip."""

    parts: tuple[str, ...]
    shown: str
    opened: Callable[[], IO[bytes]]

    @property
    def file_name(self) -> str:
        """Its name without folders."""
        return self.parts[-1]

    @property
    def ending(self) -> str:
        """The last ending in small letters, that of what a .gz holds: `.csv` of `TRAIN.CSV.gz`."""
        return Path(self.file_name.lower().removesuffix(".gz")).suffix

    @property
    def stem(self) -> str:
        """Its name without that ending."""
        return self.file_name[: len(self.file_name.lower().removesuffix(".gz")) - len(self.ending)]

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its content as a stream. Raises DataError for what goes wrong in this block with the file."""
        try:
            with self.opened() as stream:
                yield stream
        except OSError as error:
            if error.strerror:
                raise DataError(f"{self.shown}: cannot be read: {error.strerror}") from error
            raise DataError(f"{self.shown}: expected sound packed data, found {error}") from error
        except UNSOUND as error:
            raise DataError(f"{self.shown}: expected sound packed data, found {error or 'their end'}") from error

    def read(self) -> bytes:
        """Its content. Raises DataError, also for more than MOST_BYTES."""
        with self.open() as stream:
            return stream.read()


class Hashed:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._sha256 = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most so many."""
        data = self._stream.read(size)
        self._sha256.update(data)
        return data

    def hexdigest(self) -> str:
        """sha256 of the whole file, of which the rest is read now."""
        while self.read(1 << 20):
            pass
        return self._sha256.hexdigest()


@dataclass(frozen=True)
class Place:
    """Where data are. path: as it was named. members: the files. part: whether the last part of the path is not there,
    but only what the names of the members begin with. entries: names of what it holds, folders too.
    """

    path: Path
    members: tuple[Member, ...]
    part: bool
    entries: tuple[str, ...]

    @property
    def holding(self) -> str:
        """What it holds, for an error."""
        names = sorted(self.entries)[:_NAMED]
        shown = [name if name.isprintable() and " " not in name else repr(name) for name in names]
        more = len(self.entries) - len(shown)
        return f"it holds {', '.join(shown)}{f' and {more} more' if more else ''}" if shown else "it is empty"


def is_there(path: Path) -> bool:
    """Whether `place_of` finds something, without looking into it."""
    with contextlib.suppress(OSError):
        if path.exists():
            return True
        if path.parent.is_dir():
            return any(name.name.startswith(path.name) for name in path.parent.iterdir())
        return path.parent.is_file() and path.parent.suffix.lower() == ".zip"
    return False


def place_of(path: Path) -> Place:
    """Look into a path. Raises DataError where nothing is there, or it cannot be read."""
    try:
        if path.is_dir():
            return _folder(path, "")
        if path.exists():
            return _zip(path, "") if path.suffix.lower() == ".zip" else _file(path)
        if path.parent.is_dir():
            place = _folder(path.parent, path.name)
        elif path.parent.is_file() and path.parent.suffix.lower() == ".zip":
            place = _zip(path.parent, path.name)
        else:
            raise FileNotFoundError
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file or folder") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not place.members:
        raise DataError(f"{path}: there is no such file or folder")
    return Place(path, place.members, True, place.entries)


def _file(path: Path) -> Place:
    return Place(path, (_member(path, (path.name,)),), False, (path.name,))


def _member(path: Path, parts: tuple[str, ...]) -> Member:
    def opened() -> BinaryIO:
        return open_regular(path)

    return Member(parts, str(path), opened)


def _folder(path: Path, start: str) -> Place:
    """The files of a folder, and those one folder below that have their folder's name."""
    members, entries = [], []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith(".") or not entry.name.startswith(start):
            continue
        entries.append(entry.name + "/" * entry.is_dir())
        if not entry.is_dir():
            members.append(_member(entry, (entry.name,)))
            continue
        if not _NAMED_AS_A_FILE.search(entry.name.lower()):
            continue
        alike = "".join(filter(str.isalnum, entry.name)).lower()
        with contextlib.suppress(OSError):
            members += [
                _member(file, (entry.name, file.name))
                for file in sorted(entry.iterdir())
                if "".join(filter(str.isalnum, file.name)).lower() in (alike, alike + "gz") and not file.is_dir()
            ]
    return Place(path, tuple(members), False, tuple(entries))


def _zip(path: Path, start: str) -> Place:
    """The files of a zip archive, in any folder of it."""
    import lzma  # here, for the few who have one
    import zipfile

    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
        except (zipfile.BadZipFile, *UNSOUND) as error:
            raise DataError(f"{path}: expected a sound zip archive, found {error}") from error

    def member(name: str) -> Member:
        @contextlib.contextmanager
        def opened() -> Iterator[IO[bytes]]:
            try:
                with open_regular(path) as file, zipfile.ZipFile(file) as archive, archive.open(name) as inner:
                    size = archive.getinfo(name).file_size  # what is read is no more
                    if size > MOST_BYTES:
                        raise OSError(errno.EFBIG, f"it has {size} bytes, expected at most {MOST_BYTES}")
                    yield inner
            except (zipfile.BadZipFile, lzma.LZMAError) as error:
                raise EOFError(str(error)) from error

        return Member(tuple(name.split("/")), f"{path}/{name}", opened)  # type: ignore[arg-type]

    names = [
        name
        for name in names
        if not name.endswith("/")
        and not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
        and name.rpartition("/")[2].startswith(start)
    ]
    return Place(path, tuple(map(member, names)), False, tuple(names))
