"""`mnist-cuda predict`: digits in pictures of every style, what is no digit, tables, JSON, exit codes."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from drawings import NO_DIGITS, PICTURES, of_mnist, of_pen
from PIL import Image, ImageDraw, ImageFont
from tiny import ENVIRONMENT, Terminal, prints

from mnist_cuda import TrainOptions, cli, dataset_from_folder, train
from mnist_cuda.commands.predict import SURE
from mnist_cuda.data.digit import as_mnist
from mnist_cuda.data.likeness import FAR, nearest
from mnist_cuda.run.checkpoint import load_model, save_model
from mnist_cuda.run.evaluation import engine_of, predict
from mnist_cuda.run.results import Model

EACH = 20  # digits of MNIST's test images in each style, and as many drawn strokes, half of them thin
CPU = ("--engine", "cpu")


@pytest.fixture(scope="module")
def engine(trained):
    return engine_of(trained, "cpu")


def digits(rng, mnist):
    """Pairs of a label and what draws it."""
    for index in rng.choice(len(mnist.test_images), EACH, replace=False):
        yield int(mnist.test_labels[index]), of_mnist(mnist.test_images[index])
    for k in range(EACH):
        pen = rng.uniform(0.08, 0.18) if k % 2 else 0.03
        yield k % 10, of_pen(k % 10, int(rng.integers(9)), pen, slant=rng.uniform(0, 0.3))


@pytest.mark.parametrize("style", PICTURES)
def test_nine_of_ten_digits_are_right_in_every_style(style, mnist, engine):
    rng = np.random.default_rng(list(PICTURES).index(style))
    cases = [(label, PICTURES[style](rng, ink)) for label, ink in digits(rng, mnist)]
    found = [as_mnist(picture) for _, picture in cases]
    labels = np.array([label for label, _ in cases])
    answers = predict(engine, np.stack([digit.pixels for digit in found])).classes
    wrong = [(int(label), int(answer)) for label, answer in zip(labels, answers, strict=True) if label != answer]
    assert len(wrong) <= 0.1 * len(found), wrong
    assert sum(bool(digit.doubt) for digit in found) <= 0.1 * len(found)


def test_nearly_all_of_mnist_passes_as_before(mnist, engine):
    """The form that the network learnt is kept: as many right as without, and hardly a doubt."""
    images, labels = mnist.test_images[:1000], mnist.test_labels[:1000]
    found = [as_mnist(image) for image in images]
    right = (predict(engine, np.stack([digit.pixels for digit in found])).classes == labels).mean()
    assert right >= (predict(engine, images).classes == labels).mean() - 0.01
    assert sum(bool(digit.doubt) for digit in found) <= 5


@pytest.mark.parametrize("name", NO_DIGITS)
def test_what_is_no_digit_is_doubted(name, engine):
    for seed in range(3):
        digit = as_mnist(NO_DIGITS[name](np.random.default_rng(seed)))
        assert digit.doubt or predict(engine, digit.pixels[None]).probabilities.max() < SURE


@pytest.fixture
def pictures(tmp_path, mnist):
    """A folder of three pictures of the first test images, a blank one and a file that is none."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(3):
        Image.fromarray(255 - mnist.test_images[k]).resize((90, 90)).save(folder / f"{k}.png")
    Image.new("L", (60, 60), 255).save(folder / "blank.PNG")
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_a_folder_gives_a_table(trained, pictures, mnist, capsys):
    assert cli.main(["predict", str(pictures), "--model", str(trained), *CPU]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["file", "digit", "probability", "doubt"]
    assert [row[:2] for row in rows[1:4]] == [[str(pictures / f"{k}.png"), str(mnist.test_labels[k])] for k in range(3)]
    assert " ".join(rows[4]) == f"{pictures}/blank.PNG - - nothing is drawn there that stands out"
    assert err == ""


def test_a_picture_is_shown_beside_ten_bars(trained, pictures, mnist, capsys):
    assert cli.main(["predict", str(pictures / "0.png"), "--model", str(trained), *CPU]) == 0
    out, err = capsys.readouterr()
    first, *rows = out.splitlines()
    assert first.startswith(f"{pictures / '0.png'}: {mnist.test_labels[0]}, ")
    assert len(rows) == 14
    bars = [row[28:].split() for row in rows[2:12]]
    assert [bar[0] for bar in bars] == [str(k) for k in range(10)]
    assert sum(float(bar[-2]) for bar in bars) == pytest.approx(100, abs=0.5)
    assert [k for k, bar in enumerate(bars) if len(bar) == 4] == [mnist.test_labels[0]]  # a bar for it alone
    assert all(set(row[:28]) <= set(" ░▒▓█") for row in rows)
    assert err == ""


def test_a_picture_without_a_digit_is_warned_of(trained, pictures, capsys):
    assert cli.main(["predict", str(pictures / "blank.PNG"), "--model", str(trained), *CPU]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("WARNING: ")
    assert "this looks like no digit: nothing is drawn there that stands out" in err


def test_an_unsure_answer_is_warned_of(trained, pictures, monkeypatch, capsys):
    monkeypatch.setattr("mnist_cuda.commands.predict.SURE", 1.1)
    assert cli.main(["predict", str(pictures / "0.png"), "--model", str(trained), *CPU]) == 0
    err = capsys.readouterr().err
    assert err == f"WARNING: {pictures / '0.png'}: the network is not sure\n"


def test_distances_are_those_of_a_plain_loop():
    """Blurred by (1 2 1)/4 twice in both directions, every second pixel, the nearest of the class alone."""
    rng = np.random.default_rng(0)
    images, among = (rng.integers(0, 256, (count, 28, 28), np.uint8) for count in (4, 9))
    for array in (images, among):
        array[:, [0, 1, -2, -1]] = array[:, :, [0, 1, -2, -1]] = 0
    labels, classes = np.array([0, 1, 2] * 3), np.array([2, 0, 1, 5])

    def form(image):
        wide = np.convolve([1, 2, 1], [1, 2, 1]) / 16
        image = np.apply_along_axis(np.convolve, 0, image / 255, wide, "same")
        return np.apply_along_axis(np.convolve, 1, image, wide, "same")[::2, ::2]

    found = nearest(images, classes, among, labels)
    for k in range(3):
        distances = [np.linalg.norm(form(images[k]) - form(one)) for one in among[labels == classes[k]]]
        assert found[k] == pytest.approx(min(distances), rel=1e-5)
    assert found[3] == np.inf


def test_what_is_unlike_the_training_images_is_doubted(trained, mnist, tmp_path, capsys):
    """Though the network is sure of it; a digit is as near as they are to each other."""
    font = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    picture = Image.new("L", (90, 90), 255)
    ImageDraw.Draw(picture).text((45, 45), "M", font=ImageFont.truetype(str(font), 60), anchor="mm")
    picture.save(tmp_path / "M.png")
    Image.fromarray(255 - mnist.test_images[0]).save(tmp_path / "7.png")
    argv = ["predict", str(tmp_path / "M.png"), str(tmp_path / "7.png"), "--model", str(trained), *CPU]
    letter, digit = json.loads(prints(capsys, *argv, "--json"))["images"]
    assert letter["distance"] > FAR > 1.5 > digit["distance"] > 0
    assert letter["doubt"] == f"it is unlike every {letter['digit']} of MNIST"
    assert digit["doubt"] == ""
    assert cli.main(argv) == 0
    err = capsys.readouterr().err
    assert err == f"WARNING: {tmp_path / 'M.png'}: this looks like no digit: {letter['doubt']}\n"


def test_without_the_training_images_it_says_that_it_cannot_compare(trained, pictures, monkeypatch, capsys):
    model = load_model(trained)
    save_model(pictures / "alone.safetensors", model)  # no run's folder says where the data were
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(pictures / "empty"))
    argv = ["predict", str(pictures / "0.png"), *CPU, "--json", "--model"]
    assert cli.main([*argv, str(pictures / "alone.safetensors")]) == 0
    out, err = capsys.readouterr()
    assert err == "MNIST's training images are not here, so the pictures are not compared with them\n"
    assert json.loads(out)["images"][0]["distance"] is None
    save_model(pictures / "other.safetensors", replace(model, metadata=model.metadata | {"dataset": "synthetic"}))
    assert cli.main([*argv, str(pictures / "other.safetensors")]) == 0
    assert capsys.readouterr().err == ""


def test_the_object_for_programs(trained, pictures, mnist, capsys):
    assert cli.main(["predict", str(pictures), "--model", str(trained), *CPU, "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == ""
    assert (report["model"], report["engine"], report["precision"]) == (str(trained), "cpu", "fp32")
    *found, blank = report["images"]
    for k, image in enumerate(found):
        assert image["file"] == str(pictures / f"{k}.png")
        assert image["digit"] == mnist.test_labels[k] == np.argmax(image["probabilities"])
        assert image["probability"] == max(image["probabilities"])
        assert sum(image["probabilities"]) == pytest.approx(1)
        assert (image["doubt"], image["dark_on_light"], len(image["box"])) == ("", True, 4)
    assert (blank["digit"], blank["probability"], blank["probabilities"]) == (None, None, None)


def test_a_bad_file_costs_a_line_and_not_the_others(trained, pictures, mnist, capsys):
    (pictures / "1.png").write_bytes(b"no picture")
    argv = ["predict", str(pictures), str(pictures / "gone.png"), "--model", str(trained), *CPU]
    assert cli.main(argv) == 3
    out, err = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines()] == [
        "digit", str(mnist.test_labels[0]), str(mnist.test_labels[2]), "-",
    ]  # fmt: skip
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"mnist-cuda: error: {pictures}/1.png: not a picture, expected PNG, ")
    assert lines[1] == f"mnist-cuda: error: {pictures}/gone.png: cannot be read: No such file or directory"
    assert cli.main([*argv, "--json"]) == 3
    images = json.loads(capsys.readouterr().out)["images"]
    assert [image["file"] for image in images if "error" in image] == [
        str(pictures / "1.png"),
        str(pictures / "gone.png"),
    ]


def test_standard_input(trained, pictures, mnist):
    command = [sys.executable, "-m", "mnist_cuda", "predict", "-", "--model", trained, *CPU]
    for content, code, words in (
        ((pictures / "0.png").read_bytes(), 0, f"-: {mnist.test_labels[0]}, "),
        (b"", 3, "mnist-cuda: error: standard input: not a picture"),
    ):
        result = subprocess.run(command, input=content, env=ENVIRONMENT, capture_output=True, check=False)
        assert result.returncode == code
        assert words in (result.stdout + result.stderr).decode()


def test_the_newest_run_is_taken(trained, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["predict", str(pictures / "0.png"), *CPU]
    assert "no run with a model in runs/" in prints(capsys, *argv, code=2)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(trained)
    assert cli.main(argv) == 0
    assert "runs/mine" in capsys.readouterr().err


def test_on_a_terminal_the_pixels_are_shaded(trained, pictures):
    with Terminal("predict", pictures / "0.png", "--model", trained, *CPU) as terminal:
        screen = terminal.read().decode()
        assert terminal.process.wait() == 0
    assert "▀" in screen
    assert "\x1b[" in screen
    assert "Traceback" not in screen


@pytest.mark.parametrize("columns", [80, 50, 40])
def test_pixels_and_bars_fit_a_terminal(trained, pictures, columns):
    with Terminal("predict", pictures / "0.png", "--model", trained, *CPU, COLUMNS=str(columns)) as terminal:
        screen = re.sub("\x1b\\[[0-9;]*m", "", terminal.read().decode())
        assert terminal.process.wait() == 0
    answers = [line for line in screen.splitlines() if line.startswith("▀") and line.endswith("%")]
    assert [line[28:].split()[0] for line in answers] == [*"0123456789"]
    assert max(map(len, answers)) == min(columns, 65)


def test_models_that_cannot_answer(trained, pictures, tmp_path, capsys):
    model, picture = load_model(trained), str(pictures / "0.png")
    save_model(tmp_path / "early.safetensors", Model(model.parameters), steps=1)
    assert cli.main(["predict", picture, "--model", str(tmp_path / "early.safetensors"), *CPU]) == 6
    assert "has no population statistics" in capsys.readouterr().err
    assert cli.main(["predict", picture, "--model", str(tmp_path / "gone"), *CPU]) == 6
    assert capsys.readouterr().err.endswith("gone: no such file or folder, and no run of that name in runs/\n")
    other = Model(model.parameters, model.statistics, {"dataset": "fashion-mnist"})
    save_model(tmp_path / "clothes.safetensors", other, steps=1)
    assert cli.main(["predict", picture, "--model", str(tmp_path / "clothes.safetensors"), *CPU]) == 0
    err = capsys.readouterr().err
    assert "the classes that it names are not digits: T-shirt, trousers, " in err
    assert "pictures are made grey and scaled to 28x28, as its training images were" in err


def test_a_number_is_read(trained, mnist, tmp_path, capsys):
    labels = mnist.test_labels.tolist()
    row = [mnist.test_images[labels.index(digit)] for digit in (3, 1, 4, 2)]
    Image.fromarray(255 - np.pad(np.hstack(row), 20)).save(tmp_path / "number.png")
    first, *rows = prints(capsys, "predict", str(tmp_path / "number.png"), "--model", str(trained), *CPU).splitlines()
    assert first.startswith(f"{tmp_path / 'number.png'}: 3142, least ")
    assert [line.split()[0] for line in rows] == ["3", "1", "4", "2"]
    assert cli.main(["predict", str(tmp_path / "number.png"), "--model", str(trained), *CPU, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["images"]
    assert (report["text"], report["digit"], [part["digit"] for part in report["digits"]]) == (
        "3142",
        None,
        [3, 1, 4, 2],
    )
    assert report["probability"] == min(part["probability"] for part in report["digits"])


def test_classes_have_their_names(trained, pictures, capsys):
    model, names = load_model(trained), [f"kind {k}" for k in range(7)]
    assert model.classes == tuple("0123456789")
    assert Model({}, None, {"dataset": "fashion-mnist"}).classes[9] == "ankle boot"
    assert Model({}, None, {"classes": "nothing"}).classes == tuple("0123456789")
    save_model(pictures / "named.safetensors", replace(model, metadata=model.metadata | {"classes": json.dumps(names)}))
    assert load_model(pictures / "named.safetensors").classes == (*names, "7", "8", "9")
    argv = ["predict", str(pictures / "1.png"), "--model", str(pictures / "named.safetensors"), *CPU, "--json"]
    (report,) = json.loads(prints(capsys, *argv))["images"]
    assert report["text"] == f"kind {report['digit']}"


def test_a_folder_of_pictures_names_its_classes(tmp_path):
    for name in ("bag", "boot"):
        (tmp_path / name).mkdir()
        for k in range(3):
            Image.fromarray(np.full((28, 28), 40 * k, np.uint8)).save(tmp_path / name / f"{k}.png")
    result = train(dataset_from_folder(tmp_path), TrainOptions(epochs=1, batch_size=2), engine="cpu")
    assert result.model.classes[:3] == ("bag", "boot", "2")


def test_rows_and_signs_are_told(trained, mnist, tmp_path, capsys):
    labels = mnist.test_labels.tolist()
    images = [[mnist.test_images[labels.index(digit)] for digit in row] for row in ((3, 1, 4), (2, 7, 0))]
    sheet = np.pad(np.vstack([np.hstack(row) for row in images]), 20)
    file = tmp_path / "sheet.png"
    Image.fromarray(255 - np.kron(sheet, np.ones((2, 2), np.uint8))).save(file)
    argv = ["predict", str(file), "--model", str(trained), *CPU]
    first, *rows = prints(capsys, *argv).splitlines()
    assert first.startswith(f"{file}: 2 rows, least ")
    assert [line.split()[:2] for line in rows] == [["314", "least"], ["270", "least"]]
    (report,) = json.loads(prints(capsys, *argv, "--json"))["images"]
    assert (report["text"], report["rows"], report["doubt"]) == ("314\n270", ["314", "270"], "")
    assert [part["row"] for part in report["digits"]] == [0, 0, 0, 1, 1, 1]
    row = np.pad(np.hstack(images[0]), 20)
    row[42:45, 45:48] = 255
    Image.fromarray(255 - np.kron(row, np.ones((3, 3), np.uint8))).save(file)
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{file}: 314, least ")
    assert err == f"WARNING: {file}: 3: a point or comma on its right is left out\n"
    minus = np.pad(images[1][1], 20)
    minus[33:35, 8:18] = 255
    (tmp_path / "deep/er").mkdir(parents=True)
    Image.fromarray(255 - np.kron(minus, np.ones((3, 3), np.uint8))).save(tmp_path / "deep/er/minus.png")
    argv[1] = str(tmp_path / "deep/er/minus.png")
    assert cli.main(argv) == 0
    assert capsys.readouterr().err.endswith("minus.png: a stroke like a minus sign on its left is left out\n")
    argv[1] = str(tmp_path)
    table = [line.split() for line in prints(capsys, *argv).splitlines()]
    assert [row[:2] for row in table[1:]] == [[f"{tmp_path}/deep/er/minus.png", "7"], [str(file), "314"]]


def test_a_form_that_is_unknown_is_refused(trained, pictures, capsys):
    model = load_model(trained)
    save_model(pictures / "odd.safetensors", replace(model, metadata=model.metadata | {"form": "cubist"}))
    argv = ["predict", str(pictures / "0.png"), "--model", str(pictures / "odd.safetensors"), *CPU]
    assert cli.main(argv) == 6
    words = "its form is 'cubist', expected mnist or scaled: name one by --form\n"
    assert capsys.readouterr().err == f"mnist-cuda: error: {pictures}/odd.safetensors: {words}"
    assert cli.main([*argv, "--form", "mnist"]) == 0


@pytest.mark.parametrize("contrast", [0.06, 0.1, 0.2])
def test_low_contrast_alone_gives_no_warning(contrast, mnist, engine):
    for k in range(20):
        picture = (150 - 255 * contrast * of_mnist(mnist.test_images[k])(60)).astype(np.uint8)
        digit = as_mnist(np.pad(picture, 20, mode="edge"))
        assert (digit.doubt, digit.beside) == ("", "")
        assert predict(engine, digit.pixels[None]).classes[0] == mnist.test_labels[k] or k == 8
