"""Synthetic digits: the same everywhere, varied, MNIST-like in layout, and quickly made."""

import os
import subprocess
import sys

import numpy as np
import pytest

from mnist_cuda.data.catalogue import SYNTHETIC
from mnist_cuda.data.dataset import load
from mnist_cuda.data.strokes import STYLES
from mnist_cuda.data.synthetic import COUNTS, generate

DIGEST_CODE = """
import hashlib
from mnist_cuda.data.synthetic import generate
images, labels = generate("train", 0, 1000)
print(hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def digits():
    return generate("train", 0, 3000)


def test_shapes_types_and_counts(digits):
    images, labels = digits
    assert (images.shape, images.dtype) == ((3000, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((3000,), np.uint8)
    assert COUNTS == {"train": 60_000, "test": 10_000}
    assert np.bincount(labels, minlength=10).min() > 200


def test_a_seed_gives_the_same_digits_however_many_are_asked_for(digits):
    for count in (1, 1000, 1500):
        images, labels = generate("train", 0, count)
        np.testing.assert_array_equal(images, digits[0][:count])
        np.testing.assert_array_equal(labels, digits[1][:count])


def test_seeds_and_splits_are_different_digits(digits):
    for other in (generate("train", 1, 1000), generate("test", 0, 1000)):
        assert (other[0] == digits[0][:1000]).all(axis=(1, 2)).sum() == 0
    assert len(np.unique(digits[0].reshape(3000, -1), axis=0)) == 3000


@pytest.mark.parametrize("disabled", ["", "X86_V3 X86_V4 AVX512F AVX512_SKX AVX512_ICL AVX512_SPR AVX2 FMA3"])
def test_the_digits_do_not_depend_on_the_processor(disabled):
    # Pinned: a change of this hash changes the data set, and the figures in synthetic.py with it.
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DIGEST_CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "9a26827bd96543f5a94847beac6ac377f6ab816a1ecd87bc4aad1f0396e70f61"


def test_the_catalogue_knows_all_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path))
    data = load("synthetic")
    assert (len(data.train_labels), len(data.test_labels)) == SYNTHETIC.counts
    assert data.digest == SYNTHETIC.digest
    assert (tmp_path / "synthetic" / "arrays.u8").stat().st_size == SYNTHETIC.array_bytes


def test_layout_is_that_of_mnist(digits):
    images, _ = digits
    mass = images.sum(axis=(1, 2), dtype=np.float64)
    assert mass.min() > 0
    pixel = np.arange(28) + 0.5
    for axis in (1, 2):
        centre = (images.sum(axis=axis, dtype=np.float64) * pixel).sum(1) / mass
        assert np.abs(centre - 14).max() < 4
        assert np.abs(centre - 14).mean() < 0.5
        assert abs(centre.mean() - 14) < 0.1
    assert (images[:, [0, -1], :] > 0).mean() < 0.01
    assert (images[:, :, [0, -1]] > 0).mean() < 0.01
    # MNIST's training images: mean 33.3, 19 % of the pixels above 0, 10 % above 200.
    assert 25 < images.mean() < 42
    assert 0.15 < (images > 0).mean() < 0.24
    assert 0.07 < (images > 200).mean() < 0.14


def test_every_class_can_be_told_from_the_others_but_not_trivially(digits):
    """Nearest class mean: far better than chance, far from perfect."""
    images, labels = digits
    pixels = images.reshape(len(images), -1).astype(np.float64) / 255
    means = np.stack([pixels[:2000][labels[:2000] == digit].mean(0) for digit in range(10)])
    distance = ((pixels[2000:, None] - means) ** 2).sum(2)
    recall = [(distance[labels[2000:] == digit].argmin(1) == digit).mean() for digit in range(10)]
    assert min(recall) > 0.3
    assert np.mean(recall) < 0.95


def test_every_digit_has_several_styles_within_the_unit_square():
    assert len(STYLES) == 10
    for styles in STYLES:
        assert len(set(styles)) == len(styles) >= 3
        for style in styles:
            points = [tuple(map(int, word.split(","))) for word in style.replace("/", " ").split()]
            assert all(0 <= value <= 100 for point in points for value in point)
            assert max(y for _, y in points) - min(y for _, y in points) >= 90
