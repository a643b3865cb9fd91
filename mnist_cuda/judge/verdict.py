"""What the judge finds out about a launcher: right or not, its memory, its bits, its counters, and what to try next."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.bench.emulate import SECTORS_A_CYCLE
from mnist_cuda.bench.occupancy import Resources
from mnist_cuda.judge import judged_ops
from mnist_cuda.judge.build import EMULATOR
from mnist_cuda.judge.program import FORGED, Program, Ran
from mnist_cuda.judge.signatures import Launcher, without_comments

RIGHT, WRONG, NOT_JUDGED = "RIGHT", "WRONG", "NOT JUDGED"
UNSUPPORTED = "unsupported"  # the kind of a fault that is the emulator's
OUR_HELPERS = ("linear_add_slices_kernel", "linear_backward_bias_kernel")  # of kernels/linear/slices.h
OF_SIZES = ("outside", "unset", "misaligned", "order")  # faults that may come from a size; a race is none
TILES = (16, 32, 64, 128, 256)  # whose multiples a kernel may be right at alone
AROUND = 8  # elements that are shown around a wrong one, either way


@dataclass
class Wrong:
    """The first wrong element of a call, or `failed`: why there is none.

    unwritten: whether nothing stored it; filling: whether it has the bits of memory that nothing has stored to.
    """

    case: str
    call: int = 1  # of the case
    failed: str = ""
    output: str = ""
    index: list[int] = field(default_factory=list)
    got: float = 0
    expected: float = 0
    unwritten: bool = False
    filling: bool = False
    launched: bool = True  # whether the call launched a kernel
    count: int = 0
    of: int = 0
    around: list[str] = field(default_factory=list)  # rows: right ., wrong X, not written ?


@dataclass
class Counters:
    """Of one call at the case `of`; `sectors` and `turns` as multiples of the least for the same bytes.

    `traffic`: bytes of all sectors over those of the op's arrays; `wide`: bytes of a lane's access to global memory;
    `loads`: of a thread, per multiply-add; `blocks`: of the smallest launch; `atomics`: atomic operations on global
    memory, of all threads; `lines`: what they cost by line and array, the most wasteful first. `first`: by lane of the
    most wasteful access there, how many bytes behind the array's first one it begins, None where the lane idles.
    `waste`: by counter, about how many cycles of a multiprocessor it costs beyond the least.
    """

    of: str
    sectors: float | None
    turns: float | None
    traffic: float
    idle: float
    wide: float
    loads: float | None
    blocks: int
    atomics: int
    lines: list[dict[str, Any]]
    waste: dict[str, float] = field(default_factory=dict)


@dataclass
class Times:
    """Of the op's network case on a GPU, in microseconds. `untimed`: why there is no warm time.

    rows: those of the ladder, as `bench ops` has them, or `rows_missing`: why there are none; least_us: what the GPU's
    roofs allow. refused: why the times do not count.
    """

    of: str
    cold_us: float
    warm_us: float | None
    untimed: str = ""
    least_us: float | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    rows_missing: str = ""
    refused: str = ""


@dataclass
class Verdict:
    """On one launcher of a file."""

    name: str
    op: str
    by: str = ""  # what ran it
    cases: int = 0
    ran: int = 0
    calls: int = 0  # that ended without a failure
    compared: int = 0  # of them, those whose bits were compared with another order's or another call's
    unknown: list[str] = field(default_factory=list)  # why it cannot be judged
    unknown_cases: int = 0  # that need what the emulator does not have
    ragged: str = ""  # of a wrong one: in which cases it is right, by their sizes
    stores_known: bool = False  # whether Wrong.unwritten is by stores, not by values
    warnings: list[str] = field(default_factory=list)  # the compiler's
    tf32: bool = False
    error: float = 0  # the largest, over its bound
    wrong: list[Wrong] = field(default_factory=list)  # one a case, smallest first
    refused: list[str] = field(default_factory=list)  # cases whose arrays the launcher does not take
    faults: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is no fault, but seldom meant
    deterministic: bool = True
    times: Times | None = None
    kernels: list[dict[str, Any]] = field(default_factory=list)  # that it launches on the GPU, as mnist/kernel_use.h
    foreign: list[str] = field(default_factory=list)  # those of them that are not of the file
    compiled_for: str = ""  # the GPU's architecture
    gpu_right: bool | None = None  # the GPU's verdict and the emulator's, where both were asked
    emulator_right: bool | None = None
    not_emulated: str = ""  # why the emulator was not asked
    counters: Counters | None = None
    launched: list[dict[str, Any]] = field(default_factory=list)  # kernels of the last case that ran
    resources: Resources = field(default_factory=Resources)
    goal: str = ""  # of its exercise
    goal_missed: bool = False
    next: str = ""  # what to do then

    @property
    def outcome(self) -> str:
        """RIGHT; WRONG for a number or an access; NOT_JUDGED for what could not be found out."""
        if self.wrong or self.faults:
            return WRONG
        return NOT_JUDGED if self.unknown else RIGHT

    @property
    def right(self) -> bool:
        """Whether nothing is wrong with it, and its goal reached; other bits in another order are allowed."""
        return self.outcome == RIGHT and not self.goal_missed

    def to_json(self) -> dict[str, Any]:
        """With `verdict` and `right`."""
        words = {**asdict(self), "verdict": self.outcome.lower(), "right": self.right}
        del words["launched"]
        return words


def case_words(op: judged_ops.Op, case: judged_ops.Case) -> str:
    """Such as `batch 65, in 100, out 70`."""
    words = [f"{name} {size}" for name, size in op.sizes(case).items()]
    words += [f"{name} one element off" for name in case.shifted]
    fills = {"special": "NaN, infinity, -0, denormals", "level": "numbers around 4096", "cancel": "sums that cancel"}
    if case.fill != "normal":
        words.append(fills.get(case.fill, case.fill))
    return ", ".join(words)


def judge(program: Program, number: int, launcher: Launcher) -> Verdict:
    """Runs all cases of the launcher's op, and last the one whose accesses are counted, or which is timed."""
    op = launcher.op
    code = without_comments(program.file.read_text(errors="replace"))
    verdict = Verdict(launcher.name, op.name, program.by, len(op.cases) + 1, tf32="tf32" in code)
    verdict.stores_known, verdict.warnings = program.knows_stores, program.warnings
    by_size = sorted(op.cases, key=lambda case: int(np.prod(case.sizes)))
    places: dict[tuple[Any, ...], dict[str, Any]] = {}
    cost = program.last_case(op)
    answers: dict[int, dict[str, judged_ops.Answer]] = {}  # to inputs that several calls have
    cold: list[float] = []
    bad: dict[judged_ops.Case, bool] = {}  # cases that ran, and whether a number or an access was wrong
    for ran in program.run(number, launcher, [case for case in (*by_size, cost) if program.takes(op, case)]):
        words = case_words(op, ran.case)
        verdict.ran += ran.number == 0
        if ran.case.timed and id(ran.given) not in answers:
            answers[id(ran.given)] = judged_ops.answer(op, ran.case, ran.given)
        faults = ran.words["report"]["faults"] if ran.words else []
        lacks = [fault for fault in faults if fault["kind"] == UNSUPPORTED]
        for fault in lacks:
            _note(verdict.unknown, f"{fault['file']}:{fault['line']}: {fault['words']}")
        if ran.stopped == FORGED:
            _note(verdict.unknown, f"it {FORGED} ({words})")
            break
        found = None if lacks else _compare(launcher, ran, words, verdict, answers.get(id(ran.given)))
        if found and all(other.case != words for other in verdict.wrong):
            verdict.wrong.append(found)
        verdict.unknown_cases += bool(lacks) and ran.number == 0
        bad[ran.case] = bad.get(ran.case, False) or bool(found or faults)
        if not ran.words:
            break
        for fault in faults:
            key = (fault["kind"], fault["file"], fault["line"], fault["other_line"])
            if fault not in lacks and key not in places:
                places[key] = {**fault, "case": words}
        for note in ran.words["report"]["notes"]:
            _note(verdict.notes, f"{note['file']}:{note['line']}: {note['words']}")
        ended = not (lacks or ran.words["failed"])
        verdict.calls += ended
        verdict.compared += ended and ran.number == (0 if program.by == EMULATOR else 1)
        verdict.deterministic &= not ran.words["differs"]
        verdict.launched = ran.words["report"]["kernels"] or verdict.launched
        if ran.case.timed and ran.number + 1 < ran.case.calls:
            cold.append(1e6 * ran.words["seconds"])
        elif ran.case.timed:
            warm = 1e6 * ran.words["seconds"] or None
            verdict.times = Times(words, float(np.median(cold)), warm, ran.words["untimed"])
            verdict.kernels = [kernel for kernel in ran.words["report"]["kernels"] if kernel]
        if ran.case is cost and ended and ran.words["report"]["lines"]:
            verdict.counters = _counters(op, cost, ran.words["report"])
    verdict.faults = sorted(places.values(), key=lambda fault: fault["kind"] == "order")  # what follows from others
    verdict.deterministic &= all(fault["kind"] != "order" for fault in verdict.faults)
    if not bad.get(cost, True) and all(fault["kind"] in OF_SIZES for fault in verdict.faults):
        verdict.ragged = _right_sizes(op, bad)
    return verdict


