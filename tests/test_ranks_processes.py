"""Ranks that are processes: the bits of threads, how they are launched, and that one which ends ends them all."""

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
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import peer_python, require_gpus
from test_ranks import assert_same_bits, on_all
from tiny import ENVIRONMENT, metrics, prints, tiny_dataset

from mnist_cuda import _native, cli
from mnist_cuda.data import dataset
from mnist_cuda.engine import Engine
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.errors import MnistCudaError, OutOfMemoryError, RankLostError
from mnist_cuda.ranks import session
from mnist_cuda.ranks.group import Ranks
from mnist_cuda.ranks.processes import connected
from mnist_cuda.ranks.world import World
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.resume import checkpoints, load_state
from mnist_cuda.run.training import Trainer

LIMIT = 10.0  # seconds that the end of one rank may take to be the end of all
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")
CLEAN = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(VARIABLES)}
MORE = ("--epochs", "100000")  # no test waits for its end


@pytest.fixture
def command(data_dir):
    """command(*flags): a training by engine cpu; later flags win."""
    recipe = ["train", "--engine", "cpu", "--dataset", "idx", "--data-dir", data_dir]
    recipe += ["--batch-size", "8", "--epochs", "2", "--lr", "0.02", "--seed", "3"]
    return lambda *flags: [sys.executable, "-m", "mnist_cuda", *map(str, [*recipe, *flags])]


STARTED = []


def heard():
    """A background job of a shell, and what is under nohup, ignores these."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(command, descriptors=(), **environment):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=CLEAN | environment, preexec_fn=heard, pass_fds=descriptors, **pipes)
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


@pytest.fixture
def torchrun(torch_folders):
    """torchrun(command, ...): these commands as ranks by hand, one as two ranks of torchrun, which import PyTorch."""
    code = f"import sys; sys.path += {torch_folders}; from mnist_cuda.__main__ import main; sys.exit(main())"
    python = peer_python() if torch_folders else sys.executable
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]

    def run(*commands):
        commands = [[sys.executable, "-c", code, *command[3:]] for command in commands]
        if len(commands) == 1:
            return start([*launch, "--no-python", *commands[0]])
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        shared = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [start(command, **shared, RANK=str(rank)) for rank, command in enumerate(commands)]

    return run


@pytest.fixture
def mpirun():
    """mpirun(command, ...): a rank for each of these commands."""
    pytest.importorskip("mpi4py", reason="no mpi4py here: the extra `mpi` has it")
    program = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not program:
        pytest.skip("no mpirun here; the package openmpi, or Debian's openmpi-bin, has it")

    def run(*commands):
        launch = [program, "--allow-run-as-root", "--oversubscribe"]
        for command in commands:
            launch += ["-np", "1", *command, ":"]
        return start(launch[:-1], OMPI_MCA_plm="isolated")  # on this machine alone, which may have no ssh

    return run


def others_of(process):
    """The processes that rank 0 started, by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {}
    for pid in map(int, children):
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        ranks[int(next(v for v in variables if v.startswith("MNIST_CUDA_RANK=")).split()[1])] = pid
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
def threads(data_dir, make_engine):
    """threads(ranks, engine, precision): `command`'s training, each rank a thread of this process; their models."""
    options = TrainOptions(epochs=2, batch_size=8, lr=0.02, seed=3)
    data = dataset.load("idx", data_dir=data_dir)

    def train(communicator, name, precision):
        engine = Engine(name, precision, threads=int(name == "cpu"))
        engine.init_parameters(options.seed)
        engine.join(communicator)
        trainer = Trainer(engine, data, options, ranks=Ranks(communicator))
        trainer.prepare()
        while not trainer.finished:
            trainer.train_epoch()
            model = trainer.end_epoch(trainer.evaluate())
        return {**model.parameters, **model.statistics, "losses": [row["test_loss"] for row in trainer.epochs]}

    def run(ranks, name="cpu", precision=None):
        make_engine(name, precision)  # or the reason why not
        return on_all(_native.in_process_communicators(ranks), lambda own: train(own, name, precision))

    return run


