"""The library's face: names that come when they are used, a page that says what the docstrings say, own data."""

import argparse
import ast
import copy
import os
import pickle
import pkgutil
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import ENVIRONMENT, said, tiny_dataset

import mnist_cuda
from mnist_cuda import (
    CheckpointError,
    DataError,
    EarlyStopping,
    Engine,
    Model,
    Trainer,
    TrainOptions,
    UnavailableError,
    UsageError,
    cli,
    dataset_from_folder,
    dataset_of,
    engines,
    epoch_order,
    evaluate,
    init_parameters,
    load_model,
    predict,
    save_model,
    sweep,
    train,
)
from mnist_cuda.commands import train as train_command
from mnist_cuda.data.arrays import as_numpy
from mnist_cuda.engine.model import digest

NAMES = [name for names in mnist_cuda.PUBLIC.values() for name in names]
OPTIONS = TrainOptions(epochs=2, batch_size=5, lr=0.02)


# ---- the names -------------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_no_module_takes_its_place():
    assert sorted([*NAMES, "__version__"]) == sorted(mnist_cuda.__all__)
    assert {*NAMES, "__version__"} <= set(dir(mnist_cuda))
    for name in NAMES:
        assert getattr(mnist_cuda, name).__doc__, name
    modules = {module.name for module in pkgutil.iter_modules(mnist_cuda.__path__)}
    assert not modules & set(NAMES)
    with pytest.raises(AttributeError, match="module 'mnist_cuda' has no attribute 'nothing'"):
        mnist_cuda.nothing  # noqa: B018


def modules():
    """Each module of the package by its dotted name."""
    package = Path(mnist_cuda.__file__).parent
    files = {path.relative_to(package.parent).with_suffix("").parts: path for path in package.rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path for parts, path in files.items()}


def test_no_import_leads_back_to_its_module():
    """Not even by an import for types, or one within a function; but for the names that the package offers."""
    found, imports = modules(), {}
    for name, path in found.items():
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        whole = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert not [other for other in whole if other.startswith("mnist_cuda")], "only `from ... import` is looked at"
        nodes = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        named = {(node.module or "", alias.name) for node in nodes for alias in node.names}
        imports[name] = {f"{module}.{one}" if f"{module}.{one}" in found else module for module, one in named}
    del imports["mnist_cuda"]

    def reached(name, path):
        assert name not in path, " imports ".join([*path, name])
        if name not in seen:
            for other in sorted(imports.get(name, set())):
                reached(other, [*path, name])
            seen.add(name)

    seen = set()
    for name in imports:
        reached(name, [])
    assert len(seen) > 100


def test_only_a_command_shares_its_name():
    names = {}
    for name, path in modules().items():
        if path.name != "__init__.py":
            names.setdefault(name.rpartition(".")[2], []).append(name)
    shared = [of_one for of_one in names.values() if len(of_one) > 1]
    others = [[name for name in of_one if not name.startswith("mnist_cuda.commands.")] for of_one in shared]
    assert shared
    assert [of_one for of_one in others if len(of_one) > 1] == []


# ---- train, evaluate, predict ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    return train(tiny_dataset(), OPTIONS, engine="cpu")


def test_train_is_what_the_command_line_does(tiny, result):
    argv = ["--engine", "cpu", "--epochs", "2", "--batch-size", "5", "--lr", "0.02", "--out", "run"]
    assert cli.main(["train", *argv]) == 0
    save_model("model.safetensors", result.model)
    assert Path("model.safetensors").read_bytes() == Path("run/model.safetensors").read_bytes()
    assert [row["epoch"] for row in result.epochs] == [1, 2]
    assert result.accuracy == result.epochs[-1]["test_accuracy"]
    assert (result.steps, result.seconds > result.training_seconds > 0) == (14, True)


def test_who_looks_on_is_told():
    epochs, progress = [], []
    result = train(tiny_dataset(), OPTIONS, engine="cpu", on_epoch=epochs.append, on_progress=progress.append)
    assert epochs == result.epochs
    assert (progress[-1].epoch, progress[-1].step, progress[-1].steps) == (2, 7, 7)
    assert all(0 < row.step <= row.steps and row.us_per_iteration > 0 for row in progress)

    class EnoughError(Exception):
        pass

    def stop(_):
        raise EnoughError

    with pytest.raises(EnoughError):
        train(tiny_dataset(), OPTIONS, engine="cpu", on_progress=stop)


