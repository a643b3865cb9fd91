"""What the documentation takes from the committed records: tables, charts, ranges, numbers.

Markers enclose it in README.md, docs/*.md and docs/guide/*.md. RECORD is a file below docs/records, or a folder: all of
its JSON files together. One that is not there yet leaves a line that says so; one that lacks its commit, command,
versions, machine or load is refused.

<!-- record:RECORD --> ... <!-- /record -->
    a table of microseconds where it is the JSON of `mnist-cuda bench`: our engines, and of each peer the best variant
    in each cell, with its name; the text itself where it is a .txt, whose circumstances are in the .json of its name;
    of a transcript, which starts with `$ ` and a command, the command by itself before the text
<!-- chart:RECORD FILE --> ... <!-- /chart -->
    a chart, kept in FILE (from the project's root): bars of the JSON of `mnist-cuda bench`; lines of that of `bench
    --all-batches`, and where an image costs more than in the batch before;
    of a sweep's table, a .csv beside its config.json under the name of the table, what `mnist-cuda report` draws and
    says of it
<!-- speed-up:RECORD ENGINE --> ... <!-- /speed-up -->
    how many times as fast as the best peer of a cell the engine is, from the least cell to the greatest, and which
    frameworks the record has
<!-- us:RECORD NAME PRECISION BATCH_SIZE... --> ... <!-- /us -->
    a number, or cells of a table: median microseconds of that engine, or with the NAME `peer` of the best peer, named
<!-- entry:RECORD --> ... <!-- /entry -->
    cells of a table: the medians over the runs of a judged submission, and how many came to the target
<!-- cards:RECORD --> ... <!-- /cards -->
    a row for each file of `mnist-cuda bench share`, which must pass its --check, and one for each of CARDS without one
<!-- lines:ENGINE --> ... <!-- /lines -->
    the lines of the files that ENGINE_FILES names, to two digits; it needs no record

Charts need matplotlib, the rest the package alone.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from pages.records import PRECISIONS, ROOT, Record, RecordError, loads, read_record, read_records, rows_of

from mnist_cuda.bench import share
from mnist_cuda.bench.batches import Cost, rises_said
from mnist_cuda.engine.timing import Summary
from mnist_cuda.errors import MnistCudaError
from mnist_cuda.terminal.console import LABEL

RECORDS = Path("docs/records")
BLOCK = re.compile(
    r"(<!-- (record|chart|speed-up|us|entry|cards|lines):(\S+)((?: (?!-->)\S+)*) -->)(\n?).*?(<!-- /\2 -->)", re.DOTALL
)
PEER_NAMES = {"torch": "PyTorch", "jax": "JAX"}  # by the first word of their labels
NO_RECORD = "no record yet"
WIDTH = 88
ENGINE_FILES = {  # below native/: what only this engine uses, or what it was written for
    "reference": "host/engines/reference.cpp host/cpu/reference_ops.*",
    "naive": "gpu/engines/naive.cpp gpu/engines/unfused_engine.h gpu/kernels/[bcl]*/naive.cu "
    "gpu/kernels/relu*/naive.cu gpu/kernels/*/naive_ops.h",
    "tiled": "gpu/engines/tiled.cpp gpu/kernels/conv2d/register_tiled.cu gpu/kernels/conv2d/backward_weight.cu "
    "gpu/kernels/batch_norm/welford.cu gpu/kernels/batch_norm/float4.cu gpu/kernels/relu_max_pool2d/float2.cu "
    "gpu/kernels/relu/float4.cu gpu/kernels/log_softmax/online.cu gpu/kernels/log_softmax/float4.cu "
    "gpu/kernels/linear/prefetched.cu gpu/kernels/linear/coalesced.cu gpu/kernels/linear/product.cuh "
    "gpu/kernels/linear/slices.*",
    "layerwise": "gpu/engines/layerwise.cpp gpu/kernels/layerwise/*.* gpu/kernels/conv_bn_relu_pool/*.cuh "
    "gpu/kernels/conv_bn_relu_pool/[acgm]*.cu",
    "cudnn": "gpu/engines/cudnn.cpp gpu/libraries/cudnn_layers.*",
    "fused": "gpu/engines/fused/*.* gpu/kernels/fused/**/*.* host/kernels/fused/*.* gpu/kernels/device/*.*",
    "cpu": "host/engines/cpu.cpp host/cpu/kernels*.* host/cpu/layer1.* host/cpu/network.* "
    "host/cpu/thread_pool.* host/cpu/aligned.h host/cpu/simd/*.*",
}

# Cards that people have: one that no file of `bench share` names is not timed.
CARDS = ("H200", "H100", "B200", "A100", "L40S", "L4", "RTX 5090", "RTX 4090", "RTX 4060", "RTX 3060", "T4", "V100")

Row = Record


def render_text(text: str) -> str:
    """The text as a code block; a command at its start, after `$ `, in one of its own, where it can be copied.

    What the command prints is wrapped at WIDTH columns, as in a terminal, so that nothing of it is out of sight.
    """
    command, _, output = text.partition("\n")
    if command.startswith("$ "):

        def wrapped(line: str) -> str:
            word = re.match(r"\w* +", line)
            indent = LABEL if word and word.end() == LABEL else 0  # as print_fact has it
            return textwrap.fill(line, WIDTH, subsequent_indent=" " * indent)

        lines = (wrapped(line) if len(line) > WIDTH else line for line in output.splitlines())
        return render_text(command[2:]) + "\n" + render_text("\n".join(lines))
    return f"```\n{text.rstrip()}\n```\n"


# ---- cells -----------------------------------------------------------------------------------------------------------


def _sound(row: Row) -> bool:
    return row["us"] is not None and not row.get("fault")


def _storage(row: Row) -> int:
    """Bits of an activation in memory."""
    return int(row.get("storage") or (16 if row["precision"] == "bf16" else 32))


def _variant(row: Row) -> str:
    """A peer's name without what the row of the table says: the framework, the precision, the number of GPUs."""
    words = re.sub(r" x\d+$", "", row["competitor"]).split()[1:]
    return " ".join(word for word in words if word not in ("fp16", row["precision"]))


