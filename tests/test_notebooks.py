"""The notebooks run on the real MNIST from the first cell to the last, and show what their text promises."""

import os
import re

import pytest
from conftest import ROOT
from tiny import ENVIRONMENT

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed here")
pytest.importorskip("ipykernel", reason="ipykernel is not installed here")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = 300  # that a cell may take on a busy machine


def printed(cell):
    """What a cell prints and its result, as text."""
    data = [output.get("data", {}) for output in cell.outputs]
    pictures = ["[picture]" for found in data if "image/png" in found]
    pictures += re.findall(
        r'<img src="data:image/svg[^"]*" (alt=".*?")', " ".join(one.get("text/html", "") for one in data)
    )
    texts = [output.get("text", found.get("text/plain", "")) for output, found in zip(cell.outputs, data, strict=True)]
    return "".join(texts + pictures)


@pytest.fixture
def run(mnist, tmp_path, emulator):
    """run(name): the outputs of a notebook's code cells, as text. A cell that fails raises."""

    def execute(name):
        notebook = nbformat.read(ROOT / "examples" / name, as_version=4)
        environment = {**os.environ, "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
        environment.pop("MPLBACKEND", None)
        client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
        client.execute(env=environment)
        return [printed(cell) for cell in notebook.cells if cell.cell_type == "code"]

    return execute


def test_start(run):
    data, digits, result, plot, predicted, shares, mistakes, again = run("start.ipynb")
    assert data == "Dataset(mnist, 60000 training and 10000 test images)\n"
    assert "[picture]" in digits
    assert float(re.search(r"TrainingResult\((\S+) %, 3 epochs", result)[1]) > 97
    assert "[picture]" in plot
    assert re.search(r"labels say   \[7 2 1 0 4 1", predicted)
    assert len(re.findall(r"^\d: \d\d\.\d% of \d+$", shares, re.MULTILINE)) == 10
    assert "[picture]" in mistakes
    assert 0 < int(re.search(r"(\d+) of 10000 are wrong", mistakes)[1]) < 300
    assert again.endswith("seeds 0 and 0: the same bits\nseeds 0 and 1: other bits\n")


def test_kernels(run):
    _, faulty, right, strided, conflict, padded = run("kernels.ipynb")
    assert re.search(r"^MEMORY +relu\.cu:9: outside: thread 1 of block 0 reads", faulty, re.MULTILINE)
    for report in (right, strided, conflict, padded):
        assert re.search(r"^RIGHT .*^memory .*^bits       the same.*^RIGHT ", report, re.MULTILINE | re.DOTALL)
    assert "alt=" not in faulty
    assert "every access takes the fewest sectors and turns" in right
    assert re.search(r'alt="relu\.cu:\d+ reads x: 4\.0 sectors of 32 bytes a warp, 4\.0 at best', right)
    assert strided.count("reads x: 16.0 sectors of 32 bytes a warp, 4.0 at best") == 2  # in words, and of the picture
    assert "reads w_tile: 32.0 turns of the banks a warp, 1.0 at\n           best" in conflict
    assert "reads w_tile: 32.0 turns of the banks a warp, 1.0 at best" in conflict
    assert "turns of the banks" not in padded.partition("alt=")[0]


def test_seeds(run):
    found, rows, spread, beside, plot, better = run("seeds.ipynb")
    assert found.startswith("SweepResult(24 models, best 9")
    assert len(rows.splitlines()) == 6
    assert [line.split()[0] for line in spread.splitlines()[2:]] == ["0.02", "0.05", "0.10"]
    for line in beside.splitlines()[2:]:
        mean, std, binomial = map(float, line.split()[1:])
        assert 85 < mean < 99
        assert std > binomial
        assert binomial == pytest.approx((mean * (100 - mean) / 10_000) ** 0.5, abs=0.02)
    assert "[picture]" in plot
    assert re.match(r"lr 0\.\d+ is \d+\.\d\d points ahead of 0\.\d+, give or take \d\.\d\d\n", better)


def test_every_notebook_has_a_test_and_no_outputs():
    page = (ROOT / "examples" / "README.md").read_text()
    for path in NOTEBOOKS:
        assert f"test_{path.stem}" in globals()
        assert f"]({path.name})" in page
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells), path.name
