"""Data by whatever name people have them: idx files, .npz, .csv, archives and pictures by class, found and checked."""

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_server import ARRAYS, GZIP, RAW, TEST, TRAIN, idx, tiny_files, write

from mnist_cuda import DataError, TrainOptions, UsageError, dataset_of, load_dataset, train
from mnist_cuda.cli import main
from mnist_cuda.data import catalogue
from mnist_cuda.data.file_roles import ROLES, role_of
from mnist_cuda.data.idx import MAX_ELEMENTS

pytestmark = pytest.mark.usefixtures("cache")

RNG = np.random.default_rng(8)
IMAGES, LABELS = RNG.integers(0, 256, (30, 28, 28), np.uint8), np.arange(30, dtype=np.uint8) % 5
MORE, THEIRS = RNG.integers(0, 256, (9, 28, 28), np.uint8), np.arange(9, dtype=np.uint8) % 5
KERAS = {"x_train": IMAGES, "y_train": LABELS, "x_test": MORE, "y_test": THEIRS}
HELD = "a fifth of each class, chosen by seed 0, is the test set"


def load(path, name="auto"):
    return load_dataset(name, data_dir=path)


def refused(path, name="auto"):
    """The one line that loading raises."""
    with pytest.raises(DataError) as caught:
        load(path, name)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def same(data, arrays=(IMAGES, LABELS, MORE, THEIRS)):
    for found, expected in zip(data.arrays, arrays, strict=True):
        np.testing.assert_array_equal(found, expected)
    return True


# ---- idx files -------------------------------------------------------------------------------------------------------


def names(style, test="t10k"):
    """The four files of the tiny data set in a way of writing their names."""
    return {style(name.replace("t10k", test)): content for name, content in RAW.items()}


STYLES = {
    "dots": names(lambda name: name.replace("-idx", ".idx")),
    "prefix": names(lambda name: f"emnist-digits-{name}", "test"),
    "zipped prefix": {f"emnist-mnist-{name}": content for name, content in GZIP.items()},
    "underscores": names(lambda name: name.replace("-", "_")),
    "capitals": names(str.upper),
    "folders": names(lambda name: f"{name}/{name}"),
    "folders with dots": names(lambda name: f"{name}/{name.replace('-idx', '.idx')}"),
    "short": names(lambda name: name.partition("-idx")[0]),
    "binary": names(lambda name: f"{name}.bin"),
}


def put(folder, files):
    for name, content in files.items():
        write((folder / name).parent, {Path(name).name: content})
    return folder


@pytest.mark.parametrize("requested", ["mnist", "auto", "own"])
@pytest.mark.parametrize("style", STYLES)
def test_the_names_under_which_people_have_the_files(tmp_path, style, requested):
    data = load(put(tmp_path / "d", STYLES[style]), requested)
    assert data.name == ("own" if requested == "own" else "mnist")
    assert b"".join(array.tobytes() for array in data.arrays) == ARRAYS


@pytest.mark.parametrize("place", ["", "train-images.idx3-ubyte/", "archive/deep/"])
def test_the_files_in_a_zip_archive(tmp_path, place):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**STYLES["dots"], "__MACOSX/._train-images.idx3-ubyte": b"?", ".DS_Store": b"?"}.items():
            archive.writestr(place * (name[0] not in "_.") + name, content)
    data = load(tmp_path / "a.zip")
    assert (data.name, data.source) == ("mnist", str(tmp_path / "a.zip"))


@pytest.mark.parametrize(
    "name",
    ["train_images.npy", "train-labels.csv", "train-images.png", "images-idx3-ubyte", "mytrain-images-idx3-ubyte.zip"],
)
def test_a_file_of_another_kind_has_no_role(name):
    assert role_of(name) is None


def test_of_several_names_for_one_file_the_rule_takes_one(tmp_path):
    """Gzip before unpacked, MNIST's own spelling before others; both are stated in docs/data.md."""
    write(tmp_path, {**GZIP, **dict.fromkeys(RAW, b"damaged")})
    assert load(tmp_path).hashes.keys() == GZIP.keys()
    plain = put(tmp_path / "plain", {**RAW, **dict.fromkeys(STYLES["dots"], b"damaged")})
    assert load(plain).hashes.keys() == RAW.keys()


def test_several_data_sets_in_a_folder_are_told_apart_by_name_or_not_at_all(tmp_path):
    other = {f"emnist-letters-{name}": content for name, content in tiny_files(1).items()}
    write(tmp_path, {**STYLES["prefix"], **other})
    example = f"such as {tmp_path / 'emnist-digits'}"
    assert refused(tmp_path).endswith(f"it holds several data sets, emnist-digits, emnist-letters: name one, {example}")
    data = load(tmp_path / "emnist-digits")
    assert (data.name, data.source) == ("mnist", str(tmp_path / "emnist-digits"))
    assert load(tmp_path / "emnist-letters").name == "own"
    assert refused(tmp_path / "emnist-x").endswith("there is no such file or folder")
    write(tmp_path, GZIP)  # MNIST's own names come first
    assert set(load(tmp_path).hashes) == set(GZIP)