def _median(row: Row) -> float:
    return float(row["us"]["median"])


def _count(us: float) -> str:
    return f"{us:,.{0 if us >= 25 else 1}f}"


def best_peers(rows: Sequence[Row]) -> dict[tuple[str, str, int], Row]:
    """The fastest peer of each cell: of a precision, a place of the images and a batch size."""
    best: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        cell = row["precision"], row["data"], row["batch_size"]
        if row["peer"] and _sound(row) and (cell not in best or _median(row) < _median(best[cell])):
            best[cell] = row
    return best


def _machine(record: Record) -> str:
    machine = record["machine"]
    gpus = [machine["gpu"]] if machine.get("gpu") else machine.get("gpus")
    return gpus[0]["name"] if gpus else f"{machine['cpu']}, {record['settings']['threads']} threads"


def _peer_versions(rows: Sequence[Row]) -> dict[str, str]:
    peers = [row for row in rows if row["peer"] and _sound(row)]
    return {name: value for row in peers for name, value in row["versions"].items() if name not in ("numpy", "gpu")}


def _one(values: Sequence[str], what: str) -> str:
    """The value that all of them are. Raises RecordError."""
    if len(set(values)) != 1:
        raise RecordError(f"records of one table are of several {what}: {', '.join(sorted(set(values)))}")
    return values[0]


def _days(records: Sequence[Record]) -> str:
    days = sorted({record["started"][:10] for record in records})
    return " and ".join(days)


# ---- tables and charts -----------------------------------------------------------------------------------------------