def test_an_engine_may_be_given_and_begin_with_any_weights(result):
    engine = Engine("cpu", threads=1)
    again = train(tiny_dataset(), OPTIONS, engine=engine)
    assert again.engine is engine
    assert digest(again.model.parameters) == digest(result.model.parameters)
    first = train(tiny_dataset(), TrainOptions(epochs=1, batch_size=5, lr=0.02), engine="cpu")
    other = train(tiny_dataset(), OPTIONS, engine="cpu", init=first.model)
    assert digest(other.model.parameters) != digest(result.model.parameters)
    with pytest.raises(UsageError, match="precision is fp64, and the engine given computes in fp32"):
        train(tiny_dataset(), OPTIONS, engine=engine, precision="fp64")
    with pytest.raises(UsageError, match="engine 'warp' is unknown"):
        train(tiny_dataset(), OPTIONS, engine="warp")


def test_threads_that_share_an_engine_wait_for_each_other():
    """Their calls come one after the other, in whatever order: the same steps, so the same bits."""
    data, engine, threads, calls = tiny_dataset(), Engine("cpu", threads=1), 3, 20
    engine.set_dataset(data.train_images, data.train_labels)
    order = np.tile(np.arange(len(data.train_labels)), 4)

    def steps(calls):
        for _ in range(calls):
            engine.train(order, 5, 0.01)

    engine.init_parameters(seed=0)
    steps(threads * calls)
    expected = digest(engine.parameters)
    engine.init_parameters(seed=0)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(steps, [calls] * threads))
    assert digest(engine.parameters) == expected


FORKED = """
import multiprocessing, sys, threading
import numpy as np
from mnist_cuda import Engine, UsageError
engine = Engine(sys.argv[1], threads=int(sys.argv[2]))
engine.init_parameters(0)
engine.set_dataset(np.zeros((4, 28, 28), np.uint8), np.zeros(4, np.uint8))
calls = {
    "train": lambda: engine.train(np.arange(4), 2, 0.1),
    "compute_statistics": engine.compute_statistics,
    "parameters": lambda: engine.parameters,
    "set_parameters": lambda: engine.set_parameters({}),
}
def child():
    global engine
    for call in calls.values():
        try:
            call()
        except UsageError as error:
            print(error)
    other = Engine("cpu", threads=2)
    other.init_parameters(0)
    other.set_dataset(np.zeros((4, 28, 28), np.uint8), np.zeros(4, np.uint8))
    print(len(other.train(np.arange(4), 2, 0.1)[0]), flush=True)
    calls.clear()
    del engine
calls["train"]()
held, over = threading.Event(), threading.Event()
def hold():
    with engine._alone():
        held.set()
        over.wait()
threading.Thread(target=hold).start()
held.wait()
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(20)
process.kill()
over.set()
process.join()
sys.exit(process.exitcode)
"""


@pytest.mark.parametrize(
    ("engine", "threads"), [("cpu", 1), ("cpu", 2), ("reference", 0), pytest.param("naive", 0, marks=pytest.mark.gpu)]
)
def test_a_fork_of_an_engines_process_is_told(make_engine, engine, threads):
    """Also while a thread of the parent is in a call. It may make an engine of its own."""
    make_engine(engine)  # or the reason why not
    command = [sys.executable, "-W", "ignore", "-c", FORKED, engine, str(threads)]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    *told, steps = result.stdout.splitlines()
    assert len(told) == 4
    assert all(line.startswith("this engine is of process ") and "get_context('spawn')" in line for line in told)
    assert steps == "2"


def test_an_engine_is_not_pickled_and_a_result_is_without_it(result):
    images = tiny_dataset().test_images
    for way in (lambda thing: pickle.loads(pickle.dumps(thing)), copy.deepcopy):
        with pytest.raises(TypeError, match="an Engine cannot be pickled or copied; its parameters can"):
            way(result.engine)
        again = way(result)
        assert (again.engine, again.epochs, again.accuracy) == (None, result.epochs, result.accuracy)
        assert digest(again.model.parameters) == digest(result.model.parameters)
        np.testing.assert_array_equal(predict(again, images).classes, predict(result, images).classes)
    assert result.engine is not None


