"""What the tests share: where the real data set and PyTorch are, and the engines that can run here."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from data_server import idx, tiny_info, write
from safetensors.numpy import save_file
from tiny import ENVIRONMENT, ROOT, Stop, ctrl_c, tiny_dataset

from mnist_cuda import _native, cli
from mnist_cuda.bench import record
from mnist_cuda.data import catalogue, dataset, synthetic, unpacked
from mnist_cuda.engine import Engine, engines
from mnist_cuda.errors import DataError
from mnist_cuda.run import training_run
from mnist_cuda.run.checkpoint import save_model
from mnist_cuda.run.results import Model
from mnist_cuda.run.training import Trainer

sys.path.append(str(ROOT / "scripts"))  # for `checks` and `pages`
REQUIRE_GPU = os.environ.get("MNIST_CUDA_REQUIRE_GPU") == "1"
FULL = os.environ.get("MNIST_CUDA_TEST_FULL") == "1"
USERS_CACHE = os.environ.get("MNIST_CUDA_CACHE")
TOO_OLD = "needs compute capability"  # in the reason, of a GPU or of the build's code for it
TOO_FEW = "is a test for several GPUs"  # of a machine
needs_compiler = pytest.mark.skipif(not shutil.which("g++") or not shutil.which("addr2line"), reason="no g++ here")


def engine_params(*, precisions=True, without=()):
    """Every engine of the registry (and each of its precisions) as pytest parameters; CUDA engines are marked gpu."""
    return [
        pytest.param(
            (row.name, precision),
            id=f"{row.name}-{precision}",
            marks=[pytest.mark.gpu] if row.device == "cuda" else [],
        )
        for row in engines()
        if row.name not in without
        for precision in (row.precisions if precisions else row.precisions[:1])
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With MNIST_CUDA_REQUIRE_GPU=1 a skipped GPU test is a failure, unless the GPU is too old or a single one."""
    report = yield
    if REQUIRE_GPU and report.skipped and item.get_closest_marker("gpu") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if TOO_OLD not in reason and TOO_FEW not in reason:
            report.outcome = "failed"
            report.longrepr = f"MNIST_CUDA_REQUIRE_GPU=1, and this was not tested: {reason}"
    return report


@pytest.fixture
def emulator(request, tmp_path_factory):
    """What runs here finds the emulator compiled: once for all tests and all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    own = (folder.parent if hasattr(request.config, "workerinput") else folder) / "emulator"
    kept = Path(os.environ.get("MNIST_CUDA_TEST_EMULATOR") or own) / "mnist-cuda"
    for name in ("emulator", "nvcc"):
        (kept / name).mkdir(parents=True, exist_ok=True)
        link = Path(os.environ["MNIST_CUDA_CACHE"]) / name
        if not link.exists():
            link.symlink_to(kept / name)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """The data that tests unpack are kept for this session only; and nothing is synced, for no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MNIST_CUDA_CACHE", str(tmp_path_factory.mktemp("cache")))
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _quiet_and_clean(request, monkeypatch):
    """Benchmarks write their records whatever the machine and the checkout do, but in the tests of that."""
    if request.path.name != "test_record.py":
        monkeypatch.setattr(record, "require_recordable", lambda *_: None)


@pytest.fixture(scope="session")
def make_engine():
    """make_engine(name, precision, **options): an Engine, or a skip with the reason why it cannot run here."""
    rows = {row.name: row for row in engines()}

    def make(name, precision=None, **options):
        row = rows[name]
        asked = precision or row.precisions[0]
        reason = row.unavailable_precisions.get(asked)
        if reason:
            pytest.skip(f"engine {name} cannot run here in {asked}: {reason}")
        return Engine(name, precision, **options)

    return make


def plain_blocks(markdown):
    """The lines within code blocks that name no language."""
    lines, language = [], None
    for line in markdown.splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language == "":
            lines.append(line)
    return lines


