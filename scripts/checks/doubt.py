"""Measures how often `predict` doubts what it reads, and how often it is right: digits of MNIST, letters, noise.

RUN is a model that was trained on MNIST. Letters and digits are those of matplotlib's fonts, turned and slanted a
little; noise is 28x28 random pixels, seen as they are. A letter such as O, l or S is a digit's shape, so no measure
finds all of them.
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path

import numpy as np

SEED = 0
TURN, SLANT = 8.0, 0.15  # degrees to either side, shear
FONTS = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmb10", "cmr10", "cmss10", "cmtt10")
LIKE_DIGITS = "BCDGIJLOPQRSTUVYZbcgijlopqrstuvyz"  # letters that some digit resembles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("model", type=Path, metavar="RUN", help="a run or a model's file")


def run(args: argparse.Namespace) -> int:
    """Print a row for each kind of picture."""
    from mnist_cuda.commands.predict import SURE
    from mnist_cuda.data.likeness import FAR, nearest
    from mnist_cuda.run.checkpoint import load_model
    from mnist_cuda.run.confusion import load_data_of
    from mnist_cuda.run.evaluation import predict

    model = load_model(args.model)
    data = load_data_of(args.model, model)
    rng = np.random.default_rng(SEED)
    letters, drawn = written(string.ascii_letters, rng), written(string.digits, rng)
    unlike = [k for k, letter in enumerate(letters[1]) if letter not in LIKE_DIGITS]
    kinds = {
        "MNIST's test images": (data.test_images, data.test_labels.astype(str)),
        "digits of fonts": drawn,
        "letters": (letters[0], None),
        f"letters but {LIKE_DIGITS}": (letters[0][unlike], None),
        "noise": (rng.integers(0, 256, (1000, 28, 28), np.uint8), None),
    }
    trained = ", ".join(f"{name} {model.metadata.get(name)}" for name in ("engine", "precision", "epochs", "seed"))
    print(f"{trained}; far: further than {FAR}; unsure: a probability below {SURE}; doubted: one of the two")
    print(f"{'':53}{'images':>7}{'far':>9}{'unsure':>9}{'doubted':>9}  wrong: doubted   others")
    for kind, (images, labels) in kinds.items():
        answers = predict(model, images)
        far = nearest(images, answers.classes, data.train_images, data.train_labels) > FAR
        unsure = answers.probabilities.max(axis=1) < SURE
        doubted = far | unsure
        cells = [f"{100 * share.mean():.1f} %" for share in (far, unsure, doubted)]
        if labels is not None:
            wrong = answers.classes.astype(str) != labels
            cells += [f"{100 * wrong[some].mean():.1f} %" for some in (doubted, ~doubted)]
        print(f"{kind:53}{len(images):7}{''.join(f'{cell:>9}' for cell in cells[:3])}  ".rstrip(), end="")
        print("".join(f"{cell:>{width}}" for cell, width in zip(cells[3:], (16, 9), strict=False)))
    return 0


def written(characters: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Each of the characters in each font as `predict` sees it (N,28,28), and which it is (N,)."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    from mnist_cuda.data.digit import as_mnist

    images, names = [], []
    for file in sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf")):
        if not file.name.startswith(FONTS) or "Display" in file.name:
            continue
        font = ImageFont.truetype(str(file), 64)
        for character in characters:
            picture = Image.new("L", (160, 160))
            ImageDraw.Draw(picture).text((80, 80), character, fill=255, font=font, anchor="mm")
            picture = picture.rotate(rng.uniform(-TURN, TURN), Image.Resampling.BICUBIC)
            shear = rng.uniform(-SLANT, SLANT)
            slant = (1, shear, -80 * shear, 0, 1, 0)
            picture = picture.transform(picture.size, Image.Transform.AFFINE, slant, Image.Resampling.BICUBIC)
            images.append(as_mnist(np.asarray(picture)).pixels)
            names.append(character)
    return np.stack(images), np.array(names)