def _note(sentences: list[str], sentence: str) -> None:
    if sentence not in sentences:
        sentences.append(sentence)


def _right_sizes(op: judged_ops.Op, bad: dict[judged_ops.Case, bool]) -> str:
    """Of what sizes must be multiples, so that all cases are right, where several are and others are not; or nothing.

    Of all such sentences the one that covers the most cases, and of those the most cautious.
    """
    best: tuple[int, int, int] = (1, 0, 0)
    sentence = ""
    for count in range(1, len(op.size_names) + 1):
        for at in itertools.combinations(range(len(op.size_names)), count):
            for factor in TILES:
                fitting = [wrong for case, wrong in bad.items() if all(case.sizes[k] % factor == 0 for k in at)]
                found = (len(fitting), count, factor)
                if any(fitting) or not any(bad.values()) or found <= best:
                    continue
                best, names = found, [op.size_names[k] for k in at]
                sides = f"sides ({', '.join(names)})" if len(names) == len(op.size_names) > 1 else " and ".join(names)
                are = f"are multiples of {factor}" if len(names) > 1 else f"is a multiple of {factor}"
                sentence = f"in all {len(fitting)} cases whose {sides} {are}"
    return sentence


def merge(gpu: Verdict, emulated: Verdict) -> Verdict:
    """The GPU's numbers and times, the emulator's faults and counters; right is what is right in both."""
    gpu.gpu_right, gpu.emulator_right = gpu.right, emulated.right
    gpu.deterministic &= emulated.deterministic
    gpu.wrong = gpu.wrong or [replace(wrong, case=f"{wrong.case}, in the emulator") for wrong in emulated.wrong]
    gpu.faults, gpu.counters, gpu.launched = emulated.faults, emulated.counters, emulated.launched
    gpu.notes = emulated.notes
    gpu.warnings, gpu.ragged = emulated.warnings, gpu.ragged or emulated.ragged
    if emulated.outcome == NOT_JUDGED:
        gpu.not_emulated = emulated.unknown[0]
    else:
        gpu.calls = emulated.calls
    return gpu


