"""The Python face of a native engine: numpy arrays in, numpy arrays out, errors with the right exit code."""

from __future__ import annotations

import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import _native, memory, rules
from mnist_cuda.data.arrays import as_numpy
from mnist_cuda.engine.extensions import Emulated, MakeEmulated, Own
from mnist_cuda.engine.gpu_arrays import GpuArray, gpu_bytes
from mnist_cuda.engine.gpu_libraries import find_libraries, find_nccl
from mnist_cuda.engine.model import PARAMETERS, STATISTICS, empty_slab, initial_stream, pack, unpack
from mnist_cuda.errors import (
    DataError,
    MnistCudaError,
    OutOfMemoryError,
    RankLostError,
    UnavailableError,
    UsageError,
    did_you_mean,
)

Images = NDArray[np.uint8]
Labels = NDArray[np.uint8]
Routing = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]
BatchNorm = Literal["population", "batch"]
Placement = Literal["device", "host"]
Summation = Literal["partial", "plain", "library"]
_PIXELS = 28 * 28
_ROUTING = ("pool1", "pool2", "relu3")
_FINITE = rules.Number("a finite number", float, -math.inf)

LAST_SECONDS = 1.0  # that the last calls of a program wait for an engine which a stopped thread may never give back
PIECE_SECONDS = 0.1  # aim of `Engine.train_piece`: between two of them signals are obeyed and progress is shown


@dataclass(frozen=True)
class EngineInfo:
    """One row of the registry (native/host/engines/registry.cpp).

    rank: `--engine auto` takes the lowest that can run here. summation: the order of its sums over a batch, which
    decides its bounds in tolerances.py. follows_routing: `probe` accepts a routing. takes_limits: it can emulate a
    smaller GPU, or use a share of one. shares_batches: it can train one model with other ranks. fleets: it trains
    several models side by side on some GPUs. one_launch_per_phase: each phase of a step is one launch. own_ops: those
    for which it takes launchers of yours. libraries: those that it loads. host_bytes_per_image: host memory per image
    of a batch, including a probe's results; 0 where it does not matter. unavailable: the reason if it cannot run here
    in any precision, otherwise empty. unavailable_precisions: for each precision that cannot run here, the reason.
    """

    name: str
    summary: str
    device: Literal["cpu", "cuda"]
    precisions: tuple[str, ...]
    rank: int
    summation: Summation
    follows_routing: bool
    takes_limits: bool
    shares_batches: bool
    fleets: bool
    one_launch_per_phase: bool
    own_ops: tuple[str, ...]
    libraries: tuple[str, ...]
    host_bytes_per_image: int
    unavailable: str
    unavailable_precisions: dict[str, str]

    def too_old(self, precision: str) -> bool:
        """Whether that precision wants a newer GPU, or a build for it, rather than anything that could be installed."""
        return "needs compute capability" in self.unavailable_precisions.get(precision, "")

    @rules.checked(batch_size=rules.whole(0, 2**63 - 1))
    def share_for(self, batch_size: int) -> int:
        """How many multiprocessors a model with this batch size gets in a fleet; 0 if it must train alone.

        The share decides the bits, and the batch size alone decides the share, whatever the GPU and the other models.
        """
        return _native.share_for(self.name, batch_size)


def engines(device: int = 0) -> tuple[EngineInfo, ...]:
    """All engines, slowest rung of the ladder first, and what GPU `device` cannot run of them.

    Raises UsageError for an ordinal that does not exist where there are GPUs.
    """
    device = rules.GPU("device", device)
    return tuple(_info(row, device) for row in _native.engines())


def find_engine(name: str, device: int = 0) -> EngineInfo:
    """The registry's row for `name`, as GPU `device` can run it; `auto` gives the best engine that can run there.

    Raises UsageError for an unknown name. An engine that cannot run here is returned all the same. No other engine is
    asked whether it can run than those that `auto` tries, so that libraries are looked for only where it matters.
    """
    rows = {row["name"]: row for row in _native.engines()}
    if not isinstance(name, str):
        raise UsageError(f"engine is {rules.shown(name)}, expected auto or one of {', '.join(rows)}")
    if name == "auto":
        by_rank = sorted(rows.values(), key=lambda row: row["rank"])
        return next(info for row in by_rank if not (info := _info(row, device)).unavailable)
    if name not in rows:
        raise UsageError(
            f"engine '{name}' is unknown, expected auto or one of {', '.join(rows)}{did_you_mean(name, rows)}"
        )
    return _info(rows[name], device)


