"""From a picture to MNIST's form: where the digit lies, how large it is, what is taken for one, what is refused."""

import numpy as np
import pytest
from drawings import NO_DIGITS, of_pen, somewhere

from mnist_cuda.data import synthetic
from mnist_cuda.data.digit import as_mnist, digits_of


def centre(image):
    """Row and column of the centre of mass, a pixel's middle being its index."""
    total = image.sum(dtype=float)
    return tuple(float((image.sum(axis, dtype=float) * np.arange(28)).sum() / total) for axis in (1, 0))


def box(image, above):
    """Rows and columns that have ink."""
    rows, columns = (np.flatnonzero((image > above).any(axis)) for axis in (1, 0))
    return int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1


@pytest.mark.parametrize("height", [12, 20, 57, 300])
def test_the_box_is_20_pixels_and_the_centre_of_mass_in_the_middle(height):
    rng = np.random.default_rng(height)
    for number in range(10):
        ink = somewhere(rng, of_pen(number, 0, 0.13)(height), 3)
        digit = as_mnist(ink)
        assert digit.pixels.shape == (28, 28)
        assert digit.pixels.dtype == np.uint8
        assert digit.pixels.max() >= 220
        assert max(box(digit.pixels, above=0)) == 20
        assert max(box(digit.pixels, above=40)) >= 18  # the rest is the ink's own blurred edge
        assert all(abs(c - 14) <= 0.75 for c in centre(digit.pixels)), (number, centre(digit.pixels))
        assert digit.doubt == ""


def test_the_aspect_ratio_stays():
    bar = np.zeros((90, 160))
    bar[20:80, 40:60] = 1
    rows, columns = box(as_mnist(bar).pixels, above=40)
    assert rows == 20
    assert 6 <= columns <= 8  # 20 of 60 pixels are 6.7 of 20


@pytest.mark.parametrize("dark", [False, True])
def test_the_box_in_the_picture_is_found(dark):
    picture = np.zeros((300, 400), np.uint8)
    picture[100:180, 250:262] = 200
    digit = as_mnist(255 - picture if dark else picture)
    assert digit.dark == dark
    np.testing.assert_allclose(digit.box, (250, 100, 262, 180), atol=3)


def test_images_of_mnist_stay_nearly_as_they_are(mnist):
    differences = []
    for image in mnist.test_images[:300]:
        digit = as_mnist(image)
        assert not digit.dark
        differences.append(np.abs(digit.pixels.astype(int) - image).mean())
    assert np.median(differences) <= 1
    assert np.percentile(differences, 90) <= 2.5  # some are moved by a pixel: their centre was nearly between two


def test_dtypes_and_channels_say_the_same():
    grey = somewhere(np.random.default_rng(0), of_pen(5, 0, 0.12)(80), 2)
    levels = np.rint(255 * grey).astype(np.uint8)
    opaque = np.full_like(levels, 255)
    expected = as_mnist(levels).pixels.astype(int)
    for picture in (
        levels / 255,
        (levels / 255).astype(np.float32),
        levels.astype(np.uint16) * 257,
        (levels.astype(np.uint16) * 257).astype(">u2"),
        levels[:, :, None],
        np.dstack([levels] * 3),
        np.dstack([levels, opaque]),
        np.dstack([levels] * 3 + [opaque]),
        np.dstack([opaque] * 3 + [levels]),
        255 - levels,
        np.asfortranarray(levels),
    ):
        assert np.abs(as_mnist(picture).pixels - expected).max() <= 3
    assert np.abs(as_mnist(levels > 127).pixels - expected).mean() <= 6


def test_specks_on_the_paper_are_left_out():
    ink = of_pen(7, 0, 0.12)(100)
    sheet = np.zeros((300, 300))
    sheet[100 : 100 + ink.shape[0], 100 : 100 + ink.shape[1]] = ink
    clean = as_mnist(sheet)
    sheet[5:9, 5:9] = sheet[290:294, 40:44] = 1
    assert np.abs(as_mnist(sheet).pixels.astype(int) - clean.pixels).max() <= 3


@pytest.mark.parametrize("shade", [0.0, 0.4, 1.0])
def test_what_lies_around_the_paper_is_left_out(shade):
    paper = 0.7 - 0.6 * somewhere(np.random.default_rng(1), of_pen(2, 0, 0.12)(100), 2)
    expected = as_mnist(paper)
    for sides in (((0, 0), (40, 0)), ((40, 0), (0, 40)), ((30, 30), (30, 30))):
        digit = as_mnist(np.pad(paper, sides, constant_values=shade))
        assert digit.dark
        assert digit.doubt == ""
        assert np.abs(digit.pixels.astype(int) - expected.pixels).mean() <= 4
        np.testing.assert_allclose(np.subtract(digit.box, expected.box), [sides[1][0], sides[0][0]] * 2, atol=3)


