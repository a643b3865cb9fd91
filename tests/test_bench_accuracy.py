"""`mnist-cuda bench accuracy`: what it trains, compares and records, with our own engines in the peer's place."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import said, tiny_dataset

from mnist_cuda import cli
from mnist_cuda.bench import accuracy
from mnist_cuda.bench.accuracy import Row, Run
from mnist_cuda.bench.competitors import Competitor, first_variants
from mnist_cuda.commands.flags import options_of
from mnist_cuda.engine import Engine, engines
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.run.evaluation import evaluate
from mnist_cuda.run.training import epoch_order

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture
def own_peer(monkeypatch):
    """Our engine `cpu` stands for the peer; own_peer(code) makes it a program that runs this instead."""

    def use(*command):
        peer = Competitor("peer", command, "cpu", ("fp32",), {}, peer=True)
        monkeypatch.setattr(accuracy, "first_variants", lambda names, device, python: [peer])

    use(sys.executable, "-m", "mnist_cuda.bench.worker", "cpu")
    return use


def run(capsys, *argv):
    return said(capsys, "bench", "accuracy", "--batch-size", "10", "--threads", "1", *argv)


def row_of(*finals, repeat=True, peer=None):
    """A row whose seeds ended at these accuracies, in per cent."""
    row = Row(Competitor("ours", (), "cpu", ("fp32",)), "fp32", peer=peer)
    row.runs = [Run(seed, [final / 100], [0.1], 1.0, "hash") for seed, final in enumerate(finals)]
    row.repeat = Run(0, row.runs[0].test_accuracy, [0.1], 1.0, "hash" if repeat else "another")
    return row


def test_a_record(own_peer, capsys, tmp_path):
    """Weights, order and epochs are the command line's: the same training by hand gives the same accuracies."""
    file = tmp_path / "a.json"
    code, out, err = run(capsys, "--engines", "cpu", "--seeds", 2, "--epochs", 2, "--jobs", 2, "--json", file)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if line[1:2] == ["fp32"]] == ["peer", "cpu"]
    record = json.loads(file.read_text())
    assert {"commit", "command", "versions", "machine", "evaluation", "data"} <= record.keys()
    assert record["settings"]["bound_points"] == 0.2
    peer, ours = record["rows"]
    assert (peer["peer"], peer["verdict"], ours["verdict"], ours["bitwise_repeat"]) == (True, "-", "ok", True)
    assert ours["difference_points"] == 0

    data, engine = tiny_dataset(), Engine("cpu", threads=1)
    engine.set_dataset(data.train_images, data.train_labels)
    for seed, run_of_seed in enumerate(ours["runs"]):
        engine.set_parameters(init_parameters(seed))
        for epoch in (1, 2):
            losses, _ = engine.train(epoch_order(seed, epoch, 35)[:30], 10, 0.05)
            engine.compute_statistics()
            assert run_of_seed["loss"][epoch - 1] == losses[-1]
            score = evaluate(engine, data.test_images, data.test_labels).accuracy
            assert run_of_seed["test_accuracy"][epoch - 1] == score
    assert ours["runs"][0]["parameters_sha256"] != ours["runs"][1]["parameters_sha256"]
    assert ours["repeat"]["parameters_sha256"] == ours["runs"][0]["parameters_sha256"]


def test_the_means_are_compared():
    peer = row_of(98.0, 99.0)
    assert row_of(98.1, 99.1, peer=peer).verdict() == "ok"
    assert row_of(98.6, 98.6, peer=peer).verdict() == "ok"
    row = row_of(98.3, 99.3, peer=peer)
    assert row.verdict() == row_of(97.7, 98.7, peer=peer).verdict() == "BROKEN"
    assert row.difference() == pytest.approx(0.3)
    assert row.standard_error() == pytest.approx(np.sqrt(0.5 / 2 + 0.5 / 2))
    assert row_of(98.2, peer=row_of(98.5)).standard_error() is None


def test_a_run_that_is_not_repeated_bit_by_bit_is_a_fault():
    assert row_of(98.0, peer=row_of(98.0), repeat=False).verdict() == "NOT REPEATED"
    assert row_of(98.0, peer=row_of(98.0, repeat=False)).verdict() == "ok"


def test_a_peer_that_fails(own_peer, capsys):
    own_peer(sys.executable, "-c", "import sys; sys.exit('no such library')")
    status, out, _ = run(capsys, "--engines", "cpu", "--seeds", 1, "--epochs", 1)
    assert status == 1
    for words in ("ended with 1: no such library", "NO PEER", "FAILED"):
        assert words in out


def test_training_that_diverges(own_peer, capsys):
    status, out, _ = run(capsys, "--engines", "cpu", "--seeds", 1, "--epochs", 1, "--lr", "1e30")
    assert status == 1
    assert "cpu fp32: training diverged: its loss is nan" in out


def planned(*argv):
    args = cli.make_parser().parse_args(["bench", "accuracy", *argv])
    return accuracy.plan(options_of(accuracy.AccuracyOptions, args))


def test_who_takes_part(own_peer):
    def rows(*argv):
        return [(row.competitor.label, row.precision) for row in planned(*argv)]

    here = [(row.name, p) for row in engines() if not row.unavailable for p in row.precisions if p != "fp64"]
    precisions = list(dict.fromkeys(p for _, p in here))
    assert rows() == [*(("peer", p) for p in precisions), *here]
    assert rows("--engines", "cpu,reference", "--precisions", "fp64") == [("peer", "fp64"), ("reference", "fp64")]
    with pytest.raises(UsageError, match="--precisions is fp8, expected some of fp32"):
        rows("--engines", "cpu", "--precisions", "fp8")


def test_what_an_older_gpu_lacks_takes_no_part(own_peer, older_gpu):
    def rows(*argv):
        return [row.precision for row in planned("--engines", "cudnn", *argv) if not row.competitor.peer]

    assert rows() == ["fp32"]
    with pytest.raises(UnavailableError, match=f"engine 'cudnn' cannot run here in tf32: {older_gpu}"):
        rows("--precisions", "fp32", "tf32")


def test_a_peer_without_a_variant_for_the_device():
    with pytest.raises(UsageError, match="peer 'torch:graph' has no variant on the cpu"):
        first_variants(["torch:graph"], "cpu", Path("/none/python"))


def test_a_batch_larger_than_the_data_set(own_peer, capsys):
    code, out, err = run(capsys, "--engines", "cpu", "--batch-size", "36")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--batch-size 36 exceeds the 35 images" in err


def test_against_pytorch(peer, capsys, tmp_path):
    """The peer follows the same orders: the losses after two epochs are those of `reference`, in float64."""
    argv = ["--engines", "reference", "--peer-python", peer.command[0], "--seeds", 1, "--epochs", 2]
    code, out, _ = run(capsys, *argv, "--json", tmp_path / "a.json")
    assert code == 0, out
    torch, ours = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert torch["precision_pinned"]
    np.testing.assert_allclose(torch["runs"][0]["loss"], ours["runs"][0]["loss"], rtol=1e-5)  # torch starts from fp32
    assert torch["runs"][0]["test_accuracy"] == ours["runs"][0]["test_accuracy"]
