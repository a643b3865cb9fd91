"""From any picture of a digit to what MNIST's images are: bright on dark, in a box of 20 pixels, centred by mass.

LeCun, Cortes and Burges describe MNIST so: a scan is "size normalized to fit in a 20x20 pixel box while preserving
[its] aspect ratio", grey by "the anti-aliasing technique used by the normalization", and "centered in a 28x28 image by
computing the center of mass of the pixels, and translating the image so as to position this point at the center".
Before these steps the ink has to be told from the paper, whatever its colours, light and size; that is most of what is
here. MNIST's own images pass nearly unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.idx import SIDE, Images
from mnist_cuda.data.layout import FRAMED, Shape, arrange

Floats = NDArray[np.float32]
Box = tuple[int, int, int, int]

MNIST, SCALED = FORMS = ("mnist", "scaled")
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue, as in a JPEG
_BOX = 20  # pixels of the digit's longer side, of SIDE
_CENTRE = SIDE // 2  # the pixel whose middle the centre of mass is nearest to, in MNIST too

# These were tried on the pictures of tests/drawings.py.
_FEW = 6  # shapes: a picture with more is one of many digits
_MOST = 2000  # shapes that are read
_WORKING = 192  # pixels: pictures are averaged down to this before they are looked at
_PAPER = 0.65  # of a picture: what fills as much is its paper
_EVEN = 0.5 / 255  # of the range of values: what differs less is the same
_FITTED = 64  # rows and columns of pixels at most that the paper is fitted to
_BLURS = 4  # at most, where the paper's noise is large
_ZOOMS = 4  # looks at most, each closer than the one before
_CONTRAST = 0.03  # of the range of values: what differs less from the paper is none of the ink
_NOISE = 4.5  # standard deviations of the paper that ink is above
_FAINT = 0.06  # of full ink: what is less, such as a JPEG's ringing, is none
_SIZE = 0.1  # of a look's longer side: what is smaller does not outdo what lies at the border
_SHEET = 0.7  # of its box: what is filled as much may be paper
_TRACE = 0.003  # of the largest shape's ink: what has more may be a sign
_SPECK = 0.04  # of the largest shape's ink: what has less is dirt

_CLEAR = 64  # pixels: rows are looked at so closely that a digit is as high
_FINEST = 1024  # pixels that a picture of rows is averaged down to at least

# Strokes of MNIST's test images, in pixels (`_stroke`): one image in a hundred has thinner ones than _THIN; at most one
# in ten thousand has thicker ones than _THICK, longer ones than _LONG, or is wider than _WIDE times its height.
_THIN, _THICK, _LONG = 1.45, 6.5, 70.0
_WIDE = 2.0


@dataclass(frozen=True)
class Digit:
    """A digit in MNIST's form.

    pixels: (28,28) uint8, bright on dark; all 0 where nothing was found. box: left, top, right, bottom in the picture
    that it comes from, in pixels, the last two exclusive. dark: whether it was dark on light there. doubt: why it may
    not be a digit, a clause, or empty. beside: what lies beside it and is no part of it, such as a point or a frame, a
    clause, or empty. row: in which of the picture's rows it stands, the highest being 0.
    """

    pixels: Images
    box: Box
    dark: bool
    doubt: str
    beside: str = ""
    row: int = 0


def in_form(picture: NDArray[Any], form: str, *, several: bool = False) -> list[Digit]:
    """The 28x28 pixels of a picture in one of FORMS; for training on pictures and for reading them.

    `mnist` finds ink on paper of any colours, as `as_mnist` does, or `digits_of` where there may be several. `scaled`
    makes the picture grey, and smaller or larger. The rest is as for `as_mnist`.
    """
    if form == MNIST:
        return digits_of(picture) if several else [as_mnist(picture)]
    return [_scaled(_checked(picture))]


def _scaled(picture: NDArray[Any]) -> Digit:
    height, width, channels = picture.shape
    colours = _averaged(picture, max(1, min(height, width) // (8 * SIDE)))
    if channels in (2, 4):
        alpha = colours[..., -1:]
        colours = alpha * colours[..., :-1] + (1 - alpha) * _behind(colours[..., :-1], alpha[..., 0])
    grey = colours @ _LUMA if colours.shape[2] == 3 else colours[..., 0]
    if grey.shape != (SIDE, SIDE):
        grey = _weights(SIDE, grey.shape[0]) @ grey @ _weights(SIDE, grey.shape[1]).T
    pixels = np.rint(255 * np.clip(grey, 0, 1)).astype(np.uint8)
    return Digit(pixels, (0, 0, width, height), bool(np.median(pixels) > 127), "")


def as_mnist(picture: NDArray[Any]) -> Digit:
    """Find the one digit in a picture (`read_picture` has one of a file) and bring it into MNIST's form.

    picture: (H,W), or (H,W,C) with C = 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha; bool, unsigned integers over
    their whole range, or floats from 0 to 1. In more than 8 bits, the range ends at the power of two above the largest
    value. Raises ValueError for another shape or dtype, and for floats beyond that or NaN.
    """
    picture = _checked(picture)
    if ready := _as_it_is(picture):
        return ready
    found = _look(picture)
    if found is None:
        return _nothing(picture)
    digits = _digits(picture, found)
    if len(digits) == 1:
        return digits[0]
    return replace(_normalised(found), doubt="several shapes stand side by side or in rows, and one digit is expected")


def digits_of(picture: NDArray[Any]) -> list[Digit]:
    """The digits in a picture, as `as_mnist` gives one: row by row from the top, each from left to right.

    They are told apart where no stroke of one touches the next. Signs are left out, and named by the digit beside them.
    """
    picture = _checked(picture)
    if ready := _as_it_is(picture):
        return [ready]
    found = _look(picture)
    return [_nothing(picture)] if found is None else _digits(picture, found)


def _digits(picture: NDArray[Any], found: _Found) -> list[Digit]:
    """What `digits_of` gives, of the ink in a picture."""
    size = min(picture.shape[:2])
    if found.alone and not found.border:
        whole = _normalised(found)
        if not whole.doubt or found.step == 1:
            return [whole]
    shapes = found.shapes()[0]
    working = _FINEST
    if not found.alone and len(shapes) <= _FEW:
        working = round(_WORKING * _CLEAR * found.step / max(shape.height for shape in shapes))
    part = _with_margin(found.box, picture.shape[1], picture.shape[0], 0.05)
    closer = _find(picture, part, min(max(working, _WORKING), _FINEST), speck=0) or found
    shapes, numbers, stroke = closer.shapes()
    if len(shapes) > _MOST:
        return [replace(_normalised(found), doubt=f"there are {len(shapes)} shapes, more than are read")]
    return [
        replace(_normalised(closer.cut(place.shape, numbers)), beside=place.beside, row=place.row)
        for place in arrange(shapes, stroke, found.border or closer.border, size)
    ]


def _as_it_is(picture: NDArray[Any]) -> Digit | None:
    """The digit in an image that is in MNIST's form already, which stays as it is, or inverted; None of any other."""
    if picture.shape[:2] != (SIDE, SIDE) or picture.dtype != np.uint8 or picture.shape[2] not in (1, 3):
        return None
    grey = picture[..., 0]
    if (picture != picture[..., :1]).any():
        return None
    for dark, pixels in ((False, grey), (True, 255 - grey)):
        inked = pixels > 255 * _FAINT
        if not inked.any() or inked.mean() > 0.5 or pixels.max() < 200:
            continue
        rows, columns = (np.flatnonzero(inked.any(axis)) for axis in (1, 0))
        box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
        shares = (pixels.sum(axis) / pixels.sum(dtype=float) for axis in (0, 1))
        centred = all(abs(share @ np.arange(SIDE) - _CENTRE) <= 1 for share in shares)
        if centred and abs(max(box[2] - box[0], box[3] - box[1]) - _BOX) <= 1:
            return Digit(pixels.copy(), box, dark, "")
    return None


