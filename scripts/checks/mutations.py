"""Mutation tests: breaks one line of the code at a time and sees that a test notices.

The mutations are rows of tests/mutations.py. Each gets a copy of the tree with its line changed; only the objects that
depend on the line are compiled again and linked with those of a finished build; then the tests run that the row names,
and for a GPU those of its engine and precision after them, until one fails. Before that they must pass on the tree as
it is. Mutations of Python, of set-up and of host code run anywhere, the others with --gpu where there is one. Races
and wrong parities are compiled with MNIST_DELAYS, so that they show. With --emulated those of unfused kernels run in
the emulator (docs/emulator.md), and those of the emulator itself.

    --sample 12 --seed 3  twelve of them, chosen by the seed
    --gpu --limit 600     those that need a GPU; none begins after ten minutes
    --emulated            those of kernels that the emulator runs, and of the emulator
    --compile --gpu       only see that they compile, which needs no GPU
    --check               only see that each row still names one place in the code and tests (always done first)
    --publish             write the summary of the committed verdicts into docs/trust.md

A verdict holds a hash of the code that its mutation changes, a function or what else stands between two blank lines
before a first column, without comments and layout: it is stale when that is no more. Verdicts are added to a JSON file
as they come, and what is in there already, of today's code, is not run again. Exits with 1 if a mutation survived, 2
for a wrong call or a row that names no place or several, 4 where something is missing.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from checks.runner import BUILD, ENVIRONMENT, ROOT, Problem, kill, python, visible_gpus

from mnist_cuda import machine as facts

for folder in ("tests", "native/emulator"):
    sys.path.append(str(ROOT / folder))

from mutations import MUTATIONS, Mutation  # noqa: E402
from rewrite import rewrite  # noqa: E402

RECORDS = ROOT / "docs" / "records" / "mutations"
PAGE = ROOT / "docs" / "trust.md"
COPIED = ("mnist_cuda", "native", "tests", "scripts", "docs", "pyproject.toml", "README.md", "CMakeLists.txt")
# Delays every __syncthreads() of a .cu file, whether the file has it or not.
DELAYS = "kernels/device/delays.cuh"
# An editable installation finds its own modules first, whatever the path says.
SITE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
"""
LATE = ("race", "parity")  # kinds that are compiled with MNIST_DELAYS
PATIENCE, TIMES = 30, 3  # seconds, and times what a test takes without a mutation: one that takes longer hangs


def needs_gpu(mutation: Mutation) -> bool:
    """Whether it is in code that only runs on a GPU."""
    return mutation.file.startswith("native/gpu/")


@functools.cache
def emulated_targets() -> tuple[str, ...]:
    """The programs of the build that run kernels in the emulator."""
    listed = re.search(r"foreach\(_op IN ITEMS ([^)]*)\)", (ROOT / "cmake" / "Emulator.cmake").read_text())
    assert listed
    return (*(f"emulated_{op}" for op in listed[1].split()), "test_emulator_faults")


def emulated_tests(mutation: Mutation) -> tuple[str, ...]:
    """The runs of tests that notice it in the emulator; none if nothing there runs its code."""
    names = [test.removeprefix("ctest ").replace("test_", "emulated_", 1) for test in mutation.by]
    if mutation.file.startswith("native/emulator/"):
        names = [test.removeprefix("ctest ") for test in mutation.by]
    elif "/fused/" in mutation.file or not mutation.file.startswith("native/gpu/kernels/"):
        return ()
    return tuple(f"ctest {name}" for name in names if name in emulated_targets())


def belongs(mutation: Mutation, where: str) -> bool:
    """Whether it is tried there: `host`, `gpu` or `emulated`, which are the names of the records."""
    if where == "emulated":
        return bool(emulated_tests(mutation))
    return needs_gpu(mutation) == (where == "gpu") and not mutation.file.startswith("native/emulator/")


def tested_as(mutation: Mutation) -> tuple[str, str]:
    """The engine and the precision that a mutation of code for a GPU is tried in; no engine where it is of none."""
    engine = next((name for name in ("cudnn", "fused", "layerwise") if re.search(f"/{name}[/.]", mutation.file)), "")
    engine = engine or ("fused" if "host_feed" in mutation.file else "")  # whose chunks are the largest
    engine = engine or ("naive" if re.search("naive|unfused|/cuda|batch_feeder", mutation.file) else "")
    return engine, mutation.precision or "fp32"


