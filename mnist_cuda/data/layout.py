"""Which shapes in a picture are digits, in which rows they stand, and what else is there, such as a point or a frame.

All lengths are in pixels of the picture, and all rules in shares of the digits' height. They were tried on
the sheets of tests/test_rows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_LOW = 0.4  # of the highest digit's height: what is lower is a stroke of a digit, or a sign
_OVERLAP = 0.4  # of the narrower one's columns: with more, two shapes are one above the other, or strokes of one digit
_BESIDE = 0.25  # of the lower one's rows: with more, two digits stand in one row
_FAR = 4.0  # of the height: what is further apart is not in one row
FRAMED = 0.8  # of each side of its box that a frame covers
_THIN = 0.1  # of the picture's shorter side: what is wider at its border is a table
_DIRT = 0.3  # of the square of a stroke's width: what has less ink is dirt
_NAMED = 3  # remarks at most on what lies beside a digit


@dataclass(frozen=True)
class Shape:
    """A connected shape, or several that are one digit.

    numbers: of the shapes. box: left, top, right, bottom, the last two exclusive. ink: of all pixels, where a full one
    has 1. framed: whether it covers each side of its box. stacked: whether it may be two digits, one above the other.
    """

    numbers: frozenset[int]
    box: tuple[int, int, int, int]
    ink: float
    framed: bool = False
    stacked: bool = False

    @property
    def left(self) -> int:
        return self.box[0]

    @property
    def top(self) -> int:
        return self.box[1]

    @property
    def right(self) -> int:
        return self.box[2]

    @property
    def bottom(self) -> int:
        return self.box[3]

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def middle(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def joined(self, other: Shape) -> Shape:
        left, top, right, bottom = self.box
        also = other.box
        box = (min(left, also[0]), min(top, also[1]), max(right, also[2]), max(bottom, also[3]))
        high = box[3] - box[1] > 1.6 * (box[2] - box[0]) and min(self.height, other.height) > 0.3 * (box[3] - box[1])
        stacked = self.stacked or other.stacked or (high and self.rows_with(other) < 0)
        return Shape(self.numbers | other.numbers, box, self.ink + other.ink, stacked=stacked)

    def columns_with(self, other: Shape) -> float:
        """The columns that both have, as a share of the narrower one's; negative where there is a gap."""
        return (min(self.right, other.right) - max(self.left, other.left)) / min(self.width, other.width)

    def rows_with(self, other: Shape) -> float:
        """The rows that both have, as a share of the lower one's; negative where there is a gap."""
        return (min(self.bottom, other.bottom) - max(self.top, other.top)) / min(self.height, other.height)

    def around(self, other: Shape) -> bool:
        return (
            self.left < other.left and self.top < other.top and self.right > other.right and self.bottom > other.bottom
        )


@dataclass(frozen=True)
class Placed:
    """A digit's place: its row, counted from 0, and what lies beside it that is not read, a clause or nothing."""

    shape: Shape
    row: int
    beside: str


