"""Judges files, one after the other, and says what it found."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnist_cuda import _native
from mnist_cuda.bench import emulate, occupancy
from mnist_cuda.errors import MnistCudaError, NotJudgedError, OutputError, UnavailableError, UsageError
from mnist_cuda.judge import build, exercises, nvcc, python_files, report, signatures, verdict
from mnist_cuda.judge.judged_ops import BATCH, OPS
from mnist_cuda.judge.program import SHOWN, Program
from mnist_cuda.terminal import console
from mnist_cuda.terminal.json_output import VERSION, dumps

WIDTH, MARGIN = 80, 11
RIGHT, WRONG, NO_KERNEL, NOT_JUDGED = 0, 1, 2, NotJudgedError.exit_code
MOST_BYTES = 4 << 20  # of a file
POLL = 0.2  # seconds between looks at a watched file
TIMES = ("cold_us", "warm_us")
SUSPECT = 0.8  # of the least time by the roofs, which were measured, too


def on_gpu() -> bool:
    """Whether there is a GPU that this build runs on."""
    return not _native.cuda_status()["reason"]


def command(
    files: Sequence[Path], json: bool, gpu: str = "", emulate: bool = False, board: bool = False, watch: bool = False
) -> int:
    """`mnist-cuda judge`; the exit code is the worst of the files'. watch: again after each change, until Ctrl-C."""
    if board and (emulate or not on_gpu()):
        why = "--emulate is given" if emulate else _native.cuda_status()["reason"]
        raise UnavailableError(f"--board compares times, which only a GPU has: {why}")
    if not watch:
        return _judge_all(files, json, gpu, emulate, board, alone=len(files) == 1 and not json)
    while True:
        seen = [_stamp(file) for file in files]
        _judge_all(files, json, gpu, emulate, board, alone=False)
        sys.stdout.flush()
        note = f"watching {', '.join(map(str, files))}; Ctrl-C ends it"
        console.make_console(stderr=True).print(note, style="dim")
        while (now := [_stamp(file) for file in files]) == seen or not all(now):
            time.sleep(POLL)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Other numbers after each save; none while an editor has the file away."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _judge_all(files: Sequence[Path], json: bool, gpu: str, emulate: bool, board: bool, alone: bool) -> int:
    """Each file, printed. alone: an error of the only file ends the command."""
    code, out = RIGHT, console.make_console()
    estimate = console.Estimate(console.make_console(stderr=True))
    for done, file in enumerate(files, 1):
        try:
            found = judge_file(file, gpu, emulate, board)
        except MnistCudaError as error:  # of this file; the others are judged all the same
            if alone:
                raise
            found = _refused(file, error.exit_code, str(error)) | {"lines": _wrapped("", str(error))}
        except Exception as error:  # ours; a file brought it about, so it is that file's
            why = f"the judge itself failed, by {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            found = _refused(file, NOT_JUDGED, f"{why}; please report it with the file")
        estimate.after(done / len(files))
        code = max(code, found["exit_code"])
        if json:
            print(dumps({"version": VERSION, **{k: v for k, v in found.items() if k != "lines"}}), flush=True)
        else:
            label = ""
            for line in found["lines"]:  # what is wrapped has its label's style
                label = label if line.startswith(" " * MARGIN) else report.label_of(line)
                out.print(line, soft_wrap=True, style=report.STYLES.get(label))
    return code


def _refused(file: Path, code: int, error: str, exercise: str = "") -> dict[str, Any]:
    """What `judge_file` returns of a file without verdicts."""
    lines = [f"{file}:", *_wrapped("", error)]
    if code == NOT_JUDGED:
        lines = [*_first(verdict.NOT_JUDGED, str(file)), *_wrapped("", error), *_wrapped(*report.UNKNOWN_LAST)]
    return {"file": str(file), "exit_code": code, "error": error, "exercise": exercise, "verdicts": [], "lines": lines}


def _read(file: Path) -> str:
    """Raises UsageError for what is no file of this kind; never waits for a pipe."""
    if file.suffix not in (".cu", ".py"):
        raise UsageError(f"{file}: expected a .cu or .py file")
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise UsageError(f"{file} is no regular file")
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file} is longer than {MOST_BYTES >> 20} MB, which no kernel is")
    return data.decode(errors="replace")


