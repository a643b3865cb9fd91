"""THE cache: below one root lie data sets, the compiled emulator, and whatever else is made or fetched once."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from mnist_cuda.errors import DataError


def root() -> Path:
    """$MNIST_CUDA_CACHE if that is set, else the user's cache folder. Raises DataError where there is neither."""
    named = os.environ.get("MNIST_CUDA_CACHE")
    if not named:
        import platformdirs

        try:
            named = platformdirs.user_cache_dir("mnist-cuda", appauthor=False)
        except RuntimeError:
            named = "~"
        if named.startswith("~"):  # what some versions give where there is no home
            raise DataError("there is no home folder for a cache: set HOME, or MNIST_CUDA_CACHE to a folder")
    return Path(named).absolute()


def writable(name: str) -> Path:
    """The folder `name` of the cache, made; where it cannot be written, one in a temporary folder, as a line says.

    Raises DataError where that cannot be made either.
    """
    try:
        return _made(root() / name)
    except DataError as error:
        why = str(error)
    except OSError as error:
        why = f"{root() / name} cannot be written ({error.strerror})"
    folder = _temporary()
    try:
        made = _made(folder / name)
    except OSError as error:
        raise DataError(
            f"{why}, and {folder / name} neither ({error.strerror}): set MNIST_CUDA_CACHE to a folder"
        ) from None
    _announce(f"{why}; what is kept goes to {made}, until MNIST_CUDA_CACHE names another folder")
    return made


def _made(folder: Path) -> Path:
    """Raises OSError where a file cannot be made in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def _temporary() -> Path:
    """The user's own in the system's temporary folder, the same for all processes unless somebody else has its name."""
    folder = Path(tempfile.gettempdir()) / f"mnist-cuda-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return folder
    return _of_this_process()


@cache
def _of_this_process() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="mnist-cuda-"))
    except OSError as error:
        raise DataError(f"no temporary folder can be made: {error.strerror}") from None


@cache  # once per process
def _announce(sentence: str) -> None:
    from mnist_cuda.terminal import console

    console.make_console(stderr=True).print(sentence)
