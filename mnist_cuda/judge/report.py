"""The words of a verdict: a report of lines, each a label and a sentence, that begins and ends with the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mnist_cuda.bench.occupancy import Resources
from mnist_cuda.judge.build import EMULATOR
from mnist_cuda.judge.verdict import NOT_JUDGED, RIGHT, WRONG, Counters, Verdict, Wrong

MOST_FAULTS = 3  # that people are shown
MOST_WARNINGS = 5
STYLES = {RIGHT: "bold green", WRONG: "bold red", NOT_JUDGED: "bold yellow", "MEMORY": "red", "REFUSED": "red"}
LABELS = {"launch": "LAUNCH"}  # of a fault of this kind, instead of MEMORY
STYLES |= {"LAUNCH": "red", "remedy": "cyan", "next": "cyan"}  # by label, on a terminal

# What mends a fault, by its kind; the number is a chapter of docs/guide.
REMEDIES = {
    "outside": ("let a test such as `if (k < count)` keep every index within its array", 2),
    "unset": ("store each element before any thread loads it, with a barrier between the two", 4),
    "race in a warp": ("put `__syncwarp()` between the store and the other lane's access", 4),
    "race in a block": ("put `__syncthreads()` between the store and the other thread's access", 4),
    "race of blocks": ("let only one block store a number, or add by `atomicAdd`; a second launch may join parts", 5),
    "misaligned": ("access 16 bytes as a float4 only where the index is a multiple of 4", 6),
    "barrier": ("let every thread of the block come to the same `__syncthreads()`: none may return before it", 4),
    "meeting": ("let every lane that the mask names come to the shuffle: one without a number takes part with 0", 7),
    "deadlock": (
        "let every thread come to its block's barrier, every lane of a mask to its shuffle, and some thread store what "
        "a loop waits for",
        4,
    ),
    "order": ("let each result depend on its inputs alone: barriers in place, and sums in a fixed order", 7),
    "stack": ("keep a thread's arrays small, and large ones in shared or global memory", 6),
    "division": ("test the divisor before you divide", 2),
    "launch": ("take more blocks, each with at most 1,024 threads and 48 KB of shared memory", 2),
}
UNKNOWN_LAST = (NOT_JUDGED, "the judge cannot say whether it is right; it may well be")
UNWRITTEN = ("give every element of the output a thread that stores it, those of the last block, too", 2)


def _remedy(sentence: str, chapter: int) -> tuple[str, str]:
    return "remedy", f"{sentence}: chapter {chapter}"


def label_of(line: str) -> str:
    """The word that a line of a report begins with."""
    return next((label for label in STYLES if line.startswith(label)), "")


def calls(count: int) -> str:
    """Such as `1 call`."""
    return f"{count} call{'s' * (count != 1)}"


def labelled(label: str, sentences: Sequence[str], most: int) -> Iterable[tuple[str, str]]:
    """The first ones, the label beside the first of all."""
    for number, sentence in enumerate(sentences[:most]):
        yield label if number == 0 else "", sentence
    if len(sentences) > most:
        yield "", f"and {len(sentences) - most} more; --json has all"


def headline(verdict: Verdict, file: object) -> tuple[str, str]:
    """The first line."""
    return verdict.outcome, f"{file}: {verdict.name}, op {verdict.op}"


def last_line(verdict: Verdict) -> tuple[str, str]:
    """The verdict again, with what it rests on."""
    if verdict.outcome == WRONG:
        found = []
        if verdict.wrong:
            found.append(f"in {len(verdict.wrong)} of {verdict.ran} cases")
        if verdict.faults:
            places = len(verdict.faults)
            found.append(f"faults at {places} place{'s' * (places != 1)}")
        return WRONG, "; ".join(found)
    if verdict.outcome == NOT_JUDGED:
        return UNKNOWN_LAST
    missed = ", but the goal is missed" * verdict.goal_missed
    return RIGHT, f"in {verdict.ran} cases, {calls(verdict.calls)}{missed}"


def lines(verdict: Verdict, seconds: float, file: object) -> Iterable[tuple[str, str]]:
    """The report: a label and its words, a pair a line."""
    yield headline(verdict, file)
    emulated, on_gpu = verdict.by == EMULATOR, bool(verdict.compiled_for)
    if on_gpu:
        yield from _compiled_for_gpu(verdict, seconds)
    elif emulated:
        yield from _compiled(verdict.resources, seconds)
    else:
        yield "ran", f"by {verdict.by}"
    yield from labelled("unknown", verdict.unknown, MOST_FAULTS)
    yield from _numbers(verdict)
    yield from _memory(verdict, emulated, on_gpu)
    if verdict.outcome == WRONG:
        yield from _remedies(verdict)
        yield from labelled("g++ warns", verdict.warnings, MOST_WARNINGS)
    yield from labelled("note", verdict.notes, MOST_FAULTS)
    yield from _bits(verdict, emulated, on_gpu)
    if verdict.foreign:
        yield "library", f"launches kernels that are not in the file: {', '.join(verdict.foreign)}"
    if verdict.times:
        yield from fast(verdict)
    elif verdict.by.endswith("the GPU"):
        yield "fast", "not timed: a wrong kernel's time says nothing"
    else:
        yield "fast", "not run here: it needs a GPU"
    if verdict.counters and (verdict.right or verdict.goal_missed or verdict.ragged):
        yield from _because(verdict.counters)
    if verdict.goal:
        yield "goal", verdict.goal


def _memory(verdict: Verdict, emulated: bool, on_gpu: bool) -> Iterable[tuple[str, str]]:
    for fault in verdict.faults[:MOST_FAULTS]:
        other = f"; the other is at {fault['other_file']}:{fault['other_line']}" if fault["other_line"] else ""
        place = f"{fault['file']}:{fault['line']}: " if fault["line"] else ""
        yield LABELS.get(fault["kind"], "MEMORY"), f"{place}{fault['kind']}: {fault['words']}{other} ({fault['case']})"
    if len(verdict.faults) > MOST_FAULTS:
        yield "", f"and {len(verdict.faults) - MOST_FAULTS} more like these; --json has all"
    if verdict.ragged and not verdict.wrong:
        yield "", f"no fault {verdict.ragged}"
    if verdict.faults or not verdict.calls:
        return
    found = f"in {calls(verdict.calls)}; inputs unchanged"
    if verdict.not_emulated:
        yield "memory", f"nothing written beside the outputs {found}; no more was seen: {verdict.not_emulated}"
    elif not emulated and not on_gpu:
        yield "memory", f"nothing written beside the outputs {found}; races and loads were not looked at"
    else:
        by = " in the emulator" * on_gpu
        yield "memory", f"nothing outside of the arrays, no race, nothing read that was not set{by}, {found}"


def _remedies(verdict: Verdict) -> Iterable[tuple[str, str]]:
    kinds = list(dict.fromkeys(fault["kind"] for fault in verdict.faults[:MOST_FAULTS]))
    kinds = kinds if kinds == ["order"] else [kind for kind in kinds if kind != "order"]  # which follows from others
    if verdict.wrong and verdict.wrong[0].unwritten and not kinds:
        yield _remedy(*UNWRITTEN)
    yield from (_remedy(*REMEDIES[kind]) for kind in kinds if kind in REMEDIES)


def _bits(verdict: Verdict, emulated: bool, on_gpu: bool) -> Iterable[tuple[str, str]]:
    orders = "three orders of threads and blocks"
    runs = f"two calls on the GPU and {orders} in the emulator" if on_gpu else orders if emulated else "two calls"
    other = "order of threads and blocks" if emulated else "call"
    if not verdict.deterministic:
        yield "bits", f"NOT the same in another {other}: two runs may differ"
    elif verdict.compared:
        yield "bits", f"the same in {runs}, in {verdict.compared} cases"


def _numbers(verdict: Verdict) -> Iterable[tuple[str, str]]:
    if verdict.wrong:
        yield from _wrong(verdict)
        return
    if not verdict.calls:
        return
    exact = "all elements exact" if not verdict.error else f"error at most {verdict.error:.2f} of its bound"
    cases = f"all {verdict.ran} cases"
    if verdict.unknown_cases:
        cases = f"{verdict.ran - verdict.unknown_cases} of {verdict.ran} cases, the others are not known"
    elif verdict.ran < verdict.cases:
        cases = f"{verdict.ran} of {verdict.cases} cases, the others are too large for {verdict.by}"
    yield "numbers", f"right in {cases}; {exact}{', of products in tf32' if verdict.tf32 else ''}"
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
    yield "numbers", f"wrong in {len(verdict.wrong)} of {verdict.ran} cases{stopped}; the smallest: {first.case}{call}"
    if first.failed:
        yield "", first.failed
    else:
        yield from _elements(verdict, first)
    if verdict.ragged:
        yield "", f"right {verdict.ragged}"


def _elements(verdict: Verdict, first: Wrong) -> Iterable[tuple[str, str]]:
    place = f"{first.output}[{','.join(map(str, first.index))}]"
    found = f"is {first.got:.6g}"
    if first.unwritten and verdict.stores_known:
        found = "was never written"
    elif first.unwritten:
        found = "is what it was filled with: never written, or with that"
    elif first.filling:
        found = "was stored from memory that nothing had set"
    yield "", f"{place} {found}, expected {first.expected:.6g}; {first.count} of {first.of} are wrong"
    if not first.launched:
        yield "", "the call launched no kernel"
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
