"""The pictures of docs/guide/: SVG 400 units wide, legible on a phone and in dark mode, each with its words.

Places in memory come from the emulator's records: the bytes that the lanes of a warp asked for. Banks and sectors
follow from them by the rules of docs/emulator.md.
"""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from checks.trace import PHASES, WAITED, WITH_FC
from pages.records import ROOT

from mnist_cuda.judge.access_picture import SECTOR_LEGEND, Picture, draw_banks, draw_sectors, sectors_of

Report = Mapping[str, Any]


def line_of(report: Report, array: str, write: bool = False) -> Mapping[str, Any]:
    """The line of a report that loads an array, or stores to it."""
    (line,) = (line for line in report["lines"] if line["array"] == array and line["write"] == write)
    found: Mapping[str, Any] = line
    return found


# ---- chapter 0 -------------------------------------------------------------------------------------------------------


def paths() -> Picture:
    """What a machine can do, by its GPU."""
    parts = {"chapters 1 to 12": ("chapters", "1 to 12"), "tensor cores": ("tensor cores", "chapter 13"),
             "Hopper's kernels": ("Hopper", "chapter 14")}  # fmt: skip
    machines = {  # how far: 2 with times, 1 in the emulator, 0 on paper
        "no GPU": (1, 1, 0),
        "T4, RTX 20, GTX 16": (2, 1, 0),
        "A100, B200, L4, RTX 30+": (2, 2, 0),
        "H100, H200": (2, 2, 2),
    }
    how = ("on paper", "in the emulator", "with times")
    said = "; ".join(
        f"{machine}: " + ", ".join(f"{part} {how[each]}" for part, each in zip(parts, far, strict=True))
        for machine, far in machines.items()
    )
    picture = Picture("What you can do, by your GPU", f"{said}.")
    for k, lines in enumerate(parts.values()):
        for line, words in enumerate(lines):
            picture.text(205 + 75 * k, 14 + 14 * line, words, "s c")
    for row, (machine, far) in enumerate(machines.items()):
        y = 38 + 32 * row
        picture.text(8, y + 16, machine)
        for k, each in enumerate(far):
            picture.box(172 + 75 * k, y, 66, 24, ("off", "half", "on")[each])
    picture.text(8, 182, "full: with times; pale: in the emulator; dashed: on paper", "s")
    return picture


# ---- chapter 1 -------------------------------------------------------------------------------------------------------


def layers() -> list[tuple[str, int, int]]:
    """What makes an image's values; their channels and side, by native/include/mnist/model.h."""
    text = (ROOT / "native" / "include" / "mnist" / "model.h").read_text()
    of = {name: int(value) for name, value in re.findall(r"\bk(\w+) = (\d+);", text)}
    return [
        ("image", 1, of["ImageSide"]),
        ("conv1", of["Conv1Channels"], of["ImageSide"]),
        ("bn1, ReLU, pooling", of["Conv1Channels"], of["Pool1Side"]),
        ("conv2", of["Conv2Channels"], of["Pool1Side"]),
        ("bn2, ReLU, pooling", of["Conv2Channels"], of["Pool2Side"]),
        ("fc1, ReLU", of["Hidden"], 1),
        ("fc2, log-softmax", of["Classes"], 1),
    ]


def network() -> Picture:
    """The shapes of an image's values."""
    made = layers()
    shapes = [f"{c} x {s} x {s}" if s > 1 else f"{c}" for _, c, s in made]
    listed = "; ".join(f"{name}: {shape}" for (name, _, _), shape in zip(made, shapes, strict=True))
    most = max(channels * side * side for _, channels, side in made)
    picture = Picture("The network, from 28 x 28 pixels to 10 log-probabilities", f"Values per image: {listed}.")
    y = 16.0
    picture.text(8, y, "one image's values", "s")
    picture.text(392, y, "numbers", "s e")
    for (name, channels, side), shape in zip(made, shapes, strict=True):
        y += 12
        picture.text(8, y + 14, name, "b")
        picture.box(234, y + 2, max(1.5, 108 * channels * side * side / most), 16, "half")
        picture.text(150, y + 14, shape, "s")
        picture.text(392, y + 14, f"{channels * side * side:,}", "e")
        y += 18
    return picture