def arrange(shapes: list[Shape], stroke: float, border: Sequence[Shape] = (), size: float = 0) -> list[Placed]:
    """The digits of a picture in the order in which they are read.

    stroke: the width of their strokes. border: the shapes at the picture's border, size: its shorter side.
    """
    shapes = [shape for shape in shapes if shape.ink >= _DIRT * stroke**2]
    frames = [shape for shape in shapes if shape.framed and _holds_something(shape, shapes)]
    shapes = [shape for shape in shapes if shape not in frames]
    if not shapes:
        return []
    height = _height(shapes)
    lines = [shape for shape in shapes if _is_line(shape, height)]
    shapes = [shape for shape in shapes if shape not in lines]
    highest = max(shape.height for shape in shapes)
    digits = [shape for shape in shapes if shape.height >= _LOW * min(highest, 1.5 * height)]
    marks = [shape for shape in shapes if shape not in digits]
    digits = _with_pieces(digits, height)
    strokes = [mark for mark in marks if (owner := _owner(mark, digits, height)) is not None]
    for mark in strokes:
        owner = _owner(mark, digits, height)
        if owner is not None:
            digits[digits.index(owner)] = owner.joined(mark)
    marks = [mark for mark in marks if mark not in strokes]
    rows = _rows(digits)
    beside: dict[frozenset[int], list[str]] = {}
    first = rows[0][0]
    for frame in frames:
        inside = [digit for row in rows for digit in row if frame.around(digit)]
        beside.setdefault((inside or [first])[0].numbers, []).append("a frame around it")
    for mark in [*lines, *marks]:
        nearest = min(digits, key=lambda digit: _distance(digit, mark))
        what = "a line" if mark in lines else _sign(mark, nearest)
        beside.setdefault(nearest.numbers, []).append(f"{what} {_where(mark, nearest)}")
    for shape in border:
        if what := _at_border(shape, height, size):
            nearest = min(digits, key=lambda digit: _distance(digit, shape))
            beside.setdefault(nearest.numbers, []).append(f"{what} at the picture's border")
    return [
        Placed(digit, k, _clause(beside.get(digit.numbers, []), digit)) for k, row in enumerate(rows) for digit in row
    ]


def _holds_something(frame: Shape, shapes: list[Shape]) -> bool:
    inside = [shape for shape in shapes if frame.around(shape)]
    ink, highest = sum(shape.ink for shape in inside), max((shape.height for shape in inside), default=0)
    return ink > 0.03 * frame.ink and (highest > 0.25 * frame.height or len(inside) > 2)


def _height(shapes: list[Shape]) -> float:
    """The height of most digits: of those that are no lines, the median of the higher ones."""
    upright = [shape.height for shape in shapes if shape.width <= 3 * shape.height] or [s.height for s in shapes]
    return float(np.median([height for height in upright if height >= _LOW * max(upright)]))


def _is_line(shape: Shape, height: float) -> bool:
    """A rule of the paper, an underline, a fraction's bar, a margin."""
    across = shape.width > max(1.5 * height, 4 * shape.height) and shape.height < 0.5 * height
    return across or (shape.height > 2 * height and shape.height > 6 * shape.width)


def _with_pieces(digits: list[Shape], height: float) -> list[Shape]:
    """The digits, of those that come in pieces one for all pieces."""
    digits = sorted(digits, key=lambda shape: shape.left)
    k = 0
    while k < len(digits):
        for other in digits[k + 1 :]:
            if _is_one(digits[k], other, digits, height):
                digits[k] = digits[k].joined(other)
                digits.remove(other)
                break
        else:
            k += 1
    return digits


def _is_one(one: Shape, other: Shape, digits: list[Shape], height: float) -> bool:
    """Whether two shapes are strokes of one digit."""
    if one.columns_with(other) <= _OVERLAP:
        return False
    both = one.joined(other)
    if one.rows_with(other) > 0.25:
        return both.height < 1.6 * height
    if both.height > 3 * height:
        return False
    others = [digit.height for digit in digits if digit is not one and digit is not other]
    if others:
        return both.height <= 1.3 * max(others)
    if both.height <= 1.6 * both.width:  # two digits, one above the other, are higher
        return True
    gap = -one.rows_with(other) * min(one.height, other.height)
    slim = (one.height + other.height) / (one.width + other.width)
    ratio = both.height / both.width
    broken = 0.35 if slim > 2.5 else 0.28 if ratio < 1.9 else 0.15
    return gap < broken * (one.height + other.height) / 2


def _owner(mark: Shape, digits: list[Shape], height: float) -> Shape | None:
    """The digit of which a low shape is a stroke, such as the bar of a 5; None for a sign."""
    owners = [
        digit
        for digit in digits
        if (digit.columns_with(mark) > _OVERLAP or _is_bar(mark, digit, height))
        and digit.rows_with(mark) * min(mark.height, digit.height) > -0.25 * height
        and digit.joined(mark).height <= 1.5 * height
    ]
    if mark.width > 2.5 * mark.height and _is_between(mark, digits, height):
        return None
    return min(owners, key=lambda digit: _distance(digit, mark), default=None)


