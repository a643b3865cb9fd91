"""dataset.load: what was asked for, from where it was said, checked; or an error that says why."""

import gzip
import hashlib
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from data_server import ARRAYS, GZIP, RAW, TEST, TRAIN, elapsed, fields, idx, serve, tiny_files, tiny_info, write

from mnist_cuda.data import catalogue, dataset, synthetic
from mnist_cuda.data.dataset import load
from mnist_cuda.data.download import Timeouts
from mnist_cuda.data.idx import parse_images
from mnist_cuda.errors import DataError, UsageError

IMAGES = "train-images-idx3-ubyte"
SHA256 = hashlib.sha256(GZIP[f"{IMAGES}.gz"]).hexdigest()


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def folder(tmp_path):
    """A folder with the tiny data set's four gzip files, below a path with spaces."""
    return write(tmp_path / "my data", GZIP)


def hashes(files):
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def refused(folder, name="mnist"):
    """The message of the error that loading from a folder must raise."""
    with pytest.raises(DataError) as caught:
        load(name, data_dir=folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("requested", ["mnist", "auto"])
def test_a_folder_gives_its_data_set(folder, requested):
    data = load(requested, data_dir=folder)
    assert (data.name, data.requested, data.source, data.warning) == ("mnist", requested, str(folder), None)
    assert data.hashes == hashes(GZIP)
    shapes = [array.shape for array in (data.train_images, data.train_labels, data.test_images, data.test_labels)]
    assert shapes == [(TRAIN, 28, 28), (TRAIN,), (TEST, 28, 28), (TEST,)]
    np.testing.assert_array_equal(data.train_images, parse_images(RAW[IMAGES], IMAGES))
    assert data.digest == hashlib.sha256(ARRAYS).hexdigest()


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("files", [GZIP, RAW], ids=["gzip", "uncompressed"])
def test_where_files_may_lie_in_a_folder(tmp_path, files, place):
    write(tmp_path / place, files)
    data = load("mnist", data_dir=tmp_path)
    assert data.source == str(tmp_path / place)
    assert data.hashes == hashes(files)


def test_a_data_set_cannot_be_changed(folder):
    data = load("mnist", data_dir=folder)
    with pytest.raises(FrozenInstanceError):
        data.name = "other"
    for array in (data.train_images, data.test_labels, load("synthetic").train_images):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_digest_sees_a_single_bit(folder):
    data = load("mnist", data_dir=folder)
    images = data.train_images.copy()
    images[3, 14, 14] ^= 1
    assert replace(data, train_images=images).digest != data.digest
    assert replace(data, train_images=data.train_images.copy()).digest == data.digest


@pytest.mark.parametrize("name", ["mnist", "auto"])
def test_a_bad_folder_is_an_error_and_never_another_data_set(tmp_path, name):
    assert refused(tmp_path / "nowhere", name) == f"{tmp_path / 'nowhere'}: there is no such file or folder"
    write(tmp_path, {"notes.txt": b"", "t10k.bin": b""})
    assert refused(tmp_path, name).startswith(f"{tmp_path}: expected ")
    assert refused(tmp_path, name).endswith("; it holds notes.txt, t10k.bin")


@pytest.mark.parametrize("missing", GZIP)
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    assert refused(folder) == (
        f"{folder / missing}: file is missing (neither it nor {missing[:-3]} is there; it holds "
        f"{', '.join(sorted({*GZIP} - {missing}))})"
    )


def test_a_folder_in_place_of_a_file_is_an_error(folder):
    (folder / f"{IMAGES}.gz").unlink()
    (folder / f"{IMAGES}.gz").mkdir()
    assert refused(folder).startswith(f"{folder / IMAGES}.gz: file is missing (neither it nor {IMAGES} is there; it ")
    assert f", {IMAGES}.gz/, " in refused(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GZIP[f"{IMAGES}.gz"][:500], "offset 500: expected more gzip data, found the end of the file"),
        (b"<html>404</html>", "offset 0: expected a gzip file (1f 8b), found 3c 68 (it looks like a web page)"),
        (b"", "offset 0: expected a gzip file (1f 8b), found an empty file"),
        (GZIP[f"{IMAGES}.gz"][:-1] + b"!", f", expected {SHA256}: the file is damaged, replace it"),
        (b"!" + GZIP[f"{IMAGES}.gz"][1:], f", expected {SHA256}: the file is damaged, replace it"),
        (gzip.compress(RAW[IMAGES][:-1]), "expected 31376 bytes for 40 x 28 x 28 elements, found the end of the file"),
        (gzip.compress(RAW[IMAGES][:-1] + b"!"), "a sound idx file, but not the published one"),
        (gzip.compress(RAW[IMAGES] + b"\0"), "expected the end of the file"),
        (
            gzip.compress(RAW["t10k-images-idx3-ubyte"], 1),
            "this is a file of mnist, expected train-images-idx3-ubyte.gz",
        ),
        (RAW[IMAGES], "the right file, but it is not gzip data: rename it to train-images-idx3-ubyte"),
        (GZIP["t10k-images-idx3-ubyte.gz"], "this is a file of mnist, expected train-images-idx3-ubyte.gz with sha256"),
        (GZIP["train-labels-idx1-ubyte.gz"], "this is a file of mnist, expected train-images-idx3-ubyte.gz with"),
    ],
)
def test_a_file_that_is_not_the_published_one_is_refused(folder, content, message):
    write(folder, {f"{IMAGES}.gz": content})
    error = refused(folder)
    assert error.startswith(f"{folder / IMAGES}.gz: ")
    assert message in error


