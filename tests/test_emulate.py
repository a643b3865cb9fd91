"""`bench ops --emulate`: right rows, and one line where there is no g++."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checks import emulator_counters
from conftest import ROOT, needs_compiler
from tiny import prints, said

from mnist_cuda import cache
from mnist_cuda.bench import emulate
from mnist_cuda.data import catalogue
from mnist_cuda.files import take_lock

pytestmark = pytest.mark.usefixtures("emulator")


Capsys = pytest.CaptureFixture[str]
EMULATE = ("bench", "ops", "--emulate")


@needs_compiler
def test_rows_of_an_op(capsys: Capsys) -> None:
    code, out, error = said(capsys, *EMULATE, 3, "--op", "log_softmax", "--json")
    assert code == 0, error
    rows = {row["variant"]: row for row in json.loads(out)["rows"]}
    assert set(rows) == {"naive", "online", "warp"}
    for row in rows.values():
        assert row["error"] <= row["bound"]
        assert row["report"]["faults"] == []
        # 3 rows of 10 numbers are read and written: 240 bytes.
        assert sum(kernel["least_bytes"] for kernel in row["report"]["kernels"]) == 240
    (stores,) = (line["first"] for line in rows["naive"]["report"]["lines"] if line["write"])
    assert stores == [0, 40, 80, *[None] * 29]  # one thread per row
    out = prints(capsys, *EMULATE, 3, "--op", "relu")
    assert "float4" in out


def test_list_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    out = prints(capsys, "bench", "ops", "--list", "--json")
    rows = {(row["op"], row["name"]): row for row in json.loads(out)["rows"]}
    assert rows["linear", "tiled"]["file"] == "gpu/kernels/linear/tiled.cu"
    emulated = {name for name, row in rows.items() if not row["not_emulated"]}
    assert ("linear", "tensor_cores") in emulated
    assert rows["linear", "cutlass"]["not_emulated"] == "CUTLASS's templates"
    assert rows["relu", "triton"]["by"] == "Triton's interpreter"
    assert rows["relu", "numba"]["by"] == "Numba's simulator"
    assert rows["relu", "torch"]["not_emulated"] == "a library"
    assert rows["histogram", "cluster"]["not_emulated"] == "clusters of thread blocks"


def test_processes_side_by_side_compile_once(tmp_path: Path) -> None:
    """Threads stand in for them: each takes the lock by itself. The second begins while the first compiles."""
    compiled, begun = [], threading.Event()

    def make(_missing: list[Path], _work: Path) -> emulate.CompileOne:
        def compile_one(path: Path, to: Path) -> None:
            compiled.append(path.name)
            begun.set()
            time.sleep(0.5)
            to.write_bytes(path.read_bytes())

        return compile_one

    def kept() -> list[Path]:
        return emulate.kept([tmp_path / "a.cu"], tmp_path, "", tmp_path / "cache", "", make)

    (tmp_path / "a.cu").write_text("kernel")
    with ThreadPoolExecutor(2) as processes:
        first = processes.submit(kept)
        assert begun.wait(10)
        second = processes.submit(kept)
        (one,) = first.result()
        assert second.result() == [one]
    assert compiled == ["a.cu"]
    assert one.read_text() == "kernel"
    assert list((tmp_path / "cache").iterdir()) == [one]


def _kept(cache: Path, source: Path) -> tuple[Path, list[str]]:
    """What is kept of a source, which is "compiled" as a copy, and what was compiled for it."""
    compiled = []

    def compile_one(path: Path, to: Path) -> None:
        compiled.append(path.name)
        to.write_bytes(path.read_bytes())

    (one,) = emulate.kept([source], source.parent, "", cache, "a copy", lambda *_: compile_one)
    return one, compiled


@pytest.mark.parametrize("damage", [b"", b"kerne", b"kernel of another"])
def test_a_damaged_object_is_made_again(damage: bytes, tmp_path: Path) -> None:
    source, cache = tmp_path / "a.cu", tmp_path / "cache"
    source.write_text("kernel")
    one, compiled = _kept(cache, source)
    assert compiled == ["a.cu"]
    assert _kept(cache, source) == (one, [])
    one.write_bytes(damage)
    assert _kept(cache, source) == (one, ["a.cu"])
    assert one.read_text() == "kernel"


def test_what_a_killed_compilation_left_is_removed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, cache = tmp_path / "a.cu", tmp_path / "cache"
    source.write_text("kernel")
    code = "import os, sys, tests_kept; tests_kept.run(sys.argv[1])"
    (tmp_path / "tests_kept.py").write_text(
        "import os\nfrom pathlib import Path\nfrom mnist_cuda.bench import emulate\n\n"
        "def run(source):\n"
        "    def die(path, to):\n        to.write_text('half')\n        os.kill(os.getpid(), 9)\n"
        "    folder = Path(source).parent\n"
        "    emulate.kept([Path(source)], folder, '', folder / 'cache', 'a copy', lambda *_: die)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    assert subprocess.run([sys.executable, "-c", code, source], env=environment).returncode == -9
    assert [path.is_dir() for path in cache.iterdir()].count(True) == 1
    one, compiled = _kept(cache, source)
    assert compiled == ["a.cu"]
    assert list(cache.iterdir()) == [one]


def test_who_waits_says_for_whom(tmp_path: Path, capsys: Capsys) -> None:
    source, cache = tmp_path / "a.cu", tmp_path / "cache"
    source.write_text("kernel")
    cache.mkdir()
    lock, _ = take_lock(cache)
    (cache / "holder").write_text("process 12345 (mnist-cuda judge b.cu)")
    with ThreadPoolExecutor(1) as processes:
        waiting, err = processes.submit(_kept, cache, source), ""
        while "\n" not in err:
            err += capsys.readouterr().err
        assert err == f"waiting for process 12345 (mnist-cuda judge b.cu), which is compiling in {cache}\n"
        assert not waiting.done()
        os.close(lock)
        assert waiting.result()[1] == ["a.cu"]
    assert capsys.readouterr().err == "compiling a copy, once: 1 file\n"


def test_one_root_of_all_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("MNIST_CUDA_CACHE", str(tmp_path / "root"))
    assert emulate.cache_folder() == tmp_path / "root" / "emulator"
    assert emulate.cache_folder("nvcc") == tmp_path / "root" / "nvcc"
    assert catalogue.cache_folder(catalogue.DATASETS["mnist"]) == tmp_path / "root" / "mnist"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("root", ["/proc/none", "/dev/null", ""])
def test_a_cache_that_cannot_be_written(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """A temporary folder takes its place, the same for the next process, and a line says so, once."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MNIST_CUDA_CACHE", root)
    if not root:
        monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: "~/.cache")
    cache._announce.cache_clear()
    folder = emulate.cache_folder()
    assert folder == tmp_path / f"mnist-cuda-{os.getuid()}" / "emulator"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert emulate.cache_folder() == folder
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(folder) in err
    assert root in err
    folder.parent.chmod(0o777)  # somebody else may write there
    assert emulate.cache_folder().parent.name.startswith("mnist-cuda-")
    assert emulate.cache_folder().parent != folder.parent


