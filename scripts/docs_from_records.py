#!/usr/bin/env python3
"""Writes what the documentation takes from the committed records, or with --check fails where it differs.

Markers enclose it in README.md and docs/*.md. RECORD is a file below docs/records:

<!-- record:RECORD --> ... <!-- /record -->
    a table of microseconds where it is the JSON of `mnist-cuda bench`; the text itself where it is a .txt; of a
    transcript, which starts with `$ ` and a command, the command by itself before the text
<!-- chart:RECORD FILE --> ... <!-- /chart -->
    a chart, kept in FILE (from the project's root): bars of the JSON of `mnist-cuda bench`, lines of `bench batches`;
    of a sweep's table, a .csv, what `mnist-cuda report` draws and says of it
<!-- speed-up:RECORD ENGINE PEER --> ... <!-- /speed-up -->
    how many times as fast as the peer's best variant the engine is, from the least cell of that JSON to the greatest
<!-- us:RECORD NAME PRECISION BATCH_SIZE... --> ... <!-- /us -->
    cells of a table: median microseconds of that engine, or of the best variant of that peer, in that JSON; or in one
    that has them as {"precision": "fp32", "engines": {"tiled": {"64": 280.1}}}

Charts need matplotlib, the rest Python alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Path("docs/records")
BLOCK = re.compile(r"(<!-- (record|chart|speed-up|us):(\S+)((?: (?!-->)\S+)*) -->)(\n?).*?(<!-- /\2 -->)", re.DOTALL)
PEER_NAMES = {"torch": "PyTorch", "jax": "JAX"}  # by the first word of their labels

Row = dict[str, Any]


def render_text(text: str) -> str:
    """The text as a code block; a command at its start, after `$ `, in one of its own, where it can be copied."""
    command, _, output = text.partition("\n")
    if command.startswith("$ "):
        return render_text(command[2:]) + "\n" + render_text(output)
    return f"```\n{text.rstrip()}\n```\n"


def _sound(row: Row) -> bool:
    return row["us"] is not None and not row["fault"]


def _figure(row: Row | None) -> str:
    """Median microseconds and, for an engine of ours, how many times as fast as the best peer it is."""
    if row is None or not _sound(row):
        return "-"
    us = row["us"]["median"]
    median = f"{us:,.{0 if us >= 25 else 1}f}"
    if row["peer"] or not row["ratio"]:
        return median
    return f"**{median}** ({row['ratio']:.1f}x)"


def _machine(record: Row) -> str:
    machine, threads = record["machine"], record["settings"]["threads"]
    gpu = machine.get("gpu")
    return gpu["name"] if gpu else f"{machine['cpu']}, {threads} threads"


def _peer_versions(record: Row) -> dict[str, str]:
    peers = [row for row in record["rows"] if row["peer"] and _sound(row)]
    return {name: value for row in peers for name, value in row["versions"].items() if name not in ("numpy", "gpu")}


def render_bench(record: Row, folder: str) -> str:
    """A row for each competitor, precision and place of the images; a column for each batch size."""
    cells: dict[tuple[str, str, str], dict[int, Row]] = {}
    for row in record["rows"]:
        key = (row["competitor"], row["precision"], row["data"])
        cells.setdefault(key, {})[row["batch_size"]] = row
    keys = [key for key, rows in cells.items() if any(map(_sound, rows.values()))]
    batches = sorted({batch for rows in cells.values() for batch in rows})
    placed = len({data for _, _, data in keys}) > 1

    def line(*fields: str) -> str:
        return f"| {' | '.join(fields)} |"

    step = record.get("step", "iteration")
    unit = f"us {'an' if step == 'iteration' else 'a'} {step}"
    lines = [line(unit, *(f"B={batch}" for batch in batches)), line("---", *("---:" for _ in batches))]
    for key in keys:
        name, precision, data = key
        label = f"{name}, {precision}" + (f", images on the {data}" if placed else "")
        lines.append(line(label, *(_figure(cells[key].get(batch)) for batch in batches)))
    versions = [f"{name} {value}" for name, value in sorted(_peer_versions(record).items()) if name != "device"]
    against = f", against {', '.join(versions)}" if versions else ""
    ratios = "; in brackets how many times as fast as the best peer" if any(r["ratio"] for r in record["rows"]) else ""
    lines += [
        "",
        f"Median{ratios}. {_machine(record)}, {record['started'][:10]}"
        f"{against}. [Record]({folder}), made by `{record['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def best_medians(record: Row) -> dict[tuple[str, int], dict[str, float]]:
    """Microseconds by precision and batch size, then by engine or peer: of a peer's variants the best."""
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for row in filter(_sound, record["rows"]):
        name = row["competitor"].split()[0]
        cell = cells.setdefault((row["precision"], row["batch_size"]), {})
        cell[name] = min(row["us"]["median"], cell.get(name, float("inf")))
    return cells


def render_speed_up(record: Row, engine: str, peer: str) -> str:
    """The least and the greatest ratio of the peer's time to the engine's, as `7.5 to 12`."""
    ratios = [cell[peer] / cell[engine] for cell in best_medians(record).values()]
    return " to ".join(f"{ratio:.{0 if ratio >= 10 else 1}f}" for ratio in (min(ratios), max(ratios)))


