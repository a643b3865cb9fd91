"""`mnist-cuda sweep`: what it prints, and how a signal ends it."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mnist_cuda import machine
from mnist_cuda.engine import find_engine
from mnist_cuda.errors import CheckpointError, UsageError
from mnist_cuda.run.folder import ResumedFolder, RunFolder, recorded_data
from mnist_cuda.run.names import find_folder
from mnist_cuda.run.options import DataOptions, EngineOptions, OutputOptions, TrainOptions
from mnist_cuda.run.results import Model
from mnist_cuda.run.training_run import with_recorded_warning
from mnist_cuda.sweeps.grid import grid, read_runs
from mnist_cuda.sweeps.recipes import Recipe, deviation, recipes_of, table
from mnist_cuda.sweeps.store import BEST_FILE, HITS_FILE, RUNS_FILE, TABLE_FILE, WEIGHTS_FILE
from mnist_cuda.sweeps.sweep import HOME, PARTS, Sweep
from mnist_cuda.sweeps.table import SweptModel, require_parquet, write_parquet
from mnist_cuda.terminal import console, streams
from mnist_cuda.terminal.json_output import JsonOutput
from mnist_cuda.terminal.signals import StopRequest, exit_code

PARQUET_FILE = "sweep.parquet"
REPORTS = 10  # lines while it runs
MOST_RECIPES = 5  # in the table at the end
# What a sweep that goes on keeps from its config.json and runs.csv.
GRID = ("seeds", "seed", "lr", "batch_size", "schedule", "epochs", "validation", "eval_bn", "placement")
KEPT = (*GRID, "runs", "engine", "precision", "save", "each_epoch", "hits", "out", "limit")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(EngineOptions, DataOptions, OutputOptions):
    """Which models to train, on what, and what to keep of them.

    Of the options of a training all lists are combined; runs: a file with a row per model instead. seeds: how many
    from `seed` on. limit: only the first so many training images, 0 for all. jobs: models at once, 0 for what fits.
    gpus: none for the first. resume: the sweep that goes on. given: names of the options that the user gave.
    """

    seeds: int = 1
    seed: int = 0
    lr: Sequence[float]
    batch_size: Sequence[int]
    schedule: Sequence[str]
    epochs: Sequence[int]
    validation: int = 0
    eval_bn: str = "population"
    placement: str = "device"
    limit: int = 0
    runs: Path | None = None
    jobs: int = 0
    gpus: Sequence[int] | None = None
    out: Path | None = None
    save: str = "none"
    each_epoch: bool = False
    hits: bool = False
    parquet: bool = False
    quiet: bool = False
    resume: Path | None = None
    given: Set[str] = frozenset()


def command(options: SweepOptions) -> int:
    """Run the command; returns the exit code."""
    output = JsonOutput(options.json)
    if options.parquet:
        require_parquet()
    gpus = _gpus(options)
    folder: RunFolder
    if options.resume:
        folder = _resumed(options)
        options = _begun_with(options, folder.config)
        runs = read_runs(folder.path / RUNS_FILE, {})
    else:
        runs = _runs(options)
        _require_seeds_fit(runs, options)
        folder = RunFolder(options.out, find_engine(options.engine, gpus[0] if gpus else 0).name, HOME)
    with folder:
        data = options.read()
        data = data.first(options.limit) if options.limit else data
        if isinstance(folder, ResumedFolder):
            data = with_recorded_warning(data, folder.config)
        if data.warning:
            console.print_warning(data.warning)
        sweep = Sweep(
            data,
            runs,
            engine=options.engine,
            precision=options.precision,
            threads=options.threads,
            jobs=options.jobs,
            gpus=gpus,
            folder=folder,
            save=options.save,
            each_epoch=options.each_epoch,
            hits=options.hits,
        )
        with sweep:
            return _Report(sweep, folder.path, options, output).run()


def _gpus(options: SweepOptions) -> tuple[int, ...]:
    """The GPUs that were named; none to take the first."""
    if options.gpus and "device" in options.given:
        raise UsageError("--device names a GPU and --gpus several: leave out one of the two")
    return tuple(options.gpus or ([options.device] if options.device else []))


def _runs(options: SweepOptions) -> list[TrainOptions]:
    """The runs that the flags ask for."""
    axes: dict[str, Sequence[Any]] = {
        "validation": [options.validation],
        "eval_bn": [options.eval_bn],
        "placement": [options.placement],
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "lr": options.lr,
        "schedule": options.schedule,
        "seed": range(options.seed, options.seed + options.seeds),
    }
    return read_runs(options.runs, axes) if options.runs else grid(axes)


def _require_seeds_fit(runs: Sequence[TrainOptions], options: SweepOptions) -> None:
    largest = max(run.seed for run in runs)
    if options.parquet and largest >= 2**63:
        raise UsageError(f"--parquet holds whole numbers below 2^63, and there is a seed {largest}: leave it out")


def _resumed(options: SweepOptions) -> ResumedFolder:
    """The folder of the sweep to go on with. Raises UsageError for an option that it keeps."""
    resume = find_folder(options.resume, HOME, kind="sweep")
    for name in KEPT:
        if name in options.given:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag}: a sweep that goes on keeps what it was begun with; leave it out")
    folder = ResumedFolder(resume, PARTS)
    before, now = folder.config.get("versions", {}), machine.versions()
    other = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
    if other:
        console.print_warning(f"{resume} was begun by {'; '.join(other)}: weights may differ in their last bits")
    return folder


def _begun_with(options: SweepOptions, config: dict[str, Any]) -> SweepOptions:
    """The options of a sweep that goes on, by its config.json."""
    engine, sweep = config["engine"], config["sweep"]
    options = replace(options, engine=engine.get("name"), precision=engine.get("precision"), save=sweep.get("save"))
    options = replace(options, each_epoch=bool(sweep.get("each_epoch")), hits=bool(sweep.get("hits")))
    options = replace(options, limit=sweep.get("limit") or 0)
    if options.given & {"dataset", "data_dir", "mirror"}:
        return options
    dataset, data_dir = recorded_data({"data": config["data"], "options": sweep}, where=options.resume)
    return replace(options, dataset=dataset, data_dir=data_dir)


def _pace(models: float) -> str:
    """How fast models are trained, from models per second."""
    return (
        f"{console.format_count(models)} models/s" if models >= 1 else f"{console.format_duration(1 / models)} a model"
    )


class _Report:
    """What a sweep in a folder tells people and programs."""

    def __init__(self, sweep: Sweep, path: Path, options: SweepOptions, output: JsonOutput) -> None:
        self.sweep, self.path, self.options, self.output = sweep, path, options, output
        if not output.on_stdout:
            streams.outlive_stdout()
        self.out = console.make_console(stderr=output.on_stdout)
        self.live = console.LiveLine(self.out, enabled=not options.quiet)
        self._before = len(sweep.rows)  # done by the process before
        self._epochs = 0  # trained by this one
        self._left = sum(run.epochs for index, run in enumerate(sweep.runs) if index not in sweep.rows)
        self._alike = len({replace(run, seed=0) for run in sweep.runs}) == 1  # in all but the seed
        self._start = time.perf_counter()

    def run(self) -> int:
        """Train to the end or to a signal; returns the exit code."""
        sweep, options = self.sweep, self.options
        data_dir = options.data_dir and str(options.data_dir.absolute())
        config = sweep.config({"data_dir": data_dir, "limit": options.limit}, machine.command_line())
        assert sweep.folder
        sweep.folder.start(config)
        self._print_plan()
        self._start = time.perf_counter()
        with StopRequest(self._heard) as stop, self.live:
            self.live.show(0.0, f"{self._before}/{len(sweep.runs)} models")
            estimate = console.Estimate(self.out, "takes   about", enabled=not options.quiet)
            try:
                sweep.run(self._show, lambda: stop.signal is not None, lambda: estimate.after(sweep.fraction))
                self.live.stop()
                sweep.close_files()
                if options.parquet:
                    epochs = max(run.epochs for run in sweep.runs)
                    write_parquet(self.path / PARQUET_FILE, sweep.result, epochs, sweep.each_epoch)
            except CheckpointError:
                self.live.stop()
                for row in sweep.unwritten:
                    found = row.fault if row.test_accuracy is None else f"test {100 * row.test_accuracy:.2f} %"
                    self.out.print(f"model {row.index}, not in {TABLE_FILE}: {found}")
                self._print_end(stop.signal, saved=False)
                raise
            signum = stop.signal
            self._print_end(signum if len(sweep.rows) < len(sweep.runs) else None)
            if signum is None:
                return 0
            sys.stdout.flush()
            os._exit(exit_code(signum))  # without waiting for native calls: some engines score images for seconds

    def _heard(self, signum: int) -> None:
        self.out.print(f"{signal.Signals(signum).name}: keeping what is done; a second signal ends it at once")

    def _show(self, row: SweptModel, model: Model | None) -> None:
        done, total = len(self.sweep.rows), len(self.sweep.runs)
        self._epochs += row.options.epochs
        seconds = time.perf_counter() - self._start
        left = seconds / self._epochs * (self._left - self._epochs)
        pace = _pace((done - self._before) / seconds)
        parts = (f"{done}/{total} models", pace, f"{console.format_duration(left)} left")
        self.live.show(done / total, *parts)
        another_part = done * REPORTS // total > (done - 1) * REPORTS // total
        wanted = another_part and not self.options.quiet and not self.live.shown
        if wanted and (found := _accuracies(self.sweep.result, self._alike)):
            self.out.print("  ".join([*parts, found]))

    def _print_plan(self) -> None:
        if self.options.quiet:
            return
        sweep, data, say = self.sweep, self.sweep.data, partial(console.print_fact, self.out)
        chosen = ", chosen by auto" if sweep.by_auto else ""
        say("engine", f"{sweep.info.name} {sweep.precision}{chosen}: {sweep.info.summary}")
        counts = f"{len(data.train_labels)} training and {len(data.test_labels)} test images"
        say("data", f"{data.name}: {counts}, {data.source}")
        if data.read_as:
            say("", f"read as {data.read_as}")
        gpus = f", on GPU {', '.join(map(str, sweep.gpus))}" if sweep.gpus else ""
        at_once = sweep.at_once * max(1, len(sweep.gpus))
        say("plan", f"{console.plural(len(sweep.runs), 'model')}, {at_once} at once{gpus}")
        for remark in sweep.remarks:
            say("", remark)
        if self._before:
            say("", f"continuing after {console.plural(self._before, 'model')}")
        say("folder", str(self.path))

    def _print_recipes(self, found: Sequence[Recipe]) -> None:
        columns, lines = table(found[:MOST_RECIPES])
        numbers, optional = columns[len(found[0].options) :], ("least", "most", "deviation")
        console.print_table(
            self.out, columns, lines, right=numbers, optional=[name for name in optional if name in columns]
        )
        if len(found) > MOST_RECIPES:
            self.out.print(
                f"the best {MOST_RECIPES} of {len(found)}; `mnist-cuda report {shlex.quote(str(self.path))}` shows all"
            )

    def _print_end(self, signum: int | None, *, saved: bool = True) -> None:
        sweep, rows = self.sweep, self.sweep.result
        seconds = time.perf_counter() - self._start
        trained = len(rows) - self._before
        accuracies = [row.test_accuracy for row in rows if row.test_accuracy is not None]
        diverged, best = sum(bool(row.fault) for row in rows), rows.best
        name = f"{sweep.data.name} (NOT mnist: see the warning above)" if sweep.data.warning else sweep.data.name
        stopped = f"stopped by {signal.Signals(signum).name} after " if signum is not None else ""
        of = f" of {len(sweep.runs)}" if len(rows) < len(sweep.runs) else ""
        now = f", {trained} of them now," if self._before else ""
        words = [
            f"{stopped}{console.plural(len(rows), 'model')}{of}{now} in {console.format_duration(seconds)} on {name}"
        ]
        found = recipes_of(rows) if accuracies else []
        if len(found) == 1:
            words.append(_accuracies(rows))
        elif found:
            words.append(_best(found[0]))
            if not self.options.quiet:
                self._print_recipes(found)
        if diverged:
            words.append(f"{diverged} diverged")
        if signum is not None and saved and not self.options.quiet:
            self.out.print(f"`mnist-cuda sweep --resume {shlex.quote(str(self.path))}` goes on from here")
        place = f"saved {self.path / TABLE_FILE}" if saved else "NOT all saved"
        self.out.print(f"{'; '.join(words)}; {place}", style="bold")
        if self.output:
            file = {"all": WEIGHTS_FILE, "best": BEST_FILE}.get(sweep.save)
            report = {
                "interrupted": None if signum is None else signal.Signals(signum).name,
                "models": len(sweep.runs),
                "models_done": len(rows),
                "models_trained": trained,
                "diverged": diverged,
                "seconds": seconds,
                "recipes": len(found),
                "mean_accuracy": math.fsum(accuracies) / len(accuracies) if len(found) == 1 else None,
                "best_recipe": found[0].as_dict() if found else None,
                "best": best and {name: value for name, value in asdict(best).items() if name != "hits"},
                "dataset": sweep.data.name,
                "warning": sweep.data.warning,
                "engine": sweep.info.name,
                "precision": sweep.precision,
                "folder": str(self.path),
                "table": str(self.path / TABLE_FILE),
                "weights": file and str(self.path / file),
                "hits": str(self.path / HITS_FILE) if sweep.hits else None,
            }
            self.output.write(report)


def _accuracies(rows: Sequence[SweptModel], alike: bool = True) -> str:
    """In per cent of the test images the range and, of models that differ in the seed alone, mean and deviation."""
    found = [100 * row.test_accuracy for row in rows if row.test_accuracy is not None]
    if len(found) < 2:
        return f"test {found[0]:.2f} %" if found else ""
    spread = f"{min(found):.2f} to {max(found):.2f}"
    if not alike:
        return f"test {spread} %"
    mean = math.fsum(found) / len(found)
    return f"test {mean:.2f} ± {deviation(found):.2f} %, {spread}"


def _best(recipe: Recipe) -> str:
    """What the best recipe is, and how it was chosen."""
    seeds = f" (mean of {console.plural(recipe.models, 'seed')})" if recipe.models > 1 else ""
    by = "" if recipe.held is None else f", chosen by {100 * recipe.held:.2f} % of the images held out"
    return f"best recipe: {recipe.name}; test {100 * recipe.mean:.2f} %{seeds}{by}"