def test_what_a_notebook_shows_is_short(result):
    data = tiny_dataset()
    assert re.fullmatch(r"TrainingResult\(\d+\.\d\d %, 2 epochs, cpu fp32, \d+\.\d s\)", repr(result))
    weights = digest(result.model.parameters)[:12]
    assert repr(result.model) == f"Model(weights {weights}, dataset=tiny, epochs=2, engine=cpu)"
    assert repr(Model(result.model.parameters)) == f"Model(weights {weights}, no statistics)"
    assert repr(result.engine) == "Engine(cpu fp32)"
    assert repr(data) == "Dataset(tiny, 35 training and 20 test images)"
    found = predict(result, data.test_images)
    assert repr(found) == f"Predictions([{', '.join(map(str, found.classes[:10]))}, ...], images=20)"
    page = result._repr_html_()
    cells = re.findall("<td>([^<]*)</td>", page)
    assert len(cells) == 2 * page.count("<th>") == 10
    assert cells[3] == f"{100 * result.epochs[0]['test_accuracy']:.2f} %"


def test_a_result_is_saved_and_drawn(result, tmp_path):
    result.save(tmp_path / "model.safetensors")
    assert digest(load_model(tmp_path / "model.safetensors").parameters) == digest(result.model.parameters)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figure = result.plot()
    loss, accuracy = figure.axes
    (_, on_test) = loss.lines
    assert on_test.get_ydata().tolist() == [row["test_loss"] for row in result.epochs]
    assert accuracy.lines[0].get_ydata().tolist() == [100 * row["train_accuracy"] for row in result.epochs]
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": True},
        {"epochs": np.True_},
        {"epochs": np.ones(1, int)},
        {"batch_size": 1.5},
        {"batch_size": np.float64(2)},
        {"lr": float("nan")},
        {"lr": True},
        {"lr": 0.1j},
        {"lr": np.complex64(0.1)},
        {"lr": 10**400},
        {"lr": "0.1"},
        {"seed": -1},
        {"seed": np.int8(-1)},
        {"schedule": 3},
        {"schedule": "cosine"},
        {"schedule": "triangle:1.5"},
        {"schedule": "linear:0.5"},
        {"epochs": 2**31},
        {"batch_size": 2**70},
        {"validation": 1.0},
        {"placement": "gpu"},
        {"eval_bn": "some"},
        {"eval_bn": np.array(["batch"])},
        {"placement": 3},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_impossible_options_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(UsageError, match=f"^{name} is "):
        TrainOptions(**wrong)


def test_flags_and_options_have_the_same_rules():
    """What a flag refuses TrainOptions refuses, and the other way round; at the bounds by one."""
    parser = argparse.ArgumentParser()
    train_command.add_arguments(parser)
    flags = {action.dest: action for action in parser._actions}
    numbers = [-1, 0, 1, 2**31 - 1, 2**31, 2**70, 0.5, float("nan"), float("inf")]
    words = ["constant", "linear", "triangle", "triangle:0", "triangle:1", "triangle:1.01", "triangle:", "", "cosine"]
    words += ["population", "batch", "device", "host", "Host"]
    checked = 0
    for name in vars(TrainOptions()):
        flag, accepted = flags[name], []
        for value in [*numbers, *words]:
            try:
                by_flag = flag.type(str(value)) if flag.type else value
                fits = flag.choices is None or by_flag in flag.choices
            except argparse.ArgumentTypeError:
                fits = False
            try:
                TrainOptions(**{name: value})
                accepted.append(value)
            except UsageError:
                pass
            assert (accepted[-1:] == [value]) == fits, (name, value)
            checked += 1
        assert accepted
    assert checked == 8 * 23


def test_options_are_given_by_name(result):
    data = tiny_dataset()
    again = train(data, epochs=2, batch_size=5, lr=0.02, engine="cpu")
    assert digest(again.model.parameters) == digest(result.model.parameters)
    wrong = {
        "options and epochs are both given": lambda: train(data, OPTIONS, epochs=3),
        "train has no argument epoch, .*; did you mean epochs\\?": lambda: train(data, epoch=3),
        "lr is 'fast', expected a finite number": lambda: train(data, lr="fast"),
    }
    for words, call in wrong.items():
        with pytest.raises(UsageError, match=f"^{words}"):
            call()


