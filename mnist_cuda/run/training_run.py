"""A training in a folder: what `mnist-cuda train` prints, records and saves, and how a signal ends it."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from mnist_cuda import machine
from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine import EngineInfo
from mnist_cuda.engine.model import digest
from mnist_cuda.engine.timing import ITERATION
from mnist_cuda.errors import CheckpointError, UsageError
from mnist_cuda.run.checkpoint import save_model
from mnist_cuda.run.folder import RunFolder
from mnist_cuda.run.results import Model
from mnist_cuda.run.resume import save_state
from mnist_cuda.run.startup import Startup
from mnist_cuda.run.training import Progress, State, Trainer
from mnist_cuda.terminal import console, streams
from mnist_cuda.terminal.json_output import JsonOutput
from mnist_cuda.terminal.signals import StopRequest, exit_code

BEST_FILE = "best.safetensors"


@dataclass(frozen=True)
class Saving:
    """When a run saves a checkpoint and how many it keeps; best: whether the best model has a file of its own."""

    every: int = 1
    unit: str = "epochs"
    keep: int = 1
    best: bool = False

    @staticmethod
    def parse(every: str, keep: int, best: bool) -> Saving:
        """From what the flags take. Raises UsageError."""
        match = re.fullmatch(r"([1-9]\d{0,8})\s*(steps?|epochs?|)", every)
        if not match:
            raise UsageError(f"--save-every is '{every}', expected such as 500steps or 2epochs")
        return Saving(int(match[1]), "steps" if match[2].startswith("step") else "epochs", keep, best)


class TrainingRun:
    """One run: a trainer, the folder that it fills, and what people and programs are told.

    options: for config.json. by_auto: the engine was left to `auto`. launcher: what started its other ranks.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        output: JsonOutput,
        startup: Startup,
        saving: Saving,
        options: dict[str, Any],
        *,
        by_auto: bool,
        quiet: bool,
        launcher: str = "",
    ) -> None:
        self.trainer, self.folder, self.output, self.startup = trainer, folder, output, startup
        self.saving, self.options, self.by_auto, self.quiet = saving, options, by_auto, quiet
        self.launcher = launcher
        self.weights = ""  # sha256 of what was saved last
        self.first_step = trainer.steps  # where this process began
        self._saved = trainer.steps  # when the last checkpoint was
        self._facts = self._facts_of_checkpoints()
        if not output.on_stdout:  # otherwise nothing but the object is printed there, when all is done
            streams.outlive_stdout()
        self.out = console.make_console(stderr=output.on_stdout)
        self.live = console.LiveLine(self.out, enabled=not quiet)
        self._start = time.perf_counter()

    def run(self, config: dict[str, Any] | None = None) -> int:
        """Train to the end or to a signal; returns the exit code. config: of the run that goes on."""
        trainer = self.trainer
        self.folder.start(self._config(config))
        self._print_plan()
        self.startup.end("folder")
        trainer.prepare()
        self.startup.end("upload")
        self._start = time.perf_counter()
        stride = self.saving.every if self.saving.unit == "steps" else 0
        with StopRequest(self._heard) as stop, self.live:
            while not trainer.finished:
                trainer.train_epoch(self._show, stop=lambda: stop.signal or 0, stride=stride)
                record, state, model = trainer.record(), trainer.state, trainer.model(None)
                if signum := stop.signal or trainer.stopped:
                    return self._stop_early(signum, record, state, model)
                with stop.giving_up_with(partial(self._stop_early, record=record, state=state, model=model)):
                    self.live.show(1.0, f"epoch {trainer.epoch}/{trainer.options.epochs}", "evaluating")
                    record = trainer.evaluate()
                self._end_epoch(record, trainer.end_epoch(record))
            self.live.stop()
            self._report(None)
            return 0 if stop.signal is None else exit_code(stop.signal)

    def _show(self, now: Progress) -> None:
        self.startup.end("first_step")
        self.live.show(
            now.step / now.steps,
            f"epoch {now.epoch}/{now.epochs}",
            f"loss {now.loss:.4f}",
            f"{console.format_duration(now.seconds_left)} left",
            f"acc {100 * now.accuracy:.1f} %",
            f"{console.format_count(now.us_per_iteration)} us/it",
            f"{now.images_per_second:.0f} img/s",
        )
        every = self.saving.every
        if self.saving.unit == "steps" and self.trainer.steps // every > self._saved // every:
            with self._saves():
                self._save_state(self.trainer.state)

    @contextlib.contextmanager
    def _saves(self, signum: int | None = None) -> Iterator[None]:
        """A block that writes files: where one cannot be written, what was computed is printed before the error."""
        try:
            yield
        except CheckpointError:
            self.live.stop()
            self._report(signum, saved=False)
            raise

    def _end_epoch(self, record: dict[str, Any], model: Model) -> None:
        """Save the model, the metrics and the state, print the epoch's line."""
        trainer, epochs = self.trainer, self.trainer.options.epochs
        every, unit = self.saving.every, self.saving.unit
        us = 1e6 * record["train_seconds"] / record["steps"]
        held = f"validation {100 * record['validation_accuracy']:.2f} %  " if "validation_accuracy" in record else ""
        line = (
            f"epoch {record['epoch']}/{epochs}  loss {record['loss']:.4f}  "
            f"train {100 * record['train_accuracy']:.2f} %  {held}test {100 * record['test_accuracy']:.2f} %  "
            f"{console.format_count(us)} us/it  {record['images_per_second']:.0f} img/s"
        )
        with self._saves():
            try:
                self._save_model(model)
                self.folder.add_metrics(record)
                if trainer.finished or (unit == "epochs" and record["epoch"] % every == 0):
                    self._save_state(trainer.state)
            finally:
                self._say(line)

    def _save_model(self, model: Model) -> None:
        self.weights = digest(model.parameters)
        save_model(self.folder.model, model)
        if self.saving.best and self._best() == self.trainer.epochs_done:
            save_model(self.folder.path / BEST_FILE, model)

    def _best(self) -> int | None:
        """The epoch with the best accuracy, and among equals the least loss, on the images held out."""
        scored = [row for row in self.trainer.epochs if "validation_accuracy" in row]
        best = max(scored, key=lambda row: (row["validation_accuracy"], -row["validation_loss"]), default=None)
        return int(best["epoch"]) if best else None

    def _save_state(self, state: State | None) -> None:
        """Save a checkpoint; where there is no state that can be taken up again, the one before stays."""
        if state is not None:
            steps = (state.epoch - 1) * self.trainer.steps_per_epoch + state.step
            save_state(self.folder.path, steps, state, self._facts, self.saving.keep)
            self._saved = steps

    def _stop_early(self, signum: int, record: dict[str, Any], state: State | None, model: Model) -> int:
        """After a signal, save where the training stands. A model that was evaluated stays. Returns the exit code."""
        trainer = self.trainer
        evaluated, stopped = bool(trainer.epochs), None
        with self._saves(signum):
            self._save_state(state)
            if not evaluated:
                self._save_model(model)
            if record["steps"] or not evaluated:
                stopped = record | {"interrupted": True}
                self.folder.add_metrics(stopped)
        self.live.stop()
        if trainer.ranks:
            trainer.ranks.leave(exit_code(signum), "stopped")  # here, as the process may end right after this
        self._report(signum, stopped)
        return exit_code(signum)

    def _heard(self, signum: int) -> None:
        name = signal.Signals(signum).name
        self.out.print(f"{name}: finishing the running steps, then saving; a second signal ends the run at once")

    def _report(self, signum: int | None, stopped: dict[str, Any] | None = None, *, saved: bool = True) -> None:
        """Print the last line, or the JSON object. stopped: the record of an epoch that was not evaluated."""
        trainer, data = self.trainer, self.trainer.data
        place = f"saved {self.folder.model}" if saved else "NOT all saved"
        epochs, total = trainer.options.epochs, time.perf_counter() - self._start
        us, iterations = trainer.clock.recent()
        name = f"{data.name} (NOT mnist: see the warning above)" if data.warning else data.name
        if signum is not None or trainer.evaluation is None:
            by = f"stopped by {signal.Signals(signum).name}" if signum is not None else "ended"
            last = (
                f"{by} after {console.plural(trainer.steps, 'step')} "
                f"({trainer.epochs_done} of {epochs} epochs) on {name}; {place}"
            )
            if saved and not trainer.epochs:
                last += " without population statistics: `mnist-cuda evaluate` computes them"
            elif stopped:
                last += f" of epoch {len(trainer.epochs)}"
        else:
            since = f" since step {self.first_step}" if self.first_step else ""
            last = (
                f"{100 * trainer.evaluation.accuracy:.2f} % of {trainer.evaluation.count} test images correct after "
                f"{console.plural(trainer.epochs_done, 'epoch')} in {console.format_duration(total)}{since} on {name}; "
                f"{console.format_count(us)} us/iteration (mean of the last {iterations}); {place}"
            )
            if saved and self.saving.best:
                last += f", and {BEST_FILE} of epoch {self._best()} there"
        if signum is not None and saved:
            self._say(f"`mnist-cuda train --resume {shlex.quote(str(self.folder.path))}` goes on from here")
        weights = f"; weights {self.weights[:12]}" if self.weights else ""
        self.out.print(f"{last}{weights}", style="bold")
        if self.output:
            report = {
                "interrupted": None if signum is None else signal.Signals(signum).name,
                "accuracy": trainer.epochs[-1]["test_accuracy"] if trainer.epochs else None,
                "epochs_done": trainer.epochs_done,
                "steps": trainer.steps,
                "first_step": self.first_step,
                "seconds": total,
                "training_seconds": trainer.clock.seconds,
                "startup_seconds": self.startup.report(),
                "us_per_iteration": us,
                "us_per_iteration_over": iterations,
                "iteration": ITERATION,
                "dataset": data.name,
                "warning": data.warning,
                "engine": trainer.engine.info.name,
                "precision": trainer.engine.precision,
                "ranks": self._ranks,
                "folder": str(self.folder.path),
                "model": str(self.folder.model) if saved else None,
                "parameters_sha256": self.weights,
                "epochs": trainer.epochs + ([stopped] if stopped else []),
            }
            self.output.write(report)

    def _print_plan(self) -> None:
        trainer, options, data = self.trainer, self.trainer.options, self.trainer.data
        engine = trainer.engine
        rest = trainer.images - trainer.steps_per_epoch * options.batch_size
        shape = "" if trainer.schedule.rise is None else f" {trainer.schedule}"
        chosen = ", chosen by auto" if self.by_auto else ""
        self._say(f"engine  {engine.info.name} {engine.arithmetic}{chosen}: {engine.info.summary}")
        held = f", {options.validation} more held out" if options.validation else ""
        counts = f"{trainer.images} training{held} and {len(data.test_labels)} test images"
        self._say(f"data    {data.name}: {counts}, {data.source}")
        self._say(
            f"plan    {console.plural(options.epochs, 'epoch')} of {console.plural(trainer.steps_per_epoch, 'step')}, "
            f"batch {options.batch_size}, lr {options.lr:g}{shape}, seed {options.seed}"
        )
        if rest:
            self._say(f"        the last {rest} images of each shuffled epoch do not fill a batch and are dropped")
        if trainer.ranks:
            own = console.plural(engine.threads, "thread") if engine.info.device == "cpu" else f"GPU {engine.device}"
            self._say(f"ranks   {trainer.ranks.size}, started by {self.launcher}, this one with {own}")
            if engine.transport:
                self._say(f"        sums by {engine.transport}")
        if self.first_step:
            self._say(f"        continuing after {console.plural(self.first_step, 'step')}, in epoch {trainer.epoch}")
        self._say(f"folder  {self.folder.path}")

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.out.print(line)

    def _facts_of_checkpoints(self) -> dict[str, Any]:
        return {
            "options": fixed_options(self.options),
            "data_digest": self.trainer.data.digest,
            "engine": self.trainer.engine.info.name,
            "precision": self.trainer.engine.precision,
            "versions": machine.versions(),
            "ranks": self._ranks,
        }

    @property
    def _ranks(self) -> int:
        return self.trainer.ranks.size if self.trainer.ranks else 1

    def _config(self, before: dict[str, Any] | None) -> dict[str, Any]:
        trainer, data, engine = self.trainer, self.trainer.data, self.trainer.engine
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        if before is not None:
            resumed = {
                **self._circumstances(),
                "ranks": self._ranks,
                "started": now,
                "step": trainer.steps,
            }
            options = before["options"] | {"epochs": trainer.options.epochs}
            return before | {"options": options, "resumed": [*before.get("resumed", []), resumed]}
        return {
            **self._circumstances(),
            "started": now,
            "options": self.options | {"out": str(self.folder.path)},
            "engine": engine_facts(engine.info, engine.precision, by_auto=self.by_auto),
            "ranks": self._ranks,
            "data": data_facts(data) | {"steps_per_epoch": trainer.steps_per_epoch},
        }

    def _circumstances(self) -> dict[str, Any]:
        engine = self.trainer.engine
        threads = engine.threads or machine.cores()
        return machine.circumstances(
            device=self.options["device"] if engine.info.device == "cuda" else None,
            threads=threads if engine.info.device == "cpu" else None,
            libraries=machine.engine_libraries(engine.info.name),
        )


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
        "digest": data.digest,
        "warning": data.warning,
        "training_images": len(data.train_labels),
        "test_images": len(data.test_labels),
    }


def with_recorded_warning(data: Dataset, config: dict[str, Any]) -> Dataset:
    """The data of a run that goes on: named now, they may have been a fallback when it was begun."""
    if config["data"].get("digest") != data.digest:
        return data
    return replace(data, warning=config["data"].get("warning"), known_digest=data.digest)


# Options that decide the weights, or what is reported of them; the epochs, too, where the rates depend on their number.
FIXED = ("batch_size", "lr", "schedule", "seed", "eval_bn", "validation", "init_sha256", "multiprocessors")


def fixed_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of a run's options that a run that goes on must share."""
    fixed = {name: options.get(name) for name in FIXED}
    return fixed if options.get("schedule") == "constant" else fixed | {"epochs": options.get("epochs")}
