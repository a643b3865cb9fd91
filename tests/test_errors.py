"""What cannot be read or written: one line, the right exit code, before the work where that can be known."""

import errno
import json
import os
import pwd
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_cli import parsers
from tiny import prints, tiny_dataset

from mnist_cuda import CheckpointError, Model, cli, save_model, train
from mnist_cuda.bench import competitors, tables
from mnist_cuda.data import dataset
from mnist_cuda.run import evaluation
from mnist_cuda.terminal.json_output import dumps

CPU = ("--engine", "cpu")


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def denied(tmp_path):
    """A folder with a file in it that this user may not look into."""
    folder = tmp_path / "denied"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    folder.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)


def fails(capsys, code, *argv):
    """The one line that the command ends with."""
    err = prints(capsys, *argv, code=code)
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    "argv",
    [
        ("bench", "--engines", ""),
        ("bench", "--engines", "reference", "--precisions", ","),
        ("bench", "--engines", "reference", "--batch-size", ""),
        ("bench", "accuracy", "--engines", ""),
        ("bench", "accuracy", "--engines", "cpu", "--precisions", ""),
        ("bench", "time-to-accuracy", "--budgets", ""),
        ("bench", "time-to-accuracy", "--peaks", ""),
        ("bench", "check", "--engines", ""),
    ],
)
def test_a_list_of_nothing_is_refused(argv, tiny, capsys):
    assert f"{argv[-2]} " in fails(capsys, 2, *argv)


def test_what_this_user_may_not_read(denied, capsys, monkeypatch):
    words = "Permission denied"
    assert words in fails(capsys, 6, "train", *CPU, "--out", denied / "run")
    assert words in fails(capsys, 6, "evaluate", denied)
    assert words in fails(capsys, 6, "evaluate", denied / "model.safetensors")
    assert words in fails(capsys, 3, "data", "show", "0", "--data-dir", denied)
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(denied))
    assert words in fails(capsys, 3, "data", "show", "0", "--dataset", "mnist", "--offline")


def test_names_that_no_file_can_have(capsys):
    name = "x" * 300
    fails(capsys, 6, "train", *CPU, "--out", name)
    fails(capsys, 6, "evaluate", name)
    fails(capsys, 6, "bench", "check", "--json", f"{name}.json")
    fails(capsys, 3, "train", *CPU, "--data-dir", name)
    assert os.listdir() == []


def test_folders_in_each_other_without_an_end(tiny, capsys):
    """As many as a path can have, and one that is too long; what was made for nothing is gone."""
    deep = "/".join(["d"] * 1900)
    argv = ["train", *CPU, "--epochs", "1", "--batch-size", "35", "--quiet", "--out"]
    try:
        assert prints(capsys, *argv, deep)
        assert os.path.exists(f"{deep}/model.safetensors")
        assert "File name too long" in fails(capsys, 6, *argv, "e/" * 2500)
        assert "e" not in os.listdir()
        assert cli.main(["runs", "remove", deep, "--yes"]) == 0
    finally:
        subprocess.run(["rm", "-rf", "d", "e"], check=True)  # shutil.rmtree calls itself for each


@pytest.mark.parametrize("steps", [str(2**70), "-1", "many", "1e3", "9" * 5000])
def test_steps_that_no_counter_holds(steps, tiny, capsys):
    """Of a model from elsewhere, whose metadata nobody checked."""
    model = train(tiny_dataset(), epochs=1, batch_size=35, engine="cpu").model
    other = Model(model.parameters, model.statistics, {"steps": steps})
    with pytest.raises(CheckpointError, match=r"^the model's metadata say steps .*, expected a whole number from 0 to"):
        save_model("again.safetensors", other)
    metadata = {"steps": steps, "dataset": "tiny"}
    tensors = {name: np.asarray(value) for name, value in (model.parameters | model.statistics).items()}
    save_file(tensors, "model.safetensors", metadata)
    assert "metadata say steps" in fails(capsys, 6, "export", "state-dict", "--model", "model.safetensors")


@pytest.mark.parametrize("classes", ["", "[", "3", "[[[]]]", "[" * 100_000, '["a", {}]', '"abcdefghijk"', "null"])
def test_names_of_classes_that_are_none(classes):
    """They are digits then, whatever a model's metadata say."""
    model = Model({}, None, {"classes": classes})
    assert len(model.classes) == 10
    assert set(model.classes[len(model.names) :]) <= set("0123456789")


@pytest.mark.parametrize(
    "mirror",
    ["http://a b/", "http://a\tb/", "http://a/b c", "ftp://a/", "http://", "http://[::1", "http://a:port/", "a", "http://a<b/",
     "http://" + "a" * 70 + ".org/", "http://.org/"],
)  # fmt: skip
def test_a_mirror_that_is_no_url(mirror, capsys, monkeypatch):
    assert "is no http or https URL" in fails(capsys, 2, "data", "fetch", "mnist", "--mirror", mirror)
    monkeypatch.setenv("MNIST_CUDA_MIRROR", mirror)
    assert "is no http or https URL" in fails(capsys, 2, "data", "fetch", "mnist")


def test_no_home(monkeypatch, capsys):
    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "MNIST_CUDA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert "MNIST_CUDA_CACHE" in fails(capsys, 3, "data", "show", "0", "--dataset", "mnist", "--offline")
    assert os.listdir() == []


