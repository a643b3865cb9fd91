"""`mnist-cuda sweep`: what it prints, and how a signal ends it."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from mnist_cuda import machine
from mnist_cuda.data import dataset
from mnist_cuda.engine import find_engine
from mnist_cuda.errors import CheckpointError, UsageError
from mnist_cuda.run.folder import ResumedFolder, RunFolder
from mnist_cuda.run.names import find_folder
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.results import Model
from mnist_cuda.run.training_run import with_recorded_warning
from mnist_cuda.sweeps.grid import grid, read_runs
from mnist_cuda.sweeps.recipes import Recipe, deviation, recipes_of, table
from mnist_cuda.sweeps.store import BEST_FILE, RUNS_FILE, TABLE_FILE, WEIGHTS_FILE
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
KEPT = (*GRID, "runs", "engine", "precision", "save", "out")


def command(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    output = JsonOutput(args.json)
    if args.parquet:
        require_parquet()
    gpus = _gpus(args)
    if args.resume:
        folder: RunFolder = _resumed(args)
        runs = read_runs(folder.path / RUNS_FILE, {})
    else:
        runs = _runs(args)
        _require_seeds_fit(runs, args)
        folder = RunFolder(args.out, find_engine(args.engine, gpus[0] if gpus else 0).name, HOME)
    with folder:
        data = dataset.load(args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror)
        if isinstance(folder, ResumedFolder):
            data = with_recorded_warning(data, folder.config)
        if data.warning:
            console.print_warning(data.warning)
        sweep = Sweep(
            data,
            runs,
            engine=args.engine,
            precision=args.precision,
            threads=args.threads,
            jobs=args.jobs,
            gpus=gpus,
            folder=folder,
            save=args.save,
        )
        with sweep:
            return _Report(sweep, folder.path, args, output).run()


def _gpus(args: argparse.Namespace) -> tuple[int, ...]:
    """The GPUs that were named; none to take the first."""
    if args.gpus and "device" in args.given:
        raise UsageError("--device names a GPU and --gpus several: leave out one of the two")
    return tuple(args.gpus or ([args.device] if args.device else []))


def _runs(args: argparse.Namespace) -> list[TrainOptions]:
    """The runs that the flags ask for."""
    axes: dict[str, Sequence[Any]] = {
        "validation": [args.validation],
        "eval_bn": [args.eval_bn],
        "placement": [args.placement],
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "lr": args.lr,
        "schedule": args.schedule,
        "seed": range(args.seed, args.seed + args.seeds),
    }
    return read_runs(args.runs, axes) if args.runs else grid(axes)


def _require_seeds_fit(runs: Sequence[TrainOptions], args: argparse.Namespace) -> None:
    largest = max(run.seed for run in runs)
    if args.parquet and largest >= 2**63:
        raise UsageError(f"--parquet holds whole numbers below 2^63, and there is a seed {largest}: leave it out")


def _resumed(args: argparse.Namespace) -> ResumedFolder:
    """The sweep to go on with; the arguments get what it was begun with."""
    args.resume = find_folder(args.resume, HOME, kind="sweep")
    for name in KEPT:
        if name in args.given:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag}: a sweep that goes on keeps what it was begun with; leave it out")
    folder = ResumedFolder(args.resume, PARTS)
    config = folder.config
    args.engine, args.precision = config["engine"].get("name"), config["engine"].get("precision")
    args.save = config["sweep"].get("save")
    if not args.given & {"dataset", "data_dir", "mirror"}:
        args.dataset, data_dir = config["data"].get("name"), config["sweep"].get("data_dir")
        args.data_dir = Path(data_dir) if data_dir else None
    before, now = config.get("versions", {}), machine.versions()
    other = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
    if other:
        console.print_warning(f"{args.resume} was begun by {'; '.join(other)}: weights may differ in their last bits")
    return folder


class _Report:
    """What a sweep in a folder tells people and programs."""

    def __init__(self, sweep: Sweep, path: Path, args: argparse.Namespace, output: JsonOutput) -> None:
        self.sweep, self.path, self.args, self.output = sweep, path, args, output
        if not output.on_stdout:
            streams.outlive_stdout()
        self.out = console.make_console(stderr=output.on_stdout)
        self.live = console.LiveLine(self.out, enabled=not args.quiet)
        self._before = len(sweep.rows)  # done by the process before
        self._epochs = 0  # trained by this one
        self._left = sum(run.epochs for index, run in enumerate(sweep.runs) if index not in sweep.rows)
        self._alike = len({replace(run, seed=0) for run in sweep.runs}) == 1  # in all but the seed
        self._start = time.perf_counter()

    def run(self) -> int:
        """Train to the end or to a signal; returns the exit code."""
        sweep, args = self.sweep, self.args
        data_dir = args.data_dir and str(args.data_dir.absolute())
        config = sweep.config({"data_dir": data_dir}, machine.command_line())
        assert sweep.folder
        sweep.folder.start(config)
        self._print_plan()
        self._start = time.perf_counter()
        with StopRequest(self._heard) as stop, self.live:
            self.live.show(0.0, f"{self._before}/{len(sweep.runs)} models")
            try:
                sweep.run(self._show, lambda: stop.signal is not None)
                self.live.stop()
                sweep.close_files()
                if args.parquet:
                    write_parquet(self.path / PARQUET_FILE, self._rows(), max(run.epochs for run in sweep.runs))
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
            self._leave(signum)

    def _leave(self, signum: int) -> NoReturn:
        """End without waiting for native calls: some engines score the test images for seconds."""
        sys.stdout.flush()
        os._exit(exit_code(signum))

    def _heard(self, signum: int) -> None:
        self.out.print(f"{signal.Signals(signum).name}: keeping what is done; a second signal ends it at once")

    def _rows(self) -> list[SweptModel]:
        return [self.sweep.rows[index] for index in sorted(self.sweep.rows)]

    def _show(self, row: SweptModel, model: Model | None) -> None:
        done, total = len(self.sweep.rows), len(self.sweep.runs)
        self._epochs += row.options.epochs
        seconds = time.perf_counter() - self._start
        left = seconds / self._epochs * (self._left - self._epochs)
        parts = (
            f"{done}/{total} models",
            f"{console.format_count((done - self._before) / seconds)} models/s",
            f"{console.format_duration(left)} left",
            _accuracies(self._rows(), self._alike) if self._news(done) else "",
        )
        self.live.show(done / total, *parts[:3])
        if parts[3] and not self.args.quiet:
            self.out.print("  ".join(parts))

    def _news(self, done: int) -> bool:
        """Whether another REPORTS-th part of the models is done."""
        total = len(self.sweep.runs)
        return done * REPORTS // total > (done - 1) * REPORTS // total

    def _print_plan(self) -> None:
        sweep, data = self.sweep, self.sweep.data
        if self.args.quiet:
            return
        chosen = ", chosen by auto" if sweep.by_auto else ""
        self.out.print(f"engine  {sweep.info.name} {sweep.precision}{chosen}: {sweep.info.summary}")
        counts = f"{len(data.train_labels)} training and {len(data.test_labels)} test images"
        self.out.print(f"data    {data.name}: {counts}, {data.source}")
        gpus = f", on GPU {', '.join(map(str, sweep.gpus))}" if sweep.gpus else ""
        at_once = sweep.at_once * max(1, len(sweep.gpus))
        self.out.print(f"plan    {console.plural(len(sweep.runs), 'model')}, {at_once} at once{gpus}")
        for remark in sweep.remarks:
            self.out.print(f"        {remark}")
        if self._before:
            self.out.print(f"        going on after {console.plural(self._before, 'model')}")
        self.out.print(f"folder  {self.path}")

    def _print_recipes(self, found: Sequence[Recipe]) -> None:
        """Print the best of them."""
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
        sweep, rows = self.sweep, self._rows()
        seconds = time.perf_counter() - self._start
        trained = len(rows) - self._before
        accuracies = [row.test_accuracy for row in rows if row.test_accuracy is not None]
        diverged = sum(bool(row.fault) for row in rows)
        best = max(rows, key=lambda row: row.rank, default=None)
        best = None if best is None or best.fault else best  # all diverged
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
            if not self.args.quiet:
                self._print_recipes(found)
        if diverged:
            words.append(f"{diverged} diverged")
        if signum is not None and saved and not self.args.quiet:
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
                "best": best and asdict(best),
                "dataset": sweep.data.name,
                "warning": sweep.data.warning,
                "engine": sweep.info.name,
                "precision": sweep.precision,
                "folder": str(self.path),
                "table": str(self.path / TABLE_FILE),
                "weights": file and str(self.path / file),
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
