"""What the baselines share: options, data files, the order of the samples, the clock, the protocol. Needs only numpy.

A baseline is the network and recipe of mnist-cuda in another framework, as fast as that framework makes it, to be
compared with. It runs in an environment of its own (in a checkout, `scripts/peers` makes one), as a plain file beside
this one, and shares no code with the project.

An iteration is, for everyone: batch load, forward, backward, weight update and zero grad. Times are per iteration,
from blocks of at least 50 ms between two synchronisations, after a warm-up; set-up (compilation, capture, tuning)
is timed apart.

Started by hand it takes the GPU if there is one, MNIST from the cache of mnist-cuda, and says at the end how its time
compares with that of mnist-cuda's own engine, in a process of the interpreter that has it.

With `--serve`, a program drives the baseline by JSON lines on stdin and reads one JSON line for each:
    {"cmd": "setup", "batch_size": 64, "npz": "digits.npz", ...any field of Setup}
        -> {"ok": true, "setup_seconds": 1.2, "versions": {...}, "precision_pinned": "..."}
    {"cmd": "run", "steps": 100} -> {"seconds": 0.04, "losses": [first, last]}
    {"cmd": "restart"} -> {"ok": true}   (the weights and the batch that the setup began with)
    {"cmd": "begin", "weights": file, "order": file, "rates": file} -> {"ok": true}   (another training: from these
        weights, in this order, at these rates, each as many as in the setup)
    {"cmd": "evaluate"} -> {"test_accuracy": 0.99, "parameters_sha256": "..."}
    {"cmd": "dump", "file": "probe.npz"} -> {"ok": true}   (what --dump writes)
    {"cmd": "quit"}
    anything that fails -> {"error": "one line"}
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import gzip
import hashlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SIDE = 28
CLASSES = 10
PIXEL_MEAN, PIXEL_STD = 0.1307, 0.3081
EPSILON = 1e-5  # of batch norm
SHAPES = {
    "conv1.weight": (32, 1, 3, 3),
    "conv1.bias": (32,),
    "bn1.weight": (32,),
    "bn1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3),
    "conv2.bias": (64,),
    "bn2.weight": (64,),
    "bn2.bias": (64,),
    "fc1.weight": (128, 3136),
    "fc1.bias": (128,),
    "fc2.weight": (10, 128),
    "fc2.bias": (10,),
}
FILES = (
    ("train-images-idx3-ubyte", 0x803),
    ("train-labels-idx1-ubyte", 0x801),
    ("t10k-images-idx3-ubyte", 0x803),
    ("t10k-labels-idx1-ubyte", 0x801),
)
UNPACKED = "arrays.u8"  # of them all, in mnist-cuda's cache
PRECISIONS = ("fp32", "tf32", "bf16", "fp64")
BLOCK_SECONDS = 0.05
WARM_UP_SECONDS = 0.5
MINIMUM_BLOCKS = 10
EVALUATION_BATCH = 1000
TRACED_STEPS = 10
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))  # torchrun's variables


def or_peers(*words: str) -> str:
    """What else brings a framework: in a checkout, scripts/peers."""
    there = (Path(__file__).parents[2] / "scripts" / "peers").is_file()
    return f", or run {' '.join(['scripts/peers', *words])}" if there else ""


class BaselineError(Exception):
    """Ends the program with one line and an exit code: 2 usage, 3 data, 4 environment or GPU, 6 weights."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass
