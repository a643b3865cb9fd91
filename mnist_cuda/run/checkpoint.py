"""Model files: safetensors with PyTorch's names, written atomically, read strictly.

A complete file loads into a plain PyTorch model (Conv2d, BatchNorm2d, Linear) by `load_state_dict(strict=True)`: the 12
parameters, `bn*.running_mean`, `bn*.running_var` and `bn*.num_batches_tracked` (int64, the steps trained). A file saved
by an interrupted run has no population statistics and lacks the last three. Everything but the counters is float32, or
float64 where the run was in fp64 (`reference`): nothing is rounded, and PyTorch converts as it copies.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from mnist_cuda import _native, rules
from mnist_cuda.engine.model import PARAMETERS, STATISTICS
from mnist_cuda.errors import CheckpointError, UnavailableError, require_a
from mnist_cuda.files import atomic_write, read_regular
from mnist_cuda.run.names import MODEL_FILE, find_run
from mnist_cuda.run.results import STEPS, Model, TrainingResult

INIT_FILE = "init.safetensors"  # of a run that `train` of the library began with other weights than its seed's
FORMAT = "mnist-cuda 2"
NORMALISATION = f"(u/255 - {_native.PIXEL_MEAN:g})/{_native.PIXEL_STD:g}"

_COUNTERS = tuple(f"{t.name.split('.')[0]}.num_batches_tracked" for t in STATISTICS if t.name.endswith("running_mean"))
_DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}


def no_statistics(what: str, remedy: str = "") -> CheckpointError:
    """The error of a model that is used for what needs its population statistics, and has none."""
    text = f"{what} has no population statistics, which a run that was stopped early does not save"
    return CheckpointError(f"{text}; {remedy}" if remedy else text)


@rules.checked(path=rules.PATH, steps=rules.optional(STEPS))
def save_model(path: str | Path, model: Model | TrainingResult, *, steps: int | None = None) -> None:
    """Write a model file, atomically: what was there before stays until the new one is complete.

    model: a Model, or what `train` gives. steps: trained, for `bn*.num_batches_tracked`; by default what the metadata
    say, or 0. Raises CheckpointError, also for a NaN or an infinity, UsageError for what is no model.
    """
    model = require_a(Model, getattr(model, "model", model), "model", "as load_model gives it, or what train gives")
    path = Path(path)
    steps = model.steps if steps is None else steps
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


def digest_of(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """The sha256 of a file's tensors and metadata, but for the metadata's `sha256`."""
    rest = {name: value for name, value in metadata.items() if name != "sha256"}
    sha256 = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = np.ascontiguousarray(tensors[name])
        sha256.update(f"{name} {tensor.dtype.str} {np.shape(tensors[name])}\n".encode())
        sha256.update(tensor.data)
    return sha256.hexdigest()


def safetensors_bytes(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with its digest; the metadata sorted, which the library writes in an order by chance."""
    metadata = {**metadata, "sha256": digest_of(tensors, metadata)}
    content = save({name: np.asarray(t, order="C") for name, t in tensors.items()}, metadata)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors stay aligned
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


@rules.checked(path=rules.PATH)
def load_model(path: str | Path) -> Model:
    """Read a model's file. Files written by PyTorch with the same names are welcome.

    path: RUN, as on the command line: a run's name in runs/, its folder, a file, or `latest`, the newest run.

    A safetensors file, which has to have its digest where we wrote it; or one of `torch.save` whose name ends in .pt or
    .pth, a state_dict, where PyTorch 2.6 or newer is installed: it is read with `weights_only=True`, so that nothing in
    it is executed.

    Raises UnavailableError for such a file without such a PyTorch. For anything else CheckpointError names the file,
    what was expected and what was found: a missing or unknown tensor, another shape or dtype, a value that is not
    finite, another digest, a truncated file, a false header.
    """
    path = find_run(Path(path))
    try:
        if path.is_dir():
            path = path / MODEL_FILE
        metadata: dict[str, str] = {}
        if path.suffix in (".pt", ".pth"):
            tensors = _read_state_dict(path)
        else:
            tensors, metadata = read_safetensors(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; expected a model file or the folder of a run") from None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {one_line(error)}") from error
    _require_model(path, tensors)
    sealed = "sha256" in metadata or metadata.get("format") == FORMAT
    if sealed and metadata.get("sha256") != digest_of(tensors, metadata):
        raise CheckpointError(f"{path}: damaged, its sha256 is not that of its content; take a copy or train it again")
    normalisation = metadata.get("normalisation", NORMALISATION)
    if normalisation != NORMALISATION:
        raise CheckpointError(f"{path}: trained on pixels normalised by {normalisation}, expected {NORMALISATION}")
    statistics = {t.name: tensors[t.name] for t in STATISTICS if t.name in tensors}
    for name, value in statistics.items():
        if name.endswith("running_var") and value.min() < 0:
            raise CheckpointError(f"{path}: {name} holds {value.min():g}, expected variances >= 0")
    return Model({t.name: tensors[t.name] for t in PARAMETERS}, statistics or None, metadata)


def read_safetensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The tensors and the metadata of a file. Raises SafetensorError, OSError, and ValueError for an odd dtype."""
    content, tensors = read_regular(path), {}
    for name, tensor in deserialize(content):  # type: ignore[no-untyped-call]
        if tensor["dtype"] not in _DTYPES:
            raise ValueError(f"tensor {name:.80} has dtype {tensor['dtype']}, expected F32 or F64")
        tensors[name] = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tensors, header.get("__metadata__") or {}


def _read_state_dict(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file of `torch.save`."""
    content = BytesIO(read_regular(path))
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"{path}: a file of PyTorch, which is not installed here: {error}") from error
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if not version or tuple(map(int, version.groups())) < (2, 6):
        raise UnavailableError(
            f"{path}: a file of PyTorch, which versions before 2.6 may execute, and here is {torch.__version__}: "
            "install a newer one, or save a .safetensors file"
        )
    try:
        state = torch.load(content, map_location="cpu", weights_only=True)
        return {str(name): tensor.detach().numpy() for name, tensor in state.items()}
    except AttributeError:
        raise CheckpointError(f"{path}: not a state_dict, expected one of tensors by name") from None
    except Exception as error:  # pickle's, zipfile's and PyTorch's own
        raise CheckpointError(f"{path}: not a readable file of PyTorch: {one_line(error)}") from error


def _require_model(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Refuse tensors that are not those of a model, with its statistics or without."""
    found = set(tensors)
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
    for name, shape in expected.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise CheckpointError(f"{path}: tensor {name} has shape {tensor.shape}, expected {shape}")
        if tensor.dtype not in (np.float32, np.float64):
            dtype = f"{tensor.dtype.kind.upper()}{8 * tensor.itemsize}"
            raise CheckpointError(f"{path}: tensor {name} has dtype {dtype}, expected F32 or F64")
        _require_finite(path, name, tensor)


def _require_finite(path: Path, name: str, tensor: NDArray[Any]) -> None:
    bad = tensor.size - int(np.isfinite(tensor).sum())
    if bad:
        raise CheckpointError(f"{path}: tensor {name} has {bad} values that are not finite, expected none")


def one_line(error: Exception) -> str:
    """What a library says, on one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
