"""mnist-cuda report: a page that needs nothing else, with nothing empty on it, in a browser where there is one."""

import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import opened
from cases import ROOFS
from tiny import ENVIRONMENT, prints, tiny_dataset

from mnist_cuda import UsageError, cli
from mnist_cuda.bench import profile as measured
from mnist_cuda.data import dataset
from mnist_cuda.report import charts
from mnist_cuda.report.page import figure_of
from mnist_cuda.report.panels import panels
from mnist_cuda.report.sources import read
from mnist_cuda.run.listing import load_run

RECORD = Path(__file__).parents[1] / "docs/records/host-fed/step.json"
pytestmark = pytest.mark.usefixtures("tiny")
OP_NAMES = ("phase", "op", "unit", "bytes", "flops", "us", "least_us", "bound")
OPS = [
    ("F1", "F1: conv1, conv2", "bf16", 6e7, 8e9, 30.0, 15.0, "memory"),
    ("B2", "B2: conv2 backward", "bf16", 7e7, 1.5e10, 40.0, 25.0, "bf16"),
    ("U", "U: SGD", "fma", 1e7, 0.0, 8.0, 2.5, "memory"),
]
PROFILE = {  # the object of `profile --json` on a GPU
    "machine": {"cpu": "a CPU", "gpu": {"name": "a GPU"}},
    "engine": "fused",
    "precision": "bf16",
    "batch_size": 1024,
    "steps": 100,
    "step_us": {"median": 70.0},
    "roofs": ROOFS,
    "ops": [dict(zip(OP_NAMES, op, strict=True)) for op in OPS],
}


def training(folder, *flags):
    argv = ["train", "--engine", "cpu", "--batch-size", "10", "--epochs", "2", "--quiet", "--out", str(folder), *flags]
    assert cli.main(argv) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with two runs, a profile, and page.html of these and of a recorded benchmark."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(dataset, "load", tiny_dataset)
        training(Path("runs/one <b>"), "--lr", "0")
        training(Path("runs/two"))
        Path("profile.json").write_text(json.dumps(PROFILE))
        assert cli.main(["report", "one <b>", "runs/two", "profile.json", str(RECORD), "--out", "page.html"]) == 0
    return folder


