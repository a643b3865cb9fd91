"""Arrays of one's own as a Dataset."""

from __future__ import annotations

from mnist_cuda.data.arrays import named_pair_of
from mnist_cuda.data.catalogue import ARRAYS
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.data.idx import Images, Labels
from mnist_cuda.errors import DataError


def dataset_of(
    train_images: object, train_labels: object, test_images: object, test_labels: object, *, name: str = "own"
) -> Dataset:
    """A data set of arrays.

    Images (N,28,28), (N,784), (N,1,28,28) or (N,28,28,1) of whole numbers, white strokes, 255, on black, 0; labels (N,)
    integers from 0 to 9, also as floats, or at most ten names of classes. Lists, data frames, and arrays of any library
    on the host, by `__dlpack__` or as numpy takes them; uint8 ones that lie in one piece are not copied, and must not
    be changed while they are used. name: for what is printed and recorded.

    Warns (DataWarning) of images that are dark on light, and of digits that are not upright.
    Raises DataError for another shape, dtype or value, also for pixels from 0 to 1, for no images, and where images and
    labels differ in number.
    """
    images, labels, names = _named_pair(train_images, train_labels, "training", None)
    test, theirs, _ = _named_pair(test_images, test_labels, "test", names)
    data = Dataset(name, name, ARRAYS, images, labels, test, theirs, classes=names)
    data.warn_of_looks()
    return data


def _named_pair(
    images: object, labels: object, half: str, names: tuple[str, ...] | None
) -> tuple[Images, Labels, tuple[str, ...]]:
    try:
        pixels, classes, found = named_pair_of(images, labels, f"{half} ", names)
    except ValueError as error:
        raise DataError(str(error)) from error
    return pixels.view(), classes.view(), found  # a Dataset makes them read-only, and the caller's are not ours
