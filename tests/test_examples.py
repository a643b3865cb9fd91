"""The examples run, and say what they promise; on a small data set, in a folder of their own."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT
from tiny import ENVIRONMENT

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
ON_TINY = """
import runpy, sys
sys.path.insert(0, {tests!r})
sys.path += {more!r}
import tiny
from mnist_cuda.data import dataset
dataset.load = tiny.tiny_dataset
runpy.run_path({example!r}, run_name="__main__")
"""


def run(name, folder, more=()):
    """What an example prints on the tiny data set. more: folders of modules behind all others."""
    code = ON_TINY.format(tests=str(ROOT / "tests"), example=str(ROOT / "examples" / name), more=list(more))
    environment = ENVIRONMENT | {"MNIST_TINY_IMAGES": "1000"}
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_five_lines(tmp_path):
    out = run("five_lines.py", tmp_path)
    assert "[0 1 2 3 4 5 6 7 8 9] and the network says [0 1 2 3 4 5 6 7 8 9]" in out
    assert (tmp_path / "model.safetensors").is_file()


def test_many_seeds(tmp_path):
    out = run("many_seeds.py", tmp_path)
    accuracy = re.search(r"10 seeds: (\d+\.\d\d) % of the test images, standard deviation \d+\.\d\d\n", out)
    assert float(accuracy[1]) > 90
    always, never = map(float, re.search(r"right by all: (\S+) % of the images; wrong by all: (\S+) %", out).groups())
    assert 50 < always <= float(accuracy[1]) <= 100 - never
    assert re.search(r"the standard deviation would be \d\.\d\d\n", out)
    shares = [int(share) for share in re.findall(r"image \d+, a \d: right by (\d+) % of the networks", out)]
    assert len(shares) == 5
    assert shares == sorted(shares)


def test_forgetting(tmp_path):
    *networks, both = run("forgetting.py", tmp_path).splitlines()
    for accuracies, forgotten, never in zip(networks[::3], networks[1::3], networks[2::3], strict=True):
        found = [float(share) for share in re.findall(r"([\d.]+) %", accuracies)]
        assert len(found) == 4
        assert found[-1] > 90
        lost, right = map(int, re.search(r"once: (\d+) images, of these right in the end: (\d+)", forgotten).groups())
        assert right <= lost <= 20
        assert int(re.search(r"never right: (\d+) images", never)[1]) <= 20 * (1 - max(found) / 100) + 1e-6
    assert re.fullmatch(r"both networks forget \d+ images; by chance they would share \d+\.\d", both)


TRACKIO = """
def init(**values): print("init", values["project"], values["config"]["epochs"])
def log(values): print("log", sorted(values))
def finish(): print("finish")
"""


def test_trackers(tmp_path):
    assert "logged by nobody" in run("trackers.py", tmp_path)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "trackio.py").write_text(TRACKIO)
    lines = run("trackers.py", tmp_path, [str(tmp_path / "modules")]).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["init", "log", "log", "finish"]
    assert lines[0] == "init mnist 2"
    assert "test_accuracy" in lines[1]
    assert lines[-1].endswith("logged by trackio")


def test_own_loop(tmp_path):
    out = run("own_loop.py", tmp_path)
    assert "reference  can run here" in out
    assert re.search(r"rate 0\.025: loss \d\.\d{4}, 100\.00 % of the test images", out)


def test_own_data(tmp_path):
    out = run("own_data.py", tmp_path)
    assert re.search(r"arrays: (9\d|100)\.\d %; the first is across", out)
    assert re.search(r"folder: (9\d|100)\.\d %", out)


def test_look_inside(tmp_path):
    out = run("look_inside.py", tmp_path)
    gradient, difference = re.search(r"gradient (\S+), difference (\S+)", out).groups()
    assert float(gradient) == pytest.approx(float(difference), rel=1e-5)
    assert abs(float(gradient)) > 1e-4


def test_pytorch(tmp_path, torch_folders):
    out = run("pytorch.py", tmp_path, torch_folders)
    assert float(re.search(r"differ by at most (\S+)", out).group(1)) < 1e-3
    assert re.findall(r"from_pytorch\.\w+: ([\d.]+) %", out) == ["100.00", "100.00"]


def test_pytorch_operators(tmp_path, torch_folders):
    out = run("pytorch_operators.py", tmp_path, torch_folders)
    assert float(re.search(r"losses differ by at most (\S+)", out).group(1)) < 1e-5
    shares = [float(share) for share in re.findall(r"([\d.]+) % by the", out)]
    assert len(shares) == 2
    assert abs(shares[0] - shares[1]) <= 0.1
    assert min(shares) > 90


def test_every_example_has_a_test():
    assert [f"test_{name.removesuffix('.py')}" in globals() for name in EXAMPLES] == [True] * len(EXAMPLES)
    page = (ROOT / "examples" / "README.md").read_text()
    assert all(f"]({name})" in page for name in EXAMPLES)