class Tags(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def panels_of(text):
    """The HTML of each panel of a page."""
    return dict(re.findall(r'<section class="panel" id="(.*?)">(.*?)</section>', text, re.DOTALL))


PANELS = ["loss", "accuracy", "classes", "confusion-1", "mistakes-1", "confusion-2", "mistakes-2", "filters-1",
    "filters-2", "phases-1", "roofline-1", "phases-2", *(f"bench-1{k}" for k in "abcdef")]  # fmt: skip


def test_the_page_is_whole_and_asks_for_nothing(made):
    text = (made / "page.html").read_text()
    shown, tags = panels_of(text), Tags(text).found
    of_runs = ("confusion-1", "mistakes-1", "filters-1", "confusion-2", "mistakes-2", "filters-2")
    grouped = [*(name for name in PANELS if name not in of_runs), *of_runs]  # what belongs to a run, run by run
    assert list(shown) == [name for name in grouped if name != "mistakes-2" or name in shown]
    (best,) = re.findall("<h1>(.*?)</h1>", text)
    accuracies = {name: load_run(made / "runs" / name).accuracy for name in ("one <b>", "two")}
    assert best == f"{100 * accuracies['two']:.2f} % of the test images are right in the best of 2 runs, two"
    assert accuracies["two"] > accuracies["one <b>"]
    assert re.findall('class="group">(.*?)<', text) == ["one &lt;b&gt;", "two"]
    cards = text.split('<div class="card">')[1:]
    assert [re.search("<dt>state</dt><dd>(.*?)</dd>", card)[1][:4] for card in cards] == ["done", "done"]
    for name, panel in shown.items():
        assert panel.count("<svg") == 1, name
        assert len(re.findall("<(?:path|image|use)[ />]", panel)) > 2, name
        for tag in ("h2", "p", "pre"):
            assert re.search(rf"<{tag}>\s*[^<\s][^<]{{2,}}[^<\s]", panel), f"{name}: no text in {tag}"
    assert not {"script", "iframe", "object", "embed", "audio", "video", "form"} & {tag for tag, _ in tags}
    for tag, attributes in tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "srcset"):
                assert str(value).startswith(("#", "data:")), (tag, name, value)
            assert not name.startswith("on"), (tag, name)
    assert "url(http" not in text
    assert "@import" not in text
    names = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(names) == len(set(names)), "a name that two elements have"
    referred = re.findall(r'(?:url\(|href=")#([^")]+)', text)
    assert len(referred) > 20
    assert set(referred) <= set(names)
    assert "one &lt;b&gt;" in text
    assert "<b>" not in text


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_a_browser_draws_it_and_complains_of_nothing(made, width, dark):
    page = made / "page.html"
    with opened(page, width, dark=dark) as (tab, requests, complaints):
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"too wide for {width}"
        panels = tab.evaluate(
            "[...document.querySelectorAll('.panel')].map(p => {"
            "const s = p.querySelector('svg').getBoundingClientRect();"
            "const t = p.querySelector('svg text'), b = t.getBoundingClientRect();"
            "return [p.id, s.width, s.height, b.height, getComputedStyle(t).fill, b.right <= s.right + 1]})"
        )
        assert len(panels) >= len(PANELS) - 1
        for name, w, h, text, ink, inside in panels:
            assert w > 300, name
            assert h > 50, name
            assert text >= 10, f"{name}: letters of {text} pixels at {width}"
            assert inside, name
            light = sum(map(int, re.findall(r"\d+", ink)[:3])) / 3
            assert (light > 128) == dark, f"{name}: {ink}"
        paper = tab.evaluate("getComputedStyle(document.querySelector('.panel')).backgroundColor")
        assert paper == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert requests == [page.as_uri()]
    assert complaints == []


def test_figures_are_svg_and_png():
    Path("profile.json").write_text(json.dumps(PROFILE))
    assert cli.main(["report", "profile.json", "--figures", "figures"]) == 0
    files = {path.name for path in Path("figures").iterdir()}
    assert files == {"phases-1.svg", "phases-1.png", "roofline-1.svg", "roofline-1.png"}
    for name in ("phases-1", "roofline-1"):
        root = ET.parse(f"figures/{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        png = Path(f"figures/{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert int.from_bytes(png[16:20], "big") == 700  # twice 350


def test_text_has_the_same_numbers_and_needs_no_matplotlib(made):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from tiny import tiny_dataset\nfrom mnist_cuda.data import dataset\ndataset.load = tiny_dataset\n"
        "from mnist_cuda.__main__ import main\nsys.exit(main())"
    )

    def report(*argv):
        path = f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parent}"
        command = [sys.executable, "-c", code, "report", *argv]
        environment = ENVIRONMENT | {"PYTHONPATH": path, "PYTHONIOENCODING": "ascii"}
        return subprocess.run(command, cwd=made, env=environment, capture_output=True, text=True)

    result = report("runs/two", "profile.json", "--text", "--no-profile")
    assert result.returncode == 0, result.stderr
    last = json.loads((made / "runs/two/metrics.jsonl").read_text().splitlines()[-1])
    assert f"{100 * last['test_accuracy']:.4g}" in result.stdout
    for words in (
        "Confusion matrix, two",
        "Filters of conv1, two",
        "2  B2: conv2 backward  @@@@",
        "\nA blank is -",
        "\nTime of each phase in a step: fused bf16",
        "\nphase ",
    ):
        assert words in result.stdout, words
    for words in ("axis", "Black is", "red mark", "lines", "op by op"):  # they describe pictures, and phases as ops
        assert words not in result.stdout, words
    result = report("runs/two")
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith("mnist-cuda: error: charts need matplotlib (")
    assert result.stderr.endswith(f"): run `{sys.executable} -m pip install matplotlib`\n")