# ---- chapter 2 -------------------------------------------------------------------------------------------------------


def threads(count: int = 600, block: int = 256) -> Picture:
    """Blocks of threads over an array whose end lies within a block."""
    blocks = -(-count // block)
    idle = blocks * block - count
    picture = Picture(
        f"{blocks} blocks of {block} threads over {count} elements",
        f"{blocks} blocks of {block} threads for an array of {count} elements: {blocks * block} threads. "
        f"Of the last block, {block - idle} threads have an element: two warps whole, 24 lanes of the third. "
        f"The other {idle} threads return at once.",
    )
    for b in range(blocks):
        y = 26 + 50 * b
        picture.text(8, y - 8, f"block {b}: k = {b * block} ... {(b + 1) * block - 1}", "s")
        for warp in range(block // 32):
            first = b * block + 32 * warp
            busy = min(32, max(0, count - first))
            x = 8 + 48 * warp
            picture.box(x, y, 46, 20, "off")
            if busy:
                picture.box(x, y, 46 * busy / 32, 20, "on" if busy == 32 else "half")
    y = 26 + 50 * blocks
    picture.text(8, y - 4, f"element {count - 1} is the last: {idle} threads have none", "s")
    picture.text(8, y + 14, "a box: a warp; pale: some of its lanes; dashed: no element", "s")
    return picture


def wide_loads(emulated: Mapping[tuple[str, str], Report]) -> Picture:
    """How relu's two kernels read x: the sectors of a warp's load."""
    lines = {name: line_of(emulated["relu", name], "x") for name in ("naive", "float4")}
    parts = []
    for name, line in lines.items():
        parts.append(f"{name}: a load brings {line['bytes']} bytes per lane, {len(sectors_of(line))} sectors of a warp")
    picture = Picture("What a warp of relu reads in one instruction", "; ".join(parts) + "; all bytes are used.")
    y = 20.0
    for name, line in lines.items():
        sectors = sectors_of(line)
        picture.text(8, y, name, "b")
        picture.text(64, y, f"32 lanes x {line['bytes']} bytes = {len(sectors)} sectors of 32 bytes", "s")
        draw_sectors(picture, 8, y + 8, sectors, line)
        y += 52
    picture.text(8, y - 4, SECTOR_LEGEND, "s")
    return picture


# ---- chapter 3 -------------------------------------------------------------------------------------------------------


def sectors(emulated: Mapping[tuple[str, str], Report]) -> Picture:
    """Where the lanes of a warp read w, in linear's first two kernels."""
    lines = {name: line_of(emulated["linear", name], "w") for name in ("naive", "coalesced")}
    said = {}
    for name, line in lines.items():
        first, second = line["first"][:2]
        count = len(sectors_of(line))
        used = 100 * 32 * line["bytes"] / (32 * count)
        said[name] = f"lanes {second - first:,} bytes apart: {count} sectors, {used:g} % of their bytes used"
    words = "; ".join(f"{name}: {text}" for name, text in said.items())
    picture = Picture("The sectors of w that a warp reads in one instruction", f"{words}.")
    y = 20.0
    for name, line in lines.items():
        picture.text(8, y, name, "b")
        picture.text(8, y + 18, said[name], "s")
        draw_sectors(picture, 8, y + 28, sectors_of(line), line)
        y += 86 if len(sectors_of(line)) > 16 else 62
    picture.text(8, y - 4, SECTOR_LEGEND, "s")
    return picture


# ---- chapter 4 -------------------------------------------------------------------------------------------------------


def tile_walk() -> Picture:
    """How a block's tile of y comes about from tiles of x and w."""
    picture = Picture(
        "A block of tiled walks along the sum",
        "A block owns a tile of 32 x 32 outputs. It walks along the summed index in steps of 32: at each step it "
        "copies a tile of x, the rows of its outputs, and a tile of w, the columns of its outputs, into shared memory, "
        "then adds 32 products to each of its 1,024 sums.",
    )
    picture.text(8, 16, "w", "b")
    picture.text(26, 16, "out by in, drawn transposed", "s")
    picture.text(8, 196, "x", "b")
    picture.text(26, 196, "batch by in", "s")
    picture.text(268, 300, "y", "b")
    picture.text(286, 300, "batch by out", "s")
    for k in range(6):
        style = "on" if k == 2 else "half" if k < 2 else "box"
        picture.box(300, 24 + 26 * k, 26, 26, style)
        picture.box(8 + 26 * k, 230, 26, 26, style)
    picture.box(268, 24, 104, 156, "off")
    picture.box(8, 204, 156, 78, "off")
    picture.box(268, 204, 104, 78, "off")
    picture.box(300, 230, 26, 26)
    picture.line((313, 180), (313, 228), style="green")
    picture.line((164, 243), (298, 243), style="green")
    picture.text(8, 322, "full: in shared memory now; pale: added; white: to come", "s")
    picture.text(8, 338, "y's tile: a sum per thread, in its registers", "s")
    return picture


def banks(emulated: Mapping[tuple[str, str], Report]) -> Picture:
    """The banks of a column read, for tiles whose rows are 32 and 33 words apart."""
    line = line_of(emulated["linear", "tiled"], "b_tile")
    pitch = (line["first"][1] - line["first"][0]) // 4
    turns = {}
    for words in (32, pitch):
        per_bank = [0] * 32
        for lane in range(32):
            per_bank[words * lane % 32] += 1
        turns[words] = max(per_bank)
    picture = Picture(
        "A warp reads a column of a tile",
        " ".join(
            f"Rows {words} words apart: the 32 lanes hit {32 // turn} bank{'s' * (turn < 32)}, which takes {turn} "
            f"turn{'s' * (turn > 1)}."
            for words, turn in turns.items()
        ),
    )
    y = 18.0
    for words, turn in turns.items():
        picture.text(8, y, f"rows {words} words apart", "b")
        picture.text(392, y, f"{turn} turn{'s' * (turn > 1)}", "b e")
        y = draw_banks(picture, y + 8, [words * lane for lane in range(32)]) + 28
    return picture


# ---- chapter 5 -------------------------------------------------------------------------------------------------------


def waves(tiles: int = 32, slices: int = 8, multiprocessors: int = 132) -> Picture:
    """Multiprocessors of an H200 with and without a block."""
    picture = Picture(
        f"{tiles} blocks and {tiles * slices} blocks on {multiprocessors} multiprocessors",
        f"Without slices {tiles} of {multiprocessors} multiprocessors have a block, {multiprocessors - tiles} idle. "
        f"With {slices} slices of the sum there are {tiles * slices} blocks: {tiles * slices - multiprocessors} "
        f"multiprocessors have two, the other {2 * multiprocessors - tiles * slices} one.",
    )
    y = 18.0
    for count in (tiles, tiles * slices):
        picture.text(8, y, f"{count} blocks", "b")
        picture.text(392, y, f"{min(count, multiprocessors)} of {multiprocessors} multiprocessors busy", "s e")
        for k in range(multiprocessors):
            held = (count - k + multiprocessors - 1) // multiprocessors
            left, top = 8 + 17.4 * (k % 22), y + 10 + 14 * (k // 22)
            picture.box(left, top, 15.4, 12, ("off", "half", "on")[min(held, 2)])
        y += 10 + 14 * 6 + 24
    picture.text(8, y - 4, "pale: one block; full: two; dashed: none", "s")
    return picture


# ---- chapter 6 -------------------------------------------------------------------------------------------------------


def outer_product(each: int = 4) -> Picture:
    """A thread's outputs in registers."""
    picture = Picture(
        f"One thread's {each} x {each} outputs",
        f"For each term of the sum a thread reads {each} numbers of x and {each} of w and adds their {each * each} "
        f"products to {each * each} sums in registers.",
    )
    for k in range(each):
        picture.box(140 + 34 * k, 30, 30, 20, "half")
        picture.box(96, 62 + 30 * k, 30, 24, "half")
        for n in range(each):
            picture.box(140 + 34 * n, 62 + 30 * k, 30, 24, "on")
    picture.text(140, 20, f"{each} numbers of w", "s")
    picture.text(8, 78, f"{each} numbers", "s")
    picture.text(8, 94, "of x", "s")
    picture.text(292, 112, f"{each * each} sums,", "s")
    picture.text(292, 128, "in registers", "s")
    return picture


# ---- chapter 7 -------------------------------------------------------------------------------------------------------


def tree(count: int = 8) -> Picture:
    """A sum in pairs, as block_sum takes it."""
    steps = count.bit_length() - 1
    picture = Picture(
        f"{count} numbers become one in {steps} steps",
        f"{count} threads hold a number each. In the first step thread t, of the lower half, adds the number of thread "
        f"t + {count // 2}; in the second the lower quarter adds that of thread t + {count // 4}; after {steps} steps "
        "thread 0 has the sum.",
    )
    across, down = 48, 52
    picture.text(8, 14, "threads 0 to 7, a number each", "s")
    for step in range(steps + 1):
        y, busy = 24 + down * step, count >> step
        for t in range(count):
            picture.box(12 + across * t, y, 36, 20, "on" if t < busy else "off")
        if step == steps:
            break
        for t in range(busy // 2):
            picture.line((30 + across * t, y + 20), (30 + across * t, y + down), style="green")
            picture.line((30 + across * (t + busy // 2), y + 20), (34 + across * t, y + down))
    picture.text(8, 24 + down * steps + 38, "the sum is in thread 0", "s")
    return picture


# ---- chapter 8 -------------------------------------------------------------------------------------------------------


def gather(side: int = 6, at: tuple[int, int] = (2, 3), pixel: tuple[int, int] = (3, 3)) -> Picture:
    """Which pixels stand in a row of the matrix of an implicit GEMM, and how often a pixel does."""
    column = {  # the pixel of row n = (p, q) and column k = (u, v)
        (p * side + q, 3 * u + v): (p + u - 1, q + v - 1)
        for p in range(side)
        for q in range(side)
        for u in range(3)
        for v in range(3)
    }
    often = sum(found == pixel for found in column.values())
    p, q = at
    picture = Picture(
        "An image, and the matrix of its windows",
        f"Left an image of {side} x {side} pixels with the 3 x 3 window around row {p}, column {q}. Right the "
        f"{side * side} x 9 matrix with a row per position and a column per weight: the window is its row "
        f"{p * side + q}. One pixel, red, stands in {often} rows of the matrix. Dashed: outside of the image, 0.",
    )
    picture.text(8, 16, f"image, {side} x {side}", "s")
    picture.text(210, 16, f"matrix, {side * side} x 9", "s")
    for r in range(side):
        for s in range(side):
            inside = abs(r - p) <= 1 and abs(s - q) <= 1
            style = "bad" if (r, s) == pixel else "on" if inside else "box"
            picture.box(8 + 28 * s, 26 + 28 * r, 26, 26, style)
    for (n, k), (r, s) in column.items():
        border = not (0 <= r < side and 0 <= s < side)
        style = "bad" if (r, s) == pixel else "on" if n == p * side + q else "off" if border else "box"
        picture.box(210 + 18 * k, 24 + 7 * n, 16, 6, style)
    picture.line((178, 26 + 28 * p + 13), (206, 24 + 7 * (p * side + q) + 3))
    picture.text(8, 224, "green: a window, and its row", "s")
    picture.text(8, 242, f"red: one pixel, {often} times", "s")
    return picture


# ---- chapter 9 -------------------------------------------------------------------------------------------------------


def butterfly(count: int = 8) -> Picture:
    """Who exchanges with whom by __shfl_xor_sync."""
    steps = count.bit_length() - 1
    picture = Picture(
        f"{count} lanes exchange in {steps} steps",
        f"In the first step lane t exchanges with lane t xor {count // 2}, then with t xor {count // 4}, and so on: "
        f"after {steps} steps each lane has seen the numbers of all {count}.",
    )
    across, down = 48, 52
    picture.text(8, 14, f"lanes 0 to {count - 1}", "s")
    for step in range(steps + 1):
        y, apart = 24 + down * step, count >> (step + 1)
        for t in range(count):
            picture.box(12 + across * t, y, 36, 20, "on" if step == steps else "half")
            if apart:
                picture.line((30 + across * t, y + 20), (30 + across * t, y + down), style="green")
                picture.line((30 + across * (t ^ apart), y + 20), (30 + across * t, y + down))
    picture.text(8, 24 + down * steps + 38, "every lane has the result", "s")
    return picture


# ---- chapter 10 ------------------------------------------------------------------------------------------------------


def deciders() -> Picture:
    """Who decides what about a kernel."""
    questions = ("kernel", "tile", "loads", "barriers", "units")
    makers = {  # the questions that are left to you
        "CUDA C++": (True, True, True, True, True),
        "Numba": (True, True, True, True, False),
        "CUB": (True, True, True, False, False),
        "CUTLASS": (True, True, False, False, True),
        "Triton": (True, True, False, False, True),
        "cuBLAS, cuDNN": (False, False, False, False, True),
    }
    said = "; ".join(
        f"{maker}: " + (", ".join(q for q, mine in zip(questions, yours, strict=True) if mine) or "nothing")
        for maker, yours in makers.items()
    )
    picture = Picture(
        "What is left to you to decide",
        f"What you decide: which kernel, its tile, which thread loads what, barriers, which units multiply. {said}.",
    )
    for k, question in enumerate(questions):
        picture.text(146 + 55 * k, 14, question, "s c")
    for row, (maker, yours) in enumerate(makers.items()):
        y = 24 + 28 * row
        picture.text(8, y + 15, maker)
        for k, mine in enumerate(yours):
            picture.box(121 + 55 * k, y, 50, 20, "on" if mine else "off")
    picture.text(8, 210, "full: you decide; dashed: it is decided for you", "s")
    return picture


# ---- chapter 11 ------------------------------------------------------------------------------------------------------

LAUNCH, NODE = 3.54, 0.74  # microseconds, as docs/ladder.md has them


def launches(kernels: int = 6, each: float = 2) -> Picture:
    """Short kernels, launched one by one and as a graph: when the GPU works."""
    one_by_one = [LAUNCH * (k + 1) for k in range(kernels)]
    as_graph = [LAUNCH + (NODE + each) * k for k in range(kernels)]
    ends = [starts[-1] + each for starts in (one_by_one, as_graph)]
    picture = Picture(
        f"{kernels} kernels of {each:g} microseconds, launched one by one and as a graph",
        f"Launched one by one, {LAUNCH} microseconds each, {kernels} kernels of {each:g} microseconds end after "
        f"{ends[0]:.1f}: the GPU waits for the host. As a graph, launched once and with {NODE} between two kernels, "
        f"they end after {ends[1]:.1f}.",
    )
    scale = 300 / ends[0]
    for title, starts, end, y, calls in (
        ("one by one", one_by_one, ends[0], 14, kernels),
        ("as a graph", as_graph, ends[1], 108, 1),
    ):
        picture.text(8, y, title, "b")
        picture.text(8, y + 26, "host", "s")
        picture.text(8, y + 54, "GPU", "s")
        picture.text(392, y, f"{end:.1f} µs", "b e")
        for k in range(calls):
            picture.box(50 + scale * LAUNCH * k, y + 12, scale * LAUNCH - 2, 20, "half")
        for start in starts:
            picture.box(50 + scale * start, y + 40, scale * each, 20, "on")
    picture.text(8, 196, f"a launch: {LAUNCH} µs of the host; a kernel: {each:g} µs", "s")
    picture.text(8, 212, f"between two kernels of a graph: {NODE} µs", "s")
    return picture


# ---- chapter 12 ------------------------------------------------------------------------------------------------------

FUSION = ROOT / "native" / "gpu" / "kernels" / "conv_bn_relu_pool" / "conv_bn_relu_pool.h"


def carried() -> dict[str, list[tuple[str, int, int]]]:
    """By direction: row, launches, and bytes that it carries for each value of z, as the header of the op says."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for line in FUSION.read_text().splitlines():
        if start := re.match(r"//   (forward|backward) +launches", line):
            found[direction := start[1]] = []
        elif row := re.match(r"//   (\w+) (\(I = 1\))? +(\d) .*?(?:(\d+)n( less)?)?[^n]*$", line):
            before = found[direction]
            left = 0 if row[2] else before[-1][2] - int(row[4]) if row[5] else int(row[4])
            before.append((row[1] + (", layer 1" if row[2] else ""), int(row[3]), left))
    return found


def traffic() -> Picture:
    """What a layer carries through memory, row by row."""
    rows = carried()
    said = "; ".join(
        f"{direction}: " + ", ".join(f"{name} {each} bytes in {count} launches" for name, count, each in of)
        for direction, of in rows.items()
    )
    picture = Picture(
        "What a layer carries through memory, for each value of z",
        f"Bytes per value of z, for z, y and their gradients alone. {said}.",
    )
    most, y = max(each for of in rows.values() for _, _, each in of), 14.0
    for direction, of in rows.items():
        picture.text(8, y, direction, "b")
        picture.text(200, y, "launches", "s e")
        picture.text(392, y, "bytes", "s e")
        for name, count, each in of:
            y += 24
            picture.text(8, y, name)
            picture.text(192, y, str(count), "e")
            picture.box(210, y - 13, max(1.5, 150 * each / most), 16, "half")
            picture.text(392, y, str(each), "e")
        y += 30
    picture.text(8, y - 6, "z, y and their gradients alone, per value of z", "s")
    return picture


# ---- chapter 13 ------------------------------------------------------------------------------------------------------


def fragments(lane: int = 9) -> Picture:
    """Which lane holds which element in mma.m16n8k8."""
    matrices = {  # rows, columns, and the lane of an element, by native/gpu/kernels/device/mma.cuh
        "a, 16 x 8": (16, 8, lambda row, column: 4 * (row % 8) + column % 4),
        "b, 8 x 8": (8, 8, lambda row, column: 4 * column + row % 4),
        "c, 16 x 8": (16, 8, lambda row, column: 4 * (row % 8) + column // 2),
    }
    held = {
        name: " ".join(f"({r},{c})" for r in range(rows) for c in range(columns) if of(r, c) == lane)
        for name, (rows, columns, of) in matrices.items()
    }
    picture = Picture(
        "The lanes of a warp on the matrices of one instruction",
        f"Each element has the number of the lane that holds it. Lane {lane}, green, holds the elements (row,column) "
        + "; ".join(f"{places} of {name}" for name, places in held.items())
        + ".",
    )
    for (name, (rows, columns, of)), (left, top) in zip(
        matrices.items(), ((8, 26), (208, 26), (208, 190)), strict=True
    ):
        picture.text(left, top - 8, name, "b")
        for row in range(rows):
            for column in range(columns):
                owner = of(row, column)
                x, y = left + 23 * column, top + 17 * row
                picture.box(x, y, 22, 16, "on" if owner == lane else "box")
                picture.text(x + 11, y + 12, str(owner), "c")
    picture.height = top + 17 * 16 + 6
    return picture


# ---- chapter 14 ------------------------------------------------------------------------------------------------------


def stages(tiles: int = 6, latency: int = 5, copy: int = 1, product: int = 2) -> Picture:
    """Copies and products of tiles in rings of stages, by the schedule of the exercise."""
    schedule = runpy.run_path(str(ROOT / "docs" / "guide" / "exercises" / "stages.py"))["schedule"]
    times = {count: schedule(tiles, count, latency, copy, product) for count in (1, 2, 4)}
    ends = {count: found[-1][3] for count, found in times.items()}
    picture = Picture(
        "Copies and products with one, two and four stages",
        f"{tiles} tiles. A copy takes {copy}, its data arrive {latency} later, a product takes {product}. "
        + ", ".join(f"{count} stage{'s' * (count > 1)}: done after {end}" for count, end in ends.items())
        + ".",
    )
    scale, y = 330 / ends[1], 14.0
    for count, found in times.items():
        picture.text(8, y, f"{count} stage{'s' * (count > 1)}", "b")
        picture.text(392, y, f"done after {ends[count]}", "s e")
        picture.text(8, y + 21, "copies", "s")
        picture.text(8, y + 47, "products", "s")
        for start, arrived, begin, end in found:
            picture.line((60 + scale * (start + copy), y + 17), (60 + scale * arrived, y + 17))
            picture.box(60 + scale * start, y + 8, scale * copy, 18, "half")
            picture.line((60 + scale * arrived, y + 17), (60 + scale * begin, y + 34))
            picture.box(60 + scale * begin + 0.5, y + 34, scale * (end - begin) - 1, 18, "on")
        y += 78
    picture.text(8, y - 2, "pale: a copy starts; line: its data are on their way", "s")
    return picture


TRACE = ROOT / "docs" / "records" / "checks" / "trace.txt"
ROLES = {  # of conv2_backward on whole images: what lies between the trace points of an item, in turn
    "input gradient": ((16, 17, "dgrad"), (17, 18, "routed taps"), (18, 20, "")),
    "next dz2": ((36, 37, ""), (37, 38, "dz2"), (38, 39, ""), (39, 40, "copies")),
    "weight gradient": ((48, 49, "products"), (49, 52, "")),
}


def traced(batch: int) -> tuple[dict[str, dict[int, tuple[float, float]]], dict[tuple[int, int], int]]:
    """A step in bf16, as scripts/check trace printed it.

    For each point of a phase when the first and the last block pass it, in microseconds; between two points of
    conv2_backward, cycles.
    """
    (text,) = re.findall(rf"^fused bf16, {batch} images: .*\n(?:(?!fused ).+\n)+", TRACE.read_text(), re.MULTILINE)
    points: dict[str, dict[int, tuple[float, float]]] = {}
    for phase, point, first, _, last in re.findall(r"(?m)^(\w+) +(\d+) +(\S+) +(\S+) +(\S+)  \d+ blocks$", text):
        points.setdefault(phase, {})[int(point)] = float(first), float(last)
    between = re.findall(r"(?m)^conv2_backward +(\d+) to (\d+) +(\d+) ", text)
    return points, {(int(first), int(last)): int(cycles) for first, last, cycles in between}


def time_line(batches: tuple[int, int] = (64, 4096)) -> Picture:
    """When the kernels of a step run."""
    picture, said, y = Picture("The kernels of a step over time", ""), [], 14.0
    for batch in batches:
        points, _ = traced(batch)
        phases = WITH_FC if WITH_FC[1] in points else PHASES
        ends = {phase: max(at[1] for n, at in of.items() if n > WAITED) for phase, of in points.items()}
        begin, end = points[phases[0]][0][0], ends[phases[-1]]
        scale, times = 290 / (end - begin), []
        picture.text(8, y, f"{batch:,} images", "b")
        picture.text(392, y, f"{end:.0f} µs", "s e")
        for k, phase in enumerate(phases):
            y += 20
            picture.text(8, y + 8, phase, "s")
            if phase in points:
                early, start, last = points[phase][0][0], points[phase][WAITED][0], ends[phase]
                picture.box(102 + scale * (early - begin), y - 2, scale * (start - early), 13, "half")
                style = "on"
            else:  # it has no trace points
                start, last, style = ends[phases[k - 1]], points[phases[k + 1]][WAITED][0], "off"
            picture.box(102 + scale * (start - begin), y - 2, scale * (last - start), 13, style)
            times.append(f"{phase} from {start:.3g} to {last:.3g}")
        said.append(f"{batch:,} images per step, in microseconds: {', '.join(times)}.")
        y += 34
    picture.text(8, y - 6, "pale: its first block waits for results; dashed: not traced", "s")
    picture.words = f"In bf16. {' '.join(said)}"
    return picture


def chains(batch: int = 4096) -> Picture:
    """What the roles of conv2_backward do during an image."""
    _, cycles = traced(batch)
    turn = max(sum(cycles[first, last] for first, last, _ in parts) for parts in ROLES.values())
    picture, said, y = Picture("The roles of conv2_backward during an image", ""), [], 14.0
    for role, parts in ROLES.items():
        picture.text(8, y, role, "b")
        at, words = 8.0, []
        for first, last, what in parts:
            width = 384 * cycles[first, last] / turn
            picture.box(at, y + 8, width - 1, 26, "on" if what else "off")
            if what:
                picture.text(at + width / 2, y + 48, f"{what} {cycles[first, last]:,}", "s c")
            words.append(f"{what or 'waits'} {cycles[first, last]:,}")
            at += width
        said.append(f"{role}: {', '.join(words)}")
        y += 68
    picture.text(8, y - 4, "dashed: waits for another role, or for copies", "s")
    picture.words = f"Cycles of an image in bf16, {batch:,} images per step. {'; '.join(said)}."
    return picture


# ---- chapter 15 ------------------------------------------------------------------------------------------------------


def scattered(count: int) -> npt.NDArray[np.float32]:
    """Whole numbers from 1 to 2^24 that look random and are the same everywhere (the steps of splitmix64)."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return ((z >> np.uint64(40)) + np.uint64(1)).astype(np.float32)


def rounding() -> Picture:
    """The errors of float32 sums of positive numbers, one after the other and as a tree."""
    errors: dict[str, list[float]] = {"one after the other": [], "tree": []}
    powers = range(4, 21, 2)
    for power in powers:
        count = 1 << power
        x = scattered(32 * count).reshape(32, count)
        exact = x.astype(np.float64).sum(1)
        halves = x
        while halves.shape[1] > 1:
            halves = halves[:, : halves.shape[1] // 2] + halves[:, halves.shape[1] // 2 :]
        for name, total in (("one after the other", np.add.accumulate(x, axis=1)[:, -1]), ("tree", halves[:, 0])):
            errors[name].append(float(np.sqrt(np.mean(((total - exact) / exact) ** 2))))
    ends = {name: f"{of[0]:.0e} to {of[-1]:.0e}" for name, of in errors.items()}
    picture = Picture(
        "The error of a sum in float32",
        f"Relative errors of sums of 16 to 1,048,576 positive numbers: one after the other they grow from "
        f"{ends['one after the other']}, as a tree they stay near {errors['tree'][-1]:.0e}.",
    )

    def place(power: int, error: float) -> tuple[float, float]:
        return round(64 + 19 * (power - 4), 1), round(-40 * (math.log10(error) + 4.5) + 20, 1)

    for exponent in (-5, -6, -7):
        _, y = place(4, 10**exponent)
        picture.line((64, y), (368, y), style="off")
        picture.text(56, y + 4, f"1e{exponent}", "s e")
    for power in (4, 10, 16, 20):
        picture.text(place(power, 1)[0], 162, f"{1 << power:,}", "s c")
    picture.text(216, 180, "numbers in the sum", "s c")
    for name, style in (("one after the other", "red"), ("tree", "green")):
        points = [place(power, error) for power, error in zip(powers, errors[name], strict=True)]
        picture.line(*points, style=style)
        x, y = points[6]
        picture.text(x, y + (32 if name == "one after the other" else -6), name, "c")
    return picture


# ---- chapter 16 ------------------------------------------------------------------------------------------------------


def ways() -> Picture:
    """Ways on from a kernel."""
    on = {
        "a PyTorch operator": "others call it",
        "many models": "one launch, ten networks",
        "several GPUs": "one network, shared sums",
        "larger networks": "llm.c, CUTLASS, Triton",
        "contests": "KernelBot, GPU-Puzzles",
    }
    picture = Picture(
        "Ways on from a kernel of yours", "From your kernel: " + "; ".join(f"{a}: {b}" for a, b in on.items()) + "."
    )
    picture.box(8, 82, 96, 30, "on")
    picture.text(56, 101, "your kernel", "c")
    for k, (way, what) in enumerate(on.items()):
        y = 8 + 38 * k
        picture.line((104, 97), (168, y + 15), style="green")
        picture.box(168, y, 224, 30, "half")
        picture.text(176, y + 13, way, "b")
        picture.text(176, y + 26, what, "s")
    return picture


def draw(emulated: Mapping[tuple[str, str], Report]) -> dict[str, Picture]:
    """All of them, by the name of the file."""
    alone = (paths, network, threads, tile_walk, waves, outer_product, tree, gather, butterfly, deciders, launches)
    made = [(one.__name__, one()) for one in (*alone, traffic, fragments, stages, time_line, chains, rounding)]
    made += [(one.__name__, one(emulated)) for one in (wide_loads, sectors, banks)]
    return {name.replace("_", "-"): picture for name, picture in made} | {"next": ways()}
