"""Under which names people have a data set's four files: the one table from a file's name to its role."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mnist_cuda.data.places import Member, Place
from mnist_cuda.errors import DataError

ROLES = ("train_images", "train_labels", "test_images", "test_labels")

# The words of a name, in any case, separated by anything else: PREFIX HALF WHAT FORMAT..., as in `train-images-idx3-
# ubyte.gz`, `train-images.idx3-ubyte`, `emnist-digits-test-labels-idx1-ubyte` and `qmnist-train-labels-idx2-int`.
HALVES = {"train": "train", "t10k": "test", "test": "test", "training": "train", "testing": "test", "test10k": "test"}
_WHATS = {"images": "images", "labels": "labels", "image": "images", "label": "labels"}
_FORMAT = {"idx", "idx1", "idx2", "idx3", "ubyte", "int", "bin"}


def _words(name: str) -> list[str]:
    return re.split("[^a-z0-9]+", name.lower())


def role_of(name: str) -> tuple[str, str] | None:
    """The prefix of a file's name, such as `emnist-digits`, and its role; None for another file."""
    words = _words(name.lower().removesuffix(".gz"))
    for k in range(len(words) - 1):
        half, what = HALVES.get(words[k]), _WHATS.get(words[k + 1])
        if half and what and _FORMAT.issuperset(words[k + 2 :]):
            return "-".join(words[:k]), f"{half}_{what}"
    return None


def half_of(stem: str) -> tuple[str, str] | None:
    """The prefix and the half, `train` or `test`, of a table's name without its ending, such as `mnist_train`."""
    *prefix, last = _words(stem)
    return ("-".join(prefix), HALVES[last]) if last in HALVES else None


def _rank(member: Member) -> tuple[object, ...]:
    """Of several files for one role the one with the least is taken: gzip, then spelt most as MNIST's authors do."""
    words = _words(member.file_name)
    half = next(k for k, word in enumerate(HALVES) if word in words)
    plain = re.search(r"-(images|labels)-idx\d-", member.file_name) is None
    return not member.file_name.lower().endswith(".gz"), half, plain, len(member.parts), member.parts


def idx_files(place: Place, prefer: Sequence[str] = ("",)) -> tuple[str, dict[str, Member]]:
    """The prefix and the files of the one data set in a place, by role; some may be missing, or all.

    prefer: prefixes that come before others. A file may lie in a folder of such a name. Raises DataError where several
    data sets are complete.
    """
    found: dict[str, dict[str, Member]] = {}
    for member in sorted((m for m in place.members if role_of(m.file_name)), key=_rank):
        prefix, role = role_of(member.file_name) or ("", "")
        found.setdefault(prefix, {}).setdefault(role, member)
    return _only(place, found, len(ROLES), prefer)


def _only(
    place: Place, found: dict[str, dict[str, Member]], wanted: int, prefer: Sequence[str]
) -> tuple[str, dict[str, Member]]:
    """The data set of which the most files are there, a preferred one first; DataError if that is not one alone."""
    if not found:
        return "", {}
    most = min(wanted, max(map(len, found.values())))
    names = [name for name, files in found.items() if len(files) >= most]
    name = next((name for name in prefer if name in names), names[0])
    if name not in prefer and len(names) > 1:
        example = place.path.with_name(names[0]) if place.part else place.path / names[0]
        raise DataError(
            f"{place.path}: it holds several data sets, {_list(sorted(names))}: name one, such as {example}"
        )
    return name, found[name]


def table_files(place: Place, members: Iterable[Member]) -> tuple[Member, Member | None]:
    """The table to train on and, where there is one, that to test on: `train.csv` and `test.csv`, with any prefix.

    Otherwise the one table that is there. Raises DataError where there are several.
    """
    members = list(members)
    found: dict[str, dict[str, Member]] = {}
    for member in sorted(members, key=lambda member: member.parts):
        named = half_of(member.stem)
        if named:
            found.setdefault(named[0], {}).setdefault(named[1], member)
    found = {prefix: halves for prefix, halves in found.items() if "train" in halves}
    if found:
        _, halves = _only(place, found, 2, ("",))
        return halves["train"], halves.get("test")
    if len(members) > 1:
        names = _list([member.file_name for member in members])
        raise DataError(f"{place.path}: it holds several tables, {names}: name one, or call two train.csv and test.csv")
    return members[0], None


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
