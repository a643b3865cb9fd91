"""Pictures of digits, and of what is none, as people make them: ink on paper of any size, colours and light.

Ink is (H,W) float, 1 where it is full. A style turns a function that gives the ink of one digit at about a height into
a picture (H,W) or (H,W,C).
"""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mnist_cuda.data import synthetic
from mnist_cuda.data.strokes import STYLES


def of_mnist(image):
    """height -> the ink of an image of MNIST, enlarged."""

    def ink(height):
        side = round(28 * height / 20)
        enlarged = Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)
        return np.asarray(enlarged, np.float32) / 255

    return ink


def of_pen(digit, style, pen, slant=0.15, aspect=0.75):
    """height -> the ink of a digit drawn by the strokes of a style, the pen's width being `pen` of the height."""
    path = synthetic._PATHS[digit][style % len(STYLES[digit])]
    points = sum(path.weight[j][:, None] * path.points[path.index[j]] for j in range(4))

    def ink(height):
        width = max(1.0, pen * height)
        finer = 4 if height < 300 else 1  # drawn so much larger, then averaged
        x, y = points[:, 0] * aspect - slant * points[:, 1], points[:, 1]
        x, y = ((v - v.min()) * height * finer + (width + 1) * finer for v in (x, y))
        size = [int(np.ceil(v.max() / finer + width + 1)) for v in (x, y)]
        image = Image.new("L", (size[0] * finer, size[1] * finer), 0)
        draw, radius = ImageDraw.Draw(image), width * finer / 2
        ends = [*(np.flatnonzero(~path.pen) + 1), len(x)]
        for first, last in zip([0, *ends], ends, strict=False):
            stroke = list(zip(x[first:last].tolist(), y[first:last].tolist(), strict=True))
            draw.line(stroke, 255, max(1, round(2 * radius)), joint="curve")
            for across, down in (stroke[0], stroke[-1]):
                draw.ellipse((across - radius, down - radius, across + radius, down + radius), 255)
        return np.asarray(image.resize(size, Image.Resampling.BOX), np.float32) / 255

    return ink


def levels(values):
    """Numbers from 0 to 1 as uint8."""
    return np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8)


def somewhere(rng, ink, times):
    """The ink on a larger sheet: `times` as wide as the ink's longer side, a little more or less high."""
    height, width = ink.shape
    side = max(height, width) * times
    sheet = np.zeros((int(side * rng.uniform(0.9, 1.2)), int(side)), np.float32)
    top, left = (int(rng.integers(0, sheet.shape[axis] - ink.shape[axis] + 1)) for axis in (0, 1))
    sheet[top : top + height, left : left + width] = ink
    return sheet


def on_paper(rng, ink, *, contrast, noise, swing=0.35):
    """Dark ink on paper that a lamp at one side and a lens light unevenly, seen by a noisy camera."""
    y, x = (np.linspace(-1, 1, n) for n in ink.shape)
    angle = rng.uniform(0, 2 * np.pi)
    light = 0.75 + swing / 2 * (np.cos(angle) * x + np.sin(angle) * y[:, None]) - 0.08 * (x * x + (y * y)[:, None])
    return levels(light * (1 - contrast * ink) + noise * rng.standard_normal(ink.shape))


def on_table(rng, paper, shade):
    """What lies around the paper at its left and lower side is darker or brighter than it."""
    margin = max(paper.shape) // 6
    around = np.pad(paper / 255, ((0, margin), (margin, 0)), constant_values=shade)
    return levels(around + 0.02 * rng.standard_normal(around.shape))


def transparent(ink, shade):
    """RGBA: ink of one shade, nothing behind it."""
    return levels(np.dstack([np.full((*ink.shape, 3), shade), ink]))


def coloured(ink, pen, paper):
    """RGB: one colour on another."""
    return levels(ink[..., None] * pen + (1 - ink[..., None]) * np.array(paper))


def cropped(ink):
    """Nothing around the ink."""
    inked = ink > 0.3
    return ink[np.ix_(inked.any(1), inked.any(0))]


