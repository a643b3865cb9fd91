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
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from mnist_cuda.errors import UnavailableError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ImportError as error:
    raise UnavailableError(
        f"charts need matplotlib ({error}): run `{sys.executable} -m pip install matplotlib`"
    ) from error

# A colour on a light background, and what takes its place in dark mode.
PAPER, INK, MUTED, GRID = "#ffffff", "#1f2328", "#59636e", "#d1d9e0"
SERIES = ("#1a7f37", "#57606a", "#8c959f")  # ours first, and the only one that is not grey
LINES = ("#1a7f37", "#0969da", "#bc4c00", "#8250df", "#bf3989", "#57606a")  # of equals, ours first
WRONG = "#cf222e"
DARK = {
    PAPER: "#0d1117",
    INK: "#f0f6fc",
    MUTED: "#9198a1",
    GRID: "#3d444d",
    SERIES[0]: "#3fb950",
    SERIES[1]: "#afb8c1",
    SERIES[2]: "#6e7681",
    LINES[1]: "#4493f8",
    LINES[2]: "#db6d28",
    LINES[3]: "#ab7df8",
    LINES[4]: "#db61a2",
    WRONG: "#f85149",
}
MARKERS = "os^Dv"
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
    "image.cmap": "gray",
    "image.composite_image": False,
    "image.interpolation": "none",  # a pixel stays a pixel
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "mnist-cuda",  # names inside the file do not come from chance
}


@contextmanager
def style() -> Iterator[None]:
    """The project's look, whatever the user's own settings are, for all that is drawn and saved inside."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


class _Shown(Figure):
    """A figure that a notebook shows where a cell ends in it."""

    def _repr_png_(self) -> bytes:
        with style():
            return to_png(self)


def new_figure(width: int, height: int) -> Figure:
    """An empty figure of so many CSS pixels."""
    return _Shown(figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH))


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


def mark(number: int) -> dict[str, Any]:
    """The colour and the marker of a line by its number: each colour once, then the colours with another marker."""
    return {"color": LINES[number % len(LINES)], "marker": MARKERS[number // len(LINES) % len(MARKERS)]}


def lines(axes: Axes, x: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    """A line with marks for each series, NaN leaving gaps."""
    for k, (name, values) in enumerate(series.items()):
        axes.plot(x, values, label=name, **mark(k))


def pictures(axes: Axes, images: Sequence[Any], captions: Sequence[str], columns: int, limit: float = 0) -> None:
    """Grey images in rows of `columns`, a caption above each: from black, -limit, to white, limit; 0: from 0 to 255."""
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = 1.15 * (number % columns), 1.5 * (number // columns)
        axes.imshow(image, vmin=-limit, vmax=limit or 255, extent=(left, left + 1, top + 1, top))
        axes.text(left + 0.5, top - 0.06, caption, ha="center", va="bottom")
    rows = -(-len(images) // columns)
    axes.set(xlim=(0, 1.15 * columns - 0.15), ylim=(1.5 * rows - 0.5, -0.5))
    axes.set_axis_off()


def matrix(axes: Axes, counts: Sequence[Sequence[int]]) -> None:
    """A confusion matrix: rows are the classes, columns what they were taken for; the more errors, the redder.

    Beside it the total of each row, below it of each column, and of all.
    """
    size = len(counts)
    most = max((n for r, row in enumerate(counts) for c, n in enumerate(row) if r != c), default=0)
    for r, row in enumerate(counts):
        for c, n in enumerate(row):
            right = r == c
            if n:
                shade = 0.25 if right else 0.12 + 0.6 * (n / most) ** 0.5
                corner = (c - 0.47, r - 0.47)
                axes.add_patch(Rectangle(corner, 0.94, 0.94, facecolor=LINES[0] if right else WRONG, alpha=shade))
                axes.text(c, r, str(n), ha="center", va="center", fontsize=FONT_POINTS - 2)
    totals = [sum(row) for row in counts]
    small: dict[str, Any] = {"ha": "center", "va": "center", "color": MUTED, "fontsize": FONT_POINTS - 2}
    for k in range(size):
        axes.text(size, k, str(totals[k]), **small)
        axes.text(k, size, str(sum(row[k] for row in counts)), **small)
    axes.text(size, size, str(sum(totals)), **small)
    axes.set(xlim=(-0.5, size + 0.5), ylim=(size + 0.5, -0.5), xticks=range(size), yticks=range(size), aspect="equal")
    axes.set(xlabel="taken for", ylabel="class")
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)


def _style_sheet() -> str:
    """What makes the drawings follow the reader's fonts and dark mode."""
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    return f"text{{font-family:{_FAMILY} !important}}@media (prefers-color-scheme:dark){{{rules}}}"


STYLE_SHEET = _style_sheet()


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an SVG document; `title` is for those who do not see it. Call it within `style`."""
    head, tag, attributes, body = _parts(figure)
    start = f'{tag}role="img" {attributes}>\n <title>{escape(title)}</title>\n <style>{STYLE_SHEET}</style>'
    return head[head.index("<?xml") : head.index("<!DOCTYPE")] + start + body


def to_inline_svg(figure: Figure, title: str, name: str) -> str:
    """The figure as an element of an HTML page that has STYLE_SHEET; `name`, a word, is of no other figure there."""
    _, tag, attributes, body = _parts(figure)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for referred in dict.fromkeys(re.findall(r' id="([^"]*)"', body)):
        body = re.sub(rf'(id="|#){re.escape(referred)}(?=["\)])', rf"\g<1>{name}_{referred}", body)
    return f'{tag}role="img" {attributes}>\n <title>{escape(title)}</title>{body}'


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG file on white paper, two pixels for each CSS pixel. Call it within `style`."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=2 * _PIXELS_PER_INCH, metadata={"Software": None})
    return file.getvalue()


def _parts(figure: Figure) -> tuple[str, str, str, str]:
    """The SVG up to its first tag, that tag, its attributes, and the rest without what chance or a version decides."""
    file = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    head, tag, body = file.getvalue().partition("<svg ")
    attributes, _, body = body.partition(">")
    # Names that matplotlib makes of hashes, which its versions compute differently.
    for number, name in enumerate(dict.fromkeys(re.findall(r'id="([a-z][0-9a-f]{10})"', body))):
        body = body.replace(name, f"shape_{number}")
    return head, tag, attributes, body
