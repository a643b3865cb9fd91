"""What programs read: the keys that docs/scripting.md lists, a version, and an object for every failure."""

import json
import re

import pytest
from conftest import ROOT
from tiny import said, tiny_dataset

from mnist_cuda import cli
from mnist_cuda.data import dataset

ENGINE = ("--engine", "cpu", "--batch-size", "5")
COMMANDS = {
    "train": ("train", *ENGINE, "--epochs", "1"),
    "evaluate": ("evaluate", "run"),
    "predict": ("predict", "--model", "run", str(ROOT / "docs" / "digit.png")),
    "runs": ("runs",),
    "runs show": ("runs", "show", "run"),
    "runs compare": ("runs", "compare", "run", "run"),
    "sweep": ("sweep", *ENGINE, "--epochs", "1"),
    "engines": ("engines",),
    "doctor": ("doctor",),
    "profile": ("profile", *ENGINE, "--steps", "2"),
    "bench": ("bench", "--engines", "cpu", "--peers", "", "--batch-size", "5", "--seconds", "0.1", "--blocks", "2"),
    "bench check": ("bench", "check", "--engines", "cpu", "--batch-size", "5"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(dataset, "load", tiny_dataset)
        assert cli.main(["train", *ENGINE, "--epochs", "1", "--out", "runs/run", "--quiet"]) == 0
        yield folder


def printed(capsys):
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_every_key_is_documented(here, capsys):
    page = (ROOT / "docs" / "scripting.md").read_text()
    section = page[page.index("## JSON") : page.index("## Exit codes")]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, re.MULTILINE))
    assert rows.keys() == COMMANDS.keys()
    for command, argv in COMMANDS.items():
        if command == "predict":
            pytest.importorskip("PIL", reason="Pillow is not installed")
        capsys.readouterr()
        assert cli.main([*argv, "--json"]) == 0, command
        found = printed(capsys)
        assert found.pop("version") == 1
        assert re.findall("`(.*?)`", rows[command]) == list(found), command


@pytest.mark.parametrize(
    ("code", "argv"),
    [
        (6, ("evaluate", "nothing")),
        (2, ("train", "--epochs", "0")),
        (2, ("train", "--epoch", "1")),
        (2, ("evaluat",)),
    ],
)
def test_a_failure_is_an_object_too(here, capsys, code, argv):
    capsys.readouterr()
    found, out, err = said(capsys, *argv, "--json")
    value = json.loads(out)
    assert (found, value["exit_code"], value["version"]) == (code, code, 1)
    assert value["error"]
    assert value["error"] in err


def test_no_object_where_a_file_or_nothing_is_wanted(here, capsys):
    for flags in ((), ("--json", "a.json"), ("--json=a.json",)):
        assert cli.main(["evaluate", "nothing", *flags]) == 6
        assert capsys.readouterr().out == ""
