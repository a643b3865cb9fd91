"""Files that were damaged at random: each is refused in one line, or it is what it was; there is never a traceback.

MNIST_CUDA_MUTATIONS is how many of each kind are made up (default 300). A failure names the number of its case, which
`damage` makes again; with -s a line for each kind says what became of them.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import shutil
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_server import idx
from test_files import ODD, places, replaced
from tiny import tiny_dataset

from mnist_cuda import cli
from mnist_cuda.data import dataset
from mnist_cuda.data.digit import as_mnist
from mnist_cuda.data.idx import parse_images
from mnist_cuda.data.own_files import read_own
from mnist_cuda.data.picture_file import read_picture
from mnist_cuda.data.places import place_of
from mnist_cuda.errors import MnistCudaError
from mnist_cuda.report.panels import panels
from mnist_cuda.report.sources import Sources, read_sweep
from mnist_cuda.run.checkpoint import digest_of, load_model, safetensors_bytes
from mnist_cuda.run.resume import checkpoints, load_state
from mnist_cuda.sweeps.grid import read_runs
from mnist_cuda.sweeps.table import read_table

CASES = int(os.environ.get("MNIST_CUDA_MUTATIONS", "300"))
TRAIN = ("--engine", "cpu", "--threads", "1", "--batch-size", "15", "--quiet")
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 28, 28), np.uint8)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with a run, another one and a sweep, all sound."""
    folder = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(dataset, "load", tiny_dataset)
        for name in ("bad", "good"):
            assert cli.main(["train", *TRAIN, "--epochs", "1", "--save-every", "1steps", "--out", f"runs/{name}"]) == 0
        assert cli.main(["sweep", *TRAIN, "--epochs", "2", "--seeds", "4", "--save", "best", "--out", "sweep"]) == 0
    return folder


@pytest.fixture
def here(sound, tiny):
    """A copy of it in the current folder."""
    shutil.copytree(sound, tiny, dirs_exist_ok=True)


# ---- damage ----------------------------------------------------------------------------------------------------------


def damaged(content, rng, early=0):
    """One to three bytes, or some, changed, taken out or put in; half of them among the first `early`."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        size = min(early, len(content)) if early and rng.random() < 0.5 else len(content)
        at, kind = int(rng.integers(max(1, size))), rng.integers(5)
        if kind == 0:
            content[at : at + 1] = rng.bytes(1)
        elif kind == 1:
            content[at : at + 1] = bytes(byte ^ 1 << int(rng.integers(8)) for byte in content[at : at + 1])
        elif kind == 2:
            del content[at : at + int(rng.integers(1, 9))]
        elif kind == 3:
            content[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif rng.random() < 0.2:
            del content[at:]
    return bytes(content)


def odd_json(text, rng):
    """The same object with something else at a place or two, without it, or with what stands at another place."""
    value = json.loads(text)
    for _ in range(rng.integers(1, 3)):
        known = list(places(value))
        path, other = (known[k] for k in rng.integers(len(known), size=2))
        item = ODD[rng.integers(len(ODD))]
        if rng.random() < 0.2:
            item = value
            for key in other:
                item = item[key]
        value = replaced(value, path, item)
        if rng.random() < 0.1:
            value = {key: item for key, item in value.items() if key != path[0]}
    return json.dumps(value).encode()


def odd_lines(content, rng):
    """Lines of JSON, one of them odd, left out, there twice or in another place."""
    lines = content.splitlines()
    k = int(rng.integers(len(lines)))
    lines[k] = odd_json(lines[k], rng)
    if rng.random() < 0.3:
        lines = [lines[k] for k in rng.integers(len(lines), size=len(lines))]
    return b"\n".join(lines) + b"\n"


def odd_cells(content, rng):
    """A CSV file with something else in a cell or two, some of them with quotes and commas."""
    rows = list(csv.reader(content.decode().splitlines()))
    for _ in range(rng.integers(1, 3)):
        row = rows[rng.integers(len(rows))]
        cells = (*map(str, ODD), "nan", "inf", "-0", "1e400", '"', "a,b", "NUL", "9" * 5000, "\n")
        row[rng.integers(len(row))] = cells[rng.integers(len(cells))]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().replace("NUL", "\0").encode()  # which csv in Python 3.10 cannot write


# ---- what reads it ---------------------------------------------------------------------------------------------------


def program(*argv):
    """The command line: True where it took the file. A failure is one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([*argv])
    assert code in (0, 2, 3, 6), (argv, code, err.getvalue())
    assert code == 0 or err.getvalue().splitlines()[-1].startswith("mnist-cuda: error: "), err.getvalue()
    return code == 0