def test_one_complete_data_set_beside_a_part_of_another(tmp_path):
    write(tmp_path, {**STYLES["prefix"], "emnist-letters-train-images-idx3-ubyte": RAW["train-images-idx3-ubyte"]})
    assert load(tmp_path).name == "mnist"


def test_the_programs_of_other_frameworks_know_the_names_too(tmp_path):
    """They run under another Python, which has no mnist_cuda."""
    import mnist_cuda

    folder = Path(mnist_cuda.__file__).parent / "peers"
    code = "import sys, pathlib, baseline; print([len(a) for a in baseline.read_files(pathlib.Path(sys.argv[1]))])"
    put(tmp_path / "d", STYLES["folders with dots"])
    command = [sys.executable, "-c", code, str(tmp_path / "d")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == f"[{TRAIN}, {TRAIN}, {TEST}, {TEST}]\n"
    (tmp_path / "d" / "train-labels-idx1-ubyte" / "train-labels.idx1-ubyte").unlink()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert "d: no file of train labels; it holds t10k-images-idx3-ubyte/, " in done.stderr


def test_the_labels_of_qmnist(tmp_path):
    """Eight 32-bit numbers for each image, the first of which is its class."""
    rows = np.zeros((30, 8), ">i4")
    rows[:, 0], rows[:, 1:] = LABELS, 77
    content = bytes((0, 0, 12, 2)) + (30).to_bytes(4, "big") + (8).to_bytes(4, "big") + rows.tobytes()
    files = {"qmnist-train-images-idx3-ubyte.gz": gzip.compress(idx(IMAGES))}
    files |= {"qmnist-train-labels-idx2-int.gz": gzip.compress(content)}
    files |= {"qmnist-test-images-idx3-ubyte": idx(IMAGES), "qmnist-test-labels-idx2-int": content}
    assert same(load(write(tmp_path, files)), (IMAGES, LABELS, IMAGES, LABELS))
    for wrong, message in [
        (content[:-1], "offset 971: expected 972 bytes for 30 x 8 integers"),
        (content + b"\0", "offset 972: expected 972 bytes"),
        (content[:12] + b"\0\0\0\x0a" + content[16:], "offset 12: expected a label below 10, found 10 (1 such labels)"),
        (content[:11] + b"\7" + content[12:], "offset 4: expected the header of QMNIST's labels, N x 8"),
        (content[:4] + b"\xff" * 4 + content[8:], "offset 4: expected the header of QMNIST's labels, N x 8"),
    ]:
        write(tmp_path, {"qmnist-test-labels-idx2-int": wrong})
        assert message in refused(tmp_path)


def test_a_wrong_number_of_labels_is_told_by_the_file_that_was_read(tmp_path):
    files = STYLES["prefix"] | {"emnist-digits-test-labels-idx1-ubyte": idx(np.zeros(TEST - 1, np.uint8))}
    write(tmp_path, files)
    assert refused(tmp_path) == (
        f"{tmp_path}/emnist-digits-test-labels-idx1-ubyte: offset 4: expected {TEST} labels, as many as "
        f"emnist-digits-test-images-idx3-ubyte has images, found {TEST - 1}"
    )


def test_one_of_four_files_is_not_enough(tmp_path):
    write(tmp_path, GZIP)
    assert refused(tmp_path / "train-images-idx3-ubyte.gz").endswith(
        "this is one of a data set's four files: name the folder that has all of them"
    )


def test_an_error_lists_what_is_there(tmp_path):
    assert refused(tmp_path).endswith("; it is empty")
    write(tmp_path / "odd", {"a\nb": b"", "c d": b"", "e": b""})
    assert refused(tmp_path / "odd").endswith("; it holds 'a\\nb', 'c d', e")
    tmp_path = write(tmp_path / "many", {f"file {k}.dat": b"" for k in range(12)})
    assert refused(tmp_path).endswith("; it holds 'file 0.dat', 'file 1.dat', 'file 10.dat', 'file 11.dat', "
                                      "'file 2.dat', 'file 3.dat', 'file 4.dat', 'file 5.dat' and 4 more")  # fmt: skip
    assert refused(tmp_path / "file 1.dat").endswith("ends in .npz, .csv, .tsv, .csv.gz or .zip")
    assert "expected the files of fashion-mnist (train-images" in refused(tmp_path, "fashion-mnist")


# ---- npz -------------------------------------------------------------------------------------------------------------


def npz(path, arrays, save=np.savez):
    save(path, **arrays)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "keys",
    [tuple(KERAS), ROLES, ("X_train", "Y_train", "X_test", "Y_test"), ("train_x", "train_y", "test_x", "test_y")],
)
def test_an_npz_file(tmp_path, save, keys):
    path = npz(tmp_path / "own.npz", dict(zip(keys, KERAS.values(), strict=True)), save)
    data = load(path)
    assert same(data)
    assert (data.name, data.source, data.read_as) == ("own", str(path), "npz")
    assert data.hashes == {"own.npz": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert same(load(tmp_path)), "the one in a folder"


@pytest.mark.parametrize(
    "images",
    [
        np.asfortranarray(IMAGES),
        IMAGES.astype(">i8"),
        IMAGES.astype(np.float32),
        IMAGES.reshape(30, 784),
        IMAGES[..., None],
    ],
)
@pytest.mark.parametrize(
    "labels", [LABELS.astype(np.int64), LABELS.astype(float), LABELS[:, None], LABELS.astype("U"), LABELS.astype("S")]
)
def test_npz_in_other_types_and_shapes(tmp_path, images, labels):
    assert same(load(npz(tmp_path / "a.npz", KERAS | {"x_train": images, "y_train": labels})))


def test_npz_without_test_images_holds_some_out(tmp_path):
    data = load(npz(tmp_path / "a.npz", {"images": IMAGES, "labels": LABELS}))
    assert data.read_as == f"npz: {HELD}"
    assert np.bincount(data.test_labels).tolist() == [1] * 5
    assert len(data.train_labels) == 25
    assert load(tmp_path / "a.npz").digest == data.digest


def with_member(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in KERAS.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{key}.npy", content if key == name else buffer.getvalue())
    return file.getvalue()


def header(text):
    text = text.ljust(118).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def array_header(kind, shape):
    return header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}")


class Trap:
    """What a pickle would call."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was run",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": None}, "expected the arrays x_train, y_train, x_test, y_test, found x_test, y_test, y_train"),
        ({"y_test": None}, "expected the arrays x_train, y_train, x_test, y_test, found x_test, x_train, y_train"),
        ({"x_train": IMAGES[:29]}, "there are 29 training images and 30 labels"),
        ({"x_train": IMAGES / 255}, "(255 * images).round().astype('uint8') makes them of values from 0 to 1"),
        ({"x_train": IMAGES > 128}, "makes them of values from 0 to 1"),
        ({"x_train": (IMAGES > 128).astype(np.uint8)}, "all pixels are 0 or 1, nearly black"),
        ({"x_train": IMAGES.astype(int) - 300}, "before they were normalised"),
        ({"x_train": np.full((30, 28, 28), 256)}, "a pixel is 256"),
        ({"x_train": np.full((30, 28, 28), np.nan)}, "a pixel is nan"),
        ({"x_train": IMAGES.astype(complex)}, "they have dtype complex128, expected uint8"),
        ({"x_train": IMAGES[:, :27]}, "they have shape (30, 27, 28), expected (N, 28, 28)"),
        ({"x_train": IMAGES[:0]}, "there are 0 training images"),
        ({"y_train": np.eye(5)[LABELS]}, "labels.argmax(1) makes them"),
        ({"y_train": LABELS + 0.5}, "training labels: label 0 is 0.5, expected 0 to 9"),
        ({"y_train": np.full(30, np.nan)}, "training labels: label 0 is nan, expected 0 to 9"),
        ({"y_train": LABELS + 6}, "training labels: label 4 is 10, expected 0 to 9"),
        ({"y_train": np.arange(30).astype("U") + "x"}, "there are 30 classes, expected at most 10"),
        ({"y_test": (THEIRS.astype("U") + "x")}, "test labels: label 0 is '0x', expected 0 to 9"),
        ({"y_train": np.array([Trap()] * 30)}, "y_train holds Python objects, which are not read"),
        ({"x_train": np.zeros(30, [("a", "u1")])}, "they have dtype [('a', 'u1')], expected uint8"),
    ],
)
def test_npz_of_another_content_is_refused_in_one_line(tmp_path, change, message):
    arrays = {key: value for key, value in (KERAS | change).items() if value is not None}
    path = npz(tmp_path / "a.npz", arrays)
    assert refused(path).startswith(f"{path}: ")
    assert message in refused(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a sound .npz file"),
        (b"<html>", "expected a sound .npz file"),
        (gzip.compress(b"x"), "expected a sound .npz file"),
        (with_member("x_train", b""), "x_train: expected a sound .npy header"),
        (with_member("x_train", b"\x93NUMPY\x09\x00"), "expected a sound .npy header, found version 9.0"),
        (with_member("x_train", array_header("|u1", (-1, 784))), "a negative size"),
        (with_member("x_train", array_header("|O", (30,))), "Python objects"),
        (with_member("x_train", array_header("|u1", (30, 784))), "expected 23520 bytes for its elements, found fewer"),
        (with_member("x_train", header("__import__('os').abort()")), "expected a sound .npy header"),
    ],
)  # fmt: skip
def test_a_damaged_npz_is_refused_in_one_line(tmp_path, content, message):
    path = write(tmp_path, {"a.npz": content}) / "a.npz"
    assert message in refused(path)


@pytest.mark.parametrize("shape", [(MAX_ELEMENTS // 784 + 1, 784), (2**62, 784), (10**30,)])
def test_an_npz_bomb_is_refused_before_it_is_unpacked(tmp_path, shape):
    bomb = with_member("x_train", array_header("|u1", shape) + bytes(64 << 20))
    path = write(tmp_path, {"a.npz": bomb}) / "a.npz"
    tracemalloc.start()
    assert f"x_train: expected at most {MAX_ELEMENTS} elements" in refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


# ---- csv -------------------------------------------------------------------------------------------------------------

HEAD = "label," + ",".join(f"pixel{k}" for k in range(784))


def rows(images=IMAGES, labels=LABELS, form="{:d}"):
    return [
        [str(label), *(form.format(int(pixel)) for pixel in image.ravel())]
        for image, label in zip(images, labels, strict=True)
    ]


def text(table=None, *, head="", separator=",", end="\n"):
    lines = ([head] if head else []) + [separator.join(row) for row in (table or rows())]
    return (end.join(lines) + end).encode()


CSVS = {
    "plain": text(),
    "header": text(head=HEAD),
    "no last line end": text(head=HEAD)[:-1],
    "windows": text(head=HEAD, end="\r\n"),
    "byte order mark": b"\xef\xbb\xbf" + text(head=HEAD),
    "semicolons": text(head=HEAD.replace(",", ";"), separator=";"),
    "tabs": text(separator="\t"),
    "commas and spaces": text(separator=", "),
    "spaces": text(rows(form="{:.18e}"), separator=" "),
    "bars": text(separator="|"),
    "decimal commas": text(separator=";").replace(b";", b",0;", 500),
    "old line ends": text(head=HEAD, end="\r"),
    "quotes": text([[f'"{cell}"' for cell in row] for row in rows()], head='"' + HEAD.replace(",", '","') + '"'),
    "floats": text(rows(form="{:.1f}"), head=HEAD),
    "exponents": text(rows(form="{:e}")),
    "zeros before": text(rows(form="{:05d}")),
    "float labels": text(rows(labels=LABELS.astype(float))),
    "empty lines": b"\n\n" + text(head=HEAD).replace(b"\n", b"\n\n") + b"\n \n",
    "numbered columns": text(head=",".join(map(str, range(785)))),
    "label and numbered pixels": text(head="label," + ",".join(map(str, range(784)))),
    "label last and numbered pixels": text(
        [[*row[1:], row[0]] for row in rows()], head=",".join([*map(str, range(1, 785)), "class"])
    ),
    "label last": text([[*row[1:], row[0]] for row in rows()], head=",".join([*HEAD.split(",")[1:], "class"])),
    "names of pixels": text(head=HEAD.replace("pixel", "x").replace("label", "Digit")),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("form", CSVS)
def test_two_tables(tmp_path, form, zipped):
    ending, pack = (".csv.gz", gzip.compress) if zipped else (".csv", bytes)
    write(tmp_path, {f"mnist_train{ending}": pack(CSVS[form]), f"mnist_test{ending}": pack(text(rows(MORE, THEIRS)))})
    data = load(tmp_path)
    assert same(data)
    assert (data.name, data.read_as) == ("own", "csv")
    assert set(data.hashes) == {f"mnist_train{ending}", f"mnist_test{ending}"}


HELD_OUT = [5, 12, 23, 24, 26]


def test_one_table_holds_test_images_out(tmp_path):
    path = write(tmp_path, {"digits.csv": CSVS["header"]}) / "digits.csv"
    data = load(path)
    assert data.read_as == f"csv: {HELD}"
    assert (len(data.train_labels), np.bincount(data.test_labels).tolist()) == (25, [1] * 5)
    numbers = {image.tobytes(): number for number, image in enumerate(IMAGES)}
    assert [numbers[image.tobytes()] for image in data.test_images] == HELD_OUT, "those of every version"
    everything = {image.tobytes(): label for image, label in zip(IMAGES, LABELS, strict=True)}
    for image, label in [*zip(*data.arrays[:2], strict=True), *zip(*data.arrays[2:], strict=True)]:
        assert everything.pop(image.tobytes()) == label
    assert load(tmp_path).digest == load(path, "own").digest == data.digest


def test_a_test_table_without_labels_is_not_used(tmp_path):
    """As in Kaggle's Digit Recognizer."""
    unlabelled = text([row[1:] for row in rows(MORE, THEIRS)], head=",".join(HEAD.split(",")[1:]))
    submission = b"ImageId,Label\n1,0\n"
    data = load(
        write(tmp_path, {"train.csv": CSVS["header"], "test.csv": unlabelled, "sample_submission.csv": submission})
    )
    assert data.read_as == f"csv, test.csv has no labels: {HELD}"
    assert (len(data.train_labels), list(data.hashes)) == (25, ["train.csv"])
    assert "without labels" in refused(tmp_path / "test.csv")


def test_tables_in_a_zip_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("data/mnist_train.csv", CSVS["header"])
        archive.writestr("data/mnist_test.csv", text(rows(MORE, THEIRS)))
    assert same(load(tmp_path / "archive.zip"))


def test_several_tables_are_refused(tmp_path):
    write(tmp_path, {"a.csv": CSVS["plain"], "b.csv": CSVS["plain"]})
    assert "it holds several tables, a.csv, b.csv: name one" in refused(tmp_path)
    write(tmp_path / "c", {f"{name}_{half}.csv": CSVS["plain"] for name in "xy" for half in ("train", "test")})
    assert f"it holds several data sets, x, y: name one, such as {tmp_path / 'c' / 'x'}" in refused(tmp_path / "c")
    assert len(load(tmp_path / "c" / "x").test_labels) == 30
    npz(tmp_path / "c" / "z.npz", KERAS)
    assert "it holds several files of data, z.npz, x_test.csv" in refused(tmp_path / "c")


def changed(row, column, cell):
    table = rows()
    table[row][column] = cell
    return text(table, head=HEAD)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found no line"),
        (b"\n\n", "found no line"),
        (HEAD.encode(), "found none"),
        (b"PK\x03\x04", "found another kind of file"),
        (bytes(2000), "found another kind of file"),
        (text().decode().encode("utf-16"), "a byte order mark of UTF-16: save it as UTF-8"),
        (b"<!DOCTYPE html>", "found what looks like a web page"),
        (b"a,b\n1,2\n", "line 1: expected 785 cells, a label and 784 pixels, found 2 cells separated by commas"),
        (text([["7", *row] for row in rows()], head="," + HEAD), "commas; leave the column of row numbers out"),
        (text([[*row, ""] for row in rows()]), "commas; leave the empty last column out"),
        (text(rows()[:7]) + b"1,2\n" + text(), "line 8: expected 785 cells, as in the first line, found 2"),
        (text(head=HEAD) + b"1,2\n", "line 32: expected 785 cells, as in the first line, found 2"),
        (text()[:-9], "line 30: expected 785 cells, as in the first line, found 78"),
        (text() + b"," * 784 + b"\n", "line 31: expected numbers, found an empty cell as pixel 0"),
        (text().replace(b",", b",x", 1), "line 1: expected numbers, found 'x"),
        (text().replace(b",", b",,", 1), "line 1: expected 785 cells, a label and 784 pixels, found 786"),
        (changed(3, 5, "x"), "line 5: expected numbers, found 'x' as pixel 4"),
        (changed(3, 5, "256"), "line 5: expected pixels that are whole numbers from 0 to 255, found 256"),
        (changed(3, 5, "1000"), "found 1000"),
        (changed(3, 5, "-1"), "found -1; give the pixels as they were before they were normalised"),
        (changed(3, 5, "nan"), "found nan"),
        (changed(3, 5, "1e400"), "found inf"),
        (changed(3, 5, "3.5"), "found 3.5"),
        (changed(3, 5, "1_0"), "found '1_0' as pixel 4"),
        (changed(3, 5, "9" * 70000), "line 5: expected pixels that are whole numbers from 0 to 255, found inf"),
        (changed(3, 5, '"1,2"'), "line 5: expected 785 cells, as in the first line, found 786"),
        (changed(3, 5, "é").decode().encode("latin-1"), "line 5: expected text in UTF-8, found other bytes"),
        (text(rows(IMAGES // 64, form="0.{:d}")), "found 0.3; multiply pixels from 0 to 1 by 255"),
        (text(rows(IMAGES // 128)), "all pixels are 0 or 1, nearly black"),
        (changed(3, 0, "10"), "labels: label 3 is 10, expected 0 to 9"),
        (changed(3, 0, "300"), "labels: label 3 is 300, expected 0 to 9"),
        (changed(3, 0, "1.5"), "labels: label 3 is 1.5, expected 0 to 9"),
        (changed(3, 0, ""), "labels: label 3 is '', expected a number or a class's name"),
        (text(rows()[:3]), "no class has two images, so none can be held out to test on"),
        (b"x" * (3 << 16), "a line of at most 65536 bytes"),
    ],
)  # fmt: skip
def test_a_damaged_table_is_refused_in_one_line(tmp_path, content, message):
    path = write(tmp_path, {"a.csv": content}) / "a.csv"
    assert refused(path).startswith(f"{path}: ")
    assert message in refused(path)


@pytest.mark.parametrize("content", [gzip.compress(CSVS["plain"])[:-9], b"\x1f\x8b!", CSVS["plain"], b""])
def test_a_damaged_gzip_table(tmp_path, content):
    path = write(tmp_path, {"a.csv.gz": content}) / "a.csv.gz"
    assert "expected sound packed data" in refused(path) or "found no line" in refused(path)


@pytest.mark.parametrize("line", [b"0", b"\n", CSVS["plain"].partition(b"\n")[0] + b"\n"])
def test_a_bomb_is_read_no_further_than_the_limit(tmp_path, monkeypatch, line):
    """A line without end, empty lines without end, rows without end."""
    from mnist_cuda.data import csv_data

    monkeypatch.setattr(csv_data, "_MOST_BYTES", 8 << 20)
    monkeypatch.setattr(csv_data, "MAX_ELEMENTS", 1000 * 784)
    path = write(tmp_path, {"a.csv.gz": gzip.compress(line * ((64 << 20) // len(line)), 1)}) / "a.csv.gz"
    tracemalloc.start()
    message = refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert any(part in message for part in ("a line of at most", "more than 8 MiB", "at most 1000 rows")), message
    assert peak < 16 << 20


def test_a_large_table_takes_no_more_than_three_times_its_arrays(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (6000, 784), np.uint8)
    path = tmp_path / "a.csv"
    np.savetxt(path, np.column_stack([np.arange(6000) % 10, images]), "%d", ",")
    tracemalloc.start()
    data = load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * sum(array.nbytes for array in data.arrays)
    assert len(data.train_labels) == 4800


# ---- classes with names ----------------------------------------------------------------------------------------------

NAMED = np.array(["cat", "dog", "eel", "fox", "gnu"])


@pytest.mark.parametrize("form", ["npz", "csv", "arrays"])
def test_classes_may_have_names(tmp_path, form):
    labels, theirs = NAMED[LABELS], NAMED[THEIRS]
    if form == "npz":
        data = load(npz(tmp_path / "a.npz", KERAS | {"y_train": labels, "y_test": theirs}))
    elif form == "csv":
        write(tmp_path, {"a-train.csv": text(rows(labels=labels)), "a-test.csv": text(rows(MORE, theirs))})
        data = load(tmp_path)
    else:
        data = dataset_of(IMAGES, labels.tolist(), MORE, theirs.astype(object))
    assert same(data)
    assert data.classes == tuple(NAMED.tolist())


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS.astype(np.float32),
        LABELS.astype("U"),
        [str(n) for n in LABELS],
        LABELS[:, None],
        [b"%d" % n for n in LABELS],
    ],
)
def test_labels_of_arrays_in_every_form(labels):
    data = dataset_of(IMAGES, labels, MORE, THEIRS)
    assert same(data)
    assert data.classes == ()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([*LABELS[:29], "x"], object), "label 29 is 'x' and label 0 is no text, expected labels of one kind"),
        ([None] * 30, "label 0 is 'None', expected a number or a class's name"),
        (
            np.array(["a"] * 29 + [float("nan")], object),
            "label 29 is 'nan' and label 0 is text, expected labels of one kind",
        ),
        (["a"] * 29 + [" "], "label 29 is ' ', expected a number or a class's name"),
        (LABELS - 0.1, "training labels: label 0 is -0.1, expected 0 to 9"),
        (NAMED[LABELS], "test labels: label 0 is 0, expected cat, dog, eel, fox, gnu"),
        (np.zeros((30, 2)), r"labels.argmax\(1\) makes them"),
    ],
)
def test_labels_that_are_none_are_refused(labels, message):
    with pytest.raises(DataError, match=message):
        dataset_of(IMAGES, labels, MORE, THEIRS)


def test_a_class_that_only_the_test_images_have_is_refused():
    with pytest.raises(DataError, match="test labels: label 2 is 'hen', expected cat, dog, eel, fox, gnu"):
        dataset_of(IMAGES, NAMED[LABELS], MORE[:3], ["cat", "dog", "hen"])


# ---- known by their content ------------------------------------------------------------------------------------------


@pytest.fixture
def arrays():
    images = {half: np.frombuffer(RAW[f"{half}-images-idx3-ubyte"], np.uint8, offset=16) for half in ("train", "t10k")}
    labels = {half: np.frombuffer(RAW[f"{half}-labels-idx1-ubyte"], np.uint8, offset=8) for half in ("train", "t10k")}
    shaped = {half: images[half].reshape(-1, 28, 28) for half in images}
    return {"x_train": shaped["train"], "y_train": labels["train"], "x_test": shaped["t10k"], "y_test": labels["t10k"]}


@pytest.mark.parametrize("requested", ["auto", "mnist"])
def test_a_published_data_set_is_known_in_any_form(tmp_path, arrays, requested):
    path = npz(tmp_path / "mnist.npz", arrays)
    data = load(path, requested)
    assert (data.name, data.requested, data.source) == ("mnist", requested, str(path))
    x, y = (np.concatenate([arrays[f"{what}_{half}"] for half in ("train", "test")]) for what in "xy")
    one = load(write(tmp_path / "one", {"mnist_784.csv": text(rows(x, y))}), requested)
    assert one.digest == data.digest, "both halves in one table, in their order"
    assert one.read_as == f"csv, in mnist's order: the first {TRAIN} are to train on"
    assert load(path, "own").name == "own"


def test_another_data_set_is_refused_by_its_name(tmp_path, arrays):
    path = npz(tmp_path / "mnist.npz", arrays)
    own = "; --dataset own takes files of your own as they are"
    are = "these are the arrays of mnist"
    assert refused(path, "fashion-mnist") == f"{path}: {are}, expected fashion-mnist{own}"
    npz(path, KERAS)
    assert refused(path, "mnist") == f"{path}: its arrays are not those of the published files, expected mnist{own}"
    assert "no hash of kmnist's arrays is known, expected its four files" in refused(path, "kmnist")


def test_kmnist_is_in_the_catalogue():
    info = catalogue.DATASETS["kmnist"]
    assert [file.size for file in info.files] == [18165135, 29497, 3041136, 5120]
    assert "not tried" in info.summary
    assert len({file.sha256 for known in catalogue.DATASETS.values() for file in known.files}) == 12


def test_a_repacked_file_in_the_cache_is_not_called_damaged(cache, monkeypatch):
    from dataclasses import replace

    info = catalogue.DATASETS["mnist"]
    files = {name: replace(getattr(info, name), raw_sha256=None) for name in ("train_images", "train_labels")}
    monkeypatch.setitem(catalogue.DATASETS, "mnist", replace(info, **files))
    write(cache, {name: gzip.compress(RAW[name[:-3]], 1) for name in GZIP})
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is another than the published file \("):
        load_dataset("mnist", offline=True)
    write(cache, {"train-images-idx3-ubyte.gz": GZIP["train-images-idx3-ubyte.gz"][:-1]})
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged \("):
        load_dataset("mnist", offline=True)


# ---- pictures by class -----------------------------------------------------------------------------------------------


def pictures(folder):
    image_of = pytest.importorskip("PIL.Image").fromarray
    for k, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        place = folder / NAMED[label]
        place.mkdir(parents=True, exist_ok=True)
        image_of(image).save(place / f"{k}.png")
    return folder


def test_a_folder_of_pictures_by_class(tmp_path):
    data = load(pictures(tmp_path / "p"))
    assert (data.name, data.requested, data.source) == ("own", "auto", str(tmp_path / "p"))
    assert data.classes == tuple(NAMED.tolist())
    assert data.read_as
    for half in ("train", "test"):
        pictures(tmp_path / "q" / half)
    assert len(load(tmp_path / "q").test_labels) == 30
    assert "; it holds cat/, dog/, eel/, fox/, gnu/" in refused(tmp_path / "p", "mnist") or "expected mnist" in refused(
        tmp_path / "p", "mnist"
    )
    assert "put the pictures of each class into a folder of its own" in refused(tmp_path / "p" / "cat")


# ---- runs find their data --------------------------------------------------------------------------------------------

OPTIONS = ["--engine", "cpu", "--epochs", "1", "--batch-size", "8", "--quiet"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "own.npz", KERAS)
    write(tmp_path / "tables", {"train.csv": CSVS["header"], "test.csv": text(rows(MORE, THEIRS))})
    return tmp_path


def fails(capsys, *argv, code=3):
    capsys.readouterr()
    assert main([str(word) for word in argv]) == code
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("mnist-cuda: error: ")
    return err[-1].removeprefix("mnist-cuda: error: ")


@pytest.mark.parametrize("source", ["own.npz", "tables"])
def test_every_command_finds_the_data_of_a_run(here, capsys, monkeypatch, source):
    assert main(["train", "-d", source, *OPTIONS, "--out", "runs/a"]) == 0
    facts = json.loads((here / "runs/a/config.json").read_text())
    assert (facts["data"]["source"], facts["options"]["data_dir"]) == (source, str(here / source))
    assert facts["data"]["read_as"] == {"own.npz": "npz", "tables": "csv"}[source]
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    for argv in (
        ["evaluate", "../runs/a"],
        ["train", "--config", "../runs/a", "--out", "b", "--quiet"],
        ["train", "--resume", "../runs/a", "--epochs", "2", "--quiet"],
        ["report", "../runs/a", "--text", "--no-profile"],
        ["evaluate", "b", "-d", f"../{source}"],
        ["data", "show", "0", "-d", f"../{source}"],
        ["sweep", "-d", f"../{source}", *OPTIONS, "--out", "s"],
    ):
        assert main(argv) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "not those of the run" not in out
    assert "Confusion matrix" in out
    (here / source).rename(here / "moved")
    gone = f"{here / source}, which the training run read, is gone: name where its data are now by --data-dir"
    assert fails(capsys, "evaluate", "../runs/a") == gone
    gone = f"{here / source}, from which {{}} read its data, is gone: name where they are now by --data-dir"
    for flag in ("--resume", "--config"):
        assert fails(capsys, "train", flag, "../runs/a", "--epochs", "3") == gone.format("../runs/a")
    if source == "tables":
        assert main(["train", "--resume", "../runs/a", "--epochs", "3", "-d", "../moved"]) == 0
        npz(here / "own.npz", KERAS | {"y_test": THEIRS[::-1]})
        other = fails(capsys, "train", "--resume", "../runs/a", "--epochs", "4", "-d", "../own.npz")
        assert "own.npz are not the data of ../runs/a: the test images differ; expected digest" in other


def test_data_that_were_changed_since_are_told_of(here, capsys):
    assert main(["train", "-d", "own.npz", *OPTIONS, "--out", "runs/a"]) == 0
    npz(here / "own.npz", KERAS | {"x_train": IMAGES[::-1]})
    assert main(["evaluate", "runs/a"]) == 0
    assert f"the training images in {here / 'own.npz'} are not those that the run had" in capsys.readouterr().out
    assert main(["report", "runs/a", "--text", "--no-profile"]) == 0
    assert "not those of the run" not in capsys.readouterr().out
    npz(here / "own.npz", KERAS | {"x_test": MORE[::-1]})
    assert main(["report", "runs/a", "--text", "--no-profile"]) == 0
    assert "of own, which are not those of the run, are wrong" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mine", "own"])
def test_a_run_of_arrays_says_that_they_are_not_on_disk(here, capsys, name):
    data = dataset_of(IMAGES, LABELS, MORE, THEIRS, name=name)
    train(data, TrainOptions(epochs=1, batch_size=8), engine="cpu", out="runs/a", progress=False)
    words = f"was trained from Python on arrays ('{name}'), which are not on disk: name a file or folder that holds the"
    for argv in (
        ["evaluate", "runs/a"],
        ["train", "--config", "runs/a", "--quiet"],
        ["train", "--resume", "runs/a", "--epochs", "2", "--quiet"],
    ):
        assert fails(capsys, *argv) == f"runs/a: {words} same by --data-dir"
    capsys.readouterr()
    assert main(["report", "runs/a", "--text", "--no-profile"]) == 0
    assert words in capsys.readouterr().out
    for argv in (
        ["evaluate", "runs/a", "-d", "own.npz"],
        ["report", "runs/a", "-d", "own.npz", "--text", "--no-profile"],
        ["train", "--config", "runs/a", "-d", "own.npz", "--out", "b", "--quiet"],
        ["train", "--resume", "runs/a", "--epochs", "2", "-d", "own.npz", "--quiet"],
    ):
        assert main(argv) == 0, capsys.readouterr().err
    assert "Confusion matrix" in capsys.readouterr().out


def test_arrays_with_the_name_of_a_published_data_set_are_compared_with_it(here, cache, capsys):
    write(cache, GZIP)
    same = load_dataset("mnist").arrays
    for arrays, differ in ((same, False), ((IMAGES, LABELS, *same[2:]), True)):
        folder = f"runs/{differ}"
        options = TrainOptions(epochs=1, batch_size=8)
        train(dataset_of(*arrays, name="mnist"), options, engine="cpu", out=folder, progress=False)
        assert main(["evaluate", folder]) == 0
        words = f"the training images in {cache} are not those that the run had\n"
        assert (words in capsys.readouterr().out) == differ


def test_a_run_from_python_on_files_is_found(here, capsys):
    data = load_dataset(data_dir="own.npz")
    train(data, TrainOptions(epochs=1, batch_size=8), engine="cpu", out="runs/a", progress=False)
    assert main(["evaluate", "runs/a"]) == 0
    train(load_dataset(data_dir="own.npz").first(20), TrainOptions(epochs=1, batch_size=8), engine="cpu", out="runs/b")
    assert main(["train", "--resume", "runs/b", "--epochs", "2", "--quiet"]) == 0
    assert json.loads((here / "runs/b/config.json").read_text())["options"]["limit"] == 20


# ---- --limit ---------------------------------------------------------------------------------------------------------


def test_a_limit_makes_nobody_say_that_the_data_are_others(here, capsys):
    assert main(["train", "-d", "own.npz", *OPTIONS, "--limit", "20", "--out", "runs/a"]) == 0
    assert main(["report", "runs/a", "--text", "--no-profile"]) == 0
    assert "not those of the run" not in capsys.readouterr().out
    assert main(["evaluate", "runs/a"]) == 0
    assert "are not those that the run had" not in capsys.readouterr().out
    for limit in ("19", "0"):
        message = fails(capsys, "train", "--resume", "runs/a", "--epochs", "2", "--limit", limit, code=2)
        assert message.startswith(f"--limit is {limit}, and runs/a was begun with 20: that would change its result")
    assert main(["train", "--resume", "runs/a", "--epochs", "2", "--limit", "20", "--quiet"]) == 0
    assert main(["train", "--config", "runs/a", "--limit", "16", "--out", "b", "--quiet"]) == 0
    npz(here / "own.npz", KERAS | {"x_train": IMAGES[::-1]})
    assert "the training images differ" in fails(capsys, "train", "--config", "runs/a", "--limit", "16", "--out", "c")


def test_a_run_of_an_older_version_goes_on(here, capsys):
    """Its config.json has neither the limit nor digests of the parts, its checkpoint no limit."""
    assert main(["train", "-d", "own.npz", *OPTIONS, "--out", "runs/a"]) == 0
    config = json.loads((here / "runs/a/config.json").read_text())
    del config["options"]["limit"], config["data"]["train_digest"], config["data"]["test_digest"]
    (here / "runs/a/config.json").write_text(json.dumps(config))
    assert main(["train", "--resume", "runs/a", "--epochs", "2", "--quiet"]) == 0
    assert main(["evaluate", "runs/a"]) == 0


def test_a_sweep_has_a_limit(here, capsys):
    assert main(["sweep", "-d", "own.npz", *OPTIONS, "--limit", "16", "--out", "s"]) == 0
    facts = json.loads((here / "s/config.json").read_text())
    assert (facts["data"]["training_images"], facts["sweep"]["limit"]) == (16, 16)
    assert main(["sweep", "--resume", "s"]) == 0
    assert fails(capsys, "sweep", "--resume", "s", "--limit", "8", code=2).startswith("--limit: a sweep that goes on")
    assert "there are 30 training images" in fails(capsys, "sweep", "-d", "own.npz", "--limit", "31", code=2)


def test_own_data_without_a_path(tmp_path):
    with pytest.raises(UsageError, match="data set 'own' is data of your own: name their file or folder by --data-dir"):
        load_dataset("own")
