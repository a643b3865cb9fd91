"""The panels as one HTML page that needs nothing else, and as picture files; by matplotlib (the extra `charts`)."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root{color-scheme:light dark;--paper:#f6f8fa;--card:#ffffff;--ink:#1f2328;--muted:#59636e;--line:#d1d9e0}
@media (prefers-color-scheme:dark){:root{--paper:#010409;--card:#0d1117;--ink:#f0f6fc;--muted:#9198a1;--line:#3d444d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:16px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:15px;margin:0 0 8px;overflow-wrap:anywhere}
p{margin:8px 0 0}.muted,.panel p,footer{color:var(--muted);font-size:13px}
.wide{overflow-x:auto;margin:16px 0}table{border-collapse:collapse;white-space:nowrap}
th,td{padding:4px 14px 4px 0;text-align:left;border-bottom:1px solid var(--line)}th{color:var(--muted);font-weight:600}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr));gap:16px;align-items:start}
.panel{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px;min-width:0}
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
    names = [tested.run.name for tested in sources.runs]
    files = [record["file"] for record in (*sources.profiles, *sources.benches) if "file" in record]
    title = ", ".join([*names, *files, *(swept.name for swept in sources.sweeps)])
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>mnist-cuda: {escape(title)}</title>\n<style>{_STYLE}{charts.STYLE_SHEET}</style>\n</head>\n<body>",
        f'<h1>mnist-cuda</h1>\n<div class="muted">{escape(title)}</div>',
    ]
    if sources.runs:
        parts.append(_table(*listing.table([tested.run for tested in sources.runs])))
    if len(sources.runs) > 1:
        rows = listing.differences([tested.run for tested in sources.runs])
        parts.append(f"<details><summary>What else differs</summary>{_table(('', *names), rows)}</details>")
    parts.append('<div class="panels">')
    with charts.style():
        parts += [_section(panel) for panel in panels]
    parts.append("</div>\n<footer>")
    parts += [f"<p>Not shown: {escape(sentence)}.</p>" for sentence in absent]
    now = datetime.now(timezone.utc).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    parts.append(f"<p>Made by mnist-cuda {__version__}, {now} UTC: {escape(command)}</p></footer>\n</body>\n</html>\n")
    return "\n".join(parts)


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


def write(file: Path, text: str) -> None:
    """Write the page into a folder that is there. Raises CheckpointError where that fails."""
    atomic_write(file, text.encode())


def write_figures(panels: Sequence[Panel], folder: Path) -> None:
    """Write NAME.svg and NAME.png of each panel into a folder that is there. Raises CheckpointError."""
    with charts.style():
        for panel in panels:
            figure = figure_of(panel)
            atomic_write(folder / f"{panel.name}.svg", charts.to_svg(figure, panel.title).encode())
            atomic_write(folder / f"{panel.name}.png", charts.to_png(figure))
