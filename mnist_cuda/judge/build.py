"""Compiles a judged .cu file: as C++ with the emulator, or what any compiler makes callable."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mnist_cuda.bench import emulate
from mnist_cuda.errors import NotJudgedError, UnavailableError
from mnist_cuda.judge import judged_ops
from mnist_cuda.judge.program import Program
from mnist_cuda.judge.signatures import Launcher, without_comments

EMULATOR = "the emulator"
PARTS = ("machine", "checks", "judge")  # of the emulator's program, beside a user's file
OWN_NAME = "judged.cu"  # under which a file is compiled, whatever its name
COMPILE_SECONDS, COMPILE_KB = 300, 8 << 20  # that g++ may take for a user's file
WARNINGS = ("-Wall", "-Wno-unused", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-fmax-errors=20")
SLIP = 0.9  # names that are so much alike are a slip of the pen
MOST_SAID = 1 << 18  # bytes of a compiler's output that are read
# Names of CUDA's; where g++ does not know one, the emulator lacks it.
CUDA_NAME = re.compile(
    r"cuda\w+|cu[A-Z]\w*|cublas\w*|cooperative_groups|cg|nv\w+|wmma|tex\w+|surf\w+|atomic\w+|make_\w+|\w*half\w*|"
    r"\w*bfloat\w*|__\w+"
)
CUDA_HEADER = re.compile(
    r"(?:cu|nv)\w*\.(?:h|hpp|cuh)|(?:cuda|cub|cute|cutlass|thrust|nv|cooperative_groups)/.*|mma\.h"
)


class NotCompiledError(Exception):
    """The file is no C++; the text is the compiler's."""


class OtherTypesError(Exception):
    """Launchers of these numbers have other parameters than their op's."""

    def __init__(self, numbers: Iterable[int]) -> None:
        super().__init__()
        self.numbers = set(numbers)


def own_source(file: Path, launchers: Iterable[Launcher]) -> str:
    """C++ that includes a user's file and makes its launchers callable by number: judge/own.h.

    The compiler compares their types; a 64-bit size may also be a `long long`.
    """
    text, names = f'#include "judge/call.h"\n#include "{file}"\n', []  # the file's macros come after our header
    for number, each in enumerate(launchers):
        types = ", ".join(p.type for p in each.parameters)
        long, name = types.replace("std::int64_t", "long long"), f"judge_own_launcher_{number}"
        cast, other = (f"static_cast<{type}>(&{each.qualified})" for type in ("JudgeWanted", "JudgeOther"))
        names.append(f"{name}<void (*)({types}), void (*)({long})>()")
        text += (
            f"template <class JudgeWanted, class JudgeOther>\nstatic judge::Launcher {name}() {{\n"
            f"  if constexpr (requires {{ {cast}; }}) {{\n    return judge::launcher({cast});\n  }} else {{\n"
            f'    static_assert(requires {{ {other}; }}, "types of launcher {number}");\n'
            f"    return judge::launcher({other});\n  }}\n}}\n"
        )
    return (
        f"{text}static const std::vector<judge::Launcher>& judge::launchers() {{\n"
        f"  static const std::vector<judge::Launcher> all{{{', '.join(names)}}};\n  return all;\n}}\n"
    )


