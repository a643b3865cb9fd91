"""`report --draw`: its JavaScript computes what `predict` does, and in a browser a drawn digit gets an answer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import opened
from drawings import of_pen
from tiny import prints

from mnist_cuda import TrainOptions, cli, dataset_of, predict, train
from mnist_cuda.data import synthetic
from mnist_cuda.data.digit import as_mnist
from mnist_cuda.run.checkpoint import save_model

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node here")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A result, 1,000 images that it was not trained on, and its page."""
    data = dataset_of(*synthetic.generate("train", count=3000), *synthetic.generate("test", count=1000))
    result = train(data, TrainOptions(epochs=1), engine="cpu")
    folder = tmp_path_factory.mktemp("runs")
    file = folder / "model.safetensors"
    save_model(file, result)
    page = folder / "page.html"
    assert cli.main(["report", str(file), "--draw", "--out", str(page)]) == 0
    return result, data.test_images, page


def by_node(page: Path, program: str, argument: Any) -> Any:
    """What a program prints as JSON that has the page's functions; `given` is the argument."""
    network = re.search(r'<script id="network">(.*?)</script>', page.read_text(), re.DOTALL)
    assert network
    text = f"{network[1]}\nconst given = {json.dumps(argument)};\n{program}"
    done = subprocess.run([str(NODE), "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
def test_its_classes_are_those_of_predict(trained: tuple[Any, Any, Path]) -> None:
    result, images, page = trained
    wanted = predict(result, images)
    found = by_node(
        page,
        "console.log(JSON.stringify(given.map((of) => [...forward(of).logits])))",
        images.reshape(len(images), 784).tolist(),
    )
    assert np.abs(np.array(found) - wanted.logits).max() < 1e-4
    assert (np.argmax(found, 1) == wanted.classes).all()
    assert len(set(wanted.classes.tolist())) == 10


@needs_node
def test_activations_and_routing(trained: tuple[Any, Any, Path]) -> None:
    """A value is 0 where the routing says that no position won."""
    _, images, page = trained
    found = by_node(
        page,
        "const r = forward(given); console.log(JSON.stringify([[...r.a1], [...r.route], [...r.a2], [...r.p]]))",
        images[0].ravel().tolist(),
    )
    a1, route, a2, p = map(np.array, found)
    assert (a1.size, a2.size) == (32 * 196, 64 * 49)
    assert ((a1 > 0) == (route < 4)).all()
    assert p.sum() == pytest.approx(1)


@needs_node
@pytest.mark.parametrize("digit", [1, 4, 7, 8])
def test_a_drawing_is_brought_into_the_form_that_predict_sees(digit: int, trained: tuple[Any, Any, Path]) -> None:
    ink = np.zeros((280, 280))
    drawn = of_pen(digit, 0, 0.12)(150)
    ink[40 : 40 + drawn.shape[0], 90 : 90 + drawn.shape[1]] = drawn
    found = by_node(trained[2], "console.log(JSON.stringify([...asMnist(given, 280)]))", ink.ravel().tolist())
    wanted = as_mnist(ink).pixels
    assert np.abs(np.reshape(found, (28, 28)) - wanted.astype(int)).mean() < 3
    assert by_node(trained[2], "console.log(asMnist(given, 280))", [0.0] * 280 * 280) is None


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1200, False)])
def test_in_a_browser(width: int, dark: bool, trained: tuple[Any, Any, Path]) -> None:
    page = trained[2]
    with opened(page, width, dark=dark) as (tab, requests, complaints):
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"too wide for {width}"
        assert tab.text_content("#answer") == "–"
        box = tab.locator("#pad").bounding_box()
        middle = box["x"] + box["width"] / 2
        tab.mouse.move(middle, box["y"] + 50)
        tab.mouse.down()
        tab.mouse.move(middle, box["y"] + 230, steps=4)
        tab.mouse.up()
        tab.evaluate("show()")
        assert tab.text_content("#answer") == "1"
        assert tab.text_content(".best span") == "1"
        tab.click("#clear")
        assert tab.text_content("#answer") == "–"
    assert requests == [page.as_uri()]
    assert complaints == []


def test_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--draw makes a page of one run" in prints(capsys, "report", "a", "b", "--draw", code=2)
    assert cli.main(["report", str(tmp_path / "none"), "--draw"]) == 6
