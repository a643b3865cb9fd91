"""The `bench check` command: one step of each engine, and of PyTorch, held against float64."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.bench.competitors import PEER_PYTHON, Competitor, first_variants, some_words, words
from mnist_cuda.bench.process import CompetitorError, CompetitorProcess, write_array, write_arrays
from mnist_cuda.engine import Engine, Images, Labels, Probe, find_engine
from mnist_cuda.engine.model import PARAMETERS, init_parameters
from mnist_cuda.engine.tolerances import PEER_BIAS_NOISE, Free, error_of, tolerance
from mnist_cuda.errors import UnavailableError, UsageError
from mnist_cuda.judge.own_kernels import own_kernels
from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.run.names import find_run
from mnist_cuda.run.options import DataOptions, OutputOptions
from mnist_cuda.run.results import Model
from mnist_cuda.terminal import console
from mnist_cuda.terminal.json_output import JsonOutput

Tensors = dict[str, NDArray[Any]]

ACTIVATIONS = ("a1", "a2", "h", "logits")


@dataclass(frozen=True)
class Row:
    """One tensor of one competitor: its error against float64 under the same routing and under each side's own.

    Relative L2; absolute for the loss and where nothing but 0 is expected. `frozen` and its bound are None where the
    routing is not known. A free bound is that of the worst of 20 batches.
    """

    tensor: str
    frozen: float | None
    frozen_bound: float | None
    free: float
    free_bound: float

    @property
    def holds(self) -> bool:
        """Both errors are within their bounds; a NaN is not."""
        frozen = self.frozen is None or self.frozen_bound is None or self.frozen <= self.frozen_bound
        return frozen and self.free <= self.free_bound


def tensors_of(probe: Probe) -> Tensors:
    """What is compared, by name: loss, the activations that were formed, and the gradient of each parameter."""
    found: Tensors = {"loss": np.asarray(probe.loss)}
    for name in ACTIVATIONS:
        value = getattr(probe, name)
        if value is not None:
            found[name] = value
    return found | probe.gradients


def compare(name: str, precision: str, batch: int, values: Tensors, free: Tensors, frozen: Tensors | None) -> list[Row]:
    """Hold the `values` of engine or peer `name` against float64's: `free`, and `frozen` under the values' routing."""

    def error(tensor: str, expected: Tensors) -> float:
        if tensor == "loss":
            return abs(float(values[tensor] - expected[tensor]))
        return error_of(values[tensor], expected[tensor])

    rows = []
    for tensor in values:
        bound = tolerance(name, precision, tensor, batch, "frozen")
        assert isinstance(bound, float)
        free_bound = bound
        if tensor in {t.name for t in PARAMETERS}:
            of_free = tolerance(name, precision, tensor, batch, "free")
            assert isinstance(of_free, Free)
            free_bound = of_free.worst
        if frozen is None and tensor in ("conv1.bias", "conv2.bias"):
            free_bound = PEER_BIAS_NOISE  # a framework computes the 0 by rounding
        of_frozen = error(tensor, frozen) if frozen else None
        rows.append(Row(tensor, of_frozen, bound if frozen else None, error(tensor, free), free_bound))
    return rows


def peer_values(peer: Competitor, precision: str, images: Images, labels: Labels, weights: Tensors) -> Tensors:
    """Loss, activations and gradients of one batch in a peer's process. Raises UnavailableError with its reason."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {key: str(Path(folder, key)) for key in ("data.npz", "weights", "order.npy", "probe.npz")}
        write_arrays(Path(paths["data.npz"]), images=images, labels=labels)
        save_model(Path(paths["weights"]), Model(weights), steps=0)
        write_array(Path(paths["order.npy"]), np.arange(len(labels)))
        try:
            with CompetitorProcess(peer.command) as process:
                process.ask(
                    cmd="setup",
                    batch_size=len(labels),
                    precision=precision,
                    npz=paths["data.npz"],
                    weights=paths["weights"],
                    order=paths["order.npy"],
                    **peer.fields,
                )
                process.ask(cmd="dump", file=paths["probe.npz"])
        except CompetitorError as error:
            raise UnavailableError(f"{peer.label}: {error}") from None
        with np.load(paths["probe.npz"]) as arrays:
            return {name.removeprefix("gradient."): arrays[name] for name in arrays}