def compile_emulated(
    file: Path,
    launchers: Iterable[Launcher],
    folder: Path,
    name: str = "mnist_own_launch",
    warnings: list[str] | None = None,
) -> Path:
    """The object of a user's file for the emulator; name: of its function of judge/own.h; warnings: g++'s are added.

    Raises NotCompiledError, OtherTypesError, and NotJudgedError for what the emulator lacks.
    """
    native = emulate.sources()
    source, rewritten, made = folder / OWN_NAME, folder / "rewritten", folder / "own.o"
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    _require_own_names(without_comments(text))
    source.write_text(text, encoding="utf-8")
    emulate.rewrite(native, native / "gpu", rewritten, emulate.kernel_headers(native))
    try:
        emulate.rewrite(native, folder, rewritten / "own", [source])
    except UnavailableError as error:  # in the words of rewrite.py
        why = str(error).split("Error: ", 1)[-1]
        raise (NotJudgedError if "not understood" in why else NotCompiledError)(why) from error
    own, given = folder / "own.cpp", rewritten / "own" / f"{OWN_NAME}.cpp"
    shown = re.sub(r"[\x00-\x1f\x7f]", "?", file.name).encode(errors="replace").decode()
    name_of_line = shown.replace("\\", "\\\\").replace('"', '\\"')
    text = given.read_text(encoding="utf-8")
    text = text.replace(f'#line 1 "{source}"', f'#line 1 "{folder}/{name_of_line}"', 1)
    given.write_text(text, encoding="utf-8")
    own.write_text(own_source(given, launchers))
    includes = [*emulate.include_flags(native, rewritten), f"-I{file.resolve().parent}"]
    # A learner's own main is not run.
    flags = ["-std=c++20", *emulate.kernel_flags(native), *WARNINGS, "-Dmain=own_main"]
    begin = emulate.precompiled(native, flags)
    said = _compile([*flags, *begin, f"-Dmnist_own_launch={name}", *includes, "-c", own, "-o", made], source, file)
    if warnings is not None:
        found = re.findall(rf"^{re.escape(f'{folder}/{shown}')}:(\d+):\d+: warning: (.*)$", said, re.MULTILINE)
        warnings += dict.fromkeys(f"{file.name}:{line}: {words}" for line, words in found)
    _require_own_symbols(made)
    return made


def _require_own_names(text: str) -> None:
    """Raises NotJudgedError where a file speaks of what is the judge's own."""
    if taken := re.search(r"\b(?:__tsan_\w+|(?:emulator|judge)(?=\s*::)|(?<=namespace )\s*(?:emulator|judge)\b)", text):
        line = text.count("\n", 0, taken.start()) + 1
        raise NotJudgedError(f"line {line} names {taken[0].strip()}, which is the judge's own: rename it")


def _require_own_symbols(made: Path) -> None:
    """Raises NotJudgedError where an object takes the place of what the judge calls, or runs before it."""
    done = subprocess.run(["readelf", "-SsW", made], capture_output=True, text=True, errors="replace")
    if early := re.search(r"\.preinit_array|\.init_array\.(?!00099)\d+", done.stdout):  # 99: of -fsanitize=thread
        raise NotJudgedError(f"it has code that runs before the judge's: section {early[0]}")
    functions = set(re.findall(r"FUNC +(?:GLOBAL|WEAK) +\w+ +\d+ (\S+)$", done.stdout, re.MULTILINE))
    functions |= set(re.findall(r"FUNC +LOCAL +\w+ +\d+ (__tsan_\S+)$", done.stdout, re.MULTILINE))
    c_names = {name for name in functions if not name.startswith("_Z")}
    libc = subprocess.run([emulate.require_compiler(), "-print-file-name=libc.so.6"], capture_output=True, text=True)
    theirs = subprocess.run(["nm", "-D", "--defined-only", libc.stdout.strip()], capture_output=True, text=True).stdout
    taken = {name for name in c_names if name.startswith("__tsan_") or f" {name}@" in theirs}
    taken |= set(re.findall(r"FUNC +GLOBAL +\w+ +\d+ (_ZN(?:8emulator|5judge)\S+)$", done.stdout, re.MULTILINE))
    if taken:
        raise NotJudgedError(f"it defines {min(taken)}, which the judge calls itself: rename it")