def render_bench(records: Sequence[Record], folder: str) -> str:
    """A row for each engine of ours and the best of each framework, precision and place; a column a batch size."""
    rows = rows_of(records)
    best = best_peers(rows)
    tables: dict[tuple[str, str], dict[str, dict[int, Row]]] = {}  # by precision and place, then by the row's label
    for row in filter(_sound, rows):
        label, batch = row["competitor"], row["batch_size"]
        if row["peer"]:
            half = _storage(row) == 16 and row["precision"] != "bf16"
            gpus = re.search(r" x\d+$", label)
            label = f"{PEER_NAMES[label.split()[0]]}{gpus[0] if gpus else ''}, {'fp16' if half else row['precision']}"
        else:
            label += f", {row['precision']}"
        cells = tables.setdefault((row["precision"], row["data"]), {}).setdefault(label, {})
        if batch not in cells or _median(row) < _median(cells[batch]):
            cells[batch] = row
    batches = sorted({row["batch_size"] for row in rows})
    placed = len({row["data"] for row in filter(_sound, rows)}) > 1

    def line(*fields: str) -> str:
        return f"| {' | '.join(fields)} |"

    def figure(row: Row | None) -> str:
        if row is None:
            return "-"
        text = _count(_median(row))
        peer = best.get((row["precision"], row["data"], row["batch_size"]))
        if row["peer"]:
            return f"{f'**{text}**' if row is peer else text} {_variant(row)}"
        return f"**{text}**" + (f" ({_median(peer) / _median(row):.1f}x)" if peer else "")

    step = _one([record.get("step", "iteration") for record in records], "kinds of steps")
    unit = f"µs per {'step' if step == 'iteration' else step}"
    lines = [line(unit, *(f"B={batch}" for batch in batches)), line("---", *("---:" for _ in batches))]
    for (_, data), labels in tables.items():
        for label, cells in sorted(labels.items(), key=lambda item: next(iter(item[1].values()))["peer"]):
            place = f", images on the {data}" if placed else ""
            lines.append(line(label + place, *(figure(cells.get(batch)) for batch in batches)))
    versions = [f"{name} {value}" for name, value in sorted(_peer_versions(rows).items()) if name != "device"]
    against = f", against {', '.join(versions)}" if versions else ""
    said = " For each framework, its fastest variant; bold is the fastest of all, in brackets our speed-up over it."
    machine = _one([_machine(record) for record in records], "machines")
    lines += [
        "",
        f"Medians.{said if best else ''} {machine}, {_days(records)}{against}.{loads(records)} "
        f"[Record, with its command]({folder}).",
    ]
    return "\n".join(lines) + "\n"


def render_speed_up(records: Sequence[Record], engine: str) -> str:
    """Such as `7.5 to 12 times as fast as the fastest timed variant of PyTorch`: over the best peer of each cell."""
    rows = rows_of(records)
    best = best_peers(rows)
    cells = {(row["precision"], row["data"], row["batch_size"]): row for row in rows if row["competitor"] == engine}
    ratios = [_median(peer) / _median(cells[cell]) for cell, peer in best.items() if _sound(cells[cell])]
    names = {PEER_NAMES[row["competitor"].split()[0]] for row in rows if row["peer"] and _sound(row)}
    of_names = f"the fastest timed variant of {' or '.join(sorted(names, reverse=True))}"
    span = " to ".join(f"{ratio:.{0 if ratio >= 10 else 1}f}" for ratio in (min(ratios), max(ratios)))
    return f"{span} times as fast as {of_names}"


def render_us(records: Sequence[Record], name: str, precision: str, *batch_sizes: str) -> str:
    """The medians at those batch sizes, as `39 | 82`."""
    found: dict[int, str] = {}
    rows = [row for row in rows_of(records) if row["precision"] == precision and row.get("data", "device") == "device"]
    for row in best_peers(rows).values() if name == "peer" else filter(_sound, rows):
        if name in ("peer", row.get("competitor") or row["engine"]):
            found[row["batch_size"]] = f"{_median(row):,.0f}" + (f" {row['competitor']}" if name == "peer" else "")
    return " | ".join(found[int(batch)] if records else "-" for batch in batch_sizes)


