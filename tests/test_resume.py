"""Resuming: a training that was stopped anywhere, SIGKILL included, ends in the bits of one that was not.

MNIST_CUDA_STOPS is how often each engine's run is stopped at random (default 6); MNIST_CUDA_STOP_SEED draws the times.
"""

import json
import os
import random
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import engine_params, stopped_after
from safetensors.numpy import load_file, save_file
from tiny import begun, but_times, metrics, tiny_dataset

from mnist_cuda import cli
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import digest, init_parameters
from mnist_cuda.errors import CheckpointError, UsageError
from mnist_cuda.run import training
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.run.evaluation import evaluate
from mnist_cuda.run.folder import ResumedFolder, RunFolder
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.resume import checkpoints, load_state, remove_later, save_state
from mnist_cuda.run.training import Trainer, hold_out

STOPS = int(os.environ.get("MNIST_CUDA_STOPS", "6"))
SEED = int(os.environ.get("MNIST_CUDA_STOP_SEED", "0"))


def results(folder):
    """The records of a run's epochs without the times."""
    return but_times(metrics(folder))


# ---- real processes --------------------------------------------------------------------------------------------------


# Of engines: images, epochs and steps between two checkpoints, so that a run takes a second or a few. Those of a GPU
# save so seldom that most of it is steps, and yet every 30 to 50 ms.
SIZES = {"reference": (35, 3, 3), "cpu": (400, 4, 7), "naive": (600, 10, 37)}
OTHER_SIZES = 6000, 20, 397


def complete(folder, epochs):
    """Whether a run has its last epoch's metrics: nothing is left to go on with, whatever signal it got after them."""
    return Path(folder, "metrics.jsonl").exists() and sum("interrupted" not in row for row in metrics(folder)) == epochs