def render_us(record: Row, name: str, precision: str, *batch_sizes: str) -> str:
    """The medians at those batch sizes, as `39 | 82`."""
    if "engines" in record:
        cells = {(record["precision"], int(batch)): {name: us} for batch, us in record["engines"][name].items()}
    else:
        cells = best_medians(record)
    return " | ".join(f"{cells[precision, int(batch)][name]:,.0f}" for batch in batch_sizes)


def draw_bench(record: Row) -> str:
    """An SVG of images a second: a panel for each precision, in it bars for engine and peers at each batch size."""
    from mnist_cuda import charts

    cells = best_medians(record)
    precisions = list(dict.fromkeys(precision for precision, _ in cells))
    batches = sorted({batch for _, batch in cells})
    versions = _peer_versions(record)
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
            ratios = [f"{min(us[b][peer] for peer in peers) / us[b][engine]:.1f}x" for b in batches]
            charts.grouped_bars(axes, [str(b) for b in batches], million_a_second, ratios)
            axes.set_title(precision, weight="bold")
        panels[0].locator_params(axis="y", nbins=4, steps=[1, 2, 4, 5, 10])
        panels[len(panels) // 2].set_xlabel("images a step")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="upper right", ncols=3, bbox_to_anchor=(1, 1))
        title = f"Million images a second, training on one {_machine(record)}"
        figure.text(0.008, 0.93, title, weight="bold", size=charts.FONT_POINTS + 2)
        named = " and ".join(f"{PEER_NAMES[peer]} {versions[peer].partition('+')[0]}" for peer in peers)
        caption = f"Green numbers: speed over that of the faster of {named}. Measured {record['started'][:10]}."
        figure.text(0.008, 0.025, caption, color=charts.MUTED)
        return charts.to_svg(figure, title)


def draw_batches(record: Row) -> str:
    """An SVG of microseconds an image over the batch size, a line for each precision."""
    from mnist_cuda import charts

    (engine,) = {row["engine"] for row in record["rows"]}
    with charts.style():
        figure = charts.new_figure(830, 330)
        axes = figure.subplots()
        figure.subplots_adjust(left=0.06, right=0.985, top=0.86, bottom=0.16)
        for k, precision in enumerate(dict.fromkeys(row["precision"] for row in record["rows"])):
            rows = [row for row in record["rows"] if row["precision"] == precision]
            sizes = [row["batch_size"] for row in rows]
            an_image = [row["us"]["median"] / row["batch_size"] for row in rows]
            axes.plot(sizes, an_image, color=charts.LINES[k], marker=".", label=precision)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
        axes.yaxis.set_major_formatter(lambda us, _: f"{us:g}")
        axes.set_xlabel("images a step")
        axes.legend(ncols=3)
        gpu = record["machine"].get("gpu")
        title = f"Microseconds an image, training by {engine} on one {gpu['name'] if gpu else record['machine']['cpu']}"
        figure.text(0.008, 0.93, title, weight="bold", size=charts.FONT_POINTS + 2)
        return charts.to_svg(figure, title)


def draw_sweep(path: Path) -> tuple[str, str, str]:
    """The picture of a sweep's table as SVG, its title, and the sentences below it."""
    from mnist_cuda import charts
    from mnist_cuda.report import panels, sources

    swept = sources.read_sweep(path)
    (panel,) = (*panels.luck(swept, 1), *panels.accuracy_map(swept, 1))
    with charts.style():
        figure = charts.new_figure(560, 340)
        figure.set_layout_engine("constrained")
        panel.draw(figure)
        return charts.to_svg(figure, panel.title), panel.title, panel.note


class Documents:
    """What the documentation should be: `files` gets the text of each, charts included."""

    def __init__(self) -> None:
        self.files: dict[Path, str] = {}
        for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            self.files[document] = BLOCK.sub(lambda m, d=document: self._block(m, d), document.read_text())  # type: ignore[misc]

    def _block(self, block: re.Match[str], document: Path) -> str:
        start, kind, name, words, newline, end = block.groups()
        path = ROOT / RECORDS / name
        text = path.read_text()

        def link(target: Path) -> str:
            return Path(os.path.relpath(target, document.parent)).as_posix()

        if kind == "record":
            text = render_bench(json.loads(text), link(path.parent)) if path.suffix == ".json" else render_text(text)
        elif kind == "chart" and path.suffix == ".csv":
            chart = ROOT / words.strip()
            self.files[chart], title, note = draw_sweep(path)
            sentences = re.sub(r"(?<=\.) (?=[A-Z0-9])", "\n", note)
            text = f"![{title}]({link(chart)})\n\n{sentences}\n[Record]({link(path.parent)}).\n"
        elif kind == "chart":
            chart = ROOT / words.strip()
            of_batches = "engine" in (content := json.loads(text))["rows"][0]
            self.files[chart] = draw_batches(content) if of_batches else draw_bench(content)
            said = (
                "Line chart of time an image over the batch size"
                if of_batches
                else ("Bar chart of training speed; the numbers are in docs/benchmarks.md")
            )
            text = f"![{said}]({link(chart)})\n"
        else:
            render = render_speed_up if kind == "speed-up" else render_us
            text = render(json.loads(text), *words.split())
        return f"{start}{newline}{text}{end}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is stale")
    args = parser.parse_args()
    files = Documents().files
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if args.check:
            print(f"{path.relative_to(ROOT)} is stale: run scripts/docs_from_records.py", file=sys.stderr)
        else:
            path.write_text(files[path])
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
