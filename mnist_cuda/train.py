"""The training loop and the `train` command: epochs, chunks of steps, evaluation, the run folder, a clean stop."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import console, streams
from mnist_cuda.checkpoint import Checkpoint, save_checkpoint
from mnist_cuda.engine import Engine
from mnist_cuda.errors import UsageError
from mnist_cuda.evaluate import Evaluation, evaluate, evaluate_again
from mnist_cuda.json_output import JsonOutput
from mnist_cuda.model import digest
from mnist_cuda.run_folder import RunFolder, versions
from mnist_cuda.schedule import parse_schedule
from mnist_cuda.signals import StopRequest, exit_code
from mnist_cuda.timing import ITERATION, REPORTED_ITERATIONS, TrainingClock, time_steps

if TYPE_CHECKING:
    from mnist_cuda.data.dataset import Dataset
    from mnist_cuda.startup import Startup

DIVERGED_LOSS = 1e6  # nats: no training comes back from there
CHUNK_SECONDS = 0.1  # aim for one native call; between two of them signals are obeyed and progress is shown


def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int32]:
    """The order in which epoch 1, 2, ... visits `count` samples: a permutation of 0..count-1, int32.

    It is `numpy.random.Generator(PCG64(SeedSequence([seed, 1, epoch]))).permutation(count)` and depends on nothing
    else, so that any other program can follow the same order. (Stream 0 of the seed makes the initial parameters.)
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1, epoch])))
    return rng.permutation(count).astype(np.int32)


def next_chunk(steps: int, seconds: float) -> int:
    """Steps for the next native call after one of `steps` took `seconds`: aims at CHUNK_SECONDS, at most doubles."""
    return max(1, min(2 * steps, round(CHUNK_SECONDS * steps / max(seconds, 1e-9))))


