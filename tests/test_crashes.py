"""A crash at any moment leaves each file old or new, whoever writes it; what was stopped goes on to the same bits."""

import csv
import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from crashes import Crashes
from data_server import serve, tiny_info
from tiny import Stop, but_times, ctrl_c

from mnist_cuda import cli
from mnist_cuda.data import catalogue
from mnist_cuda.data.dataset import load
from mnist_cuda.run import training, training_run
from mnist_cuda.run.resume import checkpoints, load_state
from mnist_cuda.sweeps import store
from mnist_cuda.sweeps.table import read_table

TRAIN = ("--engine", "cpu", "--threads", "1", "--batch-size", "15", "--epochs", "2", "--lr", "0.03")
RUN = ("train", *TRAIN, "--validation", "5", "--save-best", "--save-every", "1steps", "--keep", "2")
SWEEP = ("sweep", *TRAIN, "--seeds", "2", "--jobs", "1")


def done(*argv, code=0):
    assert cli.main([*argv]) == code


def fetched(server, monkeypatch, tiny):
    """The cache of the data, filled from a server, and what is made of it."""
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tiny))
    monkeypatch.setitem(catalogue.DATASETS, "mnist", tiny_info(server.url("good")))
    load("mnist")


# ---- each file is whole ----------------------------------------------------------------------------------------------

WRITERS = {  # what is run first, and what is watched
    "train": ([], (*RUN, "--json", "out.json", "--out", "runs/run")),
    "train again": ([(*RUN, "--out", "run")], ("train", "--resume", "run", "--epochs", "3")),
    "sweep": ([], (*SWEEP, "--save", "all", "--out", "sweeps/sweep")),
    "best of a sweep": ([], (*SWEEP, "--save", "best", "--out", "sweep")),
    "onnx": ([(*RUN, "--out", "run")], ("export", "onnx", "--model", "run")),
    "state dict": ([(*RUN, "--out", "run")], ("export", "state-dict", "--model", "run")),
    "profile": ([], ("profile", "--engine", "cpu", "--batch-size", "5", "--steps", "3", "--trace", "t.json")),
    "report": ([(*RUN, "--out", "run")], ("report", "run", "--no-profile", "--figures", "figures")),
}
FILLED = "sweeps/sweep/weights.safetensors"  # in place: its rows come later, see below


@pytest.mark.parametrize("writer", [*WRITERS, "data"])
def test_a_crash_leaves_each_file_old_or_new(writer, tiny, monkeypatch, capsys):
    """Flush, sync, rename, sync of the folder: in another order something is cut short, or lost though it was done."""
    first, last = WRITERS.get(writer, ([], ()))
    for argv in first:
        done(*argv)
    with serve() as server, Crashes(tiny) as crashes:
        if writer == "data":
            fetched(server, monkeypatch, tiny)
        else:
            done(*last)
    assert len(crashes.calls) >= 4
    for crash in crashes.found:
        for path, content in crash.files.items():
            if content is not None and not path.endswith((".part", "arrays.u8")) and path != FILLED:
                assert content in crashes.wholes[path], (crash.call, crash.kind, path)
    process, names = ({crash.kind: crash.files for crash in crashes.found}[kind] for kind in ("process", "names"))
    assert not [path for path in process if path.endswith(".part")]
    lost = {path for path in process if path not in names or names[path] != process[path]}
    assert lost <= {"mnist/arrays.u8"}, "done, and gone after a crash of the machine"


# ---- what was stopped goes on ----------------------------------------------------------------------------------------


def rows(path):
    """The lines of metrics.jsonl, metrics.csv or sweep.csv without the times."""
    text = Path(path).read_text()
    found = map(json.loads, text.splitlines()) if path.suffix == ".jsonl" else csv.DictReader(text.splitlines())
    return but_times(found)


def result(run):
    """All that a run leaves, but the times."""
    models = [(run / name).read_bytes() for name in ("model.safetensors", "best.safetensors")]
    return *models, rows(run / "metrics.jsonl"), rows(run / "metrics.csv")


def steps_saved(run):
    """Of the newest checkpoint, which is sound; 0 without one."""
    return next((int(path.stem[5:]) for path in checkpoints(run) if load_state(path)), 0)


def resumed(run, capsys):
    """Go on with a run that was stopped, to its end; False for one that had no beginning."""
    metrics = run / "metrics.jsonl"
    complete = metrics.exists() and sum("interrupted" not in row for row in rows(metrics)) == 2
    begun = (run / "config.json").exists() and (run / "config.json").read_bytes()
    capsys.readouterr()
    code = cli.main(["train", "--resume", str(run), "--quiet"])
    err = capsys.readouterr().err
    if not begun:
        assert code == 6, err
        assert not [path for path in run.rglob("*") if path.name != "config.json" and path.suffix != ".part"]
        return False
    assert code == (2 if complete else 0), err
    assert not complete or "all 2 epochs are done" in err
    return True


def test_a_run_goes_on_from_whatever_a_crash_left(tiny, capsys):
    with Crashes(tiny) as crashes:
        done(*RUN, "--quiet", "--out", "run")
    run = tiny / "run"
    whole, seen, saved, went_on = result(run), set(), {}, 0
    for crash in crashes.found:
        if crash.key in seen:
            continue
        seen.add(crash.key)
        crash.leave_in(tiny)
        steps = steps_saved(run)
        assert steps >= saved.get(crash.kind, 0), ("a checkpoint is lost", crash.call, crash.kind)
        saved[crash.kind] = steps
        if resumed(run, capsys):
            assert result(run) == whole, (crash.call, crash.kind)
            went_on += 1
    assert saved == dict.fromkeys(("process", "contents", "names"), 4)
    assert went_on > 40


