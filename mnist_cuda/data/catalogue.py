"""The data sets that can be named, as data: files, sizes, hashes, mirrors, the cache. Imports nothing heavy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mnist_cuda import cache


@dataclass(frozen=True)
class DataFile:
    """One file of a data set, as its authors publish it.

    name: the gzip file's. size, sha256: of the gzip file, in bytes. raw_sha256: of its uncompressed content, which is
    accepted as it is or compressed anew; None where nobody has published it (then only the gzip file is accepted).
    """

    name: str
    size: int
    sha256: str
    raw_sha256: str | None

    @property
    def raw_name(self) -> str:
        """The uncompressed file's name."""
        return self.name.removesuffix(".gz")


@dataclass(frozen=True, kw_only=True)
class ArraysInfo:
    """The arrays of one data set.

    counts: images to train and to test on. digest: sha256 of the arrays train_images, train_labels, test_images and
    test_labels one after the other, a byte each element; None where it is not known (then nothing is kept unpacked).
    part_digests: of the first two, and of the last two.
    """

    name: str
    counts: tuple[int, int] = (60_000, 10_000)
    digest: str | None = None
    part_digests: tuple[str, str] | None = None

    @property
    def array_bytes(self) -> int:
        """Bytes of the four arrays: 28 x 28 pixels and a label for each image."""
        return sum(self.counts) * (28 * 28 + 1)


@dataclass(frozen=True, kw_only=True)
class DatasetInfo(ArraysInfo):
    """One published data set: its four files and where they are.

    torchvision: the folder torchvision keeps it in. mirrors: base URLs in order, the file names are appended.
    """

    summary: str
    train_images: DataFile
    train_labels: DataFile
    test_images: DataFile
    test_labels: DataFile
    torchvision: str
    mirrors: tuple[str, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The four files, training set first, images before labels."""
        return (self.train_images, self.train_labels, self.test_images, self.test_labels)


DATASETS = {
    info.name: info
    for info in (
        DatasetInfo(
            name="mnist",
            summary="handwritten digits, 60,000 to train on and 10,000 to test on",
            train_images=DataFile(
                "train-images-idx3-ubyte.gz",
                9912422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            train_labels=DataFile(
                "train-labels-idx1-ubyte.gz",
                28881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            test_images=DataFile(
                "t10k-images-idx3-ubyte.gz",
                1648877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            test_labels=DataFile(
                "t10k-labels-idx1-ubyte.gz",
                4542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            torchvision="MNIST",
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            digest="06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
            part_digests=(
                "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
                "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
            ),
        ),
        DatasetInfo(
            name="fashion-mnist",
            summary="clothes in ten classes, in MNIST's format and sizes",
            train_images=DataFile(
                "train-images-idx3-ubyte.gz",
                26421880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            train_labels=DataFile(
                "train-labels-idx1-ubyte.gz",
                29515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            test_images=DataFile(
                "t10k-images-idx3-ubyte.gz",
                4422102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            test_labels=DataFile(
                "t10k-labels-idx1-ubyte.gz",
                5148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            torchvision="FashionMNIST",
            mirrors=(
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
                # Plain http is all that its authors offer; the hashes alone decide what is accepted.
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            # Of Debian's dataset-fashion-mnist: with the published files' names and times in the header, its gzip data
            # have the sha256 above, so what it holds is what they hold.
            digest="ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
            part_digests=(
                "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
                "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
            ),
        ),
        DatasetInfo(
            name="kmnist",
            summary="cursive Japanese characters in ten classes, in MNIST's format and sizes; download not tried here",
            # Sizes and sha256 as TensorFlow Datasets publishes them; nobody here has had the files.
            train_images=DataFile(
                "train-images-idx3-ubyte.gz",
                18165135,
                "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
                None,
            ),
            train_labels=DataFile(
                "train-labels-idx1-ubyte.gz",
                29497,
                "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
                None,
            ),
            test_images=DataFile(
                "t10k-images-idx3-ubyte.gz",
                3041136,
                "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
                None,
            ),
            test_labels=DataFile(
                "t10k-labels-idx1-ubyte.gz",
                5120,
                "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
                None,
            ),
            torchvision="KMNIST",
            mirrors=("https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/"),
        ),
    )
}

# The digits of synthetic.py with seed 0, which are kept once they are drawn.
SYNTHETIC = ArraysInfo(
    name="synthetic",
    digest="4c6a80c4e6ff63d7b662990a979ca0d63395358e9b3367d5fb5a656ba9f74493",
    part_digests=(
        "a9a2b6bacf363226117b904aa7fa194fbb3e89dffa3734a58a49870afec66f67",
        "4fa4d57f05042a2e818ef66cc87598382f641670e3cc57496741cfb4433287d5",
    ),
)

# What `--dataset` takes, with a line of help each.
CHOICES = {
    "auto": "mnist if it is cached or can be fetched, otherwise synthetic with a warning",
    **{info.name: info.summary for info in DATASETS.values()},
    "synthetic": "digits drawn by a procedure; needs no files and no network",
    "own": "data of your own at --data-dir, not compared with published ones",
    "idx": "an older name of own",
}
OWN = ("own", "idx")
GENERATED = "generated"  # where synthetic digits come from
ARRAYS = "arrays"  # where those of `dataset_of` come from: they are on no disk

# The names of the classes, where they are not digits.
CLASS_NAMES = {
    "fashion-mnist": (
        "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
}  # fmt: skip


def cache_folder(info: ArraysInfo) -> Path:
    """Where a data set is kept: below $MNIST_CUDA_CACHE if that is set, else below the user's cache folder.

    Raises DataError where there is neither.
    """
    return cache.root() / info.name


def without_password(text: str) -> str:
    """The text without user and password of a URL in it, such as a mirror's: for what is printed or kept."""
    return re.sub("://.*@", "://", text)
