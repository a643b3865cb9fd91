"""The one way to a data set: find or make it, check it, and say what it really is."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import warnings
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda import rules
from mnist_cuda.data import unpacked
from mnist_cuda.data.arrays import pair_of
from mnist_cuda.data.catalogue import (
    CHOICES,
    DATASETS,
    GENERATED,
    OWN,
    SYNTHETIC,
    ArraysInfo,
    DataFile,
    DatasetInfo,
    without_password,
)
from mnist_cuda.data.download import Timeouts, fetch, is_published
from mnist_cuda.data.file_roles import ROLES, idx_files, role_of
from mnist_cuda.data.idx import SIDE, Images, Labels, check_pair, parse_images, parse_labels, unzipped_sha256
from mnist_cuda.data.places import Member, Place, place_of
from mnist_cuda.errors import DataError, UsageError

# Without a network `auto` must not keep anybody waiting: two mirrors have this long each to answer.
_IMPATIENT = Timeouts(connect=4)
_LOOK = 10_000  # files at which it is seen whether there are pictures
_OWN = "; --dataset own takes files of your own as they are"
_TORCHVISION = (*(info.torchvision for info in DATASETS.values()), "EMNIST", "QMNIST")  # folders, with `raw` in each
_ACCEPTED = (
    "MNIST's four files, such as train-images-idx3-ubyte.gz, an .npz file, one or two .csv files, or a folder of "
    "pictures for each class"
)


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, and where it came from. The arrays are read-only.

    name: what it is, one of catalogue.CHOICES but `auto`. requested: what was asked for (also `auto`). source: the
    file or folder it was read from, `generated` or `arrays`. train_images (N,28,28), train_labels (N,), test_images
    (M,28,28), test_labels (M,): uint8, labels below 10. hashes: sha256 of each file as it was read, by file name.
    warning: the sentence that has to be shown to the user, if `auto` had to take another data set than MNIST. digest:
    sha256 of the four arrays; known_digest gives it where it has just been checked. classes: their names, where they
    are not digits. form: the form that pictures were brought into (`digit.in_form`), empty for data that were none.
    read_as: how data of one's own were read, and which of them are the test set. limit: of `first`, 0 for all.

    Raises DataError for arrays that are none of these.
    """

    name: str
    requested: str
    source: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    hashes: dict[str, str] = field(default_factory=dict)
    warning: str | None = None
    classes: tuple[str, ...] = ()
    form: str = ""
    read_as: str = ""
    limit: int = 0
    known_digest: InitVar[str | None] = None
    digest: str = field(init=False)

    def __post_init__(self, known_digest: str | None) -> None:
        pairs = (self.train_images, self.train_labels, "training "), (self.test_images, self.test_labels, "test ")
        try:
            for pair in pairs:
                pair_of(*pair)
        except ValueError as error:
            raise DataError(str(error)) from error
        for array in self.arrays:
            array.flags.writeable = False
        object.__setattr__(self, "digest", known_digest or _sha256(self.arrays).hexdigest())

    def __repr__(self) -> str:
        return f"Dataset({self.name}, {len(self.train_labels)} training and {len(self.test_labels)} test images)"

    @rules.checked(count=rules.NATURAL)
    def first(self, count: int) -> Dataset:
        """The data set with only the first `count` training images. UsageError where there are not so many."""
        if count > len(self.train_labels):
            raise UsageError(f"there are {len(self.train_labels)} training images, and the first {count} are wanted")
        images, labels = self.train_images[:count], self.train_labels[:count]
        return replace(self, train_images=images, train_labels=labels, limit=count, known_digest=None)

    @cached_property
    def part_digests(self) -> tuple[str, str]:
        """sha256 of the training images with their labels, and of the test images with theirs."""
        for info in (*DATASETS.values(), SYNTHETIC):
            if info.digest == self.digest and info.part_digests:
                return info.part_digests
        train, test = (_sha256(self.arrays[k : k + 2]).hexdigest() for k in (0, 2))
        return train, test

    def warn_of_looks(self) -> None:
        """Warn in a line (DataWarning) of images that are dark on light, and of digits that are not upright."""
        from mnist_cuda.data import looks  # for data of one's own alone

        arrays = self.arrays
        looks.warn(self.name, arrays[:2], arrays[2:], digits=not self.classes)

    @property
    def arrays(self) -> tuple[Images, Labels, Images, Labels]:
        """All four, in the order of the digest."""
        return (self.train_images, self.train_labels, self.test_images, self.test_labels)