def test_a_run_has_a_name_in_python_too(result, tmp_path, monkeypatch, capsys):
    """As on the command line: in runs/, or `latest`, for all that takes a model."""
    monkeypatch.chdir(tmp_path)
    data = tiny_dataset()
    train(data, OPTIONS, engine="cpu", out="runs/one")
    expected = predict(result, data.test_images).classes.tolist()
    for name in ("one", "runs/one", "latest", Path("one"), "runs/one/metrics.csv"):
        assert digest(load_model(name).parameters) == digest(result.model.parameters)
        assert predict(name, data.test_images).classes.tolist() == expected
        assert evaluate(name, data.test_images, data.test_labels).accuracy == result.accuracy
        begun = train(data, epochs=1, batch_size=5, lr=0, engine="cpu", init=name)
        assert digest(begun.model.parameters) == digest(result.model.parameters)
    assert "taking the newest run, runs/one" in capsys.readouterr().err
    with pytest.raises(
        CheckpointError, match=r"^on: no such file or folder, and no run of that name in runs/; did you"
    ):
        predict("on", data.test_images)


def test_messages_name_parameters_in_python_and_flags_on_the_command_line(tiny, monkeypatch, capsys):
    data = tiny_dataset()
    (tiny / "full").mkdir()
    (tiny / "full" / "file").touch()
    argv = ["train", "--engine", "cpu", "--batch-size", "5"]
    with pytest.raises(UsageError, match="give `out` another folder"):
        train(data, OPTIONS, engine="cpu", out="full")
    assert "give --out another folder" in said(capsys, *argv, "--out", "full")[2]
    with pytest.raises(UsageError, match=r"^`save_every` is 'often', expected such as 500steps"):
        train(data, OPTIONS, engine="cpu", save_every="often")
    assert "--save-every is 'often', expected such as 500steps" in said(capsys, *argv, "--save-every", "often")[2]
    with pytest.raises(UsageError, match="`save_every`"):  # the command line has not changed that
        train(data, OPTIONS, engine="cpu", save_every="often")


WRONG_ARRAYS = {
    "floats": np.zeros((4, 28, 28)),
    "transposed": np.zeros((28, 28, 4), np.uint8),
    "27 rows": np.zeros((4, 27, 28), np.uint8),
    "objects": np.zeros((4, 28, 28), object),
    "text": np.full((4, 28, 28), "0"),
    "ragged": [[1], [2, 3]],
    "nothing": None,
}


@pytest.mark.parametrize("kind", WRONG_ARRAYS)
def test_a_wrong_array_is_one_class_of_error_everywhere(kind, result):
    """Which is a ValueError, too. A label that is no class is the same."""
    images, data, engine, labels = WRONG_ARRAYS[kind], tiny_dataset(), result.engine, np.zeros(4, np.uint8)
    right, twelve = np.zeros((4, 28, 28), np.uint8), np.full(4, 12, np.uint8)
    calls = [
        lambda: dataset_of(images, labels, data.test_images, data.test_labels),
        lambda: predict(result, images),
        lambda: evaluate(result, images, labels),
        lambda: engine.logits(images, "batch"),
        lambda: engine.probe(images, labels),
        lambda: Engine("cpu").set_dataset(images, labels),
        lambda: Engine("cpu").set_evaluation_set(images, labels),
        lambda: dataset_of(right, twelve, data.test_images, data.test_labels),
        lambda: evaluate(result, right, twelve),
        lambda: engine.probe(right, twelve),
        lambda: Engine("cpu").set_dataset(right, twelve),
    ]
    for call in calls:
        with pytest.raises(DataError) as error:
            call()
        assert isinstance(error.value, ValueError)
        assert "\n" not in str(error.value)


WRONG = [None, "word", "", b"x", -1, 2**70, 0.5, float("nan"), 1j, [], {}, (1, 2), np.zeros(3), np.array("x"), object()]


