"""Model files: safetensors with PyTorch's names, written atomically, read strictly.

A complete file loads into a plain PyTorch model (Conv2d, BatchNorm2d, Linear) by `load_state_dict(strict=True)`: the 12
parameters, `bn*.running_mean`, `bn*.running_var` and `bn*.num_batches_tracked` (int64, the steps trained). A file saved
by an interrupted run has no population statistics and lacks the last three. Everything but the counters is float32, or
float64 where the run was in fp64 (`reference`): nothing is rounded, and PyTorch converts as it copies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mnist_cuda import _native
from mnist_cuda.errors import CheckpointError
from mnist_cuda.files import atomic_write
from mnist_cuda.model import PARAMETERS, STATISTICS

MODEL_FILE = "model.safetensors"
FORMAT = "mnist-cuda"
NORMALISATION = f"(u/255 - {_native.PIXEL_MEAN:g})/{_native.PIXEL_STD:g}"

_COUNTERS = tuple(f"{t.name.split('.')[0]}.num_batches_tracked" for t in STATISTICS if t.name.endswith("running_mean"))
_FLOATS = {"F32": np.float32, "F64": np.float64}


@dataclass(frozen=True)
class Checkpoint:
    """A model: `parameters` and, unless it was interrupted, `statistics`, by PyTorch name; `metadata` as strings."""

    parameters: dict[str, NDArray[Any]]
    statistics: dict[str, NDArray[Any]] | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint, *, steps: int) -> None:
    """Write a model file; `steps` goes into the counters. Raises CheckpointError, also for a NaN or an infinity."""
    tensors: dict[str, NDArray[Any]] = dict(checkpoint.parameters)
    if checkpoint.statistics is not None:
        tensors |= checkpoint.statistics
        tensors |= {name: np.array(steps, np.int64) for name in _COUNTERS}
    for name, tensor in tensors.items():
        _require_finite(path, name, tensor)
    metadata = {
        **checkpoint.metadata,
        "format": FORMAT,
        "normalisation": NORMALISATION,
        "steps": str(steps),
        "statistics": "absent" if checkpoint.statistics is None else "population",
    }
    content = save({name: np.asarray(t, order="C") for name, t in tensors.items()}, metadata)
    atomic_write(path, _in_fixed_order(content))


def _in_fixed_order(content: bytes) -> bytes:
    """The file with its metadata sorted: safetensors writes them in an order that changes from process to process."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors stay aligned
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a model file, or the one in a run folder. Files written by PyTorch with the same names are welcome.

    Raises CheckpointError that names the file, what was expected and what was found, for anything else: a missing or
    unknown tensor, another shape or dtype, a value that is not finite, a truncated file, a false header.
    """
    try:
        if path.is_dir():
            path = path / MODEL_FILE
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: not a regular file")
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            tensors = _read(path, file)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {_one_line(error)}") from error
    normalisation = metadata.get("normalisation", NORMALISATION)
    if normalisation != NORMALISATION:
        raise CheckpointError(f"{path}: trained on pixels normalised by {normalisation}, expected {NORMALISATION}")
    statistics = {t.name: tensors.pop(t.name) for t in STATISTICS if t.name in tensors}
    for name, value in statistics.items():
        if name.endswith("running_var") and value.min() < 0:
            raise CheckpointError(f"{path}: {name} holds {value.min():g}, expected variances >= 0")
    return Checkpoint(tensors, statistics or None, metadata)


def _read(path: Path, file: Any) -> dict[str, NDArray[Any]]:
    """All tensors but the counters. Names, shapes and dtypes are checked before anything is read."""
    found = set(file.keys())
    expected = {t.name: t.shape for t in PARAMETERS}
    statistics = {t.name: t.shape for t in STATISTICS}
    if found & (set(statistics) | set(_COUNTERS)):
        expected |= statistics
    missing = [name for name in expected if name not in found]
    extra = sorted(found - set(expected) - set(_COUNTERS))
    if missing or extra:
        faults = [f"{name} is missing" for name in missing[:3]] + [f"{name!r:.80} is unknown" for name in extra[:3]]
        more = len(missing) + len(extra) - len(faults)
        raise CheckpointError(f"{path}: tensor {', '.join(faults)}{f' and {more} more' if more > 0 else ''}")
    tensors = {}
    for name, shape in expected.items():
        entry = file.get_slice(name)
        if tuple(entry.get_shape()) != shape:
            raise CheckpointError(f"{path}: tensor {name} has shape {tuple(entry.get_shape())}, expected {shape}")
        if entry.get_dtype() not in _FLOATS:
            raise CheckpointError(f"{path}: tensor {name} has dtype {entry.get_dtype()}, expected F32 or F64")
        tensors[name] = file.get_tensor(name)
        _require_finite(path, name, tensors[name])
    return tensors


def _require_finite(path: Path, name: str, tensor: NDArray[Any]) -> None:
    bad = tensor.size - int(np.isfinite(tensor).sum())
    if bad:
        raise CheckpointError(f"{path}: tensor {name} has {bad} values that are not finite, expected none")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
