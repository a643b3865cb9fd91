"""The idx parser: every fault of a file is one line with its place; nothing else passes."""

import gzip
import tracemalloc

import numpy as np
import pytest
from data_server import idx

from mnist_cuda.data.idx import MAX_ELEMENTS, check_pair, parse_images, parse_labels
from mnist_cuda.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 28, 28), np.uint8)
DIGITS = np.array([3, 9], np.uint8)
IMAGES, LABELS = idx(PIXELS), idx(DIGITS)


def fault(content, name="file", parse=parse_images):
    """The message of the DataError that parsing must raise, checked for what every message has."""
    with pytest.raises(DataError) as caught:
        parse(content, name)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for part in ("offset ", "expected ", "found "):
        assert part in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("pack", [lambda b: (b, "file"), lambda b: (gzip.compress(b), "file.gz")], ids=["raw", "gz"])
def test_reads_images_and_labels(pack):
    images = parse_images(*pack(IMAGES))
    assert images.dtype == np.uint8
    assert not images.flags.writeable
    np.testing.assert_array_equal(images, PIXELS)
    labels = parse_labels(*pack(LABELS))
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, DIGITS)


@pytest.mark.parametrize(("content", "parse", "header"), [(IMAGES, parse_images, 16), (LABELS, parse_labels, 8)])
def test_every_wrong_header_byte_is_a_fault(content, parse, header):
    for offset in range(header):
        for value in range(256):
            if value != content[offset]:
                changed = content[:offset] + bytes((value,)) + content[offset + 1 :]
                message = fault(changed, parse=parse)
                if offset < 4:
                    assert f"offset {offset}: " in message


@pytest.mark.parametrize("name", ["file", "file.gz"])
@pytest.mark.parametrize(("content", "parse"), [(IMAGES, parse_images), (LABELS, parse_labels)])
def test_truncation_at_every_byte_is_a_fault(name, content, parse):
    whole = gzip.compress(content) if name.endswith(".gz") else content
    parse(whole, name)
    for size in range(len(whole)):
        message = fault(whole[:size], name, parse)
        assert f"offset {size}: " in message or size < 2


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_trailing_bytes_are_a_fault(name):
    whole = gzip.compress(IMAGES) if name.endswith(".gz") else IMAGES
    for surplus in (b"\0", b"x" * 1000, whole, bytes(1 << 17)):
        assert f"offset {len(whole)}: expected the end of the file" in fault(whole + surplus, name)
    if name.endswith(".gz"):
        assert f"unpacked offset {len(IMAGES)}" in fault(gzip.compress(IMAGES + b"x"), name)


def test_messages_name_what_was_expected_and_found():
    assert fault(b"") == "file: offset 0: expected a header of 16 bytes, found the end of the file"
    assert fault(b"", "a.gz") == "a.gz: offset 0: expected a gzip file (1f 8b), found an empty file"
    page = b"<!DOCTYPE html><html><title>404</title></html>"
    assert fault(page, "a.gz") == (
        "a.gz: offset 0: expected a gzip file (1f 8b), found 3c 21 (it looks like a web page)"
    )
    assert "(it looks like a web page)" in fault(page)
    assert "does the name lack .gz?" in fault(gzip.compress(IMAGES))
    assert (
        fault(IMAGES[:100])
        == "file: offset 100: expected 1584 bytes for 2 x 28 x 28 elements, found the end of the file"
    )
    assert fault(LABELS) == "file: offset 3: expected 03 dimensions, found 01"
    assert fault(idx(np.zeros((1, 27, 28), np.uint8))) == "file: offset 8: expected rows = 28, found 27"
    assert fault(idx(np.zeros((1, 28, 29), np.uint8))) == "file: offset 12: expected columns = 28, found 29"
    assert fault(idx(np.zeros((0, 28, 28), np.uint8))) == "file: offset 4: expected at least one element, found 0"


def test_labels_above_nine_are_a_fault():
    for place in range(3):
        for value in range(10, 256):
            digits = np.zeros(3, np.uint8)
            digits[place] = value
            message = fault(idx(digits), parse=parse_labels)
            assert message == f"file: offset {8 + place}: expected a label below 10, found {value} (1 such labels)"


def test_counts_of_images_and_labels_must_agree():
    check_pair(PIXELS, "images", DIGITS, "labels")
    with pytest.raises(DataError, match="labels: offset 4: expected 2 labels, as many as images has images, found 1"):
        check_pair(PIXELS, "images", DIGITS[:1], "labels")


@pytest.mark.parametrize("count", [2**32 - 1, 2**31, MAX_ELEMENTS // 784 + 1])
def test_a_product_that_overflows_is_a_fault(count):
    header = IMAGES[:4] + count.to_bytes(4, "big") + IMAGES[8:]
    message = fault(header)
    assert f"expected at most {MAX_ELEMENTS} elements, found {count} x 28 x 28 = {count * 784}" in message


def test_a_gzip_bomb_is_unpacked_no_further_than_announced():
    bomb = gzip.compress(IMAGES + bytes(64 << 20), 1)
    huge = gzip.compress(IMAGES[:4] + b"\xff" * 4 + IMAGES[8:] + bytes(64 << 20), 1)
    tracemalloc.start()
    assert f"unpacked offset {len(IMAGES)}" in fault(bomb, "bomb.gz")
    fault(huge, "huge.gz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