def _info(row: dict[str, Any], device: int) -> EngineInfo:
    """A row of the registry, with the answer whether it can run here."""
    find_libraries(tuple(row["libraries"]))
    precisions = tuple(row["precisions"])
    with _native_errors():
        reasons = _native.unavailable(row["name"], device)
    unavailable = reasons[precisions[0]] if len(reasons) == len(precisions) else ""
    fields = {**row, "precisions": precisions, "libraries": tuple(row["libraries"])}
    fields["own_ops"] = tuple(row["own_ops"])
    return EngineInfo(**fields, unavailable=unavailable, unavailable_precisions=reasons)


@contextmanager
def _native_errors(fault: type[MnistCudaError] = UsageError) -> Iterator[None]:
    """A block of native calls, whose errors are ours; fault: the one for an argument that is refused."""
    try:
        yield
    except MnistCudaError:
        raise
    except ValueError as error:
        raise fault(str(error)) from error
    except TypeError as error:
        text = str(error)
        if "incompatible function arguments" not in text:
            raise
        name = text.partition("(")[0]
        raise UsageError(f"{name}: an argument is of another type, or larger, than the engine takes") from error
    except _native.UnavailableError as error:
        raise UnavailableError(str(error)) from error
    except _native.OutOfMemoryError as error:
        raise OutOfMemoryError(str(error)) from error
    except _native.RankLostError as error:
        raise RankLostError(str(error)) from error
    except MemoryError as error:  # std::bad_alloc has nothing to tell
        raise OutOfMemoryError("host memory ran out; try a smaller batch") from error
    except RuntimeError as error:  # a call of CUDA or of one of its libraries failed
        raise UnavailableError(str(error)) from error


@dataclass(frozen=True)
class Steps:
    """Steps that were run between two readings of the clock: each one's loss and number correct, and the seconds."""

    losses: NDArray[np.float64]
    correct: NDArray[np.int32]
    seconds: float


@dataclass(frozen=True)
class Probe:
    """One step seen from inside, without an update; see `Engine.probe`.

    loss: mean over the batch. correct: how many were right. gradients: by parameter name, float64.
    a1 (B,32,14,14), a2 (B,64,7,7): pooled activations, None if the engine never forms them; h (B,128) after ReLU;
    logits (B,10). routing: the choices made, as (pool1 (B,32,14,14), pool2 (B,64,7,7), relu3 (B,128)), uint8:
    pool entries are 2*dy+dx of the first maximum or 4 where ReLU stopped the gradient, relu3 is 0 or 1.
    """

    loss: float
    correct: int
    gradients: dict[str, NDArray[np.float64]]
    a1: NDArray[np.float64] | None
    a2: NDArray[np.float64] | None
    h: NDArray[np.float64]
    logits: NDArray[np.float64]
    routing: Routing


@dataclass(frozen=True)
class OpTime:
    """One op of a training step; see `Engine.profile`.

    phase: what Nsight shows as a range. unit: what multiplies, `fma` or the tensor cores' `tf32`, `bf16`, `fp16`, or,
    three products for one, `3xtf32`, `3xfp16`. bytes, flops: the least that the op has to move and to compute, a
    multiply-add being two. us: microseconds, median over the steps. spans: of each step, when it began and how long it
    took, in microseconds since the first step began. kernels: what it launches on a GPU, each a dictionary of `name`,
    `symbol`, `grid`, `block`, `registers`, `local_bytes`, `shared_bytes`, `blocks_per_multiprocessor` and `occupancy`,
    the share of its warps that a multiprocessor can hold.
    """

    phase: str
    op: str
    unit: Literal["fma", "tf32", "3xtf32", "bf16", "fp16", "3xfp16"]
    bytes: float
    flops: float
    us: float
    spans: list[tuple[float, float]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)


def measure_roofs(device: int = 0) -> dict[str, float]:
    """What a GPU does at its best: bytes_per_second of a large copy, fma_flops, tf32_flops and bf16_flops (mma.sync).

    Without the last two where the GPU, or this build's code for it, is older than compute capability 8.0.
    Raises UnavailableError without a usable GPU, OutOfMemoryError if 1 GiB of its memory is not free.
    """
    with _native_errors():
        return _native.measure_roofs(device)


