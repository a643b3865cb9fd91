"""Judges files, one after the other, and says what it found."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnist_cuda.bench import emulate, occupancy
from mnist_cuda.errors import OutputError, UsageError
from mnist_cuda.judge import build, exercises, python_files, signatures, verdict
from mnist_cuda.judge.judged_ops import OPS
from mnist_cuda.terminal import console
from mnist_cuda.terminal.json_output import dumps

WIDTH, MARGIN = 80, 11
RIGHT, WRONG, NO_KERNEL = 0, 1, 2


def command(files: Sequence[Path], json: bool, gpu: str = "") -> int:
    """`mnist-cuda judge`; the exit code is the worst of the files'."""
    code, out = RIGHT, console.make_console()
    for file in files:
        found = judge_file(file, gpu)
        code = max(code, found["exit_code"])
        if json:
            print(dumps({key: value for key, value in found.items() if key != "lines"}), flush=True)
        else:
            for line in found["lines"]:
                out.print(line, soft_wrap=True)
    return code


def judge_file(file: Path, gpu: str = "") -> dict[str, Any]:
    """`file`, `exit_code`, `error`, `exercise`, `verdicts`, one a launcher, and `lines`, for people.

    gpu: one of emulate.GPUS, for which nvcc tells registers; by default nvcc is not asked.
    Raises UsageError for a file that cannot be read, UnavailableError without a compiler.
    """
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    found: dict[str, Any] = {"file": str(file), "exit_code": NO_KERNEL, "error": "", "exercise": "", "verdicts": []}
    found["lines"] = []

    def refuse(code: int, error: str) -> dict[str, Any]:
        found.update(exit_code=code, error=error)
        found["lines"] += [f"{file}:", *_wrapped("", error)]
        return found

    if file.suffix not in (".cu", ".py"):
        return refuse(NO_KERNEL, f"expected a .cu or .py file, found '{file.name}'")
    exercise = None
    packages: set[str] = set()
    if name := verdict.exercise_of(text):
        exercise = exercises.find(name)
        found["exercise"] = name
    emulated = file.suffix == ".cu"
    if emulated:
        build.require()
        fitting, others = signatures.find(text)
    else:
        try:
            tree = python_files.parse(text)
        except build.NotCompiledError as error:
            return refuse(WRONG, f"does not compile: {error}")
        fitting, others = python_files.find(tree)
        packages = python_files.imported(tree)
    if exercise:
        fitting = [one for one in fitting if one.name == exercise.launcher]
    if not fitting:
        names = exercise.launcher if exercise else ", ".join(OPS)
        form = "void" if emulated else "def"
        what = f"it has no launcher, expected {form} NAME(...) with NAME one of {names}"
        return refuse(NO_KERNEL, others[0] if others else what)
    try:
        program: build.Program
        program = build.EmulatedProgram(file, fitting) if emulated else python_files.PythonProgram(file, packages)
    except build.NotCompiledError as error:
        return refuse(WRONG, f"does not compile: {error}")
    compiled: list[occupancy.Compiled] = []
    known = occupancy.Resources()
    if gpu and emulated:
        compiled, known = occupancy.resources(file, gpu, emulate.sources())
    try:
        for number, launcher in enumerate(fitting):
            one = verdict.judge(program, number, launcher)
            if known.gpu:
                known = replace(known, kernels=occupancy.uses(compiled, one.launched, gpu))
            one.resources = known
            if exercise:
                exercises.apply_goal(exercise, one)
            found["verdicts"].append(one.to_json())
            found["lines"] += [""] * (number > 0) + [f"{file}: {one.name}, op {one.op}"]
            for label, words in verdict.lines(one, program.seconds):
                found["lines"] += _wrapped(label, words)
            for printed in program.printed():
                found["lines"] += _wrapped("printed", printed)
    finally:
        program.close()
    for other in others:
        found["lines"] += _wrapped("left out", other)
    right = all(one["right"] for one in found["verdicts"])
    found["exit_code"] = RIGHT if right else WRONG
    if exercise and right:
        found["lines"] += _wrapped("solved", _solved(exercise.name, file))
    return found


def _solved(name: str, file: Path) -> str:
    exercises.mark_solved(name, file)
    after = exercises.following(exercises.solved())
    return f"exercise {name}; " + (f"next: `mnist-cuda exercise start {after}`" if after else "it was the last one")


def _wrapped(label: str, words: str) -> list[str]:
    if words.startswith("  "):
        return [" " * MARGIN + words]
    first = f"{label:<{MARGIN}}" if label else " " * MARGIN
    wrapped = textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=" " * MARGIN, break_on_hyphens=False)
    return wrapped or [first.rstrip()]


def start(name: str, to: Path | None) -> Path:
    """`mnist-cuda exercise start`: writes the skeleton. Raises OutputError where the file is there."""
    file = to or Path(f"{name}.cu")
    text = exercises.skeleton(exercises.find(name))
    try:
        with file.open("x") as out:
            out.write(text)
    except FileExistsError:
        raise OutputError(f"{file} is there already, and is not overwritten; --out names another file") from None
    except OSError as error:
        raise OutputError(f"{file}: {error.strerror}") from error
    return file
