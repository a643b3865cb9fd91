"""mnist-cuda runs, and what else looks at a run's folder: metrics.csv, evaluate --mistakes, RUN in every command."""

import csv
import fcntl
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import stopped_after
from tiny import Terminal, metrics, prints

from mnist_cuda import cli
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import digest
from mnist_cuda.run import confusion, listing
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.run.evaluation import Predictions

pytestmark = pytest.mark.usefixtures("tiny")


def train(name, *flags):
    folder = ["--out", f"runs/{name}", "--quiet"]
    assert cli.main(["train", "--engine", "cpu", "--batch-size", "10", "--epochs", "2", *folder, *flags]) == 0


def run(capsys, *argv, code=0):
    capsys.readouterr()
    return prints(capsys, *argv, code=code)


def test_the_list_names_what_matters_and_what_cannot_be_read(capsys):
    train("one")
    train("two", "--lr", "0.1", "--epochs", "1")
    Path("runs/three").mkdir()
    Path("runs/three/config.json").write_text("{")
    Path("runs/notes").mkdir()
    epochs = metrics("runs/one")
    head, one, two, fault = run(capsys, "runs").splitlines()
    assert head.split() == ["run", "state", "accuracy", "epochs", "engine", "time", "batch", "lr", "data"]
    seconds = sum(epoch["train_seconds"] + epoch["evaluation_seconds"] for epoch in epochs)
    accuracy = f"{100 * epochs[-1]['test_accuracy']:.2f}"
    assert " ".join(one.split()) == f"one done {accuracy} % 2 cpu fp32 {seconds:.1f} s 10 0.05 tiny"
    assert two.split()[0] == "two"
    assert fault.startswith("not listed: runs/three/config.json: not a run's configuration: ")
    listed = json.loads(run(capsys, "runs", "--json"))
    assert [entry["run"] for entry in listed["runs"]] == ["one", "two"]
    assert listed["runs"][0]["accuracy"] == epochs[-1]["test_accuracy"]
    assert listed["runs"][1]["options"]["lr"] == 0.1
    assert run(capsys, "runs", "--dir", "none", code=2).startswith("mnist-cuda: error: there is no folder none here")


def test_the_list_is_sorted_and_chosen_from(capsys):
    for name, lr in (("one", "0.05"), ("two", "0.1"), ("three", "0")):
        train(name, "--lr", lr, "--epochs", "1")
    accuracies = {row["run"]: row["accuracy"] for row in json.loads(run(capsys, "runs", "--json"))["runs"]}

    def names(*flags):
        return [line.split()[0] for line in run(capsys, "runs", *flags).splitlines()[1:]]

    assert names("--sort", "lr") == ["three", "one", "two"]
    assert names("--sort", "lr", "--reverse") == ["two", "one", "three"]
    assert names("--reverse") == ["two", "three", "one"]
    best = sorted(accuracies, key=lambda name: -accuracies[name])[0]
    assert accuracies[names("--sort", "accuracy")[0]] == accuracies[best]
    assert names("--where", "lr=0.10") == ["two"]
    assert names("--where", "lr<=0.05", "run!=one") == ["three"]
    assert names("--where", f"accuracy<{100 * accuracies['one']}") == [
        name for name in sorted(accuracies) if accuracies[name] < accuracies["one"]
    ]
    assert names("--where", "engine=cpu", "state=done") == ["one", "three", "two"]
    assert names("--where", "validation>0") == []
    assert "'lrr' is unknown" in run(capsys, "runs", "--where", "lrr=1", code=2)
    assert "did you mean lr?" in run(capsys, "runs", "--sort", "lrr", code=2)
    assert "--where lr: expected NAME=VALUE" in run(capsys, "runs", "--where", "lr", code=2)
    assert "'high' is not a number" in run(capsys, "runs", "--where", "lr>high", code=2)


def test_a_note_is_listed_until_it_is_removed(capsys):
    train("one")
    before = Path("runs/one/config.json").read_text()
    run(capsys, "runs", "note", "one", "too", "few epochs")
    assert run(capsys, "runs").splitlines()[1].endswith("tiny  too few epochs")
    assert json.loads(run(capsys, "runs", "--json"))["runs"][0]["note"] == "too few epochs"
    assert "\nnote    too few epochs\n" in run(capsys, "runs", "show", "one")
    run(capsys, "runs", "note", "one")
    assert Path("runs/one/config.json").read_text() == before


