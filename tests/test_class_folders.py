"""Folders of pictures by class: one way from a picture to 28x28 for training and for `predict`, and what is refused."""

import json
import os

import numpy as np
import pytest
from drawings import levels, of_mnist, on_paper, somewhere
from PIL import Image

from mnist_cuda import TrainOptions, cli, dataset_from_folder, train
from mnist_cuda.data import class_folders
from mnist_cuda.data.digit import in_form
from mnist_cuda.data.picture_file import read_picture
from mnist_cuda.errors import DataError, DataWarning, UsageError
from mnist_cuda.run.checkpoint import load_model

STYLES = {
    "white on black": lambda rng, image: image,
    "black on white": lambda rng, image: 255 - image,
    "black on white, larger": lambda rng, image: levels(1 - somewhere(rng, of_mnist(image)(40), 1.6)),
    "photographs": lambda rng, image: on_paper(rng, somewhere(rng, of_mnist(image)(50), 2), contrast=0.5, noise=0.04),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(root, images, labels, names=tuple("0123456789"), suffix=".png"):
    for k, (image, label) in enumerate(zip(images, labels, strict=True)):
        (root / names[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / names[label] / f"{k:04d}{suffix}")
    return root


@pytest.mark.parametrize("style", STYLES)
def test_predict_sees_what_training_saw(style, tmp_path, mnist, capsys):
    rng = np.random.default_rng(0)
    count = 300 if style == "photographs" else 1000
    images = [STYLES[style](rng, image) for image in mnist.train_images[:count]]
    root = fill(tmp_path / "pictures", images, mnist.train_labels[:count])
    data = dataset_from_folder(root, test_share=0.3)
    assert data.form == "mnist"
    result = train(data, TrainOptions(epochs=2, batch_size=20), engine="cpu", out=tmp_path / "run")
    assert load_model(tmp_path / "run").metadata["form"] == "mnist"
    folder = tmp_path / "held"
    held = [p.path for p in class_folders._pictures(root, 0.3, 0)[1] if p.test]
    for path in held:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        os.link(path, folder / path.parent.name / path.name)
    assert cli.main(["predict", str(folder), "--model", str(tmp_path / "run"), "--engine", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["form"] == "mnist"
    right = [image["text"] == image["file"].split("/")[-2] for image in report["images"]]
    assert len(right) == len(data.test_labels)
    assert np.mean(right) == pytest.approx(result.accuracy, abs=1e-9)


def test_the_form_is_scaled_for_other_classes_and_predict_follows(tmp_path, mnist, capsys):
    """Two kinds that the place of their ink alone tells apart: MNIST's form would move it to the middle."""
    images, labels = np.zeros((80, 40, 60, 3), np.uint8), np.arange(80) % 2
    for k, image in enumerate(images):
        image[10 + k % 7 : 25, 40 * labels[k] : 40 * labels[k] + 12] = 255
    root = fill(tmp_path / "pictures", images, labels, ("left", "right"))
    data = dataset_from_folder(root)
    assert (data.form, data.classes, data.digest) == ("scaled", ("left", "right"), dataset_from_folder(root).digest)
    train(data, TrainOptions(epochs=6, batch_size=8), engine="cpu", out=tmp_path / "run")
    argv = ["predict", str(root), "--model", str(tmp_path / "run"), "--engine", "cpu"]
    assert cli.main([*argv, "--json"]) == 0
    out, err = capsys.readouterr()
    assert f"{tmp_path}/run: pictures are made grey and scaled to 28x28" in err
    assert "the classes that it names are not digits: left, right\n" in err
    assert all(image["text"] == image["file"].split("/")[-2] for image in json.loads(out)["images"])
    assert cli.main(["predict", str(root / "left/0000.png"), *argv[2:]]) == 0
    rows = [line[28:].split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows if row] == ["left", "right"]
    assert cli.main([*argv, "--json", "--form", "mnist"]) == 0
    assert json.loads(capsys.readouterr().out)["form"] == "mnist"


def test_an_unknown_form_is_refused(tmp_path):
    with pytest.raises(UsageError, match="form is 'square', expected auto, mnist or scaled"):
        dataset_from_folder(tmp_path, form="square")


def test_garments_in_folders_named_by_digits_are_scaled(tmp_path):
    rng = np.random.default_rng(0)
    images = np.zeros((60, 28, 28), np.uint8)
    for image in images:
        image[2:26, 5:23] = rng.integers(90, 255)  # filled shapes
    data = dataset_from_folder(fill(tmp_path / "garments", images, np.arange(60) % 10))
    assert (data.form, data.classes) == ("scaled", ())
    assert sorted(map(bytes, data.train_images))[0] in set(map(bytes, images))


@pytest.mark.parametrize(
    ("halves", "test"),
    [
        (("train", "test"), "test"),
        (("Training", "Testing"), "Testing"),
        (("train", "val"), "val"),
        (("train", "valid", "test"), "test"),
        (("training",), None),
        (("wrapper/train", "wrapper/test"), "wrapper/test"),
    ],
)
def test_folders_above_the_classes(halves, test, tmp_path, mnist):
    root = tmp_path / "data"
    for k, half in enumerate(halves):
        fill(root / half, mnist.train_images[20 * k : 20 * k + 20], mnist.train_labels[20 * k : 20 * k + 20])
    (root / halves[0] / "3").mkdir(exist_ok=True)
    for half in halves[1:]:
        for label in os.listdir(root / half):
            (root / halves[0] / label).mkdir(exist_ok=True)
            Image.fromarray(mnist.train_images[99]).save(root / halves[0] / label / "more.png")
    if len(halves) == 3:
        with pytest.warns(DataWarning, match="valid: these pictures are not used"):
            data = dataset_from_folder(root)
    else:
        data = dataset_from_folder(root)
    if test:
        assert len(data.test_labels) == len(list((root / test).rglob("*.png")))
    assert len(data.train_labels) + len(data.test_labels) == len(list(root.rglob("*.png"))) - 20 * (len(halves) == 3)


@pytest.fixture
def digits(tmp_path, mnist):
    return fill(tmp_path / "digits", mnist.train_images[:60], mnist.train_labels[:60])


def link_out(root):
    (root.parent / "elsewhere.png").write_bytes((root / "3").glob("*.png").__next__().read_bytes())
    (root / "3/link.png").symlink_to(root.parent / "elsewhere.png")


def links_to_a_folder(root):
    (root / "4").rename(root.parent / "four")
    (root / "4").symlink_to(root.parent / "four")


def bomb(root):
    from test_picture_file import HOSTILE

    (root / "5/bomb.png").write_bytes(HOSTILE["bomb"][0])


def eleven(root):
    (root / "ten").mkdir()


def only_a_test_folder(root):
    for label in "0123456789":
        (root / "test").mkdir(exist_ok=True)
        (root / label).rename(root / "test" / label)
    (root / "more/0").mkdir(parents=True)


REFUSED = {
    "a link to a picture": (link_out, "3/link.png: a link out of"),
    "a link to a class": (links_to_a_folder, "4: a link to a folder, expected the folder itself"),
    "a link to itself": (lambda root: (root / "3/loop.png").symlink_to("loop.png"), "3/loop.png"),
    "a bomb": (bomb, "5/bomb.png: more than 100000000 pixels"),
    "a pipe": (lambda root: os.mkfifo(root / "5/pipe.png"), "5/pipe.png: not a regular file"),
    "an empty class": (lambda root: [p.unlink() for p in (root / "7").iterdir()], "7: no picture in this folder"),
    "no picture": (lambda root: (root / "7/x.png").write_text("text"), "7/x.png: not a picture"),
    "a HEIC": (
        lambda root: (root / "7/x.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(99)),
        "7/x.heic: a HEIC picture, read by the package pillow-heif: run ",
    ),
    "eleven classes": (eleven, "it has 11 folders, expected one for each of at most 10 classes"),
    "no training": (only_a_test_folder, "it has a folder test, but none for training: name it train"),
    "a file": (lambda root: [__import__("shutil").rmtree(root), root.write_text("x")], "not a folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_takes_one_line(case, digits):
    damage, words = REFUSED[case]
    damage(digits)
    with pytest.raises(DataError) as error:
        dataset_from_folder(digits)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_class_of_the_test_folder_alone_is_refused(tmp_path, mnist):
    fill(tmp_path / "data/train", mnist.train_images[:20], np.arange(20) % 2, ("cat", "dog"))
    fill(tmp_path / "data/test", mnist.train_images[:20], np.arange(20) % 2, ("cat", "eel"))
    with pytest.raises(DataError, match=r"test: it has a class eel, which .*train does not have"):
        dataset_from_folder(tmp_path / "data")


def test_it_is_read_once_until_a_file_changes(digits, cache, monkeypatch, mnist):
    reads = []

    def counted(path, *more):
        reads.append(path)
        return read_picture(path, *more)

    monkeypatch.setattr(class_folders, "read_picture", counted)
    first = dataset_from_folder(digits)
    assert len(reads) == 60 + 60  # each also for its form
    reads.clear()
    again = dataset_from_folder(digits)
    assert (again.digest, again.form, reads) == (first.digest, first.form, [])
    (kept,) = (cache / "pictures").iterdir() if len(os.listdir(cache / "pictures")) == 1 else (
        path for path in (cache / "pictures").iterdir() if path.suffix == ".npz"
    )  # fmt: skip
    content = kept.read_bytes()
    for damaged in (content[:-50], content[:5000] + bytes([content[5000] ^ 1]) + content[5001:], b""):
        kept.write_bytes(damaged)
        assert dataset_from_folder(digits).digest == first.digest
        assert reads
        reads.clear()
    changed = sorted((digits / "3").iterdir())[0]
    Image.fromarray(mnist.train_images[99]).save(changed)
    os.utime(changed, ns=(1, 1))
    assert dataset_from_folder(digits).digest != first.digest


def test_pictures_that_show_no_digit_are_told(digits):
    Image.new("L", (50, 50), 255).save(digits / "6/blank.png")
    with pytest.warns(DataWarning, match=r"1 of 61 pictures do not look like one digit, the first is .*6/blank\.png: "):
        dataset_from_folder(digits)
    Image.new("L", (50, 50), 255).save(digits / "beside.png")
    with pytest.warns(DataWarning) as told:
        dataset_from_folder(digits)
    assert any("1 pictures beside the classes' folders are not used" in str(one.message) for one in told)


def test_scaled_pictures_keep_their_grey(tmp_path):
    ramp = np.tile(np.arange(0, 252, 9, dtype=np.uint8), (28, 1))
    opaque = np.dstack([np.zeros((28, 28, 3), np.uint8), ramp])
    expected = {
        "grey": (ramp, ramp),
        "colours": (np.dstack([ramp] * 3), ramp),
        "16 bits": (ramp.astype(np.uint16) * 257, ramp),
        "larger": (np.kron(ramp, np.ones((3, 3), np.uint8)), ramp),
        "black on nothing": (opaque, 255 - ramp),
    }
    for name, (picture, wanted) in expected.items():
        found = in_form(picture, "scaled")[0].pixels.astype(int)
        assert np.abs(found - wanted)[:, 1:-1].max() <= 3, name