def _options_of_environment(takes_limits: bool) -> tuple[bool, tuple[int, int]]:
    """THE place where variables become options: whether every step is checked, and limits; (0, 0) without any.

    Raises UsageError for limits that are not two numbers.
    """
    text = os.environ.get("MNIST_CUDA_FUSED_LIMITS", "") if takes_limits else ""
    numbers = re.fullmatch(r"(\d{1,9}),(\d{1,9})", text, re.ASCII)
    if text and not numbers:
        raise UsageError(f"MNIST_CUDA_FUSED_LIMITS is '{text}', expected MULTIPROCESSORS,BYTES such as 108,166912")
    limits = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    return os.environ.get("MNIST_CUDA_SYNC") == "1", limits


class Engine:
    """A trainer of the network in `native/include/mnist/model.h`.

    name: one that `engines()` lists, or `auto`. precision: one of the engine's, by default its first. threads: of a CPU
    engine, 0 for one per core. device: number of the GPU. check_every_step: CUDA engines record no graphs and check for
    errors after every step; by default MNIST_CUDA_SYNC. limits: multiprocessors and bytes of shared memory per thread
    block of an older, smaller GPU to emulate, for engines that take them; by default MNIST_CUDA_FUSED_LIMITS.
    multiprocessors: how many of the GPU's a training step uses, for the same engines; 0 for all. A model of a fleet
    has such a share. own: kernels of yours, a `mnist_cuda.judge.own_kernels.OwnKernels`, for engines whose `own_ops`
    has their ops; they are compiled here. emulated: `mnist_cuda.judge.emulated.EmulatedEngine` to run the kernels of
    `naive` or `tiled`, which `auto` then is, on the CPU, for training steps alone.
    Threads may share an engine: their calls wait for each other. Several engines can work at the same time.
    A fork of its process has none of its threads, and every call raises UsageError there.
    Raises UsageError for an unknown name or precision, a GPU for a CPU engine or more threads than MAX_THREADS,
    ValueError for limits or multiprocessors beyond this GPU's, UnavailableError if the engine cannot run here.
    """

    @rules.checked(
        threads=rules.THREADS,
        device=rules.GPU,
        multiprocessors=rules.GPU,
        check_every_step=rules.optional(rules.SWITCH),
        precision=rules.optional(rules.TEXT),
    )
    def __init__(
        self,
        name: str = "auto",
        precision: str | None = None,
        *,
        threads: int = 0,
        device: int = 0,
        check_every_step: bool | None = None,
        limits: tuple[int, int] | None = None,
        multiprocessors: int = 0,
        own: Own | None = None,
        emulated: MakeEmulated | None = None,
    ) -> None:
        if limits is not None:
            pair = tuple(limits) if isinstance(limits, tuple | list) else ()
            if len(pair) != 2 or any(map(rules.GPU.fault, pair)):
                expected = "a number of multiprocessors and one of bytes, such as (108, 166912)"
                raise UsageError(f"limits are {rules.shown(limits)}, expected {expected}")
        by_auto = isinstance(name, str) and name == "auto"
        if emulated and by_auto:
            name, by_auto = "tiled", False
        self.info = find_engine(name, device if by_auto else 0)
        self.precision = self.info.precisions[0] if precision is None else precision
        if self.precision not in self.info.precisions:
            raise UsageError(
                f"engine '{self.info.name}' has no precision {self.precision}, it offers "
                f"{', '.join(self.info.precisions)}"
            )
        if device and self.info.device == "cpu":
            raise UsageError(
                f"device {device} is a GPU and engine '{self.info.name}' runs on the CPU; name a CUDA engine or leave "
                "out the device"
            )
        if multiprocessors and not self.info.takes_limits:
            raise UsageError(f"engine '{self.info.name}' takes no share of the multiprocessors; leave it out")
        if own:
            own.require_fit(self.info.name, self.info.own_ops)
        self.own = own
        self.emulated: Emulated | None = None
        check_by_default, default_limits = _options_of_environment(self.info.takes_limits)
        checks = check_by_default if check_every_step is None else check_every_step
        self._largest_batch, self.threads, self.device, self.multiprocessors = 0, threads, device, multiprocessors
        self.dtype = np.dtype(np.float64 if self.precision == "fp64" else np.float32)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._ranks: _native.Communicator | None = None
        self._pieces: dict[int, int] = {}  # steps of the next piece by batch size, as far as is known
        self._slab = empty_slab(PARAMETERS, self.dtype)  # kept: the pages of a new one cost more than filling it
        if emulated:
            self.emulated = emulated(self.info.name, self.precision, own)
            self._native: Any = self.emulated
            self.info = replace(self.info, device="cpu", unavailable="", unavailable_precisions={})  # where it runs
            return
        with _native_errors(), tempfile.TemporaryDirectory(prefix="mnist-cuda-own-") as folder:
            own_ops = own.compile_for_gpu(device, Path(folder)) if own and not self.info.unavailable else []
            self._native = _native.create_engine(
                self.info.name,
                self.precision,
                threads,
                device,
                checks,
                *(limits or default_limits),
                multiprocessors,
                own_ops,
            )

    @contextmanager
    def _alone(self, fault: type[MnistCudaError] = UsageError) -> Iterator[None]:
        """Native calls, of one thread at a time: an engine has one step's memory, and the GIL is released in it.

        fault: the error for an argument that they refuse. At the program's end a thread leaves here for good, by
        SystemExit, which ends a thread without a word.
        """
        if os.getpid() != self._process:  # before the lock, which a thread that is not here may hold
            raise UsageError(
                f"this engine is of process {self._process}, and of its threads and GPU this fork of it has none: make "
                "an engine here, or start processes by multiprocessing.get_context('spawn'), as GPUs need"
            )
        _leave_at_the_end()
        if not self._lock.acquire(timeout=LAST_SECONDS if _native.closed() else -1):
            raise UsageError("the program ends, and another thread is in a call of this engine, which never returns")
        try:
            with _native_errors(fault):
                yield
        finally:
            self._lock.release()
        _leave_at_the_end()

    def __repr__(self) -> str:
        return f"Engine({self.info.name} {self.precision})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine cannot be pickled or copied; its parameters can, and so can what `save_model` takes")

    def _require_memory(self, batch: int) -> None:
        """Raise OutOfMemoryError for a batch larger than all before if this machine's memory cannot hold it."""
        if batch > self._largest_batch and (bytes_per_image := self.info.host_bytes_per_image):
            memory.require(batch * bytes_per_image, f"a batch of {batch} on engine {self.info.name}")
            self._largest_batch = batch

    @rules.checked(ranks=rules.Kind("a communicator, as mnist_cuda.ranks makes it", (_native.Communicator,)))
    def join(self, ranks: _native.Communicator, transport: str | None = None) -> None:
        """Train one model together with the engines of other ranks; ValueError for an engine that cannot share a batch.

        All ranks call it together. From then on call `train`, `compute_statistics`, `evaluate` and `profile` on all
        ranks with the same arguments: each computes its share of every batch, and all get the same results. They raise
        RankLostError if another rank is lost.

        transport: how GPUs exchange sums: "peers", "nccl" or "host"; by default MNIST_CUDA_TRANSPORT, otherwise the
        first of these that works on all ranks. Raises UnavailableError for one that does not.
        """
        asked = os.environ.get("MNIST_CUDA_TRANSPORT", "") if transport is None else transport
        with self._alone():
            if self.info.device == "cuda":
                find_nccl()
            self._native.join(ranks, asked)
            self._ranks, self._pieces = ranks, {}

    @property
    def transport(self) -> str:
        """How ranks on GPUs exchange their sums, in words; empty on the host and without other ranks."""
        text: str = self._native.transport
        return text

    @property
    def arithmetic(self) -> str:
        """The precision, and the number formats that reach it where they differ from it."""
        text: str = self._native.arithmetic()
        return text

    def algorithms(self) -> list[str]:
        """The library algorithms chosen so far, one per line, by batch size; empty where there is no choice."""
        with self._alone():
            lines: list[str] = self._native.algorithms()
        return lines

    def batch_thresholds(self) -> list[int]:
        """Batch sizes, ascending, at which a step starts to be made differently than with one image less; for tests.

        Other kernels, a batch divided differently, or one more round of a loop where that matters.
        """
        sizes: list[int] = self._native.batch_thresholds()
        return sizes

    def evaluation_chunk(self) -> int:
        """Images taken at once for population statistics and for logits under them, 0 for all; for tests."""
        return int(self._native.evaluation_chunk())

    @property
    def dataset_size(self) -> int:
        """Images of the training set; 0 before there is one."""
        return int(self._native.dataset_size)

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """The 12 parameters by PyTorch name: float64 from `reference`, float32 from the others."""
        native = self._native
        with self._alone():
            slab = native.get_parameters() if self.dtype == np.float64 else native.get_float_parameters()
        return unpack(slab, PARAMETERS)

    def set_parameters(self, tensors: Mapping[str, NDArray[np.floating]]) -> None:
        """Set all parameters; other names in `tensors` are ignored.

        Raises ValueError for a wrong shape and for a value that is not finite in the engine's type.
        """
        with self._alone():
            self._native.set_parameters(pack(tensors, PARAMETERS, self._slab))

    def init_parameters(self, seed: int) -> None:
        """Set all parameters to those of `mnist_cuda.init_parameters(seed)`, drawn by the engine."""
        stream = initial_stream(seed).state["state"]
        low = (1 << 64) - 1
        words = [part for name in ("state", "inc") for part in (stream[name] >> 64, stream[name] & low)]
        with self._alone():
            self._native.initialize_parameters(*words)

    @property
    def statistics(self) -> dict[str, NDArray[Any]] | None:
        """Population statistics as `bn*.running_mean/var`, or None where there are none since the last update."""
        with self._alone():
            if not self._native.has_statistics:
                return None
            slab = self._native.get_statistics()
        return {name: value.astype(self.dtype) for name, value in unpack(slab, STATISTICS).items()}

    def set_statistics(self, tensors: Mapping[str, NDArray[np.floating]]) -> None:
        """Set `bn*.running_mean/var`. Raises ValueError for a wrong shape, a NaN or a negative variance."""
        with self._alone():
            self._native.set_statistics(pack(tensors, STATISTICS, empty_slab(STATISTICS)))

    def compute_statistics(self) -> None:
        """Compute the population statistics from all images of the data set, layer 2 under layer 1's."""
        with self._alone():
            self._native.compute_statistics()

    def gpu_parameters(self) -> dict[str, GpuArray]:
        """A copy of the 12 parameters in the memory of the engine's GPU, by PyTorch name, for other libraries.

        float64 from `naive` in fp64, else float32. Raises ValueError for an engine on the host.
        """
        self._require_gpu("gpu_parameters")
        with self._alone():
            arrays = self._native.gpu_parameters()
        return {t.name: self._gpu_array(t.shape, *array) for t, array in zip(PARAMETERS, arrays, strict=True)}

    def _require_gpu(self, what: str) -> None:
        if self.info.device == "cpu":
            raise UsageError(f"{what}: engine {self.info.name} runs on the CPU, expected one on a GPU")

    def _gpu_array(self, shape: tuple[int, ...], array: Any, address: int) -> GpuArray:
        _, device = array.__dlpack_device__()
        return GpuArray(shape, self.dtype, device, address, array)

    def set_dataset(self, images: object, labels: object, placement: Placement = "device") -> None:
        """Give the training set: images (N,28,28) or (N,784) uint8, labels (N,) uint8 below 10; copied.

        Either may be in a GPU's memory, with `__dlpack__` or `__cuda_array_interface__`, and is waited for. placement:
        `device` keeps the images in the GPU's memory, `host` copies each batch there as it is needed (double-buffered).
        Host engines ignore it. An engine on a GPU copies images from there to where it keeps them, without the host in
        between; a copy, because the caller's array may change or go while the engine still trains on it.
        """
        _require_one_of("set_dataset: placement", placement, Placement)
        with self._alone(DataError):
            there = gpu_bytes(images) if self.info.device == "cuda" and placement == "device" else None
            if there is None:
                self._native.set_dataset(_pixels(images), _bytes(labels), placement == "device")
            else:
                self._native.set_gpu_dataset(there.address, there.size, _bytes(labels))

    @rules.checked(batch_size=rules.BATCH)
    def train(
        self, order: NDArray[np.integer], batch_size: int, lr: float | NDArray[np.floating]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Run one SGD step on each consecutive `batch_size` indices of `order`; a rest makes a last, smaller step.

        lr: the learning rate, or one for each step (steps,). A step gives the same bits in whatever call it is made.
        Returns each step's mean loss (before its update) and number of correct predictions, when all steps are done.
        The GIL is released, and signals are obeyed between pieces of a long call: what a handler raises ends it with
        the steps before that done. Raises ValueError for an index outside the data set, and for rates that are
        complex, negative, not finite or not as many as there are steps, OutOfMemoryError for a batch that cannot fit.
        """
        indices = _indices(order, self.dataset_size)
        steps = -(-len(indices) // batch_size) if batch_size > 0 else 0
        rates = _array("train: lr", lr)
        if rates.dtype.kind not in "fiu" or rates.ndim > 1:  # of a complex number half would be lost
            raise UsageError(
                f"train: lr has shape {rates.shape} and dtype {rates.dtype}, expected a row of real numbers, or one"
            )
        rates = np.full(steps, rates, np.float64) if rates.ndim == 0 else np.ascontiguousarray(rates, np.float64)
        losses, correct, done = np.empty(steps), np.empty(steps, np.int32), 0
        with self._alone():
            self._native.require_steps(indices, batch_size, rates)
            while done < steps:
                piece = self.train_piece(indices[done * batch_size :], batch_size, rates[done:])
                first, done = done, done + len(piece.losses)
                losses[first:done], correct[first:done] = piece.losses, piece.correct
        return losses, correct

    def train_piece(self, order: NDArray[np.int32], batch_size: int, rates: NDArray[np.float64]) -> Steps:
        """Run the first of `train`'s steps, at least one: as many as take about PIECE_SECONDS, by what others took.

        All ranks of a model run as many: a step looks ahead to the next one of its piece.
        """
        self._require_memory(min(batch_size, len(order)))
        with self._alone():
            piece = self._pieces.get(batch_size, 1)
            count = min(piece, len(rates))
            start = time.perf_counter()
            losses, correct = self._native.train(order[: count * batch_size], batch_size, rates[:count])
            seconds = mean = time.perf_counter() - start
            if self._ranks and count < len(rates):
                mean = float(np.frombuffer(self._ranks.all_gather(np.float64(seconds).tobytes())).mean())
            if not self._ranks or count < len(rates):
                self._pieces[batch_size] = next_piece(piece, count, mean)
        return Steps(losses, correct, seconds)

    @property
    def resumable(self) -> bool:
        """Whether the next steps depend on nothing but the parameters, which all other calls leave as they are.

        An engine like this one that is given `parameters` then goes on with the same bits. After a step of `fused` that
        is rarely not so; some steps later it is.
        """
        with self._alone():
            return bool(self._native.resumable)

    def share_for(self, batch_size: int) -> int:
        """`EngineInfo.share_for` of this engine."""
        return self.info.share_for(batch_size)

    @rules.checked(models=rules.SIZE, batch_size=rules.SIZE, multiprocessors=rules.SIZE)
    def fleet(self, models: int, batch_size: int, multiprocessors: int) -> Fleet:
        """Make room for `models` models that train side by side on this engine's data set.

        multiprocessors: each model's share, less than the batch size, such as share_for() gives. Raises
        UnavailableError for an engine or a GPU that trains one model at a time, ValueError for another share and for
        one that has kernels for one model alone (64 or more, up to 208 images), OutOfMemoryError.
        """
        with self._alone():
            return Fleet(self, self._native.fleet(models, batch_size, multiprocessors), models, batch_size)

    def set_evaluation_set(self, images: object, labels: object) -> None:
        """Give the images that `evaluate` scores, as `set_dataset` gives those to train on; copied, to the GPU too."""
        with self._alone(DataError):
            self._native.set_evaluation_set(_pixels(images), _bytes(labels))

    @property
    def evaluation_size(self) -> int:
        """Images of the evaluation set; 0 before there is one."""
        return int(self._native.evaluation_size)

    def evaluate(self) -> tuple[int, float]:
        """How many images of the evaluation set are right under the population statistics, and their mean loss.

        An image whose scores are not all finite is wrong. Raises ValueError without statistics or without images.
        """
        correct, loss = self.evaluate_by_class()
        return sum(correct), loss

    def evaluate_by_class(self) -> tuple[tuple[int, ...], float]:
        """`evaluate` with how many images of each class are right."""
        with self._alone():
            correct, loss = self._native.evaluate()
        return tuple(correct), loss / self.evaluation_size

    def logits(self, images: object, batch_norm: BatchNorm = "population") -> NDArray[np.float64]:
        """Scores (N,10) before log-softmax of images (N,28,28) or (N,784) uint8, on the host or on a GPU.

        batch_norm: `population` needs `compute_statistics` or `set_statistics`; `batch` takes the N images as one
        batch and normalises by its statistics.
        """
        _require_one_of("logits: batch_norm", batch_norm, BatchNorm)
        with self._alone():
            scores: NDArray[np.float64] = self._native.logits(_pixels(images), batch_norm == "population")
        return scores.reshape(-1, _native.CLASSES)

    def gpu_logits(self, images: object, batch_norm: BatchNorm = "population") -> GpuArray:
        """The same for images in a GPU's memory, with the scores there, float64 from `naive` in fp64, else float32.

        Nothing passes through the host. Raises ValueError for images on the host, and for an engine there.
        """
        _require_one_of("gpu_logits: batch_norm", batch_norm, BatchNorm)
        self._require_gpu("gpu_logits")
        population = batch_norm == "population"
        with self._alone():
            there = gpu_bytes(images)
            if there is None:
                raise DataError("gpu_logits: the images are on the host, expected them in a GPU's memory; see logits")
            (array,) = self._native.gpu_logits(there.address, there.size, population)
        return self._gpu_array((there.size // _PIXELS, _native.CLASSES), *array)

    def repeats(self, images: Images, labels: Labels) -> bool:
        """Whether a batch's gradients have the same bits each time: in five runs, or in three orders of threads."""
        if self.emulated:
            with self._alone():
                one, other = (self.emulated.gradients(_bytes(images), _bytes(labels), orders) for orders in (1, 3))
                faults = self.emulated.report()["faults"]
            return one.tobytes() == other.tobytes() and all(fault["kind"] != "order" for fault in faults)
        probes = [self.probe(images, labels) for _ in range(5)]
        return len({b"".join(g.tobytes() for g in probe.gradients.values()) for probe in probes}) == 1

    @rules.checked(batch_size=rules.SIZE, steps=rules.SIZE)
    def profile(self, batch_size: int, steps: int = 100) -> list[OpTime]:
        """Time the ops of a training step on `batch_size` images of the data set, in their order.

        Their sum exceeds a step's time, because of marks and because ops do not overlap. Parameters and statistics
        stay. Raises ValueError without a data set, for one on the host that a GPU trains on, and for a larger batch.
        """
        self._require_memory(batch_size)
        with self._alone():
            return [OpTime(**row) for row in self._native.profile(batch_size, steps)]

    def probe(self, images: Images, labels: Labels, *, upstream: float = 1.0, routing: Routing | None = None) -> Probe:
        """Loss, all gradients, activations and routing of one batch, without an update.

        upstream: gradient of the objective with respect to the mean loss. routing: the routing to follow, from
        any engine's probe, for an engine whose `info` says `follows_routing`.
        """
        pixels, classes = _pixels(images), _bytes(labels)
        batch = len(classes)
        self._require_memory(batch)
        upstream = _FINITE("upstream", upstream)
        flat = None
        if routing is not None:
            if not isinstance(routing, tuple | list) or len(routing) != len(_ROUTING):
                expected = f"the {len(_ROUTING)} arrays of a probe's: {', '.join(_ROUTING)}"
                raise UsageError(f"probe: routing is {rules.shown(routing)}, expected {expected}")
            flat = tuple(_bytes(part) for part in routing)
        with self._alone(DataError if flat is None else UsageError):
            raw = self._native.probe(pixels, classes, upstream, flat)

        def shaped(values: NDArray[Any], *shape: int) -> NDArray[Any]:
            return values.reshape(batch, *shape)

        pool1, pool2, relu3 = raw["routing"]
        return Probe(
            loss=raw["loss"],
            correct=raw["correct"],
            gradients=unpack(raw["gradients"], PARAMETERS),
            a1=shaped(raw["a1"], 32, 14, 14) if raw["a1"].size else None,
            a2=shaped(raw["a2"], 64, 7, 7) if raw["a2"].size else None,
            h=shaped(raw["h"], 128),
            logits=shaped(raw["logits"], 10),
            routing=(shaped(pool1, 32, 14, 14), shaped(pool2, 64, 7, 7), shaped(relu3, 128)),
        )


class Fleet:
    """Models that train side by side on an engine's data set: `Engine.fleet`.

    Each gets the bits of an Engine with its share of the multiprocessors. The engine initialises, evaluates and hands
    out a model: `store` makes model 0, 1, ... what the engine holds, `load` has the engine hold it.
    """

    def __init__(self, engine: Engine, native: _native.Fleet, models: int, batch_size: int) -> None:
        self.engine, self.models, self.batch_size, self._native = engine, models, batch_size, native

    def store(self, model: int) -> None:
        """Make the model what the engine holds. ValueError for a model that there is not."""
        with self.engine._alone():
            self._native.store(model)

    def load(self, model: int) -> None:
        """Have the engine hold the model, without population statistics. ValueError for one that there is not."""
        with self.engine._alone():
            self._native.load(model)

    def train(
        self, orders: NDArray[np.int32], rates: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """`Engine.train` of each model: orders (models, steps * batch_size), rates (models, steps).

        Returns losses and numbers of correct predictions, both (models, steps). The GIL is released.
        """
        shape = len(orders), orders.shape[1] // self.batch_size
        with self.engine._alone():
            losses, correct = self._native.train(
                np.ascontiguousarray(orders, np.int32).reshape(-1), np.ascontiguousarray(rates, np.float64).reshape(-1)
            )
        return losses.reshape(shape), correct.reshape(shape)


def _leave_at_the_end() -> None:
    """Raise SystemExit where the program ends, by another thread than this one."""
    if _native.ending():
        raise SystemExit


def next_piece(piece: int, steps: int, seconds: float) -> int:
    """Steps of the next piece: `piece`, or twice the last one's `steps`, as far as PIECE_SECONDS allow at its speed."""
    return max(1, min(max(piece, 2 * steps), int(steps * PIECE_SECONDS / max(seconds, 1e-9))))


def _require_one_of(what: str, value: object, choices: Any) -> None:
    """UsageError unless `value` is one of a Literal's."""
    rules.choice(*get_args(choices))(what, value)


def _indices(order: NDArray[Any], count: int) -> NDArray[np.int32]:
    """`order` as the seam takes it; UsageError where that would change a value. The seam checks the values."""
    order = _array("train: order", order)
    if order.ndim != 1 or order.dtype.kind not in "iu":
        raise UsageError(f"train: order has shape {order.shape} and dtype {order.dtype}, expected a row of integers")
    indices = np.ascontiguousarray(order, np.int32)
    if order.dtype != np.int32 and (changed := indices != order).any():
        first = int(changed.argmax())
        raise UsageError(f"train: order[{first}] is {order[first]}, expected the index of one of {count} images")
    return indices


def _array(name: str, values: object) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise UsageError(f"{name}: {error}") from error


def _bytes(data: object) -> NDArray[np.uint8]:
    """A flat, contiguous uint8 view or copy on the host; DataError for another dtype, whose values might not fit."""
    return np.ascontiguousarray(_on_host(data)).reshape(-1)


def _pixels(images: object) -> NDArray[np.uint8]:
    """The same of images, which have to lie as such: transposed ones have as many pixels."""
    array = _on_host(images)
    if array.ndim > 1 and array.shape[1:] not in ((28, 28), (_PIXELS,)):
        raise DataError(f"the images have shape {array.shape}, expected (N, 28, 28) or (N, {_PIXELS})")
    return np.ascontiguousarray(array).reshape(-1)


def _on_host(data: object) -> NDArray[np.uint8]:
    there = gpu_bytes(data)
    if there is not None:
        return there.on_host()
    try:
        array = as_numpy(data)
    except ValueError as error:  # rows of different lengths
        raise DataError(str(error)) from error
    if array.dtype != np.uint8:
        raise DataError(f"the array has dtype {array.dtype}, expected uint8")
    return array