def foreign_kernels(verdict: Verdict, text: str) -> list[str]:
    """Of the kernels that it launches on the GPU those that neither the file nor our headers and helpers define."""
    names = {kernel["name"].partition("<")[0].rpartition("::")[2] for kernel in verdict.kernels}
    return sorted(
        name for name in names if not re.search(rf"\b{re.escape(name)}\s*\(", text) and name not in OUR_HELPERS
    )


def _compare(
    launcher: Launcher, ran: Ran, words: str, verdict: Verdict, known: dict[str, judged_ops.Answer] | None = None
) -> Wrong | None:
    call = ran.number + 1
    if ran.stopped:
        return Wrong(words, call, ran.stopped)
    if ran.words["refused"] and ran.case.shifted:
        if words not in verdict.refused:
            verdict.refused.append(words)
        return None
    if ran.words["failed"]:
        return Wrong(words, call, ("throws: " if ran.words["refused"] else "") + ran.words["failed"])
    if ran.words["changed"]:
        arrays = [p.name for p in launcher.parameters if p.role in ("out", "in", "scratch")]
        return Wrong(words, call, f"changes its input {', '.join(arrays[k] for k in ran.words['changed'])}")
    if outside := ran.words.get("outside"):
        arrays = [p.name for p in launcher.parameters if p.role in ("out", "in", "scratch")]
        return Wrong(words, call, f"writes outside of {', '.join(arrays[k] for k in outside)}")
    launched = bool(ran.words["report"]["kernels"])
    answers = known or judged_ops.answer(launcher.op, ran.case, ran.given)
    for name, answer in answers.items():
        with np.errstate(invalid="ignore"):
            got = ran.outputs[name].astype(np.float64)
            error = abs(got - answer.value)
            bound = answer.bound(verdict.tf32)
            right = (error <= bound) | (got == answer.value) | (np.isnan(got) & np.isnan(answer.value))
        if right.all():
            if answer.scale is not None:
                verdict.error = max(verdict.error, float(np.nanmax(error / bound, initial=0)))
            continue
        filling = _filling(ran.outputs[name])
        unwritten = ~ran.stored[name] if name in ran.stored else filling
        index = tuple(int(k) for k in np.argwhere(~right)[0])
        return Wrong(
            words,
            call,
            "",
            name,
            list(index),
            float(got[index]),
            float(answer.value[index]),
            bool(unwritten[index]),
            bool(filling[index]),
            launched,
            int((~right).sum()),
            right.size,
            _around(right, unwritten, index),
        )
    # A memset can do what needs no kernel, as for an empty row.
    if not launched and any(np.unique(ran.outputs[name]).size > 1 for name in answers):
        on_stream = " on the stream that it is given" if verdict.by != EMULATOR else ""
        _note(verdict.unknown, f"launches no kernel{on_stream} ({words}), and its results are right all the same")
    return None