def _sha256(arrays: Iterable[Images | Labels]) -> Any:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest


@rules.checked(
    name=rules.TEXT,
    data_dir=rules.optional(rules.PATH),
    offline=rules.SWITCH,
    mirror=rules.optional(rules.TEXT),
    seed=rules.NATURAL,
)
def load(
    name: str = "auto",
    *,
    data_dir: str | Path | None = None,
    offline: bool = False,
    mirror: str | None = None,
    seed: int = 0,
) -> Dataset:
    """Load a data set; all except your own are checked by SHA-256.

    name: `auto`, `mnist`, `fashion-mnist`, `kmnist`, `synthetic` or `own`. data_dir: read only from there: a folder
    with the four files (.gz or uncompressed, also in `raw` or `MNIST/raw`, as torchvision stores them), an .npz file
    with Keras' keys, a .csv file or a folder with one or two, or a folder of pictures by class. `auto` then means mnist
    where files have MNIST's names, else whatever is there, and `own` takes all of these as they are. Without data_dir
    the user's cache is used, and missing files are downloaded unless `offline`; if that fails, `auto` gives synthetic
    digits and a warning. mirror: URL to download from. seed: of the synthetic digits.

    Raises UsageError for an unknown name or a mirror where nothing is fetched, DataError if the data set is missing,
    unreachable or not what it should be.
    """
    if name not in CHOICES:
        raise UsageError(f"data set '{name}' is unknown, expected one of {', '.join(CHOICES)}")
    if mirror is not None and (offline or data_dir is not None or name == "synthetic"):
        instead = "a data folder" if data_dir is not None else "--offline" if offline else "synthetic digits"
        raise UsageError(
            f"mirror '{without_password(mirror)}': with {instead} nothing is fetched, leave out one of the two"
        )
    if data_dir is not None:
        if name == "synthetic":
            raise UsageError("synthetic digits are generated, they cannot be read from a data folder")
        data = _from(name, Path(data_dir))
        if data.name in OWN and not data.form:  # of unknown origin; pictures are looked at as they are read
            data.warn_of_looks()
        return data
    if name in OWN:
        raise UsageError(f"data set '{name}' is data of your own: name their file or folder by --data-dir")
    if name == "synthetic":
        return _generate(name, seed, None)
    if name == "auto":
        info = DATASETS["mnist"]
        try:
            return _cached(info, name, offline, mirror, _IMPATIENT)
        except DataError as error:
            warning = f"MNIST IS NOT HERE, these are synthetic digits instead: {error}"
            warnings.warn(warning, stacklevel=3)  # of the caller, beyond the check of the arguments
            return _generate(name, seed, warning)
    info = DATASETS[name]
    return _cached(info, name, offline, mirror)


def _cached(
    info: DatasetInfo, requested: str, offline: bool, mirror: str | None, timeouts: Timeouts | None = None
) -> Dataset:
    """The data set from the cache: as it was unpacked before, or from the published files (so with a named mirror)."""
    if mirror is None and (content := unpacked.read(info)):
        path = unpacked.path(info)
        return _split(info, requested, str(path.parent), {path.name: str(info.digest)}, content)
    folder = fetch(info, offline=offline, mirror=mirror, timeouts=timeouts)
    return _read(info, requested, *find_files(info, folder))


def _from(requested: str, path: Path) -> Dataset:
    """The data set at a path, in whatever form."""
    info = DATASETS.get("mnist" if requested == "auto" else requested)
    place, prefix, files = _idx_files(info, requested == "auto", path)
    if files and path.is_file() and role_of(path.name):
        raise DataError(f"{path}: this is one of a data set's four files: name the folder that has all of them")
    if files and info and not (requested == "auto" and prefix):
        return _read(info, requested, place, files)
    data = _own_idx(place, files) if files else _own(place, info if requested != "auto" else None)
    return _recognised(data, requested, info)


def _recognised(data: Dataset, requested: str, info: DatasetInfo | None) -> Dataset:
    """The data under the name that they have been asked for by or, for `auto`, that their digest is known by."""
    by_digest = {known.digest: known.name for known in DATASETS.values() if known.digest}
    found = by_digest.get(data.digest)
    if requested not in (*OWN, "auto") and info and found != info.name:
        are = f"these are the arrays of {found}" if found else "its arrays are not those of the published files"
        are = are if info.digest else f"no hash of {info.name}'s arrays is known, expected its four files"
        raise DataError(f"{data.source}: {are}, expected {info.name}{_OWN}")
    name = requested if requested in OWN else found or OWN[0]
    return replace(data, name=name, requested=requested, known_digest=data.digest)