@pytest.mark.parametrize("name", ["blank", "one pixel", "nothing at all", "light from a side", "a strip"])
def test_where_nothing_is_drawn_nothing_is_found(name):
    digit = as_mnist(NO_DIGITS[name](np.random.default_rng(0)))
    assert not digit.pixels.any()
    assert digit.doubt == "nothing is drawn there that stands out"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a square", "a filled shape"),
        ("a disc", "a filled shape"),
        ("a line", "times as wide as high"),
        ("a chessboard", "more strokes than a digit"),
        ("a grid", "more strokes than a digit"),
        ("a word", "several shapes"),
        ("two digits", "several shapes"),
    ],
)
def test_what_has_no_digits_form_is_doubted(name, words):
    assert words in as_mnist(NO_DIGITS[name](np.random.default_rng(0))).doubt


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (np.zeros((0, 5), np.uint8), "shape (0, 5, 1), expected (H,W) or (H,W,C)"),
        (np.zeros(5, np.uint8), "shape (5,)"),
        (np.zeros((5, 5, 5), np.uint8), "1 to 4 channels"),
        (np.zeros((1, 5, 5, 3), np.uint8), "shape (1, 5, 5, 3)"),
        (np.zeros((5, 5), np.int64), "dtype int64, expected bool, unsigned integers or floats"),
        (np.zeros((5, 5), complex), "dtype complex128"),
        (np.array([["a"]]), "dtype <U1"),
        (np.array([[0.5, np.nan]]), "values from nan to nan, expected 0 to 1"),
        (np.array([[0.5, -0.1]]), "values from -0.1 to 0.5, expected 0 to 1"),
        (np.array([[0.5, 1.5]]), "values from 0.5 to 1.5"),
        (np.array([[0.5, np.inf]]), "values from 0.5 to inf"),
    ],
)
def test_other_arrays_are_refused(picture, words):
    with pytest.raises(ValueError, match="picture has") as error:
        as_mnist(picture)
    assert words in str(error.value)


@pytest.mark.parametrize("turned", [False, True])
def test_two_colours_of_equal_parts_are_a_picture_of_nothing(turned):
    """The median of an even number of pixels may lie between both, where there is none."""
    halves = np.repeat(np.repeat([[0, 255]], 40, axis=0), 20, axis=1).astype(np.uint8)
    digit = as_mnist(halves.T if turned else halves)
    assert digit.pixels.shape == (28, 28)
    assert digit.doubt


def side_by_side(rng, images, gap):
    """A scan of digits in a row, dark on light, at different heights."""
    canvas, x = np.zeros((70, 40 * len(images) + 40), np.uint8), 15
    for image in images:
        columns = np.flatnonzero(image.any(0))
        image, y = image[:, columns[0] : columns[-1] + 1], int(rng.integers(18, 25))
        canvas[y : y + 28, x : x + image.shape[1]] = image
        x += image.shape[1] + gap
    return 255 - np.kron(canvas[:, : x + 15], np.ones((3, 3), np.uint8))


def test_digits_side_by_side_are_told_apart():
    rng, cut = np.random.default_rng(0), 0
    images, _ = synthetic.generate("test", count=1000)
    for _ in range(40):
        chosen = images[rng.choice(1000, int(rng.integers(2, 7)))]
        found = digits_of(side_by_side(rng, chosen, gap=int(rng.integers(2, 12))))
        boxes = [digit.box for digit in found]
        assert boxes == sorted(boxes)
        if len(found) != len(chosen):
            continue
        cut += 1
        alone = [as_mnist(255 - np.kron(np.pad(image, 20), np.ones((3, 3), np.uint8))).pixels for image in chosen]
        for k, digit in enumerate(found):  # nearest to its own, though at other squares of the scan
            distances = [np.abs(digit.pixels.astype(int) - one).mean() for one in alone]
            assert np.argmin(distances) == k
            assert "side by side" not in digit.doubt
    assert cut >= 32


def test_one_digit_is_one():
    images, _ = synthetic.generate("test", count=100)
    for image in images:
        picture = 255 - np.kron(np.pad(image, 10), np.ones((3, 3), np.uint8))
        (digit,) = digits_of(picture)
        np.testing.assert_array_equal(digit.pixels, as_mnist(picture).pixels)
    (nothing,) = digits_of(np.zeros((50, 50), np.uint8))
    assert nothing.doubt == "nothing is drawn there that stands out"


def test_a_comma_is_no_digit():
    images = synthetic.generate("test", count=3)[0]
    picture = side_by_side(np.random.default_rng(1), images, gap=12)
    found = digits_of(picture)
    assert len(found) == 3
    left, right = found[0].box[2], found[1].box[0]
    picture[140:160, left + 10 : right - 10] = 0  # in the gap
    assert right - left > 25
    assert len(digits_of(picture)) == 3