def _nothing(picture: NDArray[Any]) -> Digit:
    whole = (0, 0, picture.shape[1], picture.shape[0])
    return Digit(np.zeros((SIDE, SIDE), np.uint8), whole, True, "nothing is drawn there that stands out")


def _look(picture: NDArray[Any]) -> _Found | None:
    """The ink in a picture; None where there is none."""
    height, width = picture.shape[:2]
    found = _closest(picture, (0, 0, width, height))
    if found is not None and found.is_sheet():
        written = _closest(picture, _with_margin(found.box, width, height, -0.04))
        if written is not None and not written.at_border:
            found = written
    return found


def _closest(picture: NDArray[Any], part: Box) -> _Found | None:
    """The ink in a part of a picture, looked at again and again until it fills half of what is seen."""
    found = first = closer = _find(picture, part)
    for _ in range(_ZOOMS):
        if closer is None:
            break
        found = closer
        if found.step == 1 or 2 * max(found.ink.shape) > max(found.seen):
            break
        closer = _find(picture, _with_margin(found.box, picture.shape[1], picture.shape[0], 0.25))
    return replace(found, border=first.border) if found and first else found


def _checked(picture: NDArray[Any]) -> NDArray[Any]:
    picture = np.asarray(picture)
    if picture.ndim == 2:
        picture = picture[:, :, None]
    if picture.ndim != 3 or not 1 <= picture.shape[2] <= 4 or 0 in picture.shape:
        raise ValueError(f"picture has shape {picture.shape}, expected (H,W) or (H,W,C) with 1 to 4 channels")
    if picture.dtype.kind not in "buf":
        raise ValueError(f"picture has dtype {picture.dtype}, expected bool, unsigned integers or floats")
    if picture.dtype.kind == "f" and not (picture.min() >= 0 and picture.max() <= 1):  # NaN is not, either
        raise ValueError(f"picture has values from {picture.min()} to {picture.max()}, expected 0 to 1 in floats")
    if picture.dtype.kind == "u" and picture.dtype.itemsize > 1:  # a scanner's 10 or 12 bits, for one
        bits = max(8, int(picture.max()).bit_length())
        picture = picture << picture.dtype.type(8 * picture.dtype.itemsize - bits)
    return picture