def seconds_to_first_checkpoint(process, folder):
    """How long it takes a run from now on; a failure where it ends without one."""
    begin = time.monotonic()
    while not checkpoints(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    return time.monotonic() - begin


@pytest.mark.parametrize("spec", engine_params())
def test_a_run_stopped_at_random_ends_in_the_same_bits(spec, make_engine, tmp_path):
    """SIGKILL, SIGINT and SIGTERM at any moment after the folder was announced: start-up, steps, evaluation, saving.

    A quarter of them comes before the first new checkpoint, the others after it, or a run stopped often would get
    nowhere. A run that comes to its end is held against the undisturbed one, and another is begun.
    """
    name, precision = spec
    make_engine(name, precision)  # or a skip
    images, epochs, every = SIZES.get(name, OTHER_SIZES)
    environment = {"MNIST_TINY_IMAGES": str(images)}
    recipe = ["--engine", name, "--precision", precision, "--batch-size", 5, "--epochs", epochs, "--lr", 0.02]
    recipe += ["--schedule", "triangle", "--save-every", f"{every}steps", "--keep", 2]
    whole = tmp_path / "whole"
    process = begun(*recipe, "--out", whole, **environment)
    start_up, begin = seconds_to_first_checkpoint(process, whole), time.monotonic()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    steady = time.monotonic() - begin

    chance, stopped, runs, begin = random.Random(f"{SEED} {spec}"), [], 0, time.monotonic()
    while len(stopped) < STOPS:
        runs += 1
        run = tmp_path / f"run-{runs}"
        argv = [*recipe, "--out", run]
        while not complete(run, epochs):
            process = begun(*argv, **environment)
            argv = ["--resume", run]
            if len(stopped) < STOPS:
                signum = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
                in_start_up, fraction = chance.random() < 0.25, chance.random()
                newest = checkpoints(run)[:1]
                while not in_start_up and checkpoints(run)[:1] == newest and process.poll() is None:
                    time.sleep(0.002)
                time.sleep(fraction * (start_up if in_start_up else 2 * steady / STOPS))
                process.send_signal(signum)
            out, err = process.communicate(timeout=300)
            if process.returncode == 0:
                assert complete(run, epochs), (out, err)
            else:
                ends = [-signal.SIGKILL, 128 + signum]
                if complete(run, epochs):  # Python gives signals back as it ends; a shell says 128 + signum here, too
                    ends.append(-signum)
                assert process.returncode in ends, (signum, in_start_up, out, err)
                stopped.append(" ".join([signum.name, *(path.stem for path in checkpoints(run)[:1])]))
        assert (whole / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
        assert results(whole) == results(run)
    print(
        f"{name} {precision}: {start_up:.2f} s to a checkpoint and {steady:.2f} s to the end; "
        f"{(time.monotonic() - begin) / len(stopped):.2f} s a stop, {len(stopped)} of {runs} runs: {', '.join(stopped)}"
    )


# ---- the command line ------------------------------------------------------------------------------------------------


def train(*argv, code=0):
    assert cli.main(["train", *map(str, argv)]) == code


RECIPE = ("--engine", "cpu", "--threads", 1, "--batch-size", 5, "--epochs", 3, "--seed", 4, "--lr", 0.03)


@pytest.fixture
def stopped(tiny):
    """stopped(step, *argv): a run in `run` that is stopped by Ctrl-C after so many steps."""
    return lambda step, *argv: stopped_after(step, *RECIPE, *argv, "--out", "run")


@pytest.mark.parametrize("step", [1, 6, 7, 8, 17])
@pytest.mark.parametrize(
    "argv",
    [(), ("--schedule", "linear", "--eval-bn", "batch"), ("--validation", 5, "--save-best", "--save-every", "2epochs")],
    ids=["plain", "linear", "validation"],
)
def test_a_stop_at_a_step_changes_nothing(stopped, step, argv, capsys):
    stopped(step, *argv)
    train("--resume", "run")
    train(*RECIPE, *argv, "--out", "whole")
    for name in ["model.safetensors", *(["best.safetensors"] if "--save-best" in argv else [])]:
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()
    assert results("run") == results("whole")
    config = json.loads(Path("run/config.json").read_text())
    assert [row["step"] for row in config["resumed"]] == [step]
    out = capsys.readouterr().out
    epoch = -(-step // (6 if "--validation" in argv else 7))  # an epoch's last step is followed by its evaluation
    assert "\n`mnist-cuda train --resume run` goes on from here\n" in out
    assert re.search(rf"^ {{8}}continuing after {step} steps?, in epoch {epoch}$", out, re.MULTILINE)
    assert f" since step {step};" in out


def test_options_that_change_the_result_are_refused(stopped, capsys):
    stopped(8)
    for flag, value, was in [
        ("--lr", "0.1", "0.03"),
        ("--batch-size", "7", "5"),
        ("--seed", "0", "4"),
        ("--schedule", "linear", "constant"),
        ("--engine", "reference", "cpu"),
        ("--eval-bn", "batch", "population"),
        ("--validation", "3", "0"),
        ("--init", "x.safetensors", "None"),
    ]:
        train("--resume", "run", flag, value, code=2)
        err = capsys.readouterr().err
        assert f"{flag} is {value}, and run was begun with {was}: that would change its result" in err
        assert err.count("\n") == 1
    train("--resume", "run", "--out", "other", code=2)
    assert "--out" in capsys.readouterr().err
    train("--resume", "run", "--lr", "0.03", "--threads", 1, "--save-every", "3steps", "--keep", 2)
    assert len(checkpoints(Path("run"))) == 2


def test_more_epochs_only_where_the_rates_do_not_depend_on_their_number(tiny, capsys):
    train(*RECIPE, "--out", "run")
    train("--resume", "run", code=2)
    assert "run: all 3 epochs are done; --epochs N with more goes on" in capsys.readouterr().err
    train("--resume", "run", "--epochs", 5)
    train(*RECIPE, "--epochs", 5, "--out", "whole")
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert results("run") == results("whole")
    train(*RECIPE, "--schedule", "linear", "--out", "falls")
    train("--resume", "falls", "--epochs", 5, code=2)
    assert "--epochs is 5, and falls was begun with 3: that would change its result" in capsys.readouterr().err


def test_a_run_that_is_still_training_is_left_alone(tmp_path):
    with RunFolder(tmp_path / "run", "cpu") as folder:
        folder.start({"options": {}, "engine": {}, "data": {}})
        with pytest.raises(UsageError, match="another process is training there"):
            ResumedFolder(folder.path)


def test_without_a_name_the_newest_run_goes_on(stopped, tiny, capsys):
    train("--resume", code=2)
    assert "there is no run in runs/" in capsys.readouterr().err
    stopped(8)
    Path("runs").mkdir()
    shutil.move("run", "runs/a")
    train("--resume", "b", code=6)
    assert "b: no such file or folder, and no run of that name in runs/" in capsys.readouterr().err
    Path("runs/killed").mkdir()  # before it began: RunFolder made its empty config.json, and nothing else
    Path("runs/killed/config.json").touch()
    train("--resume", "runs/killed", code=6)
    assert "runs/killed/config.json: empty; its run was killed before it began" in capsys.readouterr().err
    train("--resume", "--quiet")
    assert "saved   runs/a/model.safetensors" in capsys.readouterr().out
    train("--resume", "a", code=2)
    assert "runs/a: all" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["a bit", "the end", "nothing", "another epoch"])
def test_a_damaged_checkpoint_is_told_and_an_older_one_taken(stopped, damage, capsys):
    stopped(12, "--save-every", "5steps", "--keep", 3)
    newest, *_ = files = checkpoints(Path("run"))
    assert [path.stem for path in files] == [f"step-{step:09d}" for step in (12, 10, 5)]
    content = bytearray(newest.read_bytes())
    if damage == "a bit":
        content[-100_000] ^= 1
    elif damage == "the end":
        content = content[:-1]
    elif damage == "nothing":
        content = bytearray()
    else:
        content = content.replace(b'\\"epoch\\": 2', b'\\"epoch\\": 1')
    newest.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a sound checkpoint"):
        load_state(newest)
    train("--resume", "run")
    captured = capsys.readouterr()
    assert f"WARNING: {newest}: not a sound checkpoint" in captured.err
    assert "since step 10;" in captured.out
    train(*RECIPE, "--out", "whole")
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert load_state(checkpoints(Path("run"))[0]).state.epoch == 4


def test_the_newest_sound_checkpoint_is_taken(stopped, capsys):
    """By its steps, 9 before 10, whatever the age of its file; each newer one that is damaged is told of."""
    stopped(12, "--save-every", "1steps", "--keep", 9)
    names = [f"step-{step:09d}.safetensors" for step in range(12, 3, -1)]
    assert [path.name for path in checkpoints(Path("run"))] == names
    shutil.copytree("run", "stopped")
    for damaged in ([], [0], [1], [0, 1], [0, 1, 2], [0, 2], [1, 2, 3, 4], range(9)):
        shutil.rmtree("run")
        shutil.copytree("stopped", "run")
        for age, path in enumerate(checkpoints(Path("run"))):
            if age in damaged:
                path.write_bytes(path.read_bytes()[:-1])
            os.utime(path, (0, 10**9 + age))
        capsys.readouterr()
        train("--resume", "run", "--quiet")
        out, err = capsys.readouterr()
        taken = min({*range(9)} - {*damaged}, default=9)
        *told, rest = [*err.splitlines(), ""][: taken + 1]
        assert [re.search(r"(step-\d+\.safetensors): not a sound", line)[1] for line in told] == names[:taken]
        assert all(line.endswith("; looking for an older one") for line in told)
        assert ("begins anew" in rest) == (taken == 9)
        assert (f" since step {12 - taken};" in out) == (taken < 9)


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path):
    """Whatever the number of digits, and whatever was written last."""
    state, steps = trainer_of(TrainOptions(batch_size=5)).state, [9, 10**9, 100, 10, 10**9 - 1, 11, 99, 10**10]

    def left():
        return [int(path.stem[5:]) for path in checkpoints(tmp_path)]

    for step in steps:
        save_state(tmp_path, step, state, {}, keep=9)
    assert left() == sorted(steps, reverse=True)
    remove_later(tmp_path, tmp_path / "checkpoints" / "step-1000000000.safetensors")
    assert left() == [10**9, 10**9 - 1, 100, 99, 11, 10, 9]
    save_state(tmp_path, 10**9 + 1, state, {}, keep=3)
    assert left() == [10**9 + 1, 10**9, 10**9 - 1]
    remove_later(tmp_path, None)
    assert left() == []


def test_other_data_and_a_changed_config_are_refused(stopped, monkeypatch, capsys):
    stopped(8)
    monkeypatch.setenv("MNIST_TINY_IMAGES", "36")
    train("--resume", "run", code=3)
    assert "are not the data of run: the training and test images differ; expected digest" in capsys.readouterr().err
    monkeypatch.delenv("MNIST_TINY_IMAGES")
    config = json.loads(Path("run/config.json").read_text())
    Path("run/config.json").write_text(json.dumps(config | {"options": config["options"] | {"lr": 0.5}}))
    train("--resume", "run", code=6)
    assert "made with lr 0.03, and config.json says 0.5" in capsys.readouterr().err
    Path("run/config.json").write_text("{}")
    train("--resume", "run", code=6)
    assert "config.json: not a run's configuration" in capsys.readouterr().err
    train("--resume", "nothing", code=6)


def test_a_fallback_stays_one(stopped, monkeypatch, capsys):
    """Synthetic digits, say, that `auto` took for MNIST: the run that goes on names them, and says it all the same."""
    monkeypatch.setenv("MNIST_TINY_WARNING", "MNIST IS NOT HERE")
    stopped(8)
    monkeypatch.delenv("MNIST_TINY_WARNING")
    capsys.readouterr()
    train("--resume", "run")
    captured = capsys.readouterr()
    assert captured.err == "WARNING: MNIST IS NOT HERE\n"
    assert "NOT mnist" in captured.out.splitlines()[-4]
    assert [row["warning"] for row in metrics("run")] == ["MNIST IS NOT HERE"] * 3
    train("--config", "run/config.json", "--out", "other")
    assert capsys.readouterr().err == "WARNING: MNIST IS NOT HERE\n"


def test_a_complete_run_without_its_checkpoint_is_left_alone(tiny, capsys):
    train(*RECIPE, "--out", "run")
    shutil.rmtree("run/checkpoints")
    before = Path("run/model.safetensors").stat()
    train("--resume", "run", code=2)
    assert "run: all 3 epochs are done" in capsys.readouterr().err
    assert Path("run/model.safetensors").stat() == before


def test_another_build_is_a_warning(stopped, capsys):
    stopped(8)
    (path,) = checkpoints(Path("run"))
    saved = load_state(path)
    old = saved.facts | {"versions": saved.facts["versions"] | {"build": "another"}}
    save_state(Path("run"), 8, saved.state, old, 1)
    train("--resume", "run")
    assert "was made by build another, now " in capsys.readouterr().err


def test_a_configuration_repeats_its_run_and_flags_win(tiny, capsys):
    train(*RECIPE, "--schedule", "triangle:0.3", "--validation", 3, "--precision", "fp32", "--out", "a")
    train("--config", "a/config.json", "--out", "b", "--threads", 1)
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()
    assert results("a") == results("b")
    train("--lr=0.2", "--config", "a/config.json", "-qn1", "--engine", "reference", "-o", "c")
    options = json.loads(Path("c/config.json").read_text())["options"]
    kept = {"lr": 0.2, "epochs": 1, "batch_size": 5, "seed": 4, "schedule": "triangle:0.3", "engine": "reference"}
    assert kept.items() <= options.items()
    with pytest.raises(SystemExit) as end:
        train("--config", "a/config.json", "--resume", "a")
    assert end.value.code == 2


def test_a_configuration_on_other_data_is_refused_unless_they_are_asked_for(tiny, monkeypatch, capsys):
    train(*RECIPE, "--out", "a")
    monkeypatch.setenv("MNIST_TINY_IMAGES", "40")
    train("--config", "a/config.json", "--out", "b", code=3)
    assert "are not the data of a/config.json" in capsys.readouterr().err
    train("--config", "a/config.json", "--dataset", "mnist", "--out", "b")


def test_a_run_begins_with_the_weights_of_a_file(tiny, capsys):
    train(*RECIPE, "--epochs", 1, "--out", "a")
    train(*RECIPE, "--epochs", 1, "--init", "a", "--out", "b")
    engine, data = Engine("cpu"), tiny_dataset()
    engine.set_parameters(load_model("a").parameters)
    engine.set_dataset(data.train_images, data.train_labels)
    engine.train(training.epoch_order(4, 1, 35), 5, 0.03)
    assert digest(engine.parameters) == digest(load_model("b").parameters)
    train("--config", "b/config.json", "--out", "c")
    assert Path("c/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()
    shutil.copy("b/model.safetensors", "a/model.safetensors")
    train("--config", "b/config.json", "--out", "d", code=2)
    assert "and the run began with" in capsys.readouterr().err
    train("--init", "nothing.pt", "--out", "e", code=6)
    train("--init", "nothing.safetensors", "--out", "e", code=6)


def test_the_best_model_is_chosen_by_held_out_images(tiny, monkeypatch, capsys):
    """Not by the test set: its accuracy is made to point to another epoch."""
    train("--save-best", code=2)
    assert "--save-best chooses by the images of --validation N, which is missing" in capsys.readouterr().err
    good, scored = Trainer.evaluate, []

    def scripted(trainer):
        held, loss, test = scored[trainer.epoch - 1]
        of_test = {"test_loss": 1.0 - test, "test_accuracy": test}
        return good(trainer) | of_test | {"validation_accuracy": held, "validation_loss": loss}

    monkeypatch.setattr(Trainer, "evaluate", scripted)
    for best, scored[:] in [
        (2, [(0.5, 1.0, 0.9), (0.8, 1.0, 0.1), (0.7, 0.1, 0.95)]),
        (2, [(0.5, 1.0, 0.9), (0.8, 1.0, 0.1), (0.8, 1.0, 0.95)]),  # of equals the first
        (1, [(0.8, 1.0, 0.1), (0.8, 1.0, 0.2), (0.8, 1.0, 0.3)]),
        (3, [(0.8, 1.0, 0.9), (0.8, 1.5, 0.1), (0.8, 0.5, 0.1)]),  # of equal accuracies the least loss
        (3, [(0.0, 9.0, 0.9), (0.1, 9.5, 0.8), (0.2, 99.0, 0.1)]),
    ]:
        shutil.rmtree("run", ignore_errors=True)
        train(*RECIPE, "--validation", 5, "--save-best", "--out", "run")
        assert load_model("run/best.safetensors").metadata["epochs"] == str(best)
        assert load_model("run").metadata["epochs"] == "3"
        assert f"best.safetensors of epoch {best}" in capsys.readouterr().out.splitlines()[-2]


@pytest.mark.parametrize("text", ["0steps", "x", "5 miles", "-1", "1.5epochs", ""])
def test_how_often_to_save_is_checked(tiny, text, capsys):
    train(*RECIPE, f"--save-every={text}", code=2)
    assert f"--save-every is '{text}', expected such as 500steps or 2epochs" in capsys.readouterr().err
    assert not Path("runs").exists()


# ---- the trainer -----------------------------------------------------------------------------------------------------


def trainer_of(options, state=None, records=None, parameters=None):
    engine = Engine("cpu", threads=1)
    engine.set_parameters(parameters or init_parameters(options.seed))
    trainer = Trainer(engine, tiny_dataset(), options, state=state, records=records)
    trainer.prepare()
    return trainer


def finish(trainer):
    while not trainer.finished:
        trainer.train_epoch()
        trainer.end_epoch(trainer.evaluate())
    return digest(trainer.parameters)


def test_a_state_survives_its_file(tmp_path):
    trainer = trainer_of(TrainOptions(batch_size=5))
    trainer.train_epoch(stop=lambda: trainer.steps >= 3)
    state = trainer.state
    facts = {"options": {"what": [1, 0.1]}, "data_digest": "", "versions": {}}
    path = save_state(tmp_path, trainer.steps, state, facts, keep=1)
    saved = load_state(path)
    assert saved.facts == facts
    assert replace(saved.state, parameters={}, losses=None, correct=None) == replace(
        state, parameters={}, losses=None, correct=None
    )
    np.testing.assert_array_equal(saved.state.losses, state.losses)
    np.testing.assert_array_equal(saved.state.correct, state.correct)
    assert digest(saved.state.parameters) == digest(state.parameters)
    tensors = load_file(path)
    save_file(tensors, path)  # the same tensors without the rest
    with pytest.raises(CheckpointError, match="not a sound checkpoint"):
        load_state(path)


def test_held_out_images_are_not_trained_on():
    kept, held = hold_out(3, 10, 35)
    assert sorted([*kept, *held]) == list(range(35))
    assert len(held) == 10
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([3, 2])))
    np.testing.assert_array_equal(held, np.sort(generator.permutation(35)[25:]))
    trainer = trainer_of(TrainOptions(seed=3, validation=10, batch_size=25, epochs=1))
    assert trainer.engine.dataset_size == 25
    data, other = tiny_dataset(), Engine("cpu", threads=1)
    other.set_parameters(init_parameters(3))
    other.set_dataset(data.train_images[kept], data.train_labels[kept])
    other.train(training.epoch_order(3, 1, 25), 25, 0.05)
    assert finish(trainer) == digest(other.parameters)
    record, engine = trainer.epochs[-1], trainer.engine
    for half, chosen in (("validation", data.train_images[held]), ("test", data.test_images)):
        labels = data.train_labels[held] if half == "validation" else data.test_labels
        found = evaluate(engine, chosen, labels)
        assert (record[f"{half}_accuracy"], record[f"{half}_loss"]) == (found.accuracy, found.loss)
    with pytest.raises(UsageError, match="held out leave none"):
        trainer_of(TrainOptions(validation=35))


