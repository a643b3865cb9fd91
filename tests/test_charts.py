"""mnist_cuda/report/charts.py: an SVG for everybody, on paper of either colour, the same every time."""

import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from mnist_cuda.data.picture import render, shades
from mnist_cuda.report import charts, panels


def bars(title="a < b"):
    with charts.style():
        figure = charts.new_figure(480, 240)
        axes = figure.subplots()
        charts.grouped_bars(axes, ["x", "y"], {"ours": [3.0, 1.0], "theirs": [1.0, float("nan")]}, ["3x", "1x"])
        axes.legend()
        return charts.to_svg(figure, title)


def contrast(one, other):
    """WCAG 2's ratio of two colours, 1 to 21."""

    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_same_chart_is_the_same_bytes_in_another_process_and_after_other_settings():
    settings = "import matplotlib; matplotlib.rcParams['axes.facecolor'] = 'red'"
    code = f"{settings}; import test_charts; print(test_charts.bars(), end='')"
    command, folder = [sys.executable, "-c", code], Path(__file__).parent
    other = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert other.stdout == bars(), other.stderr


def test_the_users_settings_are_left_as_they_were():
    before = dict(matplotlib.rcParams)
    bars()
    assert dict(matplotlib.rcParams) == before


def test_every_colour_has_one_for_dark_mode():
    head, _, drawing = bars().partition("</style>")
    used = set(re.findall(r"#[0-9a-f]{6}", drawing))
    assert {charts.PAPER, charts.INK, charts.GRID, *charts.SERIES[:2]} <= used <= charts.DARK.keys()
    for colour in used:
        assert f'[style*="fill: {colour}"]{{fill:{charts.DARK[colour]} !important}}' in head
        assert f'[style*="stroke: {colour}"]{{stroke:{charts.DARK[colour]} !important}}' in head


@pytest.mark.parametrize("theme", [{colour: colour for colour in charts.DARK}, charts.DARK])
def test_text_and_bars_stand_out_from_the_paper(theme):
    paper = theme[charts.PAPER]
    for colour in (charts.INK, charts.MUTED, charts.SERIES[0]):
        assert contrast(paper, theme[colour]) >= 4.5, colour
    for colour in charts.SERIES:
        assert contrast(paper, theme[colour]) >= 3, colour


def test_text_is_text_and_the_title_is_escaped():
    root = ET.fromstring(bars())
    svg = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{svg}title") == "a < b"
    assert {"x", "y", "3x", "1x", "ours", "theirs"} <= {text.text for text in root.iter(f"{svg}text")}
    assert root.get("width") == "360pt"  # 480 pixels


def test_a_missing_value_leaves_a_gap():
    with charts.style():
        axes = charts.new_figure(100, 100).subplots()
        charts.grouped_bars(axes, ["x", "y"], {"ours": [3.0, float("nan")]})
    heights = [bar.get_height() for bar in axes.containers[0]]
    assert heights[0] == 3
    assert heights[1] != heights[1]


# ---- brightness ------------------------------------------------------------------------------------------------------


def increases(values):
    return all(one < other for one, other in itertools.pairwise(values))


def ink(character, font):
    """How much of its cell a character covers, in a font that comes with matplotlib."""
    file = Path(matplotlib.get_data_path(), "fonts/ttf", font)
    image = Image.new("L", (64, 96))
    ImageDraw.Draw(image).text((8, 8), character, 255, ImageFont.truetype(str(file), 64))
    return float(np.asarray(image).mean())


@pytest.mark.parametrize(
    ("encoding", "font"),
    [
        ("utf-8", "DejaVuSansMono.ttf"),
        ("utf-8", "DejaVuSansMono-Bold.ttf"),
        ("ascii", "DejaVuSansMono.ttf"),
        ("ascii", "DejaVuSansMono-Bold.ttf"),
        ("ascii", "cmtt10.ttf"),
        ("nonsense", "cmtt10.ttf"),
    ],
)
def test_characters_are_in_the_order_of_their_brightness(encoding, font):
    """In pictures of digits and of filters."""
    inks = {character: ink(character, font) for character in shades(encoding)}
    assert next(iter(inks.values())) == 0
    assert increases([*inks.values()])
    grey = [set(render(np.full((28, 28), value, np.uint8), colour=False, encoding=encoding)) for value in range(256)]
    drawn = ["".join(characters - {"\n"}) for characters in grey]
    assert list(dict.fromkeys(drawn)) == list(inks)
    steps = np.linspace(-1, 1, 9 * 32).reshape(32, 1, 3, 3)
    run = SimpleNamespace(name="one", accuracy=None)
    tested = SimpleNamespace(run=run, model=SimpleNamespace(parameters={"conv1.weight": steps}))
    lines = panels._filters(tested, 1).sketch(True, encoding)
    by_filter = [
        "".join(line[8 * k : 8 * k + 6 : 2] for line in lines[4 * row : 4 * row + 3])
        for row in range(4)
        for k in range(8)
    ]
    assert list(dict.fromkeys("".join(by_filter))) == list(inks)