def mutate(mutation: Mutation, root: Path = ROOT) -> str:
    """The file's text with the mutation. Raises Problem if its line is not there exactly once."""
    path = root / mutation.file
    text = path.read_text() if path.is_file() else ""
    found = text.count(mutation.before)
    if found != 1:
        raise Problem(f"{mutation.name}: {mutation.file} has {found} places like {mutation.before!r}, expected 1", 2)
    if mutation.before == mutation.after:
        raise Problem(f"{mutation.name}: it changes nothing", 2)
    return text.replace(mutation.before, mutation.after)


def check(table: Iterable[Mutation]) -> None:
    """Raises Problem with a line for each row that names no place in the code, or two, no test, or another row."""
    problems, names = [], set()
    tests = {path.name for path in (ROOT / "tests").glob("test_*.py")}
    tests |= {f"ctest {path.stem}" for path in (ROOT / "tests" / "native").rglob("test_*.cpp")}
    for mutation in table:
        if mutation.name in names:
            problems.append(f"{mutation.name}: another row has this name")
        names.add(mutation.name)
        if not re.fullmatch(r"[\w-]+", mutation.name):
            problems.append(f"{mutation.name}: expected a name of letters, digits and hyphens")
        if not (mutation.by or mutation.equivalent or needs_gpu(mutation)):
            problems.append(f"{mutation.name}: it names no test")
        for test in mutation.by:
            name = re.match(r"(ctest )?\S+", test)[0]
            if name not in tests:
                problems.append(f"{mutation.name}: there is no test {name}")
        try:
            mutate(mutation)
        except Problem as problem:
            problems.append(str(problem))
    if problems:
        raise Problem("\n".join(problems), 2)


# ---- the build -------------------------------------------------------------------------------------------------------


