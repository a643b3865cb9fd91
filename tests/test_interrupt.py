"""Everything long ends within two seconds of a signal, workers included, and nothing takes what is not there."""

import os
import signal
import subprocess
import sys
import time

import pytest
from test_ranks_processes import running
from tiny import ENVIRONMENT, end, prints, program, start

from mnist_cuda import MAX_THREADS, cli, memory
from mnist_cuda.bench import competitors
from mnist_cuda.engine import Engine, engines
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.errors import UsageError
from mnist_cuda.run.checkpoint import save_model
from mnist_cuda.run.results import Model

LIMIT = 2.0


def stopped(process, signum=signal.SIGINT):
    """Send the signal; the exit code, what was on stderr, and that it took no longer than LIMIT."""
    _, err, seconds = end(process, signum)
    assert seconds <= LIMIT
    return process.returncode, err


def test_a_command_in_native_code_is_left(tmp_path):
    save_model(tmp_path / "model.safetensors", Model(init_parameters(0)))  # whose statistics are to be computed
    commands = {
        "profile --engine reference --batch-size 100 --steps 100000": signal.SIGTERM,
        "bench check --engines cpu --batch-size 1000": signal.SIGINT,
        "bench time-to-accuracy --engine reference --budgets 1000x1 --hold-out 9": signal.SIGHUP,
        f"evaluate {tmp_path} --engine reference": signal.SIGTERM,
    }
    started = [(start(*words.split(), MNIST_TINY_IMAGES="9000"), signum) for words, signum in commands.items()]
    time.sleep(4)  # imports are done, and each is in the midst of a call of many seconds
    try:
        for process, signum in started:
            assert process.poll() is None
            assert stopped(process, signum) == (128 + signum, f"mnist-cuda: error: stopped by {signum.name}\n")
    finally:
        for process, _ in started:
            process.kill()


TRAINING = """
import signal
import numpy as np
from tiny import tiny_dataset
from mnist_cuda.engine import Engine
signal.signal(signal.SIGINT, signal.default_int_handler)
data = tiny_dataset()
engine = Engine("reference")
engine.set_dataset(data.train_images, data.train_labels)
print("ready", flush=True)
try:
    engine.train(np.zeros(100_000, np.int32), 5, 0.01)
except KeyboardInterrupt:
    assert not engine.statistics
    print(engine.train(np.zeros(5, np.int32), 5, 0.01)[0].shape)  # and can go on
"""


def test_a_long_call_of_train_obeys_ctrl_c():
    process = program(TRAINING)
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    out, err, seconds = end(process, signal.SIGINT)
    assert seconds <= LIMIT
    assert (process.returncode, out, err) == (0, "(1,)\n", "")


ACCURACY = """
import os, signal, sys
import tiny
from mnist_cuda import cli
from mnist_cuda.bench import accuracy
from mnist_cuda.bench.competitors import Competitor
from mnist_cuda.data import dataset
signal.signal(signal.SIGINT, signal.default_int_handler)
dataset.load = tiny.tiny_dataset
sleeper = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(60)"
command = (sys.executable, "-c", sleeper, sys.argv[1])
row = accuracy.Row(Competitor("sleeper", command, "cpu", ("fp32",)), "fp32")
accuracy.plan = lambda args: [row]
sys.exit(cli.main(["bench", "accuracy", "--jobs", "2", "--batch-size", "5"]))
"""