def test_a_wrong_argument_is_one_line_wherever_it_is(result, tmp_path, monkeypatch):
    """Every parameter of every function gets every wrong value: what is refused is refused by an error of ours."""
    monkeypatch.chdir(tmp_path)
    data, engine = tiny_dataset(), Engine("cpu", threads=1)
    engine.init_parameters(0)
    engine.set_dataset(data.train_images, data.train_labels)
    calls = {
        Engine: {"name": "cpu", "precision": "fp32", "threads": 1, "device": 0, "limits": None, "multiprocessors": 0},
        engines: {"device": 0},
        train: {"data": data, "options": OPTIONS, "engine": "cpu", "precision": "fp32", "init": None, "out": None,
                "resume": None, "save_every": "1epochs", "progress": False, "callbacks": (), "on_epoch": None},
        Trainer: {"engine": engine, "data": data, "options": OPTIONS},
        sweep: {"data": data, "runs": [OPTIONS], "engine": "cpu", "precision": "fp32", "threads": 1, "jobs": 1,
                "gpus": (), "save": "none", "each_epoch": False, "hits": False, "progress": False},
        predict: {"model": result, "images": data.test_images, "engine": "cpu", "precision": "fp32"},
        evaluate: {"model": result, "images": data.test_images, "labels": data.test_labels, "batch_norm": "batch"},
        load_model: {"path": "none"},
        save_model: {"path": "m.safetensors", "model": result, "steps": None},
        epoch_order: {"seed": 0, "epoch": 1, "count": 5},
        init_parameters: {"seed": 0},
        EarlyStopping: {"patience": 1, "key": "loss", "restore_best_weights": False},
        engine.train: {"order": np.arange(10), "batch_size": 5, "lr": 0.01},
        engine.logits: {"images": data.test_images, "batch_norm": "batch"},
        engine.probe: {"images": data.test_images, "labels": data.test_labels, "upstream": 1.0, "routing": None},
        engine.profile: {"batch_size": 5, "steps": 1},
        engine.fleet: {"models": 1, "batch_size": 5, "multiprocessors": 1},
        engine.set_parameters: {"tensors": engine.parameters},
        engine.set_statistics: {"tensors": result.model.statistics},
        engine.init_parameters: {"seed": 0},
        engine.join: {"ranks": None},
        data.first: {"count": 3},
    }  # fmt: skip
    faults = []
    for function, right in calls.items():
        for name in right:
            for value in WRONG:
                try:
                    function(**(right | {name: value}))
                except mnist_cuda.MnistCudaError as error:
                    faults.append(f"{function.__name__}({name}): {error}")
                except Exception as error:
                    pytest.fail(f"{function.__name__}({name}={value!r}): {error!r}")
    assert [fault for fault in faults if "\n" in fault] == []
    assert len(faults) > 500


def test_arguments_of_another_type_are_refused_in_one_line(result, tmp_path):
    data = tiny_dataset()
    calls = {
        "data is of type tuple, expected Dataset, as load_dataset": lambda: train((data.train_images, [1])),
        "data is of type str, expected Dataset, as load_dataset": lambda: sweep("mnist", [OPTIONS]),
        "options is of type dict, expected TrainOptions, such as": lambda: train(data, {"epochs": 1}),
        "options is of type int, expected TrainOptions, such as": lambda: Trainer(result.engine, data, 0),
        "a run is of type dict, expected TrainOptions": lambda: sweep(data, [{"epochs": 1}]),
        "model is of type dict, expected Model, as load_model": lambda: save_model(tmp_path / "x", {}),
        "model is of type dict, expected an Engine, a Model": lambda: predict({}, data.test_images),
        "model is of type NoneType, expected an Engine": lambda: evaluate(None, data.test_images, data.test_labels),
    }
    for words, call in calls.items():
        with pytest.raises(UsageError, match=f"^{words}"):
            call()
    assert os.listdir(tmp_path) == []


def test_a_result_stands_for_its_model(result, tmp_path):
    save_model(tmp_path / "of-result", result)
    save_model(tmp_path / "of-model", result.model)
    assert (tmp_path / "of-result").read_bytes() == (tmp_path / "of-model").read_bytes()
    options = TrainOptions(epochs=1, batch_size=5, lr=0)
    again = train(tiny_dataset(), options, engine="cpu", init=result)
    assert digest(again.model.parameters) == digest(result.model.parameters)


