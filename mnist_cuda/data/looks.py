"""Whether images look as the network expects: bright on dark, and digits upright as MNIST's.

The class means of up to SAMPLE images, at 7x7 pixels, are compared with those of MNIST's training images, in each of
the eight ways in which a square can be turned and mirrored. Only a warning comes of it: nothing is changed.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.idx import CLASSES, SIDE, Images, Labels
from mnist_cuda.errors import DataWarning

SAMPLE = 2000  # images that are looked at
_PAPER = 150  # where the border's median is at least so bright, the image is dark on light
_SOME = 0.15  # of the images: with more of the other polarity it is worth a sentence
_CELLS = 7
_ENOUGH, _CLASSES = 50, 3  # images and classes at least: the means of fewer say little
_ALIKE = 0.5  # correlation with MNIST's class means: less is no likeness
_BETTER = 0.25  # by how much another way must be more alike than upright

# Means of MNIST's training images by class, (10,7,7) uint8.
_MEANS = (
    "AAAAAQEAAAACJHqGKQAAFIB4bHYEAEaAEzCACABnYiFzWAMANp6bXw8AAAEGBwEAAAAAAAAAAAAAAAQ/SA0AAAADcU8DAAAABKcb"
    "AAAAACKbCgAAAAZDZRABAAAABAUBAAAAAAQLBgEAAA1QiHEXAAAOKjV1JQAACCledRcCATyMp3k5CQEyc1dFKgQAAAEBAQAAAAAB"
    "AgEAAAATWIhlEQABDyphfxYAAARGnX8TAAITGCN5LAADMniMaRAAAAQQEgQAAAAAAAAAAAAABRoZKyECABRkMW4rAQAzm2WiIQEA"
    "G01/chEAAAEUTDsIAAAABQ0JAQAAAAAAAQAAAAMiU1o7CgALZXBBJgkAEHl3Sw4AABglOWEfAQAgbX1VDwAAAQ0RBQAAAAAFFBgF"
    "AAACIGNBCQAAB1JfGQwAABOFa31EBAAWnI2KQQIABD5zPgcAAAAAAAAAAAAAAAAAAAAABxgiHggABDSEh6YxAAEUISaSFgAAAw5t"
    "XAYAAAIqdCIBAAAFJzMOAQAAAAAAAAAAAAMncXAmAgAOaWF2QwUAB1KycREBAAtrg1AOAAAWe4pQCwAAAREYBgAAAAAAAAAAAAAB"
    "EEM2BwAAEXdlhR8AACN9b6ESAAAJM2lmBwAAARZaOgcAAAETJBYEAA=="
)

Way = Callable[[NDArray[Any]], NDArray[Any]]
WAYS: dict[str, tuple[str, Way]] = {
    "transposed, as EMNIST's files are": ("images.transpose(0, 2, 1)", lambda i: i.transpose(0, 2, 1)),
    "turned by 90 degrees to the left": ("numpy.rot90(images, -1, (1, 2))", lambda i: np.rot90(i, -1, (1, 2))),
    "turned by 90 degrees to the right": ("numpy.rot90(images, 1, (1, 2))", lambda i: np.rot90(i, 1, (1, 2))),
    "upside down, turned by 180 degrees": ("images[:, ::-1, ::-1]", lambda i: i[:, ::-1, ::-1]),
    "mirrored, left for right": ("images[:, :, ::-1]", lambda i: i[:, :, ::-1]),
    "mirrored, top for bottom": ("images[:, ::-1]", lambda i: i[:, ::-1]),
    "transposed and upside down": (
        "images[:, ::-1, ::-1].transpose(0, 2, 1)",
        lambda i: i[:, ::-1, ::-1].transpose(0, 2, 1),
    ),
}


def warn(name: str, train: tuple[Images, Labels], test: tuple[Images, Labels], *, digits: bool) -> None:
    """Warn in a line (DataWarning) of data of one's own that do not look as expected; all ways to data end here."""
    said = [remarks(*half, digits=digits) for half in (train, test)]
    if said[0] != said[1]:
        halves = ((train, "training "), (test, "test "))
        said = [remarks(*pair, digits=digits, half=half) for pair, half in halves]
    for sentence in dict.fromkeys(said[0] + said[1]):
        warnings.warn(f"{name}: {sentence}", DataWarning, stacklevel=4)