@dataclass(frozen=True, kw_only=True)
class CheckOptions(DataOptions, OutputOptions):
    """What to compare: engines, and other frameworks by an interpreter that has them; on which step.

    precision: None is each engine's first. batch_size: training images. seed: of weights and batch. weights: a saved
    model to start from instead. own: files with kernels of the user's, for all these engines.
    """

    engines: Sequence[str] = ("auto",)
    peers: Sequence[str] = ()
    peer_python: Path | None = None
    precision: str | None = None
    threads: int = 0
    device: int = 0
    batch_size: int = 64
    seed: int = 0
    weights: Path | None = None
    own: Sequence[Path] = ()


def command(options: CheckOptions) -> int:
    output = JsonOutput(options.json)
    infos = [find_engine(name) for name in some_words("--engines", options.engines)]
    on_gpu = any(info.device == "cuda" for info in infos)
    engines, own = [], own_kernels(options.own)
    for info in infos:
        device = 0 if on_gpu and info.device == "cpu" else options.device  # the GPU's number is for those that use it
        engines.append(Engine(info.name, options.precision, threads=options.threads, device=device, own=own))
    peers = first_variants(words(options.peers), "cuda" if on_gpu else "cpu", options.peer_python or PEER_PYTHON)
    data = options.load()
    if options.batch_size > len(data.train_labels):
        raise UsageError(
            f"--batch-size {options.batch_size} exceeds the {len(data.train_labels)} images of {data.name}"
        )
    chosen = np.random.default_rng(options.seed).permutation(len(data.train_labels))[: options.batch_size]
    images, labels = data.train_images[chosen], data.train_labels[chosen]
    weights = load_model(find_run(options.weights)).parameters if options.weights else init_parameters(options.seed)

    reference = Engine("reference")
    reference.set_parameters(weights)
    estimate = console.Estimate(console.make_console(stderr=output.on_stdout))
    free = tensors_of(reference.probe(images, labels))
    estimate.after(1 / (1 + len(engines)))
    results: list[tuple[str, str, list[Row]]] = []
    for engine in engines:
        engine.set_parameters(weights)
        probe = engine.probe(images, labels)
        frozen = tensors_of(reference.probe(images, labels, routing=probe.routing))
        name, precision = engine.info.name, engine.precision
        results.append((name, precision, compare(name, precision, len(labels), tensors_of(probe), free, frozen)))
    for peer in peers:
        precision = options.precision or "fp32"
        values = peer_values(peer, precision, images, labels, weights)
        results.append((peer.label, precision, compare("torch", precision, len(labels), values, free, None)))

    holds = all(row.holds for _, _, rows in results for row in rows)
    start = str(options.weights) if options.weights else f"seed {options.seed}"
    if output:
        report = {
            "batch_size": len(labels),
            "dataset": data.name,
            "weights": start,
            "holds": holds,
            "results": [
                {"name": name, "precision": precision, "rows": [asdict(row) | {"holds": row.holds} for row in rows]}
                for name, precision, rows in results
            ],
        }
        output.write(report)
    if not output.on_stdout:
        _print(results, f"batch {len(labels)} of {data.name}, weights of {start}", holds)
    return 0 if holds else 1


def _print(results: list[tuple[str, str, list[Row]]], case: str, holds: bool) -> None:
    out = console.make_console()
    for name, precision, rows in results:
        out.print(f"{name} {precision} against float64: {case}\n")
        cells = [
            (
                row.tensor,
                "-" if row.frozen is None else f"{row.frozen:.1e}",
                "-" if row.frozen_bound is None else f"{row.frozen_bound:.0e}",
                f"{row.free:.1e}",
                f"{row.free_bound:.0e}",
                "ok" if row.holds else "BROKEN",
            )
            for row in rows
        ]
        columns = ("tensor", "frozen", "bound", "free", "free bound", "verdict")
        console.print_table(out, columns, cells, right=columns[1:5])
        out.print()
    out.print("All within bounds." if holds else "A bound is broken.")
    out.print("Relative L2 errors; of the loss, the absolute one.")
    out.print("frozen: float64 takes the engine's choices in max pooling and ReLU; free: it makes its own.")
