"""Arrays of one's own as a Dataset."""

from __future__ import annotations

from mnist_cuda.data.arrays import pair_of
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.data.idx import Images, Labels
from mnist_cuda.errors import DataError


def dataset_of(
    train_images: object, train_labels: object, test_images: object, test_labels: object, *, name: str = "own"
) -> Dataset:
    """A data set of arrays.

    Images (N,28,28), (N,784), (N,1,28,28) or (N,28,28,1) of whole numbers, white strokes, 255, on black, 0; labels (N,)
    integers from 0 to 9. Lists, data frames, and arrays of any library on the host, by `__dlpack__` or as numpy takes
    them; uint8 ones that lie in one piece are not copied, and must not be changed while they are used. name: for what
    is printed and recorded.

    Warns (DataWarning) of images that are dark on light, and of digits that are not upright.
    Raises DataError for another shape, dtype or value, also for pixels from 0 to 1, for no images, and where images and
    labels differ in number.
    """
    train, test = _pair(train_images, train_labels, "training"), _pair(test_images, test_labels, "test")
    data = Dataset(name, name, "arrays", *train, *test)
    data.warn_of_looks()
    return data


def _pair(images: object, labels: object, half: str) -> tuple[Images, Labels]:
    try:
        pixels, classes = pair_of(images, labels, f"{half} ")
    except ValueError as error:
        raise DataError(str(error)) from error
    return pixels.view(), classes.view()  # a Dataset makes its arrays read-only, and the caller's are not ours
