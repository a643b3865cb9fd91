"""Model files: safetensors with PyTorch's names, written atomically, read strictly.

A complete file loads into a plain PyTorch model (Conv2d, BatchNorm2d, Linear) by `load_state_dict(strict=True)`: the 12
parameters, `bn*.running_mean`, `bn*.running_var` and `bn*.num_batches_tracked` (int64, the steps trained). A file saved
by an interrupted run has no population statistics and lacks the last three. Everything but the counters is float32, or
float64 where the run was in fp64 (`reference`): nothing is rounded, and PyTorch converts as it copies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mnist_cuda import _native
from mnist_cuda.errors import CheckpointError, UnavailableError, require_a
from mnist_cuda.files import atomic_write
from mnist_cuda.model import PARAMETERS, STATISTICS

if TYPE_CHECKING:
    from mnist_cuda.training import TrainingResult

MODEL_FILE = "model.safetensors"
FORMAT = "mnist-cuda"
NORMALISATION = f"(u/255 - {_native.PIXEL_MEAN:g})/{_native.PIXEL_STD:g}"

_COUNTERS = tuple(f"{t.name.split('.')[0]}.num_batches_tracked" for t in STATISTICS if t.name.endswith("running_mean"))
_FLOATS = {"F32": np.float32, "F64": np.float64}


@dataclass(frozen=True)
class Model:
    """A model as its file holds it.

    parameters: the 12, by PyTorch name. statistics: `bn*.running_mean` and `bn*.running_var`, None where they have not
    been computed. metadata: what it was trained on and how, as strings.
    """

    parameters: dict[str, NDArray[Any]]
    statistics: dict[str, NDArray[Any]] | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def no_statistics(what: str, remedy: str = "") -> CheckpointError:
    """The error of a model that is used for what needs its population statistics, and has none."""
    text = f"{what} has no population statistics, which a run that was stopped early does not save"
    return CheckpointError(f"{text}; {remedy}" if remedy else text)


def save_model(path: str | Path, model: Model | TrainingResult, *, steps: int | None = None) -> None:
    """Write a model file, atomically: what was there before stays until the new one is complete.

    model: a Model, or what `train` gives. steps: trained, for `bn*.num_batches_tracked`; by default what the metadata
    say, or 0. Raises CheckpointError, also for a NaN or an infinity, UsageError for what is no model.
    """
    model = require_a(Model, getattr(model, "model", model), "model", "as load_model gives it, or what train gives")
    path = Path(path)
    steps = int(model.metadata.get("steps", 0)) if steps is None else steps
    tensors: dict[str, NDArray[Any]] = dict(model.parameters)
    if model.statistics is not None:
        tensors |= model.statistics
        tensors |= {name: np.array(steps, np.int64) for name in _COUNTERS}
    for name, tensor in tensors.items():
        _require_finite(path, name, tensor)
    metadata = {
        **model.metadata,
        "format": FORMAT,
        "normalisation": NORMALISATION,
        "steps": str(steps),
        "statistics": "absent" if model.statistics is None else "population",
    }
    atomic_write(path, safetensors_bytes(tensors, metadata))


def safetensors_bytes(tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    """A safetensors file, its metadata sorted: the library writes them in an order that changes with the process."""
    content = save({name: np.asarray(t, order="C") for name, t in tensors.items()}, metadata)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors stay aligned
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def load_model(path: str | Path) -> Model:
    """Read a model file, or the one in a run's folder. Files written by PyTorch with the same names are welcome.

    A safetensors file; or one of `torch.save` whose name ends in .pt or .pth, a state_dict, where PyTorch is installed:
    it is read with `weights_only=True`, so that nothing in it is executed.

    Raises UnavailableError for such a file without PyTorch. For anything else CheckpointError names the file, what was
    expected and what was found: a missing or unknown tensor, another shape or dtype, a value that is not finite, a
    truncated file, a false header.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path = path / MODEL_FILE
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: not a regular file")
        metadata: dict[str, str] = {}
        if path.suffix in (".pt", ".pth"):
            tensors = _read(path, _StateDict(path))
        else:
            with safe_open(path, framework="numpy") as file:
                metadata = dict(file.metadata() or {})
                tensors = _read(path, file)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; expected a model's, or the folder of a run") from None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {_one_line(error)}") from error
    normalisation = metadata.get("normalisation", NORMALISATION)
    if normalisation != NORMALISATION:
        raise CheckpointError(f"{path}: trained on pixels normalised by {normalisation}, expected {NORMALISATION}")
    statistics = {t.name: tensors.pop(t.name) for t in STATISTICS if t.name in tensors}
    for name, value in statistics.items():
        if name.endswith("running_var") and value.min() < 0:
            raise CheckpointError(f"{path}: {name} holds {value.min():g}, expected variances >= 0")
    return Model(tensors, statistics or None, metadata)


class _StateDict:
    """A file of `torch.save`, as `safe_open` shows a safetensors file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            import torch
        except ImportError as error:
            raise UnavailableError(f"{path}: a file of PyTorch, which is not installed here: {error}") from error
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickle's, zipfile's and PyTorch's own
            raise CheckpointError(f"{path}: not a readable file of PyTorch: {_one_line(error)}") from error
        if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
            raise CheckpointError(f"{path}: not a state_dict, expected one of tensors by name")
        self._tensors = tensors

    def keys(self) -> list[str]:
        return [str(name) for name in self._tensors]

    def get_slice(self, name: str) -> _StateDict._Slice:
        return self._Slice(self._tensors[name])

    def get_tensor(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = self._tensors[name].detach().numpy()
        return array

    class _Slice:
        def __init__(self, tensor: Any) -> None:
            self._tensor = tensor

        def get_shape(self) -> list[int]:
            return list(self._tensor.shape)

        def get_dtype(self) -> str:
            name = str(self._tensor.dtype).removeprefix("torch.")
            return {"float32": "F32", "float64": "F64"}.get(name, name)


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
