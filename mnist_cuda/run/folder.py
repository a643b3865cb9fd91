"""The folder of one training run: config.json, metrics.jsonl and .csv, model.safetensors, checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnist_cuda.data.catalogue import ARRAYS, CHOICES, OWN
from mnist_cuda.errors import CheckpointError, DataError, UsageError, option
from mnist_cuda.files import atomic_write, make_folder, remove_parts, take_lock
from mnist_cuda.run.names import MODEL_FILE
from mnist_cuda.terminal.json_input import read_json, read_json_lines
from mnist_cuda.terminal.json_output import dumps

if TYPE_CHECKING:
    from typing_extensions import Self

CONFIG_FILE, CHECKPOINTS = "config.json", "checkpoints"
PARTS = ("options", "engine", "data")  # of config.json, each an object
CONFIG = {  # the kinds of what is read of it; the flags check the rest of the options
    "options": {"batch_size?": int, "limit?": int, "lr?": float, "data_dir?": (str, None), "init_sha256?": (str, None)},
    "engine": {"name?": str, "precision?": str},
    "data": {
        "name?": str,
        "source?": str,
        "digest?": str,
        "train_digest?": str,
        "test_digest?": str,
        "warning?": (str, None),
    },
    "sweep": {"save?": str, "data_dir?": (str, None), "limit?": int},
    "versions?": dict,
    "resumed?": list,
    "started?": str,
    "ended?": str,
    "note?": str,
    "command?": str,
}
METRICS_FILE, METRICS_TABLE = "metrics.jsonl", "metrics.csv"
METRICS_COLUMNS = (  # of the table: what is one number in a record of metrics.jsonl
    "epoch", "steps", "loss", "train_accuracy", "test_loss", "test_accuracy", "train_seconds", "evaluation_seconds",
    "images_per_second",
)  # fmt: skip
METRICS = {  # the kinds of what is read of a record
    **{f"{name}?": (float, None) for name in (*METRICS_COLUMNS, "validation_accuracy", "validation_loss")},
    "epoch": int,
    "interrupted?": bool,
}


class RunFolder:
    """A new folder that belongs to one run alone: config.json in it, made exclusively, says that it is taken.

    Use it as a context manager: a run that ends before `start` leaves nothing behind.
    path: where, by default the next free <home>/<date>-<time>-<engine>. Raises UsageError where the folder that was
    named has something in it or belongs to another run, CheckpointError where it cannot be made.
    """

    def __init__(self, path: Path | None, engine: str, home: Path = Path("runs")) -> None:
        self._metrics: list[dict[str, Any]] = []
        self._started = False
        if path is not None:
            self.path = path
            if not self._take():
                raise UsageError(
                    f"{path}: a folder with files in it; give {option('out')} another folder, or remove this one"
                )
            return
        name = home / f"{datetime.now():%Y%m%d-%H%M%S}-{engine}"
        for n in itertools.count(1):
            self.path = name if n == 1 else name.with_name(f"{name.name}-{n}")
            if self._take():
                return

    def _take(self) -> bool:
        """Make the folder and its config.json; False where there is something in it. Two runs never both succeed."""
        try:
            self._made = make_folder(self.path)
            if any(self.path.iterdir()):
                return False
            with open(self.path / CONFIG_FILE, "x"):
                self._lock()
            return True
        except FileExistsError:
            if self.path.is_dir():  # another run was faster
                return False
            raise CheckpointError(f"{self.path}: cannot make this folder: a file has this name") from None
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot make this folder: {error.strerror or error}") from error

    def _lock(self) -> bool:
        """Keep other processes from going on with this run until this one ends; False without locks."""
        self._locked, locked = take_lock(self.path)
        return locked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._locked)
        if not self._started:
            with contextlib.suppress(OSError):  # a folder that holds more by now stays
                (self.path / CONFIG_FILE).unlink()
                for folder in self._made:
                    folder.rmdir()

    @property
    def model(self) -> Path:
        """The model's file."""
        return self.path / MODEL_FILE

    def start(self, config: dict[str, Any]) -> None:
        """Write config.json; from now on the folder stays. Raises CheckpointError if that fails."""
        self._running = config
        self._write(config)
        self._started = True

    def end(self, how: str) -> None:
        """Note in config.json how the run ended: `done`, `stopped` or `diverged`. Raises CheckpointError."""
        self._write(self._running | {"ended": how})

    def _write(self, config: dict[str, Any]) -> None:
        atomic_write(self.path / CONFIG_FILE, dumps(config, indent=2).encode() + b"\n")

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.csv and .jsonl; each is replaced as a whole, so that none ends in half a line.

        The one that says which epochs are done comes last.
        """
        self._metrics.append(record)
        rows = [METRICS_COLUMNS, *([line.get(name) for name in METRICS_COLUMNS] for line in self._metrics)]
        table = "".join(",".join("" if cell is None else str(cell) for cell in row) + "\n" for row in rows)
        atomic_write(self.path / METRICS_TABLE, table.encode())
        atomic_write(self.path / METRICS_FILE, "".join(f"{dumps(line)}\n" for line in self._metrics).encode())


class ResumedFolder(RunFolder):
    """The folder of a run that goes on; config: what it holds, with these parts.

    Raises CheckpointError where it is no run's folder or its files cannot be read, UsageError where a process is still
    at it.
    """

    def __init__(self, path: Path, parts: Iterable[str] = PARTS) -> None:
        self.path, self._started = path, True
        self.config = read_config(path, parts)
        try:
            if self._lock():
                for folder in (path, path / CHECKPOINTS):
                    remove_parts(folder)
        except BlockingIOError:
            raise UsageError(f"{path}: another process is training there") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be opened: {error.strerror or error}") from error

    def records_before(self, epoch: int) -> list[dict[str, Any]]:
        """The records of the epochs before this one; the next that is added follows them in the file."""
        self._metrics = [row for row in self._complete() if row["epoch"] < epoch]
        if [row["epoch"] for row in self._metrics] != list(range(1, min(epoch, len(self._metrics) + 2))):
            file = self.path / METRICS_FILE
            raise CheckpointError(f"{file}: expected a line for each of the {epoch - 1} epochs before, found others")
        return list(self._metrics)

    def epochs_done(self) -> int:
        """How many epochs were trained to their end and evaluated."""
        return len(self._complete())

    def _complete(self) -> list[dict[str, Any]]:
        return [row for row in read_metrics(self.path) if row["epoch"] > 0 and not row.get("interrupted")]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's epochs; none before the first is written. Raises CheckpointError."""
    file = folder / METRICS_FILE
    try:
        return read_json_lines(file, METRICS)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: not a run's metrics: {error}") from error