class Setup:
    """All that decides what a baseline computes and how; each field is a flag and a key of the protocol's setup."""

    batch_size: int = 64
    lr: float = 0.05
    precision: str = "fp32"
    mode: str = ""  # the baseline's first
    channels_last: bool = False
    device: str = "cpu"
    data: str = "device"  # `host` copies each batch to the device as it is needed
    data_dir: str | None = None
    npz: str | None = None
    weights: str | None = None
    order: str | None = None
    rates: str | None = None  # npy of learning rates, one for each step of the order, instead of lr
    seed: int = 0
    threads: int = 0  # 0: the framework's choice
    models: int = 1  # that a step trains, of a script for several
    options: tuple[str, ...] = ()  # words that the baseline's own text explains
    tuning_lock: str | None = None  # a file to lock while kernels are timed to choose among them

    def check(self, modes: tuple[str, ...], options: tuple[str, ...] = ()) -> None:
        """Raise BaselineError for a value outside its range; fill in the default mode."""
        self.mode = self.mode or modes[0]
        if unknown := [word for word in self.options if word not in options]:
            raise BaselineError(f"option '{unknown[0]}' is unknown, expected some of {', '.join(options) or 'none'}")
        choices = {
            "precision": PRECISIONS,
            "mode": modes,
            "device": ("cpu", "cuda"),
            "data": ("device", "host"),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                raise BaselineError(f"{field} is '{getattr(self, field)}', expected one of {', '.join(allowed)}")
        for name, value in (("batch size", self.batch_size), ("models", self.models)):
            if value < 1:
                raise BaselineError(f"{name} is {value}, expected at least 1")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise BaselineError(f"learning rate is {self.lr}, expected a finite number >= 0")
        if (self.data_dir is None) == (self.npz is None):
            raise BaselineError("name the data by exactly one of data_dir and npz")


@dataclasses.dataclass
class Data:
    """images (N,28,28) uint8 with labels (N,) uint8 to train on, and as many to test on as there are."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


now = time.perf_counter


def require_shares(setup: Setup) -> None:
    """Refuse what several ranks cannot do together: each has an equal share of every batch, and all images."""
    if setup.data == "host":
        raise BaselineError("several ranks: expected data on the device")
    if setup.batch_size % RANKS:
        raise BaselineError(f"batch size {setup.batch_size} cannot be cut into {RANKS} equal shares")


_held: list[Any] = []  # the lock's file, within `alone`


@contextlib.contextmanager
def alone(setup: Setup) -> Iterator[None]:
    """Wait until no other process holds setup.tuning_lock, and hold it: kernels are not timed beside others.

    Of several ranks the first holds it for all, as they wait for each other meanwhile.
    """
    if setup.tuning_lock is None or _held or RANK > 0:
        yield
        return
    with open(setup.tuning_lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _held.append(file)
        try:
            yield
        finally:
            _held.pop()


class Runs(Protocol):
    """What `bench` can time."""

    def run(self, steps: int) -> tuple[float, list[float]]:
        """Run training steps; seconds between two synchronisations, and the first and last step's loss."""


class Trainer(Runs, Protocol):
    """What a baseline's script implements; `Served`, `bench` and `train` below drive it."""

    FRAMEWORK: str
    OPTIONS: tuple[str, ...]
    versions: dict[str, str]
    precision_pinned: str

    @staticmethod
    def finds_gpu() -> bool:
        """Whether --device cuda can work here."""

    def set_order(self, order: np.ndarray) -> None:
        """Train on the rows of order (steps, batch) from now on, starting again after the last."""

    def set_rates(self, rates: np.ndarray) -> None:
        """Take these rates (steps,) with the rows of the order from now on; the set-up had some, too."""

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        """Begin with these weights, now and after every restart."""

    def restart(self) -> None:
        """Take the weights and the first batch again that training began with."""

    def set_images(self, images: np.ndarray) -> None:
        """Train on these images instead, as many and in the same place; on the device when it returns."""

    def set_labels(self, labels: np.ndarray) -> None:
        """And on these labels."""

    def classes(self, images: np.ndarray, count: int | None = None) -> np.ndarray:
        """The predicted classes, with population statistics of the first `count` training images, by default of all."""

    def parameters(self) -> dict[str, np.ndarray]:
        """The weights by their names in SHAPES, in these shapes."""

    def probe(self) -> dict[str, np.ndarray]:
        """Loss, activations, logits and gradients of the first batch, without an update."""

    def trace(self, steps: int) -> list[dict[str, Any]]:
        """The framework's own trace events of single steps, each within an event named `step 1`, `step 2`, ..."""


# ---- mnist-cuda's own engine ---------------------------------------------------------------------------------------

HERE = Path(__file__).resolve().parent


def interpreter_of_mnist_cuda() -> str:
    """The Python that has it: a checkout's .venv or an installation around this file, our own, or that on the PATH."""
    command = shutil.which("mnist-cuda")
    folders = [HERE.parents[1] / ".venv" / "bin", *(folder / "bin" for folder in HERE.parents[4:5])]
    folders += [Path(command).parent] if command else []
    for python in (*(str(folder / "python") for folder in folders), sys.executable):
        with contextlib.suppress(OSError):
            code = "import mnist_cuda._native"
            if subprocess.run([python, "-c", code], cwd="/", capture_output=True, check=False).returncode == 0:
                return python
    script = HERE.parents[1] / "scripts" / "train"
    remedy = f"{script} sets one up" if script.exists() else "activate an environment that has it"
    raise BaselineError(f"no Python here has it built; {remedy}", 4)


class OwnEngine:
    """An engine of mnist-cuda in a process that speaks the protocol above; `log` is that process's stderr."""

    def __init__(self, process: subprocess.Popen[str], log: Any) -> None:
        self._process, self._log = process, log

    def ask(self, **command: Any) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(command), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = ([text.strip() for text in self._log if text.strip()] or ["without a word"])[-1]
            raise BaselineError(f"its process ended with {self._process.wait()}: {last}", 4)
        answer = json.loads(line)
        if "error" in answer:
            raise BaselineError(re.sub("^[A-Za-z]*Error: ", "", answer["error"]), 4)
        return answer

    def run(self, steps: int) -> tuple[float, list[float]]:
        answer = self.ask(cmd="run", steps=steps)
        return answer["seconds"], answer["losses"]


def compare(us: float, engine: str, setup: Setup, data: Data, iterations: int) -> str:
    """The sentence that compares `us` per iteration with the engine's, or that says why there is no comparison."""
    try:
        if RANKS > 1:
            raise BaselineError(f"this is one of {RANKS} ranks")
        python = interpreter_of_mnist_cuda()
        command = [python, "-m", "mnist_cuda.bench.worker", engine]
        with (
            tempfile.TemporaryDirectory() as folder,
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(
                command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as p,
        ):
            try:
                own = OwnEngine(p, log)
                fields = {name: getattr(setup, name) for name in ("batch_size", "lr", "precision", "threads", "data")}
                fields |= {"npz": f"{folder}/data.npz", "order": f"{folder}/order.npy"}
                np.savez(fields["npz"], images=data.images, labels=data.labels)
                np.save(fields["order"], order_of(setup, len(data.labels), 0).ravel())
                name = own.ask(cmd="setup", **fields)["engine"]
                own_us = bench(own, iterations)["median_us"]
            finally:
                p.kill()
                with contextlib.suppress(BrokenPipeError):  # of what it has not read
                    p.stdin.close()
        return (
            f"{us / own_us:.2f} times as long as `{name}` of mnist-cuda, which takes {own_us:.1f} us an iteration here "
            f"({setup.precision}, batch {setup.batch_size}, by {python})"
        )
    except (BaselineError, OSError, ValueError) as error:
        return f"not compared with mnist-cuda: {one_line(error)}"


# ---- files -----------------------------------------------------------------------------------------------------------


def read_files(folder: Path) -> list[np.ndarray]:
    """The arrays of the four idx files in a folder, by whatever name mnist_cuda knows them."""
    root = str(Path(__file__).resolve().parents[2])
    sys.path.append(root)  # for these imports alone: what else lies there is of another interpreter
    try:
        from mnist_cuda.data.file_roles import ROLES, idx_files
        from mnist_cuda.data.places import place_of
        from mnist_cuda.errors import DataError
    finally:
        sys.path.remove(root)
    try:
        place = place_of(folder)
        _, files = idx_files(place)
        if missing := [role for role in ROLES if role not in files]:
            raise DataError(f"{folder}: no file of {missing[0].replace('_', ' ')}; {place.holding}")
        return [read_idx(files[role].shown, files[role].read(), 0x803 if "images" in role else 0x801) for role in ROLES]
    except DataError as error:
        raise BaselineError(str(error), 3) from error


def read_idx(name: str, raw: bytes, magic: int) -> np.ndarray:
    """The array of an idx file of bytes with the given magic number, which may be gzip."""
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    dimensions = magic & 0xFF
    header = 4 + 4 * dimensions
    found, *shape = struct.unpack(f">{1 + dimensions}I", raw[:header]) if len(raw) >= header else (0,)
    if found != magic or len(raw) != header + math.prod(shape):
        raise BaselineError(f"{name}: not an idx file with magic number {magic}, or cut short", 3)
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def cached_mnist() -> Path:
    """The folder where mnist-cuda keeps MNIST. Raises BaselineError unless it is there."""
    user = os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache"
    folder = Path(os.environ.get("MNIST_CUDA_CACHE") or Path(user, "mnist-cuda")).expanduser() / "mnist"
    if not (folder / UNPACKED).exists() and not (folder / f"{FILES[-1][0]}.gz").exists():
        raise BaselineError(
            f"MNIST is not in the cache, {folder}; `mnist-cuda data fetch` puts it there, or name "
            "the folder of its four files by --data-dir",
            3,
        )
    return folder


def unpacked_mnist(path: Path) -> Data:
    """The copy that mnist-cuda keeps in its cache: the four arrays, one after the other, a byte each element."""
    counts = (60_000, 10_000)
    raw = np.fromfile(path, np.uint8)
    if len(raw) != sum(counts) * (SIDE * SIDE + 1):
        raise BaselineError(f"{path}: {len(raw)} bytes, expected those of 70,000 images and labels; remove the file", 3)
    parts = np.split(raw, np.cumsum([n for count in counts for n in (count * SIDE * SIDE, count)])[:-1])
    return Data(parts[0].reshape(-1, SIDE, SIDE), parts[1], parts[2].reshape(-1, SIDE, SIDE), parts[3])


def load_data(setup: Setup) -> Data:
    """Read the idx files of setup.data_dir, or the arrays images, labels[, test_images, test_labels] of setup.npz."""
    folder = None if setup.data_dir is None else Path(setup.data_dir)
    if folder and (folder / UNPACKED).exists() and not list(folder.glob(f"{FILES[0][0]}*")):
        data = unpacked_mnist(folder / UNPACKED)
    elif folder:
        data = Data(*read_files(folder))
    else:
        found = {"test_images": np.empty((0, SIDE, SIDE), np.uint8), "test_labels": np.empty(0, np.uint8)}
        with np.load(setup.npz) as arrays:
            found |= arrays
        names = [f.name for f in dataclasses.fields(Data)]
        if missing := [name for name in names if name not in found]:
            raise BaselineError(f"{setup.npz}: array {missing[0]} is missing", 3)
        data = Data(*(found[name] for name in names))
    for images, labels in ((data.images, data.labels), (data.test_images, data.test_labels)):
        if images.shape != (len(labels), SIDE, SIDE) or images.dtype != np.uint8 or (labels >= CLASSES).any():
            raise BaselineError(f"data: images {images.shape} {images.dtype} do not fit {len(labels)} labels 0 to 9", 3)
    return data


def read_weights(path: str) -> dict[str, np.ndarray]:
    """The 12 parameters in a safetensors file: 8 bytes length of the JSON header, the header, the values."""
    raw = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    weights = {}
    for name, shape in SHAPES.items():
        if name not in header:
            raise BaselineError(f"{path}: tensor {name} is missing", 6)
        row = header[name]
        dtype = {"F32": "<f4", "F64": "<f8"}.get(row["dtype"])
        if dtype is None or tuple(row["shape"]) != shape:
            raise BaselineError(f"{path}: {name} is {row['dtype']} {row['shape']}, expected F32 or F64 {shape}", 6)
        begin, end = (8 + length + at for at in row["data_offsets"])
        weights[name] = np.frombuffer(raw[begin:end], dtype).reshape(shape)
    return weights


def order_of(setup: Setup, samples: int, epoch: int) -> np.ndarray:
    """Batches (steps, batch) int64 of an epoch; what is left of the data set after the last full batch is dropped.

    setup.order names an npy file of integers: one row of sample indices an epoch, or one row for all. Without it, a
    permutation by setup.seed and the epoch.
    """
    if setup.order is None:
        row = np.random.default_rng([setup.seed, epoch]).permutation(samples)
    else:
        rows = np.atleast_2d(np.load(setup.order))
        if rows.ndim != 2 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= samples:
            raise BaselineError(f"{setup.order}: expected one or more rows of integers from 0 to {samples - 1}", 3)
        row = rows[epoch % len(rows)]
    steps = len(row) // setup.batch_size
    if steps == 0:
        raise BaselineError(f"batch size {setup.batch_size} exceeds the {len(row)} samples of an epoch")
    return row[: steps * setup.batch_size].reshape(steps, setup.batch_size).astype(np.int64)


def read_rates(path: str, steps: int) -> np.ndarray:
    """Learning rates (steps,) float64 from an npy file."""
    rates = np.load(path)
    if rates.shape != (steps,) or not (np.isfinite(rates) & (rates >= 0)).all():
        raise BaselineError(f"{path}: expected {steps} finite rates of at least 0, one for each step", 3)
    return rates.astype(np.float64)


def schedule_rates(shape: str, peak: float, steps: int) -> np.ndarray:
    """Rates (steps,) of a constant, linear or triangle[:FRACTION] schedule: at t = (k + 1/2) / steps a triangle has
    peak * min(t / FRACTION, (1 - t) / (1 - FRACTION)), 0.2 where no fraction is given; linear is a triangle of 0.
    """
    name, _, text = shape.partition(":")
    try:
        fraction = {"constant": None, "linear": 0.0, "triangle": float(text or 0.2)}[name]
    except (KeyError, ValueError):
        fraction = math.nan
    if fraction is None:
        return np.full(steps, peak)
    if not 0 <= fraction < 1:
        raise BaselineError(f"schedule is '{shape}', expected constant, linear or triangle[:FRACTION below 1]")
    t = (np.arange(steps) + 0.5) / steps
    rising = t / fraction if fraction else np.inf
    return peak * np.minimum(rising, (1 - t) / (1 - fraction))


def write_trace(path: str, events: list[dict[str, Any]], steps: int) -> None:
    """The Trace Event Format: what happened from the first to the last step, in microseconds since the first began.

    Only spans stay, and the names of their rows. Viewers drop a span that overlaps another of its row, which kernels
    side by side do; it gets a row of its own below.
    """
    spans = [e for e in events if e.get("ph") == "X"]
    marks = [e for e in spans if e["name"] in {f"step {k + 1}" for k in range(steps)}]
    start, end = min(e["ts"] for e in marks), max(e["ts"] + e["dur"] for e in marks)
    spans = [e | {"ts": e["ts"] - start} for e in spans if start <= e["ts"] < end]
    pids, rows = {e["pid"] for e in spans}, {(e["pid"], e["tid"]) for e in spans}
    names = [
        {key: value for key, value in e.items() if key != "ts"}
        for e in events
        if e.get("ph") == "M" and ((e["pid"], e.get("tid")) in rows if "thread" in e["name"] else e["pid"] in pids)
    ]
    free = 1 + max(tid for _, tid in rows)
    below: dict[tuple[int, int, int], int] = {}  # the row of each process, row and number of rows above it
    open_until: dict[tuple[int, int], list[float]] = {}
    for span in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
        begin, until, row, depth = span["ts"], span["ts"] + span["dur"], span["tid"], 0
        while True:
            ends = open_until.setdefault((span["pid"], row), [])
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or until <= ends[-1]:
                break
            depth += 1
            key = (span["pid"], span["tid"], depth)
            if key not in below:
                below[key], free = free, free + 1
                names += [
                    e | {"tid": below[key], "args": {"name": f"{e['args']['name']} ({depth + 1})"}}
                    for e in names
                    if e["name"] == "thread_name" and (e["pid"], e["tid"]) == (span["pid"], span["tid"])
                ]
            row = below[key]
        ends.append(until)
        span["tid"] = row
    with open(path, "w") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": names + spans}, file)


# ---- the ways to run a baseline --------------------------------------------------------------------------------


def build(trainer_class: Any, setup: Setup, data: Data, rates: np.ndarray | None = None) -> tuple[Trainer, float]:
    """A trainer at step 0 of epoch 0, ready to run at full speed; the seconds that took.

    rates: for the steps of all epochs, instead of those that the set-up names.
    """
    weights = None if setup.weights is None else read_weights(setup.weights)
    order = order_of(setup, len(data.labels), 0)
    if rates is not None:
        rates = rates[: len(order)]
    elif setup.rates is not None:
        rates = read_rates(setup.rates, len(order))
    start = now()
    trainer = trainer_class(setup, data, weights, order, rates)
    return trainer, now() - start


def initial_weights(seed: int) -> dict[str, np.ndarray]:
    """PyTorch's default: conv and linear uniform on +-1/sqrt(fan_in), batch norm at scale 1 and shift 0."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in SHAPES.items():
        layer, kind = name.split(".")
        bound = 1 / math.sqrt(math.prod(SHAPES[f"{layer}.weight"][1:]))
        constant = np.full(shape, float(kind == "weight"))
        weights[name] = constant if layer.startswith("bn") else rng.uniform(-bound, bound, shape)
    return weights


def accuracy(trainer: Trainer, data: Data) -> float:
    """Share of the test images that are right."""
    return int((trainer.classes(data.test_images) == data.test_labels).sum()) / len(data.test_labels)


def bench(trainer: Runs, iterations: int) -> dict[str, Any]:
    """Times of an iteration in microseconds over at least `iterations` of them, and the loss of the last."""
    trainer.run(1)
    seconds, _ = trainer.run(3)
    seconds, _ = trainer.run(max(1, round(WARM_UP_SECONDS * 3 / seconds)))
    block = 3
    while (seconds := trainer.run(block)[0]) < BLOCK_SECONDS:
        block = math.ceil(block * min(10, 1.2 * BLOCK_SECONDS / seconds))
    times, losses = [], [math.nan]
    while len(times) < max(MINIMUM_BLOCKS, iterations / block):
        seconds, losses = trainer.run(block)
        times.append(seconds / block * 1e6)
    return {
        "median_us": float(np.median(times)),
        "p5_us": float(np.percentile(times, 5)),
        "p95_us": float(np.percentile(times, 95)),
        "min_us": min(times),
        "mean_us": float(np.mean(times)),
        "blocks": len(times),
        "iterations_per_block": block,
        "iterations": len(times) * block,
        "loss": losses[-1],
    }


def train(
    trainer: Trainer, setup: Setup, data: Data, epochs: int, rates: np.ndarray | None, say: Any
) -> list[dict[str, Any]]:
    """Train for `epochs`; one row an epoch with its training time (without evaluation), last loss and accuracy."""
    rows = []
    for epoch in range(epochs):
        order = order_of(setup, len(data.labels), epoch)
        trainer.set_order(order)
        if rates is not None:
            trainer.set_rates(rates[epoch * len(order) : (epoch + 1) * len(order)])
        seconds, losses = trainer.run(len(order))
        right = accuracy(trainer, data) if len(data.test_labels) else math.nan
        rows.append({"epoch": epoch + 1, "seconds": seconds, "loss": losses[-1], "test_accuracy": right})
        say(f"epoch {epoch + 1}: {seconds:.2f} s, last loss {losses[-1]:.4f}, test accuracy {100 * right:.2f} %")
    return rows


class Served:
    """A baseline that a program drives: each method answers the command of its name."""

    def __init__(self, trainer_class: Any, modes: tuple[str, ...]) -> None:
        self._class, self._modes = trainer_class, modes
        self._made: Trainer | None = None

    @property
    def _trainer(self) -> Trainer:
        if self._made is None:
            raise BaselineError("a setup has to come first, and to succeed")
        return self._made

    def setup(self, **fields: Any) -> dict[str, Any]:
        self._made = None
        known = {f.name for f in dataclasses.fields(Setup)}
        if unknown := sorted(set(fields) - known):
            raise BaselineError(f"setup knows no {', '.join(unknown)}")
        self._setup = Setup(**{key: value for key, value in fields.items() if value is not None})
        self._setup.check(self._modes, self._class.OPTIONS)
        self._data = load_data(self._setup)
        self._made, seconds = build(self._class, self._setup, self._data)
        return {
            "ok": True,
            "setup_seconds": seconds,
            "versions": self._made.versions,
            "precision_pinned": self._made.precision_pinned,
        }

    def run(self, steps: int) -> dict[str, Any]:
        if steps < 1:
            raise BaselineError(f"steps is {steps}, expected at least 1")
        seconds, losses = self._trainer.run(steps)
        return {"seconds": seconds, "losses": losses}

    def restart(self) -> None:
        self._trainer.restart()

    def begin(self, weights: str, order: str, rates: str) -> None:
        """Without compiling or capturing anything again."""
        rows = order_of(dataclasses.replace(self._setup, order=order), len(self._data.labels), 0)
        self._trainer.set_order(rows)
        self._trainer.set_rates(read_rates(rates, len(rows)))
        self._trainer.set_weights(read_weights(weights))
        self._trainer.restart()

    def evaluate(self) -> dict[str, Any]:
        """The hash is of the parameters' bytes, one after the other in the order of SHAPES."""
        if not len(self._data.test_labels):
            raise BaselineError("the data has no test images", 3)
        weights = self._trainer.parameters()
        values = b"".join(np.ascontiguousarray(weights[name]).tobytes() for name in SHAPES)
        digest = hashlib.sha256(values).hexdigest()
        return {"test_accuracy": accuracy(self._trainer, self._data), "parameters_sha256": digest}

    def dump(self, file: str) -> None:
        np.savez(file, **self._trainer.probe())


def answer(functions: Mapping[str, Callable[..., dict[str, Any] | None]]) -> None:
    """Answer commands, a JSON line each, by the function of their name until `quit` or the end of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a framework prints must not end up between the answers
    for line in sys.stdin:
        try:
            command = json.loads(line)
            name = command.pop("cmd")
            if name == "quit":
                return
            if name not in functions:
                raise BaselineError(f"command '{name}' is unknown, expected {', '.join(functions)} or quit")
            found = functions[name](**command) or {"ok": True}
        except Exception as error:
            found = {"error": one_line(error)}
        print(json.dumps(found), file=answers, flush=True)


def one_line(error: Exception) -> str:
    """An error's text, with its type where the text alone says little."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, BaselineError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def parser_for(description: str, modes: tuple[str, ...], words: tuple[str, ...]) -> argparse.ArgumentParser:
    """The command line that all baselines share."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--data-dir", metavar="DIR", help="folder with the four idx files, plain or .gz (default: mnist-cuda's cache)")
    add("--npz", metavar="FILE", help="data as arrays images, labels[, test_images, test_labels] instead")
    add("--mode", choices=modes, default=modes[0], help="how a step is run (default: %(default)s)")
    add("--options", nargs="+", choices=words, default=(), metavar="WORD", help=f"some of {', '.join(words) or 'none'}")
    add("--precision", choices=PRECISIONS, default="fp32", help="arithmetic (default: %(default)s)")
    add("--channels-last", action="store_true", help="NHWC instead of NCHW")
    add("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU, else cpu")
    add("--data", choices=("device", "host"), default="device", help="where the images live (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="default: %(default)s")
    add("--lr", type=float, default=0.05, metavar="RATE", help="learning rate of plain SGD (default: %(default)s)")
    add("--schedule", metavar="SHAPE", help="with --epochs: constant, linear or triangle[:FRACTION], --lr its peak")
    add("--seed", type=int, default=0, metavar="N", help="of the weights and the order (default: %(default)s)")
    add("--threads", type=int, default=0, metavar="N", help="host threads (default: the framework's choice)")
    add("--weights", metavar="FILE", help="start from this safetensors file")
    add("--order", metavar="FILE", help="npy of sample indices: one row an epoch, or one row for all")
    add("--iters", type=int, default=100, metavar="N", help="iterations to time, at least (default: %(default)s)")
    add("--epochs", type=int, metavar="N", help="train and report the test accuracy instead of timing iterations")
    add(
        "--dump", metavar="FILE", help="write loss, activations, logits and gradients of the first batch as npz instead"
    )
    add("--trace", metavar="FILE", help="write ten single steps for Perfetto or chrome://tracing instead")
    add("--serve", action="store_true", help="take commands as JSON lines on stdin")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def main(trainer_class: Any, modes: tuple[str, ...], description: str) -> int:
    """The command line of a baseline; returns its exit code."""
    parser = parser_for(description, modes, trainer_class.OPTIONS)
    options = parser.parse_args()
    if options.serve:
        served = Served(trainer_class, modes)
        answer({name: getattr(served, name) for name in ("setup", "run", "restart", "begin", "evaluate", "dump")})
        return 0
    engine = "cpu" if options.device == "cpu" else "auto"  # to compare with
    chosen = options.device is None
    if chosen:
        if RANKS > 1:
            parser.error("several ranks: name their --device")
        options.device = "cuda" if trainer_class.finds_gpu() else "cpu"
    setup = Setup(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Setup) if hasattr(options, f.name)})

    def say(text: str) -> None:
        if not options.json:
            print(text, flush=True)

    try:
        if setup.data_dir is setup.npz is None:
            setup.data_dir = str(cached_mnist())
        setup.check(modes, trainer_class.OPTIONS)
        data = load_data(setup)
        steps = len(order_of(setup, len(data.labels), 0))
        rates = None
        if options.schedule is not None:
            rates = schedule_rates(options.schedule, setup.lr, steps * (options.epochs or 1))
        if chosen:
            finds = "a" if setup.device == "cuda" else "no"
            say(f"--device {setup.device}, as {trainer_class.FRAMEWORK} finds {finds} GPU")
        what = f"{setup.mode} {setup.precision}, batch {setup.batch_size}, data on {setup.data}"
        say(f"{what}, from {setup.data_dir or setup.npz}: setting up")
        trainer, seconds = build(trainer_class, setup, data, rates)
        say(
            " ".join(f"{name} {version}," for name, version in trainer.versions.items())
            + f" {trainer.precision_pinned}"
        )
        say(f"set-up {seconds:.1f} s")
        report = {
            "setup": dataclasses.asdict(setup),
            "versions": trainer.versions,
            "precision_pinned": trainer.precision_pinned,
            "setup_seconds": seconds,
        }
        us = None  # an iteration
        if options.dump:
            np.savez(options.dump, **trainer.probe())
            say(f"wrote {options.dump}")
        elif options.trace:
            trainer.run(1)  # what is lazy is done
            write_trace(options.trace, trainer.trace(TRACED_STEPS), TRACED_STEPS)
            say(f"wrote {options.trace}, for ui.perfetto.dev or chrome://tracing")
        elif options.epochs is not None:
            report["epochs"] = rows = train(trainer, setup, data, options.epochs, rates, say)
            us = float(np.median([row["seconds"] for row in rows])) / steps * 1e6 if rows else None
        else:
            say(f"timing {options.iters} iterations, or more")
            report["iteration"] = times = bench(trainer, options.iters)
            us = times["median_us"]
            say(
                f"{times['median_us']:.1f} us an iteration (median of {times['blocks']} blocks of "
                f"{times['iterations_per_block']}; p5 {times['p5_us']:.1f}, p95 {times['p95_us']:.1f}, "
                f"min {times['min_us']:.1f}), mean over {times['iterations']}: {times['mean_us']:.1f} us"
            )
        if options.json:
            print(json.dumps(report))
        elif us is not None:
            say("timing mnist-cuda's own engine")
            say(compare(us, engine, setup, data, options.iters))
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, BaselineError) else 3 if isinstance(error, OSError) else 1
