"""How far an image is from the training images of the class that it is taken for: a network always names a class.

Blurred twice and at half their resolution, so that a stroke may be a pixel off, two images are compared pixel by pixel.
Of MNIST's test images 1.1 % are further than FAR from every training image of the class that the network names, of
printed letters a third, and of random pixels all (docs/records/checks/doubt.txt, by `scripts/check doubt`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.digit import Floats, blurred
from mnist_cuda.data.idx import SIDE, Images, Labels

FAR = 2.0  # a distance, where a pixel is from 0 to 1


def nearest(images: Images, classes: NDArray[np.integer], among: Images, labels: Labels) -> NDArray[np.float64]:
    """For each of N images (N,28,28) its distance to the nearest of its class in `among` (M,28,28); inf without any."""
    found = np.full(len(images), np.inf)
    for label in set(classes.tolist()):
        others = _form(among[labels == label])
        for k in np.flatnonzero(classes == label) if len(others) else ():
            found[k] = np.sqrt(((others - _form(images[k : k + 1])) ** 2).sum(1).min())
    return found


def _form(images: Images) -> Floats:
    """The images (N,196) as they are compared."""
    small: Floats = blurred(blurred(images.astype(np.float32) / np.float32(255)))[:, ::2, ::2]
    return small.reshape(len(images), SIDE**2 // 4)