def test_a_run_says_how_it_ended(capsys):
    """As config.json has it; without that, as of a run that was killed or of an older version, by what there is."""
    train("one")
    file = Path("runs/one/config.json")
    config = json.loads(file.read_text())

    def state():
        return json.loads(run(capsys, "runs", "--json"))["runs"][0]["state"]

    assert (config.pop("ended"), state()) == ("done", "done")
    file.write_text(json.dumps(config))
    assert state() == "done"
    config["options"]["epochs"] = 5
    file.write_text(json.dumps(config))
    assert state() == "killed"
    lock = os.open("runs/one", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert state() == "running"
    os.close(lock)
    with open("runs/one/metrics.jsonl", "a") as lines:
        lines.write('{"epoch": 3, "interrupted": true}\n')
    assert state() == "stopped"


def test_a_run_is_shown_in_ten_lines(capsys):
    train("one")
    summary, table = run(capsys, "runs", "show", "one").split("\n\n")
    lines = dict(line.split(maxsplit=1) for line in summary.splitlines())
    assert len(lines) == 10
    epochs = metrics("runs/one")
    last = epochs[-1]
    assert lines["result"] == f"{100 * last['test_accuracy']:.2f} % of the test images, loss {last['test_loss']:.4f}"
    assert lines["weights"] == f"{digest(load_model('runs/one').parameters)[:12]}, model.safetensors"
    assert lines["state"] == "done, 2 of 2 epochs"
    assert lines["plan"] == "batch 10, lr 0.05 constant, seed 0"
    assert len(table.splitlines()) == 3
    Path("runs/one/model.safetensors").unlink()
    assert "weights none saved yet" in run(capsys, "runs", "show", "one")


def test_a_folder_that_may_not_be_read_hides_no_other(monkeypatch, capsys):
    train("one")
    Path("runs/locked").mkdir()
    good = Path.exists

    def exists(path):
        if path.parent.name == "locked":  # root may read everything
            raise PermissionError(13, "Permission denied", str(path))
        return good(path)

    monkeypatch.setattr(Path, "exists", exists)
    _, one, fault = run(capsys, "runs").splitlines()
    assert one.startswith("one ")
    assert fault == "not listed: runs/locked: cannot be read: Permission denied"


@pytest.mark.parametrize(("done", "steps"), [(0, 1), (1, 2), (2, 1)])
def test_a_run_that_was_stopped_within_an_epoch(done, steps, capsys):
    """Its results are those of the last complete epoch; the time of what was trained since counts."""
    argv = ["--engine", "cpu", "--batch-size", "10", "--epochs", "3", "--out", "runs/one", "--quiet"]
    stopped_after(3 * done + steps, *argv)
    records = metrics("runs/one")
    assert [(row["epoch"], row["steps"], "interrupted" in row) for row in records] == [
        *((epoch + 1, 3, False) for epoch in range(done)),
        (done + 1, steps, True),
    ]
    last = records[done - 1] if done else None
    accuracy = last["test_accuracy"] if last else None
    seconds = sum(row["train_seconds"] + row.get("evaluation_seconds", 0) for row in records)
    cells = ["one", "stopped", *([f"{100 * accuracy:.2f}", "%"] if last else ["-"]), str(done), "of", "3", "cpu"]
    assert run(capsys, "runs").splitlines()[1].split()[: len(cells)] == cells
    assert f"{seconds:.1f} s" in run(capsys, "runs")
    (listed,) = json.loads(run(capsys, "runs", "--json"))["runs"]
    assert (listed["accuracy"], listed["epochs"], listed["seconds"]) == (accuracy, done, pytest.approx(seconds))
    found = json.loads(run(capsys, "runs", "show", "one", "--json"))
    assert (found["accuracy"], found["epochs"]) == (accuracy, records)
    *_, table = run(capsys, "runs", "show", "one").split("\n\n")
    lines = table.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [str(epoch + 1) for epoch in range(done + 1)]
    facts = listing.flat(listing.load_run(Path("runs/one")))
    results = {name: facts.get(f"result.{name}") for name in ("loss", "train_accuracy", "test_loss", "test_accuracy")}
    assert results == {name: f"{last[name]:.6g}" if last else None for name in results}
    assert facts["result.epochs"] == str(done)
    assert cli.main(["train", "--resume", "runs/one", "--quiet"]) == 0
    assert run(capsys, "runs").splitlines()[1].split()[4:6] == ["3", "cpu"]


def test_show_and_compare(capsys):
    train("one")
    train("two", "--lr", "0.1")
    shown = run(capsys, "runs", "show", "one", "--all").splitlines()
    assert ["options.lr", "0.05"] in [line.split() for line in shown]
    assert shown[-3].split()[:4] == ["epoch", "steps", "loss", "train_accuracy"]
    assert [line.split()[0] for line in shown[-2:]] == ["1", "2"]
    assert json.loads(run(capsys, "runs", "show", "runs/one", "--json"))["config"]["options"]["lr"] == 0.05
    rows = {line.split()[0]: line.split()[1:] for line in run(capsys, "runs", "compare", "one", "two").splitlines()[1:]}
    assert rows["options.lr"] == ["0.05", "0.1"]
    assert "options.seed" not in rows
    assert "options.out" not in rows
    assert "two runs or more" in run(capsys, "runs", "compare", "one", code=2)
    assert "six: no such file or folder, and no run of that name in runs/" in run(capsys, "runs", "show", "six", code=6)


def test_what_is_inside_lists_has_rows_of_its_own(capsys):
    """A run that was resumed has a list of circumstances: no cell is an object of JSON."""
    train("one")
    train("two", "--epochs", "1")
    assert cli.main(["train", "--resume", "runs/two", "--epochs", "2", "--quiet"]) == 0
    out = run(capsys, "runs", "compare", "one", "two")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
    assert rows["resumed.1.step"][0] == "-"
    assert int(rows["resumed.1.step"][1]) > 0
    assert "{" not in out


def test_a_name_means_the_run_where_what_has_it_is_none(capsys):
    """Folders and files of a run's name beside runs/, records in its folder, and a slip of the hand."""
    train("mode")
    Path("mode").mkdir()
    expected = run(capsys, "evaluate", "runs/mode", "--engine", "cpu").splitlines()[-1]
    for name in ("mode", "runs/mode/metrics.csv", "runs/mode/config.json", "runs/mode/metrics.jsonl"):
        assert run(capsys, "evaluate", name, "--engine", "cpu").splitlines()[-1] == expected
    assert run(capsys, "runs", "show", "mode").splitlines()[0].split() == ["run", "runs/mode"]
    assert "did you mean mode?" in run(capsys, "evaluate", "moed", code=6)
    other = Path("other.safetensors")
    other.write_bytes(b"")
    Path("runs/mode/other.safetensors").write_bytes(b"")
    assert "runs/mode/other.safetensors: not a readable" in run(
        capsys, "evaluate", "runs/mode/other.safetensors", code=6
    )


def test_remove_deletes_runs_alone_and_asks(capsys):
    for name in ("one", "two", "three"):
        train(name)
    Path("runs/mine").mkdir()
    assert "give --yes" in run(capsys, "runs", "remove", "one", code=2)
    assert "not a run's folder" in run(capsys, "runs", "remove", "one", "mine", "--yes", code=6)
    Path("link").symlink_to("runs/one")
    assert "symbolic link" in run(capsys, "runs", "remove", "link", "--yes", code=6)
    goes_on = os.open("runs/one", os.O_RDONLY)
    fcntl.flock(goes_on, fcntl.LOCK_EX)
    assert "has not ended" in run(capsys, "runs", "remove", "one", "--yes", code=6)
    os.close(goes_on)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mine", "one", "three", "two"]
    assert run(capsys, "runs", "remove", "one", "runs/one", "--yes") == "deleted runs/one\n"
    for key, left in ((b"n\r", ["mine", "three", "two"]), (b"y\r", ["mine", "three"])):
        with Terminal("runs", "remove", "two") as terminal:
            terminal.read(b"[y/N] ")
            terminal.type(key)
            terminal.read()
        assert sorted(path.name for path in Path("runs").iterdir()) == left


def test_remove_deletes_nothing_that_no_run_wrote(capsys):
    """Neither a folder whose config.json looks like a run's, nor what somebody has put beside a run's files."""
    train("one", "--save-every", "1steps", "--keep", "9")
    run(capsys, "report", "one", "--no-profile")
    run(capsys, "export", "state-dict", "--model", "runs/one")
    like = Path("runs/like")
    like.mkdir()
    (like / "config.json").write_text(json.dumps({"options": {}, "engine": {}, "data": {}, "thesis": "all of it"}))
    assert "not one that `mnist-cuda` wrote" in run(capsys, "runs", "remove", "like", "--yes", code=6)
    Path("away").mkdir()
    Path("away/step-000000001.safetensors").write_text("not ours")
    one = Path("runs/one")
    before = sorted(one.rglob("*"))
    for name, content in (("notes.txt", ""), ("checkpoints/mine.txt", ""), ("config.json.bak", ""), ("figures", None)):
        (one / name).mkdir() if content is None else (one / name).write_text(content)
        words = run(capsys, "runs", "remove", "one", "--yes", code=6)
        assert f"cannot remove it: no run wrote runs/one/{name}; move that away first" in words
        (one / name).rmdir() if content is None else (one / name).unlink()
        assert sorted(one.rglob("*")) == before
    (one / "checkpoints").rename("aside")
    (one / "checkpoints").symlink_to(Path("away").resolve())
    assert run(capsys, "runs", "remove", "one", "--yes", code=6).count("checkpoints") == 1
    (one / "checkpoints").unlink()
    Path("aside").rename(one / "checkpoints")
    (one / "checkpoints/step-000000007.safetensors.part").touch()  # of a run that was killed
    assert run(capsys, "runs", "remove", "one", "--yes") == "deleted runs/one\n"
    assert not one.exists()
    assert Path("away/step-000000001.safetensors").read_text() == "not ours"


def test_metrics_csv_has_the_numbers_of_the_jsonl():
    train("one")
    with open("runs/one/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    records = metrics("runs/one")
    assert len(rows) == len(records) == 2
    for row, record in zip(rows, records, strict=True):
        assert {name: float(value) for name, value in row.items()} == {name: record[name] for name in row}
        assert {"epoch", "loss", "test_accuracy", "train_seconds"} <= row.keys()


def test_answers_by_hand():
    scores = np.zeros((5, 10))
    scores[0, 3] = scores[1, 3] = scores[2, 4] = 9
    scores[3, 3] = 2
    scores[4, 0] = np.nan
    answers = confusion.Answers(Predictions(scores), np.array([3, 4, 4, 4, 0], np.uint8))
    expected = np.zeros((10, 10), int)
    expected[3, 3], expected[4, 3], expected[4, 4] = 1, 2, 1
    assert answers.matrix.tolist() == expected.tolist()
    assert answers.errors.tolist() == [1, 0, 0, 0, 2, 0, 0, 0, 0, 0]
    assert answers.accuracy == 2 / 5
    assert answers.mistakes().tolist() == [4, 1, 3]  # without scores, sure of another, less sure
    assert confusion.taken_for(answers, 4) == "nothing"
    assert answers.probabilities[3, 3] == pytest.approx(np.exp(2) / (np.exp(2) + 9))


def test_mistakes_are_what_the_model_gets_wrong(capsys):
    train("one", "--lr", "0")
    answers, model, data = confusion.score_model(Engine("cpu"), Path("runs/one"))
    assert model.metadata["dataset"] == "tiny"
    wrong = [k for k in range(20) if answers.predictions.logits[k].argmax() != data.test_labels[k]]
    assert len(wrong) > 3, "an untrained model"
    text = run(capsys, "evaluate", "one", "--mistakes", "3")
    titles = [line for line in text.splitlines() if line.startswith("tiny test ")]
    shown = [int(title.split()[2].rstrip(":")) for title in titles]
    losses = {k: -np.log(answers.probabilities[k, data.test_labels[k]]) for k in wrong}
    assert shown == sorted(wrong, key=lambda k: -losses[k])[:3]
    assert f" {data.test_labels[shown[0]]}, taken for {answers.predictions.logits[shown[0]].argmax()} (" in titles[0]
    assert f"{len(wrong)} of 20 test images are wrong, 3 of them shown\n" in text
    report = json.loads(run(capsys, "evaluate", "runs/one/model.safetensors", "--mistakes", "2", "--json"))
    assert report["mistakes"] == shown[:2]
    assert "images are wrong" not in run(capsys, "evaluate", "latest")


def test_a_run_has_one_name_in_every_command(capsys):
    train("one")
    train("two")
    os.utime("runs/one/config.json", (2e9, 2e9))  # the newest
    os.utime("runs/one/model.safetensors", (2e9, 2e9))
    for name in ("one", "runs/one", "runs/one/model.safetensors", "latest"):
        assert run(capsys, "runs", "show", name).startswith("run     runs/one\n")
        assert "of 20 test images" in run(capsys, "evaluate", name)
        assert json.loads(run(capsys, "evaluate", name, "--json"))["file"].startswith("runs/one")
        assert "runs/one: all 2 epochs are done" in run(capsys, "train", "--resume", name, code=2)
        run(capsys, "train", "--config", name, "--out", "runs/again")
        assert json.loads(Path("runs/again/config.json").read_text())["options"]["batch_size"] == 10
        shutil.rmtree("runs/again")
    assert "name it or its folder" in run(capsys, "runs", "remove", "runs/one/model.safetensors", "--yes", code=2)
    Path("runs/latest").mkdir()
    assert "not a run's folder" in run(capsys, "runs", "show", "latest", code=6)
    Path("runs/latest").rmdir()
    assert run(capsys, "runs", "remove", "latest", "--yes") == "deleted runs/one\n"


def test_a_run_from_before_placement_had_its_name_keeps_it():
    train("one", "--placement", "host")
    config = json.loads(Path("runs/one/config.json").read_text())
    config["options"]["data"] = config["options"].pop("placement")
    Path("runs/one/config.json").write_text(json.dumps(config))
    assert listing.load_run(Path("runs/one")).config["options"]["placement"] == "host"
    train("two", "--config", "one")
    assert json.loads(Path("runs/two/config.json").read_text())["options"]["placement"] == "host"
