"""mnist-cuda data: what it prints and how it ends."""

import json
import sys

import numpy as np
import pytest
from data_server import GZIP, serve, tiny_files, write

from mnist_cuda.cli import main
from mnist_cuda.data.picture import render

pytestmark = pytest.mark.usefixtures("cache")


def test_fetch_then_verify_then_show(cache, capsys):
    with serve() as server:
        assert main(["data", "fetch", "--mirror", server.url("good")]) == 0
    assert capsys.readouterr().out == f"mnist: 40 training images, 10 test images, all files checked, in {cache}\n"
    assert main(["data", "verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 5 + ["mnist:"]
    assert main(["data", "show", "7", "--dataset", "mnist", "--offline"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mnist train 7: ")
    assert len(lines) == 15
    assert max(map(len, lines)) <= 40


def test_fetch_without_a_network_ends_with_3(capsys):
    assert main(["data", "fetch", "mnist"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "Connection refused" in shown.err


@pytest.mark.parametrize("name", ["synthetic", "auto", "emnist"])
def test_only_published_data_sets_can_be_fetched(capsys, name):
    assert main(["data", "fetch", name]) == 2
    assert capsys.readouterr().err.startswith(
        f"mnist-cuda: error: data set '{name}' cannot be fetched, expected one of"
    )


def test_verify_lists_every_fault_and_ends_with_3(cache, capsys):
    write(cache, GZIP)
    (cache / "t10k-labels-idx1-ubyte.gz").unlink()
    (cache / "train-labels-idx1-ubyte.gz").write_bytes(b"<html>")
    assert main(["data", "verify", "mnist"]) == 3
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["ok", "FAULT", "ok", "FAULT"]
    reason = f"2 of the 4 files of mnist in {cache} are missing or bad: run `mnist-cuda data fetch mnist`"
    assert shown.err == f"mnist-cuda: error: {reason}\n"


def test_verify_takes_the_unpacked_data_set_for_the_files(cache, capsys):
    """As `train` does; what is there has to be sound all the same."""
    write(cache, GZIP)
    assert main(["data", "show", "7", "--dataset", "mnist", "--offline"]) == 0  # unpacks
    for path in cache.glob("*.gz"):
        path.unlink()
    capsys.readouterr()
    assert main(["data", "verify"]) == 0
    one, sound, last = capsys.readouterr().out.splitlines()
    assert one.startswith(f"ok     {cache}/arrays.u8  sha256 ")
    assert sound.endswith("10 test images, all as published")
    reason = "they are not needed, as the unpacked copy holds their content"
    assert last == f"4 of the 4 published files are not in the cache; {reason}"
    (cache / "train-labels-idx1-ubyte.gz").write_bytes(b"<html>")
    assert main(["data", "verify"]) == 3
    assert "1 of the 2 files of mnist" in capsys.readouterr().err
    (cache / "train-labels-idx1-ubyte.gz").unlink()
    (cache / "arrays.u8").write_bytes(bytes((cache / "arrays.u8").stat().st_size))
    assert main(["data", "verify"]) == 3
    assert "5 of the 5 files of mnist" in capsys.readouterr().err


def test_verify_a_folder(tmp_path, capsys):
    write(tmp_path / "raw", GZIP)
    assert main(["data", "verify", "--data-dir", str(tmp_path)]) == 0
    assert str(tmp_path / "raw") in capsys.readouterr().out
    assert main(["data", "verify", "--data-dir", str(tmp_path / "nowhere")]) == 3


def test_show_takes_either_split_and_several_digits(capsys):
    assert main(["data", "show", "3", "0", "--split", "test", "--dataset", "synthetic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("synthetic test ")] == [lines[0], lines[15]]


def test_show_warns_when_it_falls_back(capsys):
    assert main(["data", "show", "0"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("synthetic train 0: ")
    assert "MNIST IS NOT HERE" in shown.err


@pytest.mark.parametrize("index", ["-1", "20", "1" + 30 * "0"])
def test_an_index_outside_the_data_set_is_a_usage_error(capsys, index):
    assert main(["data", "show", "--dataset", "synthetic", "--", index]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"index {index} is outside the 20 train images of synthetic, expected 0 to 19" in shown.err


RAMP = np.arange(784).reshape(28, 28).astype(np.uint8)


@pytest.mark.parametrize(
    ("encoding", "characters"), [("utf-8", " ░▒▓█"), ("ascii", " .:+%#@"), ("nonsense", " .:+%#@")]
)
def test_a_picture_without_colour_is_shaded_by_density(encoding, characters):
    lines = render(RAMP, colour=False, encoding=encoding).split("\n")
    assert [len(line) for line in lines] == [28] * 14
    assert set("".join(lines)) == set(characters)
    for value, character in ((0, characters[0]), (255, characters[-1])):
        assert set(render(np.full((28, 28), value, np.uint8), colour=False, encoding=encoding)) == {character, "\n"}


def test_a_picture_in_colour_shows_every_pixel():
    text = render(RAMP, colour=True, encoding="utf-8")
    rows = np.zeros((28, 28), int)
    for i, line in enumerate(text.split("\n")):
        assert line.endswith("\x1b[0m")
        cells = line.removesuffix("\x1b[0m").split("▀")[:-1]
        for j, cell in enumerate(cells):
            codes = cell.removeprefix("\x1b[").removesuffix("m").split(";")
            rows[2 * i, j], rows[2 * i + 1, j] = int(codes[2]), int(codes[5])
    np.testing.assert_array_equal(rows, 232 + RAMP.astype(int) // 11)
    assert rows.max() <= 255


@pytest.mark.parametrize(
    ("variable", "value", "coloured"), [(None, None, True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)]
)
def test_colour_only_where_it_is_wanted(monkeypatch, capsys, variable, value, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if variable:
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["data", "show", "0", "--dataset", "synthetic"]) == 0
    assert ("\x1b[38;5;" in capsys.readouterr().out) == coloured


def test_a_model_of_ones_own_files_is_trained_and_tested_again(tmp_path, capsys):
    own = write(tmp_path / "own", tiny_files(seed=1))
    options = ["--engine", "cpu", "--epochs", "1", "--batch-size", "8", "--out", str(tmp_path / "run")]
    assert main(["train", "--data-dir", str(own), *options]) == 3
    assert "--dataset own takes files of your own as they are" in capsys.readouterr().err
    assert main(["train", "--dataset", "idx", "--data-dir", str(own), *options]) == 0
    assert f"data    idx: 40 training and 10 test images, {own}\n" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["dataset"], report["source"], report["count"]) == ("idx", str(own), 10)