class TrainingRun:
    """One run: the engine, its data, what was asked for and what has happened so far."""

    def __init__(
        self,
        args: argparse.Namespace,
        engine: Engine,
        data: Dataset,
        folder: RunFolder,
        output: JsonOutput,
        startup: Startup,
    ) -> None:
        self.startup = startup
        self.args, self.engine, self.data, self.folder, self.output = args, engine, data, folder, output
        self.steps_per_epoch = len(data.train_labels) // args.batch_size
        self.schedule = parse_schedule(args.schedule, args.lr)
        self.rates = self.schedule.rates(args.epochs * self.steps_per_epoch)
        self.clock = TrainingClock()
        self.epochs: list[dict[str, Any]] = []  # what metrics.jsonl holds
        self.evaluation: Evaluation | None = None  # of the last complete epoch
        self.epochs_done = 0
        self.weights = ""  # sha256 of what was saved last
        self.evaluation_seconds = 0.0
        if not output.on_stdout:  # otherwise nothing but the object is printed there, when all is done
            streams.outlive_stdout()
        self.out = console.make_console(stderr=output.on_stdout)
        self.live = console.LiveLine(self.out, enabled=not args.quiet)
        self._chunk = 1
        self._start = time.perf_counter()

    def run(self) -> int:
        """Train to the end or to a signal; returns the exit code."""
        self.folder.start(self._config())
        self._print_plan()
        self.startup.end("folder")
        self.engine.set_dataset(self.data.train_images, self.data.train_labels, self.args.data)
        self.engine.set_evaluation_set(self.data.test_images, self.data.test_labels)
        self.startup.end("upload")
        self._start = time.perf_counter()
        with StopRequest(self._heard) as stop, self.live:
            for epoch in range(1, self.args.epochs + 1):
                record = self._train_epoch(epoch, stop)
                parameters = self.engine.parameters
                if stop.signal is not None:
                    return self._stop_early(stop.signal, record, parameters)
                self.epochs_done = epoch
                with stop.giving_up_with(partial(self._stop_early, record=dict(record), parameters=parameters)):
                    self._evaluate(record)
                self._end_epoch(record, parameters)
            self.live.stop()
            self._report(None)
            return 0 if stop.signal is None else exit_code(stop.signal)

    def _train_epoch(self, epoch: int, stop: StopRequest) -> dict[str, Any]:
        """Run the epoch's steps, or as many as there is time for until a signal; returns its metrics."""
        batch = self.args.batch_size
        order = epoch_order(self.args.seed, epoch, len(self.data.train_labels))
        losses = np.empty(self.steps_per_epoch)
        correct = np.empty(self.steps_per_epoch, np.int32)
        done, seconds, first_block = 0, 0.0, len(self.clock)
        while done < self.steps_per_epoch and stop.signal is None:
            chunk = min(self._chunk, self.steps_per_epoch - done)
            first = (epoch - 1) * self.steps_per_epoch + done
            steps = time_steps(
                self.engine, order[done * batch : (done + chunk) * batch], batch, self.rates[first : first + chunk]
            )
            self.startup.end("first_step")
            losses[done : done + chunk], correct[done : done + chunk] = steps.losses, steps.correct
            done, seconds = done + chunk, seconds + steps.seconds
            self.clock.add(chunk, steps.seconds)
            self._chunk = next_chunk(chunk, steps.seconds)
            sound = steps.losses < DIVERGED_LOSS  # a NaN is not
            if not sound.all():
                step = done - chunk + int(np.argmin(sound)) + 1
                raise UsageError(
                    f"training diverged: the loss of step {step} in epoch {epoch} is {losses[step - 1]:g}; "
                    f"try a smaller --lr than {self.args.lr:g}"
                )
            recent = slice(max(0, done - REPORTED_ITERATIONS), done)
            self._show(epoch, done, float(losses[recent].mean()), float(correct[recent].mean()) / batch)
        timing = self.clock.summary(first_block)
        return {
            "epoch": epoch,
            "steps": done,
            "loss": float(losses[:done].mean()) if done else None,
            "train_accuracy": float(correct[:done].mean()) / batch if done else None,
            "train_seconds": seconds,
            "us_per_iteration": timing.as_dict() if timing else None,
            "images_per_second": batch * done / seconds if done else None,
            "dataset": self.data.name,
            "warning": self.data.warning,
        }

    def _require_finite(self, epoch: int, tensors: dict[str, NDArray[Any]]) -> None:
        """Losses do not show every divergence: a ReLU takes a NaN for a 0."""
        for name, value in tensors.items():
            if not np.isfinite(value).all():
                raise UsageError(
                    f"training diverged: {name} is not finite after epoch {epoch}; "
                    f"try a smaller --lr than {self.args.lr:g}"
                )

    def _show(self, epoch: int, done: int, loss: float, accuracy: float) -> None:
        us, _ = self.clock.recent()
        left = self.args.epochs * self.steps_per_epoch - self.clock.steps
        seconds = left * us / 1e6
        if self.epochs_done:
            seconds += (self.args.epochs - self.epochs_done) * self.evaluation_seconds / self.epochs_done
        self.live.show(
            done / self.steps_per_epoch,
            f"epoch {epoch}/{self.args.epochs}",
            f"loss {loss:.4f}",
            f"{console.format_duration(seconds)} left",
            f"acc {100 * accuracy:.1f} %",
            f"{console.format_count(us)} us/it",
            f"{self.args.batch_size * 1e6 / us:.0f} img/s",
        )

    def _evaluate(self, record: dict[str, Any]) -> None:
        """Add the test set's accuracy to the metrics; after the last epoch also compute the statistics for the file."""
        start = time.perf_counter()
        self.live.show(1.0, f"epoch {record['epoch']}/{self.args.epochs}", "evaluating")
        if self.args.eval_bn == "population" or record["epoch"] == self.args.epochs:
            self.engine.compute_statistics()
        self.evaluation = (
            evaluate_again(self.engine)
            if self.args.eval_bn == "population"
            else evaluate(self.engine, self.data.test_images, self.data.test_labels, self.args.eval_bn)
        )
        seconds = time.perf_counter() - start
        self.evaluation_seconds += seconds
        record |= {
            "test_accuracy": self.evaluation.accuracy,
            "test_loss": self.evaluation.loss,
            "eval_bn": self.args.eval_bn,
            "evaluation_seconds": seconds,
        }

    def _end_epoch(self, record: dict[str, Any], parameters: dict[str, NDArray[Any]]) -> None:
        """Save the model and the metrics, print the epoch's line."""
        statistics = self.engine.statistics
        self._require_finite(record["epoch"], parameters | (statistics or {}))
        self._save(parameters, statistics)
        self._add_metrics(record)
        us = 1e6 * record["train_seconds"] / record["steps"]
        self._say(
            f"epoch {record['epoch']}/{self.args.epochs}  loss {record['loss']:.4f}  "
            f"train {100 * record['train_accuracy']:.2f} %  test {100 * record['test_accuracy']:.2f} %  "
            f"{console.format_count(us)} us/it  {record['images_per_second']:.0f} img/s"
        )

    def _add_metrics(self, record: dict[str, Any]) -> None:
        self.epochs.append(record)
        self.folder.add_metrics(record)

    def _save(self, parameters: dict[str, NDArray[Any]], statistics: dict[str, NDArray[Any]] | None) -> None:
        metadata = {
            "dataset": self.data.name,
            "data_digest": self.data.digest,
            "seed": str(self.args.seed),
            "epochs": str(self.epochs_done),
            "engine": self.engine.info.name,
            "precision": self.engine.precision,
        }
        self.weights = digest(parameters)
        save_checkpoint(self.folder.model, Checkpoint(parameters, statistics, metadata), steps=self.clock.steps)

    def _stop_early(self, signum: int, record: dict[str, Any], parameters: dict[str, NDArray[Any]]) -> int:
        """After a signal, save what there is; a complete model of these weights stays. Returns the exit code."""
        complete = self.epochs_done > 0 and record["steps"] == 0
        if not complete:
            self._save(parameters, None)
            self._add_metrics(record | {"interrupted": True})
        self.live.stop()
        self._report(signum, complete)
        return exit_code(signum)

    def _heard(self, signum: int) -> None:
        name = signal.Signals(signum).name
        self.out.print(f"{name}: finishing the running steps, then saving; a second signal ends the run at once")

    def _report(self, signum: int | None, complete: bool = True) -> None:
        """Print the last line, or the JSON object. `complete`: the saved model has its statistics."""
        total = time.perf_counter() - self._start
        us, iterations = self.clock.recent()
        name = f"{self.data.name} (NOT mnist: see the warning above)" if self.data.warning else self.data.name
        if signum is not None:
            last = (
                f"stopped by {signal.Signals(signum).name} after {console.plural(self.clock.steps, 'step')} "
                f"({self.epochs_done} of {self.args.epochs} epochs) on {name}; saved {self.folder.model}"
            )
            if not complete:
                last += " without population statistics: `mnist-cuda evaluate` computes them"
        else:
            assert self.evaluation is not None
            last = (
                f"{100 * self.evaluation.accuracy:.2f} % of {self.evaluation.count} test images right after "
                f"{console.plural(self.args.epochs, 'epoch')} in {console.format_duration(total)} on {name}; "
                f"{console.format_count(us)} us/iteration (mean of the last {iterations}); saved {self.folder.model}"
            )
        self.out.print(f"{last}; weights {self.weights[:12]}", style="bold")
        if self.output:
            report = {
                "interrupted": None if signum is None else signal.Signals(signum).name,
                "accuracy": self.evaluation.accuracy if self.evaluation else None,
                "epochs_done": self.epochs_done,
                "steps": self.clock.steps,
                "seconds": total,
                "training_seconds": self.clock.seconds,
                "startup_seconds": self.startup.report(),
                "us_per_iteration": us,
                "us_per_iteration_over": iterations,
                "iteration": ITERATION,
                "dataset": self.data.name,
                "warning": self.data.warning,
                "engine": self.engine.info.name,
                "precision": self.engine.precision,
                "folder": str(self.folder.path),
                "model": str(self.folder.model),
                "parameters_sha256": self.weights,
                "epochs": self.epochs,
            }
            self.output.write(report)

    def _print_plan(self) -> None:
        args, data = self.args, self.data
        rest = len(data.train_labels) - self.steps_per_epoch * args.batch_size
        shape = "" if self.schedule.rise is None else f" {self.schedule}"
        chosen = ", chosen by auto" if args.engine == "auto" else ""
        self._say(f"engine  {self.engine.info.name} {self.engine.arithmetic}{chosen}: {self.engine.info.summary}")
        counts = f"{len(data.train_labels)} training and {len(data.test_labels)} test images"
        self._say(f"data    {data.name}: {counts}, {data.source}")
        self._say(
            f"plan    {console.plural(args.epochs, 'epoch')} of {console.plural(self.steps_per_epoch, 'step')}, "
            f"batch {args.batch_size}, lr {args.lr:g}{shape}, seed {args.seed}"
        )
        if rest:
            self._say(f"        the last {rest} images of each shuffled epoch do not fill a batch and are dropped")
        self._say(f"folder  {self.folder.path}")

    def _say(self, line: str) -> None:
        if not self.args.quiet:
            self.out.print(line)

    def _config(self) -> dict[str, Any]:
        args, data = self.args, self.data
        options = {k: v for k, v in vars(args).items() if isinstance(v, int | float | str | None)}
        return {
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv),
            "options": options
            | {"data_dir": args.data_dir and str(args.data_dir.absolute()), "out": str(self.folder.path)}
            | {"json": args.json and str(args.json)},
            "engine": {
                "name": self.engine.info.name,
                "precision": self.engine.precision,
                "device": self.engine.info.device,
                "chosen_by": "auto" if args.engine == "auto" else "name",
            },
            "data": {
                "name": data.name,
                "requested": data.requested,
                "source": data.source,
                "hashes": data.hashes,
                "digest": data.digest,
                "warning": data.warning,
                "training_images": len(data.train_labels),
                "test_images": len(data.test_labels),
                "steps_per_epoch": self.steps_per_epoch,
            },
            "cores": len(os.sched_getaffinity(0)),
            "versions": versions(),
        }


def command(args: argparse.Namespace, startup: Startup) -> int:
    """`mnist-cuda train`."""
    from mnist_cuda.data import dataset

    startup.end("imports")
    output = JsonOutput(args.json)
    engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)
    startup.end("engine")
    engine.init_parameters(args.seed)
    startup.end("parameters")
    with RunFolder(args.out, engine.info.name) as folder:
        data = dataset.load(args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)
        if data.warning:
            console.print_warning(data.warning)
        if args.batch_size > len(data.train_labels):
            raise UsageError(f"--batch-size is {args.batch_size}, expected at most the {len(data.train_labels)} images")
        startup.end("data")
        return TrainingRun(args, engine, data, folder, output, startup).run()