def require_gpus(count):
    """A skip where there are fewer."""
    found = _native.cuda_status()["device_count"]
    if found < count:
        pytest.skip(f"this is a test for several GPUs, expected {count}, found {found}")


@pytest.fixture
def older_gpu(monkeypatch):
    """As if there were a GPU of compute capability 7.5, in the registry's answers; gives the reason in them."""
    reason = "it needs compute capability 8.0 and GPU 0 has 7.5"
    precisions = {"fused": ("fp32", "tf32", "bf16"), "cudnn": ("tf32", "bf16")}
    monkeypatch.setattr(_native, "unavailable", lambda name, _: dict.fromkeys(precisions.get(name, ()), reason))
    return reason


@pytest.fixture(scope="session")
def mnist():
    """The real data set: from MNIST_CUDA_TEST_DATA, ../shared/mnist or the user's cache; a skip without it.

    Commands find it in the tests' cache, too. Where MNIST_CUDA_TEST_DATA is empty only the user's cache counts.
    """
    folder = os.environ.get("MNIST_CUDA_TEST_DATA", ROOT.parent / "shared" / "mnist")
    with pytest.MonkeyPatch.context() as patch:
        if folder and Path(folder).is_dir():
            data = dataset.load("mnist", data_dir=Path(folder))
        else:
            if USERS_CACHE is None:
                patch.delenv("MNIST_CUDA_CACHE")
            else:
                patch.setenv("MNIST_CUDA_CACHE", USERS_CACHE)
            try:
                data = dataset.load("mnist", offline=True)
            except DataError:
                pytest.skip("MNIST is not in the cache; `mnist-cuda data fetch`, or name its MNIST_CUDA_TEST_DATA")
    unpacked.write(catalogue.DATASETS["mnist"], (array.data for array in data.arrays))
    return data