def test_numbers_of_numpy_are_options():
    """And become Python's, which JSON and CSV files take: a seed of np.arange, a row of a table."""
    given = TrainOptions(epochs=np.int64(2), batch_size=np.uint8(5), lr=np.float32(0.25), seed=np.arange(3)[2])
    assert given == TrainOptions(epochs=2, batch_size=5, lr=0.25, seed=2)
    assert [type(value) for value in vars(given).values()] == [type(value) for value in vars(TrainOptions()).values()]
    assert type(TrainOptions(lr=1).lr) is float


def test_a_model_is_used_from_wherever_it_is(result, tmp_path):
    data = tiny_dataset()
    save_model(tmp_path / "model.safetensors", result.model)
    sources = [result, result.model, result.engine, tmp_path, str(tmp_path / "model.safetensors")]
    for source in sources:
        found = predict(source, data.test_images)
        assert found.classes.tolist() == predict(result, data.test_images).classes.tolist()
        np.testing.assert_allclose(found.probabilities.sum(axis=1), 1)
        assert evaluate(source, data.test_images, data.test_labels).accuracy == result.accuracy
    logits = result.engine.logits(data.test_images)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(predict(result, data.test_images).probabilities, shares, rtol=1e-9)
    assert predict(result, data.test_images[3]).classes.shape == (1,)
    assert predict(result, data.test_images[:0]).classes.shape == (0,)
    with pytest.raises(CheckpointError, match="no population statistics"):
        predict(Model(result.model.parameters), data.test_images)
    for wrong in (data.test_images.astype(complex), np.zeros((2, 27, 28), np.uint8), np.zeros(784, np.uint8)):
        with pytest.raises(ValueError, match=r"^predict: images: they have (dtype|shape) .* expected"):
            predict(result, wrong)


@pytest.mark.parametrize("batch_norm", ["population", "batch"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda labels: labels[:-1], "there are 20 images and 19 labels, expected as many, and some"),
        (lambda labels: labels[:0], "there are 20 images and 0 labels"),
        (lambda labels: labels.astype(int) - 1, "labels: label 0 is -1, expected 0 to 9"),
        (lambda labels: labels + 1, "labels: label 9 is 10, expected 0 to 9"),
        (lambda labels: labels - 0.5, "labels: label 0 is -0.5, expected 0 to 9"),
        (lambda labels: labels.astype("U") + "th", "labels: label 0 is '0th', expected 0 to 9"),
        (lambda labels: labels == 1, r"labels: they have shape \(20,\) and dtype bool"),
        (lambda labels: labels.reshape(-1, 2), r"labels: they have shape \(10, 2\)"),
        (lambda labels: labels * 1j, r"labels: they have shape \(20,\) and dtype complex128"),
    ],
)
def test_labels_that_are_none_are_refused(result, change, words, batch_norm):
    """In every way to evaluate, before anything is computed."""
    data = tiny_dataset()
    with pytest.raises(ValueError, match=f"^evaluate: {words}"):
        evaluate(result, data.test_images, change(data.test_labels), batch_norm)
    with pytest.raises(ValueError, match=r"^evaluate: there are 0 images and 0 labels, expected as many, and some"):
        evaluate(result, data.test_images[:0], data.test_labels[:0], batch_norm)
    with pytest.raises(ValueError, match=r"^evaluate: images: they have dtype float64, expected uint8"):
        evaluate(result, data.test_images / 255, data.test_labels, batch_norm)
    flat = evaluate(result, data.test_images.reshape(-1, 784), data.test_labels.tolist(), batch_norm)
    assert flat == evaluate(result, data.test_images, data.test_labels, batch_norm)


def test_a_data_set_of_other_labels_is_refused():
    data = tiny_dataset()
    for half, words in (("train", "training"), ("test", "test")):
        labels = getattr(data, f"{half}_labels")
        with pytest.raises(DataError, match=f"^{words} labels: label 9 is 10, expected 0 to 9"):
            replace(data, **{f"{half}_labels": labels + 1})
        with pytest.raises(DataError, match=rf"^there are \d+ {words} images and {len(labels) - 1} labels"):
            replace(data, **{f"{half}_labels": labels[1:]})