class Build:
    """A finished build: which objects depend on a file, and how they and what they belong to are made."""

    def __init__(self, folder: Path, python: str, emulated: bool = False) -> None:
        if not (folder / "build.ninja").is_file():
            raise Problem(f"{folder} holds no finished build; run ./scripts/test, or name one by --build", 4)
        beside = Path(python).parent / "ninja"
        self.folder, self.ninja = folder, str(beside) if beside.is_file() else "ninja"
        self.dependencies: dict[str, set[str]] = {}
        for paragraph in self._ninja("-t", "deps").split("\n\n"):
            first, *rest = paragraph.splitlines() or [""]
            self.dependencies[first.partition(":")[0]] = {os.path.normpath(folder / line.strip()) for line in rest}
        modules = list(folder.glob("_native.*.so"))
        if len(modules) != 1:
            raise Problem(f"{folder} holds {len(modules)} files like _native.*.so, expected 1; run ./scripts/test", 4)
        self.module, self.emulated = modules[0], emulated
        self.targets = emulated_targets() if emulated else (self.module.name,)  # what is made of the code that is tried
        ours = str(ROOT / "native")
        if emulated:
            for file in (
                file
                for found in self.dependencies.values()
                for file in found
                if file.startswith(f"{folder}/emulated/kernels/")
            ):
                source = ROOT / "native" / "gpu" / Path(file).relative_to(folder / "emulated")
                source = source.with_suffix("") if source.suffix == ".cpp" else source
                if rewrite(source.read_text(), str(source)) != Path(file).read_text():
                    raise Problem(f"{file} is not as {source}; build again", 4)
        for name in self.objects():
            made = folder / name
            for file in [Path(file) for file in self.dependencies.get(name, ()) if file.startswith(ours)]:
                if file.exists() and file.stat().st_mtime > made.stat().st_mtime:
                    raise Problem(f"{file} is newer than {made}; run ./scripts/test, or build again", 4)

    def _ninja(self, *arguments: str) -> str:
        return subprocess.run(
            [self.ninja, "-C", str(self.folder), *arguments], check=True, capture_output=True, text=True
        ).stdout

    def _command(self, target: str) -> str:
        """The command line that makes a target, without what turns warnings into errors."""
        command = self._ninja("-t", "commands", "-s", target).strip().splitlines()[-1]
        return re.sub(r"\s-Werror(=\S+)?", "", command)

    def objects(self) -> list[str]:
        """Those of all targets."""
        words = [word for target in self.targets for word in self._command(target).split()]
        return [word for word in dict.fromkeys(words) if word.endswith(".o")]

    def rewritten(self, file: str) -> Path:
        """Where the emulator's form of a file is, within the build or a copy of it."""
        return Path("emulated", Path(file).relative_to("native/gpu")).with_suffix(
            ".cu.cpp" if file.endswith(".cu") else ".cuh"
        )

    def touched(self, target: str, mutation: Mutation) -> list[str]:
        """The objects of `target` that depend on its file; of fused those of its precision, of a fleet its packs."""
        source = str(ROOT / mutation.file)
        if self.emulated and mutation.file.endswith((".cu", ".cuh")):
            source = str(self.folder / self.rewritten(mutation.file))
        touched = [name for name in self._command(target).split() if source in self.dependencies.get(name, ())]
        engine, precision = tested_as(mutation)
        if engine == "fused" or mutation.precision:  # the other precisions stay whole
            of = f"/{precision}_pack.cu" if mutation.kind == "fleet" else f"/{precision}.cu"
            touched = [name for name in touched if of in name] or touched
        return touched

    def make(self, target: str, mutation: Mutation, tree: Path, to: Path) -> str | None:
        """Make `target` as `to` with the mutated file in `tree`; what went wrong, or None."""
        link = self._command(target)
        touched = self.touched(target, mutation)
        if not touched:
            return f"no part of {target} in {self.folder} depends on {mutation.file}"
        for name in touched:
            made = tree / "objects" / name
            link = link.replace(f" {name} ", f" {self._seen(made)} ")
            if not made.is_file() and (fault := self._compile(name, tree, made, self.late(mutation))):
                return fault
        return self._run(link.replace(f" -o {target} ", f" -o {self._seen(to)} "))

    def late(self, mutation: Mutation) -> bool:
        """Whether it only shows where threads are late; the emulator finds a race in any order."""
        return mutation.kind in LATE and not self.emulated

    def _compile(self, name: str, tree: Path, to: Path, late: bool) -> str | None:
        """Make the object `name` as `to` from `tree`, with delays or without; what went wrong, or None."""
        to.parent.mkdir(parents=True, exist_ok=True)
        command = self._command(name)
        if late:
            delays = " -DMNIST_DELAYS" + (f" -include {DELAYS}" if ".cu." in name else "")
            command = command.replace(" -o ", f"{delays} -o ", 1)
        for folder in ("native", "tests"):
            command = command.replace(str(ROOT / folder), str(tree / folder))
        if self.emulated:
            command = command.replace(str(self.folder / "emulated"), str(tree / "emulated"))
        return self._run(command.replace(name, self._seen(to)))

    def _seen(self, path: Path) -> str:
        """A path below the build's folder as commands there name it, which needs no quoting."""
        return str(path.relative_to(self.folder))

    def _run(self, command: str) -> str | None:
        done = subprocess.run(["nice", "bash", "-c", command], cwd=self.folder, capture_output=True, text=True)
        output = done.stdout + done.stderr
        lines = [line for line in output.splitlines() if "error" in line.lower()] or output.splitlines()[-1:]
        return " ".join(lines[:1] or ["no output"]) if done.returncode else None


# ---- one mutation ----------------------------------------------------------------------------------------------------