@pytest.mark.parametrize("level", [0, 1, 9])
def test_files_compressed_again_are_taken_for_what_they_hold(tmp_path, level):
    again = {name: gzip.compress(RAW[name[:-3]], level, mtime=1) for name in GZIP}
    write(tmp_path, again)
    data = load("mnist", data_dir=tmp_path)
    assert (data.name, data.hashes) == ("mnist", hashes(again))
    assert not set(data.hashes.values()) & set(hashes(GZIP).values())
    assert data.digest == hashlib.sha256(ARRAYS).hexdigest()


def test_without_a_known_hash_of_the_content_only_the_published_file_is_taken(folder, monkeypatch):
    info = tiny_info()
    changed = replace(info, train_images=replace(info.train_images, raw_sha256=None))
    monkeypatch.setitem(catalogue.DATASETS, "mnist", changed)
    load("mnist", data_dir=folder)
    write(folder, {f"{IMAGES}.gz": gzip.compress(RAW[IMAGES], 1)})
    assert "a sound idx file, but not the published one; --dataset own takes" in refused(folder)
    (folder / f"{IMAGES}.gz").unlink()
    write(folder, {IMAGES: RAW[IMAGES]})
    assert f"no hash is known for the uncompressed file, expected {IMAGES}.gz; --dataset" in refused(folder)


def test_the_cache_takes_files_compressed_again_too(cache):
    write(cache, {name: gzip.compress(RAW[name[:-3]], 1) for name in GZIP})
    assert load("mnist", offline=True).digest == hashlib.sha256(ARRAYS).hexdigest()


def test_a_right_file_under_the_other_name_says_what_to_rename(folder):
    (folder / f"{IMAGES}.gz").rename(folder / IMAGES)
    assert refused(folder) == (
        f"{folder / IMAGES}: the right file, but it is gzip data: rename it to train-images-idx3-ubyte.gz"
    )


@pytest.mark.parametrize("zipped", [False, True])
def test_files_of_ones_own_are_read_where_it_is_said(tmp_path, cache, zipped):
    own = tiny_files(seed=1, train=7, test=3)
    files = {f"{name}.gz": gzip.compress(content) for name, content in own.items()} if zipped else own
    write(tmp_path / "own", files)
    assert "--dataset own takes files of your own as they are" in refused(tmp_path / "own")
    data = load("idx", data_dir=tmp_path / "own")
    assert (data.name, data.requested, data.source) == ("idx", "idx", str(tmp_path / "own"))
    assert data.hashes == hashes(files)
    np.testing.assert_array_equal(data.train_images, parse_images(own[IMAGES], IMAGES))
    assert (len(data.train_labels), len(data.test_labels)) == (7, 3)
    assert not cache.parent.exists()