PICTURES = {
    "dark on light": lambda rng, ink: levels(1 - somewhere(rng, ink(60), 1.6)),
    "light on dark": lambda rng, ink: levels(somewhere(rng, ink(60), 1.6)),
    "off-centre": lambda rng, ink: levels(1 - somewhere(rng, ink(70), 5)),
    "large": lambda rng, ink: levels(1 - somewhere(rng, ink(900), 1.4)),
    "small": lambda rng, ink: levels(1 - somewhere(rng, ink(14), 1.4)),
    "lost on a large sheet": lambda rng, ink: levels(1 - somewhere(rng, ink(60), 15)),
    "cropped": lambda rng, ink: levels(1 - cropped(ink(80))),
    "black on nothing, RGBA": lambda rng, ink: transparent(somewhere(rng, ink(70), 2), 0),
    "white on nothing, RGBA": lambda rng, ink: transparent(somewhere(rng, ink(70), 2), 1),
    "yellow on white": lambda rng, ink: coloured(somewhere(rng, ink(70), 2), (1, 1, 0.2), (1, 1, 1)),
    "red on green": lambda rng, ink: coloured(somewhere(rng, ink(70), 2), (0.8, 0.1, 0.1), (0.1, 0.45, 0.1)),
    "16 bit": lambda rng, ink: (300 + 4000 * somewhere(rng, ink(60), 2)).astype(np.uint16),
    "paper": lambda rng, ink: on_paper(rng, somewhere(rng, ink(120), 3), contrast=0.45, noise=0.05),
    "paper on a dark table": lambda rng, ink: on_table(
        rng, on_paper(rng, somewhere(rng, ink(100), 2.5), contrast=0.6, noise=0.03), 0.15
    ),
    "paper on a bright table": lambda rng, ink: on_table(
        rng, 0.7 * on_paper(rng, somewhere(rng, ink(100), 2.5), contrast=0.6, noise=0.03), 1
    ),
    "in a frame": lambda rng, ink: np.pad(levels(1 - somewhere(rng, ink(60), 2)), 5),
    "pencil on paper": lambda rng, ink: on_paper(rng, somewhere(rng, ink(200), 2), contrast=0.2, noise=0.03),
    "a noisy photo": lambda rng, ink: on_paper(rng, somewhere(rng, ink(120), 2), contrast=0.6, noise=0.12),
}


def drawn(draw, side=200):
    """A picture that a function draws in black on white."""
    image = Image.new("L", (side, side), 255)
    draw(ImageDraw.Draw(image))
    return np.asarray(image)


def written(text, size):
    """A picture of printed text."""
    return drawn(lambda draw: draw.text((30, 60), text, 0, ImageFont.load_default(size)))


NO_DIGITS = {
    "blank": lambda rng: np.full((100, 80), 255, np.uint8),
    "one pixel": lambda rng: np.full((1, 1), 7, np.uint8),
    "a row": lambda rng: rng.integers(0, 256, (1, 300), np.uint8),
    "a strip": lambda rng: rng.integers(0, 256, (3, 100_000), np.uint8),
    "nothing at all": lambda rng: np.zeros((50, 50, 4), np.uint8),
    "light from a side": lambda rng: np.linspace(0, 255, 200 * 200).reshape(200, 200).astype(np.uint8),
    "faint noise": lambda rng: (250 + rng.normal(0, 1, (200, 200))).astype(np.uint8),
    "noise": lambda rng: rng.integers(0, 256, (200, 150), np.uint8),
    "little noise": lambda rng: rng.integers(0, 256, (28, 28), np.uint8),
    "noise in colours": lambda rng: rng.integers(0, 256, (100, 150, 3), np.uint8),
    "a square": lambda rng: drawn(lambda draw: draw.rectangle((60, 60, 140, 140), 0)),
    "a disc": lambda rng: drawn(lambda draw: draw.ellipse((60, 60, 140, 140), 0)),
    "a speck": lambda rng: drawn(lambda draw: draw.ellipse((97, 97, 103, 103), 0)),
    "a line": lambda rng: drawn(lambda draw: draw.line((20, 100, 180, 100), 0, 6)),
    "a chessboard": lambda rng: np.kron(np.indices((8, 8)).sum(0) % 2 * 255, np.ones((25, 25))).astype(np.uint8),
    "a grid": lambda rng: drawn(
        lambda draw: [draw.line(line, 0, 3) for i in range(10, 200, 30) for line in ((0, i, 200, i), (i, 0, i, 200))]
    ),
    "a word": lambda rng: written("hello", 40),
    "two digits": lambda rng: written("42", 80),
}
