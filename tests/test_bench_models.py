"""bench --models: a step of one of many models, and that every competitor trains them as it trains one."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from test_bench import competitor_setup
from test_sweep import EmulatedFleet, has_fleets
from tiny import prints, tiny_dataset

from mnist_cuda import _native
from mnist_cuda.bench import models
from mnist_cuda.bench.competitors import PEER_SCRIPTS, has_module, peer_competitors
from mnist_cuda.bench.process import CompetitorProcess
from mnist_cuda.bench.variants import SWEEP_PEERS
from mnist_cuda.bench.worker import Worker
from mnist_cuda.engine import Engine, find_engine
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.run.training import epoch_order

BATCH, STEPS = 10, 4


@pytest.fixture
def setup(tmp_path):
    return competitor_setup(tmp_path) | {"batch_size": BATCH, "models": 3}


def mean_losses(engine):
    """The means of three models' losses, each a step further in the same order, after other steps before."""
    data, losses = tiny_dataset(), []
    engine.set_dataset(data.train_images, data.train_labels)
    order = epoch_order(0, 1, 35)[:30]
    for model in range(3):
        engine.set_parameters(init_parameters(0))
        losses.append(engine.train(np.resize(np.roll(order, -model * BATCH), 2 * STEPS * BATCH), BATCH, 0.05)[0])
    return np.mean(losses, axis=0)


def ask_all(ask, setup):
    """The losses of STEPS steps, of as many after them, and of the first again."""
    ask(cmd="setup", **setup)
    answers = [ask(cmd="run", steps=STEPS), ask(cmd="run", steps=STEPS)]
    ask(cmd="restart")
    answers.append(ask(cmd="run", steps=STEPS))
    assert all(answer["seconds"] > 0 for answer in answers)
    return np.array([answer["losses"] for answer in answers])


def expected(losses):
    return losses[[[0, STEPS - 1], [STEPS, 2 * STEPS - 1], [0, STEPS - 1]]]


def test_the_worker_trains_models_side_by_side(setup, monkeypatch):
    asked = []

    def fleet(engine, *sizes):
        asked.append(sizes)
        return EmulatedFleet(engine, sizes[0])

    monkeypatch.setattr(Engine, "fleet", fleet)
    monkeypatch.setattr(Engine, "share_for", lambda engine, batch_size: find_engine("fused").share_for(batch_size))
    worker = Worker("cpu")
    found = ask_all(lambda cmd, **fields: getattr(worker, cmd)(fields), {**setup, "precision": "fp32"})
    assert asked == [(3, BATCH, 2)]
    np.testing.assert_array_equal(found, expected(mean_losses(Engine("cpu"))))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_worker_does_so_on_a_gpu(precision, setup, make_engine):
    if not has_fleets(make_engine("fused", precision)):
        pytest.skip("this GPU trains one model at a time")
    with CompetitorProcess((sys.executable, "-m", "mnist_cuda.bench.worker", "fused")) as process:
        found = ask_all(process.ask, {**setup, "precision": precision})
    np.testing.assert_array_equal(found, expected(mean_losses(make_engine("fused", precision, multiprocessors=2))))


@pytest.mark.parametrize(
    ("script", "mode"),
    [("pytorch_models.py", "eager"), ("jax_models.py", "convolutions"), ("jax_models.py", "products")],
)
def test_a_peers_models_train_as_the_reference_does(script, mode, setup, peer):
    python, module = peer.command[0], script.partition("_")[0].replace("py", "")
    if not has_module(python, module):
        pytest.skip(f"{python} has no {module}")
    with CompetitorProcess((python, str(PEER_SCRIPTS / script), "--serve")) as process:
        found = ask_all(process.ask, {**setup, "precision": "fp64", "mode": mode})
    np.testing.assert_allclose(found, expected(mean_losses(Engine("reference"))), rtol=1e-9)


def test_who_takes_part(monkeypatch, tmp_path):
    found = peer_competitors(["torch:vmap", "jax:vmap:products"], ["cuda"], tmp_path, SWEEP_PEERS, [4, 16])
    assert [(c.label, c.models, c.fields["models"]) for c in found] == [
        ("torch vmap of 4 in a graph", 4, 4),
        ("torch vmap of 16 in a graph", 16, 16),
        ("jax vmap of 4, products", 4, 4),
        ("jax vmap of 16, products", 16, 16),
    ]
    assert {c.models for c in peer_competitors(["torch:NCHW"], ["cuda"], tmp_path, SWEEP_PEERS)} == {1}
    monkeypatch.setattr(_native, "gpus", lambda: [{"multiprocessors": 132}])
    fused = replace(find_engine("fused"), unavailable="")
    assert [(c.label, c.models) for c in models.ours(fused, 64, [1, 16, 33])] == [
        ("fused, one after another", 1),
        ("fused, 33 side by side", 33),
        ("fused, 16 side by side", 16),
    ]
    assert [c.models for c in models.ours(fused, 256, [16])] == [1, 8, 16]
    monkeypatch.setattr(_native, "gpus", lambda: [{"multiprocessors": 108}])
    assert [c.models for c in models.ours(fused, 2048, [16])] == [1]
    assert [c.models for c in models.ours(find_engine("cpu"), 64, [16])] == [1]


def test_the_command(tiny, tmp_path, capsys):
    argv = ["bench", "--models", "2", "-e", "cpu", "--peers", "--batch-size", "5", "--blocks", "1", "--seconds", "0.01"]
    assert "microseconds per model-step: " in prints(capsys, *argv, "--json", str(tmp_path / "x.json"))
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["step"] == "model-step"
    (row,) = record["rows"]
    assert (row["competitor"], row["models"], row["batch_size"]) == ("cpu, one after another", 1, 5)
    assert row["us"]["median"] > 0
    assert "--models is 0, expected whole numbers of at least 1" in prints(capsys, *argv, "--models", "0", code=2)


def test_a_number_of_models_that_is_none_is_refused_by_a_peer(peer):
    script = str(PEER_SCRIPTS / "pytorch_models.py")
    command = json.dumps({"cmd": "setup", "models": 0, "npz": "x"})
    done = subprocess.run([peer.command[0], script, "--serve"], input=command, capture_output=True, text=True)
    assert json.loads(done.stdout) == {"error": "models is 0, expected at least 1"}
