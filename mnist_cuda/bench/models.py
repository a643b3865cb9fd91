"""`mnist-cuda bench --models`: a step of one of many models, ours and other frameworks', interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnist_cuda import _native
from mnist_cuda.bench.competitors import (
    PEER_PYTHON,
    Competitor,
    engine_competitor,
    of_models,
    peer_competitors,
    the_engine,
    whole_numbers,
    words,
)
from mnist_cuda.bench.record import Record
from mnist_cuda.bench.rows import Row
from mnist_cuda.bench.step import BenchOptions, cells_of, measure, plan
from mnist_cuda.bench.variants import SWEEP_PEERS
from mnist_cuda.engine import EngineInfo
from mnist_cuda.errors import UnavailableError

STEP = "model-step"


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(BenchOptions):
    """What to measure. models: numbers of models at once, as text: ours, beside as many as fill the GPU, and peers'."""

    batch_size: Sequence[str] = ("64", "256")
    models: Sequence[str] = ("16", "64")


def ours(info: EngineInfo, batch_size: int, numbers: Sequence[int]) -> list[Competitor]:
    """The engine with models one after another, and side by side where it can do that."""
    alone = engine_competitor(info)
    found = [of_models(alone, f"{info.name}, one after another", 1)]
    share = info.share_for(batch_size)
    fill = _native.gpus()[0]["multiprocessors"] // share if info.fleets and share and not info.unavailable else 0
    if fill:
        label = f"{info.name}, {{models}} side by side"
        found += [of_models(alone, label, number) for number in dict.fromkeys((fill, *numbers)) if number > 1]
    return found


def command(options: ModelsOptions) -> int:
    output = Record(options.json, busy=options.busy)
    numbers = whole_numbers("--models", options.models, some=False)
    info = the_engine(options.engines, "--models")
    if info.unavailable:
        raise UnavailableError(f"engine '{info.name}' cannot run here: {info.unavailable}")
    python = options.peer_python or PEER_PYTHON
    peers = peer_competitors(words(options.peers), [info.device], python, SWEEP_PEERS, numbers)
    rows: list[Row] = []
    for cell in cells_of(options, [engine_competitor(info)]):
        rows += plan([*ours(info, cell.batch_size, numbers), *peers], [cell], options.precisions is not None)
    return measure(rows, options.load(), options, output, STEP)
