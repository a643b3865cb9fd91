"""Images that do not look as expected get a line: inverted, turned, mirrored; others get none."""

import warnings

import numpy as np
import pytest
from data_server import idx

from mnist_cuda import cli, dataset_of
from mnist_cuda.data import looks, synthetic
from mnist_cuda.errors import DataWarning


def said(images, labels):
    return looks.remarks(np.ascontiguousarray(images), np.asarray(labels), digits=True)


@pytest.fixture(scope="module")
def some(mnist):
    return mnist.train_images[:2000], mnist.train_labels[:2000]


TURNED = {
    "transposed, as EMNIST's files are": lambda i: i.transpose(0, 2, 1),
    "turned by 90 degrees to the left": lambda i: np.rot90(i, 1, (1, 2)),
    "turned by 90 degrees to the right": lambda i: np.rot90(i, -1, (1, 2)),
    "upside down, turned by 180 degrees": lambda i: np.rot90(i, 2, (1, 2)),
    "mirrored, left for right": lambda i: i[:, :, ::-1],
    "mirrored, top for bottom": lambda i: i[:, ::-1],
    "transposed and upside down": lambda i: i[:, ::-1, ::-1].transpose(0, 2, 1),
}


@pytest.mark.parametrize("count", [100, 2000])
@pytest.mark.parametrize("way", TURNED)
def test_turned_digits_are_named_with_what_sets_them_upright(way, count, some):
    images, labels = some[0][:count], some[1][:count]
    turned = np.ascontiguousarray(TURNED[way](images))
    (sentence,) = said(turned, labels)
    assert sentence.startswith(f"the digits are {way}: ")
    remedy = sentence.partition(": ")[2].removesuffix(" sets them upright")
    upright = eval(remedy, {"images": turned, "numpy": np})
    np.testing.assert_array_equal(upright, images)
    assert len(said(255 - turned, labels)) == 2
    assert not looks.like_mnist(turned, labels)


def test_inverted_images_are_named(some):
    images, labels = some
    assert said(255 - images, labels) == [
        "the images are dark on light, and the network is made for light on dark: 255 - images gives the contrary"
    ]
    mixed = np.where((np.arange(2000) % 5 < 2)[:, None, None], 255 - images, images)
    assert said(mixed, labels)[0].startswith("40 % of the images are dark on light and the others light on dark")
    noisy = np.clip(255 - images * 0.6 + np.random.default_rng(0).normal(-40, 20, images.shape), 0, 255)
    assert len(said(noisy.astype(np.uint8), labels)) == 1


def test_parts_of_mnist_shifted_and_noisy_digits_are_not(mnist, some):
    rng = np.random.default_rng(0)
    for count in (1, 5, 20, 100, 1000):
        for _ in range(40):
            chosen = rng.choice(60000, count, replace=False)
            classes = rng.choice(10, int(rng.integers(1, 11)), replace=False)
            chosen = chosen[np.isin(mnist.train_labels[chosen], classes)]
            if len(chosen):
                assert said(mnist.train_images[chosen], mnist.train_labels[chosen]) == []
    images, labels = some
    order = np.argsort(labels, kind="stable")
    shifted = np.stack([np.roll(image, rng.integers(-5, 6, 2), (0, 1)) for image in images])
    noisy = np.clip(0.6 * images + rng.normal(40, 50, images.shape), 0, 255).astype(np.uint8)
    for others in (images[order], shifted, noisy):
        assert said(others, labels[order] if others is not shifted and others is not noisy else labels) == []
    assert looks.like_mnist(images, labels)


def test_synthetic_digits_and_other_things_are_not():
    images, labels = synthetic.generate("test", count=1000)
    assert said(images, labels) == []
    assert looks.like_mnist(images, labels)
    rng = np.random.default_rng(0)
    garments = np.zeros((1000, 28, 28), np.uint8)
    for k, image in enumerate(garments):
        image[2 + k % 10 : 27, 3 + k % 7 : 25 - k % 5] = rng.integers(60, 255)
    assert said(garments, np.arange(1000) % 10) == []
    assert not looks.like_mnist(garments, np.arange(1000) % 10)


def test_arrays_and_files_are_looked_at(some, tmp_path, mnist, capsys):
    images, labels = some
    turned = np.ascontiguousarray(images.transpose(0, 2, 1))
    with pytest.warns(DataWarning, match=r"^mine: the digits are transposed, as EMNIST's files are: ") as told:
        dataset_of(turned, labels, turned, labels, name="mine")
    assert len(told) == 1
    with pytest.warns(DataWarning, match="^own: the test images are dark on light"):
        dataset_of(images, labels, 255 - images, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset_of(images, labels, images, labels)
    for half in ("train", "t10k"):
        (tmp_path / f"{half}-images-idx3-ubyte").write_bytes(idx(turned))
        (tmp_path / f"{half}-labels-idx1-ubyte").write_bytes(idx(labels))
    argv = ["train", "--dataset", "idx", "--data-dir", str(tmp_path), "--epochs", "1", "-e", "cpu", "--steps", "1"]
    assert cli.main([*argv, "--out", str(tmp_path / "run")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("WARNING: ")]
    assert len(lines) == 1
    assert "the digits are transposed, as EMNIST's files are: images.transpose(0, 2, 1) sets them upright" in lines[0]