def read_config(path: Path, parts: Iterable[str] = PARTS) -> dict[str, Any]:
    """The config.json of a run, by the file or its folder. Raises CheckpointError."""
    file = path / CONFIG_FILE if path.is_dir() else path
    kinds = {name: kind for name, kind in CONFIG.items() if name.endswith("?") or name in parts}
    try:
        if file.is_file() and not file.stat().st_size:
            raise CheckpointError(f"{file}: empty; its run was killed before it began: remove the folder")
        config: dict[str, Any] = read_json(file, kinds)
        options = config.get("options")
        if isinstance(options, dict):
            if "data" in options:  # what --placement was called before
                options.setdefault("placement", options.pop("data"))
            options.setdefault("limit", 0)  # which runs did not have at first
        return config
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file; expected a run's or sweep's folder or {CONFIG_FILE}") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: not a run's configuration: {error}") from error


def config_of(model: Path) -> dict[str, Any] | None:
    """The config.json of the run that saved `model` (its file or folder); None if there is none."""
    try:
        return read_config(model if model.is_dir() else model.parent)
    except CheckpointError:
        return None


def recorded_data(config: Mapping[str, Any], data_dir: Path | None = None, *, where: object) -> tuple[str, Path | None]:
    """What `--dataset` and `--data-dir` have to be for the data of a run: as recorded, but data_dir if that is given.

    where: the run, for messages. Raises DataError for arrays that were on no disk.
    """
    name, recorded = str(config["data"].get("name")), config["options"].get("data_dir")
    source = config["data"].get("source", "")
    if not (data_dir or recorded or name in CHOICES) and source != ARRAYS and Path(source).is_dir():
        recorded = source  # an older run from Python on a folder of pictures
    data_dir = data_dir or (Path(recorded) if recorded else None)
    if data_dir is None and source == ARRAYS and (name in OWN or name not in CHOICES):
        raise not_on_disk(where, name)
    return name if name in CHOICES or data_dir is None else OWN[0], data_dir


def not_on_disk(where: object, name: object) -> DataError:
    """Why the data of a run cannot be read."""
    return DataError(
        f"{where}: was trained from Python on arrays ('{name:.40}'), which are not on disk: name a file or folder that "
        "holds the same by --data-dir"
    )
