"""A training from Python: it shows how far it is, is stopped and goes on, and leaves a run that commands know."""

import json
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from tiny import prints, tiny_dataset

from mnist_cuda import (
    Callback,
    DivergedError,
    EarlyStopping,
    Engine,
    StopTraining,
    TensorBoard,
    TrainOptions,
    UsageError,
    cli,
    dataset_of,
    evaluate,
    init_parameters,
    load_model,
    predict,
    train,
)
from mnist_cuda.engine.model import digest
from mnist_cuda.run import progress
from mnist_cuda.run.callbacks import since_best
from mnist_cuda.run.folder import read_config
from mnist_cuda.terminal import console

OPTIONS = TrainOptions(epochs=3, batch_size=5, lr=0.02)
pytestmark = pytest.mark.usefixtures("tiny", "heard")


@pytest.fixture(scope="module")
def whole():
    return train(tiny_dataset(), OPTIONS, engine="cpu")


def weights(result):
    return digest(result.model.parameters)


class At(Callback):
    """Calls `act` at so many steps of an epoch, or at its end."""

    def __init__(self, act, epoch, step=None):
        self.act, self.place = act, (epoch, step)

    def on_progress(self, progress):
        if (progress.epoch, progress.step) == self.place:
            self.act()

    def on_epoch(self, record):
        if (record["epoch"], None) == self.place:
            self.act()


def stop():
    raise StopTraining("enough")


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def step_by_step(monkeypatch):
    """Pieces of one step, so that a callback can act at each."""
    monkeypatch.setattr("mnist_cuda.engine.next_piece", lambda *_: 1)


# ---- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("act", "said"), [(stop, "enough"), (ctrl_c, "Ctrl-C")])
def test_a_training_that_is_stopped_gives_what_is_trained(act, said, whole, step_by_step):
    data, handler = tiny_dataset(), signal.getsignal(signal.SIGINT)
    result = train(data, OPTIONS, engine="cpu", callbacks=[At(act, 2, 4)])
    assert signal.getsignal(signal.SIGINT) is handler
    assert (result.stopped, result.steps, [row.get("interrupted") for row in result.epochs]) == (said, 11, [None, True])
    assert result.epochs[0]["loss"] == whole.epochs[0]["loss"]
    assert (result.epochs[1]["steps"], result.model.metadata["epochs"]) == (4, "1")
    assert repr(result).endswith(f" 1 epoch, cpu fp32, {result.seconds:.1f} s, stopped: {said})")
    tested = evaluate(result.model, data.test_images, data.test_labels)
    assert tested.accuracy == result.accuracy == result.epochs[1]["test_accuracy"]
    assert len(predict(result, data.test_images).classes) == 20


@pytest.mark.parametrize("act", [stop, ctrl_c])
def test_a_training_that_is_stopped_after_an_epoch_is_complete_up_to_there(act):
    shorter = train(tiny_dataset(), TrainOptions(epochs=2, batch_size=5, lr=0.02), engine="cpu")
    result = train(tiny_dataset(), OPTIONS, engine="cpu", callbacks=[At(act, 2)])
    assert weights(result) == weights(shorter)
    assert [row["test_loss"] for row in result.epochs] == [row["test_loss"] for row in shorter.epochs]
    assert result.stopped
    assert "interrupted" not in result.epochs[-1]


def test_a_second_ctrl_c_is_an_exception(step_by_step):
    def twice():
        ctrl_c()
        ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        train(tiny_dataset(), OPTIONS, engine="cpu", callbacks=[At(twice, 1, 1)])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_handles_signals_itself_goes_on_to_do_so(step_by_step):
    class OursError(Exception):
        pass

    def handle(*_):
        raise OursError

    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(OursError):
            train(tiny_dataset(), OPTIONS, engine="cpu", callbacks=[At(ctrl_c, 1, 1)])
    finally:
        signal.signal(signal.SIGINT, before)


def test_statistics_are_there_whatever_the_test_images_are_normalised_by(step_by_step):
    options = TrainOptions(epochs=3, batch_size=5, lr=0.02, eval_bn="batch")
    result = train(tiny_dataset(), options, engine="cpu", callbacks=[At(stop, 1, 3)])
    assert result.model.statistics is not None


# ---- callbacks -------------------------------------------------------------------------------------------------------


def test_callbacks_are_told_in_order():
    told = []

    class Told(Callback):
        def on_start(self, trainer):
            told.append(("start", trainer.options.epochs))

        def on_progress(self, progress):
            told.append(("progress", progress.epoch))

        def on_epoch(self, record):
            told.append(("epoch", record["epoch"]))

        def on_end(self, result):
            told.append(("end", result.steps))

    result = train(tiny_dataset(), OPTIONS, engine="cpu", callbacks=[Told()])
    assert (told[0], told[-1]) == (("start", 3), ("end", 21))
    assert [epoch for what, epoch in told if what == "epoch"] == [1, 2, 3]
    assert result.stopped == ""