COMMON = [("runs",), ("runs", "show", "bad"), ("runs", "compare", "good", "bad")]
SELDOM = [
    ("train", "--resume", "runs/bad", "--epochs", "2", "--quiet"),
    ("train", "--config", "runs/bad/config.json", "--out", "again", "--quiet"),
    ("evaluate", "runs/bad"),
    ("report", "bad", "--text", "--no-profile"),
]


def read_run(path, rng):
    """A command on a run; every twentieth one that trains, tests or draws."""
    commands = SELDOM if rng.random() < 0.05 else COMMON
    try:
        return program(*commands[rng.integers(len(commands))])
    finally:
        shutil.rmtree("again", ignore_errors=True)
        if commands is SELDOM:
            shutil.rmtree("runs/bad")
            shutil.copytree("whole", "runs/bad")


def read_model(path, rng):
    """A model that is taken has the values that were saved."""
    found, saved = load_model(path), load_model("runs/good")
    for name in saved.parameters:
        np.testing.assert_array_equal(found.parameters[name], saved.parameters[name], err_msg=name)
    for name in saved.statistics:
        np.testing.assert_array_equal(found.statistics[name], saved.statistics[name], err_msg=name)


def read_idx(path, rng):
    content = path.read_bytes()
    images = parse_images(content, path.name)
    assert images.shape == (2, 28, 28)
    if path.suffix == ".gz":  # whose checksum vouches for the pixels
        np.testing.assert_array_equal(images, PIXELS)


def read_checkpoint(path, rng):
    """A checkpoint that is taken, though somebody sealed it anew, goes on or is refused."""
    state = load_state(path).state
    if rng.random() < 0.05:
        try:
            program("train", "--resume", "runs/bad", "--epochs", "2", "--quiet")
        finally:
            shutil.rmtree("runs/bad")
            shutil.copytree("whole", "runs/bad")
    return state.step >= 0


def read_csv(path, rng):
    """What a sweep that goes on reads, and a report."""
    if path.name == "runs.csv":
        return read_runs(path, {})
    if rng.random() < 0.5:
        return set(read_table(path, 2)) <= set(read_table(Path("whole.csv"), 2)) or pytest.fail("another row")
    for panel in panels(Sources(sweeps=[read_sweep(path)]))[0]:
        assert panel.text


def read_own_files(path, rng):
    """What an archive vouches for is as it was, and a table has the form of one."""
    found = read_own(place_of(path))
    if path.suffix == ".csv":
        assert all(images.shape == (len(labels), 28, 28) for images, labels in (found.train, found.test))
        assert all(labels.max() < 10 for _, labels in (found.train, found.test))
        return
    np.testing.assert_array_equal(np.concatenate([found.train[0], found.test[0]]), np.concatenate([PIXELS, PIXELS]))


def read_image(path, rng):
    digit = as_mnist(read_picture(path))
    assert digit.pixels.shape == (28, 28)


