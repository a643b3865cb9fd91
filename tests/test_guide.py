"""docs/guide: what it lets the reader try happens, its numbers are those of the code, and pictures have words."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, needs_compiler, plain_blocks
from pages import guide_pictures

from mnist_cuda.bench import emulate
from mnist_cuda.judge import judging
from mnist_cuda.judge.exercises import EXERCISES
from mnist_cuda.judge.judged_ops import OPS

GUIDE = ROOT / "docs" / "guide"
CHAPTERS = sorted(GUIDE.glob("[0-9]*.md"))
pytestmark = pytest.mark.usefixtures("emulator")


@pytest.mark.parametrize("page", [*CHAPTERS, GUIDE / "README.md"], ids=lambda page: page.stem)
def test_every_exercise_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"mnist-cuda exercise start (\S+?)[`\s]", text))
    judged = set(re.findall(r"mnist-cuda judge (\S+?)\.(?:cu|py)", text))
    assert named - {"NAME"} <= set(EXERCISES)
    assert judged <= named | {"mine", "docs/guide/tile", "docs/guide/exercises/numba_linear"}


@pytest.mark.parametrize("picture", sorted(GUIDE.glob("*.svg")), ids=lambda picture: picture.stem)
def test_pictures_have_words_and_a_dark_mode(picture: Path) -> None:
    text = picture.read_text()
    assert re.search(r"<title>.+</title>\n<desc>.+</desc>", text)
    assert "prefers-color-scheme:dark" in text
    styles = set(re.findall(r'class="([^"]*)"', text))
    assert all(f".{name}{{" in text for style in styles for name in style.split())
    pages = "".join(page.read_text() for page in (*CHAPTERS, GUIDE.parent / "fused.md"))
    assert f"({picture.name})" in pages or f"(guide/{picture.name})" in pages, "no page shows it"


# ---- commands --------------------------------------------------------------------------------------------------------

ELSEWHERE = (  # what no line of this file runs as it stands, and why
    ("mnist-cuda exercise start ", "tests/test_judge.py starts and judges every exercise"),
    *((f"mnist-cuda judge {name}", "tests/test_judge.py") for name in (*EXERCISES, "mine")),
    ("mnist-cuda judge --emulate docs/guide/exercises/", "below, where Numba is there"),
    ("python -m pip install ", "CI installs it"),
    ("source ", "an environment is active"),
    ("export ", "it is set"),
    ("./scripts/train", "CI's step `set-up`; below, a GPU's"),
    ("git ", "it undoes what the reader did"),
)
GPU = re.compile(r"mnist-cuda (?:bench (?:ops(?! --emulate)|share)|sweep|.*(?:-e|--engine) (?!cpu))")


def commands() -> list[str]:
    """The lines of code blocks of the guide that start a program, and those of the README's tables, each once."""
    found = []
    for page in (GUIDE / "README.md", *CHAPTERS):
        text = page.read_text()
        spans = re.findall(r"\| `([^`]+)` \|$", text, re.MULTILINE)
        found += [line.partition("  #")[0].rstrip() for line in (*plain_blocks(text), *spans)]
    return [
        line for line in dict.fromkeys(found) if re.match(r"(mnist-cuda|python|\./scripts|git|source|export) ", line)
    ]


@pytest.mark.usefixtures("mnist")
def test_commands_without_a_gpu_run_and_the_others_say_what_they_lack(tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("no g++ here")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "docs").symlink_to(ROOT / "docs")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "CUDA_VISIBLE_DEVICES": ""}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-c", command]
        return subprocess.run(words, cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=600)

    assert run("mnist-cuda train --engine cpu --epochs 1").returncode == 0  # what ./scripts/train has left
    shutil.copy(ROOT / "native/gpu/kernels/conv2d/tiled.cu", folder / "conv.cu")  # for `train --with conv.cu`
    ran, refused = [], []
    for command in commands():
        if any(command.startswith(start) for start, _ in ELSEWHERE):
            continue
        done = run(command.replace("--steps 10", "--steps 1"))  # an emulated step takes seconds
        if GPU.match(command):
            refused.append(command)
            assert done.returncode == 4, (command, done.returncode, done.stderr)
        else:
            ran.append(command)
            hole = command.startswith("python docs/guide/exercises/")
            assert done.returncode == int(hole), (command, done.stdout, done.stderr)
    assert len(ran) >= 10
    assert len(refused) >= 6


