#!/usr/bin/env python3
"""The baseline in PyTorch: same network, data, order, recipe and clock. Needs torch and numpy.

Modes: `eager`; `graph` (the eager step in one CUDA graph: batch gather from the uint8 data set, normalisation, forward,
backward, fused SGD, zero grad); `compile` (gather, normalisation, forward and loss by torch.compile, which also
compiles the backward pass; fused SGD); `max-autotune` (the same in that mode of the compiler). On a GPU both compiled
ones are captured, too: one CUDA graph is the whole step.

Options: `whole` (a compiled mode has the gradients and the update in the same compiled function), `fp16` (autocast to
float16, with the loss scaled and a step skipped as GradScaler does it), `floats` (the data set is normalised
beforehand, and is kept in the type that the first layer takes).

Started by torchrun, or with its variables, it is a rank, and the statistics are those of the whole batch, of which each
rank has an equal share: DistributedDataParallel with SyncBatchNorm in modes `eager` and `graph`. In a compiled mode,
and on a CPU, batch norm is a function of this file, which has one sum forward and one backward and which the compiler
fuses; `whole` has the sum of the gradients in the compiled function, too, in place of DistributedDataParallel.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import baseline
import numpy as np
from baseline import BaselineError, Data, Setup

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    sys.exit(f"error: {sys.executable} has no PyTorch ({error}); install torch and numpy{baseline.or_peers()}")

MODES = ("eager", "compile", "max-autotune", "graph")
COMPILER_MODES = {"compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}  # the graph is our own
WARM_UP_STEPS = 3
RANKS_WARM_UP_STEPS = 11  # as PyTorch asks for before DistributedDataParallel is captured


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """A sum that torch.compile keeps in its graph."""
    collectives = torch.distributed._functional_collectives
    return collectives.wait_tensor(collectives.all_reduce(values, "sum", torch.distributed.group.WORLD))


class BatchNormOfRanks(torch.autograd.Function):
    """Batch norm of z (N, C, H, W) by the statistics of all ranks' z, of which each has as many values."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = z.to(weight.dtype)
        count = baseline.RANKS * z.numel() // z.shape[1]
        mean, square = (sum_over_ranks(torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))])) / count).unbind()
        inverse = torch.rsqrt((square - mean * mean).clamp(min=0) + baseline.EPSILON)
        ctx.save_for_backward(z, weight, mean, inverse)
        scale = inverse * weight
        return (x * _by_channel(scale) + _by_channel(bias - mean * scale)).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z, weight, mean, inverse = ctx.saved_tensors
        dy = dy.to(weight.dtype)
        normal = (z.to(weight.dtype) - _by_channel(mean)) * _by_channel(inverse)
        own = torch.stack([dy.sum((0, 2, 3)), (dy * normal).sum((0, 2, 3))])
        dbias, dweight = (sum_over_ranks(own) / (baseline.RANKS * z.numel() // z.shape[1])).unbind()
        dz = _by_channel(inverse * weight) * (dy - _by_channel(dbias) - normal * _by_channel(dweight))
        return dz.to(z.dtype), own[1], own[0]


def _by_channel(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None]


class BatchNormByFunction(nn.BatchNorm2d):
    """BatchNormOfRanks as a layer."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return BatchNormOfRanks.apply(z, self.weight, self.bias)


class Loss(nn.Module):
    """What DistributedDataParallel wraps: the loss of the next batch, whoever computes it."""

    def __init__(self, model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self) -> torch.Tensor:
        return self.loss()


class Net(nn.Module):
    """The network; batch norm always takes the batch's statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(32, eps=baseline.EPSILON, track_running_stats=False)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(64, eps=baseline.EPSILON, track_running_stats=False)
        self.fc1 = nn.Linear(3136, 128)
        self.fc2 = nn.Linear(128, 10)

    def layer1(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)

    def layer2(self, a1: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.bn2(self.conv2(a1))), 2)

    def hidden(self, a2: torch.Tensor) -> torch.Tensor:
        return F.relu(self.fc1(a2.flatten(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.hidden(self.layer2(self.layer1(x))))


def pin_precision(precision: str, device: str, reduced: torch.dtype | None) -> str:
    """Pin what float32 convolutions and matrix products compute in, and say what is in force.

    Left alone, PyTorch's convolutions use TF32 and its matrix products do not.
    """
    if precision == "tf32" and device != "cuda":
        raise BaselineError("precision tf32 needs --device cuda", 4)
    tf32 = precision == "tf32"
    backends = torch.backends
    torch.set_float32_matmul_precision("high" if tf32 else "highest")  # torch.compile reads this one
    if hasattr(backends.cudnn, "conv"):
        pins = {
            "conv": backends.cudnn.conv if device == "cuda" else backends.mkldnn.conv,
            "matmul": backends.cuda.matmul if device == "cuda" else backends.mkldnn.matmul,
        }
        for pin in (*pins.values(), backends.cudnn.rnn):  # torch.compile wants all of cuDNN to agree
            pin.fp32_precision = "tf32" if tf32 else "ieee"
        pinned = ", ".join(f"{name} {pin.fp32_precision}" for name, pin in pins.items())
    else:  # before PyTorch 2.9
        backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = tf32
        pinned = f"conv allow_tf32={backends.cudnn.allow_tf32}, matmul allow_tf32={backends.cuda.matmul.allow_tf32}"
    return f"fp32 operations: {pinned}" + (f"; autocast to {str(reduced).removeprefix('torch.')}" if reduced else "")


def versions(cuda: bool) -> dict[str, str]:
    """Of what computes here; with a GPU's name."""
    found = {"torch": torch.__version__, "numpy": np.__version__}
    if cuda:
        found |= {
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "gpu": torch.cuda.get_device_name().replace(" ", "-"),
        }
    return found


def require_device(setup: Setup) -> None:
    """Refuse a GPU that is not here, and a graph without one."""
    if setup.device == "cuda" and not torch.cuda.is_available():
        raise BaselineError("device cuda: PyTorch finds no GPU", 4)
    if setup.mode == "graph" and setup.device != "cuda":
        raise BaselineError("mode graph captures a CUDA graph and needs --device cuda", 4)


def prepare(setup: Setup) -> tuple[str, dict[str, str]]:
    """Pin the precision, set the threads and the seed; returns what `pin_precision` and `versions` say."""
    pinned = pin_precision(setup.precision, setup.device, reduced_type(setup))
    if setup.threads:
        torch.set_num_threads(setup.threads)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(setup.seed)
    return pinned, versions(setup.device == "cuda")


def normalised(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as the network's input."""
    return (images.to(dtype) / 255 - baseline.PIXEL_MEAN) / baseline.PIXEL_STD


def reduced_type(setup: Setup) -> torch.dtype | None:
    """What autocast turns activations and filters into, if anything."""
    if "fp16" in setup.options:
        return torch.float16
    return torch.bfloat16 if setup.precision == "bf16" else None


def autocast(setup: Setup) -> torch.autocast:
    """To the reduced type, where there is one."""
    reduced = reduced_type(setup)
    return torch.autocast(setup.device, reduced or torch.bfloat16, enabled=reduced is not None, cache_enabled=False)


@contextlib.contextmanager
def tuned_alone(setup: Setup) -> Iterator[None]:
    """Let Inductor time its candidates only while it holds setup.tuning_lock."""
    timers = []
    if setup.mode == "max-autotune" and setup.device == "cuda":
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
        from torch._inductor.select_algorithm import AlgorithmSelectorCache

        timers = [(CachingAutotuner, "benchmark_all_configs"), (AlgorithmSelectorCache, "benchmark_choices")]
    originals = [(owner, name, vars(owner)[name]) for owner, name in timers if name in vars(owner)]

    def locked(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with baseline.alone(setup):
                return function(*arguments, **named)

        return call

    for owner, name, found in originals:
        plain = getattr(found, "__func__", found)
        setattr(owner, name, type(found)(locked(plain)) if plain is not found else locked(plain))
    yield
    for owner, name, found in originals:
        setattr(owner, name, found)


class Trainer:
    """A model, its optimiser and one way to run a step; see baseline.Trainer."""

    FRAMEWORK = "PyTorch"
    OPTIONS = ("whole", "fp16", "floats")
    finds_gpu = staticmethod(torch.cuda.is_available)

    def __init__(
        self,
        setup: Setup,
        data: Data,
        weights: dict[str, np.ndarray] | None,
        order: np.ndarray,
        rates: np.ndarray | None = None,
    ) -> None:
        require_device(setup)
        self.setup = setup
        self.cuda = setup.device == "cuda"
        self.rank, self.ranks = baseline.RANK, baseline.RANKS
        if self.ranks > 1:
            self._join()
        self.compiled = setup.mode in COMPILER_MODES
        self.captured = setup.mode == "graph" or (self.compiled and self.cuda)
        self.counts = self.captured or self.compiled  # where in the order it is, in a tensor that the step moves on
        self.whole = "whole" in setup.options
        if self.whole and not self.compiled:
            raise BaselineError(f"option whole is of modes {' and '.join(COMPILER_MODES)}")
        self.precision_pinned, self.versions = prepare(setup)

        self.dtype = torch.float64 if setup.precision == "fp64" else torch.float32
        self.memory_format = torch.channels_last if setup.channels_last else torch.contiguous_format
        self.model = Net().to(self.dtype)
        if weights is not None:
            self.model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
        self.model.to(setup.device, memory_format=self.memory_format)
        if rates is not None and setup.data == "host":
            raise BaselineError("data host: a rate for each step is for training images on the device")
        # With a rate for each step, the rate is a tensor that the step fills: a captured step must not bake it in.
        self.rates = None if rates is None else torch.from_numpy(rates).to(setup.device, self.dtype)
        self.rate = None if rates is None else torch.zeros((), dtype=self.dtype, device=setup.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), setup.lr if self.rate is None else self.rate, fused=True
        )
        self.scaled = "fp16" in setup.options
        self.scaler = torch.amp.GradScaler(setup.device, enabled=self.scaled)
        self.scaler_at_first = self.scaler.state_dict()
        if self.ranks > 1:
            self._share_batch_norms()
        if self.whole:
            self.scale = torch.ones((), device=setup.device)
            self.sound_steps = torch.zeros((), dtype=torch.int32, device=setup.device)

        images, labels = self._stored(data.images), torch.from_numpy(data.labels.astype(np.int64))
        self.host_fed = setup.data == "host"
        home = "cpu" if self.host_fed else setup.device
        self.images, self.labels = images.to(home), labels.to(home)
        batch = setup.batch_size
        if self.host_fed:  # two staging buffers: one is filled while the other's copy is under way
            staging = [(images[:batch].clone(), labels[:batch].clone()) for _ in range(2)]
            self.staging = [tuple(t.pin_memory() if self.cuda else t for t in pair) for pair in staging]
            self.copied = [torch.cuda.Event() for _ in range(2)] if self.cuda else []
            self.batch = tuple(t.to(setup.device) for t in staging[0])
        self.set_order(order)
        self.initial = [p.detach().clone() for p in self.model.parameters()]
        with baseline.alone(setup):
            self._warm_up(1)  # cuDNN times its algorithms
        if self.whole:
            torch._dynamo.config.trace_autograd_ops = True
            self._step = self._compile(self._whole_step)
        elif self.compiled:
            self._loss = self._compile(self._loss)
        if self.ranks > 1 and not self.whole:
            self._loss = self._distributed()
        with tuned_alone(setup):
            self._warm_up(WARM_UP_STEPS if self.ranks == 1 else RANKS_WARM_UP_STEPS)
        self._capture()
        self.restart()

    def _join(self) -> None:
        """Meet the other ranks, each with a GPU. NVLink multicast stays off, as in what this is compared with."""
        baseline.require_shares(self.setup)
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # or it cannot be captured
        if self.cuda:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("nccl" if self.cuda else "gloo")

    def _share_batch_norms(self) -> None:
        """Let the statistics be those of the whole batch."""
        if self.compiled or not self.cuda:  # SyncBatchNorm is for GPUs
            self.model.bn1.__class__ = self.model.bn2.__class__ = BatchNormByFunction
            return
        self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        if self.setup.precision == "bf16" or self.scaled:  # without running statistics it takes no 16 bits
            for bn in (self.model.bn1, self.model.bn2):
                bn.track_running_stats = True
                bn.running_mean, bn.running_var = torch.zeros_like(bn.weight), torch.ones_like(bn.weight)
                bn.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=bn.weight.device)

    def _distributed(self) -> nn.Module:
        """The loss, whose gradients are averaged over all ranks."""
        torch._dynamo.config.optimize_ddp = False  # it would cut the graph between buckets, and there is one
        stream = torch.cuda.Stream() if self.cuda else None
        if stream:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # where it will be captured
            loss = nn.parallel.DistributedDataParallel(
                Loss(self.model, self._loss), broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=True
            )
        if stream:
            torch.cuda.current_stream().wait_stream(stream)
        return loss

    def _stored(self, images: np.ndarray) -> torch.Tensor:
        """As the data set is kept."""
        values = torch.from_numpy(images.copy())
        if "floats" in self.setup.options:
            values = normalised(values, self.dtype).to(reduced_type(self.setup) or self.dtype)
        return values

    def set_images(self, images: np.ndarray) -> None:
        self.images.copy_(self._stored(images))  # where a graph reads them
        self._synchronise()

    def set_labels(self, labels: np.ndarray) -> None:
        self.labels.copy_(torch.from_numpy(labels.astype(np.int64)))

    def set_order(self, order: np.ndarray) -> None:
        share = order.shape[1] // self.ranks
        own = np.ascontiguousarray(order[:, self.rank * share : (self.rank + 1) * share])
        rows = torch.from_numpy(own).to(self.images.device)
        if self.captured and hasattr(self, "order"):
            self.order.copy_(rows)  # the graph reads this very memory
            self.counter.zero_()
        else:
            self.order = rows
            self.counter = torch.zeros(1, dtype=torch.int64, device=rows.device)
        self.position = 0

    def _compile(self, function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return torch.compile(function, mode=COMPILER_MODES[self.setup.mode], fullgraph=True, dynamic=False)

    def set_rates(self, rates: np.ndarray) -> None:
        if self.rates is None:
            raise BaselineError("rates for a training that was set up with a constant one")
        self.rates.copy_(torch.from_numpy(rates))  # where a graph reads them

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        names = [name for name, _ in self.model.named_parameters()]
        for value, name in zip(self.initial, names, strict=True):
            value.copy_(torch.from_numpy(weights[name].copy()))

    def restart(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), self.initial, strict=True):
                parameter.copy_(value)
        self.scaler.load_state_dict(self.scaler_at_first)
        if self.whole and self.scaled:
            self.scale.fill_(self.scaler_at_first["scale"])
            self.sound_steps.zero_()
        self.counter.zero_()
        self.position = 0
        self._synchronise()

    def _warm_up(self, steps: int) -> None:
        """Compile and tune, which changes the weights and the position; on the stream where it will be captured."""
        stream = torch.cuda.Stream() if self.captured else None
        if stream:
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(steps):
                self._feed()
                self._step()
        if stream:
            torch.cuda.current_stream().wait_stream(stream)

    def _capture(self) -> None:
        if self.captured:
            self.graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph):
                self.loss = self._step()

    def _feed(self) -> None:
        """Host-fed: gather the next batch in pinned memory and start its copy to the device."""
        if not self.host_fed:
            return
        slot = self.position % 2
        indices = self.order[self.position % len(self.order)]
        self.position += 1
        if self.cuda:
            self.copied[slot].synchronize()
        for source, staged, target in zip((self.images, self.labels), self.staging[slot], self.batch, strict=True):
            torch.index_select(source, 0, indices, out=staged)
            target.copy_(staged, non_blocking=True)
        if self.cuda:
            self.copied[slot].record()

    def _next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.rates is not None:
            row = self.counter if self.counts else self.position % len(self.order)
            self.rate.copy_(self.rates[row].reshape(()))
        if self.host_fed:
            return self.batch
        if self.counts:
            indices = self.order.index_select(0, self.counter)[0]
            self.counter.add_(1).remainder_(len(self.order))
        else:
            indices = self.order[self.position % len(self.order)]
            self.position += 1
        return self.images.index_select(0, indices), self.labels.index_select(0, indices)

    def _pixels(self, images: torch.Tensor) -> torch.Tensor:
        if images.dtype == torch.uint8:
            images = normalised(images, self.dtype)
        return images.unsqueeze(1).contiguous(memory_format=self.memory_format)

    def _loss(self) -> torch.Tensor:
        """Batch load and forward."""
        images, labels = self._next_batch()
        with autocast(self.setup):
            return F.cross_entropy(self.model(self._pixels(images)), labels)

    def _step(self) -> torch.Tensor:
        """Batch load, forward, backward, update, zero grad; the loss stays on the device."""
        loss = self._loss()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _whole_step(self) -> torch.Tensor:
        """The same with GradScaler's rules and the update written out, for the compiler to fuse with the gradients."""
        loss = self._loss()
        values = list(self.model.parameters())
        rate = self.setup.lr if self.rate is None else self.rate
        if not self.scaled:
            gradients = self._mean_over_ranks(torch.autograd.grad(loss, values))
            with torch.no_grad():
                for value, gradient in zip(values, gradients, strict=True):
                    value.sub_(rate * gradient)
            return loss.detach()
        gradients = self._mean_over_ranks(torch.autograd.grad(loss * self.scale, values))
        with torch.no_grad():
            gradients = [gradient / self.scale for gradient in gradients]
            sound = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
            for value, gradient in zip(values, gradients, strict=True):
                value.copy_(torch.where(sound, value - rate * gradient, value))
            sound_steps = self.sound_steps + 1
            grows = sound & (sound_steps == self.scaler_at_first["growth_interval"])
            factor = torch.where(grows, self.scaler_at_first["growth_factor"], 1.0)
            self.scale.mul_(torch.where(sound, factor, self.scaler_at_first["backoff_factor"]))
            self.sound_steps.copy_(torch.where(sound & ~grows, sound_steps, 0))
        return loss.detach()

    def _mean_over_ranks(self, gradients: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """By one sum of all of them."""
        if self.ranks == 1:
            return gradients
        means = sum_over_ranks(torch.cat([gradient.flatten() for gradient in gradients])) / self.ranks
        parts = means.split([gradient.numel() for gradient in gradients])
        return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]

    def _synchronise(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def run(self, steps: int) -> tuple[float, list[float]]:
        self._synchronise()
        if self.ranks > 1:
            torch.distributed.barrier()  # all begin together
            self._synchronise()
        start = baseline.now()
        for k in range(steps):
            self._feed()
            if self.captured:
                self.graph.replay()
                loss = self.loss
            else:
                loss = self._step()
            if k == 0:
                first = loss.clone()  # a replay writes to the same tensor again
        self._synchronise()
        seconds = baseline.now() - start
        losses = torch.stack([first, loss])
        if self.ranks > 1:  # of the whole batch
            torch.distributed.all_reduce(losses)
        return seconds, (losses / self.ranks).tolist()

    @torch.no_grad()
    def classes(self, images: np.ndarray, count: int | None = None) -> np.ndarray:
        model = self.model
        chunk = baseline.EVALUATION_BATCH

        def normalised(bn: nn.BatchNorm2d, z: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
            y = F.batch_norm(z, mean.to(z.dtype), var.to(z.dtype), bn.weight, bn.bias, False, 0.0, bn.eps)
            return F.max_pool2d(F.relu(y), 2)

        def statistics(z_of: object) -> tuple[torch.Tensor, torch.Tensor]:
            """Mean and biased variance by channel over these training images."""
            total = squares = values = 0
            for chunk_images in self.images[:count].split(chunk):
                z = z_of(self._pixels(chunk_images.to(self.setup.device))).double()
                total, squares = total + z.sum((0, 2, 3)), squares + z.square().sum((0, 2, 3))
                values += z.numel() // z.shape[1]
            return total / values, squares / values - (total / values).square()

        with autocast(self.setup):
            of1 = statistics(model.conv1)
            layer1 = lambda x: normalised(model.bn1, model.conv1(x), *of1)  # noqa: E731
            of2 = statistics(lambda x: model.conv2(layer1(x)))
            found = []
            for first in range(0, len(images), chunk):
                x = self._pixels(torch.from_numpy(images[first : first + chunk].copy()).to(self.setup.device))
                a2 = normalised(model.bn2, model.conv2(layer1(x)), *of2)
                found.append(model.fc2(model.hidden(a2)).argmax(1))
        return torch.cat(found).cpu().numpy()

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: value.detach().cpu().numpy() for name, value in self.model.named_parameters()}

    def probe(self) -> dict[str, np.ndarray]:
        indices = self.order[0]
        images = self.images.index_select(0, indices).to(self.setup.device)
        labels = self.labels.index_select(0, indices).to(self.setup.device)
        with autocast(self.setup):
            a1 = self.model.layer1(self._pixels(images))
            a2 = self.model.layer2(a1)
            h = self.model.hidden(a2)
            logits = self.model.fc2(h)
            loss = F.cross_entropy(logits, labels)
        loss.backward()
        values = {"loss": loss, "a1": a1, "a2": a2, "h": h, "logits": logits}
        values |= {f"gradient.{name}": parameter.grad for name, parameter in self.model.named_parameters()}
        arrays = {name: value.detach().double().cpu().numpy() for name, value in values.items()}
        self.optimizer.zero_grad(set_to_none=True)
        return arrays

    def trace(self, steps: int) -> list[dict[str, Any]]:
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if self.cuda else [])]
        with profiler.profile(activities=activities, acc_events=True) as profile:
            for k in range(steps):
                with profiler.record_function(f"step {k + 1}"):
                    self.run(1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            return json.loads(path.read_text())["traceEvents"]


if __name__ == "__main__":
    sys.exit(baseline.main(Trainer, MODES, __doc__.splitlines()[0]))
