"""Terminals and files that refuse output: no run ends or is harmed by them."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import tiny
from tiny import ENVIRONMENT, Terminal, metrics, start

from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.run.results import Model

TRAIN = ("train", "--engine", "reference", "--batch-size", 5, "--epochs", 2)


def assert_complete(folder):
    saved = load_model(folder)
    assert (saved.metadata["epochs"], saved.metadata["statistics"]) == ("2", "population")
    assert len(metrics(folder)) == 2


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii", "utf-8"])
def test_a_terminal_of_any_encoding(tmp_path, encoding):
    environment = {"PYTHONIOENCODING": encoding, "MNIST_TINY_IMAGES": "100", "MNIST_TINY_WARNING": "MNIST IS NOT HERE"}
    with Terminal(*TRAIN, "--out", tmp_path / "run", **environment) as terminal:
        screen = terminal.read().decode(encoding)  # fails where a byte is not of the encoding
        assert terminal.process.wait() == 0
    assert_complete(tmp_path / "run")
    assert "MNIST IS NOT HERE" in screen
    assert "epoch 2/2  loss" in screen
    assert "Traceback" not in screen
    assert re.search("━{15}" if encoding == "utf-8" else "[=-]{15}", screen)  # the live line's bar
    assert "\\u" not in screen
    assert "\x1b[?25l" not in screen, "the cursor is never hidden"


def test_a_file_name_that_the_encoding_lacks(tmp_path):
    process = start(*TRAIN, "--out", tmp_path / "lauf-ü", PYTHONIOENCODING="ascii")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "saved " in out
    assert "lauf-\\xfc/model.safetensors" in out


@pytest.mark.parametrize(
    ("redirection", "reason"),
    [
        ("> /dev/full", "No space left on device"),
        (">&-", "Bad file descriptor"),
        ("<&- >&-", "Bad file descriptor"),
        ("<&- >&- 2>&-", ""),
    ],
)
def test_training_outlives_its_streams(tmp_path, redirection, reason):
    process = shell(redirection, *TRAIN, "--out", tmp_path / "run")
    assert process.returncode == 0
    said = f"mnist-cuda: standard output cannot be written: {reason}; the run goes on without it\n"
    assert process.stderr == (said if reason else "")
    assert_complete(tmp_path / "run")


def test_an_object_that_cannot_be_printed_is_an_error_after_all_was_saved(tmp_path):
    process = shell("> /dev/full", *TRAIN, "--json", "--out", tmp_path / "run")
    assert process.returncode == 6
    assert process.stderr.splitlines()[-1] == (
        "mnist-cuda: error: standard output cannot be written: No space left on device"
    )
    assert "Traceback" not in process.stderr
    assert_complete(tmp_path / "run")


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-"])
@pytest.mark.parametrize("argv", [("engines",), ("engines", "--json"), ("data", "show", "1"), ("--help",)])
def test_other_commands_say_it_in_one_line(argv, redirection):
    process = shell(redirection, *argv)
    assert process.returncode == 6
    assert process.stderr.startswith("mnist-cuda: error: standard output cannot be written: ")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-"])
def test_an_error_that_cannot_be_said_keeps_its_exit_code(redirection):
    assert shell(redirection, "train", "--engine", "warp").returncode == 2


def shell(redirection, *argv):
    """`mnist-cuda *argv` on the tiny data set with the shell's redirections."""
    command = [sys.executable, tiny.__file__, *map(str, argv)]
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {redirection}', "-", *command], env=ENVIRONMENT, capture_output=True, text=True
    )


def test_forced_colours_bring_no_cursor_codes_into_a_file(tmp_path):
    process = start(*TRAIN, "--out", tmp_path / "run", FORCE_COLOR="1", COLUMNS="40")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    codes = out.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "\x1b" not in codes
    assert max(map(len, codes.splitlines())) > 80  # lines stay whole, too


@pytest.mark.parametrize("columns", ["0", "1"])
def test_columns_that_say_nothing(tmp_path, columns):
    with Terminal(*TRAIN, "--out", tmp_path / "run", COLUMNS=columns) as terminal:
        assert b"9" in terminal.read()
        assert terminal.process.wait() == 0
    process = start("engines", COLUMNS=columns)
    assert "reference" in process.communicate()[0]


@pytest.mark.parametrize("variable", ["JPY_PARENT_PID", "COLAB_RELEASE_TAG"])
def test_a_command_of_a_notebook_redraws_nothing(tmp_path, variable):
    with Terminal(*TRAIN, "--out", tmp_path / "run", **{variable: "1"}) as terminal:
        screen = terminal.read()
    assert b"epoch 2/2  loss" in screen
    assert b"\x1b[2K" not in screen
    assert "━" not in screen.decode()


def test_a_live_line_of_80_columns_has_steps_and_a_bar_of_15_cells(tmp_path):
    with Terminal(*LONG, "--out", tmp_path / "run", MNIST_TINY_IMAGES="2000") as terminal:
        screen = terminal.read(b"step 2").decode(errors="ignore")
    shown = re.sub(r"\x1b\[[0-9;]*[mK]", "", screen)
    bars = re.findall(r"epoch 1/500  step \d+/400  loss [\d.]+  [^━]*(━+)", shown)
    assert bars
    assert all(len(bar) >= 15 for bar in bars)
    assert "epoch 1/500  first step  ━━━" in shown


