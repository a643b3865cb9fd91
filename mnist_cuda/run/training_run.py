"""A training in a folder: what `mnist-cuda train` prints, records and saves, and how a signal ends it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine.timing import ITERATION
from mnist_cuda.errors import CheckpointError, DivergedError
from mnist_cuda.run import progress
from mnist_cuda.run.callbacks import impatience
from mnist_cuda.run.keeping import BEST_FILE, RunKeeper
from mnist_cuda.run.results import Model
from mnist_cuda.run.startup import Startup
from mnist_cuda.run.training import Progress, State
from mnist_cuda.terminal import console, streams
from mnist_cuda.terminal.json_output import JsonOutput
from mnist_cuda.terminal.signals import StopRequest, exit_code

MOST_FAULTS = 3  # that people are shown


class TrainingRun:
    """One run: a trainer, the folder that it fills, and what people and programs are told.

    patience: epochs without a better accuracy on held-out images after which it ends, steps: the same in steps of this
    process; 0 for no end. launcher: what started its other ranks.
    """

    def __init__(
        self,
        keeper: RunKeeper,
        output: JsonOutput,
        startup: Startup,
        *,
        quiet: bool,
        patience: int = 0,
        steps: int = 0,
        launcher: str = "",
    ) -> None:
        self.keeper, self.trainer, self.folder = keeper, keeper.trainer, keeper.folder
        self.output, self.startup, self.quiet, self.launcher = output, startup, quiet, launcher
        self.patience, self.stopped = patience, ""  # and why it ended before the last epoch
        self.first_step = self.trainer.steps  # where this process began
        self.last_step = self.first_step + steps if steps else 0
        if not output.on_stdout:  # otherwise nothing but the object is printed there, when all is done
            streams.outlive_stdout()
        self.out = console.make_console(stderr=output.on_stdout)
        self.live = console.LiveLine(self.out, enabled=not quiet)
        self.estimate = console.Estimate(self.out, "takes   about", enabled=not quiet)
        self._start = time.perf_counter()

    def run(self, config: dict[str, Any] | None = None) -> int:
        """Train to the end or to a signal; returns the exit code. config: of the run that goes on."""
        trainer = self.trainer
        self.keeper.start(config)
        self._print_plan()
        self.startup.end("folder")
        trainer.prepare()
        self.startup.end("upload")
        self._start = time.perf_counter()
        self.live.show(0, f"epoch {trainer.epoch}/{trainer.options.epochs}", "first step")  # drawn at once
        with StopRequest(self._heard) as stop, self.live, self.keeper.noting_divergence():
            while not (trainer.finished or self._impatient()):
                try:
                    stride = self.keeper.saving.steps
                    trainer.train_epoch(self._show, stop=lambda: stop.signal or 0, stride=stride, until=self.last_step)
                except DivergedError:
                    self._say_faults()  # which may be why
                    raise
                record, state, model = trainer.record(), trainer.state, trainer.model(None)
                signum = stop.signal or trainer.stopped
                if signum or trainer.step < trainer.steps_per_epoch:
                    self.stopped = "" if signum else self._by_steps()
                    return self._stop_early(signum, record, state, model)
                with stop.giving_up_with(partial(self._stop_early, record=record, state=state, model=model)):
                    self.live.show(1.0, f"epoch {trainer.epoch}/{trainer.options.epochs}", "evaluating")
                    record = trainer.evaluate()
                self._end_epoch(record, trainer.end_epoch(record))
            if self.stopped:
                trainer.train_epoch(stop=lambda: 1)  # no step, as a rule: it tells other ranks and leaves a sound state
            with self._saves():
                if self.stopped:
                    self.keeper.save_state(trainer.state)
                self.folder.end("stopped" if self.stopped else "done")
            self.live.stop()
            self._report(None)
            return 0 if stop.signal is None else exit_code(stop.signal)

    def _impatient(self) -> bool:
        """Whether it is in vain to go on."""
        epochs = self.trainer.epochs
        if self.patience and epochs and not self.trainer.step:
            self.stopped = impatience(epochs, "validation_accuracy", self.patience)
        if self.last_step and self.trainer.steps >= self.last_step:
            self.stopped = self._by_steps()
        return bool(self.stopped)

    def _by_steps(self) -> str:
        return f"ended by --steps {self.last_step - self.first_step}"

    def _show(self, now: Progress) -> None:
        self.startup.end("first_step")
        self.live.show(now.step / now.steps, *progress.parts(now))
        seconds = time.perf_counter() - self._start
        if seconds >= console.EARLY and len(self.trainer.clock) > 1 and not self.last_step:  # the first is warm-up
            self.estimate.say(seconds + now.seconds_left)
        if self.keeper.due:
            with self._saves():
                self.keeper.save_state(self.trainer.state)

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
        line = progress.epoch_line(record, self.trainer.options.epochs)
        with self._saves():
            try:
                self.keeper.end_epoch(record, model)
            finally:
                self._say(line)

    def _stop_early(self, signum: int, record: dict[str, Any], state: State | None, model: Model) -> int:
        """After a signal, or 0 for --steps, save where the training stands. A model that was evaluated stays.

        Returns the exit code.
        """
        trainer, stopped = self.trainer, None
        with self._saves(signum):
            stopped = self.keeper.stop_early(record, state, model)
            self.folder.end("stopped")
        self.live.stop()
        if trainer.ranks:
            trainer.ranks.leave(exit_code(signum), "stopped")  # here, as the process may end right after this
        self._report(signum, stopped)
        return exit_code(signum) if signum else 0

    def _heard(self, signum: int) -> None:
        name = signal.Signals(signum).name
        self.out.print(f"{name}: finishing the running steps, then saving; a second signal ends the run at once")

    def _report(self, signum: int | None, stopped: dict[str, Any] | None = None, *, saved: bool = True) -> None:
        """Print the result, and the JSON object. stopped: the record of an epoch that was not evaluated."""
        trainer, data = self.trainer, self.trainer.data
        epochs, total = trainer.options.epochs, time.perf_counter() - self._start
        us, iterations = trainer.clock.recent()
        name = f"{data.name} (NOT mnist: see the warning above)" if data.warning else data.name
        place, time_line = str(self.folder.model) if saved else "NOT all", ""
        if signum is not None or trainer.evaluation is None:
            by = f"stopped by {signal.Signals(signum).name}" if signum else "ended"
            done = f"{console.plural(trainer.steps, 'step')} ({trainer.epochs_done} of {epochs} epochs)"
            result = f"{by} after {done} on {name}"
            if signum == 0 and stopped and stopped["steps"]:
                result += f"; loss {stopped['loss']:.4f} in epoch {trainer.epoch}"
            if saved and not trainer.epochs:
                place += " without population statistics: `mnist-cuda evaluate` computes them"
            elif stopped:
                place += f" of epoch {len(trainer.epochs)}"
        else:
            since = f" since step {self.first_step}" if self.first_step else ""
            result = (
                f"{100 * trainer.evaluation.accuracy:.2f} % of {trainer.evaluation.count} test images correct after "
                f"{console.plural(trainer.epochs_done, 'epoch')} on {name}"
            )
            result += f"; {self.stopped}" if self.stopped else ""
            pace = f"{console.format_count(us)} us/iteration (mean of the last {iterations})"
            time_line = f"{console.format_duration(total)}{since}; {pace}"
            if saved and self.keeper.saving.best:
                place += f", and {BEST_FILE} of epoch {self.keeper.best}"
        if signum is not None and saved:
            words = ["mnist-cuda", "train", "--resume", str(self.folder.path)]
            own = trainer.engine.own.files if trainer.engine.own else ()
            words += [word for file in own for word in ("--with", str(file.path))]
            words += ["--steps", "1"] if trainer.engine.emulated else []
            self._say(f"`{shlex.join(words)}` goes on from here")
        block = {"result": result, "time": time_line, "saved": place, "weights": self.keeper.weights[:12]}
        for word, text in block.items():
            if text:
                console.print_fact(self.out, word, text, style="bold" if word == "result" else None)
        repeats = self._say_what_was_seen()
        if self.output:
            report = {
                "interrupted": signal.Signals(signum).name if signum else None,
                "stopped": self.stopped or None,
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
                "ranks": self.keeper.ranks,
                "folder": str(self.folder.path),
                "model": str(self.folder.model) if saved else None,
                "parameters_sha256": self.keeper.weights,
                "repeats": repeats,
                "epochs": trainer.epochs + ([stopped] if stopped else []),
            }
            self.output.write(report)

    def _say_what_was_seen(self) -> bool | None:
        """Of kernels of the user's, warn where two runs may differ; returns whether they repeat, None without any.

        Of an emulated engine, warn of faults.
        """
        engine, data, batch = self.trainer.engine, self.trainer.data, self.trainer.options.batch_size
        repeats = None
        if engine.own:
            repeats = engine.repeats(data.train_images[:batch], data.train_labels[:batch])
            if not repeats:
                console.print_warning(
                    f"the bits of a step do not repeat with {engine.own.words}: another run has other weights"
                )
        self._say_faults()
        return repeats

    def _say_faults(self) -> None:
        """Of an emulated engine."""
        engine = self.trainer.engine
        if not engine.emulated:
            return
        faults = [fault for fault in engine.emulated.report()["faults"] if fault["kind"] != "order"]
        for fault in faults[:MOST_FAULTS]:
            console.print_warning(f"{fault['file']}:{fault['line']}: {fault['kind']}: {fault['words']}")
        if len(faults) > MOST_FAULTS:
            console.print_warning(f"and {len(faults) - MOST_FAULTS} more; `mnist-cuda judge` shows those of a file")

    def _print_plan(self) -> None:
        if self.quiet:
            return
        trainer, options, data = self.trainer, self.trainer.options, self.trainer.data
        engine, say = trainer.engine, partial(console.print_fact, self.out)
        shape = "" if trainer.schedule.rise is None else f" {trainer.schedule}"
        chosen = ", chosen by auto" if self.keeper.by_auto else ""
        say("engine", f"{engine.info.name} {engine.arithmetic}{chosen}: {engine.info.summary}")
        held = f", {options.validation} more held out" if options.validation else ""
        if engine.emulated:
            say("", "emulated on the CPU, one thread after the other: no times, no tests, faults are reported")
        if engine.own:
            say("kernels", engine.own.words)
        counts = f"{trainer.images} training{held} and {len(data.test_labels)} test images"
        say("data", f"{data.name}: {counts}, {data.source}")
        if data.read_as:
            say("", f"read as {data.read_as}")
        steps = f"{console.plural(options.epochs, 'epoch')} of {console.plural(trainer.steps_per_epoch, 'step')}"
        say("plan", f"{steps}, batch {options.batch_size}, lr {options.lr:g}{shape}, seed {options.seed}")
        if trainer.ranks:
            own = console.plural(engine.threads, "thread") if engine.info.device == "cpu" else f"GPU {engine.device}"
            say("ranks", f"{trainer.ranks.size}, started by {self.launcher}, this one with {own}")
            if engine.transport:
                say("", f"sums by {engine.transport}")
        if self.first_step:
            say("", f"continuing after {console.plural(self.first_step, 'step')}, in epoch {trainer.epoch}")
        say("folder", str(self.folder.path))

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.out.print(line)


def with_recorded_warning(data: Dataset, config: dict[str, Any]) -> Dataset:
    """The data of a run that goes on: named now, they may have been a fallback when it was begun."""
    if config["data"].get("digest") != data.digest:
        return data
    return replace(data, warning=config["data"].get("warning"), known_digest=data.digest)
