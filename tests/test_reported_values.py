"""What a run reports, asks of the engine and leaves in files: every value against one computed another way.

The engine's steps are scripted, so that losses, hits and times are known; the clock moves only where the script says.
"""

import json
import math
import os
import re
import signal
import time
from pathlib import Path

import cases
import numpy as np
import pytest
from conftest import engine_params
from tiny import metrics, tiny_dataset

from mnist_cuda import _native, cli
from mnist_cuda.bench import accuracy
from mnist_cuda.bench import step as bench_step
from mnist_cuda.bench.time_to_accuracy import Budget, EngineTrainee, Recipe
from mnist_cuda.bench.worker import Worker
from mnist_cuda.data import dataset
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import PARAMETERS, init_parameters
from mnist_cuda.errors import UsageError
from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.run.evaluation import evaluate
from mnist_cuda.run.results import Model
from mnist_cuda.run.training import epoch_order
from mnist_cuda.terminal import console

IMAGES, TEST_IMAGES = 35, 20  # of the tiny data set
EPOCHS, BATCH, RATE, SEED = 4, 4, 0.03, 6
STEPS = 8  # an epoch; 3 images are left over
STATISTICS_SECONDS, SCORING_SECONDS = 0.5, 0.02


class Script:
    """What takes the place of the native `train`: a record of its calls, with results and seconds that it made up."""

    def __init__(self):
        self.now = 1000.0
        self.calls = []
        self.losses, self.correct, self.seconds = [], [], []  # of every step

    def train(self, engine, order, batch_size, lr):
        assert order.dtype == np.int32
        assert len(order) % batch_size == 0
        steps = np.arange(len(self.losses), len(self.losses) + len(order) // batch_size)
        losses, correct = 2.0 * 0.93**steps, (steps * 7 % (batch_size + 1)).astype(np.int32)
        seconds = 3e-3 + 1e-3 * (steps % 5)
        rates = np.broadcast_to(lr, len(steps)).tolist()
        self.calls.append((order.copy(), batch_size, rates, len(steps), float(seconds.sum())))
        self.losses += losses.tolist()
        self.correct += correct.tolist()
        self.seconds += seconds.tolist()
        self.now += float(seconds.sum())
        return losses, correct

    def epochs(self):
        """The calls of each epoch."""
        found, steps = [[]], 0
        for call in self.calls:
            if steps == STEPS:
                found.append([])
                steps = 0
            found[-1].append(call)
            steps += call[3]
            assert steps <= STEPS, "a call went on into the next epoch"
        return found


@pytest.fixture
def script(monkeypatch, tiny, heard):
    """The scripted engine, and a clock that stands still outside of it, of evaluation and of statistics."""
    script = Script()
    statistics, logits, evaluation = Engine.compute_statistics, Engine.logits, Engine.evaluate_by_class

    def slow_statistics(engine):
        script.now += STATISTICS_SECONDS
        statistics(engine)

    def slow_logits(engine, images, batch_norm="population"):
        script.now += SCORING_SECONDS
        return logits(engine, images, batch_norm)

    def slow_evaluation(engine):
        script.now += SCORING_SECONDS
        return evaluation(engine)

    monkeypatch.setattr(_native.Engine, "train", lambda engine, *arguments: script.train(engine, *arguments))
    monkeypatch.setattr(Engine, "compute_statistics", slow_statistics)
    monkeypatch.setattr(Engine, "logits", slow_logits)
    monkeypatch.setattr(Engine, "evaluate_by_class", slow_evaluation)
    monkeypatch.setattr(time, "perf_counter", lambda: script.now)
    return script


def train(*argv, code=0):
    defaults = ["--engine", "cpu", "--threads", "1", "--epochs", EPOCHS, "--batch-size", BATCH, "--lr", RATE]
    assert cli.main(["train", *map(str, [*defaults, "--seed", SEED, "--out", "run", *argv])]) == code


def parts(values):
    """The values of all steps, epoch by epoch."""
    return [np.array(values[k * STEPS : (k + 1) * STEPS]) for k in range(len(values) // STEPS)]


# ---- train -----------------------------------------------------------------------------------------------------------


def test_the_order_of_every_epoch(script):
    train()
    epochs = script.epochs()
    assert len(epochs) == EPOCHS
    orders = [np.concatenate([call[0] for call in calls]) for calls in epochs]
    for epoch, order in enumerate(orders, 1):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([SEED, 1, epoch])))
        np.testing.assert_array_equal(order, generator.permutation(IMAGES)[: STEPS * BATCH])
    assert len({order.tobytes() for order in orders}) == EPOCHS
    assert {call[1] for call in script.calls} == {BATCH}
    assert [rate for call in script.calls for rate in call[2]] == [RATE] * (EPOCHS * STEPS)


def test_metrics_are_those_of_the_steps(script):
    train()
    found = metrics("run")
    assert [row["epoch"] for row in found] == [1, 2, 3, 4]
    assert [row["steps"] for row in found] == [STEPS] * EPOCHS
    of_steps = zip(parts(script.losses), parts(script.correct), parts(script.seconds), strict=True)
    for row, (losses, correct, seconds) in zip(found, of_steps, strict=True):
        assert row["loss"] == pytest.approx(losses.mean(), rel=1e-12)
        assert row["train_accuracy"] == pytest.approx(correct.sum() / (STEPS * BATCH), rel=1e-12)
        assert row["train_seconds"] == pytest.approx(seconds.sum(), rel=1e-9)
        assert row["images_per_second"] == pytest.approx(STEPS * BATCH / seconds.sum(), rel=1e-9)
        assert row["evaluation_seconds"] == pytest.approx(STATISTICS_SECONDS + SCORING_SECONDS, rel=1e-9)
        assert (row["dataset"], row["warning"], row["eval_bn"]) == ("tiny", None, "population")


def test_microseconds_an_iteration(script):
    """Statistics over the calls, each weighing the same; the very first call of a run is warm-up."""
    train()
    for epoch, (row, calls) in enumerate(zip(metrics("run"), script.epochs(), strict=True)):
        us = [1e6 * seconds / steps for _, _, _, steps, seconds in (calls[1:] if epoch == 0 else calls)]
        expected = {"mean": np.mean(us), "median": np.median(us), "min": min(us), "count": len(us)}
        expected |= {"p5": np.percentile(us, 5), "p95": np.percentile(us, 95)}
        assert row["us_per_iteration"] == pytest.approx(expected, rel=1e-9)


def test_the_test_set_is_scored_by_the_weights_and_statistics_that_are_saved(script):
    train("--epochs", 1)
    data, saved, engine = tiny_dataset(), load_model(Path("run")), Engine("cpu", threads=1)
    engine.set_parameters(saved.parameters)
    engine.set_dataset(data.train_images, data.train_labels)
    engine.compute_statistics()
    for name, value in engine.statistics.items():
        np.testing.assert_array_equal(saved.statistics[name], value)
    scores = np.concatenate([engine.logits(data.test_images[first : first + 3]) for first in range(0, TEST_IMAGES, 3)])
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    chosen = shifted[np.arange(TEST_IMAGES), data.test_labels] / shifted.sum(1)
    (row,) = metrics("run")
    assert row["test_accuracy"] == (scores.argmax(1) == data.test_labels).sum() / TEST_IMAGES
    assert row["test_loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-5)


def test_batch_statistics_are_used_where_they_are_asked_for(script):
    train("--epochs", 2, "--eval-bn", "batch")
    engine, data = Engine("cpu", threads=1), tiny_dataset()
    engine.set_parameters(load_model(Path("run")).parameters)
    expected = evaluate(engine, data.test_images, data.test_labels, "batch")
    rows = metrics("run")
    assert load_model("run").statistics is not None
    assert [row["eval_bn"] for row in rows] == ["batch", "batch"]
    assert rows[1]["test_loss"] == expected.loss
    # the statistics are for the file alone, so they are computed once, after the last epoch
    assert [row["evaluation_seconds"] for row in rows] == pytest.approx(
        [SCORING_SECONDS, STATISTICS_SECONDS + SCORING_SECONDS], rel=1e-9
    )


def test_what_is_printed_is_what_is_recorded(script, capsys):
    train()
    out = capsys.readouterr().out
    pattern = (
        r"epoch (\d)/4  loss ([\d.]+)  train ([\d.]+) %  test ([\d.]+) %  ([\d.]+) us/it  (\d+) img/s"
    )  # fmt: skip
    printed = [tuple(map(float, match)) for match in re.findall(pattern, out)]
    assert len(printed) == EPOCHS
    for line, row in zip(printed, metrics("run"), strict=True):
        epoch, loss, training, test, us, images = line
        assert epoch == row["epoch"]
        assert loss == pytest.approx(row["loss"], abs=5.1e-5)
        assert training == pytest.approx(100 * row["train_accuracy"], abs=5.1e-3)
        assert test == pytest.approx(100 * row["test_accuracy"], abs=5.1e-3)
        assert us == pytest.approx(1e6 * row["train_seconds"] / row["steps"], abs=0.51)
        assert images == pytest.approx(row["images_per_second"], abs=0.51)
    assert f"{EPOCHS} epochs of {STEPS} steps, batch {BATCH}, lr {RATE}, seed {SEED}" in out
    assert f"tiny: {IMAGES} training and {TEST_IMAGES} test images" in out


def recent_us(script):
    """Mean microseconds over the last calls that hold 100 steps, the first call left out; and how many steps."""
    steps, seconds = 0, 0.0
    for _, _, _, of_call, taken in reversed(script.calls[1:]):
        steps, seconds = steps + of_call, seconds + taken
        if steps >= 100:
            break
    return 1e6 * seconds / steps, steps


@pytest.mark.parametrize("epochs", [EPOCHS, 16])
def test_the_last_line_and_the_json(script, capsys, epochs):
    train("--epochs", epochs, "--json")
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    block = dict(line.split(maxsplit=1) for line in captured.err.splitlines()[-4:])
    training = sum(script.seconds)
    total = training + epochs * (STATISTICS_SECONDS + SCORING_SECONDS)
    us, iterations = recent_us(script)
    assert report["seconds"] == pytest.approx(total, rel=1e-9)
    assert report["training_seconds"] == pytest.approx(training, rel=1e-9)
    assert report["us_per_iteration"] == pytest.approx(us, rel=1e-9)
    assert report["us_per_iteration_over"] == iterations
    assert (report["steps"], report["epochs_done"], report["interrupted"]) == (epochs * STEPS, epochs, None)
    assert report["epochs"] == metrics("run")
    assert report["accuracy"] == metrics("run")[-1]["test_accuracy"]
    assert (report["engine"], report["precision"], report["dataset"]) == ("cpu", "fp32", "tiny")
    assert Path(report["model"]) == Path(report["folder"]) / "model.safetensors"
    assert (
        f"{100 * report['accuracy']:.2f} % of {TEST_IMAGES} test images correct after {epochs} epochs on tiny"
        == (block["result"])
    )
    assert block["time"] == f"{total:.1f} s; {us:.0f} us/iteration (mean of the last {iterations})"
    assert (block["saved"], block["weights"]) == (report["model"], report["parameters_sha256"][:12])


def test_the_live_line(script, monkeypatch):
    shown = []
    monkeypatch.setattr(console.LiveLine, "show", lambda line, *given: shown.append((len(script.losses), *given)))
    train()
    steps_shown = [line for line in shown if any(part.endswith("left") for part in line[2:])]
    assert len(steps_shown) == len(script.calls)
    for done, fraction, *texts in steps_shown:
        epoch = math.ceil(done / STEPS)
        of_epoch = slice((epoch - 1) * STEPS, done)
        so_far = [call for k, call in enumerate(script.calls) if sum(c[3] for c in script.calls[: k + 1]) <= done]
        timed = so_far[1:] or so_far
        us = 1e6 * sum(call[4] for call in timed) / sum(call[3] for call in timed)
        assert fraction == pytest.approx((done - of_epoch.start) / STEPS)
        values = {text.split()[-1]: text for text in texts}
        assert texts[0] == f"epoch {epoch}/{EPOCHS}"
        assert f"loss {np.mean(script.losses[of_epoch]):.4f}" in texts
        assert f"train {100 * np.mean(script.correct[of_epoch]) / BATCH:.1f} %" in texts
        assert values["us/it"] == f"{us:.0f} us/it"
        assert values["img/s"] == f"{BATCH * 1e6 / us:.0f} img/s"
        # evaluations to come are expected to take what those before took, the first a third of the steps on as many
        seconds = STATISTICS_SECONDS + SCORING_SECONDS if epoch > 1 else (IMAGES + TEST_IMAGES) / BATCH * us / 3e6
        evaluations = (EPOCHS - epoch + 1) * seconds
        left = (EPOCHS * STEPS - done) * us / 1e6 + evaluations
        assert values["left"] == f"{left:.1f} s left"


def test_what_the_files_hold(script):
    train("--placement", "host", "--precision", "fp32", "--eval-bn", "population", "--dataset", "mnist")
    config = json.loads(Path("run/config.json").read_text())
    asked = {"epochs": EPOCHS, "batch_size": BATCH, "lr": RATE, "seed": SEED, "engine": "cpu", "threads": 1}
    asked |= {"device": 0, "placement": "host", "precision": "fp32", "eval_bn": "population", "dataset": "mnist"}
    assert asked.items() <= config["options"].items()
    data = tiny_dataset("mnist")
    facts = {"name": "mnist", "requested": "mnist", "training_images": IMAGES, "test_images": TEST_IMAGES}
    facts |= {"steps_per_epoch": STEPS, "hashes": data.hashes, "digest": data.digest, "warning": None}
    assert facts.items() <= config["data"].items()
    engine = {"name": "cpu", "precision": "fp32", "device": "cpu", "chosen_by": "name"}
    assert engine.items() <= config["engine"].items()
    saved = load_model(Path("run"))
    expected = {"dataset": "mnist", "data_digest": data.digest, "seed": str(SEED), "epochs": str(EPOCHS)}
    expected |= {"engine": "cpu", "precision": "fp32", "steps": str(EPOCHS * STEPS), "statistics": "population"}
    assert expected.items() <= saved.metadata.items()
    for tensor in PARAMETERS:  # no step was really made
        initial = init_parameters(SEED)[tensor.name].astype(np.float32)
        np.testing.assert_array_equal(saved.parameters[tensor.name], initial, err_msg=tensor.name)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("step", [3, 8, 9, 13, 16])
def test_divergence_is_noticed_in_the_call_that_brings_it(script, capsys, value, step):
    """Wherever in a call or an epoch it is, no further step is made; what the epoch before saved stays."""
    good = script.train

    def diverging(engine, *arguments):
        losses, correct = good(engine, *arguments)
        first = step - (len(script.losses) - len(losses)) - 1
        if 0 <= first < len(losses):
            losses[first] = value
        return losses, correct

    script.train = diverging
    train(code=2)
    before_last = sum(call[3] for call in script.calls[:-1])
    assert before_last < step <= len(script.losses)
    epoch, of_epoch = divmod(step - 1, STEPS)
    message = f"the loss of step {of_epoch + 1} in epoch {epoch + 1} is {value:g}"
    assert message in capsys.readouterr().err
    assert Path("run/model.safetensors").exists() == (epoch > 0)
    if epoch:
        assert load_model(Path("run")).metadata["epochs"] == str(epoch)
        assert len(metrics("run")) == epoch


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_last_epoch_is_saved_is_not_forgotten(script, capsys, monkeypatch, signum, code):
    """The run is complete and so is its file; the exit code tells of the signal."""
    statistics = Engine.statistics

    def interrupted(engine):
        if len(script.losses) == EPOCHS * STEPS:
            os.kill(os.getpid(), signum)
            time.sleep(0.2)
        return statistics.fget(engine)

    monkeypatch.setattr(Engine, "statistics", property(interrupted))
    train(code=code)
    saved = load_model(Path("run"))
    assert (saved.metadata["epochs"], saved.metadata["statistics"]) == (str(EPOCHS), "population")
    assert len(metrics("run")) == EPOCHS


@pytest.mark.parametrize("epoch", [1, EPOCHS])
def test_a_signal_within_an_epoch(script, capsys, epoch):
    good, stopped = script.train, (epoch - 1) * STEPS + 3

    def interrupted(engine, *arguments):
        result = good(engine, *arguments)
        if len(script.losses) >= stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        return result

    script.train = interrupted
    train("--json", code=143)
    report, last = json.loads(capsys.readouterr().out), metrics("run")[-1]
    made = len(script.losses)
    in_epoch = slice((epoch - 1) * STEPS, made)
    assert (report["interrupted"], report["steps"], report["epochs_done"]) == ("SIGTERM", made, made // STEPS)
    assert report["accuracy"] == (metrics("run")[-2]["test_accuracy"] if epoch > 1 else None)
    assert (last["interrupted"], last["epoch"], last["steps"]) == (True, epoch, made - in_epoch.start)
    assert last["loss"] == pytest.approx(np.mean(script.losses[in_epoch]), rel=1e-12)
    assert last["train_accuracy"] == pytest.approx(np.mean(script.correct[in_epoch]) / BATCH, rel=1e-12)
    assert last["images_per_second"] == pytest.approx(
        BATCH * last["steps"] / np.sum(script.seconds[in_epoch]), rel=1e-9
    )
    saved = load_model(Path("run"))
    found = saved.metadata["statistics"], saved.metadata["steps"], saved.metadata["epochs"]
    if epoch == 1:
        assert found == ("absent", str(made), str(made // STEPS))
    else:  # the model that was evaluated last stays, where the training stands is in the checkpoint
        assert found == ("population", str((epoch - 1) * STEPS), str(epoch - 1))
    (checkpoint,) = Path("run/checkpoints").iterdir()
    assert checkpoint.name == f"step-{made:09d}.safetensors"


def test_initial_values_are_those_of_pytorch():
    """Uniform on (-k, k), k = 1/sqrt(inputs of a unit), biases too; batch norm starts as the identity."""
    inputs = {"conv1": 9, "conv2": 32 * 9, "fc1": 64 * 49, "fc2": 128}
    values = init_parameters(7)
    for name, value in values.items():
        layer, kind = name.split(".")
        if layer.startswith("bn"):
            assert (value == (kind == "weight")).all(), name
            continue
        bound = 1 / math.sqrt(inputs[layer])
        assert np.abs(value).max() <= bound, name
        assert np.abs(value).max() > 0.7 * bound, name
        assert abs(np.mean(value)) < 4 * bound / math.sqrt(3 * value.size), name
        assert value.std() == pytest.approx(bound / math.sqrt(3), rel=4 / math.sqrt(value.size)), name
    assert (init_parameters(8)["fc1.weight"] != values["fc1.weight"]).mean() > 0.99


# ---- options that reach the engine and the data ----------------------------------------------------------------------


class Seen(UsageError):
    """Ends a command once it has said what was to be seen."""


@pytest.fixture
def saved(tiny):
    """A model file, for commands that read one."""
    path = tiny / "model.safetensors"
    save_model(path, Model(init_parameters(0)), steps=0)
    return str(path)


COMMANDS = {
    "train": ["train"],
    "evaluate": ["evaluate", "FILE"],
    "profile": ["profile"],
    "time-to-accuracy": ["bench", "time-to-accuracy"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_engine_options_reach_the_engine(monkeypatch, saved, command):
    seen = []

    def init(engine, name="auto", precision=None, *, threads=0, device=0, multiprocessors=0):
        seen.append((name, precision, threads, device, *[multiprocessors] * (command == "train")))
        raise Seen("seen")

    monkeypatch.setattr(Engine, "__init__", init)
    argv = [saved if word == "FILE" else word for word in COMMANDS[command]]
    share = ["--multiprocessors", "4"] if command == "train" else []
    assert cli.main([*argv, "--engine", "cpu", "--precision", "fp32", "--threads", "3", "--device", "2", *share]) == 2
    assert cli.main(argv) == 2
    assert seen == [("cpu", "fp32", 3, 2, *[4] * len(share[1:])), ("auto", None, 0, 0, *[0] * len(share[1:]))]


@pytest.mark.parametrize("command", [*COMMANDS, "bench", "check", "accuracy"])
def test_data_options_reach_the_data(monkeypatch, saved, command, tmp_path):
    seen = []

    def load(name, **options):
        seen.append((name, options))
        raise Seen("seen")

    monkeypatch.setattr(dataset, "load", load)
    others = {
        "bench": ["bench", "--peers"],
        "check": ["bench", "check"],
        "accuracy": ["bench", "accuracy", "--peers", "fake"],
    }
    argv = [saved if word == "FILE" else word for word in {**COMMANDS, **others}[command]]
    if command == "accuracy":
        monkeypatch.setattr(accuracy, "plan", lambda args: [])
    argv += ["--engine" if command in COMMANDS else "--engines", "cpu"]
    assert cli.main([*argv, "--dataset", "fashion-mnist", "--mirror", "http://m/"]) == 2
    assert cli.main([*argv, "--data-dir", str(tmp_path), "--offline"]) == 2
    (name, first), (_, second) = seen
    assert name == "fashion-mnist"
    assert (first["mirror"], first["offline"], first["data_dir"]) == ("http://m/", False, None)
    assert (second["mirror"], second["offline"], second["data_dir"]) == (None, True, tmp_path)


@pytest.mark.parametrize("placement", ["device", "host"])
def test_placement_and_data_reach_the_engine(script, monkeypatch, placement):
    seen, set_dataset = [], Engine.set_dataset

    def remember(engine, *arguments):
        seen.append(arguments)
        set_dataset(engine, *arguments)

    monkeypatch.setattr(Engine, "set_dataset", remember)
    train("--epochs", 1, "--placement", placement)
    ((images, labels, place),) = seen
    assert place == placement
    data = tiny_dataset()
    np.testing.assert_array_equal(images, data.train_images)
    np.testing.assert_array_equal(labels, data.train_labels)


def test_bench_options_reach_the_competitors(monkeypatch, tiny, capsys):
    seen = []

    def cell(rows, setup, blocks, seconds, show, limits):
        files = {name: np.load(setup[name]) for name in ("npz", "order")}
        data = tiny_dataset()
        np.testing.assert_array_equal(files["npz"]["images"], data.train_images)
        np.testing.assert_array_equal(files["npz"]["labels"], data.train_labels)
        np.testing.assert_array_equal(np.sort(files["order"]), np.arange(IMAGES))
        for name, value in load_model(Path(setup["weights"])).parameters.items():
            np.testing.assert_array_equal(value, init_parameters(0)[name].astype(np.float32))
        fields = ("batch_size", "precision", "threads", "data")
        seen.append((*(setup[field] for field in fields), blocks, seconds, [row.competitor.label for row in rows]))

    monkeypatch.setattr(bench_step, "run_cell", cell)
    argv = ["--engines", "cpu", "reference", "--peers", "--precisions", "fp32,fp64", "--batch-size", "4", "8"]
    argv += ["--placement", "device", "host", "--threads", "3", "--blocks", "7", "--seconds", "2.5"]
    cli.main(["bench", *argv])
    expected = {
        (batch, precision, 3, place, 7, 2.5, name)
        for batch in (4, 8)
        for place in ("device", "host")
        for precision, name in (("fp32", "cpu"), ("fp64", "reference"))
    }
    assert {(*row[:-1], *row[-1]) for row in seen} == expected
    assert len(seen) == len(expected)


@pytest.mark.parametrize(("fault", "absent", "code"), [("", False, 0), ("void: lost", False, 1), ("no GPU", True, 4)])
def test_the_exit_code_of_a_benchmark(monkeypatch, tiny, capsys, fault, absent, code):
    def cell(rows, *rest):
        for row in rows:
            row.fault, row.absent = fault, absent

    monkeypatch.setattr(bench_step, "run_cell", cell)
    assert cli.main(["bench", "--engines", "cpu", "--peers", "--batch-size", "4"]) == code


def test_the_worker_of_a_benchmark_passes_its_set_up_on(monkeypatch, tmp_path, saved):
    seen, data = [], tiny_dataset()
    engine_init, set_dataset = Engine.__init__, Engine.set_dataset

    def init(engine, name, precision, *, threads, device):
        seen.append((name, precision, threads, device))
        engine_init(engine, name, precision, threads=threads)

    def remember(engine, images, labels, placement):
        seen.append(placement)
        set_dataset(engine, images, labels, placement)

    monkeypatch.setattr(Engine, "__init__", init)
    monkeypatch.setattr(Engine, "set_dataset", remember)
    np.savez(tmp_path / "data.npz", images=data.train_images, labels=data.train_labels)
    np.save(tmp_path / "order.npy", np.arange(IMAGES))
    files = {"npz": str(tmp_path / "data.npz"), "order": str(tmp_path / "order.npy"), "weights": saved}
    common = {"batch_size": 5, "lr": 0.1, "precision": "fp32", "threads": 2}
    Worker("cpu").setup({**common, **files, "device": 3, "data": "host"})
    Worker("cpu").setup({**common, **files, "data": "device"})
    assert seen == [("cpu", "fp32", 2, 3), "host", ("cpu", "fp32", 2, 0), "device"]


def test_the_times_of_a_recipe(script):
    """`bench time-to-accuracy`: training alone, and with statistics and evaluation; every epoch in its own order."""
    data, engine = tiny_dataset(), Engine("cpu", threads=1)
    trainee = EngineTrainee(engine, data.train_images, data.train_labels, (data.test_images, data.test_labels))
    run = trainee.train(Recipe(Budget(BATCH, 3), "linear", 0.4), seed=SEED)
    assert run.train_seconds == pytest.approx(sum(script.seconds), rel=1e-9)
    assert run.total_seconds == pytest.approx(run.train_seconds + STATISTICS_SECONDS + SCORING_SECONDS, rel=1e-9)
    assert run.accuracy == evaluate(engine, data.test_images, data.test_labels).accuracy
    orders = [epoch_order(SEED, epoch, IMAGES)[: STEPS * BATCH] for epoch in (1, 2, 3)]
    np.testing.assert_array_equal(np.concatenate([call[0] for call in script.calls]), np.concatenate(orders))
    rates = [rate for call in script.calls for rate in call[2]]
    assert rates == pytest.approx([0.4 * (1 - (k + 0.5) / (3 * STEPS)) for k in range(3 * STEPS)], rel=1e-9)


# ---- what an engine does with what it is told ------------------------------------------------------------------------

ALL = pytest.mark.parametrize("spec", engine_params())
FAST = pytest.mark.parametrize("spec", engine_params(without=("reference",)))


def ready(engine, images, labels, weights=None):
    """The engine with a data set and parameters."""
    engine.set_parameters(weights or cases.initial_weights())
    engine.set_dataset(images, labels)
    return engine


@ALL
def test_a_step_is_what_a_probe_of_its_images_says(make_engine, spec):
    """Images and labels chosen by the order, results before the update, and each step's rate."""
    images, labels, rates = cases.mixed(11), cases.labels(11), np.array([0.25, 0.0625, 0.125, 0.5])
    order = np.array([10, 3, 3, 0, 7, 9, 1, 10, 2, 4, 10, 6, 8, 0, 5, 1])
    engine, other = (ready(make_engine(*spec), images, labels) for _ in range(2))
    losses, correct = engine.train(order, 4, rates)
    for step in range(4):
        chosen, before = order[4 * step : 4 * step + 4], other.parameters
        probe = other.probe(images[chosen], labels[chosen])
        assert losses[step] == probe.loss
        assert correct[step] == probe.correct == (probe.logits.argmax(1) == labels[chosen]).sum()
        other.train(chosen, 4, float(rates[step]))
        for name, value in other.parameters.items():
            change = rates[step] * probe.gradients[name]
            allowed = 2 * np.finfo(other.dtype).eps * (np.linalg.norm(before[name]) + np.linalg.norm(change))
            assert np.linalg.norm(value - (before[name] - change)) <= allowed, name
    # A probe makes the operands of `fused` again: the scales of fp16 values are then those of the weights as they are,
    # and not of a bound from before the update, which rounds the smallest weights differently.
    scaled = spec[0] == "fused" and spec[1] in ("fp32", "tf32")
    for name, value in engine.parameters.items():
        tolerance = {"rtol": 1e-4, "atol": 1e-6} if scaled else {"rtol": 0, "atol": 0}
        np.testing.assert_allclose(value, other.parameters[name], **tolerance, err_msg=name)


@ALL
def test_hits_of_every_class(make_engine, spec):
    """A bias that decides makes all images one class: the hits are the labels of that class."""
    engine, weights = make_engine(*spec), cases.initial_weights()
    images, labels = cases.strokes(10), np.array([0, 9, 9, 1, 8, 2, 7, 9, 3, 0], np.uint8)
    for k in range(10):
        weights["fc2.bias"] = np.where(np.arange(10) == k, 1000.0, 0.0)
        ready(engine, images, labels, weights)
        expected = (labels == k).sum()
        assert engine.probe(images, labels).correct == expected, k
        assert engine.train(np.arange(10), 10, 0.0)[1] == expected, k


@FAST
def test_an_evaluation_is_what_the_scores_say(make_engine, spec):
    """Of more images than any engine scores at once."""
    engine, count = make_engine(*spec), 1100 if spec[0] == "cpu" else 8300
    images, labels = np.resize(cases.noise(505), (count, 28, 28)), cases.labels(count)
    images[:, 0, 0], images[:, 0, 1] = np.arange(count) % 256, np.arange(count) // 256
    ready(engine, images[:50], labels[:50], cases.signed_weights())
    engine.compute_statistics()
    scores = engine.logits(images)
    shifted = scores - scores.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(count), labels]
    result = evaluate(engine, images, labels)
    assert (result.correct, result.count) == ((scores.argmax(1) == labels).sum(), count)
    assert result.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert evaluate(engine, images[:7], labels[:7]).correct == (scores[:7].argmax(1) == labels[:7]).sum()


def test_the_native_registry_checks_the_precision():
    """As does `Engine`, which C++ programs do without."""
    with pytest.raises(ValueError, match="engine 'cpu' has no precision bf16, it offers fp32"):
        _native.create_engine("cpu", "bf16", 0, 0)


@ALL
def test_a_step_of_rate_0_and_one_without_images(make_engine, spec):
    engine = ready(make_engine(*spec), cases.strokes(4), cases.labels(4))
    engine.compute_statistics()
    losses, correct = engine.train(np.zeros(0, np.int32), 4, 0.1)
    assert losses.shape == correct.shape == (0,)
    assert engine.statistics is not None, "no step was made"
    before = engine.parameters
    engine.train(np.arange(4), 4, 0.0)
    for name, value in engine.parameters.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


# ---- units -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1:00"),
        (61.4, "1:01"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (7325, "2:02:05"),
    ],
)
def test_durations(seconds, text):
    assert console.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("fraction", "elapsed", "text"),
    [(0.1, 0.9, ""), (0.0, 5, ""), (0.2, 1.9, ""), (0.1, 2.5, "about 25 s\n"), (0.1, 60, "about 10:00\n")],
)
def test_an_estimate_is_said_once_where_it_is_long(capsys, monkeypatch, fraction, elapsed, text):
    """Not before a second has told the pace, and not of what takes less than ten seconds."""
    now = [100.0]
    monkeypatch.setattr(console.time, "perf_counter", lambda: now[0])
    estimate = console.Estimate(console.make_console(), "about")
    for _ in range(2):
        now[0] = 100.0 + elapsed
        estimate.after(fraction)
    estimate = console.Estimate(console.make_console(), "about", enabled=False)
    estimate.say(100.0)
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.234, "1.23"), (9.994, "9.99"), (10, "10.0"), (99.94, "99.9"), (100, "100"), (12346, "12346")],
)
def test_counts(value, text):
    assert console.format_count(value) == text
