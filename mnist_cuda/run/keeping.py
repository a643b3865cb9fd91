"""What a run leaves in its folder: its configuration, the records of its epochs, models and checkpoints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from mnist_cuda import machine
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import EngineInfo
from mnist_cuda.engine.model import digest
from mnist_cuda.errors import DivergedError, UsageError, option
from mnist_cuda.rules import shown
from mnist_cuda.run.checkpoint import save_model
from mnist_cuda.run.folder import RunFolder
from mnist_cuda.run.options import fixed_options
from mnist_cuda.run.results import Model
from mnist_cuda.run.resume import save_state
from mnist_cuda.run.training import State, Trainer

BEST_FILE = "best.safetensors"


@dataclass(frozen=True)
class Saving:
    """After how many steps or epochs a run saves a checkpoint, 0 for never, and how many it keeps.

    best: whether the best model has a file of its own.
    """

    steps: int
    epochs: int
    keep: int
    best: bool

    @staticmethod
    def parse(every: str, keep: int, best: bool) -> Saving:
        """From what the flags take. Raises UsageError."""
        match = re.fullmatch(r"([1-9]\d{0,8})\s*(steps?|epochs?|)", every if isinstance(every, str) else "")
        if not match:
            raise UsageError(f"{option('save_every')} is {shown(every)}, expected such as 500steps or 2epochs")
        count = int(match[1])
        return Saving(count, 0, keep, best) if match[2].startswith("step") else Saving(0, count, keep, best)


class RunKeeper:
    """Writes what a trainer has done into a run's folder.

    options: for config.json. by_auto: the engine was left to `auto`. command: what trains, if no command line does.
    All methods raise CheckpointError where a file cannot be written.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        saving: Saving,
        options: dict[str, Any],
        *,
        by_auto: bool,
        command: str = "",
    ) -> None:
        self.trainer, self.folder, self.saving, self.options, self.by_auto = trainer, folder, saving, options, by_auto
        self.command = command
        self.weights = ""  # sha256 of what was saved last
        self.ranks = trainer.ranks.size if trainer.ranks else 1  # that train together
        self._saved = trainer.steps  # when the last checkpoint was
        self._facts = {  # of a checkpoint
            "options": fixed_options(options),
            "data_digest": trainer.data.digest,
            "engine": trainer.engine.info.name,
            "precision": trainer.engine.precision,
            "versions": machine.versions(),
            "ranks": self.ranks,
        }

    def start(self, before: dict[str, Any] | None = None) -> None:
        """Write config.json; before: of the run that goes on."""
        self.folder.start(self._config(before))

    @contextlib.contextmanager
    def noting_divergence(self) -> Iterator[None]:
        """A block whose DivergedError is how the run ended."""
        try:
            yield
        except DivergedError:
            self.folder.end("diverged")
            raise

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due within the epoch."""
        every = self.saving.steps
        return bool(every) and self.trainer.steps // every > self._saved // every

    def end_epoch(self, record: dict[str, Any], model: Model) -> None:
        """Save the model, the metrics and, where it is due, the state."""
        self.save_model(model)
        self.folder.add_metrics(record)
        due = self.saving.epochs and record["epoch"] % self.saving.epochs == 0
        if due or self.trainer.finished:
            self.save_state(self.trainer.state)

    def save_model(self, model: Model) -> None:
        """Save the model; and as the best one if it is."""
        self.weights = digest(model.parameters)
        save_model(self.folder.model, model)
        if self.saving.best and self.best == self.trainer.epochs_done:
            save_model(self.folder.path / BEST_FILE, model)

    @property
    def best(self) -> int | None:
        """The epoch with the best accuracy, and among equals the least loss, on the images held out."""
        scored = [row for row in self.trainer.epochs if "validation_accuracy" in row]
        best = max(scored, key=lambda row: (row["validation_accuracy"], -row["validation_loss"]), default=None)
        return int(best["epoch"]) if best else None

    def save_state(self, state: State | None) -> None:
        """Save a checkpoint; where there is no state that can be taken up again, the one before stays."""
        if state is not None:
            steps = (state.epoch - 1) * self.trainer.steps_per_epoch + state.step
            save_state(self.folder.path, steps, state, self._facts, self.saving.keep)
            self._saved = steps

    def stop_early(self, record: dict[str, Any], state: State | None, model: Model) -> dict[str, Any] | None:
        """Save where the training stands within an epoch; returns its record if it has steps.

        A model that was evaluated stays.
        """
        evaluated, stopped = bool(self.trainer.epochs), None
        self.save_state(state)
        if not evaluated:
            self.save_model(model)
        if record["steps"] or not evaluated:
            stopped = record | {"interrupted": True}
            self.folder.add_metrics(stopped)
        return stopped

    def _config(self, before: dict[str, Any] | None) -> dict[str, Any]:
        trainer, engine = self.trainer, self.trainer.engine
        begun = {
            **machine.circumstances(
                device=self.options["device"] if engine.info.device == "cuda" else None,
                threads=engine.threads or machine.cores() if engine.info.device == "cpu" else None,
                libraries=machine.engine_libraries(engine.info.name),
            ),
            **({"command": self.command} if self.command else {}),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "ranks": self.ranks,
        }
        if before is not None:
            options = before["options"] | {"epochs": trainer.options.epochs}
            before = {name: value for name, value in before.items() if name != "ended"}
            resumed = [*before.get("resumed", []), begun | {"step": trainer.steps}]
            return before | {"options": options, "resumed": resumed}
        facts = engine_facts(engine.info, engine.precision, by_auto=self.by_auto)
        facts |= {"own": engine.own.facts()} if engine.own else {}
        facts |= {"emulated": True} if engine.emulated else {}
        return begun | {
            "options": self.options | {"out": str(self.folder.path)},
            "engine": facts,
            "data": data_facts(trainer.data) | {"steps_per_epoch": trainer.steps_per_epoch},
        }


def engine_facts(info: EngineInfo, precision: str, *, by_auto: bool) -> dict[str, Any]:
    """What config.json says of the engine."""
    chosen_by = "auto" if by_auto else "name"
    return {"name": info.name, "precision": precision, "device": info.device, "chosen_by": chosen_by}


def data_facts(data: Dataset) -> dict[str, Any]:
    """What config.json says of the data."""
    return {
        "name": data.name,
        "requested": data.requested,
        "source": data.source,
        "hashes": data.hashes,
        "read_as": data.read_as,
        "digest": data.digest,
        "train_digest": data.part_digests[0],
        "test_digest": data.part_digests[1],
        "warning": data.warning,
        "training_images": len(data.train_labels),
        "test_images": len(data.test_labels),
    }


def what_differs(config: Mapping[str, Any], data: Dataset) -> str:
    """Which images of these data are not those of a recorded run: `training`, `test`, both, or nothing.

    Of a run that had only the first images to train on, these alone are compared.
    """
    facts, limit = config["data"], config.get("options", config.get("sweep", {})).get("limit") or 0
    if facts.get("digest") in (None, data.digest):
        return ""
    if isinstance(limit, int) and 0 < limit <= len(data.train_labels) and limit != data.limit:
        data = data.first(limit)
    if facts["digest"] == data.digest:
        return ""
    parts = zip((("training", "train_digest"), ("test", "test_digest")), data.part_digests, strict=True)
    other = [name for (name, key), now in parts if facts.get(key, now) != now]
    return " and ".join(other) or "training or test"  # an older run has only the digest of both
