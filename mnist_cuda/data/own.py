"""Data of one's own as a Dataset: arrays, or a folder of image files by class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import rules
from mnist_cuda.data.arrays import named_pair_of
from mnist_cuda.data.catalogue import ARRAYS
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.data.idx import CLASSES, SIDE, Images, Labels
from mnist_cuda.data.picture_file import picture_files, read_picture
from mnist_cuda.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


def dataset_of(
    train_images: object, train_labels: object, test_images: object, test_labels: object, *, name: str = "own"
) -> Dataset:
    """A data set of arrays.

    Images (N,28,28), (N,784), (N,1,28,28) or (N,28,28,1) of whole numbers, white strokes, 255, on black, 0; labels (N,)
    integers from 0 to 9, also as floats, or at most ten names of classes. Lists, data frames, and arrays of any library
    on the host, by `__dlpack__` or as numpy takes them; uint8 ones that lie in one piece are not copied, and must not
    be changed while they are used. name: for what is printed and recorded.

    Raises DataError for another shape, dtype or value, also for pixels from 0 to 1, for no images, and where images and
    labels differ in number.
    """
    images, labels, names = _named_pair(train_images, train_labels, "training", None)
    test, theirs, _ = _named_pair(test_images, test_labels, "test", names)
    return Dataset(name, name, ARRAYS, images, labels, test, theirs, classes=names)


def _named_pair(
    images: object, labels: object, half: str, names: tuple[str, ...] | None
) -> tuple[Images, Labels, tuple[str, ...]]:
    try:
        pixels, classes, found = named_pair_of(images, labels, f"{half} ", names)
    except ValueError as error:
        raise DataError(str(error)) from error
    return pixels.view(), classes.view(), found  # a Dataset makes them read-only, and the caller's are not ours


def _pair(images: object, labels: object, half: str) -> tuple[Images, Labels]:
    return _named_pair(images, labels, half, ())[:2]


@rules.checked(folder=rules.PATH, test_share=rules.RATE, seed=rules.NATURAL)
def dataset_from_folder(folder: str | Path, *, test_share: float = 0.2, seed: int = 0) -> Dataset:
    """A data set of image files by class, read by Pillow: `FOLDER/train/CLASS/*.png` and `FOLDER/test/CLASS/*.png`.

    Without these two, `FOLDER/CLASS/*.png`, of which `test_share` of every class, chosen by the seed, is the test set.
    The names of the classes, at most 10, give the labels in their order: `0` to `9`, or `bag`, `boot`, .... Pictures
    are made grey and, where they have another size, scaled to 28x28; white on black is what the network is made for.

    Raises DataError for a folder that is none of these and for a file that cannot be read, UnavailableError without
    Pillow.
    """
    root = Path(folder)
    halves = [root / "train", root / "test"]
    split = not all(half.is_dir() for half in halves)
    names = _classes(root if split else halves[0])
    if not 0 <= test_share < 1:
        raise DataError(f"test_share is {test_share}, expected at least 0 and less than 1")
    parts: list[tuple[list[Path], list[int], str]] = [([], [], "training"), ([], [], "test")]
    for label, name in enumerate(names):
        if split:
            files = picture_files(root / name)
            stream = np.random.PCG64(np.random.SeedSequence([seed, 3, label]))
            order = np.random.Generator(stream).permutation(len(files))
            held = max(1, round(test_share * len(files)))
            chosen = [sorted(files[k] for k in order[held:]), sorted(files[k] for k in order[:held])]
        else:
            chosen = [picture_files(half / name) if (half / name).is_dir() else [] for half in halves]
        for (paths, labels, _), found in zip(parts, chosen, strict=True):
            paths += found
            labels += [label] * len(found)
    pairs = [_pair(_read(paths), np.array(labels, np.uint8), half) for paths, labels, half in parts]
    classes = () if set(names) <= set(map(str, range(CLASSES))) else tuple(names)
    return Dataset(root.name, root.name, str(root), *pairs[0], *pairs[1], classes=classes)


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder, expected one with a folder for each class")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not 1 <= len(names) <= CLASSES:
        raise DataError(f"{folder}: it has {len(names)} folders, expected one for each of at most {CLASSES} classes")
    return [str(digit) for digit in range(CLASSES)] if set(names) <= set(map(str, range(CLASSES))) else names


def _read(paths: list[Path]) -> Images:
    images = np.empty((len(paths), SIDE, SIDE), np.uint8)
    for k, path in enumerate(paths):
        images[k] = read_picture(path, _grey)
    return images


def _grey(picture: Image) -> NDArray[Any]:
    grey = picture.convert("L")
    return np.asarray(grey if grey.size == (SIDE, SIDE) else grey.resize((SIDE, SIDE)), np.uint8)
