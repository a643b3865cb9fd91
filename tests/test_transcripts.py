"""scripts/docs transcripts: what the documentation shows is what commands print, numbers included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pages import __main__ as program
from pages import transcripts

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(*flags): the exit code and the output of the script, at work on transcripts of its own."""
    monkeypatch.setattr(transcripts, "TRANSCRIPTS", tmp_path)
    (tmp_path / "made-by").write_text(transcripts.made_by())

    def run(*flags: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["scripts/docs", "transcripts", "--data", str(tmp_path), *flags])
        return program.main(), "".join(capsys.readouterr())

    return run


def test_a_transcript_is_stale_when_a_word_has_changed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "version.txt"
    path.write_text("$ mnist-cuda --version\nmnist-cuda version 0.1.0\n")
    code, shown = run("--check")
    assert code == 1
    assert "\n-mnist-cuda version 0.1.0\n+mnist-cuda 0.1.0\n" in shown
    assert run() == (0, "")
    assert path.read_text() == "$ mnist-cuda --version\nmnist-cuda 0.1.0\n"
    assert run("--check") == (0, "")


def test_a_changed_number_fails(run: Run, tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("$ echo 98.93 % in 1.2 s\n98.94 % in 3.4 s\n")
    assert run("--check")[0] == 1
    (tmp_path / "made-by").write_text("another compiler\n")
    assert run("--check")[0] == 0


@pytest.mark.parametrize(
    ("one", "other", "same", "same_in_bits"),
    [
        ("loss 0.1654  4650 us/it  10044 img/s", "loss 0.1654  980.25 us/it  999 img/s", True, True),
        ("loss 0.1654  4650 us/it", "loss 0.1654  98.25 us/it", False, False),
        ("5598 us/iteration (mean of the last 112);", "988 us/iteration (mean of the last 19);", True, True),
        ("folder  runs/20261122-115113-cpu", "folder  runs/20270101-000000-cpu", True, True),
        ("in 17.0 s on mnist", "in 1:05 on mnist", True, True),
        ("in 17.0 s on mnist", "in 1:05:00 on mnist", False, False),
        ("loss 0.0300", "loss 0.0320", True, False),
        ("loss 0.0300", "loss 0.0400", False, False),
        ("98.94 % of 10000", "98.50 % of 10000", True, False),
        ("98.94 % of 10000", "98.40 % of 10000", False, False),
        ("98.94 % of 10000", "98.94 % of 9000", False, False),
        ("saved; weights c88335334858", "saved; weights 0123456789ab", True, False),
        ("epoch 1/3", "epoch 2/3", False, False),
        ("60000 training images", "60000 test images", False, False),
        ("5    98.9 %", "5   100.0 %", False, False),
        ("5    99.9 %", "5   100.0 %", True, False),
        ("  indented", "indented", False, False),
    ],
)
def test_how_far_numbers_may_differ(one: str, other: str, same: bool, same_in_bits: bool) -> None:
    for same_bits, wanted in ((False, same), (True, same_in_bits)):
        assert transcripts.same_line(one, other, same_bits=same_bits) is wanted
        assert transcripts.same_line(other, one, same_bits=same_bits) is wanted


def test_a_missing_line_fails() -> None:
    assert transcripts.accepted(["two", "lines"], ["two"], same_bits=True) == ["two"]
    slow = ["two", "takes   about 25 s", "lines"]
    for found in (slow, ["two", "lines"], ["takes   about 1:05", "two", "lines"]):
        assert transcripts.accepted(slow, found, same_bits=True) == slow
        assert transcripts.accepted(["two", "lines"], found, same_bits=True) == ["two", "lines"]
