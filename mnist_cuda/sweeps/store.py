"""What a sweep leaves in its folder: sweep.csv, and weights and hits if wanted. All of it is sound at any moment.

- runs.csv: all runs, as `--runs` reads them.
- sweep.csv: a row for each model that is done, by the run's number; replaced as a whole about once a second.
- weights.safetensors, for `all`: each tensor with the models as first dimension, in the order of the runs. A model that
  diverged is NaN; one that is not done yet, and has no row, is 0.
- best.safetensors, for `best`: the model of the highest `SweptModel.rank`, as `train` saves it.
- hits.safetensors, if hits are kept: the tensor `hits` (models, tested epochs, bytes) uint8, a bit for each test image,
  the first image the highest bit of the first byte (`numpy.unpackbits`); 0 of a model that diverged or is not done yet.

A row is written after the weights and hits that it speaks of. What was trained since sweep.csv was last replaced is
lost with the process, and trained again to the same bits.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mnist_cuda.engine.model import PARAMETERS, STATISTICS, digest
from mnist_cuda.errors import CheckpointError
from mnist_cuda.files import atomic_write, replacing, writing
from mnist_cuda.run.checkpoint import NORMALISATION, load_model, save_model
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.results import Model
from mnist_cuda.sweeps.grid import runs_table
from mnist_cuda.sweeps.table import SweptModel, csv_head, csv_row, read_table

RUNS_FILE, TABLE_FILE = "runs.csv", "sweep.csv"
WEIGHTS_FILE, BEST_FILE, HITS_FILE = "weights.safetensors", "best.safetensors", "hits.safetensors"
SAVES = ("all", "best", "none")
WRITE_EVERY = 1.0  # seconds between two writes of sweep.csv
WRITING_SHARE = 0.05  # of the time, at most, where the table is long


class Stacked:
    """A safetensors file with tensors of all models: made at its full size, filled model by model.

    shapes: of a model's tensors, by name. dtype: of all of them. metadata: of the file. what, instead: for people, what
    is in it and what to do where it does not fit on the disk.
    Raises CheckpointError where it cannot be made, read or written.
    """

    def __init__(
        self, path: Path, models: int, shapes: Mapping[str, tuple[int, ...]], dtype: DTypeLike,
        metadata: Mapping[str, str], what: str, instead: str,
    ) -> None:  # fmt: skip
        self.path, self._dtype, self._what, self._instead = path, np.dtype(dtype), what, instead
        self._places: dict[str, tuple[int, int, tuple[int, ...]]] = {}  # first byte, bytes a model, shape
        header: dict[str, object] = {"__metadata__": {"format": "mnist-cuda sweep", **metadata}}
        end, kind = 0, f"{self._dtype.kind.upper()}{8 * self._dtype.itemsize}"
        for name, shape in shapes.items():
            size, begin = math.prod(shape) * self._dtype.itemsize, end
            end += models * size
            self._places[name] = begin, size, shape
            header[name] = {"dtype": kind, "shape": [models, *shape], "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._start = len(text).to_bytes(8, "little") + text
        self._size = len(self._start) + end

    def make(self) -> None:
        """Make the file, without any model in it."""
        free = shutil.disk_usage(self.path.parent).free
        if self._size > free:
            need = f"{self._size / 1e6:.1f} MB and {free / 1e6:.1f} MB are free"
            raise CheckpointError(f"{self.path}: {self._what} need {need}; {self._instead}")
        with writing(self.path), replacing(self.path) as file:
            file.write(self._start)
            file.truncate(self._size)

    def open(self) -> None:
        """Open the file, which was made for the same models; made now if there is none."""
        if not self.path.exists():
            self.make()
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            start = os.pread(self._file, len(self._start), 0)
            if start != self._start or os.fstat(self._file).st_size != self._size:
                raise CheckpointError(f"{self.path}: it was not made for these models")
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be opened: {error.strerror or error}") from error

    def write(self, index: int, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Put a model's tensors in their places; those that it does not have become NaN."""
        with writing(self.path):
            for name, (begin, size, shape) in self._places.items():
                values = tensors[name] if name in tensors else np.full(shape, np.nan)
                content = np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data
                place = len(self._start) + begin + index * size
                while content:  # a full disk takes a part, and then says so
                    written = os.pwrite(self._file, content, place)
                    content, place = content[written:], place + written

    def read(self, index: int) -> dict[str, NDArray[Any]]:
        """The tensors of a model."""
        tensors = {}
        for name, (begin, size, shape) in self._places.items():
            content = os.pread(self._file, size, len(self._start) + begin + index * size)
            tensors[name] = np.frombuffer(content, self._dtype).reshape(shape)
        return tensors

    def sync(self) -> None:
        """Make what was written outlast a crash of the machine."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def stacked_weights(folder: Path, models: int, dtype: DTypeLike) -> Stacked:
    shapes = {t.name: t.shape for t in (*PARAMETERS, *STATISTICS)}
    metadata, instead = {"normalisation": NORMALISATION}, "save the best, or none"
    return Stacked(folder / WEIGHTS_FILE, models, shapes, dtype, metadata, "all weights", instead)


def stacked_hits(folder: Path, models: int, epochs: int, images: int) -> Stacked:
    shapes, metadata = {"hits": (epochs, -(-images // 8))}, {"images": str(images)}
    return Stacked(folder / HITS_FILE, models, shapes, np.uint8, metadata, "the hits", "keep none of them")


class SweepFiles:
    """The files of one sweep; see above. rows: all that are done, by the run's number; unwritten: not in the table yet.

    each_epoch: whether a model is tested after each epoch. images: how many test images there are, if hits are kept.
    Raises CheckpointError where files cannot be written, or are not those of these runs.
    """

    def __init__(
        self, folder: Path, runs: Sequence[TrainOptions], save: str, dtype: DTypeLike, *, resume: bool,
        each_epoch: bool = False, images: int = 0,
    ) -> None:  # fmt: skip
        self.folder, self.runs, self.save, self.each_epoch, self._images = folder, runs, save, each_epoch, images
        self.rows: dict[int, SweptModel] = {}
        self._epochs = max(run.epochs for run in runs)
        self._lines: dict[int, str] = {}
        self._best: SweptModel | None = None
        self.unwritten: list[SweptModel] = []
        self._next = 0.0  # when the table may be written
        self._weights = stacked_weights(folder, len(runs), dtype) if save == "all" else None
        self._hits = stacked_hits(folder, len(runs), self._epochs if each_epoch else 1, images) if images else None
        for file in self._stacked:
            file.open()
        if resume:
            self._take_up()
        else:
            atomic_write(folder / RUNS_FILE, runs_table(runs))
            self._write()
            self._next = 0.0  # the first row is shown at once

    @property
    def _stacked(self) -> list[Stacked]:
        return [file for file in (self._weights, self._hits) if file]

    def _take_up(self) -> None:
        """Read the table; rows whose weights or hits are not in the files as they should be are left out."""
        for row in read_table(self.folder / TABLE_FILE, self._epochs, self.each_epoch):
            if not (0 <= row.index < len(self.runs) and self.runs[row.index] == row.options):
                raise CheckpointError(f"{self.folder / TABLE_FILE}: model {row.index} is not that of {RUNS_FILE}")
            if row.weights is not None:
                if self._weights and digest(self._weights.read(row.index)) != row.weights:
                    continue
                if self._hits and (row := self._with_hits(row)).hits is None:
                    continue
            self._keep(row)
        best = max(self.rows.values(), key=lambda row: row.rank, default=None)
        if self.save == "best" and best and best.weights:
            try:
                found = digest(load_model(self.folder / BEST_FILE).parameters)
            except CheckpointError:
                found = ""
            if found != best.weights:
                del self.rows[best.index], self._lines[best.index]
                self._best = None  # trained again, it is the best again

    def _with_hits(self, row: SweptModel) -> SweptModel:
        """The row with its hits; without any where there are not as many as it says."""
        assert self._hits
        epochs = len(row.test_accuracies) or 1
        bits = np.unpackbits(self._hits.read(row.index)["hits"][:epochs], axis=1, count=self._images)
        right = [self._images * accuracy for accuracy in row.test_accuracies or [row.test_accuracy or 0]]
        sound = bits.sum(axis=1).tolist() == [round(count) for count in right]
        return replace(row, hits=bits.astype(bool) if sound else None)

    def _keep(self, row: SweptModel) -> None:
        self.rows[row.index] = row
        self._lines[row.index] = csv_row(row, self._epochs, self.each_epoch)
        if self._best is None or row.rank > self._best.rank:
            self._best = row

    def add(self, row: SweptModel, model: Model | None) -> None:
        """Keep a model that was trained."""
        self.unwritten.append(row)
        if self._weights:
            self._weights.write(row.index, model.parameters | (model.statistics or {}) if model else {})
        if self._hits and row.hits is not None:
            epochs = self._epochs if self.each_epoch else 1
            missing = ((0, epochs - len(row.hits)), (0, 0))
            self._hits.write(row.index, {"hits": np.pad(np.packbits(row.hits, axis=1), missing)})
        if self.save == "best" and model and (self._best is None or row.rank > self._best.rank):
            save_model(self.folder / BEST_FILE, model)
        self._keep(row)

    def tick(self) -> None:
        """Write the table if there are new rows and the last time is long enough ago."""
        if self.unwritten and time.monotonic() >= self._next:
            self._write()

    def _write(self) -> None:
        start = time.monotonic()
        for file in self._stacked:
            file.sync()
        lines = [csv_head(self._epochs, self.each_epoch), *(self._lines[index] for index in sorted(self._lines))]
        atomic_write(self.folder / TABLE_FILE, "".join(lines).encode())
        now = time.monotonic()
        self.unwritten.clear()
        self._next = now + max(WRITE_EVERY, (now - start) / WRITING_SHARE)

    def close(self) -> None:
        """Write what is not written yet."""
        try:
            if self.unwritten:
                self._write()
        finally:
            for file in self._stacked:
                file.close()