def _filling(output: NDArray[Any]) -> NDArray[Any]:
    bits = np.ascontiguousarray(output).view(np.uint8 if output.dtype == np.uint8 else np.uint32)
    return np.asarray(bits == np.iinfo(bits.dtype).max)


def _around(right: NDArray[Any], unwritten: NDArray[Any], index: tuple[int, ...]) -> list[str]:
    marks = np.where(right, ".", np.where(unwritten, "?", "X"))
    plane = marks[index[:-2]] if marks.ndim > 1 else marks[None]
    row, column = index[-2] if len(index) > 1 else 0, index[-1]
    width = AROUND if plane.shape[0] > 1 else 4 * AROUND
    top, left = max(0, row - AROUND // 2), max(0, column - width // 2)
    return ["".join(line) for line in plane[top : top + AROUND, left : left + width]]


def _sum_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all accesses to an array in one line of the source, for Counters.lines."""
    unit = "turns" if "turns" in lines[0] else "sectors"
    worst = max(lines, key=lambda line: (line[unit] - line["least"]) / line["accesses"])
    sums = {name: sum(line[name] for line in lines) for name in ("accesses", "least", "lanes")}
    same = {name: worst[name] for name in ("file", "line", "array", "write", "bytes", "first")}
    return {**same, "unit": unit, "cost": sum(line[unit] for line in lines), **sums}


def _counters(op: judged_ops.Op, case: judged_ops.Case, report: dict[str, Any]) -> Counters:
    of = op.sizes(case)
    lines = report["lines"]

    def ratio(unit: str) -> float | None:
        chosen = [line for line in lines if unit in line]
        least = sum(line["least"] for line in chosen)
        return sum(line[unit] for line in chosen) / least if least else None

    places: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        places.setdefault(tuple(line[name] for name in ("file", "line", "array", "write")), []).append(line)
    sums = [_sum_of(of_place) for of_place in places.values()]
    arrays = [p for p in op.parameters if p.role in ("out", "in") and p.name != "inverse"]
    needed = sum(p.kind.itemsize * int(np.prod(judged_ops.shape_of(p, of))) for p in arrays)
    accesses = sum(line["accesses"] for line in lines)
    own = [line for line in lines if line["memory"] == "global"]
    products = op.products(of)
    loads = sum(line["lanes"] for line in lines if not line["write"])
    bytes_asked = sum(kernel["bytes"] for kernel in report["kernels"])
    idle = 1 - sum(line["lanes"] for line in lines) / (32 * accesses) if accesses else 0.0

    def beyond(unit: str) -> float:
        return float(sum(line[unit] - line["least"] for line in lines if unit in line))

    waste = {
        "sectors": beyond("sectors") / SECTORS_A_CYCLE,
        "turns": beyond("turns"),
        "traffic": max(0, bytes_asked - needed) / 32 / SECTORS_A_CYCLE,
        "loads": max(0.0, loads - products / 2) / 32,
        "idle": idle * accesses,
    }
    return Counters(
        case_words(op, case),
        ratio("sectors"),
        ratio("turns"),
        bytes_asked / needed,
        idle,
        sum(line["lanes"] * line["bytes"] for line in own) / max(1, sum(line["lanes"] for line in own)),
        loads / products if products else None,
        min((kernel["blocks"] // kernel["launches"] for kernel in report["kernels"]), default=0),
        sum(kernel["atomics"] for kernel in report["kernels"]),
        sorted(sums, key=lambda line: line["least"] - line["cost"]),
        waste,
    )


@dataclass(frozen=True)
class Rule:
    """Where the counter is beyond the limit, `words` say what to try; below it, for `at_least`."""

    counter: str
    limit: float
    words: str
    at_least: bool = False

    def holds(self, counters: Counters) -> bool:
        value = getattr(counters, self.counter)
        return value is not None and (value < self.limit if self.at_least else value > self.limit)


RULES = (
    Rule("sectors", 1.5, "let the lanes of a warp read neighbouring numbers: exercise `coalesce`"),
    Rule("turns", 1.2, "let the lanes of a warp read different banks of shared memory: exercise `padding`"),
    Rule("traffic", 8, "read each number fewer times from global memory: exercise `tile`"),
    Rule("loads", 0.6, "keep more outputs in a thread's registers: exercise `registers`"),
    Rule("idle", 0.5, "more than half of the lanes idle: give them work, or take fewer threads"),
)


EXERCISES_NAMED = re.findall(r"`([\w-]+)`", " ".join(rule.words for rule in RULES))


def advice(verdict: Verdict, solved: Collection[str] = ()) -> str:
    """What to do next with a right one: by the rule whose waste costs most, but no exercise that is solved."""
    if not verdict.right:
        return ""
    if not verdict.deterministic and "reduction" not in solved:
        return "sum in a fixed order, so that the bits repeat: exercise `reduction`"
    if counters := verdict.counters:
        holding = [rule for rule in RULES if rule.holds(counters) and not _is_solved(rule, solved)]
        if holding:
            return max(holding, key=lambda rule: counters.waste.get(rule.counter, 0)).words
    wasteful = verdict.counters and any(rule.holds(verdict.counters) for rule in RULES)
    shown = "" if wasteful or not verdict.counters else "the counters show no waste; "
    if verdict.times and verdict.times.rows:
        own = [row for row in verdict.times.rows if not (row["absent"] or row["library"])]
        best = min(own, key=lambda row: float(row["cold_us"]))
        ratio = verdict.times.cold_us / best["cold_us"]
        if ratio <= 1:
            return f"{shown}no row of the ladder is faster"
        where = f"`mnist-cuda bench ops --list --op {verdict.op}` names its file"
        return f"{shown}the ladder's `{best['variant']}` is {ratio:.2g} times as fast: {where}"
    return f"{shown}on a GPU, `mnist-cuda bench ops --op {verdict.op}` times the ladder's rows"


def _is_solved(rule: Rule, solved: Collection[str]) -> bool:
    return any(name in solved for name in re.findall(r"exercise `([\w-]+)`", rule.words))


def exercise_of(text: str) -> str:
    """The name in the line `// exercise: NAME`, or nothing."""
    found = re.search(r"^// exercise: ([\w-]+)", text, re.MULTILINE)
    return found[1] if found else ""
