"""Ranks that are processes: the bits of threads, how they are launched, and that one which ends ends them all."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, require_gpus
from data_server import idx
from test_ranks import assert_same_bits, on_all
from tiny import ENVIRONMENT, tiny_dataset

from mnist_cuda import _native, cli, training
from mnist_cuda.bench.competitors import has_module
from mnist_cuda.checkpoint import load_model
from mnist_cuda.data import dataset
from mnist_cuda.engine import Engine
from mnist_cuda.errors import MnistCudaError, OutOfMemoryError, RankLostError, UsageError
from mnist_cuda.model import init_parameters
from mnist_cuda.options import TrainOptions
from mnist_cuda.ranks.group import Ranks
from mnist_cuda.ranks.meeting import PROTOCOL, Facts, _begin, _knock, gather, listen, reach
from mnist_cuda.ranks.processes import Processes, world_of_processes
from mnist_cuda.ranks.session import another_rank, rank_0
from mnist_cuda.ranks.world import World
from mnist_cuda.resume import checkpoints, load_state
from mnist_cuda.training import Trainer

LIMIT = 10.0  # seconds that the end of one rank may take to be the end of all
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
CLEAN = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(VARIABLES)}
MORE = ("--epochs", "100000")  # no test waits for its end


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The tiny data set with 83 training images, as files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MNIST_TINY_IMAGES", "83")
        tiny = tiny_dataset()
    folder = tmp_path_factory.mktemp("tiny")
    for half, images, labels in (
        ("train", tiny.train_images, tiny.train_labels),
        ("t10k", tiny.test_images, tiny.test_labels),
    ):
        (folder / f"{half}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{half}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


@pytest.fixture
def command(data_dir):
    """command(*flags): a training by engine cpu; later flags win."""
    recipe = ["train", "--engine", "cpu", "--dataset", "idx", "--data-dir", data_dir]
    recipe += ["--batch-size", "8", "--epochs", "2", "--lr", "0.02", "--seed", "3"]
    return lambda *flags: [sys.executable, "-m", "mnist_cuda", *map(str, [*recipe, *flags])]


WAITING = "mnist-cuda: waiting for rank 1 of 2, 120 s at most\n"  # a GPU may take seconds to begin
STARTED = []


def heard():
    """A background job of a shell, and what is under nohup, ignores these."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(command, **environment):
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=CLEAN | environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=heard)
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """Ends what a test that failed has left behind."""
    yield
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


def ended(process, seconds=60.0):
    """Exit code, and what it wrote on stdout and stderr."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"did not end in {seconds} s: {process.communicate()}")
    return process.returncode, out, err


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def by_hand(size, port):
    """The variables of each rank."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**shared, "RANK": str(rank)} for rank in range(size)]


