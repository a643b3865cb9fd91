"""Ctrl-C and SIGTERM in real processes: what is saved, how soon, with which exit code."""

import signal
import subprocess
import sys
import time

import pytest
from tiny import ENVIRONMENT, begun, end, metrics, program

from mnist_cuda.run.checkpoint import load_model

ENGINE = ("--engine", "reference")
GRACE = 2.0


def started(folder, *argv, **environment):
    """A run that has begun to train."""
    process = begun(*ENGINE, "--epochs", 500, "--out", folder, *argv, **environment)
    time.sleep(0.5)  # the first step begins a moment after its folder is printed
    return process


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_exits(tmp_path, signum, code):
    process = started(tmp_path / "run", "--batch-size", 5, MNIST_TINY_IMAGES="600")  # an epoch takes 5 s and more
    out, err, seconds = end(process, signum)
    assert process.returncode == code
    assert seconds <= GRACE
    assert err == ""
    result, file, _ = out.splitlines()[-3:]
    assert result.startswith(f"result  stopped by {signum.name} after ")
    assert "without population statistics" in file
    assert f"{signum.name}: finishing the running steps, then saving; a second signal ends the run at once\n" in out
    saved = load_model(tmp_path / "run")
    assert saved.statistics is None
    assert saved.metadata["statistics"] == "absent"
    rows = metrics(tmp_path / "run")
    assert rows[-1]["interrupted"] is True
    assert saved.metadata["steps"] == str(sum(row["steps"] for row in rows))


WHILE_IMPORTING = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["mnist-cuda", "engines"]
from mnist_cuda.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["argparse", "mnist_cuda.cli", "mnist_cuda.engine", "numpy", "rich.table"])
def test_a_signal_while_importing_takes_one_line(module):
    process = subprocess.run(
        [sys.executable, "-c", WHILE_IMPORTING.format(module=module)], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (process.returncode, process.stdout) == (130, "")
    assert process.stderr == "mnist-cuda: error: stopped by SIGINT\n"


NATIVE = """
import os, signal, sys
import numpy as np
from tiny import tiny_dataset
from mnist_cuda.engine import Engine
from mnist_cuda.terminal.signals import StopRequest
signal.signal(signal.SIGINT, signal.default_int_handler)
data = tiny_dataset()
engine = Engine("reference")
engine.set_dataset(np.repeat(data.train_images, 30, 0), np.repeat(data.train_labels, 30))
with StopRequest() as stop:
    {body}
print("went on", stop.signal)
"""


def ready(script):
    """A process that runs the script and has printed `ready`."""
    process = program(script)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    return process


def run_native(body):
    return ready(NATIVE.format(body=body))


def test_a_native_call_that_is_given_up():
    process = run_native(
        "with stop.giving_up_with(lambda s: print('saved', s, flush=True)): "
        "print('ready', flush=True); engine.compute_statistics()"
    )
    out, err, seconds = end(process, signal.SIGINT)
    assert (process.returncode, out, err) == (130, "saved 2\n", "")
    assert seconds <= 0.5


def test_an_error_while_giving_up_takes_one_line():
    process = run_native(
        "with stop.giving_up_with(lambda s: open('/none/none')): "
        "print('ready', flush=True); engine.compute_statistics()"
    )
    out, err, _ = end(process, signal.SIGTERM)
    assert (process.returncode, out, err.count("\n")) == (143, "", 1)


def test_a_second_signal_exits_at_once_even_from_a_native_call():
    process = run_native("print('ready', flush=True); engine.compute_statistics()")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    out, err, seconds = end(process, signal.SIGINT)
    assert (process.returncode, out) == (130, "")
    assert err == "mnist-cuda: error: stopped by a second signal, at once\n"
    assert seconds <= 0.5


def test_outside_of_native_code_the_main_thread_goes_on():
    process = run_native("print('ready', flush=True); import time; time.sleep(0.6)")
    out, _, _ = end(process, signal.SIGINT)
    assert (process.returncode, out) == (0, "went on 2\n")


def test_an_ignored_signal_stays_ignored():
    process = run_native(
        "pass\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwith StopRequest() as stop:\n"
        "    print('ready', flush=True); import time; time.sleep(0.6)"
    )
    out, _, _ = end(process, signal.SIGINT)
    assert (process.returncode, out) == (0, "went on None\n")


IN_EVALUATION = """
import signal, sys, time
import tiny
from mnist_cuda import cli; from mnist_cuda.run import training
from mnist_cuda.data import dataset
signal.signal(signal.SIGINT, signal.default_int_handler)
dataset.load = tiny.tiny_dataset
def evaluate(trainer):
    print("ready", flush=True)
    time.sleep(30)
training.Trainer.evaluate = evaluate
sys.exit(cli.main(["train", "--engine", "reference", "--batch-size", "35", "--quiet", "--out", {out!r}]))
"""


def test_a_signal_during_evaluation_does_not_wait_for_it(tmp_path):
    process = ready(IN_EVALUATION.format(out=str(tmp_path / "run")))
    out, _, seconds = end(process, signal.SIGTERM)
    assert process.returncode == 143
    assert seconds <= GRACE
    assert "stopped by SIGTERM after 1 step (1 of 5 epochs)" in out
    saved = load_model(tmp_path / "run")
    assert (saved.metadata["epochs"], saved.statistics) == ("1", None)
    assert metrics(tmp_path / "run")[-1]["interrupted"] is True


WHILE_SAVING = """
import os, signal, sys, time
import tiny
from mnist_cuda import cli; from mnist_cuda.run import keeping
from mnist_cuda.data import dataset
signal.signal(signal.SIGINT, signal.default_int_handler)
dataset.load = tiny.tiny_dataset
save = keeping.save_model
def save_and_stop(*args, **options):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    save(*args, **options)
keeping.save_model = save_and_stop
print("ready", flush=True)
sys.exit(cli.main(["train", "--engine", "reference", "--batch-size", "35", "--quiet", "--out", {out!r}]))
"""


def test_a_signal_while_an_epoch_is_saved_leaves_its_complete_model(tmp_path):
    out, _ = ready(WHILE_SAVING.format(out=str(tmp_path / "run"))).communicate()
    result, file, _ = out.splitlines()[-3:]
    assert result.endswith("(1 of 5 epochs) on tiny")
    assert file == f"saved   {tmp_path / 'run/model.safetensors'}"
    saved = load_model(tmp_path / "run")
    assert (saved.metadata["epochs"], saved.metadata["statistics"]) == ("1", "population")
    (row,) = metrics(tmp_path / "run")
    assert "test_accuracy" in row
    assert "interrupted" not in row
