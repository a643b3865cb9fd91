"""Charts in the project's colours, by matplotlib (the extra `charts`); their SVG follows the reader's dark mode.

matplotlib, and no SVG writer of our own: it has curves, maps and PNG, and a dark theme takes but a style sheet.
The same matplotlib makes the same bytes on every machine.

    with charts.style():
        figure = charts.new_figure(800, 300)
        charts.grouped_bars(figure.subplots(), ["64", "256"], {"fused": [2.4, 6.2], "PyTorch": [0.2, 0.4]})
        text = charts.to_svg(figure, "Images a second")
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from mnist_cuda.errors import UnavailableError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise UnavailableError("charts need matplotlib, install it: pip install matplotlib") from error

# A colour on a light background, and what takes its place in dark mode.
PAPER, INK, MUTED, GRID = "#ffffff", "#1f2328", "#59636e", "#d1d9e0"
SERIES = ("#1a7f37", "#57606a", "#8c959f")  # ours first, and the only one that is not grey
DARK = {
    PAPER: "#0d1117",
    INK: "#f0f6fc",
    MUTED: "#9198a1",
    GRID: "#3d444d",
    SERIES[0]: "#3fb950",
    SERIES[1]: "#afb8c1",
    SERIES[2]: "#6e7681",
}
FONT_POINTS = 9  # 12 pixels
_PIXELS_PER_INCH = 96
_FAMILY = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"  # none is wider than matplotlib's own

_STYLE = {
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": FONT_POINTS,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib: what is measured does not depend on the machine
    "font.size": FONT_POINTS,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "mnist-cuda",  # names inside the file do not change from run to run
}


@contextmanager
def style() -> Iterator[None]:
    """The project's look, whatever the user's own settings are, for all that is drawn and saved inside."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def new_figure(width: int, height: int) -> Figure:
    """An empty figure of so many CSS pixels."""
    return Figure(figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH))


def grouped_bars(
    axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[float]], labels: Sequence[str] = ()
) -> None:
    """Bars from 0 for each series, side by side at each of the groups; NaN leaves a gap. The first has the labels."""
    width = 0.8 / len(series)
    for k, (name, values) in enumerate(series.items()):
        middles = [group - 0.4 + (k + 0.5) * width for group in range(len(groups))]
        bars = axes.bar(middles, values, width * 0.92, color=SERIES[k], label=name)
        if labels and k == 0:
            box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}
            axes.bar_label(bars, labels, padding=2, color=SERIES[0], weight="bold", bbox=box)
    axes.set_xticks(range(len(groups)), groups)


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an SVG document; `title` is for those who do not see it. Call it within `style`."""
    file = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    head, tag, body = file.getvalue().partition("<svg ")
    attributes, _, body = body.partition(">")
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    sheet = f"text{{font-family:{_FAMILY} !important}}@media (prefers-color-scheme:dark){{{rules}}}"
    start = f'{tag}role="img" {attributes}>\n <title>{escape(title)}</title>\n <style>{sheet}</style>'
    return head[head.index("<?xml") : head.index("<!DOCTYPE")] + start + body