def test_a_state_between_scales_is_not_taken(monkeypatch):
    """`fused` in fp32 and tf32: as if the engine here were one, and its largest weight passed a power of two in each
    of the first four steps. What is trained is the same."""
    options = TrainOptions(batch_size=5, epochs=2)
    whole = finish(trainer_of(options))
    trainer = trainer_of(options)
    monkeypatch.setattr(Engine, "resumable", property(lambda _: trainer.steps not in (1, 2, 3, 4)))
    assert trainer.state is not None
    trainer.train_epoch(stop=lambda: trainer.steps >= 1)
    assert trainer.steps == 5  # stopped after the first, and settled with the fourth after it
    state = trainer.state
    assert finish(trainer) == whole
    assert finish(trainer_of(options, state)) == whole
    monkeypatch.setattr(Engine, "resumable", False)
    trainer = trainer_of(options)
    trainer.train_epoch()
    assert trainer.state is None


@pytest.mark.parametrize("spec", engine_params(without=("reference", "cpu")))
def test_a_weight_that_passes_a_power_of_two(spec, make_engine):
    """A stop after each of the first steps, of which some take conv2's largest weight over 0.5."""
    options = TrainOptions(batch_size=5, epochs=2, lr=0.02)
    data = tiny_dataset()

    def make(state=None):
        engine = make_engine(*spec)
        weights = init_parameters(1)
        weights["conv2.weight"][:, 0, 0, 0] = np.float32(np.nextafter(np.float32(0.5), np.float32(0)))
        engine.set_parameters(weights)
        trainer = Trainer(engine, data, options, state=state)
        trainer.prepare()
        return trainer

    whole = finish(make())
    for step in range(1, 14):
        trainer = make()

        def enough(trainer=trainer, step=step):
            return trainer.steps >= step

        while not enough() or trainer.state is None:
            trainer.train_epoch(stop=enough, stride=step)
            if trainer.step == trainer.steps_per_epoch:
                trainer.end_epoch(trainer.evaluate())
        resumed = make(trainer.state)
        resumed.epochs = [{"train_seconds": 0.0}] * (trainer.epoch - 1)
        assert finish(resumed) == whole, step
