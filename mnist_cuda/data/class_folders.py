"""A folder of pictures by class as a Dataset: which pictures there are, and what is kept of them for the next time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import rules
from mnist_cuda.data.catalogue import SYNTHETIC, cache_folder
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.data.digit import FORMS, MNIST, SCALED, in_form
from mnist_cuda.data.idx import CLASSES, SIDE, Images
from mnist_cuda.data.looks import like_mnist
from mnist_cuda.data.picture_file import SUFFIXES, picture_files, read_picture
from mnist_cuda.errors import DataError, DataWarning, UsageError
from mnist_cuda.files import replacing, take_lock

_TRAIN, _TEST, _MORE = ("train", "training"), ("test", "testing"), ("val", "valid", "validation", "dev")
_DIGITS = tuple(str(digit) for digit in range(CLASSES))
_SAMPLE = 200  # pictures at most that are looked at for their form
_VERSION = 1  # of what is kept; another reading of pictures needs another


@dataclass(frozen=True)
class _Picture:
    path: Path
    label: int
    test: bool


@dataclass(frozen=True)
class _Read:
    """What was read. doubts: how many pictures do not look like a digit, and the first with the reason."""

    form: str
    images: Images
    doubts: int
    first: str


@rules.checked(folder=rules.PATH, form=rules.TEXT, test_share=rules.RATE, seed=rules.NATURAL)
def dataset_from_folder(folder: str | Path, *, form: str = "auto", test_share: float = 0.2, seed: int = 0) -> Dataset:
    """A data set of image files by class, read by Pillow: `FOLDER/train/CLASS/*.png` and `FOLDER/test/CLASS/*.png`.

    `training`, `testing` and, without a test folder, `val` do as well. Without these, `FOLDER/CLASS/*.png`, of which
    `test_share` of every class, chosen by the seed, is the test set. The names of the classes, at most 10, give the
    labels in their order: `0` to `9`, or `bag`, `boot`, .... Folders within a class's are read, too.

    form: how pictures become 28x28 pixels. `mnist`: the ink of one digit, on paper of any colours and light, is brought
    into MNIST's form (`as_mnist`). `scaled`: they are made grey, and scaled. `auto`: `mnist` where the classes are
    digits and the pictures, in that form, resemble MNIST's on average; else `scaled`. The model keeps it, and `predict`
    brings a picture into the same form. The result stays in the cache until a file's name, size or time changes.

    Warns (DataWarning) of pictures that look like no digit, and as `dataset_of`. Raises DataError for a folder that is
    none of these, for a link out of it and for a file that cannot be read, UsageError for another form, and
    UnavailableError without Pillow.
    """
    if form not in ("auto", *FORMS):
        raise UsageError(f"form is {form!r}, expected auto, {' or '.join(FORMS)}")
    if not 0 <= test_share < 1:
        raise DataError(f"test_share is {test_share}, expected at least 0 and less than 1")
    root = Path(folder)
    names, pictures, held = _pictures(root, test_share, seed)
    read = _kept(root, form, set(names) <= set(_DIGITS), pictures)
    if read.doubts:
        text = (
            f"{root}: {read.doubts} of {len(pictures)} pictures do not look like one digit, the first is {read.first}"
        )
        warnings.warn(text, DataWarning, stacklevel=2)
    labels = np.array([picture.label for picture in pictures], np.uint8)
    test = np.array([picture.test for picture in pictures], bool)
    classes = () if set(names) <= set(_DIGITS) else tuple(names)
    train_half, test_half = ((read.images[half], labels[half]) for half in (~test, test))
    name = root.resolve().name
    read_as = f"pictures by class, in the form {read.form}"
    if held:
        read_as += f": {test_share:.0%} of each class, chosen by seed {seed}, are the test set"
    data = Dataset(name, name, str(root), *train_half, *test_half, classes=classes, form=read.form, read_as=read_as)
    data.warn_of_looks()
    return data


def _pictures(root: Path, test_share: float, seed: int) -> tuple[list[str], list[_Picture], bool]:
    """The names of the classes; every picture, training ones first, class by class; whether some were held out."""
    train, test = _halves(root)
    names = _classes(train)
    if test and (others := set(_folders(test)) - set(names)):
        raise DataError(f"{test}: it has a class {min(others)}, which {train} does not have")
    pictures = []
    for label, name in enumerate(names):
        if name not in _folders(train):  # digits that do not occur
            continue
        files = picture_files(train / name)
        held: set[Path] = set()
        if test is None:
            stream = np.random.PCG64(np.random.SeedSequence([seed, 3, label]))
            order = np.random.Generator(stream).permutation(len(files))
            held = {files[k] for k in order[: max(1, round(test_share * len(files)))]}
        pictures += [_Picture(file, label, file in held) for file in files]
        if test and name in _folders(test):
            pictures += [_Picture(file, label, True) for file in picture_files(test / name)]
    inside = Path(os.path.realpath(root))
    for picture in pictures:
        if picture.path.is_symlink() and not Path(os.path.realpath(picture.path)).is_relative_to(inside):
            raise DataError(f"{picture.path}: a link out of {root}, expected a picture in it: copy it there")
    return names, sorted(pictures, key=lambda picture: (picture.test, picture.label)), test is None


def _halves(root: Path) -> tuple[Path, Path | None]:
    """The folders that have the classes' folders, of training and of test pictures."""
    by_name = {name.casefold(): root / name for name in _folders(root) if _folders(root / name)}
    train, test, more = (
        next((by_name[name] for name in names if name in by_name), None) for names in (_TRAIN, _TEST, _MORE)
    )
    if train is None and (test or more):
        raise DataError(f"{root}: it has a folder {(test or more).name}, but none for training: name it train")  # type: ignore[union-attr]
    if train is None:
        only = list(by_name.values())
        return _halves(only[0]) if len(only) == len(_folders(root)) == 1 else (root, None)
    if test and more:
        warnings.warn(f"{more}: these pictures are not used, {test} has the test pictures", DataWarning, stacklevel=4)
    return train, test or more


