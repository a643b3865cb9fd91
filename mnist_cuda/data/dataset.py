"""The one way to a data set: find or make it, check it, and say what it really is."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import warnings
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path

import numpy as np

from mnist_cuda.data import unpacked
from mnist_cuda.data.arrays import pair_of
from mnist_cuda.data.catalogue import CHOICES, DATASETS, SYNTHETIC, ArraysInfo, DataFile, DatasetInfo, without_password
from mnist_cuda.data.download import Timeouts, fetch, is_published
from mnist_cuda.data.idx import SIDE, Images, Labels, check_pair, parse_images, parse_labels
from mnist_cuda.errors import DataError, UsageError
from mnist_cuda.files import read_regular

# Without a network `auto` must not keep anybody waiting: two mirrors have this long each to answer.
_IMPATIENT = Timeouts(connect=4)
GENERATED = "generated"  # where synthetic digits come from
_OWN = "; --dataset idx takes files of your own as they are"


@dataclass(frozen=True)
class Dataset:
    """A data set in memory, and where it came from. The arrays are read-only.

    name: what it is, one of catalogue.CHOICES but `auto`. requested: what was asked for (also `auto`). source: the
    folder it was read from, or `generated`. train_images (N,28,28), train_labels (N,), test_images (M,28,28),
    test_labels (M,): uint8, labels below 10. hashes: sha256 of each file as it was read, by file name. warning: the
    sentence that has to be shown to the user, if `auto` had to take another data set than MNIST. digest: sha256 of
    the four arrays; known_digest gives it where it has just been checked. classes: their names, where they are not
    digits. form: the form that pictures were brought into (`digit.in_form`), empty for data that were none.

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
    known_digest: InitVar[str | None] = None
    digest: str = field(init=False)

    def __post_init__(self, known_digest: str | None) -> None:
        pairs = (self.train_images, self.train_labels, "training "), (self.test_images, self.test_labels, "test ")
        try:
            for pair in pairs:
                pair_of(*pair)
        except ValueError as error:
            raise DataError(str(error)) from error
        digest = hashlib.sha256()
        for array in self.arrays:
            if not known_digest:
                digest.update(np.ascontiguousarray(array).data)
            array.flags.writeable = False
        object.__setattr__(self, "digest", known_digest or digest.hexdigest())

    def __repr__(self) -> str:
        return f"Dataset({self.name}, {len(self.train_labels)} training and {len(self.test_labels)} test images)"

    def first(self, count: int) -> Dataset:
        """The data set with only the first `count` training images. UsageError where there are not so many."""
        if count > len(self.train_labels):
            raise UsageError(f"there are {len(self.train_labels)} training images, and the first {count} are wanted")
        images, labels = self.train_images[:count], self.train_labels[:count]
        return replace(self, train_images=images, train_labels=labels, known_digest=None)

    def warn_of_looks(self) -> None:
        """Warn in a line (DataWarning) of images that are dark on light, and of digits that are not upright."""
        from mnist_cuda.data import looks  # for data of one's own alone

        arrays = self.arrays
        looks.warn(self.name, arrays[:2], arrays[2:], digits=not self.classes)

    @property
    def arrays(self) -> tuple[Images, Labels, Images, Labels]:
        """All four, in the order of the digest."""
        return (self.train_images, self.train_labels, self.test_images, self.test_labels)


