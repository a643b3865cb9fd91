"""Loss and accuracy by epoch, of runs in a report and of a result in a notebook. matplotlib is imported to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# By name: title, keys of an epoch's record while training and on test images, and their factor.
CURVES = {
    "loss": ("Loss", ("loss", "test_loss"), 1),
    "accuracy": ("Accuracy, %", ("train_accuracy", "test_accuracy"), 100),
}
KINDS = ("while training", "on test images")

Epochs = Sequence[Mapping[str, Any]]


def draw(axes: Axes, runs: Sequence[Epochs], keys: tuple[str, str], scale: float) -> list[Line2D]:
    """Lines for the epochs of each run; returns what stands for each run, then for KINDS, in a legend."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    from mnist_cuda.report import charts

    handles = []
    for k, epochs in enumerate(runs):
        handles.append(Line2D([], [], **charts.mark(k)))
        for key, dashes in zip(keys, ("--", "-"), strict=True):
            points = [(e["epoch"], scale * e[key]) for e in epochs if e.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), linestyle=dashes, **charts.mark(k))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.margins(0.06, 0.08)
    return [*handles, *(Line2D([], [], color=charts.MUTED, linestyle=dashes) for dashes in ("--", "-"))]


def plot(epochs: Epochs) -> Figure:
    """Both, side by side. Raises UnavailableError without matplotlib."""
    from mnist_cuda.report import charts

    with charts.style():
        figure = charts.new_figure(700, 250)
        figure.set_layout_engine("constrained")
        for axes, (title, keys, scale) in zip(figure.subplots(1, 2), CURVES.values(), strict=True):
            handles = draw(axes, [epochs], keys, scale)
            axes.set_title(title)
        figure.legend(handles[1:], KINDS, loc="outside lower left", ncols=2)
    return figure