def _folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, hidden ones left out. Raises DataError for links out of it."""
    try:
        found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))
    except OSError as error:
        why = error.strerror if folder.is_dir() else "not a folder, expected one with a folder for each class"
        raise DataError(f"{folder}: {why}") from error
    for path in found:
        if path.is_symlink():
            raise DataError(f"{path}: a link to a folder, expected the folder itself: copy it, or name where it leads")
    return [path.name for path in found]


def _classes(folder: Path) -> list[str]:
    names = _folders(folder)
    if not 1 <= len(names) <= CLASSES:
        raise DataError(f"{folder}: it has {len(names)} folders, expected one for each of at most {CLASSES} classes")
    beside = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    if beside:
        text = f"{folder}: {len(beside)} pictures beside the classes' folders are not used, such as {beside[0].name}"
        warnings.warn(text, DataWarning, stacklevel=4)
    return list(_DIGITS) if set(names) <= set(_DIGITS) else names


def _kept(root: Path, form: str, digits: bool, pictures: list[_Picture]) -> _Read:
    """What was read of the same files before, from the cache; else read now, and kept there."""
    facts: list[Any] = [_VERSION, form, digits]
    for picture in pictures:
        try:
            status = picture.path.stat()
        except OSError as error:
            raise DataError(f"{picture.path}: cannot be read: {error.strerror}") from error
        facts.append((str(picture.path), status.st_size, status.st_mtime_ns))
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    target = None
    with contextlib.suppress(DataError):
        place = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
        target = cache_folder(replace(SYNTHETIC, name="pictures")) / f"{place}.npz"
        if read := _unpacked(target, key, len(pictures)):
            return read
    if form == "auto":
        form = _form(pictures) if digits else SCALED
    read = _read(pictures, form)
    if target:
        _keep(target, key, read)
    return read


def _unpacked(target: Path, key: str, count: int) -> _Read | None:
    """What is kept under this key; None for anything else: another key, a damaged file, none."""
    try:
        with open(target, "rb") as file, np.load(file) as kept:  # each array has a checksum
            facts = json.loads(str(kept["facts"]))
            images = kept["images"]
        sound = facts[0] == key and images.shape == (count, SIDE, SIDE) and images.dtype == np.uint8
        return _Read(facts[1], images, facts[2], facts[3]) if sound else None
    except Exception:  # whatever a damaged archive does
        return None


def _keep(target: Path, key: str, read: _Read) -> None:
    """Keep it; where that cannot be done, nothing happens."""
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(target.parent, fcntl.LOCK_SH)[0]
        try:
            with replacing(target, sync=False) as file:
                np.savez(file, images=read.images, facts=json.dumps([key, read.form, read.doubts, read.first]))
        finally:
            os.close(lock)


def _form(pictures: list[_Picture]) -> str:
    """The form for pictures of classes that are named by digits."""
    some = pictures[:: -(-len(pictures) // _SAMPLE)]
    images = np.stack([in_form(read_picture(picture.path), MNIST)[0].pixels for picture in some])
    return MNIST if like_mnist(images, np.array([picture.label for picture in some])) else SCALED


def _read(pictures: list[_Picture], form: str) -> _Read:
    """Read the pictures, with a line that says how long it takes."""
    from mnist_cuda.terminal.console import Estimate, LiveLine, make_console

    console, count = make_console(stderr=True), len(pictures)
    images: NDArray[np.uint8] = np.empty((count, SIDE, SIDE), np.uint8)
    estimate, doubts, first = Estimate(console, f"reading {count} pictures takes about"), 0, ""
    with LiveLine(console) as line:
        for k, picture in enumerate(pictures):
            if k % 20 == 0:
                line.show(k / count, f"{k} of {count} pictures")
                estimate.after(k / count)
            digit = in_form(read_picture(picture.path), form)[0]
            images[k] = digit.pixels
            if digit.doubt:
                doubts, first = doubts + 1, first or f"{picture.path}: {digit.doubt}"
    return _Read(form, images, doubts, first)