def test_one_run_has_its_page_in_its_folder_and_says_what_is_missing(tmp_path, monkeypatch, capsys):
    training(Path("runs/one"))
    capsys.readouterr()
    assert cli.main(["report"]) == 0  # the newest
    captured = capsys.readouterr()
    assert re.fullmatch(r"runs/one/report.html: [78] panels\n", captured.out)
    assert "no roofline" in captured.err
    config = json.loads(Path("runs/one/config.json").read_text())
    config["data"]["digest"] = "of other images"
    Path("runs/one/config.json").write_text(json.dumps(config))
    monkeypatch.setenv("MNIST_TINY_WARNING", "not what it was")
    assert cli.main(["report", "one", "--text", "--no-profile"]) == 0
    captured = capsys.readouterr()
    assert "20 test images of tiny, which are not those of the run, are wrong" in captured.out
    assert "WARNING: not what it was" in captured.err
    Path("runs/one/model.safetensors").unlink()
    assert cli.main(["report", "one"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "runs/one/report.html: 2 panels\n"
    assert "not shown: one: its model is not tested here: runs/one/model.safetensors: no such file" in captured.err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["none"], 6, "none: no such file or folder, and no run of that name in runs/"),
        (["x.json"], 6, "x.json: no such file or folder, and no run of that name in runs/"),
        (["list.json"], 2, "list.json: expected the object of `mnist-cuda bench --json` or `mnist-cuda profile"),
        (["bad.json"], 2, "bad.json: expected the object of "),
        ([], 2, "there is no run with a model in runs/"),
        (["list.json", "--text", "--out", "x.html"], 2, "--text prints and writes no file"),
    ],
)
def test_bad_sources_get_one_line(capsys, argv, code, message):
    Path("list.json").write_text("[1]")
    Path("bad.json").write_text("{")
    assert cli.main(["report", *argv]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"mnist-cuda: error: {message}")
    assert captured.err.count("\n") == 1
    assert not Path("report.html").exists()


def test_a_mirrors_password_is_in_no_file(tmp_path, monkeypatch, capsys):
    """Of a run, a sweep, a benchmark, or a page of runs, new ones and one from before it was left out."""
    monkeypatch.setattr(measured, "BLOCKS", 1)
    small, mirror = ["--engine", "cpu", "--batch-size", "5"], ["--mirror", "https://me:secret@host/mnist/"]
    once = [*small, "--epochs", "1", "--quiet"]
    for argv in (
        ["train", *once, "--out", "runs/one", *mirror],
        ["train", *once, "--out", "runs/two", "--mirror=https://me:se@cret@host/other/"],
        ["sweep", *once, "--out", "many", *mirror],
        ["profile", *small, "--steps", "1", "--json", "profile.json", *mirror],
        ["train", "--resume", "runs/one", "--epochs", "2", "--quiet", *mirror],
        ["report", "one", "many", "--no-profile"],
    ):
        monkeypatch.setattr(sys, "argv", ["mnist-cuda", *argv])
        assert cli.main(argv) == 0
    config = json.loads(Path("runs/one/config.json").read_text())
    assert config["options"]["mirror"] == "https://host/mnist/"
    assert config["command"].endswith("--out runs/one --mirror https://host/mnist/")
    Path("runs/two/config.json").write_text(json.dumps(config | {"options": {"mirror": "https://me:secret@old/"}}))
    assert cli.main(["report", "one", "two", "--no-profile", "--out", "old.html"]) == 0
    assert "https://old/" in Path("old.html").read_text()
    Path("runs/two/config.json").unlink()
    words = b"secret", b"cret@", b"me:se"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if any(word in path.read_bytes() for word in words)] == []
    captured = capsys.readouterr()
    assert "secret" not in captured.out + captured.err