def test_many_images_are_predicted_in_parts(result, monkeypatch):
    monkeypatch.setattr("mnist_cuda.run.evaluation.CHUNK", 7)
    data, whole = tiny_dataset(), result.engine.logits(tiny_dataset().test_images)
    np.testing.assert_array_equal(predict(result, data.test_images).logits, whole)


# ---- own data --------------------------------------------------------------------------------------------------------


class OnHost:
    """An array of another library."""

    def __init__(self, array, device=1):
        self._array, self._device = array, device

    def __dlpack_device__(self):
        return (self._device, 0)

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


def test_arrays_are_taken_without_a_copy():
    images, labels = np.arange(5 * 784, dtype=np.uint8).reshape(5, 28, 28), np.arange(5, dtype=np.uint8)
    data = dataset_of(images, labels, OnHost(images), OnHost(labels))
    for ours, theirs in zip(data.arrays, (images, labels, images, labels), strict=True):
        assert np.shares_memory(ours, theirs)
        np.testing.assert_array_equal(ours, theirs)
        assert theirs.flags.writeable
        assert not ours.flags.writeable
    for shape in ((5, 784), (5, 1, 28, 28), (5, 28, 28, 1)):
        other = dataset_of(images.reshape(shape), labels.tolist(), images.reshape(shape), labels.astype(np.int64))
        assert other.digest == data.digest
    for kind in (np.int8, np.int64, np.float32):  # such as a table of pixels has
        pixels = (images // 2).astype(kind)
        other = dataset_of(pixels, labels, pixels.reshape(5, 784).tolist(), labels)
        np.testing.assert_array_equal(other.train_images, images // 2)
        np.testing.assert_array_equal(other.test_images, images // 2)


def test_data_frames_are_taken():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    data = tiny_dataset()
    table, column = pandas.DataFrame(data.test_images.reshape(-1, 784).astype(int)), pandas.Series(data.test_labels)
    arrays = data.test_images, data.test_labels
    assert dataset_of(table, column, table, column).digest == dataset_of(*arrays, *arrays).digest


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((2, 28, 28)), [1, 2], "training images: they have dtype float64, expected uint8"),
        (
            np.full((2, 784), 0.5, np.float32),
            [1, 2],
            r"from 0 to 255: \(255 \* images\)\.round\(\)\.astype\('uint8'\) makes",
        ),
        (np.ones((2, 784), bool), [1, 2], r"have dtype bool, expected uint8 from 0 to 255: \(255 \* images\)\.round"),
        (
            np.full((2, 784), -0.42),
            [1, 2],
            "a pixel is -0.42; give the pixels as they were before they were normalised",
        ),
        (np.full((2, 784), 1.5), [1, 2], "or whole numbers in that range, and a pixel is 1.5$"),
        (np.full((2, 784), 256), [1, 2], "have dtype int64, expected .* and a pixel is 256$"),
        (np.full((2, 784), np.nan), [1, 2], "a pixel is nan$"),
        (np.full((2, 784), "1"), [1, 2], "they have dtype <U1, expected uint8 from 0 to 255$"),
        (np.zeros((2, 28, 27), np.uint8), [1, 2], r"they have shape \(2, 28, 27\), expected \(N, 28, 28\)"),
        (np.zeros((2, 28, 28), np.uint8), [1], "2 training images and 1 labels"),
        (np.zeros((0, 28, 28), np.uint8), np.zeros(0, int), "0 training images and 0 labels"),
        (np.zeros((2, 28, 28), np.uint8), [1, 10], "training labels: label 1 is 10, expected 0 to 9"),
        (np.zeros((2, 28, 28), np.uint8), [-1, 1], "training labels: label 0 is -1, expected 0 to 9"),
        (np.zeros((2, 28, 28), np.uint8), [0.5, 1], "training labels: label 0 is 0.5, expected 0 to 9"),
        (np.eye(2, 784, dtype=int), [1, 2], "training images: all pixels are 0 or 1, nearly black, expected 0 to 255"),
        (OnHost(np.zeros((2, 28, 28), np.uint8), 2), [1, 2], "training images: the array is on a GPU"),
        (np.zeros((2, 28, 28), np.uint8), OnHost(np.zeros(2, np.uint8), 2), "training labels: the array is on a GPU"),
    ],
)
def test_arrays_that_are_no_data_set_are_refused(images, labels, words):
    with pytest.raises(DataError, match=words):
        dataset_of(images, labels, np.zeros((1, 28, 28), np.uint8), [0])