def load(
    name: str = "auto",
    *,
    data_dir: str | Path | None = None,
    offline: bool = False,
    mirror: str | None = None,
    seed: int = 0,
) -> Dataset:
    """Load a data set; all except `idx` are checked by SHA-256.

    name: `auto`, `mnist`, `fashion-mnist`, `synthetic` or `idx`. data_dir: read only from this folder (.gz or
    uncompressed files, also in `raw` or `MNIST/raw`, as torchvision stores them); `auto` then means mnist, and `idx`
    any data set with MNIST's file names. Without it the user's cache is used, and missing files are downloaded unless
    `offline`; if that fails, `auto` gives synthetic digits and a warning. mirror: URL to download from. seed: of the
    synthetic digits.

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
        info = DATASETS["mnist" if name in ("auto", "idx") else name]
        if name == "idx":  # the names of MNIST's files, and nothing is known of what is in them
            info = replace(info, name=name, digest=None)
        data = _read(info, name, find_folder(info, Path(data_dir)), checked=name != "idx")
        if name == "idx":
            data.warn_of_looks()
        return data
    if name == "idx":
        raise UsageError("data set 'idx' are files of your own: name their folder by --data-dir")
    if name == "synthetic":
        return _generate(name, seed, None)
    if name == "auto":
        info = DATASETS["mnist"]
        try:
            return _cached(info, name, offline, mirror, _IMPATIENT)
        except DataError as error:
            warning = f"MNIST IS NOT HERE, these are synthetic digits instead: {error}"
            warnings.warn(warning, stacklevel=2)
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
    return _read(info, requested, fetch(info, offline=offline, mirror=mirror, timeouts=timeouts))


def _read(info: DatasetInfo, requested: str, folder: Path, *, checked: bool = True) -> Dataset:
    """The data set from its files in `folder`; unzipped unless the cache has them so.

    checked: whether each has to be the published one.
    """
    files = [read_file(file, folder, checked=checked) for file in info.files]
    hashes = {path.name: sha256 for _, path, sha256 in files}
    zipped = any(path.suffix == ".gz" for _, path, _ in files)
    if zipped and (unzipped := unpacked.read(info)):
        return _split(info, requested, str(folder), hashes, unzipped)
    train_images, test_images = (parse_images(content, str(path)) for content, path, _ in files[::2])
    train_labels, test_labels = (parse_labels(content, str(path)) for content, path, _ in files[1::2])
    check_pair(train_images, info.train_images.name, train_labels, info.train_labels.name)
    check_pair(test_images, info.test_images.name, test_labels, info.test_labels.name)
    data = Dataset(info.name, requested, str(folder), train_images, train_labels, test_images, test_labels, hashes)
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


def find_folder(info: DatasetInfo, data_dir: Path) -> Path:
    """The folder in `data_dir` that has files of the data set: itself, or where torchvision puts them."""
    try:
        for folder in (data_dir, data_dir / "raw", data_dir / info.torchvision / "raw"):
            if any((folder / name).exists() for file in info.files for name in (file.name, file.raw_name)):
                return folder
    except OSError as error:
        raise DataError(f"data folder {data_dir} cannot be read: {error.strerror}") from error
    what = "holds none of the files" if data_dir.is_dir() else "is not a folder; expected one with the files"
    raise DataError(f"data folder {data_dir} {what} of {info.name} ({', '.join(f.name for f in info.files)})")


def read_file(file: DataFile, folder: Path, *, checked: bool = True) -> tuple[bytes, Path, str]:
    """The bytes of one file of a data set in `folder`, gzip or uncompressed, with the path and the sha256.

    Raises DataError if it is missing or unreadable or, where it is `checked`, damaged or another than the catalogue's.
    """
    path = folder / file.name
    expected: str | None = file.sha256
    try:
        if not path.exists():
            path = folder / file.raw_name
            expected = file.raw_sha256
        content = read_regular(path)
    except FileNotFoundError as error:
        raise DataError(f"{folder / file.name}: file is missing (neither it nor {file.raw_name} is there)") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if not checked or (path.name == file.name and is_published(file, content, sha256)):
        expected = sha256
    if sha256 != expected:
        raise _wrong_file(content, path, file, sha256, expected)
    return content, path, sha256


def _wrong_file(content: bytes, path: Path, file: DataFile, sha256: str, expected: str | None) -> DataError:
    """Why a file with another content is refused, as exactly as can be told."""
    if sha256 in (file.sha256, file.raw_sha256):
        is_, other = ("not gzip data", file.raw_name) if path.name == file.name else ("gzip data", file.name)
        return DataError(f"{path}: the right file, but it is {is_}: rename it to {other}")
    for info in DATASETS.values():
        if any(sha256 in (f.sha256, f.raw_sha256) for f in info.files):
            return DataError(f"{path}: this is a file of {info.name}, expected {file.name} with sha256 {expected}")
    parse = parse_images if "images" in file.name else parse_labels
    try:
        parse(content, str(path))
    except DataError as error:
        if path.name == file.name and len(content) == file.size:
            return DataError(f"{path}: sha256 is {sha256}, expected {expected}: the file is damaged, replace it")
        return error
    if expected is None:
        return DataError(f"{path}: no hash is known for the uncompressed file, expected {file.name}{_OWN}")
    return DataError(
        f"{path}: expected sha256 {expected}, found {sha256}: a sound idx file, but not the published one{_OWN}"
    )
