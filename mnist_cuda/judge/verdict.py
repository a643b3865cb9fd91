"""What the judge finds out about a launcher: right or not, its memory, its bits, its counters, and what to try next."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.bench.occupancy import Resources
from mnist_cuda.judge import judged_ops
from mnist_cuda.judge.build import EMULATOR, Program, Ran
from mnist_cuda.judge.signatures import Launcher, without_comments

MOST_FAULTS = 3  # that people are shown
OUR_HELPERS = ("linear_add_slices_kernel", "linear_backward_bias_kernel")  # of kernels/linear/slices.h
AROUND = 8  # elements that are shown around a wrong one, either way


@dataclass
class Wrong:
    """The first wrong element of a call, or `failed`: why there is none."""

    case: str
    call: int = 1  # of the case
    failed: str = ""
    output: str = ""
    index: list[int] = field(default_factory=list)
    got: float = 0
    expected: float = 0
    unwritten: bool = False
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
    tf32: bool = False
    error: float = 0  # the largest, over its bound
    wrong: list[Wrong] = field(default_factory=list)  # one a case, smallest first
    refused: list[str] = field(default_factory=list)  # cases whose arrays the launcher does not take
    faults: list[dict[str, Any]] = field(default_factory=list)
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

    @property
    def right(self) -> bool:
        """Whether nothing is wrong with it; other bits in another order are allowed."""
        return not (self.wrong or self.faults or self.goal_missed)

    def to_json(self) -> dict[str, Any]:
        """With `right` and `next`."""
        words = {**asdict(self), "right": self.right, "next": advice(self)}
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
    by_size = sorted(op.cases, key=lambda case: int(np.prod(case.sizes)))
    places: dict[tuple[Any, ...], dict[str, Any]] = {}
    cost = program.last_case(op)
    answers: dict[int, dict[str, judged_ops.Answer]] = {}  # to inputs that several calls have
    cold: list[float] = []
    for ran in program.run(number, launcher, [case for case in (*by_size, cost) if program.takes(op, case)]):
        words = case_words(op, ran.case)
        verdict.ran += ran.number == 0
        if ran.case.timed and id(ran.given) not in answers:
            answers[id(ran.given)] = judged_ops.answer(op, ran.case, ran.given)
        found = _compare(launcher, ran, words, verdict, answers.get(id(ran.given)))
        if found and all(other.case != words for other in verdict.wrong):
            verdict.wrong.append(found)
        if not ran.words:
            break
        for fault in ran.words["report"]["faults"]:
            key = (fault["kind"], fault["file"], fault["line"], fault["other_line"])
            if key not in places:
                places[key] = {**fault, "case": words}
        verdict.deterministic &= not ran.words["differs"]
        verdict.launched = ran.words["report"]["kernels"] or verdict.launched
        if ran.case.timed and ran.number + 1 < ran.case.calls:
            cold.append(1e6 * ran.words["seconds"])
        elif ran.case.timed:
            warm = 1e6 * ran.words["seconds"] or None
            verdict.times = Times(words, float(np.median(cold)), warm, ran.words["untimed"])
            verdict.kernels = [kernel for kernel in ran.words["report"]["kernels"] if kernel]
        if ran.case is cost and not ran.words["failed"] and ran.words["report"]["lines"]:
            verdict.counters = _counters(op, cost, ran.words["report"])
    verdict.faults = sorted(places.values(), key=lambda fault: fault["kind"] == "order")  # what follows from others
    verdict.deterministic &= all(fault["kind"] != "order" for fault in verdict.faults)
    return verdict


def merge(gpu: Verdict, emulated: Verdict) -> Verdict:
    """The GPU's numbers and times, the emulator's faults and counters; right is what is right in both."""
    gpu.gpu_right, gpu.emulator_right = gpu.right, emulated.right
    gpu.deterministic &= emulated.deterministic
    gpu.wrong = gpu.wrong or [replace(wrong, case=f"{wrong.case}, in the emulator") for wrong in emulated.wrong]
    gpu.faults, gpu.counters, gpu.launched = emulated.faults, emulated.counters, emulated.launched
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
    if not ran.words["report"]["kernels"]:
        on_stream = " on the stream that it is given" if "outside" in ran.words and verdict.by != EMULATOR else ""
        return Wrong(words, call, f"launches no kernel{on_stream}")
    for name, answer in (known or judged_ops.answer(launcher.op, ran.case, ran.given)).items():
        with np.errstate(invalid="ignore"):
            got = ran.outputs[name].astype(np.float64)
            error = abs(got - answer.value)
            bound = answer.bound(verdict.tf32)
            right = (error <= bound) | (got == answer.value) | (np.isnan(got) & np.isnan(answer.value))
        if right.all():
            if answer.scale is not None:
                verdict.error = max(verdict.error, float(np.nanmax(error / bound, initial=0)))
            continue
        unwritten = _unwritten(ran.outputs[name])
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
            int((~right).sum()),
            right.size,
            _around(right, unwritten, index),
        )
    return None


def _unwritten(output: NDArray[Any]) -> NDArray[Any]:
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
    return Counters(
        case_words(op, case),
        ratio("sectors"),
        ratio("turns"),
        sum(kernel["bytes"] for kernel in report["kernels"]) / needed,
        1 - sum(line["lanes"] for line in lines) / (32 * accesses) if accesses else 0.0,
        sum(line["lanes"] * line["bytes"] for line in own) / max(1, sum(line["lanes"] for line in own)),
        loads / products if products else None,
        min((kernel["blocks"] // kernel["launches"] for kernel in report["kernels"]), default=0),
        sum(kernel["atomics"] for kernel in report["kernels"]),
        sorted(sums, key=lambda line: line["least"] - line["cost"]),
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


def advice(verdict: Verdict) -> str:
    """What to do next: by the first rule that holds."""
    if not verdict.right:
        return ""
    if not verdict.deterministic:
        return "sum in a fixed order, so that the bits repeat: exercise `reduction`"
    if verdict.counters:
        for rule in RULES:
            if rule.holds(verdict.counters):
                return rule.words
    shown = "the counters show no waste; " if verdict.counters else ""
    if verdict.times and verdict.times.rows:
        own = [row for row in verdict.times.rows if not (row["absent"] or row["library"])]
        best = min(own, key=lambda row: float(row["cold_us"]))
        ratio = verdict.times.cold_us / best["cold_us"]
        if ratio <= 1:
            return f"{shown}no row of the ladder is faster"
        where = f"`mnist-cuda bench ops --list --op {verdict.op}` names its file"
        return f"{shown}the ladder's `{best['variant']}` is {ratio:.2g} times as fast: {where}"
    return f"{shown}on a GPU, `mnist-cuda bench ops --op {verdict.op}` times the ladder's rows"


def lines(verdict: Verdict, seconds: float) -> Iterable[tuple[str, str]]:
    """The report: a label and its words, a pair a line."""
    emulated, on_gpu = verdict.by == EMULATOR, bool(verdict.compiled_for)
    if on_gpu:
        yield from _compiled_for_gpu(verdict, seconds)
    elif emulated:
        yield from _compiled(verdict.resources, seconds)
    else:
        yield "ran", f"by {verdict.by}"
    yield from _right(verdict)
    for fault in verdict.faults[:MOST_FAULTS]:
        other = f"; the other is at {fault['other_file']}:{fault['other_line']}" if fault["other_line"] else ""
        yield "MEMORY", f"{fault['file']}:{fault['line']}: {fault['kind']}: {fault['words']}{other} ({fault['case']})"
    if len(verdict.faults) > MOST_FAULTS:
        yield "", f"and {len(verdict.faults) - MOST_FAULTS} more like these; --json has all"
    if verdict.not_emulated:
        yield (
            "memory",
            f"nothing written beside the outputs, inputs unchanged; no more was seen: {verdict.not_emulated}",
        )
    elif not emulated and not on_gpu:
        yield "memory", "nothing written beside the outputs, inputs unchanged; races and loads were not looked at"
    elif not verdict.faults:
        by = ", in the emulator" * on_gpu
        yield "memory", f"nothing outside of the arrays, no race, nothing read that was not set{by}; inputs unchanged"
    orders = "three orders of threads and blocks"
    runs = f"two calls on the GPU and {orders} in the emulator" if on_gpu else orders if emulated else "two calls"
    other = "order of threads and blocks" if emulated else "call"
    yield (
        "bits",
        f"the same in {runs}" if verdict.deterministic else f"NOT the same in another {other}: two runs may differ",
    )
    if verdict.foreign:
        yield "library", f"launches kernels that are not in the file: {', '.join(verdict.foreign)}"
    if verdict.times:
        yield from fast(verdict)
    elif verdict.by.endswith("the GPU"):
        yield "fast", "not timed: a wrong kernel's time says nothing"
    else:
        yield "fast", "not run here: it needs a GPU"
    if verdict.counters and not (verdict.wrong or verdict.faults):
        yield from _because(verdict.counters)
    if verdict.goal:
        yield "goal", verdict.goal
    if verdict.right:
        yield "next", advice(verdict)


def _right(verdict: Verdict) -> Iterable[tuple[str, str]]:
    if verdict.wrong:
        yield from _wrong(verdict)
        return
    exact = "all elements exact" if not verdict.error else f"error at most {verdict.error:.2f} of its bound"
    cases = f"all {verdict.ran} cases"
    if verdict.ran < verdict.cases:
        cases = f"{verdict.ran} of {verdict.cases} cases, the others are too large for {verdict.by}"
    yield "right", f"in {cases}; {exact}{', of products in tf32' if verdict.tf32 else ''}"
    if verdict.refused:
        yield "", f"refuses, as it may: {'; '.join(verdict.refused)}"


def fast(verdict: Verdict, board: bool = False) -> Iterable[tuple[str, str]]:
    """Its times beside those of the ladder's rows; board: the fastest first."""
    times = verdict.times
    assert times
    share = f"; {100 * times.least_us / times.cold_us:.0f} % of the roof" if times.least_us else ""
    warm = f"{times.warm_us:.3g} us warm" if times.warm_us else f"no warm time: {times.untimed}"
    yield "fast", f"{times.cold_us:.4g} us cold, {warm}{share} ({times.of})"
    if times.refused:
        yield "REFUSED", times.refused
    if times.rows_missing:
        yield "", f"beside no others: {times.rows_missing}"
    yours = {"variant": f"{verdict.name}, yours", "cold_us": times.cold_us, "warm_us": times.warm_us, "library": False}
    rows = [row for row in times.rows if not row["absent"]]
    if rows:
        yield "", f"  {'':32}{'cold us':>9}{'warm us':>9}{'yours/it':>10}"
    for row in sorted([*rows, yours], key=lambda row: row["cold_us"]) if board else [*rows, yours] if rows else []:
        name = row["variant"] + ", a library" * row["library"]
        warm = f"{row['warm_us']:.4g}" if row["warm_us"] else "-"
        yield "", f"  {name:32.32}{row['cold_us']:>9.4g}{warm:>9}{times.cold_us / row['cold_us']:>10.2f}"