def _is_between(mark: Shape, digits: list[Shape], height: float) -> bool:
    """Whether it is the bar of a fraction: as far below a digit as above another."""
    gaps = [height, height]
    for digit in digits:
        if digit.columns_with(mark) > _OVERLAP:
            below = digit.middle[1] > mark.middle[1]
            gap = digit.top - mark.middle[1] if below else mark.middle[1] - digit.bottom
            gaps[below] = min(gaps[below], gap)
    return max(gaps) < 0.6 * height and min(gaps) > 0.4 * max(gaps)


def _is_bar(mark: Shape, digit: Shape, height: float) -> bool:
    """Whether it is the bar of a 5 that begins where the rest of it ends."""
    high_up = mark.middle[1] < digit.top + 0.3 * height
    return mark.width > 1.5 * mark.height and high_up and _distance(digit, mark) < 0.3 * height


def _rows(digits: list[Shape]) -> list[list[Shape]]:
    """The digits row by row: each is followed by the nearest at its right that is as high up."""
    row_of = {digit.numbers: {digit.numbers} for digit in digits}
    for digit in digits:
        right = [
            other
            for other in digits
            if other.middle[0] > digit.middle[0]
            and other.rows_with(digit) > _BESIDE
            and other.left - digit.right < _FAR * max(digit.height, other.height)
        ]
        if right:
            next_one = min(right, key=lambda other: _distance(digit, other))
            merged = row_of[digit.numbers] | row_of[next_one.numbers]
            for numbers in merged:
                row_of[numbers] = merged
    by_numbers = {digit.numbers: digit for digit in digits}
    rows = {frozenset(row): [by_numbers[numbers] for numbers in row] for row in row_of.values()}
    ordered = sorted(rows.values(), key=lambda row: float(np.mean([digit.middle[1] for digit in row])))
    return [sorted(row, key=lambda digit: (digit.left, digit.top)) for row in ordered]


def _distance(one: Shape, other: Shape) -> float:
    across = max(one.left, other.left) - min(one.right, other.right)
    down = max(one.top, other.top) - min(one.bottom, other.bottom)
    return float(np.hypot(max(across, 0), max(down, 0)) + 1e-3 * abs(one.middle[0] - other.middle[0]))


def _at_border(shape: Shape, height: float, size: float) -> str:
    """What a shape at the border is; nothing for what lies around the paper, or its shadow."""
    if 0.5 * height < shape.height < 1.5 * height and 0.1 * height < shape.width < 1.5 * height:
        return "ink"
    across, down = shape.width > 0.6 * size, shape.height > 0.6 * size
    thin = shape.ink < _THIN * size * (shape.width + shape.height)
    return ("a frame" if across and down else "a line") if thin and (across or down) else ""


def _sign(mark: Shape, digit: Shape) -> str:
    """What a low shape beside a digit may be."""
    height = digit.height
    level = (mark.middle[1] - digit.top) / height
    if mark.width >= 2 * mark.height and mark.width >= 0.2 * height:
        return "a stroke like a minus sign" if 0.2 < level < 0.8 else "a short line"
    if max(mark.width, mark.height) <= 0.35 * height:
        return "a point or comma" if level > 0.6 else "a spot"
    return "a mark"


def _where(mark: Shape, digit: Shape) -> str:
    if mark.columns_with(digit) > 0:
        return "above it" if mark.middle[1] < digit.middle[1] else "below it"
    return "on its left" if mark.middle[0] < digit.middle[0] else "on its right"


def _clause(remarks: list[str], digit: Shape) -> str:
    clauses = ["two shapes, one above the other, are read as one"] if digit.stacked else []
    if remarks:
        more = f" and {len(remarks) - _NAMED} more" if len(remarks) > _NAMED else ""
        clauses.append(f"{', '.join(remarks[:_NAMED])}{more} {'is' if len(remarks) == 1 else 'are'} left out")
    return "; ".join(clauses)
