"""Everything that needs a GPU, in one call: tests, sanitizers and more, in processes side by side with a log each.

The parts:

    pytest     the GPU tests, in some processes for each engine and precision
    ctest      the C++ tests of the GPU
    sanitize   scripts/check sanitize for each engine and precision; --quick leaves it out
    stops      a training of each engine and precision that is stopped MNIST_CUDA_STOPS times, by default 50
    races      scripts/check races
    mutations  scripts/check mutations --gpu, which goes on where it was stopped
    bench      times of the engines and of every op, with nothing beside them, in LOGS/*.json

The first three are run unless --only names some, or single processes as the table has them. The longest start first, at
most N at once, by default one a core, and no more than the GPU has memory for. On several GPUs each process has one of
them, but for those that want all. One that takes several times as long as it should is ended. When SECONDS are over,
what still runs is ended, too, nothing else is started, and the last lines say what is left, as a next call takes it.
DIR is the native build, by default build. The new folder LOGS gets a log for each process, which is kept whatever
became of it. What failed is listed, and what was skipped for want of PyTorch or of the real data
(MNIST_CUDA_TEST_DATA).

Exits with 1 if anything failed or was not run, 2 for a wrong call, 4 if something is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checks.runner import BUILD, ENVIRONMENT, ROOT, Problem, kill, output_of, program, python, visible_gpus

PARTS = ("pytest", "ctest", "sanitize", "stops", "races", "mutations", "bench")
USUAL = ("pytest", "ctest", "sanitize")

# Tests of an engine and precision that get a process of their own, by what their names match; `rest` are the others.
UNITS = {
    "beyond": r"beyond_32_bits",
    "sizes": r"test_engine_sizes\.py::(?!test_every_size_)",
    "a100": r"::test_every_size_of_an_older_gpu",
    "rtx4060": r"::test_every_size_in_little_shared_memory\[rtx4060",
    "rtx4090": r"::test_every_size_in_little_shared_memory\[rtx4090",
    "engines": r"test_engines\.py",
    "rest": "",
}
# What a process takes by what its name matches, as on an H200 with others beside it. Seconds: the longest starts first,
# and each may take PATIENCE times as long, at least PATIENT seconds.
SECONDS = {
    r"mutations": 1200,
    r"stops-cudnn": 300,
    r"stops-": 200,
    r"pytest-others|ctest|races": 180,
    r"pytest-(cudnn|fused)-.*-rest|sanitize-(cudnn|naive)|bench-": 120,
    r"pytest-.*-rest": 95,
    r"": 60,
}
PATIENCE, PATIENT = 4, 300
# Gigabytes of a GPU: float64 takes 1.4 MB an image, of up to 8,449.
GIGABYTES = {
    r"pytest-.*-beyond": 80,  # arrays of more than 2^31 values
    r"pytest-fused-.*-(sizes|a100|rtx4090)": 14,
    r"pytest-.*-(sizes|rtx4060)|ctest": 10,
    r"": 2,
}
SHARE = 0.9  # of a GPU's memory

# The lines in which tests and scripts say how it went.
SUMMARY = re.compile(
    r"^\d+ (passed|failed|skipped|error).* in |tests passed|s a stop, |^fused .* steps|^\d+ (killed|survived).* in "
)
OVER, TOO_LONG = "ended: the time is over", "ended: it took too long"
GRACE = 10  # seconds between SIGTERM and SIGKILL

# Prints what there is to check: the gigabytes of each GPU, and every engine and precision that is not for newer ones.
FACTS = """
import json
from mnist_cuda import _native
from mnist_cuda.engine import engines

specs = [(row.name, p) for row in engines() if row.device == "cuda" for p in row.precisions if not row.too_old(p)]
print(json.dumps({"specs": specs, "gpus": [gpu["memory_bytes"] / 1e9 for gpu in _native.gpus()]}))
"""


@dataclass
class Task:
    """A process. slots: of the jobs, how many it takes. all_gpus: instead of one. alone: with nothing beside it."""

    name: str
    command: list[str]
    slots: int = 1
    all_gpus: bool = False
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def takes(self, table: dict[str, int]) -> int:
        """How much, roughly: SECONDS or GIGABYTES."""
        return next(amount for pattern, amount in table.items() if re.match(pattern, self.name))


@dataclass
class Running:
    """A task's process; gpus: it has these; limit: the time when it is ended."""

    task: Task
    process: subprocess.Popen[bytes]
    gpus: list[str]
    start: float
    limit: float
    reason: str = ""  # why it was ended
    killed: float = 0.0  # when SIGKILL is due


