"""Images from a table of text, as Kaggle has MNIST: a row for each image, its label and then its 784 pixels."""

from __future__ import annotations

import contextlib
import gzip
import re
import warnings
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.idx import MAX_ELEMENTS, SIDE, Images
from mnist_cuda.data.places import Hashed, Member
from mnist_cuda.errors import DataError

ENDINGS = (".csv", ".tsv")
_PIXELS = SIDE * SIDE
_BLOCK = 1 << 18  # bytes that are read at once; few enough for the processor's cache
_LONGEST = 1 << 16  # bytes of a line: 785 cells of 80 characters
_MOST_BYTES = 4 * MAX_ELEMENTS  # of all lines
_LABELS = {"label", "labels", "class", "classes", "target", "y", "digit"}  # what the label's column may be called
# By name; of those that are equally frequent the first separates the cells.
_SEPARATORS = {b";": "semicolons", b"\t": "tabs", b",": "commas", b"|": "bars", b" ": "spaces"}
_LAYOUT = f"a label and {_PIXELS} pixels"


def read_csv(member: Member) -> tuple[Images, NDArray[Any] | None, str]:
    """Images (N,28,28) uint8, their labels (N,) as numbers or text, None where there are none, and the file's sha256.

    Cells are separated by commas, semicolons, tabs, bars or spaces, and may have quotes. A first line of names is
    skipped; the label is the first column, or where the names or its being no number say so the last. Raises DataError,
    with the line.
    """
    with member.open() as raw:
        hashed = Hashed(raw)
        stream: Any = hashed
        if member.file_name.lower().endswith(".gz"):
            stream = gzip.GzipFile(fileobj=hashed, mode="rb")  # type: ignore[call-overload]
        images, labels = _Table(member.shown).read(stream)
        return images, labels, hashed.hexdigest()