def others_of(process):
    """The processes that rank 0 started, by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {}
    for pid in map(int, children):
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        ranks[int(next(v for v in variables if v.startswith("RANK="))[5:])] = pid
    return ranks


def running(pid):
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_epoch(process):
    """Read until the first epoch is reported, and with it saved."""
    for line in process.stdout:
        if line.startswith("epoch 1/"):
            return
    pytest.fail(f"ended early: {process.communicate()}")


def model_of(folder):
    model = load_model(folder)
    return {**model.parameters, **model.statistics}


@pytest.fixture
def threads(data_dir):
    """threads(ranks): the training of `command`, each rank a thread of this process; the model of each."""
    options = TrainOptions(epochs=2, batch_size=8, lr=0.02, seed=3)
    data = dataset.load("idx", data_dir=data_dir)

    def train(communicator):
        engine = Engine("cpu", threads=1)
        engine.init_parameters(options.seed)
        engine.join(communicator)
        trainer = Trainer(engine, data, options, ranks=Ranks(communicator))
        trainer.prepare()
        while not trainer.finished:
            trainer.train_epoch()
            model = trainer.end_epoch(trainer.evaluate())
        return {**model.parameters, **model.statistics, "losses": [row["test_loss"] for row in trainer.epochs]}

    return lambda ranks: on_all(_native.in_process_communicators(ranks), train)


def assert_trained_as(result, folder):
    losses = [json.loads(line)["test_loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert_same_bits({**model_of(folder), "losses": losses}, result)


# ---- launched --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_are_shares_in_one_process(command, threads, tmp_path, ranks):
    code, out, err = ended(start(command("--processes", ranks, "--out", tmp_path / "run")))
    assert (code, err) == (0, "")
    assert f"ranks   {ranks}, started by --processes, this one with " in out
    results = threads(ranks)
    for other in results[1:]:
        assert_same_bits(results[0], other)
    assert_trained_as(results[0], tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["ranks"] == config["options"]["processes"] == ranks


def test_by_variables_with_a_rank_that_is_late(command, threads, tmp_path):
    """Rank 0 alone writes and prints; whoever else knocks at its port is sent away."""
    port = free_port()
    first, *others = by_hand(3, port)
    rank_0 = start(command("--out", tmp_path / "run"), **first)
    rank_1 = start(command("--out", tmp_path / "never"), **others[0])
    line = rank_0.stderr.readline()
    assert line == "mnist-cuda: waiting for rank 2 of 3, 120 s at most\n"
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    rank_2 = start(command("--out", tmp_path / "never"), **others[1])
    code, out, err = ended(rank_0)
    assert (code, err) == (0, "")
    assert "ranks   3, started by RANK and WORLD_SIZE, this one with " in out
    assert [ended(rank) for rank in (rank_1, rank_2)] == [(0, "", "")] * 2
    assert_trained_as(threads(3)[0], tmp_path / "run")
    assert not (tmp_path / "never").exists()


def test_torchrun(command, threads, tmp_path):
    torchrun = Path(os.environ.get("MNIST_CUDA_PEER_PYTHON", ROOT / ".venv-peers/bin/python")).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("no PyTorch here: scripts/peers installs it")
    launch = [torchrun, "--standalone", "--nproc-per-node=2", "--no-python"]
    code, out, err = ended(start([*launch, *command("--out", tmp_path / "run")]))
    assert code == 0, err
    assert out.count("ranks   2, started by torchrun, this one with ") == out.count("epoch 2/2") == 1
    assert_trained_as(threads(2)[0], tmp_path / "run")


def test_mpirun(command, threads, tmp_path):
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun here; Debian's package openmpi-bin has it")
    launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    code, out, err = ended(start([*launch, *command("--out", tmp_path / "run")]))
    assert code == 0, err
    assert out.count("ranks   2, started by mpirun, this one with ") == out.count("right after 2 epochs") == 1
    assert_trained_as(threads(2)[0], tmp_path / "run")


@pytest.mark.gpu
def test_a_gpu_each(command, tmp_path):
    """By `--gpus`, and the same weights whatever brings the sums."""
    require_gpus(2)
    sums = {
        "peers": "writes to each other's memory\n",
        "nccl": "NCCL 2.",
        "host": "host memory, which is slow\n",
    }
    flags = ("--engine", "fused", "--precision", "bf16", "--gpus", 2)
    for transport, words in sums.items():
        process = start(command(*flags, "--out", tmp_path / transport), MNIST_CUDA_TRANSPORT=transport)
        code, out, err = ended(process)
        assert (code, err.removeprefix(WAITING)) == (0, "")
        assert f"ranks   2, started by --gpus, this one with GPU 0\n        sums by {words}" in out
        assert_same_bits(model_of(tmp_path / "peers"), model_of(tmp_path / transport))


@pytest.mark.gpu
def test_torchrun_with_gpus(command, tmp_path):
    require_gpus(2)
    python = Path(os.environ.get("MNIST_CUDA_PEER_PYTHON", ROOT / ".venv-peers/bin/python"))
    if not has_module(python, "torch"):
        pytest.skip("no PyTorch here: scripts/peers installs it")
    flags = ("--engine", "fused", "--precision", "bf16")
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    launch += ["--nproc-per-node=2", "--no-python"]
    code, out, err = ended(start([*launch, *command(*flags, "--out", tmp_path / "run")]))
    assert code == 0, err
    assert "ranks   2, started by torchrun, this one with GPU 0\n" in out
    assert ended(start(command(*flags, "--gpus", 2, "--out", tmp_path / "ours")))[0] == 0
    assert_same_bits(model_of(tmp_path / "run"), model_of(tmp_path / "ours"))


@pytest.mark.gpu
@pytest.mark.parametrize("transport", ["peers", "nccl"])
def test_a_rank_with_a_gpu_is_killed(command, tmp_path, transport):
    """The others may wait for it in a kernel then; the run goes on from its checkpoint."""
    require_gpus(2)
    flags = ("--engine", "fused", "--gpus", 2, "--out", tmp_path / "run")
    process = start(command(*flags, *MORE), MNIST_CUDA_TRANSPORT=transport)
    until_epoch(process)
    os.kill(others_of(process)[1], signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = ended(process)
    assert time.monotonic() - killed < LIMIT
    assert code == 128 + signal.SIGKILL
    said = err.removeprefix(WAITING)
    assert said.startswith("mnist-cuda: error: rank 1 was killed by SIGKILL")
    assert said.count("\n") == 1
    done = load_state(checkpoints(tmp_path / "run")[0]).state.epoch
    flags = ("--resume", tmp_path / "run", "--epochs", done + 1)
    code, out, err = ended(start([sys.executable, "-m", "mnist_cuda", "train", *map(str, flags)]))
    assert (code, err.removeprefix(WAITING)) == (0, "")
    assert "ranks   2, started by --gpus" in out


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_killed_ends_the_others(command, tmp_path):
    """In one line, with its exit code; and the run goes on from its checkpoint, alone, too."""
    folder = tmp_path / "run"
    process = start(command("--processes", 3, "--out", folder, *MORE))
    until_epoch(process)
    others = others_of(process)
    assert sorted(others) == [1, 2]
    os.kill(others[2], signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = ended(process)
    assert time.monotonic() - killed < LIMIT
    assert code == 128 + signal.SIGKILL
    assert err == (
        "mnist-cuda: error: rank 2 was killed by SIGKILL; "
        f"`mnist-cuda train --resume {folder}` goes on from the last checkpoint\n"
    )
    assert not any(map(running, others.values()))
    done = load_state(checkpoints(folder)[0]).state.epoch
    flags = ("--resume", folder, "--processes", "1", "--epochs", done + 1)
    code, out, err = ended(start([sys.executable, "-m", "mnist_cuda", "train", *map(str, flags)]))
    assert code == 0
    assert f"epoch {done + 1}/{done + 1}" in out
    assert "was made by 3 ranks, and now it is 1: the weights will differ" in err


def test_rank_0_is_killed(command, tmp_path):
    process = start(command("--processes", 3, "--out", tmp_path / "run", *MORE))
    until_epoch(process)
    others = others_of(process)
    process.kill()
    killed = time.monotonic()
    _, _, err = ended(process)
    while any(map(running, others.values())):
        assert time.monotonic() - killed < LIMIT
        time.sleep(0.05)
    assert err == ""
    load_state(checkpoints(tmp_path / "run")[0])


def test_without_our_launcher_one_rank_says_it(command, tmp_path):
    first, *others = by_hand(3, free_port())
    process = start(command("--out", tmp_path / "run", *MORE), **first)
    ranks = [start(command("--out", tmp_path / "never", *MORE), **variables) for variables in others]
    until_epoch(process)
    ranks[0].kill()
    code, _, err = ended(process, LIMIT)
    assert code == 7
    assert err.startswith("mnist-cuda: error: rank 1 is gone; `mnist-cuda train --resume ")
    assert ended(ranks[1], LIMIT) == (7, "", "")
    ranks[0].communicate()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_all_and_goes_on_to_the_same_bits(command, threads, tmp_path, signum):
    folder = tmp_path / "run"
    process = start(command("--processes", 2, "--save-every", "5steps", "--out", folder, *MORE))
    until_epoch(process)
    others = others_of(process)
    process.send_signal(signum)
    code, out, err = ended(process)
    assert (code, err) == (128 + signum, "")
    assert f"stopped by {signum.name} after " in out
    assert not any(map(running, others.values()))
    done = load_state(checkpoints(folder)[0]).state
    whole = start(command("--processes", 2, "--out", tmp_path / "whole", "--epochs", done.epoch + 1))
    flags = ("--resume", folder, "--epochs", done.epoch + 1)  # with as many ranks as before
    code, out, err = ended(start([sys.executable, "-m", "mnist_cuda", "train", *map(str, flags)]))
    assert (code, err) == (0, "")
    assert "ranks   2, started by --processes" in out
    assert ended(whole)[0] == 0
    assert_same_bits(model_of(folder), model_of(tmp_path / "whole"))


def test_a_stop_of_any_rank_ends_all(command, tmp_path):
    """As torchrun and mpirun end them; rank 0 saves."""
    first, second = by_hand(2, free_port())
    process = start(command("--out", tmp_path / "run", *MORE), **first)
    other = start(command(*MORE), **second)
    until_epoch(process)
    other.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert (code, err) == (143, "")
    assert "stopped by SIGTERM after " in out
    assert ended(other) == (143, "", "")


def test_a_stop_where_rank_0_has_settled(monkeypatch):
    """As if the engine were `fused` in fp32, with --save-every 2steps: the others make no step more than rank 0."""
    monkeypatch.setattr(training, "_WITH_SCALE", {("cpu", "fp32"): ("conv2.weight",)})
    monkeypatch.setattr(training, "_scales", lambda *_: 0)
    data = tiny_dataset()

    def work(communicator):
        engine = Engine("cpu", threads=1)
        engine.join(communicator)
        engine.set_parameters(init_parameters(0))
        trainer = Trainer(engine, data, TrainOptions(epochs=1, batch_size=5), ranks=Ranks(communicator))
        trainer.prepare()
        of_rank_0 = {"stop": lambda: int(trainer.steps >= 2), "stride": 2}
        trainer.train_epoch(**(of_rank_0 if communicator.rank == 0 else {}))
        communicator.leave(0, "the end")
        return trainer.steps, trainer.state is not None

    assert on_all(_native.in_process_communicators(2), work) == [(2, True)] * 2


def test_a_rank_with_other_options_is_refused(command, tmp_path):
    first, second = by_hand(2, free_port())
    other = start(command("--lr", "0.05"), **second)
    rank_0 = start(command("--out", tmp_path / "run"), **first)
    assert ended(rank_0) == (2, "", "mnist-cuda: error: rank 1 has lr 0.05, expected rank 0's, 0.02\n")
    assert ended(other) == (2, "", "")
    assert not (tmp_path / "run").exists()


def test_a_rank_with_other_data_is_refused(command, data_dir, tmp_path):
    shutil.copytree(data_dir, tmp_path / "data")
    with open(tmp_path / "data" / "train-labels-idx1-ubyte", "r+b") as file:
        file.seek(8)
        file.write(b"\x07")
    first, second = by_hand(2, free_port())
    other = start(command("--data-dir", tmp_path / "data"), **second)
    code, out, err = ended(start(command("--out", tmp_path / "run"), **first))
    assert (code, out) == (3, "")
    assert err.startswith("mnist-cuda: error: rank 1 has data digest ")
    assert ended(other) == (3, "", "")


def test_those_that_came_before_are_told():
    facts = Facts({"lr": 0.1}, {}, {})
    world = World("", 0, 4, 4, "127.0.0.1", (0,), "a job")
    with listen(world) as listener, ThreadPoolExecutor() as pool:
        rank_0 = pool.submit(gather, listener, world, facts, 60)
        others = [replace(world, rank=rank, ports=(listener.getsockname()[1],)) for rank in range(4)]
        hello = {"protocol": PROTOCOL, "job": "a job", "rank": 2, "size": 4, "facts": facts.as_json()}
        rank_2 = _knock("127.0.0.1", others[2].ports[0], hello)  # it is heard when this returns
        stranger = _knock("127.0.0.1", others[2].ports[0], hello | {"job": "another"})
        rank_1 = pool.submit(reach, others[1], Facts({"lr": 0.2}, {}, {}), 60)
        errors = [rank_0.exception(), rank_1.exception()]
        with pytest.raises(RankLostError) as told:
            _begin(rank_2, lambda: None)
    assert stranger is None
    assert [str(error) for error in errors] == ["rank 1 has lr 0.2, expected rank 0's, 0.1", ""]
    assert [error.exit_code for error in (*errors, told.value)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("rank", "size", "words"),
    [
        (1, 3, "a second rank 1 of 3 came to rank 0 of 3"),
        (2, 3, None),
        (0, 3, "a second rank 0 of 3 came to rank 0 of 3"),
        (3, 3, "a rank 3 of 3 came to rank 0 of 3"),
        (-1, 3, "a rank -1 of 3 came to rank 0 of 3"),
        (2, 4, "a rank 2 of 4 came to rank 0 of 3"),
        (1, 2, "a rank 1 of 2 came to rank 0 of 3"),
    ],
)
def test_a_number_that_is_taken_or_none(rank, size, words):
    """After rank 1 came another: it fits, or all three end with the same code, and rank 0 says why."""
    facts = Facts({"lr": 0.1}, {}, {})
    world = World("", 0, 3, 3, "127.0.0.1", (0,), "a job")
    with listen(world) as listener, ThreadPoolExecutor() as pool:
        rank_0 = pool.submit(gather, listener, world, facts, 60)
        port = listener.getsockname()[1]
        hello = {"protocol": PROTOCOL, "job": "a job", "rank": 1, "size": 3, "facts": facts.as_json()}
        first = _knock("127.0.0.1", port, hello)  # it is heard when this returns
        other = _knock("127.0.0.1", port, hello | {"rank": rank, "size": size})
        if words is None:
            connections = rank_0.result()
            assert [c.getpeername() for c in connections] == [first.getsockname(), other.getsockname()]
            for connection in (_begin(first, lambda: None), _begin(other, lambda: None), *connections):
                connection.close()
            return
        error = rank_0.exception()
        told = []
        for connection in (first, other):
            with pytest.raises(RankLostError) as end:
                _begin(connection, lambda: None)
            told.append((str(end.value), end.value.exit_code))
    assert type(error) is UsageError
    assert str(error) == words
    assert told == [("", 2)] * 2


def test_a_rank_number_taken_twice_is_one_line(command, tmp_path):
    first, second, _ = by_hand(3, free_port())
    others = [start(command(), **second) for _ in range(2)]
    rank_0 = start(command("--out", tmp_path / "run"), **first)
    assert ended(rank_0) == (2, "", "mnist-cuda: error: a second rank 1 of 3 came to rank 0 of 3\n")
    assert [ended(other) for other in others] == [(2, "", "")] * 2
    assert not (tmp_path / "run").exists()


def test_a_rank_that_never_comes(command, tmp_path):
    first, second = by_hand(2, free_port())
    rank_0 = start(command("--wait", "4", "--out", tmp_path / "run"), **first)
    assert ended(rank_0) == (
        7,
        "",
        "mnist-cuda: waiting for rank 1 of 2, 4 s at most\n"
        "mnist-cuda: error: rank 1 of 2 did not come within 4 s; see --wait\n",
    )
    code, _, err = ended(start(command("--wait", "1"), **second))
    assert code == 7
    assert err.startswith("mnist-cuda: error: rank 1: rank 0 was not at 127.0.0.1, port ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (("--lr", "1e30"), 2, "training diverged: "),
        (("--engine", "reference"), 2, "engine 'reference' cannot train one model on several ranks, expected "),
        (("--batch-size", "84"), 2, "batch size is 84, expected at most the 83 training images"),
    ],
)
def test_an_error_is_one_line(command, tmp_path, flags, code, line):
    found, _, err = ended(start(command("--processes", 2, "--out", tmp_path / "run", *flags)))
    assert found == code
    assert err.startswith(f"mnist-cuda: error: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (("--gpus", "2", "--processes", "2"), 2, "--gpus and --processes both say how many ranks there are; leave one"),
        (("--gpus", "2", "--engine", "cpu"), 2, "--gpus: engine 'cpu' runs on the CPU; --processes starts ranks there"),
        (("--gpus", "2"), 4, "--gpus: no GPU today"),
        (("--gpus", "2", "--engine", "fused"), 4, "--gpus: no GPU today"),
    ],
)
def test_gpus_that_are_not_there(monkeypatch, capsys, flags, code, line):
    monkeypatch.setattr(_native, "cuda_status", lambda: {"device_count": 0, "reason": "no GPU today"})
    assert cli.main(["train", *flags]) == code
    assert capsys.readouterr().err.startswith(f"mnist-cuda: error: {line}")


def test_other_counts_than_the_launchers(monkeypatch, capsys):
    for name, value in by_hand(4, 1)[1].items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "--gpus", "2"]) == 2
    assert "--gpus is 2, and RANK and WORLD_SIZE says 4 ranks; leave it out" in capsys.readouterr().err


def test_a_process_that_cannot_begin_has_said_why(capfd):
    processes = Processes(world_of_processes(2), free_port(), ["train", "--epochs", "0"])
    while not processes.ended():
        time.sleep(0.05)
    with pytest.raises(RankLostError) as error:
        processes.watch()
    processes.close(0)
    assert (str(error.value), error.value.exit_code) == ("", 2)
    assert "argument -n/--epochs: 0 is too small" in capfd.readouterr().err


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_of_one_rank_is_the_end_of_all(failing):
    """Rank 0 says it, and all have its exit code."""
    world = World("", 0, 3, 3, "127.0.0.1", (free_port(),), "a job")
    facts, met = Facts({}, {}, {}), threading.Barrier(3)

    def train(rank):
        session = rank_0(world, facts, 60, []) if rank == 0 else another_rank(replace(world, rank=rank), facts, 60)
        try:
            with session as ranks:
                met.wait()
                if rank == failing:
                    raise OutOfMemoryError("host memory ran out")
                ranks.wait()
        except MnistCudaError as error:
            return str(error), error.exit_code

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(train, range(3)))
    assert results[0] == (f"rank {failing}: host memory ran out" if failing else "host memory ran out", 5)
    assert results[1:] == [("", 5)] * 2


COMPUTING = """
import sys, time
from mnist_cuda.ranks.meeting import Facts
from mnist_cuda.ranks.session import rank_0
from mnist_cuda.ranks.world import World
with rank_0(World("", 0, 2, 2, "127.0.0.1", (int(sys.argv[1]),), "a job"), Facts({}, {}, {}), 60, []) as ranks:
    if sys.argv[2] == "left":
        ranks.leave(0, "the end")
    time.sleep(8)