def test_arrays_of_pytorch(result):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here; tests/test_examples.py uses the peers'")
    data = tiny_dataset()
    images = torch.from_numpy(data.test_images.copy())
    assert np.shares_memory(as_numpy(images), images.numpy())
    np.testing.assert_array_equal(predict(result, images).logits, predict(result, data.test_images).logits)


@pytest.fixture
def pictures(tmp_path):
    """A function that writes the tiny data set as files: pictures(folder, names of classes, halves)."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    data = tiny_dataset()

    def write(root, names, halves=("train", "test"), mode="L", size=(28, 28)):
        sets = {"train": (data.train_images, data.train_labels), "test": (data.test_images, data.test_labels)}
        for half in halves:
            for k, (pixels, label) in enumerate(zip(*sets[half], strict=True)):
                folder = tmp_path / root / (half if len(halves) == 2 else "") / names[label]
                folder.mkdir(parents=True, exist_ok=True)
                image.fromarray(pixels).resize(size).convert(mode).save(folder / f"{half}{k:03d}.png")
        return tmp_path / root

    return write


def sorted_images(images, labels):
    return sorted((int(label), image.tobytes()) for image, label in zip(images, labels, strict=True))


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_folder_of_pictures_by_class(pictures, mode):
    data = dataset_from_folder(pictures("digits", "0123456789", mode=mode))
    tiny = tiny_dataset()
    assert (data.name, data.source.endswith("/digits")) == ("digits", True)
    assert sorted_images(data.train_images, data.train_labels) == sorted_images(tiny.train_images, tiny.train_labels)
    assert sorted_images(data.test_images, data.test_labels) == sorted_images(tiny.test_images, tiny.test_labels)


def test_a_folder_that_is_not_split_is(pictures):
    folder = pictures("things", [f"thing {letter}" for letter in "jihgfedcba"], ("train",))
    data, again = (
        dataset_from_folder(folder, test_share=0.3, seed=2),
        dataset_from_folder(folder, test_share=0.3, seed=2),
    )
    assert data.digest == again.digest != dataset_from_folder(folder, test_share=0.3, seed=3).digest
    tiny = tiny_dataset()
    found = sorted_images(
        np.concatenate([data.train_images, data.test_images]), np.concatenate([data.train_labels, data.test_labels])
    )
    assert found == sorted_images(tiny.train_images, 9 - tiny.train_labels)  # the names count backwards
    assert set(data.test_labels.tolist()) == set(range(10))


def test_pictures_of_another_size_are_scaled(pictures):
    data = dataset_from_folder(pictures("large", "0123456789", size=(56, 56)))
    assert data.train_images.shape == (35, 28, 28)
    found, expected = data.train_images[data.train_labels == 4], tiny_dataset().train_images[4]
    assert (found[0][13] > 128).sum() == (expected[13] > 128).sum() == 20  # the bar of a 4


def test_a_folder_of_something_else_is_refused(pictures, tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        dataset_from_folder(tmp_path / "none")
    with pytest.raises(DataError, match="it has 0 folders, expected one for each of at most 10 classes"):
        dataset_from_folder(tmp_path)
    folder = pictures("digits", "0123456789")
    (folder / "train/3/train003.png").write_bytes(b"\x89PNG no picture")
    with pytest.raises(DataError, match=r"train/3/train003\.png: not a picture, expected PNG"):
        dataset_from_folder(folder)
    empty = folder / "train/4"
    empty.rename(tmp_path / "elsewhere")
    empty.mkdir()
    (empty / "4.psd").touch()
    with pytest.raises(DataError, match=r"train/4: no picture in this folder, expected files that end in \.png"):
        dataset_from_folder(folder)


def test_a_state_dict_of_pytorch_needs_pytorch(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnavailableError, match=r"model\.pt: a file of PyTorch, which is not installed here"):
        load_model(tmp_path / "model.pt")
    assert os.listdir(tmp_path) == ["model.pt"]