def remarks(images: Images, labels: Labels, *, digits: bool, half: str = "") -> list[str]:
    """Sentences, at most two, on images (N,28,28) that do not look as expected.

    digits: whether the labels (N,) are the digits that the images show. half: `training ` or `test `, to name them.
    """
    images, labels = _some(images, labels)
    dark = _dark_on_light(images)
    share, said = float(dark.mean()), []
    if share > 1 - _SOME:
        said.append(
            f"the {half}images are dark on light, and the network is made for light on dark: "
            "255 - images gives the contrary"
        )
    elif share > _SOME and len(images) >= _ENOUGH:
        said.append(
            f"{100 * share:.0f} % of the {half}images are dark on light and the others light on dark: "
            "255 - images gives the contrary"
        )
    if digits and len(images) >= _ENOUGH and len(set(labels.tolist())) >= _CLASSES:
        alike = _alike(np.where(dark[:, None, None], 255 - images, images), labels)
        way, best = max(alike.items(), key=lambda item: item[1])
        if way and best > _ALIKE and best - alike[""] > _BETTER:
            said.append(f"the {half}digits are {way}: {WAYS[way][0]} sets them upright")
    return said


def like_mnist(images: Images, labels: Labels) -> bool:
    """Whether images of digits look as MNIST's do: bright on dark, upright, centred, and of that size."""
    images, labels = _some(images, labels)
    if _dark_on_light(images).mean() > _SOME:
        return False
    alike = _alike(images, labels, moved=False)
    return alike[""] > _ALIKE and max(alike.values()) == alike[""]


def _some(images: Images, labels: Labels) -> tuple[Images, Labels]:
    step = -(-len(images) // SAMPLE)
    return images[::step], labels[::step]


def _dark_on_light(images: Images) -> NDArray[np.bool_]:
    border = np.ones((SIDE, SIDE), bool)
    border[2:-2, 2:-2] = False
    paper: NDArray[np.bool_] = np.median(images[:, border], axis=1) >= _PAPER
    return paper


def _alike(images: Images, labels: Labels, *, moved: bool = True) -> dict[str, float]:
    """For each way, and as they are under no name, how much the classes' means resemble those of MNIST."""
    if moved:
        images = _centred(images)
    present = [label for label in range(CLASSES) if (labels == label).any()]
    expected = _residuals(_table()[present].astype(np.float64))
    means = np.stack([images[labels == label].mean(0, dtype=np.float64) for label in present])
    ways: dict[str, Way] = {"": lambda i: i, **{name: way for name, (_, way) in WAYS.items()}}
    return {name: float((_residuals(_coarse(way(means))) * expected).sum()) for name, way in ways.items()}


def _centred(images: Images) -> Images:
    """Each image moved so that its centre of mass is in the middle, round the border."""
    moved = np.empty_like(images)
    steps = np.arange(SIDE)
    for k, image in enumerate(images):
        above = np.maximum(image.astype(np.float64) - np.median(image), 0)
        total = above.sum() or 1
        y, x = (round(SIDE / 2 - float((above.sum(axis) * steps).sum() / total)) for axis in (1, 0))
        moved[k] = np.roll(image, (y, x), (0, 1))
    return moved


def _coarse(means: NDArray[np.float64]) -> NDArray[np.float64]:
    cells: NDArray[np.float64] = means.reshape(-1, _CELLS, SIDE // _CELLS, _CELLS, SIDE // _CELLS).mean((2, 4))
    return cells


def _residuals(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """What tells the classes apart, as one vector of length 1."""
    rest: NDArray[np.float64] = means - (means.mean(0) if len(means) > 1 else means.mean())
    rest /= np.sqrt((rest**2).sum()) or 1
    return rest


def _table() -> NDArray[np.uint8]:
    """Means of MNIST's training images by class, (10,7,7)."""
    return np.frombuffer(base64.b64decode(_MEANS), np.uint8).reshape(CLASSES, _CELLS, _CELLS)