# ---- exercises -------------------------------------------------------------------------------------------------------


def judge_of(exercise: str) -> Any:
    return runpy.run_path(str(GUIDE / "exercises" / f"{exercise}.py"))["judge"]


@pytest.mark.parametrize(
    ("exercise", "start", "count"),
    [
        ("batch_norm_backward", "", 4),
        ("moments", "", 4),
        ("stages", "WRONG: latency 0, copy 1, product 1: 0, expected ", 1),
    ],
)
def test_an_exercise_is_wrong_as_it_is(exercise: str, start: str, count: int) -> None:
    command = [sys.executable, GUIDE / "exercises" / f"{exercise}.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith(start)
    assert done.stdout.count("WRONG") == count


def solution(g: Any, z: Any, gamma: Any) -> tuple[Any, Any, Any]:
    sigma = np.sqrt(z.var(0) + 1e-5)
    normal = (z - z.mean(0)) / sigma
    dgamma, dbeta = (g * normal).sum(0), g.sum(0)
    return gamma / sigma * (g - dbeta / len(z) - normal * dgamma / len(z)), dgamma, dbeta


def test_the_exercise_of_chapter_1() -> None:
    judge = judge_of("batch_norm_backward")
    assert all(judge(solution).values())

    def without_mean(g: Any, z: Any, gamma: Any) -> tuple[Any, Any, Any]:
        dz, dgamma, dbeta = solution(g, z, gamma)
        return dz + gamma / np.sqrt(z.var(0) + 1e-5) * dbeta / len(z), dgamma, dbeta

    assert [name for name, right in judge(without_mean).items() if not right] == [
        "dz sums to 0",
        "dz by finite differences",
    ]


def test_the_exercise_of_chapter_14() -> None:
    judge = judge_of("stages")
    assert judge(lambda latency, copy, product: -(-(copy + latency + product) // product)) is None
    assert judge(lambda latency, copy, product: (copy + latency + product) // product) is not None  # rounded down


def test_the_exercise_of_chapter_12() -> None:
    judge = judge_of("moments")

    def statistics(w: Any, mean: Any, covariance: Any) -> tuple[Any, Any]:
        return w @ mean, w @ covariance @ w

    def gradient(w: Any, gamma: Any, var: Any, mean: Any, c: Any, taps: Any, dbeta: Any, again: int = 1) -> Any:
        sigma, routed = np.sqrt(var + 1e-5), taps - dbeta * mean
        return gamma / sigma * (routed - again * (w @ routed) / sigma**2 * (c @ w)), w @ routed / sigma

    assert all(judge(statistics, gradient).values())
    wrong = judge(lambda w, mean, c: (w @ mean, w @ w), lambda *given: gradient(*given, again=0))
    assert [name for name, right in wrong.items() if not right] == ["variance", "dw"]


def test_what_chapter_12_says_a_layer_carries() -> None:
    page = (GUIDE / "12-fusion.md").read_text()
    forward = guide_pictures.carried()["forward"]
    assert [each for _, _, each in forward] == [20, 12, 8, 0]
    values = 256 * 32 * 28 * 28
    assert f"z has {values / 1e6:.1f} million values" in page
    record = json.loads((ROOT / "docs" / "records" / "ops" / "256.json").read_text())["roofs"]
    taken = 20 * values / record["bytes_per_second"]
    assert f"are {20 * values / 1e6:.0f} MB, which take {1e6 * taken:.0f} µs" in page


TILED = """
    x_tile = cuda.shared.array((TILE, TILE), numba.float32)
    w_tile = cuda.shared.array((TILE, TILE), numba.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    b, o, row = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx, cuda.blockIdx.x * TILE + ty
    total = np.float32(0)
    for first in range(0, x.shape[1], TILE):
        i = first + tx
        x_tile[ty, tx] = x[b, i] if b < x.shape[0] and i < x.shape[1] else np.float32(0)
        w_tile[ty, tx] = w[row, i] if row < w.shape[0] and i < x.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += x_tile[ty, k] * w_tile[tx, k]
        cuda.syncthreads()
    if b < y.shape[0] and o < y.shape[1]:
        y[b, o] = total + bias[o]

"""


def test_the_exercise_of_chapter_10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, and with tiles: both are right, in a small case, because Numba's simulator is slow."""
    pytest.importorskip("numba")
    op = OPS["linear_forward"]
    monkeypatch.setitem(OPS, op.launcher, replace(op, cases=op.cases[2:3]))
    text = (GUIDE / "exercises" / "numba_linear.py").read_text()
    start, end = text.index("    o = cuda.blockIdx.x"), text.index("\ndef linear_forward")
    tiled = text[:start] + TILED.lstrip("\n") + text[end:]
    (tmp_path / "tiled.py").write_text("import numba\nimport numpy as np\n" + tiled)
    for file in (GUIDE / "exercises" / "numba_linear.py", tmp_path / "tiled.py"):
        found = judging.judge_file(file, emulated=True)
        assert found["exit_code"] == 0, found
        assert found["verdicts"][0]["by"] == "Numba's simulator"


def test_the_teachers_program_grades(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "teachers.md").read_text(), re.DOTALL)
    assert program
    right: dict[str, Any] = {"right": True, "goal_missed": False, "wrong": [], "faults": []}
    faulty = {**right, "right": False, "faults": [{"kind": "outside"}, {"kind": "outside"}]}
    judged = [
        {"file": "a.cu", "exit_code": 0, "error": "", "exercise": "relu", "verdicts": [right]},
        {"file": "b.cu", "exit_code": 0, "error": "", "exercise": "", "verdicts": [right]},
        {"file": "c.cu", "exit_code": 1, "error": "", "exercise": "relu", "verdicts": [faulty]},
        {"file": "d.cu", "exit_code": 1, "error": "", "exercise": "relu", "verdicts": [{**right, "goal_missed": True}]},
        {"file": "e.cu", "exit_code": 1, "error": "it does not compile", "exercise": "relu", "verdicts": []},
    ]
    (tmp_path / "judged.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in judged))
    command = [sys.executable, "-c", program[1], "relu", tmp_path / "judged.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "a.cu,1,",
        "b.cu,0,not exercise relu",
        "c.cu,0,outside",
        "d.cu,0,goal missed",
        "e.cu,0,it does not compile",
    ]


# ---- what the emulator says ------------------------------------------------------------------------------------------


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(file of kernels, its new text, op, variant, images) -> the row."""
    shutil.copytree(emulate.sources(), tmp_path / "native")
    monkeypatch.setattr(emulate, "PACKAGE", tmp_path / "mnist_cuda")

    def row(file: str, text: str, op: str, variant: str, images: int) -> dict[str, Any]:
        kernel = tmp_path / "native" / "gpu" / "kernels" / file
        before = kernel.read_text()
        kernel.write_text(text)
        (found,) = emulate.rows(op, variant, images)
        kernel.write_text(before)
        return found

    return row


def replaced(file: Path, *pairs: tuple[str, str]) -> str:
    text = file.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def load(row: dict[str, Any], array: str) -> float:
    """Sectors or turns per load of a warp."""
    (line,) = (line for line in row["report"]["lines"] if line["array"] == array and not line["write"])
    return float(line.get("sectors", line.get("turns")) / line["accesses"])


@needs_compiler
def test_the_records_are_what_the_emulator_counts() -> None:
    ours = {
        "relu": ("naive", "float4"),
        "linear": ("naive", "coalesced", "tiled", "register_tiled"),
        "conv2d": ("naive", "tiled", "implicit_gemm", "register_tiled"),
    }
    for op, variants in ours.items():
        record = json.loads((ROOT / "docs" / "records" / "emulated" / f"{op}.json").read_text())
        rows = {row["variant"]: row for row in record["rows"]}
        for variant in variants:
            (row,) = emulate.rows(op, variant, record["batch_size"])
            for report in (row["report"], rows[variant]["report"]):
                for line in report["lines"]:
                    del line["line"]  # it moves with a comment
                for kernel in report["kernels"]:
                    for name in ("atomics", "block", "dynamic_bytes", "functions"):  # newer than some records
                        kernel.pop(name, None)
            assert not row["report"]["notes"]
            rows[variant]["report"].setdefault("notes", [])  # newer than some records
            assert row["report"] == rows[variant]["report"], (op, variant)


@needs_compiler
def test_what_chapter_2_says(emulated: Any) -> None:
    naive = ROOT / "native" / "gpu" / "kernels" / "relu" / "naive.cu"
    no_tail = ("  if (k >= count) return;\n", "")
    assert emulate.passes(emulated("relu/naive.cu", replaced(naive, no_tail), "relu", "naive", 2))
    row = emulated("relu/naive.cu", replaced(naive, no_tail, ("kBlock = 256", "kBlock = 96")), "relu", "naive", 2)
    fault = row["report"]["faults"][0]
    said = f"{fault['file']}:{fault['line']}: {fault['kind']}: {fault['words']}"
    assert said in (GUIDE / "02-first-kernel.md").read_text()


@needs_compiler
def test_what_chapter_4_says(emulated: Any) -> None:
    tile, page = GUIDE / "tile.cu", (GUIDE / "04-tiles.md").read_text()

    def run(images: int, *pairs: tuple[str, str]) -> dict[str, Any]:
        as_row = ("linear_forward_tile(float* y,", "linear_forward_coalesced(float* y, float*,")
        text = replaced(tile, as_row, *pairs)
        found: dict[str, Any] = emulated("linear/coalesced.cu", text, "linear", "coalesced", images)
        return found

    row = run(33)
    assert emulate.passes(row)
    assert load(row, "x_tile") == load(row, "w_tile") == 1
    (kernel,) = run(32)["report"]["kernels"]
    of_x_and_w = 4 * 3136 * 2 * 32 * 128 // 32
    assert of_x_and_w == kernel["bytes"] - 2 * 4 * 32 * 128  # without y, and the bias, which every warp reads
    assert f"{of_x_and_w / 1e6:.2f} \\text{{ MB}}" in page
    turns = sum(line["turns"] for line in row["report"]["lines"] if "turns" in line)
    assert turns == 8 * 98 * 32 * (2 * 32 + 2)  # 8 blocks
    assert f"{98 * 32 * (2 * 32 + 2):,}".replace(",", "{,}") in page
    assert load(run(2, ("w_tile[kTile][kTile + 1]", "w_tile[kTile][kTile]")), "w_tile") == 32
    assert not emulate.passes(run(2, ("    __syncthreads();  // both tiles are complete\n", "")))
    row = run(2, ("    __syncthreads();  // everyone is done with them\n", ""))
    races = [fault["words"].partition(", in ")[0] for fault in row["report"]["faults"] if fault["kind"][:4] == "race"]
    assert any(f"race in a block: {words}" in page for words in races)
    assert emulate.passes(run(2, (" && i < in", "")))  # nothing notices: 3136 is a multiple of 32


@needs_compiler
def test_what_chapter_5_says(emulated: Any) -> None:
    """The least microseconds on a T4, with one slice and with ten."""
    slices, page = ROOT / "native" / "gpu" / "kernels" / "partial_sizes.cpp", (GUIDE / "05-slices.md").read_text()
    for blocks, words in ((4, "130 µs with one slice"), (40, "13.0 with ten")):
        text = replaced(slices, ("kWantedBlocks = 256", f"kWantedBlocks = {blocks}"))
        row = emulated("partial_sizes.cpp", text, "linear", "tiled", 2)
        assert emulate.passes(row)
        roof = emulate.roof(row, emulate.GPUS["t4"])
        assert roof
        assert f"{1e6 * roof[0]:.3g}" == f"{float(words.split()[0]):.3g}"
        assert words in page


@needs_compiler
def test_what_chapter_6_says(emulated: Any) -> None:
    """The conflict is there, and an assignment without it exists."""
    file = ROOT / "native" / "gpu" / "kernels" / "linear" / "register_tiled.cu"

    def turns_and_sectors(text: str) -> tuple[float, float]:
        row = emulated("linear/register_tiled.cu", text, "linear", "register_tiled", 64)
        assert emulate.passes(row)
        lines = row["report"]["lines"]
        (store,) = (line for line in lines if line["array"] == "x_tile" and line["write"])
        return store["turns"] / store["accesses"], load(row, "x")

    assert turns_and_sectors(file.read_text()) == (2, 4)
    mended = ("const int k = n % kDepth, row = n / kDepth;", "const int k = n % 8 + n / 512 * 8, row = n / 8 % kTile;")
    assert turns_and_sectors(replaced(file, mended)) == (1, 4)


# ---- what pages work out ---------------------------------------------------------------------------------------------


def test_what_chapter_11_says_of_the_least_time_of_a_step() -> None:
    """The sums over the ops of a step, by the formulas of native/host/profile/cost.h."""
    batch, element = 256, 4
    costs: list[tuple[float, float]] = [(batch * (2.0 * 785 + 4), 0), (5.0 * batch * 784, 2.0 * batch * 784)]

    def product(i: int, o: int, rows: float, weights: int) -> tuple[float, float]:
        return element * (rows * (i + o) + weights), 2.0 * rows * weights

    for i, o, side, gradients in ((1, 32, 28, 1), (32, 64, 14, 2)):
        n = batch * o * side * side
        costs += [product(i, o, batch * side * side, 9 * i * o)] * (1 + gradients)
        costs += [(element * n, 4 * n), (2 * element * n, 4 * n), (5 * element * n, 11 * n)]
        costs += [((1 + 5 * element) * n / 4, n), ((1 + 5 * element) * n / 4, 0)]
    for i, o in ((3136, 128), (128, 10)):
        forward = product(i, o, batch, i * o)
        backward = (element * (2 * batch * i + batch * o + 2 * i * o), 2 * forward[1])
        costs += [forward, backward]
    costs += [(9 * batch * 128, batch * 128)] * 2 + [(2 * element * batch * 10, 4 * batch * 10)] * 2
    costs += [(81 * batch, 12 * batch), (12 * 421834, 2 * 421834)]
    assert len(costs) == 27
    record = json.loads((ROOT / "docs" / "records" / "ops" / "256.json").read_text())["roofs"]
    rates = record["bytes_per_second"], record["fma_flops"]
    bound = {"bytes": [0.0, 0.0], "operations": [0.0, 0.0]}
    counts = {"bytes": 0, "operations": 0}
    for bytes_, flops in costs:
        by = "operations" if flops / rates[1] > bytes_ / rates[0] else "bytes"
        bound[by][0] += bytes_
        bound[by][1] += flops
        counts[by] += 1
    page = (GUIDE / "11-step.md").read_text()
    for by in bound:
        million = f"{bound[by][1] / batch / 1e6:.1f} million |"
        assert f"{counts[by]} ops | {bound[by][0] / batch / 1e6:.2f} MB | {million}" in page
    least = [1e6 * bound["operations"][1] / rates[1], 1e6 * bound["bytes"][0] / rates[0]]
    assert f"= {least[0]:.1f} + {least[1]:.1f} = {sum(least):.0f} " in page
    assert f"27 perfect kernels would take {sum(least):.0f} µs" in page


def test_the_debugger_stops_at_the_line_that_the_page_means() -> None:
    (line,) = re.findall(r"^break tile\.cu:(\d+)$", (ROOT / "docs/debugging/commands.gdb").read_text(), re.MULTILINE)
    assert "sum += x_tile[ty][k] * w_tile[tx][k]" in (GUIDE / "tile.cu").read_text().splitlines()[int(line) - 1]