def _compile(words: Iterable[Any], source: Path, file: Path) -> str:
    """What g++ says. Raises NotCompiledError or OtherTypesError; NotJudgedError for what the emulator lacks."""
    said = source.with_name("said")
    limit = f'ulimit -v {COMPILE_KB}; exec "$@"'
    limited = ["/bin/sh", "-c", limit, "sh", emulate.require_compiler(), *map(str, words)]
    with said.open("wb") as errors:
        null = subprocess.DEVNULL
        child = subprocess.Popen(limited, stdin=null, stdout=null, stderr=errors, start_new_session=True)
    try:
        code = child.wait(COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotCompiledError(f"g++ did not end within {COMPILE_SECONDS} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    with said.open("rb") as errors:
        text = errors.read(MOST_SAID).decode(errors="replace")
    if not code:
        return text
    if numbers := re.findall(r"types of launcher (\d+)", text):
        raise OtherTypesError(map(int, numbers))
    if lacks := _lacks(text):
        raise NotJudgedError(f"the emulator does not have {lacks}")
    raise NotCompiledError(complaint(text, source.with_name(file.name)))


def _lacks(text: str) -> str:
    """CUDA's name at which g++ stopped first, with its line; nothing where that is another fault."""
    for line in text.splitlines():
        if missing := re.search(r"undefined reference to `(__tsan_\w+|cu\w+)", line):
            return missing[1]
        if not (error := re.search(r":(\d+):\d+: (?:fatal )?error: (.*)", line)):
            continue
        if header := re.match(r"(\S+): No such file", error[2]):
            return f"{header[1]}, line {error[1]}" if CUDA_HEADER.fullmatch(header[1]) else ""
        name = re.match(
            r"[‘'](?:[\w:]+::)?(\w+)[’'] (?:was not declared|does not name|has not been|is not a (?:member|class))",
            error[2],
        )
        if not name or not CUDA_NAME.fullmatch(name[1]):
            return ""
        meant = re.search(r"did you mean [‘'](\w+)", error[2])
        slip = meant and difflib.SequenceMatcher(None, name[1], meant[1]).ratio() > SLIP
        return "" if slip else f"{name[1]}, line {error[1]}"
    return ""


def complaint(text: str, file: Path) -> str:
    """The lines of a compiler's output that say what is wrong, three at most."""
    text = text.replace(str(file), file.name)
    found = [line for line in text.splitlines() if re.search(r"\b(error|fatal)\b.*:|undefined reference", line)]
    return "; ".join(found[:3]) or " ".join(text.split())[-300:] or "the compiler gives no reason"


class CudaProgram(Program):
    """A .cu file, compiled and run by native/gpu/judge/run.cpp; parts: the other objects. Raises NotCompiledError."""

    def __init__(self, file: Path, launchers: Iterable[Launcher], parts: Iterable[Path]) -> None:
        super().__init__(file)
        self.words = (self.folder / "program",)
        started = time.monotonic()
        try:
            self.make(self.folder / "program", launchers, parts)
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - started

    def make(self, program: Path, launchers: Iterable[Launcher], parts: Iterable[Path]) -> None:
        raise NotImplementedError

    def task(self, number: int, launcher: Launcher, case: judged_ops.Case) -> str:
        """Words, as native/gpu/judge/run.cpp reads them."""
        of = launcher.op.sizes(case)
        reals = [judged_ops.UPSTREAM for p in launcher.parameters if p.role == "real"]
        words: list[Any] = [number, int(case.timed), case.calls, *case.sets]
        words += [len(case.sizes), *case.sizes, len(reals), *reals]
        arrays = [p for p in launcher.parameters if p.role in ("out", "in", "scratch")]
        words.append(len(arrays))
        for p in arrays:
            each = p.kind.itemsize
            bytes_of = p.shape if p.role == "scratch" else each * int(np.prod(judged_ops.shape_of(p, of)))
            words += [p.role, bytes_of, each if p.name in case.shifted else 0]
        return " ".join(map(str, words))


class EmulatedProgram(CudaProgram):
    """A .cu file, compiled with the emulator. Raises UnavailableError where that does not run."""

    by = EMULATOR
    knows_stores = True

    def __init__(self, file: Path, launchers: Iterable[Launcher]) -> None:
        if os.uname().machine != "x86_64":
            raise UnavailableError("the emulator runs on x86-64 only")
        super().__init__(file, launchers, emulate.objects(*PARTS))

    def make(self, program: Path, launchers: Iterable[Launcher], parts: Iterable[Path]) -> None:
        own = compile_emulated(self.file, launchers, self.folder, warnings=self.warnings)
        try:
            _compile([own, *parts, "-o", program], own, self.file)
        except NotCompiledError as error:
            if "undefined reference to `mnist::kernels::" not in str(error):
                raise
            # It calls ours. What comes first takes the place of our kernels of that name.
            ours = emulate.objects("kernels", "tables")
            _compile(["-Wl,--allow-multiple-definition", own, *parts, *ours, "-o", program], own, self.file)