def test_every_part_of_the_list_is_there() -> None:
    """A pattern without a file is a mistake; and what is compiled is what CMake puts into a wheel."""
    native = emulate.sources()
    text = (native / "emulator" / "sources.txt").read_text().split("\n\n", 1)[1]
    for line in text.splitlines():
        for pattern in line.split()[1:]:
            assert list(native.glob(pattern)), pattern
    assert native / "host" / "require.cpp" in emulate.part(native, "checks")
    assert not [
        path for path in emulate.part(native, "kernels") if path.stem in ("cutlass", "fft") or "fused" in str(path)
    ]


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = prints(capsys, *EMULATE, code=4)
    assert error.splitlines()[-1].endswith("apt install g++")


def test_bounds() -> None:
    kernels = [{"name": "a", "launches": 1, "blocks": 4}, {"name": "b", "launches": 2, "blocks": 2000}]
    lines = [
        {"kernel": "a", "sectors": 40_000},
        {"kernel": "a", "turns": 1000},
        {"kernel": "b", "sectors": 80_000},
    ]
    row = {"bytes": 2e6, "flops": 1e6, "unit": "fma", "report": {"kernels": kernels, "lines": lines}}
    gpu = emulate.Gpu("", bytes_per_second=1e12, rates={"fma": 1e12}, multiprocessors=100, clock=1e9)
    # 4 multiprocessors have a block of a, 100 have one of b: 2.5 us and 0.2 us.
    assert emulate.roof(row, gpu) == (pytest.approx(2.7e-6), "sectors")
    assert emulate.roof({**row, "bytes": 4e6}, gpu) == (pytest.approx(4e-6), "memory")
    assert emulate.roof({**row, "flops": 5e6}, gpu) == (pytest.approx(5e-6), "fma")
    assert emulate.roof({**row, "unit": "tf32"}, gpu) is None
    assert emulate.roof({**row, "report": {"kernels": kernels, "lines": [{"kernel": "a", "turns": 16_000}]}}, gpu) == (
        pytest.approx(4e-6),
        "turns",
    )