def resealed(content, rng):
    """A checkpoint whose state is odd and whose digest is right, or whose bytes are damaged."""
    if rng.random() < 0.4:
        return damaged(content, rng, 2000)
    from safetensors.numpy import load

    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    tensors = load(content)
    if rng.random() < 0.7:
        metadata["state"] = odd_json(metadata["state"], rng).decode()
    else:
        name = list(tensors)[rng.integers(len(tensors))]
        odd = (np.zeros(3), np.zeros((0,), np.int32), np.full(tensors[name].shape, np.nan, np.float32), np.array(1))
        tensors[name] = odd[rng.integers(len(odd))]
    metadata["sha256"] = digest_of(tensors, metadata)
    return safetensors_bytes(tensors, metadata)


def either(*ways):
    return lambda content, rng: ways[rng.integers(len(ways))](content, rng)


KINDS = {  # the file, how it is damaged, and what reads it
    "model": ("runs/bad/model.safetensors", lambda c, rng: damaged(c, rng, 2500), read_model),
    "idx": ("images", lambda c, rng: damaged(c, rng, 24), read_idx),
    "idx.gz": ("images.gz", lambda c, rng: damaged(c, rng, 24), read_idx),
    "checkpoint": ("runs/bad/checkpoints", resealed, read_checkpoint),
    "config": ("runs/bad/config.json", either(damaged, odd_json, odd_json), read_run),
    "metrics": ("runs/bad/metrics.jsonl", either(damaged, odd_lines, odd_lines), read_run),
    "sweep.csv": ("sweep/sweep.csv", either(damaged, odd_cells), read_csv),
    "runs.csv": ("sweep/runs.csv", either(damaged, odd_cells), read_csv),
    "picture": ("picture", damaged, read_image),
    "npz": ("own.npz", lambda c, rng: damaged(c, rng, 300), read_own_files),
    "zip": ("own.zip", lambda c, rng: damaged(c, rng, 300), read_own_files),
    "csv": ("own.csv", either(damaged, odd_cells), read_own_files),
}


def pictures():
    """The same drawing in each format, in bytes."""
    image_of = pytest.importorskip("PIL.Image").fromarray
    pixels = np.full((40, 50), 250, np.uint8)
    pixels[8:32, 20:26] = 10
    for name in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"):
        file = io.BytesIO()
        image_of(pixels).save(file, name)
        yield file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused_in_one_line_or_what_it_was(kind, here):
    Path("images").write_bytes(idx(PIXELS))
    Path("images.gz").write_bytes(gzip.compress(idx(PIXELS)))
    np.savez_compressed("own.npz", x_train=PIXELS, y_train=[3, 4], x_test=PIXELS, y_test=[5, 6])
    table = "".join(f"{k % 2}," + ",".join(map(str, PIXELS[k % 2].ravel())) + "\n" for k in range(4))
    Path("own.csv").write_text("label," + ",".join(f"p{k}" for k in range(784)) + "\n" + table)
    with zipfile.ZipFile("own.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/train.csv", table[: len(table) // 2])
        archive.writestr("a/test.csv", table[len(table) // 2 :])
    shutil.copytree("runs/bad", "whole")
    shutil.copy("sweep/sweep.csv", "whole.csv")
    name, damage, read = KINDS[kind]
    path = Path(name)
    if path.is_dir():
        (path,) = checkpoints(path.parent)
    wholes = list(pictures()) if kind == "picture" else [path.read_bytes()]
    refused, said, begin = 0, "", time.perf_counter()
    for case in range(CASES):
        rng = np.random.default_rng([len(kind), *map(ord, kind), case])
        path.write_bytes(content := damage(wholes[case % len(wholes)], rng))
        try:
            refused += read(path, rng) is False
        except MnistCudaError as error:
            refused, said = refused + 1, str(error)
        except Exception as error:
            Path("case").write_bytes(content)
            raise AssertionError(f"{kind}, case {case}, {Path('case').absolute()}: {error!r}") from error
        assert "\n" not in said, (case, said)
        path.write_bytes(wholes[0])
    assert refused > CASES // 5
    print(f"{kind:10}  {CASES:6} cases, {refused:6} refused, {time.perf_counter() - begin:5.0f} s")