def test_files_of_ones_own_are_checked_for_their_form(folder):
    write(folder, {f"{IMAGES}.gz": gzip.compress(idx(np.zeros((TRAIN, 32, 32), np.uint8)))})
    assert "expected rows = 28, found 32" in refused(folder, "idx")
    write(folder, {f"{IMAGES}.gz": gzip.compress(idx(np.zeros((TRAIN - 1, 28, 28), np.uint8)))})
    assert "expected 39 labels, as many as train-images-idx3-ubyte.gz has images, found 40" in refused(folder, "idx")
    (folder / f"{IMAGES}.gz").unlink()
    assert "file is missing" in refused(folder, "idx")


def test_the_files_of_another_data_set_are_refused_by_its_name(tmp_path, monkeypatch):
    header = {name: 16 if "images" in name else 8 for name in RAW}
    turned = {name: content[: header[name]] + content[: header[name] - 1 : -1] for name, content in RAW.items()}
    other = {f"{name}.gz": gzip.compress(content) for name, content in turned.items()}
    info = catalogue.DATASETS["fashion-mnist"]
    fields = ("train_images", "train_labels", "test_images", "test_labels")
    changed = {
        field: replace(getattr(info, field), sha256=hash)
        for field, hash in zip(fields, hashes(other).values(), strict=True)
    }
    monkeypatch.setitem(catalogue.DATASETS, "fashion-mnist", replace(info, **changed))
    write(tmp_path, other)
    assert "this is a file of fashion-mnist, expected train-images-idx3-ubyte.gz" in refused(tmp_path)
    assert load("fashion-mnist", data_dir=tmp_path).name == "fashion-mnist"


def test_counts_that_disagree_are_an_error(folder, monkeypatch):
    labels = gzip.compress(idx(np.zeros(TRAIN - 1, np.uint8)))
    info = tiny_info()
    changed = replace(info.train_labels, sha256=hashlib.sha256(labels).hexdigest())
    monkeypatch.setitem(catalogue.DATASETS, "mnist", replace(info, train_labels=changed))
    write(folder, {changed.name: labels})
    assert "expected 40 labels, as many as train-images-idx3-ubyte.gz has images, found 39" in refused(folder)


def test_auto_takes_mnist_from_the_cache_without_a_request(cache):
    write(cache, GZIP)
    for offline in (False, True):
        data = load("auto", offline=offline)
        assert (data.name, data.warning) == ("mnist", None)


def test_auto_fetches_mnist(monkeypatch):
    with serve() as server:
        monkeypatch.setenv("MNIST_CUDA_MIRROR", server.url("good"))
        assert load("auto").name == "mnist"
    assert load("auto", offline=True).name == "mnist"


def fallen_back(offline=False):
    with pytest.warns(UserWarning, match="MNIST IS NOT HERE") as caught:
        data = load("auto", offline=offline)
    assert [(str(one.message), one.filename) for one in caught] == [(data.warning, __file__)]
    return data


@pytest.mark.parametrize("offline", [False, True])
def test_auto_falls_back_with_a_warning_that_says_why(offline):
    data = fallen_back(offline)
    assert (data.name, data.requested, data.source, data.hashes) == ("synthetic", "auto", "generated", {})
    assert data.warning.startswith("MNIST IS NOT HERE, these are synthetic digits instead: ")
    assert ("offline nothing is fetched" if offline else "Connection refused") in data.warning
    assert "\n" not in data.warning


