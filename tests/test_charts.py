"""mnist_cuda/charts.py: an SVG that anybody can read, on paper of either colour, and that is the same every time."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import pytest

from mnist_cuda import charts


def bars(title: str = "a < b") -> str:
    with charts.style():
        figure = charts.new_figure(480, 240)
        axes = figure.subplots()
        charts.grouped_bars(axes, ["x", "y"], {"ours": [3.0, 1.0], "theirs": [1.0, float("nan")]}, ["3x", "1x"])
        axes.legend()
        return charts.to_svg(figure, title)


def contrast(one: str, other: str) -> float:
    """WCAG 2's ratio of two colours, 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_same_chart_is_the_same_bytes_in_another_process_and_after_other_settings() -> None:
    settings = "import matplotlib; matplotlib.rcParams['axes.facecolor'] = 'red'"
    code = f"{settings}; import test_charts; print(test_charts.bars(), end='')"
    command, folder = [sys.executable, "-c", code], Path(__file__).parent
    other = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert other.stdout == bars(), other.stderr


def test_the_users_settings_are_left_as_they_were() -> None:
    before = dict(matplotlib.rcParams)
    bars()
    assert dict(matplotlib.rcParams) == before


def test_every_colour_has_one_for_dark_mode() -> None:
    head, _, drawing = bars().partition("</style>")
    used = set(re.findall(r"#[0-9a-f]{6}", drawing))
    assert {charts.PAPER, charts.INK, charts.GRID, *charts.SERIES[:2]} <= used <= charts.DARK.keys()
    for colour in used:
        assert f'[style*="fill: {colour}"]{{fill:{charts.DARK[colour]} !important}}' in head
        assert f'[style*="stroke: {colour}"]{{stroke:{charts.DARK[colour]} !important}}' in head


@pytest.mark.parametrize("theme", [{colour: colour for colour in charts.DARK}, charts.DARK])
def test_text_and_bars_stand_out_from_the_paper(theme: dict[str, str]) -> None:
    paper = theme[charts.PAPER]
    for colour in (charts.INK, charts.MUTED, charts.SERIES[0]):
        assert contrast(paper, theme[colour]) >= 4.5, colour
    for colour in charts.SERIES:
        assert contrast(paper, theme[colour]) >= 3, colour


def test_text_is_text_and_the_title_is_escaped() -> None:
    root = ET.fromstring(bars())
    svg = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{svg}title") == "a < b"
    assert {"x", "y", "3x", "1x", "ours", "theirs"} <= {text.text for text in root.iter(f"{svg}text")}
    assert root.get("width") == "360pt"  # 480 pixels


def test_a_missing_value_leaves_a_gap() -> None:
    with charts.style():
        axes = charts.new_figure(100, 100).subplots()
        charts.grouped_bars(axes, ["x", "y"], {"ours": [3.0, float("nan")]})
    heights = [bar.get_height() for bar in axes.containers[0]]
    assert heights[0] == 3
    assert heights[1] != heights[1]


def test_without_matplotlib_one_line_says_what_to_do() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import mnist_cuda.charts"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = result.stderr.splitlines()[-1]
    assert line.startswith("mnist_cuda.errors.UnavailableError: charts need matplotlib (")
    assert line.endswith(f"): run `{sys.executable} -m pip install matplotlib`")
