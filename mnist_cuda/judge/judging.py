"""Judges files, one after the other, and says what it found."""

from __future__ import annotations

import contextlib
import functools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnist_cuda import _native
from mnist_cuda.bench import emulate, occupancy
from mnist_cuda.errors import MnistCudaError, OutputError, UnavailableError, UsageError
from mnist_cuda.judge import build, exercises, nvcc, python_files, signatures, verdict
from mnist_cuda.judge.judged_ops import BATCH, OPS
from mnist_cuda.terminal import console
from mnist_cuda.terminal.json_output import VERSION, dumps

WIDTH, MARGIN = 80, 11
RIGHT, WRONG, NO_KERNEL = 0, 1, 2
TIMES = ("cold_us", "warm_us")
SUSPECT = 0.8  # of the least time by the roofs, which were measured, too


def on_gpu() -> bool:
    """Whether there is a GPU that this build runs on."""
    return not _native.cuda_status()["reason"]


def command(files: Sequence[Path], json: bool, gpu: str = "", emulate: bool = False, board: bool = False) -> int:
    """`mnist-cuda judge`; the exit code is the worst of the files'."""
    code, out = RIGHT, console.make_console()
    if board and (emulate or not on_gpu()):
        why = "--emulate is given" if emulate else _native.cuda_status()["reason"]
        raise UnavailableError(f"--board compares times, which only a GPU has: {why}")
    estimate = console.Estimate(console.make_console(stderr=True))
    for done, file in enumerate(files, 1):
        try:
            found = judge_file(file, gpu, emulate, board)
        except MnistCudaError as error:  # of this file; the others are judged all the same
            if len(files) == 1 and not json:
                raise
            found = _refused(file, error.exit_code, str(error)) | {"lines": _wrapped("", str(error))}
        estimate.after(done / len(files))
        code = max(code, found["exit_code"])
        if json:
            print(dumps({"version": VERSION, **{k: v for k, v in found.items() if k != "lines"}}), flush=True)
        else:
            for line in found["lines"]:
                out.print(line, soft_wrap=True)
    return code


def _refused(file: Path, code: int, error: str, exercise: str = "") -> dict[str, Any]:
    """What `judge_file` returns of a file without verdicts."""
    lines = [f"{file}:", *_wrapped("", error)]
    return {"file": str(file), "exit_code": code, "error": error, "exercise": exercise, "verdicts": [], "lines": lines}


def judge_file(file: Path, gpu: str = "", emulated: bool = False, board: bool = False) -> dict[str, Any]:
    """`file`, `exit_code`, `error`, `exercise`, `verdicts`, one a launcher, and `lines`, for people.

    gpu: one of emulate.GPUS, for which nvcc tells registers; by default nvcc is not asked. emulated: the GPU that is
    here is not asked. board: of a right kernel that was timed, `lines` has little more than the table of times.
    Raises UsageError for a file that cannot be read, UnavailableError without a compiler.
    """
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    if file.suffix not in (".cu", ".py"):
        raise UsageError(f"{file}: expected a .cu or .py file")
    cuda, name = file.suffix == ".cu", verdict.exercise_of(text)
    exercise = exercises.find(name) if name else None
    verdicts: list[verdict.Verdict] = []
    lines: list[str] = []
    try:
        fitting, others = (signatures if cuda else python_files).find(text)
        if exercise:
            fitting = [one for one in fitting if one.name == exercise.launcher]
        if not fitting:
            names = exercise.launcher if exercise else ", ".join(OPS)
            what = f"it has no launcher, expected {'void' if cuda else 'def'} NAME(...) with NAME one of {names}"
            return _refused(file, NO_KERNEL, others[0] if others else what, name)
        with contextlib.ExitStack() as stack:
            program = stack.enter_context(_program(file, text, fitting, gpu=not emulated and on_gpu()))
            for one in _verdicts(stack, program, fitting, text, gpu if cuda else ""):
                if exercise:
                    exercises.apply_goal(exercise, one)
                lines += [""] * bool(verdicts) + [f"{file}: {one.name}, op {one.op}"]
                only_times = board and one.times and one.right
                told = verdict.fast(one, board=True) if only_times else verdict.lines(one, program.seconds)
                for label, words in (*told, *(("printed", line) for line in program.printed())):
                    lines += _wrapped(label, words)
                verdicts.append(one)
    except build.NotCompiledError as error:
        return _refused(file, WRONG, f"does not compile: {error}", name)
    for other in others:
        lines += _wrapped("left out", other)
    right = all(one.right for one in verdicts)
    if exercise and right:
        lines += _wrapped("solved", _solved(name, file))
    found = {"file": str(file), "exit_code": RIGHT if right else WRONG, "error": "", "exercise": name}
    return found | {"verdicts": [one.to_json() for one in verdicts], "lines": lines}


def _program(file: Path, text: str, launchers: list[signatures.Launcher], gpu: bool) -> build.Program:
    """What runs a file with this text, on the GPU that is here or without."""
    if file.suffix == ".py":
        return python_files.PythonProgram(file, text, gpu)
    return nvcc.GpuProgram(file, launchers) if gpu else build.EmulatedProgram(file, launchers)


def _verdicts(
    stack: contextlib.ExitStack, program: build.Program, launchers: list[signatures.Launcher], text: str, gpu: str
) -> Iterator[verdict.Verdict]:
    """A verdict on each launcher of the file with this text: a GPU's program is judged in the emulator, too."""
    emulator, not_emulated = None, ""
    if isinstance(program, nvcc.GpuProgram):
        try:
            emulator = stack.enter_context(build.EmulatedProgram(program.file, launchers))
        except UnavailableError as error:
            not_emulated = str(error)
        except build.NotCompiledError as error:
            not_emulated = f"the emulator does not compile the file: {error}"
    compiled: list[occupancy.Compiled] = []
    known = occupancy.Resources()
    if gpu:
        compiled, known = occupancy.resources(program.file, gpu, emulate.sources())
    for number, launcher in enumerate(launchers):
        one = verdict.judge(program, number, launcher)
        if isinstance(program, nvcc.GpuProgram):
            one.compiled_for, one.not_emulated = program.compiler.words, not_emulated
            one.foreign = verdict.foreign_kernels(one, text)
            if emulator:
                one = verdict.merge(one, verdict.judge(emulator, number, launcher))
        if one.times:
            _add_rows(one)
        if known.gpu:
            known = replace(known, kernels=occupancy.uses(compiled, one.launched, gpu))
        one.resources = known
        yield one


def _add_rows(one: verdict.Verdict) -> None:
    """Puts the ladder's rows beside the times, and what the GPU could do at best; a time below that is refused."""
    times = one.times
    assert times
    if not one.right:
        one.times = None
        return
    try:
        report = _ladder(one.op)
    except (MnistCudaError, ValueError) as error:
        times.rows_missing = str(error)
        return
    rows, roofs = report["rows"], report["roofs"]
    times.rows = [{name: row[name] for name in ("variant", "library", "absent", *TIMES)} for row in rows]
    flops = roofs.get("tf32_flops" if one.tf32 else "fma_flops")
    if flops:
        times.least_us = 1e6 * max(rows[0]["bytes"] / roofs["bytes_per_second"], rows[0]["flops"] / flops)
        if times.cold_us < SUSPECT * times.least_us:
            times.refused = f"no kernel is so fast: this GPU needs {times.least_us:.3g} us at least to move and compute"


@functools.lru_cache
def _ladder(op: str) -> dict[str, Any]:
    from mnist_cuda.bench import ops

    return ops.measure(op, "", BATCH, 0)


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