def copy_tree(source: Path, tree: Path) -> None:
    """A copy of what tests need, in a new folder."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in (*COPIED, "sitecustomize.py"):
        if (source / name).is_dir():
            shutil.copytree(source / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        elif (source / name).is_file():
            shutil.copy(source / name, tree / name)


def wait(process: subprocess.Popen[bytes], log: Path, limit: float) -> int | None:
    """The exit code of a process, None once it has written nothing for `limit` seconds."""
    size, since = -1, 0.0
    while (code := process.poll()) is None:
        if (now := log.stat().st_size) != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > limit:
            return None
        time.sleep(0.02)
    return code


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    kill(process)
    process.wait()


class Runner:
    """Compiles mutations and runs tests on them; the settings of one call of this script."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.python = python()
        self.build = Build(args.build.resolve(), self.python, args.where == "emulated")
        self.args = args
        args.results.parent.mkdir(parents=True, exist_ok=True)
        self.work = Path(tempfile.mkdtemp(prefix="mutations-", dir=args.build.resolve()))
        self.environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        self.environment.setdefault("MNIST_CUDA_TEST_EMULATOR", str(self.work / "emulator"))
        data = ROOT.parent / "shared" / "mnist"
        if data.is_dir():
            self.environment.setdefault("MNIST_CUDA_TEST_DATA", str(data))
        peers = ROOT / ".venv-peers" / "bin" / "python"
        if peers.exists():
            self.environment.setdefault("MNIST_CUDA_PEER_PYTHON", str(peers))
        if self.build.emulated:
            self.environment["MNIST_STOP_AT_FAILURE"] = "1"
        self._gpus: Iterator[str] = itertools.cycle([""])
        if args.gpu:
            self.environment |= ENVIRONMENT | {"MNIST_CUDA_REQUIRE_GPU": "1"}
            self._gpus = itertools.cycle(visible_gpus(len(gpus()) or 1))
        # Of each run of tests, what it is without a mutation: the seconds of its slowest test, or what is wrong.
        self._proved: dict[str, float | Problem] = {}
        self._locks = {test: threading.Lock() for mutation in MUTATIONS for test in self.tests(mutation)}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self.snapshot = self.work / "snapshot"
        copy_tree(ROOT, self.snapshot)
        (self.snapshot / "sitecustomize.py").write_text(SITE)

    def prepare(self, mutation: Mutation) -> tuple[Path, str | None]:
        """The mutation's tree, compiled; and what went wrong, if anything did."""
        tree = self.work / mutation.name
        copy_tree(self.snapshot, tree)
        text = mutate(mutation, self.snapshot)
        (tree / mutation.file).write_text(text)
        module = tree / "mnist_cuda" / self.build.module.name
        if mutation.file.endswith((".py", ".sh")):
            module.symlink_to(self.build.module)
            try:
                if mutation.file.endswith(".py"):
                    compile(text, mutation.file, "exec")
            except SyntaxError as error:
                return tree, f"does not compile: {error}"
            return tree, None if code_of(mutation, self.snapshot) else "it changes no code"
        if self.build.emulated:
            shutil.copytree(self.build.folder / "emulated", tree / "emulated")
            if mutation.file.endswith((".cu", ".cuh")):
                (tree / self.build.rewritten(mutation.file)).write_text(rewrite(text, str(tree / mutation.file)))
        targets = {
            test.split()[1]: tree / test.split()[1] for test in self.tests(mutation) if test.startswith("ctest ")
        }
        if not self.build.emulated:
            targets[self.build.module.name] = module
        for target, made in sorted(targets.items()):
            if fault := self.build.make(target, mutation, tree, made):
                return tree, f"does not compile: {fault}"
        return tree, None if code_of(mutation, self.snapshot) else "it changes no code"

    def tests(self, mutation: Mutation) -> tuple[str, ...]:
        """The runs of tests that are to notice it, in their order; each is `ctest NAME` or arguments of pytest."""
        if self.build.emulated:
            return emulated_tests(mutation)
        if not needs_gpu(mutation):
            return mutation.by
        engine, precision = tested_as(mutation)
        if not engine:
            return mutation.by
        spec = f"{engine}-{precision}"
        quick = (f"test_engines.py -m gpu -k '{spec} and frozen'",)
        return (*(test.format(spec=spec) for test in mutation.by or quick), f"-m gpu -k {spec}")

    def run(self, test: str, tree: Path, limit: float) -> tuple[str | None, float]:
        """Run one of `tests`; the test that failed, if any, and the seconds. It hangs after `limit` without a word."""
        log, report = tree / "log.txt", tree / "report.xml"
        report.unlink(missing_ok=True)
        path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
        environment = {**self.environment, "PYTHONPATH": path}
        if self.args.gpu:
            environment["CUDA_VISIBLE_DEVICES"] = next(self._gpus)  # runs of tests are dealt out to the GPUs in turn
        if test.startswith("ctest "):
            made = tree / test.split()[1]
            command = [str(made if made.is_file() else self.build.folder / made.name)]
        else:
            command = [self.python, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", f"--junitxml={report}"]
            command += [f"tests/{word}" if word.startswith("test_") else word for word in shlex.split(test)]
        start = time.monotonic()
        with log.open("w") as out:
            process = subprocess.Popen(
                command, cwd=tree, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            code = None if self._stopped else wait(process, log, limit)
            end(process)
            self._running.remove(process)
        if self._stopped:
            raise KeyboardInterrupt
        return self._killer(test, code, log, report), time.monotonic() - start

    def stop(self) -> None:
        """End all runs of tests, without a verdict: a kernel that hangs would keep the GPU."""
        self._stopped = True
        for process in list(self._running):
            end(process)

    def _killer(self, test: str, code: int | None, log: Path, report: Path) -> str | None:
        """What a run of tests says: None if all passed, else which failed and how."""
        lines = log.read_text(errors="replace").splitlines()
        if test.startswith("ctest "):
            if code == 77:
                raise Problem(f"{test} was skipped: {' '.join(lines[-1:])}", 4)
            return None if code == 0 else f"{test}{' (hangs)' if code is None else ''}"
        if code == 0:
            return None
        if code is not None and report.is_file():
            for case in ElementTree.parse(report).iter("testcase"):
                if case.find("failure") is not None or case.find("error") is not None:
                    return f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}"
        running = next((line.split()[0] for line in reversed(lines) if "::" in line), "the start of pytest")
        return f"{running.removeprefix('tests/')} ({'hangs' if code is None else f'ends with {code}'})"

    def prove(self, test: str) -> float:
        """The seconds of the slowest test of a run, on the tree as it is. Raises Problem unless all pass."""
        with self._locks[test]:
            if test not in self._proved:
                self._proved[test] = self._prove(test)
        proved = self._proved[test]
        if isinstance(proved, Problem):
            raise proved
        return proved

    def _prove(self, test: str) -> float | Problem:
        tree = self.work / "as-it-is" / hashlib.sha256(test.encode()).hexdigest()[:16]
        copy_tree(self.snapshot, tree)
        (tree / "mnist_cuda" / self.build.module.name).symlink_to(self.build.module)
        killer, slowest = self.run(test, tree, 600)
        report = tree / "report.xml"
        if killer is None and report.is_file():
            (suite,) = ElementTree.parse(report).iter("testsuite")
            slowest = max(float(case.get("time", 0)) for case in suite.iter("testcase"))
            if int(suite.get("tests", 0)) == int(suite.get("skipped", 0)):
                killer = "all of it is skipped"
        if killer:
            return Problem(f"without a mutation, `{test}` fails: {killer}; {tree / 'log.txt'} says more", 4)
        shutil.rmtree(tree)
        return slowest

    def verdict(self, mutation: Mutation, tree: Path) -> dict[str, Any]:
        """Run its tests until one fails."""
        total = 0.0
        for test in self.tests(mutation):
            killer, seconds = self.run(test, tree, PATIENCE + TIMES * self.prove(test))
            total += seconds
            if killer:
                return {"verdict": "killed", "by": killer, "seconds": round(total, 1)}
        return {"verdict": "survived", "by": None, "seconds": round(total, 1)}


# ---- verdicts --------------------------------------------------------------------------------------------------------


def code_of(mutation: Mutation, root: Path = ROOT) -> str:
    """A hash of the code that a row changes, before and after: its words, whatever comments and layout are.

    Nothing where it changes none.
    """
    text = (root / mutation.file).read_text()
    first = text.index(mutation.before)
    last = first + len(mutation.before)
    blanks = [0, *(match.end() for match in re.finditer(r"\n\n+(?=\S)", text)), len(text)]
    begin, end = max(at for at in blanks if at <= first), min(at for at in blanks if at >= last)
    comment = r"(?m)(?<!\S)#.*$" if mutation.file.endswith((".py", ".sh")) else r"//.*"
    before, after = (
        re.findall(r"\w+|\S", re.sub(comment, "", part))
        for part in (text[begin:end], text[begin:first] + mutation.after + text[last:end])
    )
    return hashlib.sha256(repr((before, after)).encode()).hexdigest()[:12] if before != after else ""


class Verdicts:
    """The JSON file of verdicts: a row per mutation, in the table's order, replaced as a whole after each."""

    def __init__(self, path: Path, setting: dict[str, Any] | None = None) -> None:
        record = json.loads(path.read_text()) if path.is_file() else {"mutations": []}
        self.path, self.setting, self._lock = path, setting or record, threading.Lock()
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in record["mutations"]}

    def of_today(self, mutation: Mutation) -> str:
        """Its verdict, if that is one on today's code."""
        row = self.rows.get(mutation.name, {})
        return str(row["verdict"]) if row.get("code") == code_of(mutation) else ""

    def add(self, mutation: Mutation, verdict: dict[str, Any], root: Path = ROOT) -> None:
        """Add a verdict on the code below `root` and write the file."""
        fields = ("name", "file", "kind", "before", "after")
        with self._lock:
            row = {field: getattr(mutation, field) for field in fields}
            self.rows[mutation.name] = row | verdict | {"code": code_of(mutation, root)}
            self.write()

    def text(self) -> str:
        """What the file is to hold."""
        rows = [self.rows[row.name] for row in MUTATIONS if row.name in self.rows]
        return json.dumps(self.setting | {"mutations": rows}, indent=1, ensure_ascii=False) + "\n"

    def write(self) -> None:
        """Write the file."""
        part = self.path.with_suffix(".part")
        part.write_text(self.text())
        part.replace(self.path)