def tests_by_unit(specs: Iterable[str]) -> dict[str, list[str]]:
    """The ids of all GPU tests, by engine, precision and unit; `others` are of no engine and precision."""
    listing = output_of(
        [python(), "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests"]
    )
    units: dict[str, list[str]] = {}
    for test in re.findall(r"^tests/\S+?::.+$", listing, re.MULTILINE):
        spec = next((spec for spec in specs if re.search(rf"[\[-]{spec}[\]-]", test)), None)
        unit = next(unit for unit, pattern in UNITS.items() if re.search(pattern, test))
        units.setdefault(f"{spec}-{unit}" if spec else "others", []).append(test)
    if not units:
        raise Problem("pytest finds no GPU tests")
    return units


def tasks_of(parts: set[str], args: argparse.Namespace) -> Iterator[Task]:
    """The processes of some parts."""
    facts = json.loads(output_of([python(), "-"], stdin=FACTS))
    specs = ["-".join(spec) for spec in facts["specs"]]
    args.gpus = facts["gpus"]
    check = [python(), "scripts/checks"]
    pytest = [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations", "5"]
    units = tests_by_unit(specs) if {"pytest", "stops"} & parts else {}
    many = max(1, args.jobs // 4)
    if "pytest" in parts:
        for name, tests in units.items():
            yield Task(f"pytest-{name}", [*pytest, *tests], all_gpus=name == "others", environment=ENVIRONMENT)
    if "ctest" in parts:
        if not (args.build / "CTestTestfile.cmake").is_file():
            raise Problem(f"there is no build in {args.build}; name one by --build")
        ctest = [program("ctest"), "--test-dir", str(args.build), "-L", "gpu", "-j", str(many)]
        yield Task("ctest", [*ctest, "--no-tests=error", "--output-on-failure"], slots=many, all_gpus=True)
    if "sanitize" in parts:
        for engine, precision in facts["specs"]:
            yield Task(f"sanitize-{engine}-{precision}", [*check, "sanitize", engine, precision])
    if "stops" in parts:
        environment = {"MNIST_CUDA_STOPS": os.environ.get("MNIST_CUDA_STOPS", "50")}
        for name, tests in units.items():
            if chosen := [test for test in tests if "stopped_at_random" in test]:
                yield Task(f"stops-{name.removesuffix('-rest')}", [*pytest, "-s", *chosen], environment=environment)
    if "races" in parts:
        yield Task("races", [*check, "races"], slots=many)
    if "mutations" in parts:
        mutate = [*check, "mutations", "--gpu", "--jobs", str(args.jobs), "--build", str(args.build)]
        yield Task("mutations", mutate, slots=args.jobs, all_gpus=True)
    if "bench" in parts:
        bench = [python(), "-m", "mnist_cuda", "bench"]
        names = list(dict.fromkeys(engine for engine, _ in facts["specs"]))
        steps = ["--engines", *names, "--dataset", "synthetic", "--busy"]
        yield Task("bench-steps", [*bench, *steps, "--json", str(args.logs / "bench-steps.json")], alone=True)
        yield Task("bench-ops", [*bench, "ops", "--busy", "--json", str(args.logs / "bench-ops.json")], alone=True)


class Check:
    """The processes of a call: those that wait, those that run, and what became of the others."""

    def __init__(self, tasks: Iterable[Task], args: argparse.Namespace) -> None:
        self.waiting = sorted(tasks, key=lambda task: (task.alone, -task.takes(SECONDS)))
        self.running: list[Running] = []
        self.jobs, self.logs = args.jobs, args.logs
        names = visible_gpus(len(args.gpus))
        self.memory = {name: SHARE * gigabytes for name, gigabytes in zip(names, args.gpus, strict=False)}
        self.end = args.end
        self.failed = False
        self.unfinished: list[str] = []  # when the time was over

    def run(self) -> None:
        """All of them, or as many as the time allows."""
        print(f"{'what':26} {'rc':>4} {'time':>6}", flush=True)
        try:
            while self.waiting or self.running:
                if time.monotonic() >= self.end and not self.running:
                    return
                for task in list(self.waiting):
                    self._start_if_there_is_room(task)
                time.sleep(0.05)
                for run in list(self.running):
                    self._look_at(run)
        finally:
            for run in self.running:  # the call was stopped
                kill(run.process)

    def _start_if_there_is_room(self, task: Task) -> None:
        """Unless the time is over: among the jobs, and in the memory of the GPU that has most left, or of all."""
        free = self.jobs - sum(min(run.task.slots, self.jobs) for run in self.running)
        if time.monotonic() >= self.end or free < (self.jobs if task.alone else min(task.slots, self.jobs)):
            return
        used = {gpu: sum(r.task.takes(GIGABYTES) for r in self.running if gpu in r.gpus) for gpu in self.memory}
        gpus = sorted(used, key=lambda gpu: used[gpu] - self.memory[gpu])[: None if task.all_gpus else 1]
        if any(used[gpu] and used[gpu] + task.takes(GIGABYTES) > self.memory[gpu] for gpu in gpus):
            return
        self.waiting.remove(task)
        environment = {**os.environ, "MNIST_CUDA_REQUIRE_GPU": "1", **task.environment}
        if len(gpus) < len(self.memory):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        with (self.logs / f"{task.name}.log").open("wb") as log:
            process = subprocess.Popen(
                task.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        start = time.monotonic()
        limit = start + max(PATIENT, PATIENCE * task.takes(SECONDS))
        self.running.append(Running(task, process, gpus, start, limit))

    def _look_at(self, run: Running) -> None:
        """End a process whose time is over; say what became of one that has ended."""
        code, now = run.process.poll(), time.monotonic()
        if code is None:
            if run.killed and now >= run.killed:
                kill(run.process)
            elif not run.killed and now >= min(run.limit, self.end):
                run.reason = OVER if now >= self.end else TOO_LONG
                run.killed = now + GRACE
                kill(run.process, signal.SIGTERM)
            return
        self.running.remove(run)
        if run.reason:
            kill(run.process)  # what it started may be deaf to SIGTERM
        name = run.task.name
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        last = [line for line in lines if SUMMARY.search(line)][-1:]
        if run.reason == OVER:
            self.unfinished.append(name)
        elif code or run.reason:
            self.failed = True
        print(f"{name:26} {code:4} {now - run.start:4.0f} s  {run.reason or ''.join(last)[:150]}", flush=True)

    def report(self) -> int:
        """What failed or was skipped, as the logs say, and what was not run; the exit code."""
        print()
        patterns = {
            "pytest-*.log": r"^(FAILED|ERROR|SKIPPED) ",
            "stops-*.log": r"^(FAILED|ERROR|SKIPPED) ",
            "races.log": r"FAILED|^scripts/check races: ",
            "mutations.log": r"^ *\d+ s  (survived|broken) ",
            "ctest.log": r"^\s+\d+ - .+ \(.+\)",
            "sanitize-*.log": r"^== |SUMMARY: [1-9]|^not run: |Error: ",
        }
        for glob, pattern in patterns.items():
            for log in sorted(self.logs.glob(glob)):
                title = ""
                for line in log.read_text(errors="replace").splitlines():
                    if not re.search(pattern, line):
                        continue
                    if line.startswith("== "):  # a tool, said where it found something
                        title = line
                        continue
                    print(*filter(None, (title, line)), sep="\n")
                    title = ""
        if left := [*self.unfinished, *(task.name for task in self.waiting)]:
            print(f"left: --only {','.join(left)}")
        print(f"logs: {self.logs}")
        return int(bool(self.failed or left))


def names_of(text: str) -> list[str]:
    """NAME,... of parts, or of some of their processes."""
    names = text.split(",")
    if unknown := {name for name in names if name.partition("-")[0] not in PARTS}:
        known = ", ".join(PARTS)
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(sorted(unknown))}, expected some of {known}")
    return names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add = parser.add_argument
    add("--quick", action="store_true", help="leave out the sanitizers")
    add("--only", type=names_of, action="extend", metavar="NAME,...", help=f"of {', '.join(PARTS)}, or of processes")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="at once (default: the cores)")
    add("--limit", type=float, metavar="SECONDS", help="end after so long and say what is left")
    add("--build", type=Path, default=BUILD, metavar="DIR", help="the native build (default: build)")
    add("logs", type=Path, metavar="LOGS", help="new folder")


def run(args: argparse.Namespace) -> int:
    """Run the processes; the exit code."""
    args.end = time.monotonic() + args.limit if args.limit is not None else float("inf")
    if args.jobs < 1:
        raise Problem(f"--jobs is {args.jobs}, expected at least 1", 2)
    if args.quick and args.only:
        raise Problem("--quick and --only both say what is run; leave one out", 2)
    args.logs, args.build = args.logs.absolute(), args.build.absolute()
    if args.logs.exists():
        raise Problem(f"{args.logs} is there already, expected the name of a new folder", 2)
    names = args.only or [part for part in USUAL if part != "sanitize" or not args.quick]
    tasks = [
        task
        for task in tasks_of({name.partition("-")[0] for name in names}, args)
        if any(f"{task.name}-".startswith(f"{name}-") for name in names)
    ]
    for name in names:
        if not any(f"{task.name}-".startswith(f"{name}-") for task in tasks):
            raise Problem(f"there is no process {name}", 2)
    args.logs.mkdir(parents=True)
    check = Check(tasks, args)
    check.run()
    return check.report()