def test_the_h200_is_that_of_the_record() -> None:
    roofs = json.loads((ROOT / "docs" / "records" / "ops" / "256.json").read_text())["roofs"]
    h200 = emulate.GPUS["h200"]
    assert h200.bytes_per_second == pytest.approx(roofs["bytes_per_second"], rel=1e-4)
    assert h200.rates == {unit: pytest.approx(roofs[f"{unit}_flops"], rel=1e-4) for unit in ("fma", "tf32")}


def test_a_fault_fails() -> None:
    row = {"absent": "", "error": 0.0, "bound": 1e-6, "failed": "", "report": {"faults": []}}
    assert emulate.passes(row)
    assert not emulate.passes({**row, "error": None})
    assert not emulate.passes({**row, "report": {"faults": [{"kind": "race in a block"}]}})
    assert not emulate.passes({**row, "failed": "an illegal memory access"})


# Sectors of 32 bytes or turns of the banks that an access of a warp needs, beside the least for the same bytes: by hand
# from the kernel's indices, for 2 images. linear has 3136 inputs and 128 outputs.
BY_HAND = {
    # A thread is an output: its row of w is 12,544 bytes from the next one's, and all read the same number of x.
    ("linear", "naive"): {"w": (32, 4), "x": (1, 1), "bias": (4, 4), "y": (4, 4)},
    # A warp is an output: 32 numbers of a row are 128 bytes. Lane 0 alone reads the bias and stores.
    ("linear", "coalesced"): {"w": (4, 4), "x": (4, 4), "bias": (1, 1), "y": (1, 1)},
    # 32 numbers of a row from global memory. A tile's row has 33 words: a column lies in 32 banks.
    ("linear", "tiled"): {"a": (4, 4), "b": (4, 4), "c": (4, 4), "a_tile": (1, 1), "b_tile": (1, 1)},
    # A warp loads 16 numbers of two rows, 2 + 2 sectors, and stores them as columns of two words, 68 words apart: banks
    # 4 k + row, for k and k + 8 the same. 16 threads read 16 bytes each of w's tile and one place of x's, and so do the
    # other 16: for each half of the warp 2 turns of 32 words, and 1. The sums of 16 threads lie 16 bytes apart, in 8
    # sectors for 64 bytes.
    ("linear", "register_tiled"): {
        "w": (4, 4),
        "w_tile store": (2, 1),
        "w_tile load": (4, 4),
        "x_tile load": (2, 2),
        "partial": (8, 2),
    },
    # 32 neighbours; a decision is one byte.
    ("relu", "naive"): {"x": (4, 4), "y": (4, 4), "pass": (1, 1)},
    # 32 times 16 bytes, 32 times 4.
    ("relu", "float4"): {"x": (16, 16), "y": (16, 16), "pass": (4, 4)},
    # A thread is a row of 40 bytes: the two rows' k-th numbers never share a sector.
    ("log_softmax", "online"): {"x": (2, 1), "log_p": (2, 1)},
    # A warp is a row: bytes 0 to 39 and 40 to 79, either in two sectors.
    ("log_softmax", "warp"): {"x": (2, 2), "log_p": (2, 2)},
    # Two rows: neighbours of a row lie 8 bytes apart in y, 256 bytes for 32 of them.
    ("transpose", "naive"): {"x": (4, 4), "y": (8, 4)},
    # A tile of two rows of 32 words: the two numbers of a column lie in the same bank.
    ("transpose", "tiled"): {"x": (4, 4), "tile store": (1, 1), "tile load": (2, 1), "y": (1, 1)},
    # Of rows of 33 words, or at column c ^ r, they do not.
    ("transpose", "padded"): {"x": (4, 4), "tile store": (1, 1), "tile load": (1, 1), "y": (1, 1)},
    ("transpose", "swizzled"): {"x": (4, 4), "tile store": (1, 1), "tile load": (1, 1), "y": (1, 1)},
}


