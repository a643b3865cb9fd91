"""Fetching: bad servers, two mirrors, a cache that is never poisoned, processes at once, disks that refuse."""

import multiprocessing
import os
import signal
import stat
import sys
import threading
import time

import pytest
from data_server import GZIP, elapsed, ended, fetch_from, fetch_together, serve, tiny_info

from mnist_cuda.data import download
from mnist_cuda.data.download import Timeouts, cache_folder, fetch
from mnist_cuda.errors import DataError, UsageError

pytestmark = pytest.mark.usefixtures("cache")
QUICK = Timeouts(connect=1, stall=1, total=10)

# What a server does, and what the user reads about it.
FAULTS = {
    "403": "HTTP 403 Forbidden",
    "404": "HTTP 404 Not Found",
    "503": "HTTP 503 Service Unavailable",
    "page": "43 bytes of text/html, expected",
    "wrong": "wrong content, sha256 ",
    "long": "more than the expected",
    "endless": "more than the expected",
    "early": "IncompleteRead",
    "early-unsized": "closed after ",
    "silent": "no answer within 1 s",
    "stall": "stalled: less than 16 KiB within 1 s",
    "drip": "stalled: less than 16 KiB within 1 s",
    "drip-header": "no answer within 1 s",
}


@pytest.fixture(scope="module")
def server():
    with serve() as running:
        yield running


def contents(folder):
    """The files in the cache by name; leftovers of failed fetches show here."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("behaviour", ["good", "labelled", "unsized"])
def test_fetches_from_a_good_server(server, cache, behaviour):
    assert fetch(tiny_info(server.url(behaviour))) == cache
    assert contents(cache) == GZIP
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o400 for path in cache.iterdir())


@pytest.mark.parametrize("behaviour", FAULTS)
def test_a_bad_server_is_an_error_in_time_and_leaves_nothing(server, cache, behaviour):
    with elapsed() as took, pytest.raises(DataError) as caught:
        fetch(tiny_info(server.url(behaviour)), timeouts=QUICK)
    message = str(caught.value)
    assert message.startswith("train-images-idx3-ubyte.gz cannot be fetched (127.0.0.1:")
    assert FAULTS[behaviour] in message
    assert "--mirror" in message
    assert "--data-dir" in message
    assert "\n" not in message
    assert took.seconds < 5
    assert contents(cache) == {}


def test_the_second_mirror_takes_over(server, cache):
    fetch(tiny_info(server.url("early"), server.url("good")))
    assert contents(cache) == GZIP


def test_the_whole_file_has_a_time_limit(server, cache):
    with elapsed() as took, pytest.raises(DataError, match="not complete within 1 s"):
        fetch(tiny_info(server.url("drip")), timeouts=Timeouts(connect=5, stall=5, total=1))
    assert 0.9 < took.seconds < 3
    assert contents(cache) == {}


def test_all_mirrors_failing_names_each(server):
    with pytest.raises(DataError, match=r"127\.0\.0\.1:\d+: HTTP 403 Forbidden; nowhere\.invalid: .+\)"):
        fetch(tiny_info(server.url("403"), "https://nowhere.invalid/mnist/"), timeouts=QUICK)


def test_a_message_holds_no_password_and_no_control_characters(server):
    url = server.url("escapes").replace("//", "//me:secret@")
    with pytest.raises(DataError, match=r"\(127\.0\.0\.1:\d+: HTTP 418 \[2Jteapot\)") as caught:
        fetch(tiny_info(), mirror=url)
    assert "secret" not in str(caught.value)


def test_a_refused_connection_says_so():
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9: Connection refused"):
        fetch(tiny_info("http://127.0.0.1:9/"), timeouts=QUICK)


def test_only_what_is_missing_is_fetched(server, cache):
    info = tiny_info(server.url("good"))
    fetch(info)
    (cache / info.test_labels.name).unlink()
    server.requests.clear()
    fetch(info)
    assert server.requests == [("good", info.test_labels.name)]
    fetch(info, offline=True)
    assert len(server.requests) == 1


def test_a_named_mirror_replaces_the_others(server, cache, monkeypatch):
    info = tiny_info(server.url("503"))
    server.requests.clear()
    fetch(info, mirror=server.url("good").rstrip("/"))
    assert {behaviour for behaviour, _ in server.requests} == {"good"}
    assert contents(cache) == GZIP

    monkeypatch.setenv("MNIST_CUDA_CACHE", str(cache))
    monkeypatch.setenv("MNIST_CUDA_MIRROR", server.url("404"))
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(tiny_info(server.url("good")))


@pytest.mark.parametrize(
    "mirror",
    [
        "a/folder",
        "file:///folder",
        "ftp://host/mnist",
        "https://",
        "http://[::1",
        "http://me:secret@[::1/",
        "http://host:port/",
        "http://:80/",
    ],
)
def test_a_mirror_must_be_a_url(mirror):
    with pytest.raises(
        UsageError, match=r"^mirror '.*' is no http or https URL, expected one like https://n"
    ) as caught:
        fetch(tiny_info("https://nowhere.invalid/"), mirror=mirror)
    assert "secret" not in str(caught.value)


def test_offline_an_empty_cache_is_an_error(cache):
    with pytest.raises(DataError, match="is not in the cache, and offline nothing is fetched"):
        fetch(tiny_info("https://nowhere.invalid/"), offline=True)
    assert not cache.exists()


@pytest.mark.parametrize(
    "harm", [lambda b: b[:-1], lambda b: b"", lambda b: b[:50] + b"?" + b[51:], lambda b: b + b"x"]
)
def test_a_damaged_file_in_the_cache_is_fetched_again(server, cache, harm):
    info = tiny_info(server.url("good"))
    fetch(info)
    for name, content in GZIP.items():
        (cache / name).write_bytes(harm(content))
        with pytest.raises(DataError, match=f"{name} is damaged .*, and offline nothing is fetched"):
            fetch(info, offline=True)
        fetch(info)
        assert contents(cache) == GZIP


def test_eight_processes_may_fetch_at_once(server, cache):
    spawn = multiprocessing.get_context("spawn")
    assert ended(spawn, 8, fetch_together, spawn.Barrier(8), server.url("good")) == [0] * 8
    assert contents(cache) == GZIP


def start_fetch(url, cache):
    """A process that fetches and has begun to write a part."""
    process, before = multiprocessing.get_context("spawn").Process(target=fetch_from, args=(url,)), {*cache.glob("*")}
    process.start()
    while process.is_alive() and not {*cache.glob("*.part")} - before:
        time.sleep(0.001)
    return process


def kill(process):
    process.kill()
    process.join()
    return process.exitcode


def test_fetches_that_were_killed_leave_nothing_wrong_and_nothing_for_ever(server, cache):
    """Twelve kills, from a part's first moment to the end: whole files or none, and the next fetch clears up."""
    left = 0
    for k in range(12):
        process = start_fetch(server.url("halting"), cache)
        time.sleep(0.03 * k)
        kill(process)
        found = contents(cache)
        left += any(name.endswith(".part") for name in found)
        assert all(GZIP[name] == content for name, content in found.items() if not name.endswith(".part"))
        for path in cache.glob("*.gz"):
            path.unlink()
    assert left >= 6, "most of them were to be killed within a part"
    fetch(tiny_info(server.url("good")))
    assert contents(cache) == GZIP


