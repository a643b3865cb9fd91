"""A strict parser of idx files, plain or gzip: what is not exactly an MNIST file is an error that says where and why.

The format: two zero bytes, the element type (8 is unsigned byte), the number of dimensions, each dimension as a
big-endian 32-bit integer, then the elements, the last dimension running fastest.
"""

from __future__ import annotations

import hashlib
import math
import zlib

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.uint8]

SIDE = 28
CLASSES = 10
# The most elements a file may announce, five times MNIST's training images; it bounds what a gzip bomb unpacks to.
MAX_ELEMENTS = 256 << 20

_GZIP = b"\x1f\x8b"
_UINT8 = 8
_QMNIST = bytes((0, 0, 12, 2))  # 32-bit integers in two dimensions
_COLUMNS = 8
_BLOCK = 1 << 16


def parse_images(content: bytes, name: str) -> Images:
    """Images (N,28,28) uint8, N >= 1, from the bytes of an idx3 file; read-only.

    name: for messages; the bytes are gzip if it ends in .gz. Raises DataError.
    """
    return _parse(content, name, (SIDE, SIDE))


def parse_labels(content: bytes, name: str) -> Labels:
    """Labels (N,) uint8 below 10, N >= 1, from the bytes of an idx1 file; otherwise as `parse_images`.

    Of QMNIST's idx2 file, eight big-endian 32-bit integers for each image, it is the first.
    """
    if _unpack(content, name, 4) == _QMNIST:
        return _first_column(content, name)
    labels = _parse(content, name, ())
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        first = int(wrong[0])
        raise _idx_error(name, 8 + first, f"a label below {CLASSES}", f"{labels[first]} ({wrong.size} such labels)")
    return labels


def _first_column(content: bytes, name: str) -> Labels:
    """The labels of QMNIST's file, checked as those of the other form."""
    header = _unpack(content, name, 12)
    count, columns = (int.from_bytes(header[i : i + 4], "big") for i in (4, 8))
    if len(header) < 12 or not count or columns != _COLUMNS or count * columns > MAX_ELEMENTS:
        raise _idx_error(name, 4, f"the header of QMNIST's labels, N x {_COLUMNS}", header[4:].hex(" ") or "nothing")
    size = 12 + 4 * count * columns
    data = _unpack(content, name, size + 1)
    if len(data) != size:
        raise _idx_error(name, min(len(data), size), f"{size} bytes for {count} x {columns} integers", "another size")
    labels = np.frombuffer(data, ">i4", offset=12).reshape(count, columns)[:, 0]
    wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if wrong.size:
        where = 12 + 4 * columns * int(wrong[0])
        raise _idx_error(name, where, f"a label below {CLASSES}", f"{labels[wrong[0]]} ({wrong.size} such labels)")
    return labels.astype(np.uint8)


def unzipped_sha256(content: bytes) -> str | None:
    """sha256 of what gzip data hold; None if they are not sound, or hold more than a file may announce."""
    limit = MAX_ELEMENTS + 16
    try:
        data = _unpack(content, ".gz", limit)
    except DataError:
        return None
    return hashlib.sha256(data).hexdigest() if len(data) < limit else None


def check_pair(images: Images, images_name: str, labels: Labels, labels_name: str) -> None:
    """Raise DataError unless there is one label for each image."""
    if len(images) != len(labels):
        raise _idx_error(labels_name, 4, f"{len(images)} labels, as many as {images_name} has images", f"{len(labels)}")


def _parse(content: bytes, name: str, item: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array (N, *item) of an idx file."""
    header_size = 8 + 4 * len(item)
    header = _unpack(content, name, header_size)
    shape = _parse_header(header, name, item)
    text = " x ".join(map(str, shape))
    size = header_size + math.prod(shape)  # Python integers: the product cannot overflow
    if size - header_size > MAX_ELEMENTS:
        raise _idx_error(name, 4, f"at most {MAX_ELEMENTS} elements", f"{text} = {size - header_size}")
    # One byte more than announced shows a longer file; a bomb is unpacked no further.
    data = _unpack(content, name, size + 1)
    if len(data) < size:
        raise _idx_error(name, len(data), f"{size} bytes for {text} elements", "the end of the file")
    if len(data) > size:
        raise _idx_error(name, size, f"the end of the file after {text} elements", "more bytes")
    return np.frombuffer(data, np.uint8, offset=header_size).reshape(shape)


def _parse_header(header: bytes, name: str, item: tuple[int, ...]) -> tuple[int, ...]:
    expected = bytes((0, 0, _UINT8, 1 + len(item)))
    for offset, (want, got) in enumerate(zip(expected, header, strict=False)):
        if want != got:
            what = ("a zero byte", "a zero byte", "element type 08 (unsigned byte)", f"{want:02x} dimensions")[offset]
            raise _idx_error(name, offset, what, f"{got:02x}{_looks_like(header)}")
    if len(header) < 8 + 4 * len(item):
        raise _idx_error(name, len(header), f"a header of {8 + 4 * len(item)} bytes", "the end of the file")
    shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, len(header), 4))
    if shape[0] == 0:
        raise _idx_error(name, 4, "at least one element", "0")
    for axis, (want, got) in enumerate(zip(item, shape[1:], strict=True)):
        if want != got:
            raise _idx_error(name, 8 + 4 * axis, f"{'columns' if axis else 'rows'} = {want}", str(got))
    return shape


def _unpack(content: bytes, name: str, limit: int) -> bytes:
    """The uncompressed content, at most its first `limit` (> 0) bytes; the end of gzip data is checked if reached."""
    if not name.endswith(".gz"):
        return content[:limit]
    if content[:2] != _GZIP:
        raise DataError(
            f"{name}: offset 0: expected a gzip file (1f 8b), "
            f"found {content[:2].hex(' ') or 'an empty file'}{_looks_like(content)}"
        )
    stream = zlib.decompressobj(wbits=31)
    out = bytearray()
    for start in range(0, len(content), _BLOCK):
        end = min(start + _BLOCK, len(content))
        try:
            out += stream.decompress(content[start:end], limit - len(out))
        except zlib.error as error:
            raise DataError(f"{name}: offset {start} to {end}: expected sound gzip data, found {error}") from error
        if len(out) == limit:
            return bytes(out)
        if stream.eof:
            surplus = len(content) - end + len(stream.unused_data)
            if surplus:
                raise DataError(
                    f"{name}: offset {len(content) - surplus}: expected the end of the file after the gzip data, "
                    f"found {surplus} more bytes"
                )
            return bytes(out)
    raise DataError(f"{name}: offset {len(content)}: expected more gzip data, found the end of the file")


def _looks_like(content: bytes) -> str:
    """A remark on what a file that is not an idx file may be."""
    if content[:2] == _GZIP:
        return " (gzip data: does the name lack .gz?)"
    if content.lstrip()[:1] == b"<":
        return " (it looks like a web page)"
    return ""


def _idx_error(name: str, offset: int, expected: str, found: str) -> DataError:
    where = "unpacked offset" if name.endswith(".gz") else "offset"
    return DataError(f"{name}: {where} {offset}: expected {expected}, found {found}")