def test_bench_accuracy_ends_its_workers(tmp_path):
    file = tmp_path / "workers"
    process = program(ACCURACY, file)
    while not file.exists() or len(file.read_text().splitlines()) < 2:
        assert process.poll() is None
        time.sleep(0.1)
    assert stopped(process) == (130, "mnist-cuda: error: stopped by SIGINT\n")
    for pid in map(int, file.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


ORPHAN = """
import subprocess, sys
worker = "import time; from mnist_cuda.bench import worker; worker.end_with_parent(); print(flush=True); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, start_new_session=True)
process.stdout.readline()
print(process.pid, flush=True)
input()
"""


def test_a_worker_ends_with_a_benchmark_that_is_killed():
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    worker = int(process.stdout.readline())
    process.kill()
    process.communicate()
    end = time.monotonic() + LIMIT
    while running(worker):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_fifo_is_no_model_and_no_data(tmp_path, capsys, monkeypatch):
    os.mkfifo(tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / "t10k-images-idx3-ubyte")
    assert cli.main(["evaluate", str(tmp_path)]) == 6
    assert "model.safetensors: not a readable safetensors file: not a regular file" in capsys.readouterr().err
    assert cli.main(["data", "verify", "--data-dir", str(tmp_path)]) == 3
    assert "t10k-images-idx3-ubyte: cannot be read: not a regular file" in capsys.readouterr().out
    cache = tmp_path / "cache" / "mnist"
    cache.mkdir(parents=True)
    os.mkfifo(cache / "arrays.u8")
    os.mkfifo(cache / "train-images-idx3-ubyte.gz")
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(cache.parent))
    assert cli.main(["data", "show", "0", "--dataset", "mnist", "--offline"]) == 3
    assert "train-images-idx3-ubyte.gz cannot be read: not a regular file" in capsys.readouterr().err


def test_a_fifo_is_no_run(tiny, capsys):
    argv = ["train", "--engine", "cpu", "--epochs", "1", "--batch-size", "35", "--quiet", "--out", "runs/run"]
    assert cli.main(argv) == 0
    os.mkfifo("runs/run/checkpoints/step-000000009.safetensors")
    assert cli.main(["train", "--resume", "runs/run", "-n", "2"]) == 0
    assert "step-000000009.safetensors: not a sound checkpoint: not a regular file" in capsys.readouterr().err
    for name in ("metrics.jsonl", "config.json"):
        os.unlink(f"runs/run/{name}")
        os.mkfifo(f"runs/run/{name}")
        for argv in (
            ["runs", "show", "run"],
            ["report", "runs/run", "--text"],
            ["train", "--resume", "runs/run", "-n", "3"],
        ):
            capsys.readouterr()
            assert name in (err := prints(capsys, *argv, code=6))
            assert "not a regular file" in err
        assert cli.main(["runs"]) == 0
    os.mkfifo("bench.json")
    assert cli.main(["report", "bench.json"]) == 6
    assert cli.main(["train", "--config", "runs/run/config.json"]) == 6
    assert cli.main(["evaluate", "runs/run"]) == 0


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        ("train -e reference -b 3000 --out run", "a batch of 3000 on engine "),
        ("train -e cpu -b 3000 --out run", "a batch of 3000 on engine "),
        ("bench check -e cpu -b 3000", "a batch of 3000 on engine "),
        ("profile -e cpu -b 3000", "a batch of 3000 on engine "),
        ("train -e cpu -b 5 -n 10000000", "the learning rate of each of 6000000000 steps"),
        ("bench time-to-accuracy -e cpu --budgets 5x10000000 --hold-out 5", "the order of the images in 10000000 epo"),
        ("bench accuracy -e cpu -b 5 -n 10000000", "the order of the images in 10000000 epochs"),
    ],
)
def test_memory_is_estimated_before_it_is_taken(argv, what, tiny, monkeypatch, capsys):
    """Also what grows with the epochs."""
    monkeypatch.setenv("MNIST_TINY_IMAGES", "3000")
    monkeypatch.setattr(memory, "available", lambda: 400_000_000)
    monkeypatch.setattr(competitors, "has_module", lambda *_: True)
    err = prints(capsys, *argv.split(), code=5)
    assert what in err
    assert "GB, and 0.4 GB are free" in err
    assert os.listdir() == [] or "batch" in what