def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fault", [full, ctrl_c])
def test_a_run_goes_on_from_any_call_that_failed(fault, tiny, monkeypatch, capsys):
    """A disk that is full at a call, or Ctrl-C. What was computed until then is printed, whatever cannot be written."""
    monkeypatch.setattr(training_run, "StopRequest", Stop)
    evaluate, evaluated, told = training.Trainer.evaluate, [], set()
    monkeypatch.setattr(training.Trainer, "evaluate", lambda self: evaluated.append(evaluate(self)) or evaluated[-1])
    argv = (*RUN, "--save-every", "1epochs", "--keep", "1", "--quiet")
    with Crashes(tiny) as crashes:
        done(*argv, "--out", "whole")
    run, calls = tiny / "run", crashes.calls
    assert len(calls) > 40
    for number, call in enumerate(calls):
        shutil.rmtree(run, ignore_errors=True)
        capsys.readouterr()
        evaluated.clear()
        with Crashes(tiny, fault, number):
            code = cli.main([*argv, "--out", "run"])
        out, err = capsys.readouterr()
        if fault is full and evaluated:
            accuracy = f"{100 * evaluated[-1]['test_accuracy']:.2f} % of 20 test images correct"
            accuracy = f"result  {accuracy} after {len(evaluated)} epoch"
            assert out.startswith(accuracy), (call, out)
            assert "\nsaved   NOT all\nweights " in out
            told.add(len(evaluated))
        assert (code, err.count("\n") <= 1) == (6 if fault is full else 130, True), (call, err)
        assert not [*run.rglob("*.part")], call
        if run.exists() and resumed(run, capsys):
            assert result(run) == result(tiny / "whole"), call
    assert fault is not full or told == {1, 2}


def test_a_full_disk_hides_no_result_of_a_sweep(tiny, monkeypatch, capsys):
    monkeypatch.setattr(store, "WRITE_EVERY", 0)
    argv, told = (*SWEEP, "--save", "best", "--quiet", "--json"), set()
    with Crashes(tiny) as crashes:
        done(*argv, "--out", "whole")
    expected = {row.index: row.test_accuracy for row in read_table(tiny / "whole" / "sweep.csv", 2)}
    for number, call in enumerate(crashes.calls):
        shutil.rmtree("sweep", ignore_errors=True)
        capsys.readouterr()
        with Crashes(tiny, full, number):
            assert cli.main([*argv, "--out", "sweep"]) == 6, call
        out, err = capsys.readouterr()
        report = json.loads(out)
        if "error" in report:  # before there was a result
            assert report["error"] in err, call
        else:
            written = {row.index for row in read_table(tiny / "sweep" / "sweep.csv", 2)}
            found = {
                row for row in expected if f"model {row}, not in sweep.csv: test {100 * expected[row]:.2f} %" in err
            }
            assert report["models_done"] == len(written | found), call
            assert report["mean_accuracy"] == pytest.approx(
                sum(expected[k] for k in written | found) / len(written | found)
            )
            told.add((len(written), len(found)))
    assert {(0, 1), (1, 1)} <= told


def test_a_full_disk_hides_no_object(tiny, monkeypatch, capsys):
    """What `--json FILE` cannot write is printed."""
    done(*RUN, "--out", "run", "--quiet")
    capsys.readouterr()
    with Crashes(tiny) as crashes:
        done("evaluate", "run", "--json", "out.json")
    expected, printed = json.loads(Path("out.json").read_text()), []
    for number, call in enumerate(crashes.calls):
        capsys.readouterr()
        with Crashes(tiny, full, number):
            code = cli.main(["evaluate", "run", "--json", "out.json"])
        out, err = capsys.readouterr()
        if code:
            assert err == "mnist-cuda: error: out.json: cannot write it: No space left on device\n", call
            printed += [json.loads(out)] if out else []
    assert len(printed) >= 3
    assert all(found == expected for found in printed)


@pytest.mark.parametrize("save", ["all", "best"])
def test_a_sweep_goes_on_from_whatever_a_crash_left(save, tiny, monkeypatch, capsys):
    monkeypatch.setattr(store, "WRITE_EVERY", 0)
    with Crashes(tiny) as crashes:
        done(*SWEEP, "--save", save, "--quiet", "--out", "sweep")
    sweep, seen = tiny / "sweep", set()
    weights = sweep / ("weights.safetensors" if save == "all" else "best.safetensors")
    whole = rows(sweep / "sweep.csv"), weights.read_bytes()
    for crash in crashes.found:
        if crash.key in seen or not crash.files.get("sweep/config.json"):
            continue
        seen.add(crash.key)
        crash.leave_in(tiny)
        kept = len(read_table(sweep / "sweep.csv", 2))
        capsys.readouterr()
        done("sweep", "--resume", "sweep", "--quiet", "--json")
        trained = json.loads(capsys.readouterr().out)["models_trained"]
        # A row is written when its weights are safe. The file of the best model may be that of one without a row.
        assert trained - (2 - kept) in ((0,) if save == "all" else (0, 1)), (crash.call, crash.kind)
        assert (rows(sweep / "sweep.csv"), weights.read_bytes()) == whole
    assert len(seen) > 6
