"""Fetch a data set's files into the per-user cache: mirrors in order, limits on time and size, every byte checked."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mnist_cuda.data.catalogue import DataFile, DatasetInfo, cache_folder, without_password
from mnist_cuda.data.idx import unzipped_sha256
from mnist_cuda.errors import DataError, UsageError
from mnist_cuda.files import make_folder, read_regular, remove_parts, replacing, take_lock

if TYPE_CHECKING:
    import requests

_BLOCK = 1 << 14


@dataclass(frozen=True)
class Timeouts:
    """Limits on one request, in seconds.

    connect: until the answer's header is there, name look-up included. stall: from one block of 16 KiB to the next,
    which also ends a connection that drips. total: for the whole file.
    """

    connect: float = 10
    stall: float = 20
    total: float = 900


class _MirrorError(Exception):
    """Why one mirror cannot serve a file; the next one may."""


def cache_fault(info: DatasetInfo, file: DataFile) -> str | None:
    """What is wrong with a file in the cache, None if it is there and is the published one."""
    try:
        content = read_regular(cache_folder(info) / file.name)
    except FileNotFoundError:
        return "is not in the cache"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    sha256 = hashlib.sha256(content).hexdigest()
    if not is_published(file, content, sha256):
        what = "is another than the published file" if unzipped_sha256(content) else "is damaged"
        return f"{what} ({len(content)} bytes with sha256 {sha256}, expected {file.size} with {file.sha256})"
    return None


def is_published(file: DataFile, content: bytes, sha256: str) -> bool:
    """Whether a gzip file with this content and sha256 is the published one, or the same compressed anew."""
    return sha256 == file.sha256 or (file.raw_sha256 is not None and unzipped_sha256(content) == file.raw_sha256)


def fetch(
    info: DatasetInfo, *, offline: bool = False, mirror: str | None = None, timeouts: Timeouts | None = None
) -> Path:
    """The cache folder with all files of the data set; what is missing or damaged there is fetched first.

    mirror: base URL to fetch from instead of the catalogue's, by default $MNIST_CUDA_MIRROR; the file names are
    appended. Raises DataError if a file can neither be found nor fetched, UsageError for a mirror that is no URL.
    """
    folder = cache_folder(info)
    _remove_leftovers(folder)
    mirrors = _mirrors(info, mirror)
    faults = {file: fault for file in info.files if (fault := cache_fault(info, file))}
    if offline and faults:
        file, fault = next(iter(faults.items()))
        raise DataError(
            f"{folder / file.name} {fault}, and offline nothing is fetched; "
            f"run 'mnist-cuda data fetch {info.name}' with a network, or name a folder that has the files by --data-dir"
        )
    if faults:
        with _progress(info.name, sum(file.size for file in faults)) as advance:
            for file in faults:
                _fetch_file(file, folder, mirrors, timeouts or Timeouts(), advance)
    return folder


def _mirrors(info: DatasetInfo, mirror: str | None) -> tuple[str, ...]:
    mirror = mirror or os.environ.get("MNIST_CUDA_MIRROR")
    if not mirror:
        return info.mirrors
    import requests

    try:
        url = urlsplit(mirror)
        sound = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        labels = (url.hostname or "").removesuffix(".").split(".")
        sound = (
            sound
            and all(0 < len(label) < 64 for label in labels)
            and mirror.isprintable()
            and not set(mirror) & set(' <>"{}|\\^`')
        )
        requests.models.PreparedRequest().prepare_url(mirror, None)
    except ValueError:  # brackets of an IPv6 address that do not match, a port that is no number, a name of no host
        sound = False
    if not sound:
        shown = without_password(mirror)
        raise UsageError(f"mirror '{shown}' is no http or https URL, expected one like {info.mirrors[0]}")
    return (mirror.rstrip("/") + "/",)


def _fetch_file(
    file: DataFile, folder: Path, mirrors: tuple[str, ...], timeouts: Timeouts, advance: Callable[[int], None]
) -> None:
    """Put one file into the cache from the first mirror that has it."""
    reasons = []
    for mirror in mirrors:
        try:
            _fetch_from(mirror + file.name, file, folder, timeouts, advance)
            return
        except _MirrorError as error:
            host = urlsplit(mirror).netloc.rpartition("@")[2]  # without a password
            reason = "".join(filter(str.isprintable, str(error)))  # servers choose the words
            reasons.append(f"{host}: {without_password(reason)}")
        except OSError as error:
            raise DataError(
                f"{folder / file.name} cannot be written: {error.strerror}; "
                f"free {file.size / 1e6:.1f} MB there or set MNIST_CUDA_CACHE to another folder"
            ) from error
    raise DataError(
        f"{file.name} cannot be fetched ({'; '.join(reasons)}); "
        f"name another mirror by --mirror, or put the data set's files into {folder} or a folder of --data-dir"
    )


def _remove_leftovers(folder: Path) -> None:
    """Remove the parts that interrupted fetches left behind, unless another process is at work there."""
    with contextlib.suppress(OSError):  # a folder that cannot be read is told of with the first file
        number, locked = take_lock(folder)
        if locked:
            remove_parts(folder)
        os.close(number)


def _fetch_from(url: str, file: DataFile, folder: Path, timeouts: Timeouts, advance: Callable[[int], None]) -> None:
    """Fetch a file; only one that is complete, checked and synced gets its name in the cache."""
    make_folder(folder)
    sha256 = hashlib.sha256()
    size = 0
    lock = take_lock(folder, fcntl.LOCK_SH)[0]  # with others who fetch: nobody takes the part for a leftover
    try:
        with replacing(folder / file.name) as out:
            with contextlib.closing(_blocks(url, file.size, timeouts)) as blocks:
                for block in blocks:
                    size += len(block)
                    if size > file.size:
                        raise _MirrorError(f"more than the expected {file.size} bytes")
                    sha256.update(block)
                    out.write(block)
                    advance(len(block))
            if size < file.size:
                raise _MirrorError(f"closed after {size} of {file.size} bytes")
            if sha256.hexdigest() != file.sha256:
                raise _MirrorError(f"wrong content, sha256 {sha256.hexdigest()}, expected {file.sha256}")
    except _MirrorError:
        advance(-size)
        raise
    finally:
        os.close(lock)


def _blocks(url: str, size: int, timeouts: Timeouts) -> Generator[bytes, None, None]:
    """The body at `url`, in blocks. Raises _MirrorError.

    The request runs in a thread of its own, which puts into a queue an empty block after the header, then the body's,
    then None or what went wrong: nothing else bounds the time that a name look-up takes, or a header or block that
    arrives byte by byte. A thread that hangs in one is left behind.
    """
    import requests  # here, so that the limits do not run while it is imported

    queue: SimpleQueue[bytes | _MirrorError | None] = SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        try:
            # Some servers label .gz files as encoded; they are wanted as they are.
            headers = {"Accept-Encoding": "identity"}
            # These only end a thread that nobody waits for any more; the queue's limits come first.
            limits = (2 * timeouts.connect, 2 * timeouts.stall)
            with requests.get(url, headers=headers, stream=True, timeout=limits) as answer:
                _check_header(answer, size)
                queue.put(b"")
                for block in answer.raw.stream(_BLOCK, decode_content=False):
                    if stop.is_set():
                        return
                    queue.put(block)
            queue.put(None)
        except _MirrorError as error:
            queue.put(error)
        except Exception as error:
            queue.put(_MirrorError(_root_cause(error)))

    threading.Thread(target=run, name="fetch", daemon=True).start()
    end = time.monotonic() + timeouts.total
    limit, what = timeouts.connect, "no answer"
    try:
        while True:
            left = end - time.monotonic()
            try:
                item = queue.get(timeout=max(0, min(limit, left)))
            except Empty:
                if left < limit:
                    raise _MirrorError(f"not complete within {timeouts.total:g} s") from None
                raise _MirrorError(f"{what} within {limit:g} s") from None
            if item is None:
                return
            if isinstance(item, _MirrorError):
                raise item
            limit, what = timeouts.stall, f"stalled: less than {_BLOCK >> 10} KiB"
            yield item
    finally:
        stop.set()


def _check_header(answer: requests.Response, size: int) -> None:
    if answer.status_code != 200:
        raise _MirrorError(f"HTTP {answer.status_code} {answer.reason}")
    announced = answer.headers.get("Content-Length", str(size))
    if announced != str(size):
        raise _MirrorError(
            f"{announced} bytes of {answer.headers.get('Content-Type', 'unknown type')}, expected {size}"
        )


def _root_cause(error: BaseException) -> str:
    """The innermost reason in a few words; what requests and urllib3 wrap around it says less in more."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextlib.contextmanager
def _progress(name: str, size: int) -> Iterator[Callable[[int], None]]:
    """A progress bar of `size` bytes on stderr, if that is a terminal; gives the function that advances it."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from mnist_cuda.terminal.console import make_console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"fetching {name}", total=size)
        yield lambda size: bar.advance(task, size)
