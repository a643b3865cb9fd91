"""The folder of one training run: config.json, metrics.jsonl (a line an epoch) and model.safetensors."""

from __future__ import annotations

import json
import platform
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from mnist_cuda import __version__, _native
from mnist_cuda.checkpoint import MODEL_FILE, atomic_write
from mnist_cuda.errors import CheckpointError, UsageError

CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"


class RunFolder:
    """A new folder; nothing that exists is ever overwritten by another run.

    path: where, by default runs/<date>-<time>-<engine>. Raises UsageError if it exists with something in it.
    """

    def __init__(self, path: Path | None, engine: str) -> None:
        self.path = path or _free_name(Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{engine}")
        self._metrics: list[str] = []
        if self.path.is_dir() and any(self.path.iterdir()):
            raise UsageError(f"{self.path}: a folder with files in it; give --out another folder, or remove this one")

    @property
    def model(self) -> Path:
        """The model's file."""
        return self.path / MODEL_FILE

    def create(self, config: dict[str, Any]) -> None:
        """Make the folder and write config.json. Raises CheckpointError if that fails."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot make this folder: {error.strerror or error}") from error
        atomic_write(self.path / CONFIG_FILE, json.dumps(config, indent=2).encode() + b"\n")

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl; the file is replaced as a whole, so that it never ends in half a line."""
        self._metrics.append(json.dumps(record))
        atomic_write(self.path / METRICS_FILE, "".join(f"{line}\n" for line in self._metrics).encode())


def recorded_data_dir(model: Path) -> Path | None:
    """The --data-dir of the run that saved `model` (its file or folder); None if it had none or is not recorded."""
    folder = model if model.is_dir() else model.parent
    try:
        data_dir = json.loads((folder / CONFIG_FILE).read_bytes())["options"]["data_dir"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Path(data_dir) if isinstance(data_dir, str) else None


def _free_name(path: Path) -> Path:
    """`path`, or path-2, path-3, ... where it is taken."""
    names = (path if n == 1 else path.with_name(f"{path.name}-{n}") for n in range(1, sys.maxsize))
    return next(name for name in names if not name.exists())


def versions() -> dict[str, str]:
    """What ran: this project, its native build, Python, the libraries that touch numbers or files."""
    return {
        "mnist-cuda": __version__,
        "build": _native.BUILD,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "platform": platform.platform(),
    }