def test_early_stopping_waits_for_nothing_better():
    rows = [{"accuracy": value, "loss": -value} for value in (0.5, 0.9, 0.8, 0.9)]
    for count, expected in ((1, 0), (2, 0), (3, 1), (4, 2)):
        assert since_best(rows[:count], "accuracy") == since_best(rows[:count], "loss") == expected
    options = TrainOptions(epochs=50, batch_size=5, lr=0, validation=5)
    result = train(tiny_dataset(), options, engine="cpu", callbacks=[EarlyStopping(3)])  # nothing is learnt
    assert (len(result.epochs), result.stopped) == (4, "no better validation accuracy for 3 epochs")
    with pytest.raises(UsageError, match="patience is 0, expected a whole number from 1"):
        EarlyStopping(0)
    with pytest.raises(UsageError, match="early stopping by validation_accuracy needs images held out"):
        train(tiny_dataset(), OPTIONS, engine="cpu", callbacks=[EarlyStopping(3)])
    with pytest.raises(UsageError, match="an epoch's record has no number hits"):
        train(tiny_dataset(), OPTIONS, engine="cpu", callbacks=[EarlyStopping(3, "hits")])


@pytest.mark.parametrize("eval_bn", ["population", "batch"])
def test_the_best_weights_come_back(eval_bn):
    """A rate that rises makes the second epoch's loss the least, and the last one's worse."""
    options = TrainOptions(epochs=4, batch_size=5, lr=0.5, schedule="triangle:1", eval_bn=eval_bn)
    losses, models = [], []

    class Models(Callback):
        def on_start(self, trainer):
            self.trainer = trainer

        def on_epoch(self, record):
            losses.append(record["test_loss"])
            models.append(digest(self.trainer.parameters))

    stopping = EarlyStopping(9, "test_loss", restore_best_weights=True)
    result = train(tiny_dataset(), options, engine="cpu", callbacks=[Models(), stopping], out="run")
    best = losses.index(min(losses))
    assert best < 3
    assert digest(result.model.parameters) == digest(result.engine.parameters) == models[best] != models[-1]
    assert result.model.metadata["epochs"] == str(best + 1)
    assert predict(result, tiny_dataset().test_images).logits.shape == (20, 10)
    again = evaluate(result, tiny_dataset().test_images, tiny_dataset().test_labels, eval_bn)
    assert again.correct_by_class == result.evaluation.correct_by_class
    assert again.loss == pytest.approx(min(losses))
    assert digest(load_model("run/best.safetensors").parameters) == models[best]
    assert digest(load_model("run").parameters) == models[-1]
    other = train(tiny_dataset(), options, engine="cpu", callbacks=[EarlyStopping(9, "test_loss")])
    assert digest(other.model.parameters) == models[-1]


def test_what_was_best_before_a_run_goes_on_is_not_there(capsys):
    train(tiny_dataset(), OPTIONS, engine="cpu", out="runs/one", callbacks=[At(stop, 1)])
    by_steps = EarlyStopping(9, "steps", restore_best_weights=True)  # of equal epochs the first is the best
    result = train(tiny_dataset(), resume="one", callbacks=[by_steps])
    assert weights(result) == digest(load_model("runs/one").parameters)
    assert "the best epoch, 1, was before the run went on here: the last one's weights stay" in capsys.readouterr().err


def test_tensorboard_has_every_epoch(tiny, whole):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny_dataset(), OPTIONS, engine="cpu", callbacks=[TensorBoard(tiny / "board")])
    events = EventAccumulator(str(tiny / "board"))
    events.Reload()
    tensors = events.Tensors("accuracy/test")
    assert [event.step for event in tensors] == [1, 2, 3]
    values = [event.tensor_proto.float_val[0] for event in tensors]
    np.testing.assert_allclose(values, [row["test_accuracy"] for row in whole.epochs], rtol=1e-6)
    assert "accuracy/validation" not in events.Tags()["tensors"]


# ---- a run's folder --------------------------------------------------------------------------------------------------


def listed(capsys, *argv):
    capsys.readouterr()
    return json.loads(prints(capsys, "runs", *argv, "--json"))


def test_a_run_from_python_is_a_run(capsys, whole):
    result = train(tiny_dataset(), OPTIONS, engine="cpu", out="runs/one")
    assert weights(result) == weights(whole)
    assert weights(result) == digest(load_model("runs/one").parameters)
    (row,) = listed(capsys)["runs"]
    assert (row["run"], row["accuracy"], row["epochs"], row["engine"]) == ("one", whole.accuracy, 3, "cpu")
    assert row["options"]["lr"] == 0.02
    shown = listed(capsys, "show", "one")
    assert [epoch["loss"] for epoch in shown["epochs"]] == [epoch["loss"] for epoch in whole.epochs]
    assert (shown["config"]["ended"], shown["config"]["engine"]["chosen_by"]) == ("done", "name")
    assert shown["config"]["command"].startswith("mnist_cuda.train, ")
    with pytest.raises(UsageError, match="runs/one: a folder with files in it"):
        train(tiny_dataset(), OPTIONS, engine="cpu", out="runs/one")
    assert cli.main(["runs", "remove", "one", "--yes"]) == 0


