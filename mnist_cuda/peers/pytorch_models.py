#!/usr/bin/env python3
"""Several models at once in PyTorch: torch.func's vmap of the loss over models. Needs torch and numpy.

Modes: `graph` (the whole step in one CUDA graph), `eager`. A step trains `models` of them: model m begins m steps later
in the same order.
"""

from __future__ import annotations

import sys

import baseline
import numpy as np
import pytorch_baseline
from baseline import BaselineError, Data, Setup
from pytorch_baseline import F, torch

MODES = ("graph", "eager")


class Trainer:
    """Models that share the images; each tensor of parameters has them as first dimension. See baseline.Trainer."""

    OPTIONS = ()

    def __init__(
        self,
        setup: Setup,
        data: Data,
        weights: dict[str, np.ndarray] | None,
        order: np.ndarray,
        rates: np.ndarray | None = None,
    ) -> None:
        pytorch_baseline.require_device(setup)
        if setup.data == "host" or rates is not None:
            raise BaselineError("several models train on images on the device, at a constant rate")
        self.setup = setup
        self.cuda = setup.device == "cuda"
        self.precision_pinned, self.versions = pytorch_baseline.prepare(setup)
        self.dtype = torch.float64 if setup.precision == "fp64" else torch.float32
        self.model = pytorch_baseline.Net().to(setup.device, self.dtype)
        if weights is not None:
            self.model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
        self.initial = {
            name: value.detach().expand(setup.models, *value.shape).clone()
            for name, value in self.model.named_parameters()
        }
        self.values = {name: value.clone().requires_grad_() for name, value in self.initial.items()}
        self.images = torch.from_numpy(data.images.copy()).to(setup.device)
        self.labels = torch.from_numpy(data.labels.astype(np.int64)).to(setup.device)
        orders = np.stack([np.roll(order, -model, axis=0) for model in range(setup.models)], axis=1)
        self.order = torch.from_numpy(orders).to(setup.device)  # steps, models, batch
        self.counter = torch.zeros(1, dtype=torch.int64, device=setup.device)
        # Not of func's grad: in bf16 the gradient of batch norm under it mixes types and is refused.
        self.losses = torch.func.vmap(self._loss)
        self.graph = self._capture() if setup.mode == "graph" else None
        self.restart()

    def _loss(self, values: dict[str, torch.Tensor], pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(self.model, values, (pixels,)), labels)

    def _capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(pytorch_baseline.WARM_UP_STEPS):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.loss = self._step()
        return graph

    def _step(self) -> torch.Tensor:
        """Batch load, forward, backward and update of every model; the mean of their losses stays on the device."""
        rows = self.order.index_select(0, self.counter)[0]
        self.counter.add_(1).remainder_(len(self.order))
        pixels = pytorch_baseline.normalised(self.images[rows], self.dtype)
        with pytorch_baseline.autocast(self.setup):
            losses = self.losses(self.values, pixels.unsqueeze(2), self.labels[rows])
        values = list(self.values.values())
        gradients = torch.autograd.grad(losses.sum(), values)
        with torch.no_grad():
            torch._foreach_add_(values, gradients, alpha=-self.setup.lr)
        return losses.detach().mean()

    @torch.no_grad()
    def restart(self) -> None:
        for name, value in self.initial.items():
            self.values[name].copy_(value)
        self.counter.zero_()

    def run(self, steps: int) -> tuple[float, list[float]]:
        if self.cuda:
            torch.cuda.synchronize()
        start = baseline.now()
        for k in range(steps):
            if self.graph:
                self.graph.replay()
                loss = self.loss
            else:
                loss = self._step()
            if k == 0:
                first = loss.clone()  # a replay writes to the same tensor again
        if self.cuda:
            torch.cuda.synchronize()
        return baseline.now() - start, [first.item(), loss.item()]


if __name__ == "__main__":
    sys.exit(baseline.main(Trainer, MODES, __doc__.splitlines()[0]))