def _compiled_for_gpu(verdict: Verdict, seconds: float) -> Iterable[tuple[str, str]]:
    yield "compiled", f"in {seconds:.1f} s, for {verdict.compiled_for}"
    for use in verdict.kernels:
        spilled = f", {use['local_bytes']} bytes of a thread in memory" if use["local_bytes"] else ""
        yield (
            "",
            f"{use['name']}: {use['registers']} registers{spilled}, {use['shared_bytes']} bytes of shared memory; "
            f"{use['blocks_per_multiprocessor']} blocks of {use['threads']} threads on a multiprocessor: occupancy "
            f"{100 * use['occupancy']:.0f} %",
        )
    if verdict.resources.gpu:
        yield "", f"by nvcc for the GPU {verdict.resources.gpu}, which need not be here:"
        yield from _uses(verdict.resources)


def _compiled(resources: Resources, seconds: float) -> Iterable[tuple[str, str]]:
    if not resources.gpu:
        why = f": {resources.unknown}" if resources.unknown else ""
        yield "compiled", f"in {seconds:.1f} s, for the emulator; registers and occupancy were not looked at{why}"
        return
    yield "compiled", f"in {seconds:.1f} s, for the emulator, and by nvcc for the GPU {resources.gpu}"
    yield from _uses(resources)