@pytest.mark.parametrize("offline", [False, True])
def test_mnist_by_name_never_falls_back(offline):
    with pytest.raises(DataError, match="offline nothing is fetched" if offline else "Connection refused"):
        load("mnist", offline=offline)


def test_auto_does_not_wait_for_servers_that_do_not_answer(monkeypatch):
    with serve() as server:
        mirrors = (server.url("silent"), server.url("drip-header"))
        monkeypatch.setitem(catalogue.DATASETS, "mnist", tiny_info(*mirrors))
        assert 2 * dataset._IMPATIENT.connect < 10
        monkeypatch.setattr(dataset, "_IMPATIENT", Timeouts(connect=0.3))
        with elapsed() as time:
            data = fallen_back()
    assert data.name == "synthetic"
    assert data.warning.count("no answer within 0.3 s") == 2
    assert time.seconds < 3


def test_synthetic_by_name_is_no_fallback():
    data = load("synthetic", seed=3)
    assert (data.name, data.requested, data.warning) == ("synthetic", "synthetic", None)
    assert load("synthetic", seed=3).digest == data.digest
    assert load("synthetic", seed=4).digest != data.digest


def test_synthetic_digits_are_drawn_once(cache, monkeypatch):
    """Those of seed 0 are in the cache from then on, checked, and drawn again where they are damaged or not kept."""
    first, other = load("synthetic"), load("synthetic", seed=1)
    file = cache.with_name("synthetic") / "arrays.u8"
    assert not file.exists(), "of 30 digits, which are not those of the catalogue"
    info = replace(catalogue.SYNTHETIC, counts=(20, 10), digest=first.digest)
    monkeypatch.setattr(dataset, "SYNTHETIC", info)
    drawn, generate = [], synthetic.generate
    monkeypatch.setattr(synthetic, "generate", lambda *a: (drawn.append(a), generate(*a))[1])
    for expected in (2, 0, 0):
        data = fallen_back(offline=True)
        assert (len(drawn), fields(data)) == (expected, fields(first))
        assert (data.requested, bool(data.warning)) == ("auto", True)
        drawn.clear()
    assert load("synthetic", seed=1).digest == other.digest
    assert len(drawn) == 2
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert fields(load("synthetic")) == fields(first)
    assert (len(drawn), file.read_bytes()) == (4, content)
    monkeypatch.delenv("MNIST_CUDA_CACHE")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: "~/.cache")
    assert fields(load("synthetic")) == fields(first)


@pytest.mark.parametrize("watched", [False, True])
def test_drawing_is_announced_where_people_watch(capsys, monkeypatch, watched):
    monkeypatch.setattr("sys.stderr.isatty", lambda: watched)
    generate = synthetic.generate
    before = []
    monkeypatch.setattr(synthetic, "generate", lambda *a: (before.append(capsys.readouterr().err), generate(*a))[1])
    load("synthetic")
    assert before[0] == ("drawing 30 synthetic digits, some seconds\n" if watched else "")


def test_impossible_wishes_are_usage_errors(folder):
    with pytest.raises(UsageError, match="data set 'emnist' is unknown, expected one of auto, mnist, fashion-mnist"):
        load("emnist")
    with pytest.raises(UsageError, match="data set 'idx' is data of your own: name their file or folder by --data-dir"):
        load("idx")
    with pytest.raises(UsageError, match="synthetic digits are generated"):
        load("synthetic", data_dir=folder)
    for wish in ({"data_dir": folder}, {"offline": True}, {"name": "synthetic"}):
        with pytest.raises(UsageError, match=r"^mirror 'http://m/': with [a-z -]+ nothing is fetched, leave out one"):
            load(**wish, mirror="http://m/")


def test_the_real_mnist_is_read(mnist):
    assert mnist.train_images.shape == (60_000, 28, 28)
    assert mnist.test_images.shape == (10_000, 28, 28)
    assert np.bincount(mnist.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert round(float(mnist.train_images.mean()) / 255, 4) == 0.1307
    assert round(float(mnist.train_images.std()) / 255, 4) == 0.3081