@pytest.mark.parametrize("slower", [1, 450, 4500])
def test_the_numbers_of_an_axis_have_room(tmp_path, slower):
    """Of a step of any length: a slow machine's has microseconds of five and six digits."""
    ops = [op | {"us": op["us"] * slower} for op in PROFILE["ops"]]
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE | {"ops": ops}))
    (panel,) = (p for p in panels(read([tmp_path / "profile.json"], tmp_path))[0] if p.name.startswith("phases"))
    with charts.style():
        figure = figure_of(panel)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        most = axes.get_xlim()[1]
        labels = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_position()[0] <= most]
    assert len(labels) >= 3
    assert all(right.x0 - left.x1 > 5 for left, right in itertools.pairwise(labels))


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def swept(folder, header, *rows):
    (folder / "sweep.csv").write_text("\n".join([header, *rows, ""]))
    return folder / "sweep.csv"


def test_the_seeds_of_a_sweep_beside_the_binomial(tmp_path):
    right = [9851, 9880, 9865] * 10 + [9840]  # so far apart that one seed less shows in the deviation
    rows = [f"{seed},64,{n / 10000!r}" for seed, n in enumerate(right)]
    file = swept(tmp_path, "seed,batch_size,test_accuracy", *rows, "99,64,")  # the last one diverged
    found = read([tmp_path], tmp_path)  # a sweep's folder
    assert [(sweep.name, len(sweep.accuracies)) for sweep in found.sweeps] == [(file.parent.name, 32)]
    ((panel,), absent) = panels(found)
    assert (panel.name, panel.title, absent) == ("seeds-1", "Test accuracy of 31 seeds", [])
    mean, spread = np.mean(right), np.std(right, ddof=1)
    chance = np.sqrt(mean * (1 - mean / 10000))
    assert f"Of 10000 test images {mean / 100:.3f} % are right, from 98.40 to 98.80." in panel.note
    assert f"over seeds is {spread / 100:.3f} points; one network" in panel.note
    assert f"on other images would have {chance / 100:.3f} (binomial)" in panel.note
    columns = np.array([[float(cell.removesuffix(" %")) for cell in line.split()[-4::2]] for line in panel.text[1:]])
    assert np.allclose(columns.sum(axis=0), 100, atol=0.3)
    assert (columns[:, 0] > 0).sum() == 4
    rows += [f"{1000 + k},64,0.987" for k in range(1000)]
    far = swept(tmp_path, "seed,batch_size,test_accuracy", *rows, "2000,64,0.5")
    ((panel,), _) = panels(read([far], tmp_path))
    assert panel.note.endswith(" 1 seed further out is counted with the outermost.")
    assert "from 50.00 to 98.80." in panel.note
    assert panel.text[1].split()[0].startswith("98")
    few = swept(tmp_path, "seed,test_accuracy", *(f"{seed},0.{seed + 10}" for seed in range(19)))
    ((panel,), _) = panels(read([few], tmp_path))
    assert (panel.name, panel.title, panel.note) == ("recipes-1", "Test accuracy", "")
    assert panel.text[1].split() == ["19", "19.00", "5.63", "10.00", "28.00"]


def test_a_map_over_rate_and_batch_size(tmp_path):
    header = "model,batch_size,lr,test_accuracy"
    cells = ["0,8,0.1,0.98", "1,8,0.2,0.99", "2,16,0.1,", "3,16,0.2,0.97", "4,16,0.2,0.95"]
    ((_, panel), _) = panels(read([swept(tmp_path, header, *cells)], tmp_path))
    assert (panel.name, panel.title) == ("map-1", "Test error over learning rate and batch size, 2 x 2")
    assert [line.split() for line in panel.text] == [
        ["wrong,", "%", "B=8", "B=16"],
        ["0.2", "1.00", "4.00"],
        ["0.1", "2.00", "100.00"],
    ]
    assert panel.note == (
        "The share of wrong test images after 5 trainings, the mean over 1 to 2 models. A model that diverged counts "
        "as all wrong. The least is 1.00 %, at batch size 8 and rate 0.2."
    )
    with charts.style():
        svg = charts.to_svg(figure_of(panel), panel.title)
    assert [f"to {level}" for level in (1, 2, 5, 100)] == re.findall(r">(to [0-9.]+)<", svg)
    assert re.findall(r">([0-9.]+)</text>", svg)[-4:] == ["2", "1", "100", "4"], "a number in each cell"


GRID = "seed,batch_size,lr,schedule,epochs,test_accuracy"


