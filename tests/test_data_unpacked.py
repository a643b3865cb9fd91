"""The unpacked arrays in the cache: the same data in less time, checked on every load, and never in the way."""

import hashlib
import multiprocessing
import os
import resource
from dataclasses import replace

import numpy as np
import pytest
from data_server import ARRAYS, GZIP, RAW, ended, fields, load_together, serve, tiny_info, write

from mnist_cuda.cli import main
from mnist_cuda.data import catalogue, dataset, unpacked
from mnist_cuda.data.dataset import load
from mnist_cuda.errors import DataError

PUBLISHED = catalogue.DATASETS["mnist"]
INFO = tiny_info("http://127.0.0.1:9/")
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def folder(tmp_path):
    """A folder with the gzip files."""
    return write(tmp_path / "data", GZIP)


@pytest.fixture
def never_unzipped(monkeypatch):
    """Fails where a file is parsed."""

    def parse(content, name):
        raise AssertionError(f"{name} is unzipped")

    monkeypatch.setattr(dataset, "parse_images", parse)
    monkeypatch.setattr(dataset, "parse_labels", parse)


def test_a_load_keeps_the_arrays(folder, cache):
    load("mnist", data_dir=folder)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {unpacked.NAME: ARRAYS}


def test_the_next_load_is_the_same_without_unzipping(folder, cache, request):
    first = load("mnist", data_dir=folder)
    request.getfixturevalue("never_unzipped")
    second = load("mnist", data_dir=folder)
    assert fields(second) == fields(first)
    for array in second.arrays:
        assert array.dtype == np.uint8
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("name", ["mnist", "auto"])
def test_the_arrays_alone_are_enough(cache, never_unzipped, name):
    write(cache, {unpacked.NAME: ARRAYS})
    data = load(name, offline=True)
    assert data.hashes == {unpacked.NAME: hashlib.sha256(ARRAYS).hexdigest()}
    assert (data.name, data.source, data.warning) == ("mnist", str(cache), None)
    assert b"".join(array.tobytes() for array in data.arrays) == ARRAYS
    assert [array.shape for array in data.arrays] == [(40, 28, 28), (40,), (10, 28, 28), (10,)]


@pytest.mark.parametrize(
    "content",
    [b"", ARRAYS[:-1], ARRAYS + b"\0", b"!" + ARRAYS[1:], ARRAYS[:-1] + b"!", bytes(len(ARRAYS))],
    ids=["empty", "shorter", "longer", "first byte", "last byte", "zeros"],
)
def test_damaged_arrays_are_not_taken_but_made_again(cache, content):
    assert content != ARRAYS
    write(cache, GZIP | {unpacked.NAME: content})
    found = "sha256" if len(content) == len(ARRAYS) else f"{len(ARRAYS)} bytes, found {len(content)}$"
    with pytest.raises(DataError, match=rf"arrays\.u8: expected {found}"):
        unpacked.check(INFO)
    data = load("mnist")
    assert b"".join(array.tobytes() for array in data.arrays) == ARRAYS
    assert set(data.hashes) == set(GZIP)
    assert (cache / unpacked.NAME).read_bytes() == ARRAYS


def test_a_file_that_is_far_too_long_is_not_read(cache):
    write(cache, {unpacked.NAME: ARRAYS})
    os.truncate(cache / unpacked.NAME, 1 << 40)  # a hole, which takes no room on the disk
    with pytest.raises(DataError, match=f"found {1 << 40}$"):
        unpacked.check(INFO)


def test_the_files_of_a_folder_are_checked_all_the_same(folder, cache):
    load("mnist", data_dir=folder)
    name = next(iter(GZIP))
    write(folder, {name: GZIP[name][:-1] + b"!"})
    with pytest.raises(DataError, match="the file is damaged, replace it"):
        load("mnist", data_dir=folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match="file is missing"):
        load("mnist", data_dir=folder)


