"""The one writer and the one reader: nothing is written through a link, and nothing of the wrong kind gets in."""

import errno
import fcntl
import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from tiny import tiny_dataset

from mnist_cuda import cli, files
from mnist_cuda.data import dataset
from mnist_cuda.errors import CheckpointError
from mnist_cuda.files import atomic_write, remove_parts, replacing, take_lock
from mnist_cuda.run.folder import ResumedFolder
from mnist_cuda.terminal.json_input import DEEPEST, LONGEST, parse_json

PART = "mnist-cuda-0123456789abcdef.part"
TRAIN = ("train", "--engine", "cpu", "--threads", "1", "--batch-size", "10", "--epochs", "2", "--quiet")


# ---- the writer ------------------------------------------------------------------------------------------------------


def test_neither_a_link_nor_a_file_beside_the_target_is_touched(tmp_path):
    own, part = tmp_path / "own.txt", tmp_path / "model.part"
    own.write_text("mine")
    part.symlink_to(own)
    atomic_write(tmp_path / "model", b"new")
    assert (own.read_text(), part.is_symlink()) == ("mine", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.part", "own.txt"]


@pytest.mark.parametrize("link", [False, True])
def test_a_name_that_is_taken_is_left_alone(tmp_path, monkeypatch, link):
    own, part = tmp_path / "own.txt", tmp_path / PART
    own.write_text("mine")
    part.symlink_to(own) if link else part.write_text("mine")
    monkeypatch.setattr(files.os, "urandom", lambda count: bytes.fromhex("0123456789abcdef"))
    with pytest.raises(CheckpointError, match="model: cannot write it: File exists"):
        atomic_write(tmp_path / "model", b"new")
    assert (own.read_text(), part.read_text()) == ("mine", "mine")
    with pytest.raises(CheckpointError):
        files.require_writable(tmp_path / "model")
    assert part.read_text() == "mine"


def test_a_link_that_is_replaced_leaves_its_target(tmp_path):
    (tmp_path / "own.txt").write_text("mine")
    (tmp_path / "model").symlink_to("own.txt")
    atomic_write(tmp_path / "model", b"new")
    assert ((tmp_path / "own.txt").read_text(), (tmp_path / "model").read_bytes()) == ("mine", b"new")


def test_two_writers_at_once_tear_no_file(tmp_path):
    target, stop, torn = tmp_path / "file", threading.Event(), []

    def write(letter):
        while not stop.is_set():
            atomic_write(target, letter * 300_000)

    atomic_write(target, b"a" * 300_000)
    writers = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    for _ in range(300):
        content = target.read_bytes()
        if content not in (b"a" * 300_000, b"b" * 300_000):
            torn.append(len(content))
    stop.set()
    for writer in writers:
        writer.join()
    assert not torn
    assert [*tmp_path.iterdir()] == [target]


def test_a_new_file_has_the_rights_that_the_user_gives(tmp_path):
    before = os.umask(0o027)
    try:
        atomic_write(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_only_parts_of_ours_are_removed_and_only_under_the_lock(tiny):
    assert cli.main([*TRAIN, "--out", "run"]) == 0
    kept = ["model.safetensors.part", "mnist-cuda-0123.part", f"{PART}.txt", "mnist-cuda-0123456789ABCDEF.part"]
    for folder in ("run", "run/checkpoints"):
        for name in (PART, *kept):
            Path(folder, name).write_text("mine")
    Path(PART).write_text("mine")
    before = {path.name for path in Path("run").iterdir()}
    locked = os.open("run", os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)
    assert cli.main(["train", "--resume", "run", "--epochs", "3"]) == 2
    assert {path.name for path in Path("run").iterdir()} == before, "another process holds the lock"
    os.close(locked)
    assert cli.main(["train", "--resume", "run", "--epochs", "3", "--quiet"]) == 0
    for folder in ("run", "run/checkpoints"):
        assert not Path(folder, PART).exists()
        assert all(Path(folder, name).read_text() == "mine" for name in kept)
    assert Path(PART).exists(), "outside run folders leftovers stay"


def test_without_locks_nothing_is_removed(tiny, monkeypatch):
    assert cli.main([*TRAIN, "--out", "run"]) == 0
    Path("run", PART).touch()

    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with ResumedFolder(Path("run")):
        pass
    assert Path("run", PART).exists()


def test_a_kill_leaves_what_is_removed_later(tmp_path):
    with replacing(tmp_path / "file") as file:
        file.write(b"half")
        (part,) = tmp_path.iterdir()
        os.link(part, tmp_path / "left")  # what would be there after a kill
    (tmp_path / "left").rename(part)
    number, locked = take_lock(tmp_path)
    assert locked
    remove_parts(tmp_path)
    os.close(number)
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


# ---- the reader ------------------------------------------------------------------------------------------------------

KIND = {"name": str, "rate?": float, "count?": (int, None), "rows?": [{"us": float}], "part?": ({"n": int}, None)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is no JSON: Expecting value"),
        ("[1", "it is no JSON: "),
        (b"\xff{}", "it is no UTF-8 text"),
        ('{"name": "a"}'.encode("utf-16"), "it is no UTF-8 text"),
        ("[" * 100_000, f"it is nested more than {DEEPEST} deep"),
        ('{"name": "", "x": ' + "[" * DEEPEST + "]" * DEEPEST + "}", f"it is nested more than {DEEPEST} deep"),
        ("[]", "it is a list, expected an object"),
        ("null", "it is null, expected an object"),
        ("{}", "`name` is missing"),
        ('{"name": 1}', "`name` is a whole number, expected text"),
        ('{"name": "\\ud800"}', "a text in it has half a character"),
        ('{"name": "", "\\udfff": 1}', "a text in it has half a character"),
        ('{"name": "", "rate": "1"}', "`rate` is text, expected a number"),
        ('{"name": "", "rate": true}', "`rate` is true or false, expected a number"),
        ('{"name": "", "rate": NaN}', "a number is NaN, expected finite ones"),
        ('{"name": "", "x": -Infinity}', "a number is -Infinity, expected"),
        ('{"name": "", "x": 1e999}', "a number is 1e999, expected"),
        (f'{{"name": "", "x": {"9" * 400}}}', "a number is 99999999999999999999, expected"),
        (f'{{"name": "", "x": {"9" * 9000}}}', "a number is 99999999999999999999, expected"),
        ('{"name": "", "count": 1.5}', "`count` is a number, expected a whole number or null"),
        ('{"name": "", "count": false}', "`count` is true or false, expected a whole number or null"),
        ('{"name": "", "rows": {}}', "`rows` is an object, expected a list"),
        ('{"name": "", "rows": [{"us": 1}, {"us": null}]}', "`rows[1].us` is null, expected a number"),
        ('{"name": "", "part": {}}', "`part.n` is missing"),
        ('{"name": "", "part": []}', "`part` is a list, expected an object or null"),
    ],
)
def test_json_of_the_wrong_kind_is_one_line(text, words):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        parse_json(text, KIND)
    assert "\n" not in str(error.value)


def test_json_of_the_right_kind():
    value = {"name": "ü", "rate": 1, "count": None, "rows": [{"us": 0.5}], "part": {"n": 2}, "more": [[None, True]]}
    assert parse_json(json.dumps(value), KIND) == value


def test_a_file_that_is_too_long_is_not_read(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(LONGEST + 1)
    from mnist_cuda.run.folder import read_config

    with pytest.raises(CheckpointError, match=f"it has {LONGEST + 1} bytes, expected at most"):
        read_config(tmp_path)


# What may stand where something else is expected; each is sound JSON.
ODD = [None, True, -1, 0, 1.5, 10**200, "", "\x1b[2Jno", [], [1], {}, {"a": [{}]}]
COMMANDS = [
    ("runs",),
    ("runs", "--json"),
    ("runs", "show", "bad"),
    ("runs", "compare", "good", "bad"),
    ("evaluate", "runs/bad"),
    ("report", "bad", "--text", "--no-profile"),
    ("train", "--resume", "runs/bad", "--epochs", "2", "--quiet"),
    ("train", "--config", "runs/bad/config.json", "--out", "again", "--quiet"),
]


def places(value, path=()):
    """Where something stands in an object, each as its keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from places(item, (*path, key))


def replaced(value, path, item):
    """The object with another item there."""
    return {**value, path[0]: item if len(path) == 1 else replaced(value[path[0]], path[1:], item)}


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """A folder with the runs `good` and `bad`."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(dataset, "load", tiny_dataset)
        for name in ("good", "bad"):
            assert cli.main([*TRAIN, "--epochs", "1", "--out", f"runs/{name}"]) == 0
    return folder


def few(config):
    """The keys of config.json that something reads, or that stand for others."""
    seen = set()
    for path in places(config):
        if path[0] not in ("machine", "versions", "command", "started") or path[0] not in seen:
            seen.add(path[0])
            yield path


CASES = [("config.json", argv) for argv in COMMANDS]
CASES += [("metrics.jsonl", argv) for argv in COMMANDS if "--config" not in argv]


@pytest.mark.parametrize(
    ("file", "argv"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_every_key_of_the_wrong_kind_is_one_line(file, argv, two_runs, tiny, capsys):
    """No traceback, whatever stands there; `runs` lists the other run, and names this one where it cannot be read.

    `runs` meets each item at each key, other commands some of them.
    """
    shutil.copytree(two_runs / "runs", "runs")
    texts = {name: Path("runs/bad", name).read_text() for name in ("config.json", "metrics.jsonl")}
    value = json.loads(texts[file])
    keys = list(few(value) if file == "config.json" else places(value))
    codes, stride = set(), 1 if argv == ("runs",) else 4 if argv[0] == "runs" else len(ODD)
    for number, path in enumerate(keys):
        for item in ODD[number % stride :: stride]:
            for name, text in texts.items():
                Path("runs/bad", name).write_text(text)
            Path("runs/bad", file).write_text(json.dumps(replaced(value, path, item)) + "\n")
            capsys.readouterr()
            code = cli.main([*argv])
            out, err = capsys.readouterr()
            codes.add(code)
            assert code in (0, 2, 3, 6), (path, item)
            assert [line for line in err.splitlines() if "error: " in line] == err.splitlines()[-1:] or code == 0
            if argv == ("runs",):
                assert code == 0
                assert any(line.startswith("good ") for line in out.splitlines()), (path, item, out)
                assert out.count("bad") >= 1
            shutil.rmtree("again", ignore_errors=True)
    assert 0 in codes