def assert_trained_as(result, folder):
    losses = [row["test_loss"] for row in metrics(folder)]
    assert_same_bits({**model_of(folder), "losses": losses}, result)


# ---- launched --------------------------------------------------------------------------------------------------------


def test_processes_are_shares_in_one_process(command, threads, tmp_path):
    code, out, err = ended(start(command("--processes", 3, "--out", tmp_path / "run")))
    assert (code, err) == (0, "")
    assert "ranks   3, started by --processes, this one with " in out
    results = threads(3)
    for other in results[1:]:
        assert_same_bits(results[0], other)
    assert_trained_as(results[0], tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["ranks"] == config["options"]["processes"] == 3


def test_patience_of_rank_0_ends_all(command, tmp_path):
    folder = tmp_path / "run"
    flags = ("--processes", 3, "--out", folder, "--epochs", 50, "--lr", 0, "--validation", 9, "--patience", 2)
    code, out, err = ended(start(command(*flags, "--json")))
    assert code == 0, err
    assert "3 epochs on idx; no better validation accuracy for 2 epochs" in err
    report = json.loads(out)
    assert (report["epochs_done"], report["stopped"]) == (3, "no better validation accuracy for 2 epochs")
    assert json.loads((folder / "config.json").read_text())["ended"] == "stopped"
    again = [sys.executable, "-m", "mnist_cuda", "train", "--resume", str(folder)]  # and no rank waits for more epochs
    code, out, err = ended(start(again))
    assert (code, err) == (0, "")
    assert "(3 of 50 epochs)" in out
    assert "ranks   3, started by --processes" in out


def test_nothing_listens(command, tmp_path):
    """Neither rank 0 nor another one has a socket that a stranger could reach."""
    process = start(command("--processes", 2, "--out", tmp_path / "run", *MORE))
    until_epoch(process)
    others = others_of(process)
    ours = [os.readlink(file) for pid in (process.pid, others[1]) for file in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[len("socket:[") : -1] for link in ours if link.startswith("socket:")}
    assert len(inodes) == 2
    rows = {name: Path("/proc/net", name).read_text().split("\n") for name in ("tcp", "tcp6", "udp", "udp6", "unix")}
    reached = [row.split()[9] for name in rows for row in rows[name][1:-1] if name != "unix"]
    reached += [row.split()[6] for row in rows["unix"][1:-1] if len(row.split()) > 7]  # those that have a name
    assert not inodes & {*reached}


def test_torchrun(command, torchrun, threads, tmp_path):
    code, out, err = ended(torchrun(command("--out", tmp_path / "run")))
    assert code == 0, err
    assert out.count("ranks   2, started by torchrun, this one with ") == out.count("epoch 2/2") == 1
    assert_trained_as(threads(2)[0], tmp_path / "run")


def test_mpirun(command, mpirun, threads, tmp_path):
    code, out, err = ended(mpirun(*3 * [command("--out", tmp_path / "run")]))
    assert code == 0, err
    assert out.count("ranks   3, started by mpirun, this one with ") == out.count("correct after 2 epochs") == 1
    assert_trained_as(threads(3)[0], tmp_path / "run")


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
        assert (code, err) == (0, "")
        assert f"ranks   2, started by --gpus, this one with GPU 0\n        sums by {words}" in out
        assert_same_bits(model_of(tmp_path / "peers"), model_of(tmp_path / transport))


@pytest.mark.gpu
@pytest.mark.parametrize("launcher", ["processes", "mpirun", "torchrun"])
def test_ranks_that_share_a_gpu(request, monkeypatch, command, threads, tmp_path, launcher):
    """They see a single one, add through the host, and have the bits of threads that do."""
    expected = threads(2, "fused", "bf16")
    monkeypatch.setitem(CLEAN, "CUDA_VISIBLE_DEVICES", "0")
    row = ("--engine", "fused", "--precision", "bf16", "--out", tmp_path / "run")
    if launcher == "processes":
        process = start(command(*row, "--processes", 2))
    else:
        run = request.getfixturevalue(launcher)
        process = run(command(*row)) if launcher == "torchrun" else run(*2 * [command(*row)])
    code, out, err = ended(process)
    assert code == 0, err
    assert "sums by host memory, which is slow" in out
    assert_trained_as(expected[0], tmp_path / "run")


@pytest.mark.gpu
def test_torchrun_with_gpus(command, torchrun, tmp_path):
    require_gpus(2)
    flags = ("--engine", "fused", "--precision", "bf16")
    code, out, err = ended(torchrun(command(*flags, "--out", tmp_path / "run")))
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
    assert err.startswith("mnist-cuda: error: rank 1 was killed by SIGKILL")
    assert err.count("\n") == 1
    done = load_state(checkpoints(tmp_path / "run")[0]).state.epoch
    flags = ("--resume", tmp_path / "run", "--epochs", done + 1)
    code, out, err = ended(start([sys.executable, "-m", "mnist_cuda", "train", *map(str, flags)]))
    assert (code, err) == (0, "")
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


def test_a_rank_of_torchs_is_killed(command, torchrun, tmp_path):
    """Nobody ends the others, as torchrun would; rank 0 says it."""
    folder = tmp_path / "run"
    process, *others = torchrun(*3 * [command("--out", folder, *MORE)])
    until_epoch(process)
    others[0].kill()
    code, _, err = ended(process, LIMIT)
    resume = f"`mnist-cuda train --resume {folder}` goes on from the last checkpoint"
    assert (code, err) == (7, f"mnist-cuda: error: another rank is gone; {resume}\n")
    assert ended(others[1], LIMIT) == (7, "", "")
    others[0].communicate()


def test_a_rank_of_torchs_that_never_comes(command, torchrun, tmp_path):
    process, other = torchrun(command("--wait", 2, "--out", tmp_path / "run"), [*"  ", "", "--version"])
    code, _, err = ended(process)
    assert code == 7
    assert err.startswith("mnist-cuda: error: the ranks of torchrun did not meet within 2 s: ")
    assert err.count("\n") == 1
    assert ended(other)[0] == 0
    assert not (tmp_path / "run").exists()


def test_an_error_of_mpis_rank_ends_all(command, mpirun, tmp_path):
    code, _, err = ended(mpirun(command("--out", tmp_path / "run"), command("--data-dir", tmp_path / "nowhere")))
    assert code == 3
    assert f"mnist-cuda: error: rank 1: {tmp_path / 'nowhere'}: there is no such file or folder" in err


def test_mpis_rank_with_other_options_is_refused(command, mpirun, tmp_path):
    code, _, err = ended(mpirun(command("--out", tmp_path / "run"), command("--lr", "0.05")))
    assert code == 2
    assert err.count("mnist-cuda: error: ") == 1
    assert "mnist-cuda: error: rank 1 has lr 0.05, expected rank 0's, 0.02\n" in err
    assert not (tmp_path / "run").exists()


def test_an_mpi_that_is_not_the_launchers(command):
    pytest.importorskip("mpi4py", reason="no mpi4py here: the extra `mpi` has it")
    code, _, err = ended(start(command(), PMI_SIZE="2"))
    assert code == 4
    assert err.startswith("mnist-cuda: error: mpirun started 2 ranks, and mpi4py finds 1 by ")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_all_and_goes_on_to_the_same_bits(command, tmp_path, signum):
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
    """Rank 0 saves."""
    process = start(command("--processes", 2, "--out", tmp_path / "run", *MORE))
    until_epoch(process)
    os.kill(others_of(process)[1], signal.SIGTERM)
    code, out, err = ended(process)
    assert (code, err) == (143, "")
    assert "stopped by SIGTERM after " in out


def test_a_stop_of_mpirun(command, mpirun, tmp_path):
    """It sends all ranks SIGTERM, which finish the same step."""
    process = mpirun(*2 * [command("--save-every", "5steps", "--out", tmp_path / "run", *MORE)])
    until_epoch(process)
    process.terminate()
    ended(process)
    load_state(checkpoints(tmp_path / "run")[0])


@pytest.mark.parametrize("first", [0, 3])
def test_a_stop_where_the_state_is_complete(first, monkeypatch):
    """As if the engine were `fused` in fp32, with --save-every 2steps: the others make no step more than rank 0."""
    monkeypatch.setattr(Engine, "resumable", property(lambda engine: engine.trainer.steps >= first))
    data = tiny_dataset()

    def work(communicator):
        engine = Engine("cpu", threads=1)
        engine.join(communicator)
        engine.set_parameters(init_parameters(0))
        trainer = Trainer(engine, data, TrainOptions(epochs=1, batch_size=5), ranks=Ranks(communicator))
        trainer.prepare()
        engine.trainer = trainer
        of_rank_0 = {"stop": lambda: int(trainer.steps >= 2), "stride": 2}
        trainer.train_epoch(**(of_rank_0 if communicator.rank == 0 else {}))
        communicator.leave(0, "the end")
        return trainer.steps, trainer.state is not None

    assert on_all(_native.in_process_communicators(2), work) == [(max(2, first), True)] * 2


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
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert "--gpus is 2, and mpirun says 4 ranks; leave it out" in prints(capsys, "train", "--gpus", "2", code=2)


def others_in_threads(sockets):
    """In the place of Processes: the other ranks are threads here."""
    return SimpleNamespace(sockets=sockets, ended=lambda: 0, lost=RankLostError, close=lambda seconds: None)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_of_one_rank_is_the_end_of_all(monkeypatch, failing):
    """Rank 0 says it, and all have its exit code."""
    sockets, met = connected(3), threading.Barrier(3)
    monkeypatch.setattr(session, "Processes", lambda world, command: others_in_threads(sockets[0]))

    def train(rank):
        world = World("", rank, 3, rank, 3)
        try:
            with session.another_rank(world, sockets[rank]) if rank else session.rank_0(world, []) as ranks:
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
import socket, sys, time
from test_ranks_processes import others_in_threads
from mnist_cuda.ranks import session
from mnist_cuda.ranks.world import World
sockets = [socket.socket(fileno=int(sys.argv[1]))]
session.Processes = lambda world, command: others_in_threads(sockets)
with session.rank_0(World("", 0, 2, 0, 2), []) as ranks:
    print("computing", flush=True)
    if sys.argv[2] == "left":
        ranks.leave(0, "the end")
    time.sleep(8)
"""


@pytest.mark.parametrize(("state", "code", "said"), [("computing", 7, "a rank is gone"), ("left", 0, "")])
def test_a_rank_that_computes_ends_too(state, code, said):
    """Unless it has left itself and is, say, still writing to a terminal."""
    (own,), (other,) = connected(2)
    command = [sys.executable, "-c", COMPUTING, str(own.fileno()), state]
    process = start(command, PYTHONPATH=str(Path(__file__).parent), descriptors=[own.fileno()])
    own.close()
    assert process.stdout.readline() == "computing\n"
    other.close()
    gone = time.monotonic()
    found, _, err = ended(process)
    assert time.monotonic() - gone < LIMIT
    assert (found, err) == (code, f"mnist-cuda: error: {said}\n" if said else "")


def test_a_slip_of_the_hand_starts_nothing(capsys):
    err = prints(capsys, "train", "--processes", "5000", code=2)
    assert "--processes: 5000 is too large, expected at most 1024" in err


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