def test_files_that_are_not_zipped_need_no_others(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(unpacked, "read", None)
    data = load("mnist", data_dir=write(tmp_path / "raw", RAW))
    assert set(data.hashes) == set(RAW)
    assert not cache.exists()


def test_without_a_known_digest_nothing_is_kept_or_taken(folder, cache, monkeypatch):
    monkeypatch.setitem(catalogue.DATASETS, "mnist", replace(INFO, digest=None))
    load("mnist", data_dir=folder)
    assert not cache.exists()
    write(cache, {unpacked.NAME: ARRAYS})
    with pytest.raises(DataError, match="offline nothing is fetched"):
        load("mnist", offline=True)


def test_a_named_mirror_is_asked_for_what_is_missing(cache):
    write(cache, {unpacked.NAME: ARRAYS})
    with serve() as server:
        load("mnist", mirror=server.url("good"))
        assert [name for _, name in server.requests] == list(GZIP)


@pytest.mark.parametrize("place", ["a file", "a file/below"])
def test_a_cache_that_cannot_be_written_costs_only_time(folder, tmp_path, monkeypatch, place):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / place))
    for _ in range(2):
        assert load("mnist", data_dir=folder).digest == INFO.digest


def test_a_full_disk_leaves_nothing(folder, cache):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(ARRAYS) - 1, hard))
    try:
        assert load("mnist", data_dir=folder).digest == INFO.digest
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(cache.iterdir()) == []


def test_an_interruption_leaves_nothing(cache):
    def arrays():
        yield ARRAYS[:1000]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpacked.write(INFO, arrays())
    assert list(cache.iterdir()) == []


def test_processes_at_once(folder, cache):
    context = multiprocessing.get_context("spawn")
    barrier, digests = context.Barrier(4), context.SimpleQueue()
    assert ended(context, 4, load_together, barrier, str(folder), digests) == [0] * 4
    assert [digests.get() for _ in range(4)] == [INFO.digest] * 4
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {unpacked.NAME: ARRAYS}


def test_what_was_begun_is_taken_once(cache):
    write(cache, {unpacked.NAME: ARRAYS})
    reading = unpacked.begin(INFO)
    reading.join()
    assert reading.seconds > 0
    os.remove(cache / unpacked.NAME)
    assert unpacked.read(INFO) == ARRAYS
    assert unpacked.read(INFO) is None


def test_what_was_begun_before_the_file_was_written_does_not_count(cache):
    unpacked.begin(INFO).join()
    unpacked.write(INFO, [memoryview(ARRAYS)])
    assert unpacked.read(INFO) == ARRAYS


def test_beginning_without_a_file_or_a_sound_one_is_no_error(cache, capfd):
    for content in (None, ARRAYS[::-1]):
        if content:
            write(cache, {unpacked.NAME: content})
        unpacked.begin(INFO)
        assert unpacked.read(INFO) is None
    assert capfd.readouterr() == ("", "")


def test_verify_and_fetch(cache, capsys, monkeypatch):
    damaged = {unpacked.NAME: ARRAYS[::-1]}
    write(cache, damaged)
    with serve() as server:
        monkeypatch.setenv("MNIST_CUDA_MIRROR", server.url("good"))
        assert main(["data", "fetch"]) == 0
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == GZIP | {unpacked.NAME: ARRAYS}
    write(cache, damaged)
    capsys.readouterr()
    assert main(["data", "verify"]) == 3
    out, err = capsys.readouterr()
    assert out.splitlines()[4].startswith(f"FAULT  {cache / unpacked.NAME}: expected sha256 {INFO.digest}, found ")
    assert "1 of the 5 files of mnist" in err


def test_the_catalogue_knows_mnist(mnist):
    content = b"".join(array.tobytes() for array in mnist.arrays)
    assert hashlib.sha256(content).hexdigest() == PUBLISHED.digest == mnist.digest
    assert len(content) == PUBLISHED.array_bytes
