"""Picture files of every mode, and those that are hostile or none: one line, never a traceback."""

import builtins
import io
import os
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image
from tiny import said

from mnist_cuda.data.digit import as_mnist
from mnist_cuda.data.picture_file import picture_files, read_picture
from mnist_cuda.errors import DataError

SEVEN = np.zeros((60, 40), np.uint8)  # a 7: what is turned or mirrored is another picture
SEVEN[10:16, 8:32] = 255
for row in range(16, 52):
    SEVEN[row, 30 - row // 3 : 35 - row // 3] = 255

EXPECTED = as_mnist(SEVEN).pixels.astype(int)


def difference(pixels):
    """Mean difference from EXPECTED; the centre of mass may be nearest to a pixel beside."""
    moved = (np.roll(pixels, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1))
    return min(np.abs(image - EXPECTED).mean() for image in moved)


def palette(transparent):
    image = Image.fromarray(SEVEN // 255, "L").convert("P")
    image.putpalette([10, 10, 10, 240, 240, 240])
    return image, ({"transparency": transparent} if transparent is not None else {})


def modes():
    grey = Image.fromarray(SEVEN)
    exif = Image.Exif()
    exif[0x0112] = 6  # held upright: the pixels lie on their left side
    turned = grey.transpose(Image.Transpose.ROTATE_90)
    yield "L.png", grey, {}
    yield "1.png", grey.convert("1"), {}
    yield "LA.png", grey.convert("LA"), {}
    yield "RGB.png", grey.convert("RGB"), {}
    yield "RGBA.png", grey.convert("RGBA"), {}
    yield "P.png", *palette(None)
    yield "P-transparent-paper.png", *palette(0)
    yield "P-alphas.png", *palette(bytes([0, 255]))
    yield "L-transparent-paper.png", grey, {"transparency": 0}
    yield "16.png", Image.fromarray(SEVEN.astype(np.uint16) * 200), {}
    yield "16-big-endian.tif", Image.fromarray((SEVEN.astype(np.uint16) * 200).astype(">u2")), {}
    yield "I.tif", Image.fromarray(SEVEN.astype(np.int32) * 1000 - 7), {}
    yield "F.tif", Image.fromarray(SEVEN.astype(np.float32) * -3), {}
    yield "CMYK.tif", grey.convert("RGB").convert("CMYK"), {}
    yield "CMYK.jpg", grey.convert("RGB").convert("CMYK"), {"quality": 95}
    yield "L.jpg", grey, {"quality": 95}
    yield "YCbCr.jpg", grey.convert("RGB"), {"quality": 95}
    yield "EXIF.jpg", turned, {"quality": 95, "exif": exif}
    yield "EXIF.png", turned, {"exif": exif}
    yield "LAB.tif", Image.merge("LAB", [grey, Image.new("L", grey.size, 128), Image.new("L", grey.size, 128)]), {}
    yield "L.gif", grey, {}
    yield "animated.gif", grey, {"save_all": True, "append_images": [Image.new("L", grey.size)] * 3}
    yield "animated.png", grey, {"save_all": True, "append_images": [Image.new("L", grey.size)] * 3}
    yield "pages.tif", grey, {"save_all": True, "append_images": [Image.new("L", grey.size)] * 3}
    yield "L.bmp", grey, {}
    yield "L.pgm", grey, {}
    yield "bits.pbm", grey.convert("1"), {}
    yield "RGB.webp", grey.convert("RGB"), {"lossless": True}


@pytest.mark.parametrize(("name", "image", "options"), [pytest.param(*mode, id=mode[0]) for mode in modes()])
def test_the_same_digit_in_every_mode(tmp_path, name, image, options):
    image.save(tmp_path / name, **options)
    digit = as_mnist(read_picture(tmp_path / name))
    assert difference(digit.pixels) <= (6 if name.endswith(".jpg") else 1)
    assert digit.doubt == ""


def png(width, height, *chunks):
    """A PNG file of 8 bits grey that claims a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    body = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def saved(kind, array=SEVEN, **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


HOSTILE = {
    "empty": (b"", "not a picture"),
    "text": (b"hello", "not a picture"),
    "zeros": (bytes(10_000), "not a picture"),
    "html": (b"<!DOCTYPE html><html></html>", "not a picture"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not a picture"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture"),
    "header-only": (b"\x89PNG\r\n\x1a\n", "not a picture"),
    "bomb": (png(60_000, 60_000, (b"IDAT", zlib.compress(b""))), "more than 100000000 pixels, reduce it or cut"),
    "over-our-limit": (png(10_000, 10_001), "more than 100000000 pixels"),
    "bomb-of-2-31": (png(2**31 - 1, 2**31 - 1), "more than 100000000 pixels"),
    "nan": (saved("tiff", np.full((9, 9), np.nan, np.float32)), "not all of its values are finite"),
    "no-pixels": (png(20, 20), "cannot be read as a picture"),
    "zero-size": (png(0, 0, (b"IDAT", zlib.compress(b""))), "picture"),
    "short": (png(200, 200, (b"IDAT", zlib.compress(b"\0" * 50))), "cannot be read as a picture"),
    "garbage-inside": (png(20, 20, (b"IDAT", b"garbage")), "cannot be read as a picture"),
    "text-bomb": (png(9, 9, (b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 28)))), "cannot be read as a picture"),
    **{f"truncated.{kind}": (saved(kind)[:-60], "picture") for kind in ("png", "jpeg", "gif", "tiff", "webp", "bmp")},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_takes_one_line(tmp_path, name):
    content, words = HOSTILE[name]
    path = tmp_path / "file.png"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_picture(path)
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_large_photo_is_read(tmp_path):
    large = np.kron(SEVEN, np.ones((60, 60), np.uint8))  # 3600 x 2400
    for name in ("large.jpg", "large.png"):
        Image.fromarray(large).save(tmp_path / name)
        assert difference(as_mnist(read_picture(tmp_path / name)).pixels) <= 6


def test_paths_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    for name, words in (("pipe.png", "not a regular file"), ("gone.png", "No such file"), ("loop.png", "symbolic")):
        with pytest.raises(DataError, match=words):
            read_picture(tmp_path / name)


def test_the_pictures_of_a_folder(tmp_path):
    for name in ("b.PNG", "a.jpeg", ".hidden.png", "notes.txt", "c.tif"):
        (tmp_path / name).touch()
    assert [path.name for path in picture_files(tmp_path)] == ["a.jpeg", "b.PNG", "c.tif"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no picture in this folder, expected files that end in \.png, "):
        picture_files(tmp_path / "empty")


def test_without_pillow_the_remedy_is_named(monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "PIL":
            raise ImportError("No module named 'PIL'", name="PIL")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    code, out, err = said(capsys, "predict", "digit.png")
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert f"run `{sys.executable} -m pip install pillow`" in err