class Peer:
    """PyTorch in an interpreter of its own, through scripts/pytorch_baseline.py."""

    def __init__(self, python, folder):
        self.command = [str(python), str(ROOT / "scripts" / "pytorch_baseline.py")]
        self.folder = folder

    def files(self, images, labels, weights, order):
        """Write what a run needs, in a folder of its own; returns the setup's fields that name the files."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        paths = {"npz": "data.npz", "weights": "weights.safetensors", "order": "order.npy"}
        paths = {key: str(folder / name) for key, name in paths.items()}
        np.savez(paths["npz"], images=images, labels=labels)
        save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, paths["weights"])
        np.save(paths["order"], np.asarray(order, np.int32))
        return paths

    def probes(self, images, labels, weights, *changes):
        """Loss, activations, logits and gradients of one batch, once for each change of a float64 set-up."""
        paths = self.files(images, labels, weights, np.arange(len(labels)))
        setup = {"cmd": "setup", "batch_size": len(labels), "precision": "fp64", "threads": 1, **paths}
        outs = [f"{paths['npz']}.{k}.npz" for k in range(len(changes))]
        commands = [
            ({**setup, **change}, {"cmd": "dump", "file": out}) for change, out in zip(changes, outs, strict=True)
        ]
        answers = self.serve(*(command for pair in commands for command in pair))
        assert all(answer.get("ok") for answer in answers), answers
        return [dict(np.load(out)) for out in outs]

    def run(self, *arguments):
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=300)

    def serve(self, *commands):
        """The answers to a list of protocol commands."""
        lines = "".join(json.dumps(command) + "\n" for command in commands)
        result = subprocess.run([*self.command, "--serve"], input=lines, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]


def peer_python():
    """The interpreter of PyTorch: what MNIST_CUDA_PEER_PYTHON says, or that of .venv-peers."""
    return Path(os.environ.get("MNIST_CUDA_PEER_PYTHON") or ROOT / ".venv-peers" / "bin" / "python")


@pytest.fixture(scope="session")
def torch_folders():
    """Folders that make this Python import PyTorch, behind all others; none if it has it. A skip where nothing can."""
    if find_spec("torch"):
        return []
    peers = peer_python()
    code = "import sys, sysconfig, torch; print(*sys.version_info[:2]); print(sysconfig.get_path('platlib'))"
    answer = subprocess.run([peers, "-c", code], capture_output=True, text=True) if peers.exists() else None
    if not answer or answer.returncode:
        pytest.skip(f"no PyTorch, neither here nor by {peers}")
    version, folder = answer.stdout.splitlines()
    if version.split() != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"PyTorch is at {peers}, which is Python {version}, and this is another")
    return [folder]


@pytest.fixture
def run_with_torch(torch_folders):
    """run_with_torch(file, device): pytest on a file of this folder in a process that has PyTorch, cpu or cuda."""
    code = "import sys; sys.path += sys.argv[2:]; import pytest; sys.exit(pytest.main(['-q', sys.argv[1]]))"

    def run(file, device):
        command = [sys.executable, "-c", code, ROOT / "tests" / file, *torch_folders]
        environment = os.environ | {"TORCH_TEST_DEVICE": device}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
        assert device == "cpu" or "skipped" not in result.stdout, result.stdout

    return run


@pytest.fixture(scope="session")
def peer(tmp_path_factory):
    """PyTorch by MNIST_CUDA_PEER_PYTHON, or in .venv-peers; a skip without it."""
    python = peer_python()
    if not python.exists():
        pytest.skip(f"no PyTorch: {python} does not exist; run scripts/peers or set MNIST_CUDA_PEER_PYTHON")
    return Peer(python, tmp_path_factory.mktemp("peer"))


@pytest.fixture(scope="session")
def trained(mnist, tmp_path_factory):
    """The folder of a model that saw 12,000 real digits twice."""
    engine = Engine("cpu")
    engine.init_parameters(0)
    engine.set_dataset(mnist.train_images[:12_000], mnist.train_labels[:12_000])
    for epoch in range(2):
        engine.train(np.random.default_rng(epoch).permutation(12_000), 64, 0.05)  # the last batch is smaller
    engine.compute_statistics()
    folder = tmp_path_factory.mktemp("trained")
    model = Model(engine.parameters, engine.statistics, {"dataset": "mnist"})
    save_model(folder / "model.safetensors", model, steps=376)
    return folder


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Commands train on the tiny data set, in a folder of their own, and so do the processes that they start."""
    monkeypatch.setattr(dataset, "load", tiny_dataset)
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stopped_after(step, *argv):
    """`mnist-cuda train *argv` in this process, which gets a Ctrl-C once so many steps are made."""
    good, made = Trainer._run, []

    def one_step(trainer, chunk):
        good(trainer, 1)
        made.append(1)
        if len(made) == step:
            ctrl_c()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_run", one_step)
        patch.setattr(training_run, "StopRequest", Stop)
        assert cli.main(["train", *map(str, argv)]) == 128 + signal.SIGINT


@pytest.fixture
def heard():
    """Ctrl-C counts, also where the shell that started the tests in the background has set it to be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache; gives its folder of mnist, which is the small data set of data_server.py, at no mirror here.

    Synthetic digits are few, too.
    """
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / "a cache"))
    monkeypatch.delenv("MNIST_CUDA_MIRROR", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setitem(catalogue.DATASETS, "mnist", tiny_info("http://127.0.0.1:9/"))
    monkeypatch.setattr(synthetic, "COUNTS", {"train": 20, "test": 10})
    return tmp_path / "a cache" / "mnist"


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """The tiny data set with 83 training images, as files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MNIST_TINY_IMAGES", "83")
        tiny = tiny_dataset()
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = {f"{name}-ubyte": idx(array) for name, array in zip(names, tiny.arrays, strict=True)}
    return write(tmp_path_factory.mktemp("tiny"), files)
