"""Picture files as arrays, by Pillow (the extra `images`): any mode, turned as the camera was held."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.errors import DataError, UnavailableError

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow knows more formats. Some of them start other programs, and nobody has a digit in them.
FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "HEIF")
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jfif", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm"),
    *(".avif", ".heic", ".heif"),
)
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # brands in a file's first bytes
STDIN = Path("-")

_PIXELS = 100_000_000  # more is refused unread: a file of some bytes can claim any size
_BYTES = 1 << 28  # of standard input
_ENOUGH = 2048  # pixels: a larger JPEG is decoded to not less than this, which is faster


def require_pillow() -> None:
    """Raise UnavailableError, with what to do, where Pillow is missing."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        remedy = f"run `{sys.executable} -m pip install pillow`"
        raise UnavailableError(f"pictures are read by Pillow, which is not installed ({error}): {remedy}") from error


def picture_files(folder: Path) -> list[Path]:
    """The picture files of a folder and the folders below it by name, hidden ones left out.

    Links to folders are not followed. Raises DataError where there are none, and for a folder that cannot be read.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    files = []
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names if not name.startswith(".") and name.lower().endswith(SUFFIXES)]
    if not files:
        found = sorted(entry.name for entry in folder.iterdir())
        holds = f"; it holds {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else "; it is empty"
        raise DataError(f"{folder}: no picture in this folder, expected files that end in {', '.join(SUFFIXES)}{holds}")
    return sorted(files)


def _array(image: Image) -> NDArray[Any]:
    """Pillow's image of any mode as `read_picture` returns it."""
    if image.mode in ("I", "F"):  # 32 bits a pixel, of no known range
        values = np.asarray(image, np.float64)
        if not np.isfinite(values).all():
            raise ValueError("not all of its values are finite")
        low, high = float(values.min()), float(values.max())
        return (values - low) / ((high - low) or 1)
    if image.mode in ("P", "PA") or ("transparency" in image.info and image.mode in ("1", "L", "RGB")):
        image = image.convert("RGBA")
    elif image.mode not in ("1", "L", "LA", "RGB", "RGBA") and not image.mode.startswith("I;16"):
        image = image.convert("RGB")
    return np.asarray(image)


def read_picture(path: str | Path, convert: Callable[[Image], NDArray[Any]] | None = None) -> NDArray[Any]:
    """The pixels of a picture file, `-` for standard input; of an animation its first frame.

    Returns (H,W) grey, (H,W,2) grey and alpha, (H,W,3) RGB or (H,W,4) RGB and alpha, uint8, or (H,W) bool, uint16 or
    floats from 0 to 1; or what `convert` makes of Pillow's image, which is turned as the camera was held.
    Raises DataError, a line, for whatever cannot be read; UnavailableError without Pillow.
    """
    require_pillow()
    path, convert = Path(path), convert or _array
    if path == STDIN:
        content = sys.stdin.buffer.read(_BYTES + 1)
        if len(content) > _BYTES:
            raise DataError(f"standard input: more than {_BYTES >> 20} MiB, expected one picture")
        return _decoded(BytesIO(content), "standard input", convert)
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a regular file; give a picture's content to `-`")
    try:
        with open(path, "rb") as file:
            return _decoded(file, str(path), convert)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decoded(file: BinaryIO, name: str, convert: Callable[[Image], NDArray[Any]]) -> NDArray[Any]:
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.init()
    with contextlib.suppress(ImportError):  # pictures of phones
        import pillow_heif  # type: ignore[import-not-found, unused-ignore]

        pillow_heif.register_heif_opener()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of size, which is checked here, and of odd headers
            with Image.open(file, formats=[f for f in FORMATS if f in Image.OPEN]) as image:
                if image.width * image.height > _PIXELS:
                    raise Image.DecompressionBombError
                image.draft(None, (_ENOUGH, _ENOUGH))
                return convert(ImageOps.exif_transpose(image))
    except MemoryError:
        raise
    except Image.DecompressionBombError:  # from Pillow, too, which has a limit of its own
        raise DataError(f"{name}: more than {_PIXELS} pixels, reduce it or cut the digit out") from None
    except UnidentifiedImageError:
        file.seek(0)
        start = file.read(12)
        if start[4:8] == b"ftyp" and start[8:] in _HEIC:
            remedy = f"run `{sys.executable} -m pip install pillow-heif`, or save it as PNG or JPEG"
            raise DataError(f"{name}: a HEIC picture, read by the package pillow-heif: {remedy}") from None
        raise DataError(f"{name}: not a picture, expected {', '.join(FORMATS)}") from None
    except Exception as error:  # whatever a decoder makes of a damaged file
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{name}: cannot be read as a picture: {reason}") from error
