"""Sheets of digits: rows are read one by one, a digit in pieces stays one, and what is no digit is named."""

import numpy as np
import pytest
from drawings import cropped, of_mnist, of_pen, on_paper
from PIL import Image, ImageDraw

from mnist_cuda.data.digit import as_mnist, digits_of

CELL = 30


@pytest.fixture
def ink(mnist):
    """A function that gives the k-th test image of a digit (28,28)."""
    labels = mnist.test_labels

    def image(digit, k=0):
        return mnist.test_images[np.flatnonzero(labels == digit)[k]]

    return image


def sheet(rows, zoom=2, margin=20):
    """Rows of images (28,28), bright on dark; None leaves a cell empty."""
    canvas = np.zeros((len(rows) * CELL, max(map(len, rows)) * CELL), np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            if image is not None:
                canvas[i * CELL + 1 : i * CELL + 29, j * CELL + 1 : j * CELL + 29] = image
    return np.kron(np.pad(canvas, margin), np.ones((zoom, zoom), np.uint8))


def sizes(digits):
    """How many digits each row has."""
    return np.bincount([digit.row for digit in digits]).tolist()


def beside(digits):
    return [digit.beside for digit in digits if digit.beside]


@pytest.mark.parametrize("zoom", [1, 2, 5])
@pytest.mark.parametrize("dark", [False, True])
def test_a_sheet_of_a_hundred_digits_has_ten_rows(mnist, zoom, dark):
    images = mnist.test_images[:100].reshape(10, 10, 28, 28)
    picture = sheet(images, zoom)
    digits = digits_of(255 - picture if dark else picture)
    assert sizes(digits) == [10] * 10
    assert beside(digits) == []
    right = 0
    for digit, image in zip(digits, images.reshape(-1, 28, 28), strict=True):
        others = np.abs(mnist.test_images[:100].astype(int) - digit.pixels).mean((1, 2))
        right += bool((mnist.test_images[np.argmin(others)] == image).all())
    assert right >= 97


@pytest.mark.parametrize(("above", "below"), [(7, 2), (1, 1), (0, 0), (8, 8), (5, 3)])
def test_a_column_is_two_rows(ink, above, below):
    for k in range(5):
        digits = digits_of(255 - sheet([[ink(above, k)], [ink(below, k)]], 3))
        assert sizes(digits) == [1, 1]
        close = np.pad(np.vstack([ink(above, k), ink(below, k)]), 20)
        assert sizes(digits_of(255 - np.kron(close, np.ones((3, 3), np.uint8)))) == [1, 1]
        assert digits[0].box[3] <= digits[1].box[1]
        assert "several shapes" in as_mnist(255 - sheet([[ink(above, k)], [ink(below, k)]], 3)).doubt


def test_drawn_columns_are_rows():
    for k in range(20):
        top, bottom = (of_pen(digit, k, 0.1 + 0.002 * k)(90) for digit in (k % 10, (3 * k + 1) % 10))
        picture = np.zeros((320, 200))
        for at, drawing in ((30, top), (175, bottom)):
            picture[at : at + drawing.shape[0], 50 : 50 + drawing.shape[1]] = drawing
        assert sizes(digits_of(1 - picture)) == [1, 1], k


@pytest.mark.parametrize("angle", [-8, -3, 5, 8])
def test_slanted_and_ragged_rows_stay_rows(mnist, angle):
    images = mnist.test_images[200:224].reshape(4, 6, 28, 28)
    turned = Image.fromarray(sheet(images, 2, 50)).rotate(angle, Image.Resampling.BICUBIC)
    assert sizes(digits_of(255 - np.asarray(turned))) == [6] * 4
    rng, canvas = np.random.default_rng(angle + 8), np.zeros((3 * 48 + 20, 6 * 34), np.uint8)
    for i in range(3):
        for j in range(6):
            y = 48 * i + int(rng.integers(4, 19))
            canvas[y : y + 28, 34 * j + 3 : 34 * j + 31] = images[i, j]
    assert sizes(digits_of(255 - np.pad(canvas, 20))) == [6] * 3


def test_a_noisy_photo_of_rows(mnist):
    images = mnist.test_images[:10].reshape(2, 5, 28, 28)
    picture = on_paper(np.random.default_rng(0), sheet(images, 3, 30) / 255, contrast=0.5, noise=0.04)
    digits = digits_of(picture)
    assert (sizes(digits), beside(digits)) == ([5, 5], [])


def broken(image, row):
    """The image without two of its rows."""
    image = image.copy()
    image[row : row + 2] = 0
    return image


def test_a_digit_in_pieces_stays_one(ink, mnist):
    """A 5 whose bar is apart, and strokes that skip: one digit, and no sign beside it."""
    for index in (856, 1131, 1940, 2597):
        if mnist.test_labels[index] == 5:
            for zoom in (3, 6):
                digits = digits_of(255 - np.kron(np.pad(mnist.test_images[index], 15), np.ones((zoom, zoom), np.uint8)))
                assert (len(digits), beside(digits)) == (1, []), index
    for digit in (2, 3, 9):  # others have two strokes there
        for k in range(5):
            image = np.pad(broken(ink(digit, k), 13), 15)
            assert len(digits_of(255 - np.kron(image, np.ones((4, 4), np.uint8)))) == 1, (digit, k)
    one = np.zeros((200, 120), np.uint8)
    one[50:140, 55:65] = one[30:40, 55:65] = 255  # an i
    assert (len(digits_of(one)), beside(digits_of(one))) == (1, [])


def test_single_digits_have_nothing_beside_them(mnist):
    for k in range(200):
        (digit,) = digits_of(1 - np.pad(of_mnist(mnist.test_images[k])(90), 30).clip(0, 1))
        assert digit.beside == "", k


SIGNS = {
    "3.5": (lambda draw: draw.ellipse((118, 122, 130, 134), 255), "a point or comma on its"),
    "3,5": (lambda draw: draw.polygon([(118, 124), (129, 124), (119, 148)], 255), "a point or comma on its"),
    "3 - 5": (lambda draw: draw.line((108, 95, 140, 95), 255, 7), "a stroke like a minus sign on its"),
    "underlined": (lambda draw: draw.line((20, 160, 230, 160), 255, 4), "a line below it"),
    "a frame": (lambda draw: draw.rectangle((12, 12, 240, 180), outline=255, width=4), "a frame around it"),
    "a rule": (lambda draw: draw.line((0, 170, 260, 170), 255, 3), "a line at the picture's border"),
    "the edge": (lambda draw: draw.rectangle((0, 0, 259, 199), outline=255, width=3), "a frame at the picture's"),
    "a cut digit": (lambda draw: draw.line((256, 60, 256, 130), 255, 20), "ink at the picture's border"),
    "a dot above": (lambda draw: draw.ellipse((118, 20, 130, 32), 255), "a spot on its"),
}  # fmt: skip


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", SIGNS)
def test_what_is_left_out_is_named(name, dark):
    image = Image.new("L", (260, 200), 0)
    for at, digit in ((40, 3), (150, 5)):
        drawing = Image.fromarray(np.rint(255 * cropped(of_pen(digit, 0, 0.12)(70))).astype(np.uint8))
        image.paste(drawing, (at, 55), drawing)
    picture = np.asarray(image)
    assert (len(digits_of(picture)), beside(digits_of(picture))) == (2, [])
    draw, words = SIGNS[name]
    draw(ImageDraw.Draw(image))
    picture = np.asarray(image)
    digits = digits_of(255 - picture if dark else picture)
    assert len(digits) == 2
    assert words in " ".join(beside(digits))
    assert " left out" in " ".join(beside(digits))


def test_a_minus_before_a_digit(ink):
    picture = sheet([[None, ink(7)]], 3)
    picture[100:107, 70:115] = 255
    (digit,) = digits_of(255 - picture)
    assert digit.beside == "a stroke like a minus sign on its left is left out"
    np.testing.assert_array_equal(digit.pixels, as_mnist(255 - picture).pixels)


def test_dust_is_not_worth_a_word(ink):
    picture = sheet([[ink(4), ink(2)]], 4)
    picture[30:33, 30:33] = picture[100:103, 200:203] = 255
    assert beside(digits_of(255 - picture)) == []


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_values_of_fewer_bits_in_16_are_scaled_by_their_range(ink, bits):
    grey = 255 - sheet([[ink(4)]], 3)
    expected = as_mnist(grey)
    few = as_mnist(((0.3 + grey / 510) * (2**bits - 1)).astype(np.uint16))
    assert few.doubt == expected.doubt == ""
    assert np.abs(few.pixels.astype(int) - expected.pixels).mean() <= 4