def test_a_map_averages_over_seeds_alone(tmp_path):
    """Schedules and epochs have maps of their own, the one with the best model first, and a colour means the same."""
    right = {"constant": (0.79, 0.711, 0.601, 0.424), "linear": (0.866, 0.804, 0.845, 0.676)}
    places = [(64, 0.05), (128, 0.05), (64, 0.1), (128, 0.1)]
    rows = [
        f"{seed},{b},{lr},{shape},1,{accuracy - seed / 100}"
        for shape, accuracies in right.items()
        for seed in range(2)
        for (b, lr), accuracy in zip(places, accuracies, strict=True)
    ]
    ((first, *maps), absent) = panels(read([swept(tmp_path, GRID, *rows)], tmp_path))
    assert absent == []
    assert [(panel.name, panel.title.partition("2 x 2, ")[2]) for panel in maps] == [
        ("map-1-1", "schedule linear"),
        ("map-1-2", "schedule constant"),
    ]
    share = "The share of wrong test images after 8 trainings, the mean over 2 seeds. The least is"
    assert maps[0].note == f"{share} 13.90 %, at batch size 64 and rate 0.05, with schedule linear."
    assert maps[1].note == f"{share} 21.50 %, at batch size 64 and rate 0.05, with schedule constant."
    assert [line.split() for line in maps[0].text[1:]] == [["0.1", "16.00", "32.90"], ["0.05", "13.90", "20.10"]]
    colours = []
    for panel in maps:
        with charts.style():
            figure = figure_of(panel)
        patches = figure.axes[0].patches
        levels = [level.get_text() for level in figure.legends[0].get_texts()]
        colours.append(dict(zip(levels, (patch.get_facecolor() for patch in patches), strict=True)))
    assert colours[0]["to 50"] == colours[1]["to 50"] != colours[0]["to 15"]
    assert first.title == "The recipes of 16 models, best first"
    assert first.text[0].split() == ["batch", "lr", "schedule", "models", "test,", "%", "deviation", "least", "most"]
    assert first.text[1].split() == ["64", "0.05", "linear", "2", "86.10", "0.71", "85.60", "86.60"]
    assert len(first.text) == 9
    best = "The first has batch 64, lr 0.05, schedule linear: 86.10 % of the test images are right (mean of 2 seeds)."
    assert first.note.endswith(best)


def test_every_sweep_can_be_drawn(tmp_path):
    """The README's own, a list of rates, schedules, one model: whatever differs."""
    of_seeds = [f"{seed},64,{lr},constant,1,{0.9 - lr - seed / 100}" for lr in (0.05, 0.1) for seed in range(10)]
    rates = [f"0,64,{lr},constant,1,{0.8 - lr}" for lr in (0.5, 0.01, 0.1, 0.02)]
    shapes = [f"0,64,0.1,{shape},1,0.{k}" for k, shape in enumerate(("linear", "triangle:0.4", "constant"), 3)]
    two = [f"0,64,{lr},{shape},1,0.5" for lr, shape in ((0.1, "linear"), (0.2, "constant"))]
    many = [f"0,{b},{lr},constant,{n},0.5" for b in range(1, 8) for lr in (0.1, 0.2) for n in range(1, 9)]
    sweeps = {
        ("recipes-1", "over-1"): of_seeds,
        ("recipes-1", "over-1", "rates"): rates,
        ("recipes-1", "over-1", "shapes"): [*shapes, "0,64,0.1,other,1,"],
        ("recipes-1",): two,
        ("recipes-1", "one"): two[:1],
        ("recipes-1", *(f"map-1-{k}" for k in range(1, 7))): many,
    }
    for names, rows in sweeps.items():
        found, absent = panels(read([swept(tmp_path, GRID, *rows)], tmp_path))
        assert [panel.name for panel in found] == [name for name in names if "-" in name]
        assert absent == ([f"{tmp_path.name}: 2 more maps, of options that do no better"] if rows is many else [])
        with charts.style():
            for panel in found:
                figure = figure_of(panel)
                figure.draw_without_rendering()
                for text in figure.axes[0].texts:
                    box = text.get_window_extent()
                    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, (panel.name, text.get_text())
    ((recipes, over), _) = panels(read([swept(tmp_path, GRID, *rates[:3], "0,64,9,constant,1,")], tmp_path))
    assert [line.split() for line in over.text] == [
        ["lr", "models", "mean,", "%", "least", "most"],
        ["0.01", "1", "79.00", "79.00", "79.00"],
        ["0.1", "1", "70.00", "70.00", "70.00"],
        ["0.5", "1", "30.00", "30.00", "30.00"],
        ["9", "0", "-", "-", "-"],
    ]
    assert over.note == "Left out, as they diverged: 1 at 9."
    assert over.legend == "A dot is a model, of one seed."
    assert [line.split()[0] for line in recipes.text[1:]] == ["0.01", "0.1", "0.5", "9"]
    assert recipes.note.startswith("The best 3 of 4 by their accuracy on the test images. 1 model div")
    assert recipes.legend == "A dot is a model."
    for rows, why in (([], "no model of it is done"), (["0,64,9,constant,1,"], "every model of it diverged")):
        assert panels(read([swept(tmp_path, GRID, *rows)], tmp_path)) == ([], [f"{tmp_path.name}: {why}"])


