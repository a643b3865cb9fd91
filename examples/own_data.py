"""Data of one's own: arrays, and a folder of image files by class. Here both are drawn: three kinds of strokes."""

import tempfile
from pathlib import Path

import numpy as np

from mnist_cuda import TrainOptions, dataset_from_folder, dataset_of, predict, train

KINDS = ("across", "down", "slant")


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count,28,28) uint8 of a stroke on a noisy ground, and their labels (count,)."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % len(KINDS)
    images = rng.integers(0, 60, (count, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        at = rng.integers(8, 20)
        for k in range(4, 24):
            row, column = ((at, k), (k, at), (k, k + at - 14))[label]
            image[row, np.clip(column, 0, 27)] = 230
    return images, labels


options = TrainOptions(epochs=4, batch_size=20)
arrays = dataset_of(*draw(600, 1), *draw(90, 2), name="strokes")
result = train(arrays, options)
print(f"arrays: {100 * result.accuracy:.1f} %; the first is", KINDS[predict(result, arrays.test_images[0]).classes[0]])

try:
    from PIL import Image
except ImportError:
    print("image files are read by Pillow, which is not installed")
else:
    with tempfile.TemporaryDirectory() as folder:
        for half, (images, labels) in {"train": draw(600, 1), "test": draw(90, 2)}.items():
            for k, (image, label) in enumerate(zip(images, labels, strict=True)):
                place = Path(folder) / half / KINDS[label]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(place / f"{k}.png")
        result = train(dataset_from_folder(folder), options)
        print(f"folder: {100 * result.accuracy:.1f} %")