class _Table:
    """The table of one file. name: for messages."""

    def __init__(self, name: str) -> None:
        self.name, self.line = name, 1  # the number of the next line
        self.separator, self.label = b",", 0  # the label's column, -1 for none
        self.width = 0

    def read(self, stream: IO[bytes]) -> tuple[Images, NDArray[Any] | None]:
        """All of it."""
        images, labels = bytearray(), []  # which grows without a copy of all that it holds
        for block in self._blocks(stream):
            pixels, of_block = self._fast(block) or self._fast(self._plainer(block)) or self._slowly(block)
            self.line += block.count(b"\n")
            images += pixels.data
            if len(images) > MAX_ELEMENTS:
                raise self._fault(f"at most {MAX_ELEMENTS // _PIXELS} rows", "more")
            labels.append(of_block)
        if not images:
            raise DataError(f"{self.name}: expected rows of {_LAYOUT}, found {'none' if self.width else 'no line'}")
        found = np.frombuffer(images, np.uint8).reshape(-1, SIDE, SIDE)
        if self.label < 0:
            return found, None
        text = any(part.dtype.kind == "U" for part in labels if len(part))
        return found, np.concatenate([part.astype(str) for part in labels] if text else labels)

    def _fault(self, expected: str, found: str, line: int | None = None) -> DataError:
        return DataError(f"{self.name}: line {line or self.line}: expected {expected}, found {found}")

    def _blocks(self, stream: IO[bytes]) -> Iterator[bytes]:
        """Whole lines, each with its end; the first line is looked at, and left out where it holds names."""
        rest, total = b"", 0
        while True:
            data = stream.read(_BLOCK)
            total += len(data)
            if total > _MOST_BYTES:
                raise DataError(f"{self.name}: more than {_MOST_BYTES >> 20} MiB of text")
            if not total:
                return
            block = rest + data
            if b"\r" in block:
                block = block.replace(b"\r\n", b"\n")
                block = block if b"\n" in block else block.replace(b"\r", b"\n")
            if not data and not block.endswith(b"\n"):
                block += b"\n"
            whole = block.rfind(b"\n") + 1
            block, rest = block[:whole], block[whole:]
            if len(rest) > _LONGEST:
                self.line += block.count(b"\n")
                raise self._fault(f"a line of at most {_LONGEST} bytes", "a longer one")
            if block.strip() and not self.width:
                block = self._begin(block)
            if block and self.width:
                yield block
            if not data:
                return

    def _begin(self, block: bytes) -> bytes:
        """Find out the layout by the first line; returns what follows it, or all where it is a row."""
        if block.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self._fault("text in UTF-8", "a byte order mark of UTF-16: save it as UTF-8")
        block = block.removeprefix(b"\xef\xbb\xbf")
        if block.startswith((b"PK\x03\x04", b"\x1f\x8b", b"\x89PNG", b"SQLite", b"PAR1")) or b"\0" in block[:_LONGEST]:
            raise self._fault(f"text, rows of {_LAYOUT}", "another kind of file")
        empty = len(block) - len(block.lstrip(b"\n"))
        self.line += empty
        first, _, after = block[empty:].partition(b"\n")
        if first.lstrip()[:1] == b"<":
            raise self._fault(f"rows of {_LAYOUT}", "what looks like a web page")
        self.separator = max(_SEPARATORS, key=first.count)
        cells = self._cells(first.decode(errors="replace"))
        names = [cell.lower() for cell in cells]
        numbers = [_is_number(cell) for cell in cells]
        header = 2 * sum(numbers) < len(numbers) or any(map(_count_up, (names, names[1:], names[:-1])))
        self.width = len(cells)
        if self.width not in (_PIXELS, _PIXELS + 1):
            hint = "; leave the column of row numbers out" if names[0] in ("", "unnamed: 0", "id", "index") else ""
            hint = hint or "; leave the empty last column out" * (names[-1] == "")
            found = f"{self.width} cell{'s' * (self.width != 1)} separated by {_SEPARATORS[self.separator]}{hint}"
            raise self._fault(f"{_PIXELS + 1} cells, {_LAYOUT}", found)
        if self.width == _PIXELS:
            self.label = -1
        elif (header and names[0] not in _LABELS and names[-1] in _LABELS) or (not header and not numbers[-1]):
            self.label = _PIXELS
        if header:
            self.line += 1
            return after
        return block[empty:]

    def _cells(self, line: str) -> list[str]:
        line = line.replace(",", ".") if self.separator == b";" else line  # 1,5 is 1.5 where cells end in semicolons
        return [cell.strip().strip('"').strip() for cell in line.split(self.separator.decode())]

    def _fast(self, block: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]] | None:
        """The pixels (N,784) and the labels (N,) of lines that hold nothing but numbers of one to three digits."""
        data = np.frombuffer(block, np.uint8)
        digits = data - np.uint8(ord("0"))  # wraps around, so that every other character is above 9
        ends = np.flatnonzero(digits > 9)
        if len(ends) % self.width:
            return None
        lengths = np.diff(ends, prepend=-1) - 1
        marks = data[ends].reshape(-1, self.width)
        if lengths.min() < 1 or lengths.max() > 3:  # an empty cell, or one of too many digits
            return None
        if (marks[:, -1] != ord("\n")).any() or (marks[:, :-1] != self.separator[0]).any():
            return None
        values = digits[ends - 1].astype(np.uint16)
        for place, factor in ((2, 10), (3, 100)):
            longer = np.flatnonzero(lengths >= place)
            values[longer] += np.uint16(factor) * digits[ends[longer] - place]
        if values.max() > 255:
            return None
        rows = values.astype(np.uint8).reshape(-1, self.width)
        if self.label < 0:
            return rows, np.empty(0, np.uint8)
        pixels = rows[:, 1:] if self.label == 0 else rows[:, :-1]
        return np.ascontiguousarray(pixels), rows[:, self.label].copy()

    def _plainer(self, block: bytes) -> bytes:
        """The same lines with 7 for 7.0 and "7", if all cells are written so."""
        for end in (self.separator, b"\n"):
            block = block.replace(b'"' + end + b'"', end).replace(b".0" + end, end)
        return block.removeprefix(b'"').replace(b'"\n', b"\n")

    def _slowly(self, block: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """The same of any lines, with the first fault by its line."""
        pixels, labels = [], []
        for number, line in enumerate(block[:-1].split(b"\n"), start=self.line):
            if not line.strip():
                continue
            try:
                text = line.decode()
            except UnicodeDecodeError:
                raise self._fault("text in UTF-8", "other bytes", number) from None
            label, values = self._numbers(text) or self._cell_by_cell(text, number)
            labels.append(label)
            pixels.append(self._whole(values, number))
        if not pixels:
            return np.empty((0, _PIXELS), np.uint8), np.empty(0, np.uint8)
        return np.stack(pixels), np.array([] if self.label < 0 else labels, str)

    def _numbers(self, line: str) -> tuple[str, NDArray[np.float64]] | None:
        """The label and the pixels of a line; None where NumPy's parser does not take it for what was expected."""
        separator, label = self.separator.decode(), ""
        line = line.replace('"', "").replace(",", ".") if separator == ";" else line.replace('"', "")
        if line.count(separator) != self.width - 1:
            return None
        if self.label == 0:
            label, _, line = line.partition(separator)
        elif self.label > 0:
            line, _, label = line.rpartition(separator)
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")  # where it stops at what is no number
            values = np.fromstring(line, sep=separator)
            return (label.strip(), values) if len(values) == _PIXELS else None
        return None

    def _cell_by_cell(self, line: str, number: int) -> tuple[str, NDArray[np.float64]]:
        """The same of any line, with its first fault."""
        cells = self._cells(line)
        if len(cells) != self.width:
            raise self._fault(f"{self.width} cells, as in the first line", str(len(cells)), number)
        label = "" if self.label < 0 else cells.pop(self.label)
        for k, cell in enumerate(cells):
            if not _is_number(cell):
                found = f"'{cell:.20}'" if cell else "an empty cell"
                raise self._fault("numbers", f"{found} as pixel {k}", number)
        return label, np.array([float(cell) for cell in cells])

    def _whole(self, values: NDArray[np.float64], number: int) -> NDArray[np.uint8]:
        """Pixels of numbers that are whole ones from 0 to 255."""
        wrong = np.flatnonzero(~((values >= 0) & (values <= 255) & (np.floor(values) == values)))
        if wrong.size:
            value = values[wrong[0]]
            hint = "; give the pixels as they were before they were normalised" if values.min() < 0 else ""
            hint = "; multiply pixels from 0 to 1 by 255" if values.min() >= 0 and values.max() <= 1 else hint
            raise self._fault("pixels that are whole numbers from 0 to 255", f"{value:g}{hint}", number)
        return values.astype(np.uint8)


def _count_up(names: list[str]) -> bool:
    """Whether columns are called by their numbers, from 0 or 1 on."""
    return len(names) > 2 and names in ([str(k + first) for k in range(len(names))] for first in (0, 1))


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf|-inf", cell.lower()) is not None