# ---- all of them -----------------------------------------------------------------------------------------------------


def chosen(args: argparse.Namespace) -> list[Mutation]:
    """The rows that this call is about."""
    rows = [row for row in MUTATIONS if belongs(row, args.where)]
    if args.only:
        unknown = set(args.only) - {row.name for row in MUTATIONS}
        if unknown:
            raise Problem(f"no mutation is called {', '.join(sorted(unknown))}", 2)
        rows = [row for row in MUTATIONS if row.name in args.only]
        if not all(belongs(row, args.where) for row in rows):
            raise Problem("some of these need a GPU and some do not, or --gpu or --emulated is missing", 2)
    if args.sample:
        tried = [row for row in rows if not row.equivalent]
        names = {row.name for row in random.Random(args.seed).sample(tried, min(args.sample, len(tried)))}
        rows = [row for row in rows if row.name in names]
    return rows


def work(args: argparse.Namespace) -> int:
    """Run what is chosen; returns the exit code."""
    rows = chosen(args)
    runner = Runner(args)
    setting = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["scripts/check", *sys.argv[1:]]),
        "machine": machine(args.gpu),
    }
    verdicts = Verdicts(args.results, setting)
    start, lock = time.monotonic(), threading.Lock()
    counts = dict.fromkeys(("killed", "survived", "broken", "equivalent", "compiled", "left"), 0)

    def say(mutation: Mutation, verdict: dict[str, Any]) -> None:
        with lock:
            counts[verdict["verdict"]] += 1
            seconds = f"{time.monotonic() - start:6.0f} s"
            print(f"{seconds}  {verdict['verdict']:10} {mutation.name}: {verdict['by'] or ''}", flush=True)

    todo = []
    for row in rows:
        if row.equivalent:
            verdict = {"verdict": "equivalent", "by": row.equivalent, "seconds": 0.0}
            verdicts.add(row, verdict)
            counts["equivalent"] += 1
        elif args.compile or verdicts.of_today(row) != "killed":
            todo.append(row)
        else:
            counts["killed"] += 1

    # One of each file, then another of each: what ends early has been everywhere.
    todo = sorted(todo, key=lambda row: [other for other in todo if other.file == row.file].index(row))

    def prepare(mutation: Mutation) -> tuple[Mutation, Path, str | None] | None:
        if args.limit and time.monotonic() - start > args.limit:
            return None
        return mutation, *runner.prepare(mutation)

    def finish(mutation: Mutation, tree: Path, fault: str | None) -> None:
        verdict = {"verdict": "compiled", "by": None, "seconds": 0.0}
        if fault:
            verdict |= {"verdict": "broken", "by": fault}
        elif not args.compile:
            try:
                verdict = runner.verdict(mutation, tree)
            except Problem as problem:
                verdict |= {"verdict": "broken", "by": str(problem)}
        if not args.compile:
            verdicts.add(mutation, verdict, runner.snapshot)
        say(mutation, verdict)
        shutil.rmtree(tree)

    # Compilers take the cores and GPU tests the GPU; host tests share the cores with the compilers.
    with ThreadPoolExecutor(args.jobs) as compilers, ThreadPoolExecutor(args.tests or args.jobs) as testers:
        prepared = [compilers.submit(prepare, row) for row in todo]
        finished = [
            testers.submit(lambda future=future: (it := future.result()) and finish(*it)) for future in prepared
        ]
        try:
            for future in as_completed(finished):
                future.result()
            counts["left"] = sum(future.result() is None for future in prepared)
        except BaseException:
            runner.stop()
            compilers.shutdown(wait=False, cancel_futures=True)
            testers.shutdown(wait=False, cancel_futures=True)
            raise
    if not counts["broken"]:
        shutil.rmtree(runner.work)
    print(
        ", ".join(f"{count} {name}" for name, count in counts.items() if count), f"in {time.monotonic() - start:.0f} s"
    )
    return int(counts["survived"] + counts["broken"] > 0)