def draw_bench(records: Sequence[Record]) -> str:
    """An SVG of images a second: a panel for each precision, in it bars for engine and peers at each batch size."""
    from mnist_cuda.report import charts

    rows = rows_of(records)
    cells: dict[tuple[str, int], dict[str, float]] = {}  # of a peer the best variant
    for row in filter(_sound, rows):
        cell, name = cells.setdefault((row["precision"], row["batch_size"]), {}), row["competitor"].split()[0]
        cell[name] = min(_median(row), cell.get(name, math.inf))
    precisions = [name for name in PRECISIONS if any(name == precision for precision, _ in cells)]
    batches = sorted({batch for _, batch in cells})
    versions = _peer_versions(rows)
    peers = [name for name in PEER_NAMES if name in versions]
    (engine,) = {name for cell in cells.values() for name in cell} - set(peers)

    with charts.style():
        figure = charts.new_figure(830, 290)
        panels = figure.subplots(1, len(precisions), sharey=True, squeeze=False)[0]
        figure.subplots_adjust(left=0.035, right=0.995, top=0.77, bottom=0.21, wspace=0.05)
        for axes, precision in zip(panels, precisions, strict=True):
            us = {b: cells[precision, b] for b in batches}
            labels = {engine: f"mnist-cuda, {engine}", **{peer: PEER_NAMES[peer] for peer in peers}}
            million_a_second = {  # images a microsecond
                label: [b / us[b].get(name, math.nan) for b in batches] for name, label in labels.items()
            }
            ratios = [f"{min(us[b][peer] for peer in peers if peer in us[b]) / us[b][engine]:.1f}x" for b in batches]
            charts.grouped_bars(axes, [str(b) for b in batches], million_a_second, ratios)
            axes.set_title(precision, weight="bold")
        panels[0].locator_params(axis="y", nbins=4, steps=[1, 2, 4, 5, 10])
        panels[len(panels) // 2].set_xlabel("images per step")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="upper right", ncols=3, bbox_to_anchor=(1, 1))
        title = f"Million images per second, training on one {_one([_machine(r) for r in records], 'machines')}"
        figure.text(0.008, 0.93, title, weight="bold", size=charts.FONT_POINTS + 2)
        named = " and ".join(f"{PEER_NAMES[peer]} {versions[peer].partition('+')[0]}" for peer in peers)
        half = any(row["peer"] and _sound(row) and row["precision"] == "tf32" and _storage(row) == 16 for row in rows)
        caption = (
            f"Green: speed-up over the fastest variant of {named}{', for tf32 also in fp16' if half else ''}. "
            f"{_days(records)}."
        )
        figure.text(0.008, 0.025, caption, color=charts.MUTED)
        return charts.to_svg(figure, title)


def draw_batches(record: Record) -> tuple[str, str, str]:
    """An SVG of what an image costs over the batch size, a line a precision; its title; and where a line rises."""
    from mnist_cuda.report import charts

    costs = {
        name: [Cost(row["batch_size"], Summary(**row["us"])) for row in record["rows"] if row["precision"] == name]
        for name in sorted({row["precision"] for row in record["rows"]}, key=PRECISIONS.index)
    }
    title = f"Microseconds per image, {record['rows'][0]['engine']}, {_machine(record)}"
    with charts.style():
        figure = charts.new_figure(830, 290)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.06, right=0.985, top=0.86, bottom=0.16)
        for k, (name, line) in enumerate(costs.items()):
            sizes = [cost.batch_size for cost in line]
            axes.plot(sizes, [cost.an_image() for cost in line], label=name, **(charts.mark(k) | {"marker": ""}))
        axes.set(xscale="log", yscale="log", xlabel="images per step")
        axes.set_xticks(ticks := [4**k for k in range(9) if 4**k <= sizes[-1]], map(str, ticks))
        axes.set_yticks(ticks := [0.1, 1, 10], map(str, ticks))
        axes.minorticks_off()
        figure.legend(loc="upper right", ncols=len(costs))
        figure.text(0.008, 0.93, title, weight="bold", size=charts.FONT_POINTS + 2)
        svg = charts.to_svg(figure, title)
    notes = [f"In {name}, {'; '.join(rises_said(line))}." for name, line in costs.items()]
    return svg, title, "\n".join(notes)