@pytest.mark.parametrize(
    "argv",
    [
        ("bench", "--engines", "reference", "--peers", "--batch-size", "5"),
        ("bench", "accuracy", "--engines", "reference", "--batch-size", "5"),
        ("bench", "check", "--engines", "reference", "--peers", "torch", "--batch-size", "5"),
    ],
)
def test_no_room_for_what_competitors_read(argv, tiny, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(competitors, "has_module", lambda *_: True)
    monkeypatch.setattr(tables.Circumstances, "busy", lambda _: "")
    monkeypatch.setattr(np, "savez", full)
    err = fails(capsys, 6, *argv)
    assert "data.npz: cannot write it: No space left on device; free some room or let TMPDIR name another folder" in err


JSON_COMMANDS = [
    ("train",),
    ("sweep",),
    ("evaluate", "model"),
    ("bench",),
    ("bench", "accuracy"),
    ("bench", "time-to-accuracy"),
    ("bench", "ops"),
    ("bench", "around"),
    ("bench", "share"),
    ("bench", "--models", "2"),
    ("bench", "--all-batches"),
    ("bench", "check"),
    ("profile",),
    ("engines",),
    ("predict", "picture"),
    ("runs",),
    ("runs", "show", "run"),
    ("runs", "compare", "run", "run"),
    ("doctor",),
    ("exercise",),
]


def test_all_commands_with_json_are_known_here():
    # nargs: not judge's flag, which prints lines and takes no file
    having = [name for name, p in parsers().items() if any(a.dest == "json" and a.nargs == "?" for a in p._actions)]
    known = {
        tuple(word for word in argv if word not in ("model", "picture", "run", "--models", "2", "--all-batches"))
        for argv in JSON_COMMANDS
    }
    assert set(having) == known


@pytest.mark.parametrize("argv", JSON_COMMANDS, ids=" ".join)
def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(argv, monkeypatch, capsys):
    """Also one of another kind: `evaluate --json model.safetensors` must not replace the model."""
    monkeypatch.setattr(dataset, "load", lambda *_, **__: pytest.fail("the work has begun"))
    os.mkdir("folder.json")
    assert "no/where.json: cannot write it" in fails(capsys, 6, *argv, "--json", "no/where.json")
    assert "Is a directory" in fails(capsys, 6, *argv, "--json", "folder.json")
    assert "'model.safetensors' does not end in .json" in fails(capsys, 2, *argv, "--json", "model.safetensors")
    assert os.listdir() == ["folder.json"]


def test_json_on_stdout_and_in_a_file_are_the_same_object(tiny, capsys):
    argv = ["train", *CPU, "--epochs", "1", "--batch-size", "35", "--out"]
    assert cli.main([*argv, "a", "--json"]) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert "epoch 1/1" in err
    assert cli.main([*argv, "b", "--json", "b.json"]) == 0
    out, err = capsys.readouterr()
    assert "epoch 1/1" in out
    with open("b.json") as file:
        written = json.load(file)
    assert written.keys() == printed.keys()
    assert written["accuracy"] == printed["accuracy"]


def test_json_has_no_nan(tiny, monkeypatch, capsys):
    assert dumps({"a": [float("nan"), 1.5], "b": (float("inf"), "x")}) == '{"a": [null, 1.5], "b": [null, "x"]}'
    monkeypatch.setattr(
        "mnist_cuda.run.training.evaluate_again", lambda *_: evaluation.Evaluation((1,), count=20, loss=float("nan"))
    )
    out = prints(capsys, "train", *CPU, "--epochs", "1", "--batch-size", "35", "--out", "run", "--json")
    strict = {"parse_constant": lambda name: pytest.fail(name)}
    assert json.loads(out, **strict)["epochs"][0]["test_loss"] is None
    with open("run/metrics.jsonl") as file:
        assert json.load(file, **strict)["test_loss"] is None
    monkeypatch.setattr(evaluation, "evaluate", lambda *_: evaluation.Evaluation((1,), count=20, loss=float("nan")))
    assert json.loads(prints(capsys, "evaluate", "run", *CPU, "--json"), **strict)["loss"] is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "it is no JSON: "),
        (b"\xff\xfe\x00", "it is no UTF-8 text"),
        (b"[]", "it is a list, expected an object"),
        (b'{"options": {}}', "`engine` is missing"),
        (b'{"options": {}, "engine": "cpu"}', "`engine` is text, expected an object"),
    ],
)
def test_a_configuration_that_is_none(content, words, tmp_path, capsys):
    (tmp_path / "config.json").write_bytes(content)
    err = fails(capsys, 6, "train", "--config", "config.json")
    assert f"config.json: not a run's configuration: {words}" in err


def test_a_report_takes_no_other_file_and_no_folder_that_cannot_be(tiny, tmp_path, capsys, monkeypatch):
    assert cli.main(["train", *CPU, "--epochs", "1", "--batch-size", "35", "--quiet", "--out", "run"]) == 0
    capsys.readouterr()
    assert "'run/model.safetensors' does not end in .html" in fails(capsys, 2, "report", "-o", "run/model.safetensors")
    monkeypatch.setattr(dataset, "load", lambda *_, **__: pytest.fail("the work has begun"))
    (tmp_path / "file").touch()
    assert "file: File exists" in fails(capsys, 6, "report", "run", "-o", "x.html", "--figures", "file")