@needs_compiler
@pytest.mark.parametrize(("op", "variant"), BY_HAND)
def test_costs_by_hand(op: str, variant: str) -> None:
    (row,) = emulate.rows(op, variant, 2)
    (kernel,) = (kernel["name"] for kernel in row["report"]["kernels"] if "slices" not in kernel["name"])
    for name, (cost, least) in BY_HAND[op, variant].items():
        array, _, access = name.partition(" ")
        found = [
            (line.get("sectors", line.get("turns")) / line["accesses"], line["least"] / line["accesses"])
            for line in row["report"]["lines"]
            if line["array"] == array and line["kernel"] == kernel and access in ("", ("load", "store")[line["write"]])
        ]
        assert found, name
        assert set(found) == {(cost, least)}, name


NOT_EQUAL = {  # to ncu's counts; docs/emulator.md says why, where that is known
    ("conv2d naive", "global read"): 1944448 / 1328000,
    ("row_sums warp", "global read"): 1878 / 1994,
    ("linear tiled", "shared read"): 802816 / 803827,
}


@needs_compiler
def test_counts_are_those_of_ncu() -> None:
    record = json.loads((ROOT / "docs" / "records" / "emulator" / "counters.json").read_text())
    counted = {(row["variant"], row["kernel"], row["kind"]): row["counts"][1] for row in record["rows"]}
    found = {
        (row, kernel, kind): count
        for row in {row["variant"] for row in record["rows"]}
        for kernel, kinds in emulator_counters.counts_of(emulate.rows(*row.split(), 2)[0]).items()
        for kind, count in kinds.items()
    }
    assert found.keys() == counted.keys()
    for key, count in found.items():
        assert count / counted[key] == NOT_EQUAL.get((key[0], key[2]), 1), key


@needs_compiler
def test_divergence_and_atomics_are_counted() -> None:
    idle = {}
    for row in emulate.rows("row_sums", "", 2):
        lines = [line for line in row["report"]["lines"] if line["array"] == "x"]
        idle[row["variant"]] = 1 - sum(line["lanes"] for line in lines) / sum(32 * line["accesses"] for line in lines)
    # Lengths are spread evenly from 0 to 196, so 32 rows have half of their longest one's numbers; sorted, 128 rows are
    # four warps, to 49, 98, 147 and 196; a warp's last load of a row is half full.
    assert idle["naive"] == pytest.approx(0.5, abs=0.06)
    assert idle["sorted"] == pytest.approx(0.2, abs=0.06)
    assert idle["warp"] == pytest.approx(0.5 * 32 / 98, abs=0.06)
    atomics = {row["variant"]: row["report"]["kernels"][0]["atomics"] for row in emulate.rows("histogram", "", 2)}
    assert atomics["naive"] == 2 * 784
    assert atomics["privatised"] == atomics["voted"] <= 256  # a block's counters that are not 0


@needs_compiler
def test_lines_of_a_variant(capsys: Capsys) -> None:
    out = prints(capsys, *EMULATE, "--op", "linear", "--variant", "naive")
    assert "32.0 of 4.0 sectors" in " ".join(out.split())


@needs_compiler
def test_a_broken_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(emulate.sources(), tmp_path / "native")
    kernel = tmp_path / "native" / "gpu" / "kernels" / "relu" / "naive.cu"
    text = kernel.read_text()
    broken = text.replace("if (k >= count) return;", "if (k >= count - 3) return;").replace(
        "passes ? x[k] : 0;", "x[k];"
    )
    assert broken != text
    kernel.write_text(broken)
    monkeypatch.setattr(emulate, "PACKAGE", tmp_path / "mnist_cuda")
    naive, float4 = emulate.rows("relu", "", 1)
    assert not emulate.passes(naive)
    assert naive["wrong"].startswith("output[")
    assert " from there on X" in naive["wrong"]
    assert emulate.passes(float4)