"""


@pytest.mark.parametrize(("state", "code", "said"), [("computing", 7, "a rank is gone"), ("left", 0, "")])
def test_a_rank_that_computes_ends_too(state, code, said):
    """Unless it has left itself and is, say, still writing to a terminal."""
    port = free_port()
    process = start([sys.executable, "-c", COMPUTING, str(port), state])
    world = World("", 1, 2, 2, "127.0.0.1", (port,), "a job")
    reach(world, Facts({}, {}, {}), 60).close()
    gone = time.monotonic()
    found, _, err = ended(process)
    assert time.monotonic() - gone < LIMIT
    assert (found, err) == (code, f"mnist-cuda: error: {said}\n" if said else "")


def test_a_slip_of_the_hand_starts_nothing(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--processes", "5000"])
    assert "--processes: 5000 is too many, expected at most 1024" in capsys.readouterr().err


def test_flag_and_launcher_disagree(command):
    code, _, err = ended(start(command("--processes", "3"), **by_hand(2, free_port())[0]))
    assert (code, err) == (
        2,
        "mnist-cuda: error: --processes is 3, and RANK and WORLD_SIZE says 2 ranks; leave it out\n",
    )


def test_ranks_whose_weights_differ_are_noticed(data_dir):
    data = dataset.load("idx", data_dir=data_dir)

    def train(communicator):
        engine = Engine("cpu", threads=1)
        engine.init_parameters(communicator.rank)
        engine.join(communicator)
        trainer = Trainer(engine, data, TrainOptions(epochs=1, batch_size=8), ranks=Ranks(communicator))
        trainer.prepare()
        trainer.train_epoch()
        trainer.end_epoch(trainer.evaluate())

    with pytest.raises(RankLostError, match="rank 1 has other weights than rank 0"):
        on_all(_native.in_process_communicators(2), train)