LONG = ("train", "--engine", "reference", "--batch-size", 5, "--epochs", 500)


def test_ctrl_c_is_heard_at_once_and_said(tmp_path):
    with Terminal(*LONG, "--out", tmp_path / "run", MNIST_TINY_IMAGES="2000") as terminal:
        terminal.read(b"loss ")  # the live line's: steps are running
        pressed = time.monotonic()
        terminal.type(b"\x03")
        terminal.read(b"SIGINT: finishing the running steps")
        assert time.monotonic() - pressed <= 0.5
        screen = terminal.read()
        assert terminal.process.wait() == 130
    assert b"stopped by SIGINT after " in screen
    assert [line for line in terminal.lines() if "━" in line or "^C" in line] == [], "no stale line stays"
    assert load_model(tmp_path / "run").metadata["statistics"] == "absent"


def test_a_closed_window_saves(tmp_path):
    with Terminal(*LONG, "--out", tmp_path / "run", MNIST_TINY_IMAGES="2000") as terminal:
        terminal.read(b"loss ")
        terminal.hang_up()
        assert terminal.process.wait(timeout=10) == 129
    assert metrics(tmp_path / "run")[-1]["interrupted"] is True
    assert load_model(tmp_path / "run").metadata["statistics"] == "absent"


def test_a_second_ctrl_c_leaves_a_line(tmp_path):
    environment = {"MNIST_TINY_IMAGES": "2000", "MNIST_TINY_LATE": "0.5"}  # two refreshes of the live line
    with Terminal(*LONG[:4], 2000, "--out", tmp_path / "run", **environment) as terminal:
        terminal.read(b"1 step,")  # one step of seconds
        time.sleep(0.5)
        terminal.type(b"\x03")
        terminal.read(b"SIGINT: finishing")
        terminal.type(b"\x03")
        screen = terminal.read()
        assert terminal.process.wait() == 130
    assert b"stopped by a second signal, at once" in screen
    assert terminal.lines()[-1] == "mnist-cuda: error: stopped by a second signal, at once"
    assert [line for line in terminal.lines() if "━" in line or "^C" in line] == [], "no stale line stays"
    assert os.listdir(tmp_path / "run") == ["config.json"]


# ---- what others wrote ----------------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x1b[2J\x9b31m\u202egnp"
SHOWN = "\\x1b]0;owned\\x1b[2J\\x9b31m\\u202egnp"


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """A folder with a run, a model, a sweep and a profile whose names and texts are `EVIL`."""
    folder = tmp_path_factory.mktemp("evil")
    run = folder / "runs" / EVIL
    out, err = start("train", *TRAIN[1:], "--out", run).communicate()
    assert (run / "model.safetensors").exists(), out + err
    config = json.loads((run / "config.json").read_text())
    config["command"] = config["options"]["schedule"] = config["data"]["warning"] = EVIL
    (run / "config.json").write_text(json.dumps(config))
    model = load_model(run)
    save_model(folder / "model.safetensors", Model(model.parameters, model.statistics, {"dataset": EVIL}))
    (folder / "runs.csv").write_text(f"lr,{EVIL}\n1,2\n", newline="")
    op = {"phase": "F", "op": EVIL, "unit": "fma", "bytes": 1, "flops": 1, "us": 1}
    profile = {"engine": "cpu", "precision": EVIL, "batch_size": 1, "step_us": {"median": 1}, "ops": [op]}
    (folder / "profile.json").write_text(json.dumps(profile))
    return folder


@pytest.mark.parametrize(
    ("argv", "fails"),
    [
        (("runs",), False),
        (("runs", "show", EVIL), False),
        (("report", "profile.json", "--text"), False),
        (("evaluate", "model.safetensors"), False),
        (("evaluate", f"{EVIL}2"), True),
        (("sweep", "--runs", "runs.csv"), True),
        (("train", "--dataset", EVIL), True),
        (("train", "--resume", f"runs/{EVIL}"), True),
    ],
)
def test_no_text_of_others_is_obeyed_by_a_terminal(argv, fails, evil, monkeypatch):
    monkeypatch.chdir(evil)
    process = start(*argv)
    text = "".join(process.communicate())
    assert (process.returncode != 0) == fails, text
    with Terminal(*argv, TERM="xterm-256color", COLUMNS="4000") as terminal:
        text += terminal.read().decode()
    assert text.count(SHOWN) >= 2, text
    assert not [part for part in ("\x1b]", "\x1b[2J", "\x9b", "\u202e") if part in text]


def test_our_own_colours_reach_the_terminal(evil, monkeypatch):
    monkeypatch.chdir(evil)
    for argv, colours in ((("data", "show", "1"), b"\x1b[38;5;"), (("runs",), b"\x1b[1m")):
        with Terminal(*argv, TERM="xterm-256color") as terminal:
            assert colours in terminal.read()