def test_greys_of_a_terminal_are_in_the_order_of_their_brightness():
    """Colours 232 to 255 of a terminal are greys, from dark to bright; the upper half of a cell is its foreground."""
    image = np.repeat(np.arange(28, dtype=np.uint8)[:, None] * 9, 28, axis=1)
    codes = [
        int(code)
        for pair in re.findall(r"38;5;(\d+);48;5;(\d+)m▀(?=\x1b\[0m)", render(image, colour=True, encoding="utf-8"))
        for code in pair
    ]
    assert len(codes) == 28
    assert (codes[0], codes) == (232, sorted(codes))
    bright = render(np.full((28, 28), 255, np.uint8), colour=True, encoding="utf-8")
    assert set(re.findall(r"8;5;(\d+)", bright)) == {"255"}


def luminances(colours):
    return [contrast(matplotlib.colors.to_hex(colour), "#000000") for colour in colours]


def test_pictures_are_brighter_where_values_are_greater():
    for limit, least, most in ((0.0, 0, 255), (0.5, -0.5, 0.5)):
        with charts.style():
            axes = charts.new_figure(100, 100).subplots()
            charts.pictures(axes, [np.linspace(least, most, 9).reshape(3, 3)], ["a"], 1, limit)
            (picture,) = axes.images
            shown = luminances([picture.to_rgba(value) for value in np.linspace(least, most, 64)])
        assert increases(shown)
        assert (shown[0], shown[-1]) == (1, pytest.approx(21)), "from black to white"


def test_a_map_is_brighter_where_fewer_images_are_wrong():
    errors = [0.4, *panels.ERRORS[1:]]
    cells = [(str(1 + k % 4), str(1 + k // 4), 1 - error / 100) for k, error in enumerate(errors)]
    options = {"lr": [cell[0] for cell in cells], "batch_size": [cell[1] for cell in cells]}
    swept = SimpleNamespace(options=options, accuracies=[cell[2] for cell in cells])
    (panel,) = panels.accuracy_map(swept, 1)
    with charts.style():
        figure = charts.new_figure(panels.WIDTH, panel.height)
        panel.draw(figure)
    (axes,), (legend,) = figure.axes, figure.legends
    shown = luminances([patch.get_facecolor() for patch in legend.get_patches()])
    assert [text.get_text() for text in legend.get_texts()] == [f"to {error:g}" for error in panels.ERRORS]
    assert increases(shown[::-1])
    of_cells = {}
    for patch in axes.patches:
        for corners in patch.get_path().to_polygons():
            x, y = corners.min(axis=0).astype(int)
            of_cells[errors[4 * x + y]] = luminances([patch.get_facecolor()])[0]
    assert [of_cells[error] for error in errors] == shown


@pytest.mark.parametrize("right", [False, True])
def test_errors_are_redder_where_there_are_more(right):
    """On both papers; the right ones, which are many, all alike."""
    counts = [[100, 1, 2], [3, 200, 9], [30, 300, 300]]
    with charts.style():
        axes = charts.new_figure(100, 100).subplots()
        charts.matrix(axes, counts)
    alphas = {
        int(text.get_text()): patch.get_alpha()
        for text, patch in zip(axes.texts, axes.patches, strict=False)  # then the totals
        if (text.get_position()[0] == text.get_position()[1]) == right
    }
    shown = [alphas[count] for count in sorted(alphas)]
    assert len(set(shown)) == 1 if right else increases(shown)
    totals = {text.get_position(): int(text.get_text()) for text in axes.texts[9:]}
    rows = {(3, k): sum(row) for k, row in enumerate(counts)}
    assert totals == rows | {(k, 3): sum(row[k] for row in counts) for k in range(3)} | {(3, 3): 945}


@pytest.mark.parametrize("theme", [{colour: colour for colour in charts.DARK}, charts.DARK])
def test_what_matters_more_stands_out_more(theme):
    for colours in ((charts.INK, charts.MUTED, charts.GRID, charts.PAPER), charts.SERIES[1:]):
        assert increases([-contrast(theme[charts.PAPER], theme[colour]) for colour in colours])
