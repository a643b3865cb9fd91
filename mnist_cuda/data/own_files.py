"""Files of one's own that are not idx files: an .npz, or one or two tables; with test images held out if need be."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field, replace

import numpy as np

from mnist_cuda.data.arrays import hold_out, named_pair_of
from mnist_cuda.data.catalogue import DATASETS
from mnist_cuda.data.csv_data import ENDINGS, read_csv
from mnist_cuda.data.file_roles import table_files
from mnist_cuda.data.idx import Images, Labels
from mnist_cuda.data.npz_data import ENDING, read_npz
from mnist_cuda.data.places import Member, Place
from mnist_cuda.errors import DataError

HELD = "a fifth of each class, chosen by seed 0, is the test set"
_Pair = tuple[Images, Labels]


@dataclass(frozen=True)
class OwnArrays:
    """What files held. train, test: images (N,28,28) and labels (N,). read_as: how they were read, in a few words."""

    train: _Pair
    test: _Pair
    classes: tuple[str, ...]
    read_as: str
    hashes: dict[str, str] = field(default_factory=dict)


def read_own(place: Place) -> OwnArrays | None:
    """The arrays in a place; None where there is neither an .npz file nor a table. Raises DataError."""
    arrays = [member for member in place.members if member.ending == ENDING]
    tables = [member for member in place.members if member.ending in ENDINGS]
    if len(arrays) > 1 or (arrays and tables):
        names = ", ".join(member.file_name for member in (arrays + tables)[:8])
        raise DataError(f"{place.path}: it holds several files of data, {names}: name one")
    if arrays:
        return _of_npz(arrays[0])
    return _of_tables(*table_files(place, tables)) if tables else None


def _of_npz(member: Member) -> OwnArrays:
    content = member.read()
    found = read_npz(member, content)
    hashes = {member.file_name: hashlib.sha256(content).hexdigest()}
    del content
    train, names = _pair(member.shown, "training ", found[0], found[1], None)
    if len(found) == 2:
        return replace(_held(member.shown, train, names, "npz"), hashes=hashes)
    test, _ = _pair(member.shown, "test ", found[2], found[3], names)
    return OwnArrays(train, test, names, "npz", hashes)


def _of_tables(first: Member, second: Member | None) -> OwnArrays:
    if sys.stderr.isatty():  # people would wonder; a log has the data's line soon after
        print(f"reading {first.shown}{f' and {second.file_name}' if second else ''}, some seconds", file=sys.stderr)
    images, labels, sha256 = read_csv(first)
    hashes, why = {first.file_name: sha256}, ""
    if labels is None:
        raise DataError(f"{first.shown}: expected 785 columns, a label and 784 pixels, found 784, without labels")
    train, names = _pair(first.shown, "", images, labels, None)
    del images, labels
    if second:
        images, labels, sha256 = read_csv(second)
        if labels is not None:
            test, _ = _pair(second.shown, "", images, labels, names)
            return OwnArrays(train, test, names, "csv", {**hashes, second.file_name: sha256})
        why = f", {second.file_name} has no labels"
    return replace(_held(first.shown, train, names, f"csv{why}"), hashes=hashes)


def _pair(
    name: str, half: str, images: object, labels: object, names: tuple[str, ...] | None
) -> tuple[_Pair, tuple[str, ...]]:
    try:
        pixels, classes, found = named_pair_of(images, labels, half, names)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    return (pixels, classes), found


def _held(name: str, pair: _Pair, classes: tuple[str, ...], read_as: str) -> OwnArrays:
    """The same in two parts: of a published data set in its own order as published, else chosen by class."""
    images, labels = pair
    for info in DATASETS.values():
        count = info.counts[0]
        if info.digest and len(labels) == sum(info.counts):
            digest = hashlib.sha256()
            for array in (images[:count], labels[:count], images[count:], labels[count:]):
                digest.update(np.ascontiguousarray(array).data)
            if digest.hexdigest() == info.digest:
                parts = (images[:count], labels[:count]), (images[count:], labels[count:])
                return OwnArrays(
                    *parts, classes, f"{read_as}, in {info.name}'s order: the first {count} are to train on"
                )
    try:
        train, test = hold_out(labels)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    parts = (images[train], labels[train]), (images[test], labels[test])
    return OwnArrays(*parts, classes, f"{read_as}: {HELD}")