def _own(place: Place, info: DatasetInfo | None) -> Dataset:
    """Data from other files than idx files."""
    from mnist_cuda.data.own_files import read_own  # here and below, for the few who have such
    from mnist_cuda.data.picture_file import SUFFIXES

    path = place.path
    found = read_own(place)
    if found:
        pairs = (*found.train, *found.test)
        more = {"hashes": found.hashes, "classes": found.classes, "read_as": found.read_as}
        return Dataset(OWN[0], OWN[0], str(path), *pairs, **more)  # type: ignore[arg-type]
    if path.is_dir() and _has_classes(path):
        from mnist_cuda import dataset_from_folder  # which imports this module

        return dataset_from_folder(path)
    expected = f"the files of {info.name} ({', '.join(file.name for file in info.files)})" if info else _ACCEPTED
    flat = any(member.ending in SUFFIXES for member in place.members)
    what = "put the pictures of each class into a folder of its own" if path.is_dir() else "unpack its pictures"
    hint = f"; {what}" if flat else ""
    if not path.is_dir() and path.suffix.lower() != ".zip" and not place.part:
        raise DataError(f"{path}: expected a folder, or a file that ends in .npz, .csv, .tsv, .csv.gz or .zip")
    raise DataError(f"{path}: expected {expected}; {place.holding}{hint}")


def _has_classes(path: Path) -> bool:
    """Whether there are pictures one or two folders below."""
    from mnist_cuda.data.picture_file import SUFFIXES

    try:
        for depth in ("*/*", "*/*/*"):
            found = (entry for entry in islice(path.glob(depth), _LOOK) if entry.suffix.lower() in SUFFIXES)
            if next(found, None):
                return True
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    return False


def _own_idx(place: Place, files: dict[str, Member]) -> Dataset:
    """Idx files as they are."""
    contents = {role: _member_of(role, None, place, files).read() for role in ROLES}
    arrays = _parsed(contents, files)
    hashes = {files[role].file_name: hashlib.sha256(contents[role]).hexdigest() for role in ROLES}
    return Dataset(OWN[0], OWN[0], str(place.path), *arrays, hashes)


def _parsed(contents: dict[str, bytes], files: dict[str, Member]) -> tuple[Images, Labels, Images, Labels]:
    """The four arrays of idx files."""
    halves: list[Images | Labels] = []
    for half in ("train", "test"):
        first, second = files[f"{half}_images"], files[f"{half}_labels"]
        images = parse_images(contents[f"{half}_images"], first.shown)
        labels = parse_labels(contents[f"{half}_labels"], second.shown)
        check_pair(images, first.file_name, labels, second.shown)
        halves += [images, labels]
    return halves[0], halves[1], halves[2], halves[3]


def _read(info: DatasetInfo, requested: str, place: Place, files: dict[str, Member]) -> Dataset:
    """The data set from its published files; unzipped unless the cache has them so."""
    contents, hashes = {}, {}
    for role, file in zip(ROLES, info.files, strict=True):
        contents[role], member, sha256 = read_file(role, file, place, files)
        hashes[member.file_name] = sha256
    zipped = any(member.file_name.lower().endswith(".gz") for member in files.values())
    if zipped and (unzipped := unpacked.read(info)):
        return _split(info, requested, str(place.path), hashes, unzipped)
    data = Dataset(info.name, requested, str(place.path), *_parsed(contents, files), hashes)
    if zipped and data.digest == info.digest:
        unpacked.write(info, (array.data for array in data.arrays))
    return data


def _split(info: ArraysInfo, requested: str, source: str, hashes: dict[str, str], content: bytes) -> Dataset:
    """The data set from its arrays as `unpacked.read` gives them."""
    train, test = info.counts
    ends = np.cumsum((train * SIDE**2, train, test * SIDE**2))
    train_images, train_labels, test_images, test_labels = np.split(np.frombuffer(content, np.uint8), ends)
    training = train_images.reshape(-1, SIDE, SIDE), train_labels
    testing = test_images.reshape(-1, SIDE, SIDE), test_labels
    return Dataset(info.name, requested, source, *training, *testing, hashes, known_digest=info.digest)