def test_a_part_that_is_being_written_is_no_leftover(server, cache):
    assert kill(start_fetch(server.url("stall"), cache)) == -signal.SIGKILL
    (leftover,) = cache.glob("*.part")
    writer = start_fetch(server.url("stall"), cache)
    assert not leftover.exists()
    with pytest.raises(DataError, match="offline"):
        fetch(tiny_info(), offline=True)
    assert len(contents(cache)) == 1
    assert kill(writer) == -signal.SIGKILL
    with pytest.raises(DataError, match="offline"):
        fetch(tiny_info(), offline=True)
    assert contents(cache) == {}


def test_a_full_disk_is_one_line(server, cache, monkeypatch):
    real_open = os.open

    def open_on_a_full_disk(path, flags, *mode):
        number = real_open(path, flags, *mode)
        if flags & os.O_EXCL:
            os.dup2(full := real_open("/dev/full", os.O_WRONLY), number)
            os.close(full)
        return number

    monkeypatch.setattr(os, "open", open_on_a_full_disk)
    with pytest.raises(DataError, match=r"gz cannot be written: No space left on device; free .* MB there or set"):
        fetch(tiny_info(server.url("good")))
    assert contents(cache) == {}


def test_a_cache_that_cannot_be_written_is_one_line(server, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written: Not a directory; .* MNIST_CUDA_CACHE to another folder"):
        fetch(tiny_info(server.url("good")))


def test_a_read_only_file_system_is_one_line_before_any_request(server, monkeypatch):
    real_open = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_CREAT:
            raise OSError(30, os.strerror(30), str(path))
        return real_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    server.requests.clear()
    with pytest.raises(DataError, match="cannot be written: Read-only file system"):
        fetch(tiny_info(server.url("good")))
    assert server.requests == []


def test_ctrl_c_leaves_nothing_behind(server, cache, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(tiny_info(server.url("good")))
    assert contents(cache) == {}


def test_a_request_that_nobody_waits_for_ends(server):
    before = set(threading.enumerate())
    with pytest.raises(DataError):
        fetch(tiny_info(server.url("endless")), timeouts=QUICK)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "fetch":
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown_on_a_terminal_only(server, monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    fetch(tiny_info(server.url("wrong"), server.url("good")))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("fetching mnist" in shown.err) == terminal


def test_the_cache_is_the_users_unless_named(monkeypatch, tmp_path):
    assert cache_folder(tiny_info()) == tmp_path / "a cache" / "mnist"
    monkeypatch.delenv("MNIST_CUDA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(tiny_info()) == tmp_path / "xdg" / "mnist-cuda" / "mnist"
    assert download.cache_fault(tiny_info(), tiny_info().train_images) == "is not in the cache"