@pytest.mark.parametrize(("epoch", "step"), [(1, 3), (2, 4), (2, None)])
@pytest.mark.parametrize("act", [stop, ctrl_c])
def test_a_run_goes_on_to_the_same_bits(epoch, step, act, whole, step_by_step):
    result = train(tiny_dataset(), OPTIONS, engine="cpu", out="runs/one", callbacks=[At(act, epoch, step)])
    assert result.steps == (7 * epoch if step is None else 7 * (epoch - 1) + step)
    assert read_config(Path("runs/one"))["ended"] == "stopped"
    saved = load_model("runs/one").metadata["epochs"]
    assert saved == str(epoch if step is None else epoch - 1)
    again = train(tiny_dataset(), resume="one")
    assert weights(again) == weights(whole)
    assert [row["loss"] for row in again.epochs] == [row["loss"] for row in whole.epochs]
    assert again.steps == 21
    config = read_config(Path("runs/one"))
    assert (config["ended"], len(config["resumed"])) == ("done", 1)


def test_the_command_line_goes_on_with_a_run_from_python(whole, step_by_step):
    train(tiny_dataset(), OPTIONS, engine="cpu", out="runs/one", callbacks=[At(stop, 2, 4)])
    assert cli.main(["train", "--resume", "one", "--quiet"]) == 0
    assert digest(load_model("runs/one").parameters) == weights(whole)


def test_a_run_that_began_with_other_weights_is_repeated(whole):
    begun = train(tiny_dataset(), OPTIONS, engine="cpu", init=init_parameters(7), out="runs/one")
    assert weights(begun) != weights(whole)
    assert cli.main(["train", "--config", "one", "--out", "runs/two", "--quiet"]) == 0
    assert digest(load_model("runs/two").parameters) == weights(begun)


def test_what_would_change_a_run_that_goes_on_is_refused(step_by_step):
    data = tiny_dataset()
    train(data, OPTIONS, engine="cpu", out="runs/one", callbacks=[At(stop, 2, 4)])
    other = dataset_of(data.test_images, data.test_labels, data.test_images, data.test_labels)
    longer = TrainOptions(epochs=5, batch_size=5, lr=0.02)
    refused = {
        "lr is 0.1, and runs/one was begun with 0.02": lambda: train(
            data, TrainOptions(epochs=3, batch_size=5, lr=0.1), resume="one"
        ),
        "engine is reference, and runs/one was begun with cpu": lambda: train(data, resume="one", engine="reference"),
        "leave out `out` and `init`": lambda: train(data, resume="one", out="runs/two"),
        "was made on other data": lambda: train(other, resume="one"),
    }
    for words, call in refused.items():
        with pytest.raises(Exception, match=words):
            call()
    assert train(data, longer, resume="one").steps == 35
    with pytest.raises(UsageError, match="runs/one: all 5 epochs are done; options with more go on"):
        train(data, resume="one")


def test_a_training_that_diverges_leaves_a_run_that_says_so():
    with pytest.raises(DivergedError):
        train(tiny_dataset(), TrainOptions(epochs=3, batch_size=5, lr=1e30), engine="cpu", out="runs/one")
    assert read_config(Path("runs/one"))["ended"] == "diverged"


# ---- progress --------------------------------------------------------------------------------------------------------


def test_nothing_is_shown_where_nobody_looks(capfd):
    train(tiny_dataset(), OPTIONS, engine="cpu")
    train(tiny_dataset(), OPTIONS, engine="cpu", progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_has_a_line_for_each_epoch(capsys, monkeypatch):
    monkeypatch.setattr(console, "on_terminal", lambda _: True)
    shown = []
    monkeypatch.setattr(console.LiveLine, "show", lambda self, fraction, *parts: shown.append((fraction, parts)))
    train(tiny_dataset(), OPTIONS, engine="cpu")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split("  ")[0] for line in err.splitlines()] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert shown[0] == (0, ("epoch 1/3", "giving the engine the images"))
    assert shown[1][1][:2] == ("epoch 1/3", f"step {round(7 * shown[1][0])}/7")
    train(tiny_dataset(), OPTIONS, engine="cpu", progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch, capfd):
    shown = []
    handle = types.SimpleNamespace(update=lambda bundle, raw: shown.append(bundle))
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)
    ipython.display = types.SimpleNamespace(display=lambda bundle, **_: shown.append(bundle) or handle)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 0)
    train(tiny_dataset(), OPTIONS, engine="cpu")
    assert shown[0]["text/plain"] == ""
    assert any("<progress value=" in bundle["text/html"] for bundle in shown)
    last = shown[-1]
    assert [line.split("  ")[0] for line in last["text/plain"].splitlines()] == [f"epoch {n}/3" for n in (1, 2, 3)]
    assert "<progress" not in last["text/html"]
    assert capfd.readouterr() == ("", "")
    count = len(shown)
    train(tiny_dataset(), OPTIONS, engine=Engine("cpu"), progress=False)
    assert len(shown) == count