@dataclass(frozen=True)
class _Found:
    """A look at a part of a picture, averaged over squares of `step` pixels.

    ink (h,w): how much of it is on each square of `box`, 1 where it is full; 0 outside the shapes that are kept.
    seen: rows and columns of squares looked at. box: of the ink, in the picture. at_border: whether the border of the
    part has ink. alone: whether it is one shape, and dirt. border: the shapes at the part's border, which are not kept.
    """

    ink: Floats
    seen: tuple[int, int]
    box: Box
    step: int
    dark: bool
    at_border: bool
    alone: bool
    border: tuple[Shape, ...]

    def shapes(self) -> tuple[list[Shape], NDArray[np.int64], float]:
        """The shapes, their numbers (h,w), 0 for none, and the width of their strokes in the picture."""
        inked = self.ink > _FAINT
        numbers = _shapes(_dilated(inked) if self.ink.shape[0] > 2 * _BOX else inked)
        numbers[~inked] = 0
        shapes = _measured(numbers, self.ink, self.box[:2], self.step)
        return shapes, numbers, self.step * _stroke(self.ink)[0]

    def cut(self, shape: Shape, numbers: NDArray[np.int64]) -> _Found:
        """The same without the ink of other shapes."""
        left, top = (corner - start for corner, start in zip(shape.box[:2], self.box[:2], strict=True))
        right, bottom = left + shape.width, top + shape.height
        part = tuple(slice(first // self.step, last // self.step) for first, last in ((top, bottom), (left, right)))
        ink = np.where(np.isin(numbers[part], list(shape.numbers)), self.ink[part], 0).astype(np.float32)
        return replace(self, ink=ink, box=shape.box)

    def is_sheet(self) -> bool:
        """Whether it may be no ink, but paper on something darker or brighter."""
        height, width = self.ink.shape
        return float(self.ink.mean()) > _SHEET and min(height, width) > 0.4 * max(height, width)


def _find(picture: NDArray[Any], part: Box, working: int = _WORKING, speck: float = _SPECK) -> _Found | None:
    """Tell ink from paper in a part of a picture; None where there is no ink.

    working: pixels to average it down to. speck: as _SPECK.
    """
    left, top, right, bottom = part
    step = -(-max(right - left, bottom - top) // working)
    if min(right - left, bottom - top) < max(step, 1):  # a strip, or nothing
        return None
    grey = _grey(_averaged(picture[top:bottom, left:right], step))
    difference, noise = _without_paper(grey)
    for _ in range(_BLURS):
        if 2 * _NOISE * noise <= float(np.percentile(np.abs(difference), 99.5)):
            break
        grey = blurred(grey)
        difference, noise = _without_paper(grey)
    threshold = max(_NOISE * noise, _CONTRAST, 0.25 * float(np.abs(difference).max()))
    sides = [_Side.of(ink, threshold) for ink in (-difference, difference)]
    inner = [side.without_border() for side in sides]
    if any(side.total for side in inner):
        sides = inner
    side = max(sides, key=lambda side: side.total)
    if not side.total:
        return None
    ink, largest = side.ink, side.weights.max()
    kept = ((side.weights > 0) & (side.weights >= speck * largest))[side.shapes]
    full = float(np.percentile(ink[kept & side.mask], 80))
    low = min(max(3 * noise, _FAINT * full), 0.3 * full)
    ink = np.where(kept, np.clip((ink - low) / (full - low), 0, 1), 0).astype(np.float32)
    rows, columns = (np.flatnonzero((ink > 0).any(axis)) for axis in (1, 0))
    first, last, start, end = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    box = (left + start * step, top + first * step, left + end * step, top + last * step)
    return _Found(
        ink[first:last, start:end],
        (grey.shape[0], grey.shape[1]),
        box,
        step,
        dark=side is sides[0],
        at_border=sides is not inner,
        alone=bool((side.weights >= _TRACE * largest).sum() == 1),
        border=tuple(_measured(side.at_border, side.ink / full, (left, top), step)) if sides is inner else (),
    )


def _measured(numbers: NDArray[np.int64], ink: Floats, corner: tuple[int, int], step: int) -> list[Shape]:
    """Shapes by the number (h,w) of each square, 0 for none. corner: where the squares begin in the picture."""
    rows, columns = np.nonzero(numbers)
    order = np.argsort(numbers[rows, columns], kind="stable")
    rows, columns = rows[order], columns[order]
    parts = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(numbers[rows, columns])) + 1)
    shapes = []
    for part in parts if len(rows) else ():
        y, x = rows[part], columns[part]
        top, bottom, left, right = int(y.min()), int(y.max()) + 1, int(x.min()), int(x.max()) + 1
        high, wide = 0.1 * (bottom - top), 0.1 * (right - left)
        across = [len(set(x[side].tolist())) / (right - left) for side in (y < top + high, y >= bottom - high)]
        down = [len(set(y[side].tolist())) / (bottom - top) for side in (x < left + wide, x >= right - wide)]
        box = (corner[0] + step * left, corner[1] + step * top, corner[0] + step * right, corner[1] + step * bottom)
        number = int(numbers[y[0], x[0]])
        shapes.append(Shape(frozenset([number]), box, step**2 * float(ink[y, x].sum()), min(across + down) >= FRAMED))
    return shapes


@dataclass(frozen=True)
class _Side:
    """What is darker than the paper, or what is brighter.

    ink (h,w): by how much. mask: where it counts. shapes: a number for each connected shape of the mask and around it,
    0 elsewhere. weights: by number, the ink of the shapes that are looked at, 0 for the others. at_border: the numbers
    of those at the border that are not looked at, 0 elsewhere.
    """

    ink: Floats
    mask: NDArray[np.bool_]
    shapes: NDArray[np.int64]
    weights: NDArray[np.float64]
    at_border: NDArray[np.int64]

    @classmethod
    def of(cls, ink: Floats, threshold: float) -> _Side:
        """All that is above the threshold."""
        mask = ink > threshold
        shapes = _shapes(_dilated(mask))
        weights = np.bincount(shapes.ravel(), np.where(mask, ink, 0).ravel()).astype(np.float64)
        weights[0] = 0
        return cls(ink, mask, shapes, weights, np.zeros_like(shapes))

    @property
    def total(self) -> float:
        """All ink."""
        return float(self.weights.sum())

    def without_border(self) -> _Side:
        """Without the shapes at the picture's border, such as the table around the paper.

        Nothing is left where no other shape has the size of a digit.
        """
        numbers, weights = np.where(self.mask, self.shapes, 0), self.weights.copy()
        touching = np.unique(np.concatenate([numbers[0], numbers[-1], numbers[:, 0], numbers[:, -1]]))
        weights[touching] = 0
        largest = (numbers == weights.argmax()) & (numbers > 0)
        if max(largest.any(0).sum(), largest.any(1).sum()) < _SIZE * max(self.mask.shape):
            weights[:] = 0
        return replace(self, weights=weights, at_border=np.where(np.isin(numbers, touching), numbers, 0))


def _averaged(picture: NDArray[Any], step: int) -> Floats:
    """Means (h,w,C) over squares of `step` pixels as fractions of the range; colours weighted by their alpha."""
    height, width, channels = picture.shape
    height, width = height // step, width // step
    scale = 1.0 if picture.dtype.kind in "bf" else 1 / float(np.iinfo(picture.dtype).max)
    means = np.empty((height, width, channels), np.float32)
    for row in range(height):
        band = picture[row * step : (row + 1) * step, : width * step].astype(np.float32) * np.float32(scale)
        squares = band.reshape(step, width, step, channels)
        if channels in (2, 4):
            alpha = squares[..., -1:]
            total = alpha.sum((0, 2))
            means[row, :, :-1] = (squares[..., :-1] * alpha).sum((0, 2)) / np.maximum(total, 1e-6)
            means[row, :, -1:] = total / step**2
        else:
            means[row] = squares.mean((0, 2))
    return means


def _grey(colours: Floats) -> Floats:
    """One value (h,w) a pixel: where it lies on the axis along which the colours differ most."""
    channels = colours.shape[2]
    if channels in (2, 4):
        colours, alpha = colours[..., :-1], colours[..., -1:]
        colours = alpha * colours + (1 - alpha) * _behind(colours, alpha[..., 0])
    if colours.shape[2] == 1:
        return colours[..., 0]
    centred = (colours - colours.mean((0, 1))).reshape(-1, 3).astype(np.float64)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    axis *= np.sign(axis.sum()) or 1  # brighter is more, so that dark ink is found to be dark
    grey: Floats = (centred @ axis / np.abs(axis).sum()).astype(np.float32)
    return grey.reshape(colours.shape[:2])


def _behind(colours: Floats, alpha: Floats) -> Floats:
    """What to put behind transparent pixels: the paper's colour where paper is opaque, the contrary of lone ink."""
    opaque = colours[alpha > 0.5]
    if not len(opaque):
        return np.zeros(colours.shape[2], np.float32)
    middle = np.median(opaque, axis=0).astype(np.float32)
    spread = np.percentile(opaque, 98, axis=0) - np.percentile(opaque, 2, axis=0)
    if spread.max() > 0.25:
        return middle
    return np.full_like(middle, 1.0 if middle.mean() < 0.5 else 0.0)


def _without_paper(grey: Floats) -> tuple[Floats, float]:
    """What is left of a picture (h,w) without its paper, and the paper's noise as a standard deviation.

    The paper is what most of the picture shows, or else most of its border. Its light may change over the picture: a
    polynomial of degree two is fitted to it, at first there, then to all pixels near the last fit, less and less far
    from it. Where half of the pixels are the same, as in a drawing, they are the paper.
    """
    height, width = grey.shape
    middle = np.median(grey)
    if (np.abs(grey - middle) < _EVEN).mean() > 0.5:
        return grey - middle, 0.0
    frame = max(1, round(0.04 * max(height, width)))
    border = np.ones((height, width), bool)
    border[frame:-frame, frame:-frame] = False
    y, x = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)[None]
    some = (slice(None, None, -(-height // _FITTED)), slice(None, None, -(-width // _FITTED)))
    at_border, values = border[some].ravel(), grey[some].ravel()
    terms = np.stack([t.ravel() for t in _terms(y[some[0]], x[:, some[1]])], axis=1)
    low, high = np.percentile(values, [0.5, 99.5])
    reach = max(0.3 * float(high - low), _CONTRAST)
    near = np.abs(values - np.median(values)) < reach
    if near.mean() < _PAPER:
        near = at_border & (np.abs(values - np.median(values[at_border])) < reach)
    if not near.any():  # two colours of equal parts: their median is neither
        near = at_border
    fit, noise = np.array([np.median(values[near])]), 0.0
    for count in (3, 3, 6, 6, 6, 6, 6, 6):
        if near.sum() < 4 * count:
            break
        chosen = terms[near, :count]
        fit = np.linalg.lstsq(chosen.T @ chosen, chosen.T @ values[near], rcond=None)[0]
        distance = np.abs(values - terms[:, :count] @ fit)
        noise = 1.4826 * float(np.median(distance[near]))
        near = distance < max(3 * noise, reach)
        reach *= 0.75
    paper = sum(factor * term for factor, term in zip(fit, _terms(y, x), strict=False))
    return (grey - paper).astype(np.float32), noise


def _terms(y: NDArray[np.float64], x: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The terms of a polynomial of degree two, first those of degree one, at rows y (h,1) and columns x (1,w)."""
    y, x = np.broadcast_arrays(y, x)
    return [np.ones_like(x), x, y, x * x, x * y, y * y]


def _dilated(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask with the eight neighbours of each of its pixels."""
    padded = np.pad(mask, 1)
    rows = padded[:-2] | padded[1:-1] | padded[2:]
    return rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]


def _shapes(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """A number from 1 for each connected shape of the mask, its neighbours at corners too; 0 elsewhere."""
    stride = mask.shape[1] + 2
    todo = set(np.flatnonzero(np.pad(mask, 1)).tolist())
    flat = np.zeros((mask.shape[0] + 2) * stride, np.int64)
    steps = (-stride - 1, -stride, -stride + 1, -1, 1, stride - 1, stride, stride + 1)
    number = 0
    while todo:
        number += 1
        shape = [todo.pop()]
        for pixel in shape:  # grows as it goes
            neighbours = [pixel + step for step in steps if pixel + step in todo]
            todo.difference_update(neighbours)
            shape += neighbours
        flat[shape] = number
    return flat.reshape(-1, stride)[1:-1, 1:-1]


def _with_margin(box: Box, width: int, height: int, share: float) -> Box:
    """The box with a share of its longer side around it, or less where it is negative; within the picture."""
    left, top, right, bottom = box
    margin = round(share * max(right - left, bottom - top)) + (1 if share > 0 else -1)
    return max(left - margin, 0), max(top - margin, 0), min(right + margin, width), min(bottom + margin, height)


def _normalised(found: _Found) -> Digit:
    """Scale, centre and judge what was found."""
    height, width = found.ink.shape
    scale = _BOX / max(height, width)
    rows, columns = (max(1, round(scale * n)) for n in (height, width))
    small = _weights(rows, height) @ found.ink @ _weights(columns, width).T
    total = float(small.sum())
    y, x = (float((small.sum(axis) * np.arange(n)).sum()) / total for axis, n in ((1, rows), (0, columns)))
    # By whole pixels, as MNIST's were; a box with all its ink at one end stays within the image.
    top, left = (min(max(round(_CENTRE - c), 0), SIDE - n) for c, n in ((y, rows), (x, columns)))
    field = np.zeros((SIDE, SIDE), np.float32)
    field[top : top + rows, left : left + columns] = small
    field = _full(field)
    stroke, length = _stroke(field)
    if stroke < _THIN:
        field = _full(blurred(field))
    doubt = ""
    if width > _WIDE * height:
        doubt = f"it is {width / height:.1f} times as wide as high"
    elif stroke > _THICK:
        doubt = "it is a filled shape rather than a stroke"
    elif length > _LONG:
        doubt = "it has more strokes than a digit"
    return Digit(np.rint(255 * field).astype(np.uint8), found.box, found.dark, doubt)


def _weights(rows: int, pixels: int) -> Floats:
    """A matrix (rows, pixels) that averages, with the weights of a triangle, or interpolates a row of pixels."""
    ratio = pixels / rows
    centres = (np.arange(rows) + 0.5) * ratio
    distance = np.abs(np.arange(pixels) + 0.5 - centres[:, None]) / max(ratio, 1)
    weights: Floats = np.maximum(1 - distance, 0).astype(np.float32)
    weights /= weights.sum(1, keepdims=True)
    return weights


def _full(field: Floats) -> Floats:
    """Strokes that the scaling made faint, bright again: the mean of the 20 brightest pixels becomes at least 0.9."""
    bright = float(np.sort(field, axis=None)[-20:].mean())
    full: Floats = np.minimum(field * max(0.9 / bright, 1), 1)
    return full


def blurred(field: Floats) -> Floats:
    """Each pixel of an image, or of several, spread over its neighbours: strokes become wider and noise less."""
    padded = np.pad(field, [(0, 0)] * (field.ndim - 2) + [(1, 1)] * 2, "edge")
    rows = padded[..., :-2, :] + 2 * padded[..., 1:-1, :] + padded[..., 2:, :]
    spread: Floats = (rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]) / 16
    return spread


def _stroke(field: Floats) -> tuple[float, float]:
    """A stroke's width and length in pixels: of its area, and of its two edges, which is the gradient summed."""
    padded = np.pad(field, 1)
    dy, dx = padded[1:, :-1] - padded[:-1, :-1], padded[:-1, 1:] - padded[:-1, :-1]
    edges = float(np.sqrt(dx * dx + dy * dy).sum())
    return 2 * float(field.sum()) / edges, edges / 2