def _generate(requested: str, seed: int, warning: str | None) -> Dataset:
    """Synthetic digits. Those of seed 0 are drawn once, and then read from the cache, if there is one."""
    if seed == 0:
        with contextlib.suppress(DataError):
            if content := unpacked.read(SYNTHETIC):
                return replace(
                    _split(SYNTHETIC, requested, GENERATED, {}, content), warning=warning, known_digest=SYNTHETIC.digest
                )
    from mnist_cuda.data import synthetic  # here, since it prepares its strokes when it is imported

    if sys.stderr.isatty():  # people would wonder; a log has the data's line soon after
        print(f"drawing {sum(synthetic.COUNTS.values())} synthetic digits, some seconds", file=sys.stderr)
    train, test = synthetic.generate("train", seed), synthetic.generate("test", seed)
    data = Dataset(SYNTHETIC.name, requested, GENERATED, *train, *test, warning=warning)
    if data.digest == SYNTHETIC.digest:
        with contextlib.suppress(DataError):
            unpacked.write(SYNTHETIC, (array.data for array in data.arrays))
    return data


def find_files(info: DatasetInfo, path: Path) -> tuple[Place, dict[str, Member]]:
    """Where at a path the files of a published data set are, and those that are there by role.

    Raises DataError where there is none.
    """
    place, _, files = _idx_files(info, False, path)
    if not files:
        expected = ", ".join(file.name for file in info.files)
        raise DataError(f"{path}: expected the files of {info.name} ({expected}); {place.holding}")
    return place, files


def _idx_files(info: DatasetInfo | None, auto: bool, path: Path) -> tuple[Place, str, dict[str, Member]]:
    """Where at a path idx files are, their prefix, and the files by role: there, or where torchvision puts them."""
    first = place_of(path)
    below = (info.torchvision,) if info and not auto else _TORCHVISION
    prefer = ("", info.name) if info else ("",)
    try:
        folders = [path / name for name in ("raw", *(f"{name}/raw" for name in below)) if (path / name).is_dir()]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    for place in (first, *map(place_of, folders)):
        prefix, files = idx_files(place, prefer)
        if files:
            return place, prefix, files
    return first, "", {}


def _member_of(role: str, file: DataFile | None, place: Place, files: dict[str, Member]) -> Member:
    """The file of this role. Raises DataError where it is missing."""
    if role in files:
        return files[role]
    name, raw = (file.name, file.raw_name) if file else _NAMES[role]
    raise DataError(f"{place.path / name}: file is missing (neither it nor {raw} is there; {place.holding})")


_NAMES = {role: (file.name, file.raw_name) for role, file in zip(ROLES, DATASETS["mnist"].files, strict=True)}


def read_file(role: str, file: DataFile, place: Place, files: dict[str, Member]) -> tuple[bytes, Member, str]:
    """The bytes of one published file, gzip or uncompressed, where it was found, and the sha256.

    Raises DataError if it is missing, unreadable, damaged or another than the catalogue's.
    """
    member = _member_of(role, file, place, files)
    content = member.read()
    sha256 = hashlib.sha256(content).hexdigest()
    zipped = member.file_name.lower().endswith(".gz")
    if not (is_published(file, content, sha256) if zipped else sha256 == file.raw_sha256):
        raise _wrong_file(content, member, file, sha256, zipped)
    return content, member, sha256


def _wrong_file(content: bytes, member: Member, file: DataFile, sha256: str, zipped: bool) -> DataError:
    """Why a file with another content is refused, as exactly as can be told."""
    path, expected = member.shown, file.sha256 if zipped else file.raw_sha256
    if sha256 in (file.sha256, file.raw_sha256):
        is_, other = ("not gzip data", file.raw_name) if zipped else ("gzip data", file.name)
        return DataError(f"{path}: the right file, but it is {is_}: rename it to {other}")
    hashes = {sha256, unzipped_sha256(content)} - {None}
    for info in DATASETS.values():
        if any(hashes & {f.sha256, f.raw_sha256} for f in info.files):
            other = f"; --dataset {info.name} takes it" if file not in info.files else ""
            return DataError(
                f"{path}: this is a file of {info.name}, expected {file.name} with sha256 {expected}{other}"
            )
    parse = parse_images if "images" in file.name else parse_labels
    try:
        parse(content, path)
    except DataError as error:
        if zipped and len(content) == file.size:
            return DataError(f"{path}: sha256 is {sha256}, expected {expected}: the file is damaged, replace it")
        return error
    if expected is None:
        return DataError(f"{path}: no hash is known for the uncompressed file, expected {file.name}{_OWN}")
    return DataError(
        f"{path}: expected sha256 {expected}, found {sha256}: a sound idx file, but not the published one{_OWN}"
    )