def gpus() -> list[str]:
    """The names of this machine's GPUs."""
    return [row["name"] for row in facts.ask_nvidia_smi("name")[0]]


def machine(gpu: bool) -> str:
    """What it ran on: the GPU's name, or the processor's."""
    if gpu:
        names = gpus()
        return f"{len(names)} x {names[0]}" if len(names) > 1 else (names or ["no GPU"])[0]
    return f"{facts.cpu_model()}, {facts.cores()} cores"


# ---- docs/trust.md ---------------------------------------------------------------------------------------------------


def published() -> str:
    """docs/trust.md with its table as the committed verdicts give it."""
    where = [
        "| where | mutations | killed | equivalent | stale or missing | ran on |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for path in sorted(RECORDS.glob("*.json")):
        verdicts = Verdicts(path)
        by = [verdicts.of_today(row) for row in MUTATIONS if belongs(row, path.stem)]
        counts = [len(by), by.count("killed"), by.count("equivalent"), by.count("")]
        cells = [f"[{path.stem}](records/mutations/{path.name})", *map(str, counts), verdicts.setting["machine"]]
        where.append(f"| {' | '.join(cells)} |")
    text = PAGE.read_text()
    block = re.compile(r"(<!-- summary -->\n).*?(<!-- /summary -->)", re.DOTALL)
    if not block.search(text):
        raise Problem(f"{PAGE}: there is no <!-- summary --> ... <!-- /summary -->", 2)
    return block.sub(lambda match: match[1] + "\n".join(where) + "\n" + match[2], text)


def publish(check: bool) -> int:
    """Write docs/trust.md; check: only say whether it is another one."""
    page = published()
    if page == PAGE.read_text():
        return 0
    if check:
        print(f"{PAGE.name}: not as the verdicts and the code are; run scripts/check mutations --publish and commit")
        return 1
    PAGE.write_text(page)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add = parser.add_argument
    add("--gpu", action="store_true", help="mutations that need a GPU, instead of those that need none")
    add("--emulated", action="store_true", help="mutations of what the emulator runs, and of the emulator, there")
    add("--only", nargs="+", default=[], metavar="NAME", help="these")
    add("--sample", type=int, default=0, metavar="N", help="this many, chosen by --seed")
    add("--seed", type=int, default=0, metavar="N", help="of the sample")
    add("--limit", type=float, default=0, metavar="S", help="begin none after so many seconds")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="side by side (default: the cores)")
    add("--tests", type=int, default=0, metavar="N", help="runs of tests side by side (default: as --jobs)")
    add("--build", type=Path, default=BUILD, metavar="DIR", help="the finished build (default: build)")
    add(
        "--results",
        type=Path,
        metavar="FILE",
        help="verdicts (default: BUILD/mutations-host.json, -gpu.json or -emulated.json)",
    )
    add("--compile", action="store_true", help="only compile them")
    add("--check", action="store_true", help="only see that each row names one place in the code, and tests")
    add("--publish", action="store_true", help="only write docs/trust.md; with --check only compare")


def run(args: argparse.Namespace) -> int:
    """Do what the flags say; the exit code."""
    args.where = "gpu" if args.gpu else "emulated" if args.emulated else "host"
    args.results = args.results or args.build / f"mutations-{args.where}.json"
    check(MUTATIONS)
    if args.publish:
        return publish(args.check)
    if args.check:
        print(f"{len(MUTATIONS)} mutations, each names one place in the code and its tests")
        return 0
    return work(args)