def draw_sweep(path: Path) -> tuple[str, str, str]:
    """The picture of a sweep's table as SVG, its title, and the sentences below it."""
    import numpy as np

    from mnist_cuda.report import charts, panels, sources

    swept = sources.read_sweep(path)
    found = [*panels.luck(swept, 1), *panels.accuracy_map(swept, 1)]  # several maps are of one option more
    first, columns = found[0], min(len(found), 2)
    with charts.style():
        figure = charts.new_figure(560 + 240 * (columns - 1), 340 * -(-len(found) // columns))
        figure.set_layout_engine("constrained")
        parts = [figure] if len(found) == 1 else np.ravel(figure.subfigures(-(-len(found) // columns), columns))
        for part, panel in zip(parts, found, strict=False):
            panel.draw(part)
            if len(found) > 1:
                part.suptitle(panel.title.rpartition(", ")[2])
        rest = [panel.note[panel.note.index("The least is ") :] for panel in found[1:]]
        title = first.title if len(found) == 1 else first.title.rpartition(", ")[0]
        return charts.to_svg(figure, title), title, " ".join([first.note, *rest, first.legend]).strip()


def render_entry(record: Record) -> str:
    """Milliseconds to the classes and to the program's word that it has trained, accuracy, runs at the target."""
    (row,) = record["rows"]
    ms = [f"{float(f'{1e3 * row[name]:.3g}'):g} ms" for name in ("total_seconds_median", "train_seconds_median")]
    return " | ".join([*ms, f"{100 * row['median_accuracy']:.2f} %", f"{row['reached']} of {row['seeds']}"])


def render_cards(folder: Path, link: Callable[[Path], str]) -> str:
    """The table of all cards: rows of files, then those of CARDS that no file is of."""
    try:
        rows = {file: share.read_card(file) for file in sorted(folder.glob("*.json"))}
    except MnistCudaError as error:
        raise RecordError(str(error)) from None
    right = ("---", "---", "---", *("---:" for _ in share.BATCH_SIZES), "---:", "---:", "---", "---", "---")
    lines = [f"| {' | '.join(share.COLUMNS)} |", f"| {' | '.join(right)} |"]
    by_name = sorted(rows.items(), key=lambda item: (item[1]["machine"]["gpu"] is None, item[1]["card"], item[0]))
    lines += [share.markdown_row(record, link(file)) for file, record in by_name]
    for name in CARDS:
        if not any(re.search(rf"\b{name}\b", record["card"]) for record in rows.values()):
            lines.append(f"| {name} | not timed{' |' * (len(share.COLUMNS) - 1)}")
    return "\n".join(lines) + "\n"


def count_lines(engine: str) -> str:
    """The lines of an engine's files, to two digits."""
    counts = []
    for pattern in ENGINE_FILES[engine].split():
        files = sorted((ROOT / "native").glob(pattern))
        if not files:
            raise RecordError(f"no file is native/{pattern}")
        counts += [len(file.read_text().splitlines()) for file in files]
    return f"{float(f'{sum(counts):.2g}'):,.0f}"


class Documents:
    """What the documentation should be: `files` gets the text of each, charts included. Raises RecordError."""

    def __init__(self) -> None:
        self.files: dict[Path, str] = {}
        pages = [path for pattern in ("*.md", "guide/*.md") for path in sorted((ROOT / "docs").glob(pattern))]
        for document in [ROOT / "README.md", *pages]:
            self.files[document] = BLOCK.sub(lambda m, d=document: self._block(m, d), document.read_text())  # type: ignore[misc]

    def _block(self, block: re.Match[str], document: Path) -> str:
        start, kind, name, words, newline, end = block.groups()
        path = ROOT / RECORDS / name
        if kind == "lines":
            return f"{start}{count_lines(name)}{end}"

        def link(target: Path) -> str:
            return Path(os.path.relpath(target, document.parent)).as_posix()

        if kind == "cards":
            text = render_cards(path, link)
        elif path.suffix in (".txt", ".csv") and path.exists():
            text = self._of_text(path, words.strip(), link)
        elif records := read_records(path):
            text = self._of_records(kind, path, records, words.split(), link)
        elif kind == "us":
            text = render_us([], *words.split())
        else:
            text = f"There is {NO_RECORD}." if newline else NO_RECORD
        return f"{start}{newline}{text}{newline if not text.endswith(newline) else ''}{end}"

    def _of_text(self, path: Path, chart: str, link: Callable[[Path], str]) -> str:
        """The text of a transcript, or of a command or a sweep whose circumstances are in the .json of its name."""
        text = path.read_text()
        if text.startswith("$ "):
            return render_text(text)
        record = read_record(path.with_suffix(".json"))
        said = f"{_days([record])}.{loads([record])} [Record, with its command]({link(path.parent)}).\n"
        if path.suffix == ".txt":
            return f"{render_text(text)}\n{_machine(record)}, {said}"
        self.files[ROOT / chart], title, note = draw_sweep(path)
        sentences = re.sub(r"(?<=\.) (?=[A-Z0-9])", "\n", note)
        return f"![{title}]({link(ROOT / chart)})\n\n{sentences}\nMeasured {said}"

    def _of_records(
        self, kind: str, path: Path, records: list[Record], words: list[str], link: Callable[[Path], str]
    ) -> str:
        if kind == "record":
            return render_bench(records, link(path.parent if path.suffix else path))
        if kind == "speed-up":
            return render_speed_up(records, *words)
        if kind == "us":
            return render_us(records, *words)
        if kind == "entry":
            return render_entry(records[0])
        chart = ROOT / words[0]
        if "clock" in records[0]:
            self.files[chart], title, notes = draw_batches(records[0])
            said = f"{_days(records)}.{loads(records)} [Record, with its command]({link(path.parent)})."
            return f"![{title}]({link(chart)})\n\n{notes}\nMeasured {said}\n"
        self.files[chart] = draw_bench(records)
        return f"![Bar chart of training speed; the numbers are in docs/benchmarks.md]({link(chart)})\n"
