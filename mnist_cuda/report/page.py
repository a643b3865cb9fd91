"""The panels as one HTML page that needs nothing else, and as picture files; by matplotlib (the extra `charts`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mnist_cuda import __version__
from mnist_cuda.files import atomic_write
from mnist_cuda.report import charts
from mnist_cuda.report.panels import WIDTH, Panel
from mnist_cuda.report.sources import Sources
from mnist_cuda.run import listing
from mnist_cuda.run.listing import Run
from mnist_cuda.sweeps.recipes import recipes
from mnist_cuda.terminal.console import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root{color-scheme:light dark;--paper:#f6f8fa;--card:#ffffff;--ink:#1f2328;--muted:#59636e;--line:#d1d9e0}
@media (prefers-color-scheme:dark){:root{--paper:#010409;--card:#0d1117;--ink:#f0f6fc;--muted:#9198a1;--line:#3d444d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:16px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}
h1{font-size:30px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:15px;margin:0 0 8px;overflow-wrap:anywhere}
p{margin:8px 0 0}.muted,.panel p,footer{color:var(--muted);font-size:13px}
.group{font-size:18px;margin:24px 0 12px}
.wide{overflow-x:auto;margin:16px 0;background:linear-gradient(90deg,var(--paper) 30%,transparent) 0/40px 100% local,
linear-gradient(270deg,var(--paper) 30%,transparent) 100%/40px 100% local,
linear-gradient(90deg,var(--line),transparent) 0/12px 100% scroll,
linear-gradient(270deg,var(--line),transparent) 100%/12px 100% scroll;background-repeat:no-repeat}
table{border-collapse:collapse;white-space:nowrap}
th,td{padding:4px 14px 4px 0;text-align:left;border-bottom:1px solid var(--line)}th{color:var(--muted);font-weight:600}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr));gap:16px;margin-top:16px}
.panel,.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px;min-width:0;
display:flex;flex-direction:column}
.panel details{margin-top:auto}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:0;font-size:13px}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}
.panel svg{display:block;width:100%;height:auto}
summary{cursor:pointer;font-size:13px;color:var(--muted);margin-top:8px}
pre{overflow-x:auto;font-size:12px;line-height:1.4;margin:8px 0 0}
footer{margin-top:16px;overflow-wrap:anywhere}
"""


def figure_of(panel: Panel) -> Figure:
    """The panel's picture. Call it, and save the figure, within `charts.style`."""
    figure = charts.new_figure(WIDTH, panel.height)
    figure.set_layout_engine("constrained")
    panel.draw(figure)
    return figure


def html(sources: Sources, panels: Sequence[Panel], absent: Iterable[str], command: str) -> str:
    """The page. It has no script and asks for nothing, and its policy would not let it."""
    names = [run.name for run in sources.runs]
    files = [record["file"] for record in (*sources.profiles, *sources.benches) if "file" in record]
    title = ", ".join([*names, *files, *(swept.name for swept in sources.sweeps)])
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>mnist-cuda: {escape(title)}</title>\n<style>{_STYLE}{charts.STYLE_SHEET}</style>\n</head>\n<body>",
        f'<h1>{escape(_headline(sources) or title)}</h1>\n<div class="muted">mnist-cuda: {escape(title)}</div>',
    ]
    if len(sources.runs) > 1:
        parts.append(_table(*listing.table(sources.runs)))
        rows = listing.differences(sources.runs)
        parts.append(f"<details><summary>What else differs</summary>{_table(('', *names), rows)}</details>")
    cards = {run.name: _card(run) for run in sources.runs}
    groups = {panel.group: [other for other in panels if other.group == panel.group] for panel in panels}
    one = len(groups.keys() - {""}) < 2  # then a heading would say nothing
    with charts.style():
        if one:
            parts.append(_grid([*cards.values(), *map(_section, panels)]))
        else:
            parts.append(_grid([_section(panel) for panel in groups.pop("", [])]))
            for name in dict.fromkeys([*cards, *groups]):
                sections = [_section(panel) for panel in groups.get(name, [])]
                card = [cards[name]] if name in cards else []
                parts.append(f'<div class="group">{escape(name)}</div>\n{_grid([*card, *sections])}')
    parts.append("<footer>")
    parts += [f"<p>Not shown: {escape(sentence)}.</p>" for sentence in absent]
    now = datetime.now(timezone.utc).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    parts.append(f"<p>Made by mnist-cuda {__version__}, {now} UTC: {escape(command)}</p></footer>\n</body>\n</html>\n")
    return "\n".join(parts)


def _headline(sources: Sources) -> str:
    """The result, in a line; nothing of benchmarks alone."""
    runs = [run for run in sources.runs if run.accuracy is not None]
    if runs:
        best = max(runs, key=lambda run: run.accuracy or 0)
        text = f"{100 * (best.accuracy or 0):.2f} % of the test images are right"
        return text if len(sources.runs) == 1 else f"{text} in the best of {len(sources.runs)} runs, {best.name}"
    best_of = [recipes(swept.options, swept.accuracies, swept.held)[:1] for swept in sources.sweeps]
    if any(best_of):
        one = max(itertools.chain(*best_of), key=lambda one: one.mean)
        mean = f"{100 * one.mean:.2f} % of the test images are right"
        return f"{mean} with {one.name}" if one.name else f"{mean}, the mean of {plural(one.models, 'model')}"
    return ""


def _card(run: Run) -> str:
    """A run's options, machine and result in words."""
    rows = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in listing.summary(run))
    return f'<div class="card">\n<h2>{escape(run.name)}</h2>\n<dl>{rows}</dl>\n</div>'


def _grid(sections: Iterable[str]) -> str:
    body = "\n".join(sections)
    return f'<div class="panels">\n{body}\n</div>' if body else ""


def _section(panel: Panel) -> str:
    picture = charts.to_inline_svg(figure_of(panel), panel.title, panel.name)
    numbers = f"<details><summary>The numbers</summary><pre>{escape(chr(10).join(panel.text))}</pre></details>"
    return (
        f'<section class="panel" id="{panel.name}">\n<h2>{escape(panel.title)}</h2>\n{picture}\n'
        f"<p>{escape(panel.caption)}</p>\n{numbers}\n</section>"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table></div>'


def write_figures(panels: Sequence[Panel], folder: Path) -> None:
    """Write NAME.svg and NAME.png of each panel into a folder that is there. Raises CheckpointError."""
    with charts.style():
        for panel in panels:
            figure = figure_of(panel)
            atomic_write(folder / f"{panel.name}.svg", charts.to_svg(figure, panel.title).encode())
            atomic_write(folder / f"{panel.name}.png", charts.to_png(figure))
