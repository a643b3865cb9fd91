"""A benchmark's record: of a commit and a quiet machine, or refused in a line before anything is measured."""

import json
import os
import shlex
import shutil
import subprocess

import pytest
from tiny import prints, tiny_dataset

from mnist_cuda import cli, machine
from mnist_cuda.bench.record import Record
from mnist_cuda.data import dataset
from mnist_cuda.errors import UsageError

BENCH = ["bench", "--engines", "reference", "--peers", "--batch-size", "5", "--blocks", "3", "--seconds", "0"]
GIVEN = "0123456789abcdef" * 2 + "01234567"
QUIET, BUSY = (1.0, 9.0, 9.0), (1.1, 0.0, 0.0)


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """Four cores with nothing else to do, and no commit but what the test makes."""
    monkeypatch.setattr(dataset, "load", tiny_dataset)
    monkeypatch.setattr(os, "getloadavg", lambda: QUIET)
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "CHECKOUT", None)
    monkeypatch.delenv("MNIST_CUDA_COMMIT", raising=False)
    machine._ask_for_commit.cache_clear()
    yield
    machine._ask_for_commit.cache_clear()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of one commit, in which the program believes itself to be."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    folder = tmp_path / "checkout"
    folder.mkdir()
    for path in (folder / "a.py", folder / "b.py"):
        path.write_text("1\n")
    for line in ("init -q", "add .", "-c user.name=x -c user.email=x commit -qm x"):
        subprocess.run(["git", "-C", folder, *shlex.split(line)], check=True)
    monkeypatch.setattr(machine, "CHECKOUT", folder)
    return folder


def test_a_record_has_its_circumstances(checkout, tmp_path, monkeypatch):
    output = Record(tmp_path / "b.json")
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 2.0, 1.0))
    output.write({"rows": [1]}, gpu=None)
    record = json.loads((tmp_path / "b.json").read_text())
    assert len(record["commit"]) == 40
    assert record.keys() >= {"started", "command", "versions", "rows"}
    assert record["machine"]["load_before"] == list(QUIET)
    assert record["machine"]["load_after"] == [3.0, 2.0, 1.0]


def test_a_changed_checkout_is_refused(checkout, tmp_path, capsys):
    (checkout / "b.py").write_text("2\n")
    (line,) = prints(capsys, *BENCH, "--busy", "--json", str(tmp_path / "b.json"), code=2).splitlines()
    assert f"--json {tmp_path / 'b.json'}: " in line
    assert "changed files (b.py); commit them first" in line
    assert not (tmp_path / "b.json").exists()
    assert cli.main([*BENCH, "--json"]) == 0  # printed, it says so itself
    assert json.loads(capsys.readouterr().out)["commit"].endswith("-dirty")


def test_a_busy_machine_is_refused_but_for_busy(tmp_path, monkeypatch, capsys):
    file = tmp_path / "b.json"
    Record(file)  # a quarter of the cores is quiet
    monkeypatch.setattr(os, "getloadavg", lambda: BUSY)
    (line,) = prints(capsys, *BENCH, "--json", str(file), code=2).splitlines()
    assert "busy (load 1.1 on 4 cores, expected at most 0.25 a core)" in line
    assert "--busy" in line
    assert not file.exists()
    assert cli.main([*BENCH, "--json", str(file), "--busy"]) == 0
    assert json.loads(file.read_text())["machine"]["load_before"] == list(BUSY)


@pytest.mark.parametrize("words", ["", "accuracy", "--all-batches", "around", "ops", "--models 2", "time-to-accuracy"])
def test_every_benchmark_asks(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: BUSY)
    assert "this machine is busy" in prints(capsys, "bench", *words.split(), "--json", str(tmp_path / "b.json"), code=2)


def test_the_commit_of_a_tree_without_git_is_given(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CUDA_COMMIT", GIVEN)
    assert machine.commit() != GIVEN  # git knows better
    monkeypatch.setattr(machine, "CHECKOUT", None)
    machine._ask_for_commit.cache_clear()
    assert machine.commit() == GIVEN
    Record(tmp_path / "b.json")
    monkeypatch.setenv("MNIST_CUDA_COMMIT", "main")
    with pytest.raises(UsageError, match="MNIST_CUDA_COMMIT is 'main', expected the 40 digits"):
        Record(tmp_path / "b.json")