def judge_file(file: Path, gpu: str = "", emulated: bool = False, board: bool = False) -> dict[str, Any]:
    """`file`, `exit_code`, `error`, `exercise`, `verdicts`, one a launcher, and `lines`, for people.

    gpu: one of emulate.GPUS, for which nvcc tells registers; by default nvcc is not asked. emulated: the GPU that is
    here is not asked. board: of a right kernel that was timed, `lines` has little more than the table of times.
    Raises UsageError for a file that cannot be read, UnavailableError without a compiler.
    """
    text = _read(file)
    cuda, name = file.suffix == ".cu", verdict.exercise_of(text)
    exercise = exercises.find(name) if name else None
    verdicts: list[verdict.Verdict] = []
    lines: list[str] = []
    try:
        fitting, others = (signatures if cuda else python_files).find(text)
        if exercise:
            fitting = [one for one in fitting if one.name == exercise.launcher]
        with contextlib.ExitStack() as stack:
            program = _compiled(stack, file, text, fitting, others, gpu=not emulated and on_gpu())
            if not program:
                names = exercise.launcher if exercise else ", ".join(OPS)
                what = f"it has no launcher, expected {'void' if cuda else 'def'} NAME(...) with NAME one of {names}"
                return _refused(file, NO_KERNEL, others[0] if others else what, name)
            for one in _verdicts(stack, program, fitting, text, gpu if cuda else ""):
                if exercise:
                    exercises.apply_goal(exercise, one)
                verdicts.append(one)
                done = bool(exercise) and len(verdicts) == len(fitting) and all(each.right for each in verdicts)
                if done:
                    exercises.mark_solved(name, file)
                one.next = _next(one, name if done else "")
                lines += [""] * (len(verdicts) > 1)
                lines += _report(one, program, file, name if done else "", board)
    except build.NotCompiledError as error:
        return _refused(file, WRONG, f"does not compile: {error}", name)
    except NotJudgedError as error:
        return _refused(file, NOT_JUDGED, str(error), name)
    for other in others:
        lines += _wrapped("left out", other)
    code = RIGHT if all(one.right for one in verdicts) else NOT_JUDGED
    if any(one.outcome == verdict.WRONG or one.goal_missed for one in verdicts):
        code = WRONG
    found = {"file": str(file), "exit_code": code, "error": "", "exercise": name}
    return found | {"verdicts": [one.to_json() for one in verdicts], "lines": lines}


def _first(label: str, words: str) -> list[str]:
    """The first line, which is not wrapped: a path stays whole."""
    return [f"{label:<{MARGIN}}{words}"]


def _report(one: verdict.Verdict, program: Program, file: Path, solved: str, board: bool) -> list[str]:
    """The lines on one launcher; solved: the exercise that the file has just solved."""
    (label, words), *told = report.lines(one, program.seconds, file)
    lines = _first(label, words)
    if board and one.times and one.right:
        return lines + [line for pair in report.fast(one, board=True) for line in _wrapped(*pair)]
    told += report.labelled("printed", program.printed(), SHOWN + 1)
    told += [("solved", f"exercise {solved}")] * bool(solved) + [("next", one.next)] * bool(one.next)
    return lines + [line for pair in (*told, report.last_line(one)) for line in _wrapped(*pair)]


def _next(one: verdict.Verdict, solved: str) -> str:
    """One step, after a right kernel: by its counters, or else the exercise after the one that it has solved."""
    done = exercises.solved()
    words = verdict.advice(one, done)
    after = exercises.following(done) if solved else ""
    return f"`mnist-cuda exercise start {after}`" if after and "exercise `" not in words else words


def _compiled(
    stack: contextlib.ExitStack,
    file: Path,
    text: str,
    fitting: list[signatures.Launcher],
    others: list[str],
    gpu: bool,
) -> Program | None:
    """The file's program; launchers of other types move from `fitting` to `others`. None where no launcher is left."""
    while fitting:
        try:
            return stack.enter_context(_program(file, text, fitting, gpu))
        except build.OtherTypesError as error:
            others += [signatures.other_types(fitting[k].op, fitting[k].name) for k in sorted(error.numbers)]
            fitting[:] = [one for k, one in enumerate(fitting) if k not in error.numbers]
    return None


def _program(file: Path, text: str, launchers: list[signatures.Launcher], gpu: bool) -> Program:
    """What runs a file with this text, on the GPU that is here or without."""
    if file.suffix == ".py":
        return python_files.PythonProgram(file, text, gpu)
    return nvcc.GpuProgram(file, launchers) if gpu else build.EmulatedProgram(file, launchers)


def _verdicts(
    stack: contextlib.ExitStack, program: Program, launchers: list[signatures.Launcher], text: str, gpu: str
) -> Iterator[verdict.Verdict]:
    """A verdict on each launcher of the file with this text: a GPU's program is judged in the emulator, too."""
    emulator, not_emulated = None, ""
    if isinstance(program, nvcc.GpuProgram):
        try:
            emulator = stack.enter_context(build.EmulatedProgram(program.file, launchers))
        except (UnavailableError, NotJudgedError) as error:
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
