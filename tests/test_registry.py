"""An engine is a row of the registry: what follows from the row alone, and the options that an engine is made with."""

import pytest
from conftest import engine_params
from tiny import prints

from mnist_cuda import _native, cli
from mnist_cuda import engine as engine_module
from mnist_cuda.bench import profile
from mnist_cuda.engine import Engine, engines, find_engine
from mnist_cuda.engine.tolerances import tolerance
from mnist_cuda.errors import UsageError


def test_a_row_is_all_that_an_engine_needs(tiny, monkeypatch, capsys, tmp_path):
    """A row that no line of Python knows: the commands list it, `auto` takes it by its rank, bounds follow its sums."""
    row = {**_native.engines()[1], "name": "dummy", "summary": "a row of a test", "rank": 0, "summation": "plain"}
    rows, create = [*_native.engines(), row], _native.create_engine
    monkeypatch.setattr(_native, "engines", lambda: rows)
    monkeypatch.setattr(_native, "create_engine", lambda name, *rest: create("cpu" if name == "dummy" else name, *rest))
    assert [info.name for info in engines()][-1] == "dummy"
    assert [param.id for param in engine_params(without=("reference",))][-1] == "dummy-fp32"
    assert find_engine("auto").name == "dummy"
    bounds = {name: tolerance(name, "fp32", "conv1.weight", 8, "frozen") for name in ("dummy", "naive", "cpu")}
    assert bounds["dummy"] == bounds["naive"] > bounds["cpu"]
    out = prints(capsys, "engines")
    assert "a row of a test" in out
    assert "`--engine auto` takes dummy." in out
    file = tmp_path / "profile.json"
    monkeypatch.setattr(profile, "BLOCKS", 1)
    assert cli.main(["profile", "--batch-size", "8", "--steps", "1", "--json", str(file)]) == 0
    assert capsys.readouterr().out.startswith("engine dummy ")


@pytest.mark.parametrize("cudnn", [True, False], ids=["cudnn", "no-cudnn"])
def test_auto_on_an_older_gpu_is_layerwise(older_gpu, monkeypatch, cudnn):
    if not cudnn:
        answer = _native.unavailable
        reasons = dict.fromkeys(("fp32", "tf32", "bf16"), "cudnn cannot be loaded")
        monkeypatch.setattr(_native, "unavailable", lambda name, gpu: reasons if name == "cudnn" else answer(name, gpu))
    assert (find_engine("auto").name, find_engine("auto").libraries) == ("layerwise", ())
    assert find_engine("cudnn").unavailable == ("" if cudnn else "cudnn cannot be loaded")


def test_auto_without_a_gpu_takes_the_faster_host_engine(monkeypatch):
    rows = {row["name"]: row for row in _native.engines()}
    reasons = {
        name: dict.fromkeys(row["precisions"], "no GPU") for name, row in rows.items() if row["device"] == "cuda"
    }
    monkeypatch.setattr(_native, "unavailable", lambda name, _: reasons.get(name, {}))
    assert find_engine("auto").name == "cpu"
    monkeypatch.setattr(_native, "unavailable", lambda *_: {})
    assert find_engine("auto").name == "fused"


@pytest.fixture
def options_given(monkeypatch):
    """What engines are made with: name, then precision, threads, device, check_every_step, limits, multiprocessors."""
    made = []
    monkeypatch.setattr(_native, "unavailable", lambda *_: {})
    monkeypatch.setattr(_native, "create_engine", lambda name, *options: made.append((name, *options)))
    monkeypatch.setattr(engine_module, "find_libraries", lambda _: None)
    return made


def test_variables_become_options(options_given, monkeypatch):
    """Of the engines that they are for, and what is given by name goes before them."""
    monkeypatch.setenv("MNIST_CUDA_SYNC", "1")
    monkeypatch.setenv("MNIST_CUDA_FUSED_LIMITS", "108,166912")
    Engine("fused")
    Engine("cudnn")
    Engine("fused", check_every_step=False, limits=(24, 99000))
    monkeypatch.setenv("MNIST_CUDA_SYNC", "yes")
    monkeypatch.setenv("MNIST_CUDA_FUSED_LIMITS", "")
    Engine("fused", "bf16", device=2, multiprocessors=8)
    assert options_given == [
        ("fused", "fp32", 0, 0, True, 108, 166912, 0, []),
        ("cudnn", "fp32", 0, 0, True, 0, 0, 0, []),
        ("fused", "fp32", 0, 0, False, 24, 99000, 0, []),
        ("fused", "bf16", 0, 2, False, 0, 0, 8, []),
    ]
    with pytest.raises(UsageError, match="engine 'cudnn' takes no share of the multiprocessors; leave it out"):
        Engine("cudnn", multiprocessors=8)


@pytest.mark.parametrize("limits", ["x", "108", "108,166912,", "-1,5", "1e3,5", "108,"])
def test_limits_that_are_not_two_numbers(options_given, monkeypatch, limits):
    monkeypatch.setenv("MNIST_CUDA_FUSED_LIMITS", limits)
    with pytest.raises(
        UsageError, match=f"^MNIST_CUDA_FUSED_LIMITS is '{limits}', expected MULTIPROCESSORS,BYTES such"
    ):
        Engine("fused")
    Engine("cpu")


def test_an_engine_without_limits_refuses_them():
    with pytest.raises(ValueError, match=r"^engine 'cpu' takes no limits, expected none$"):
        Engine("cpu", limits=(108, 166912))