def _uses(resources: Resources) -> Iterable[tuple[str, str]]:
    for use in resources.kernels:
        spilled = f", {use.spilled_bytes} bytes spilled to memory" if use.spilled_bytes else ""
        blocks = "block fits" if use.blocks_per_multiprocessor == 1 else "blocks fit"
        fit = f"{use.blocks_per_multiprocessor} {blocks} on a multiprocessor, of {use.threads} threads"
        yield (
            "",
            f"{use.name}: {use.registers} registers{spilled}, {use.shared_bytes} bytes of shared memory; {fit}: "
            f"occupancy {100 * use.occupancy:.0f} %, limited by {' and '.join(use.limited_by)}",
        )


def _wrong(verdict: Verdict) -> Iterable[tuple[str, str]]:
    first = verdict.wrong[0]
    stopped = "" if verdict.ran == verdict.cases else f", of {verdict.cases}"
    call = f", call {first.call}" if first.call > 1 else ""
    yield "WRONG", f"in {len(verdict.wrong)} of {verdict.ran} cases{stopped}; the smallest: {first.case}{call}"
    if first.failed:
        yield "", first.failed
        return
    place = f"{first.output}[{','.join(map(str, first.index))}]"
    found = "was never written" if first.unwritten else f"is {first.got:.6g}"
    yield "", f"{place} {found}, expected {first.expected:.6g}; {first.count} of {first.of} are wrong"
    if first.of > 1:
        yield "", "around it (right ., wrong X, never written ?):"
        for row in first.around:
            yield "", "  " + row


def _because(counters: Counters) -> Iterable[tuple[str, str]]:
    label = "because"
    for line in counters.lines[:3]:
        if line["cost"] <= line["least"]:
            break
        unit = "sectors of 32 bytes" if line["unit"] == "sectors" else "turns of the banks"
        each = line["cost"] / line["accesses"]
        yield (
            label,
            f"{line['file']}:{line['line']} {'writes' if line['write'] else 'reads'} {line['array']}: "
            f"{each:.1f} {unit} a warp, {line['least'] / line['accesses']:.1f} at best",
        )
        label = ""
    if label:
        yield label, "every access takes the fewest sectors and turns"
    loads = "" if counters.loads is None else f", {counters.loads:.2f} loads a product"
    yield (
        "",
        f"global memory gives {counters.traffic:.1f} times the arrays' bytes; {100 * counters.idle:.0f} % of lanes "
        f"idle{loads} ({counters.of})",
    )


def exercise_of(text: str) -> str:
    """The name in the line `// exercise: NAME`, or nothing."""
    found = re.search(r"^// exercise: ([\w-]+)", text, re.MULTILINE)
    return found[1] if found else ""