def test_a_recipe_is_the_best_by_the_images_held_out_where_there_are_any(tmp_path):
    """And one of which a model diverged is not the best by those that did not."""
    header = "seed,lr,test_accuracy,validation_accuracy"
    rows = ["0,0.1,0.97,0.90", "1,0.1,0.97,0.92", "0,0.2,0.95,0.96", "1,0.2,0.95,0.94", "0,0.3,0.99,0.99", "1,0.3,,"]
    ((panel, _), _) = panels(read([swept(tmp_path, header, *rows)], tmp_path))
    assert [line.split() for line in panel.text] == [
        ["lr", "models", "held", "out,", "%", "test,", "%", "deviation", "least", "most", "diverged"],
        ["0.2", "2", "95.00", "95.00", "0.00", "95.00", "95.00", "0"],
        ["0.1", "2", "91.00", "97.00", "0.00", "97.00", "97.00", "0"],
        ["0.3", "2", "49.50", "49.50", "-", "99.00", "99.00", "1"],
    ]
    assert panel.note.startswith("The best 3 by their mean accuracy on the images held out.")
    assert "1 model diverged and counts as 0 % right. The first has lr 0.2: 95.00 % of the test images" in panel.note


def test_a_sweeps_page_is_in_its_folder_and_no_page_takes_anothers_place(capsys):
    Path("profile.json").write_text(json.dumps(PROFILE))
    for name in ("one", "two"):
        Path(name).mkdir()
        swept(Path(name), "seed,lr,test_accuracy", "0,0.1,0.9", "0,0.2,0.8")
    for argv, page in (
        (["one"], "one/report.html"),
        (["one/sweep.csv"], "one/report.html"),
        (["one", "two"], "report.html"),
        (["one", "two"], "report-2.html"),
        (["two", "profile.json"], "report-3.html"),
    ):
        assert prints(capsys, "report", *argv).startswith(f"{page}: ")
    text = Path("report.html").read_text()
    assert "<title>mnist-cuda: one, two</title>" in text
    assert re.findall(r"<h2>(.*)</h2>", text) == [
        f"{title}, {name}"
        for name in ("one", "two")
        for title in ("The recipes of 2 models, best first", "Test accuracy (%) over lr")
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,lr\n0,0.1\n", "it has no column test_accuracy"),
        ("test_accuracy\n1.5\n", "an accuracy is not between 0 and 1"),
        ("lr,test_accuracy\nfast,0.5\n", "could not convert string to float: 'fast'"),
        ("lr,test_accuracy\n0.1\n", "expected the table of `mnist-cuda sweep`"),
    ],
)
def test_a_table_of_something_else_is_refused(text, words, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(UsageError, match=re.escape(words)):
        read([tmp_path / "x.csv"], tmp_path)