TOO_LARGE = """
import resource, sys
import numpy as np
import pytest
from tiny import tiny_dataset
from mnist_cuda.engine import Engine
from mnist_cuda.errors import OutOfMemoryError
data, engine = tiny_dataset(), Engine(sys.argv[1])
large = np.zeros((400_000, 28, 28), np.uint8), np.zeros(400_000, np.uint8)  # 0.3 GB
calls = {
    engine.set_dataset: {
        "train": lambda: engine.train(np.zeros(5, np.int32), 5, 0.01),
        "compute_statistics": engine.compute_statistics,
        "profile": lambda: engine.profile(5, 1),
    },
    engine.set_evaluation_set: {"evaluate": engine.evaluate},
}
for give, uses in calls.items():
    give(data.train_images, data.train_labels)
    for use in uses.values():
        use()
    if give == engine.set_dataset:
        engine.compute_statistics()
    sizes = engine.dataset_size, engine.evaluation_size
    with pytest.raises(ValueError):  # what is refused before it is copied leaves the old one
        give(data.train_images, data.train_labels + 9)
    assert (engine.dataset_size, engine.evaluation_size) == sizes
    before, (_, most) = engine.parameters, resource.getrlimit(resource.RLIMIT_AS)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, most))
    with pytest.raises(OutOfMemoryError, match="^host memory ran out"):
        give(*large)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    assert 0 in (engine.dataset_size, engine.evaluation_size)
    for name, use in uses.items():
        with pytest.raises(ValueError, match=f"^{name}: no (data set|images); call "):
            use()
    assert all((before[name] == value).all() for name, value in engine.parameters.items())
    give(data.train_images, data.train_labels)
    for use in uses.values():
        use()
    if give == engine.set_dataset:
        engine.compute_statistics()
"""


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_images_that_cannot_be_copied_leave_none(name):
    """And no half of them: what needs them says so until there are others."""
    process = program(TOO_LARGE, name)
    _, err = process.communicate()
    assert process.returncode == 0, err


def test_free_memory(tmp_path):
    assert memory.available(tmp_path) is None
    group = tmp_path / "sys/fs/cgroup"
    for path, text in {
        tmp_path / "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    5000 kB\n",
        group / "memory.max": "max\n",
        group / "memory.current": "7\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory.available(tmp_path) == 5_120_000
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("900000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert memory.available(tmp_path) == 150_000
    (group / "memory").mkdir()
    (group / "memory/memory.limit_in_bytes").write_text("1000\n")
    (group / "memory/memory.usage_in_bytes").write_text("400\n")
    assert memory.available(tmp_path) == 600
    (group / "memory/memory.usage_in_bytes").write_text("4000\n")
    assert memory.available(tmp_path) == 0


def test_what_an_image_takes_is_not_underestimated():
    """The peak of a fresh process with a batch of 200, less that of one with 50."""
    code = (
        "import re, sys\n"
        "from tiny import tiny_dataset\n"
        "from mnist_cuda.engine import Engine\n"
        "data, engine = tiny_dataset(), Engine(sys.argv[1])\n"
        "engine.probe(data.train_images, data.train_labels)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read()).group(1))\n"
    )
    estimates = {row.name: row.host_bytes_per_image for row in engines() if row.host_bytes_per_image}
    assert set(estimates) == {row.name for row in engines() if row.device == "cpu"}
    for name, estimate in estimates.items():
        peaks = [int(program(code, name, MNIST_TINY_IMAGES=count).communicate()[0]) for count in ("50", "200")]
        assert 0.5 * estimate <= 1024 * (peaks[1] - peaks[0]) / 150 <= estimate


@pytest.mark.parametrize("command", ["train", "evaluate", "bench", "bench check", "profile"])
def test_threads_are_limited(command, capsys):
    assert f"expected at most {MAX_THREADS}" in prints(capsys, *command.split(), "--threads", "99999999", code=2)
    with pytest.raises(UsageError, match=f"expected a whole number from 0 to {MAX_THREADS}"):
        Engine("cpu", threads=MAX_THREADS + 1)
