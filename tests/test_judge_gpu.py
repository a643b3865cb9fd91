"""The judge on a GPU, where there is none: judge/nvcc_stand_in.py compiles for the emulator."""

import json
import os
import shutil
import sys

import pytest
from conftest import ROOT, needs_compiler
from test_judge import RELU
from tiny import shell_program

from mnist_cuda import _native
from mnist_cuda.bench import ops
from mnist_cuda.errors import UnavailableError
from mnist_cuda.judge import build, judged_ops, judging, nvcc, signatures, verdict
from mnist_cuda.judge.own_kernels import OwnKernels

pytestmark = pytest.mark.usefixtures("emulator")
GPU = {"name": "a GPU", "compute_capability": "9.0", "memory_bytes": 1, "multiprocessors": 1}


@pytest.fixture(scope="session")
def nvcc_folder(tmp_path_factory):
    """Where an nvcc is, the same for all tests, so that what it compiles is kept for the next one."""
    program = ROOT / "tests" / "judge" / "nvcc_stand_in.py"
    return shell_program(tmp_path_factory.mktemp("bin") / "nvcc", f'exec {sys.executable} {program} "$@"').parent


@pytest.fixture
def log(tmp_path, nvcc_folder, monkeypatch):
    """A GPU with an nvcc, and the lines that the latter was called with, once it was."""
    monkeypatch.setenv("PATH", f"{nvcc_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NVCC_STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(nvcc, "find_tool", shutil.which)
    monkeypatch.setattr(_native, "cuda_status", lambda: {"reason": "", "device_count": 0})
    monkeypatch.setattr(_native, "gpus", lambda: [GPU])
    monkeypatch.setattr(judged_ops, "BATCH", 1)
    judging._ladder.cache_clear()
    return tmp_path / "log"


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def judged(tmp_path, text, **options):
    (tmp_path / "one.cu").write_text(text)
    return judging.judge_file(tmp_path / "one.cu", **options)


# ---- the compiler ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "flag", "words"),
    [
        ("7.5", "-gencode=arch=compute_75,code=sm_75", "sm_75"),
        ("9.0", "-gencode=arch=compute_90a,code=sm_90a", "sm_90a"),
        ("12.0", "-gencode=arch=compute_90,code=compute_90", "compute_90, the newest that nvcc knows, by the driver"),
    ],
)
def test_the_architecture_is_the_gpus(log, monkeypatch, capability, flag, words):
    monkeypatch.setattr(_native, "gpus", lambda: [GPU | {"compute_capability": capability}])
    found = nvcc.find()
    assert flag in found.flags
    assert found.words == words


def test_no_architecture_is_taken_silently(log, monkeypatch):
    monkeypatch.setattr(_native, "gpus", lambda: [GPU | {"compute_capability": "7.0"}])
    with pytest.raises(
        UnavailableError, match=r"compiles for compute capability 7\.5 and newer, and the a GPU has 7\.0"
    ):
        nvcc.find()


def test_a_gpu_without_nvcc_is_one_line(log, tmp_path, monkeypatch):
    def missing(_name):
        raise UnavailableError("not here")

    monkeypatch.setattr(nvcc, "find_tool", missing)
    with pytest.raises(UnavailableError, match=r"need nvcc.*pip install 'cuda-toolkit\["):
        judged(tmp_path, RELU)


def test_board_needs_a_gpu(tmp_path):
    with pytest.raises(UnavailableError, match="--board compares times, which only a GPU has"):
        judging.command([tmp_path / "one.cu"], False, board=True)


@needs_compiler
def test_a_shared_object_keeps_its_symbols_to_itself(log, tmp_path):
    (tmp_path / "relu.cu").write_text(RELU)
    own = OwnKernels([tmp_path / "relu.cu"])
    (op,) = own.compile_for_gpu(0, tmp_path)
    assert op == ("relu_forward", str(tmp_path / "0" / "own.so"), 0, 0)
    assert own.words.endswith("; compiled for sm_90a")
    compiling = next(line for line in lines(log) if any(word.endswith("own.cu") for word in line))
    linking = lines(log)[-1]
    assert {"-Xcompiler=-fPIC", "-gencode=arch=compute_90a,code=sm_90a", "-Dmain=own_main"} < set(compiling)
    assert {"-shared", "-Xlinker=-Bsymbolic", "-Xlinker=--exclude-libs=ALL"} < set(linking)


# ---- the program -----------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_right_kernel_is_timed(log, tmp_path, monkeypatch):
    row = {"variant": "naive", "library": False, "absent": "", "cold_us": 4e3, "warm_us": 3e3, "bytes": 1e3, "flops": 0}
    library = {**row, "variant": "cudnn", "library": True, "cold_us": 1e3, "warm_us": 900.0}
    rows = [row, library, {**row, "variant": "fft", "absent": "no cuFFT", "cold_us": None, "warm_us": None}]
    roofs = {"bytes_per_second": 1e6, "fma_flops": 1e12}
    monkeypatch.setattr(ops, "measure", lambda *_: {"rows": rows, "roofs": roofs})
    found = judged(tmp_path, RELU, board=True)
    (one,) = found["verdicts"]
    assert found["exit_code"] == 0, found["lines"]
    assert (one["gpu_right"], one["emulator_right"], one["compiled_for"]) == (True, True, "sm_90a")
    assert one["times"]["cold_us"] == one["times"]["warm_us"] == 2000
    assert one["ran"] == one["cases"] == 19
    assert one["counters"]
    assert "foreign" in one
    names = [line.split()[0] for line in found["lines"][3:]]
    assert names == ["cudnn,", "relu_forward,", "naive"]
    assert max(map(len, found["lines"][1:])) <= 80
    assert "50 % of the roof" in " ".join(" ".join(found["lines"]).split())
    roofs["bytes_per_second"] = 1e5
    too_fast = verdict.Verdict("relu_forward", "relu", times=verdict.Times("", 2000, 2000))
    judging._add_rows(too_fast)
    assert too_fast.times.refused.startswith("no kernel is so fast")


WRONG = {
    "past_the_end": "writes outside of y, pass",
    "in_place": "changes its input x",
    "ends": "ended the program, with exit code 0",
    "waits_for_ever": "did not end within 5 s",
}


@needs_compiler
def test_cheats_fail_on_the_gpu(log, monkeypatch):
    """The GPU's program alone: what the emulator sees of them is in test_judge.py."""
    monkeypatch.setattr(nvcc, "GPU_SECONDS", 5)
    file = ROOT / "tests" / "judge" / "cheats.cu"
    fitting, _ = signatures.find(file.read_text())
    with nvcc.GpuProgram(file, fitting) as program:
        verdicts = {
            one.name.removeprefix("relu_forward_"): verdict.judge(program, number, one)
            for number, one in enumerate(fitting)
        }
    del verdicts["by_host_in_gpu"]  # a GPU's memory is no host's; the stand-in's is
    assert [name for name, one in verdicts.items() if one.right] == ["right"]
    for name, why in WRONG.items():
        assert verdicts[name].wrong[0].failed.startswith(why), name
    assert verdicts["wrong_later"].wrong[0].call == 11
    assert verdicts["adds"].wrong[0].call == judged_ops.TIMED_CALLS  # many calls on one NaN


@needs_compiler
def test_a_gpu_judges_what_the_emulator_does_not_compile(log, tmp_path, monkeypatch):
    def refuse(*_):
        raise build.NotCompiledError("no asm")

    monkeypatch.setattr(build, "EmulatedProgram", refuse)
    found = judged(tmp_path, RELU)
    assert found["exit_code"] == 0
    assert found["verdicts"][0]["times"]["rows_missing"]
    assert "the emulator does not compile the file: no asm" in " ".join(" ".join(found["lines"]).split())


# ---- a GPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cheats.cu", "gpu_cheats.cu"])
def test_cheats_fail_on_a_gpu_that_is_here(name):
    try:
        if not judging.on_gpu():
            raise UnavailableError("no GPU is here")
        nvcc.find()
    except UnavailableError as error:
        pytest.skip(str(error))
    file = ROOT / "tests" / "judge" / name
    fitting, _ = signatures.find(file.read_text())
    with nvcc.GpuProgram(file, fitting) as program:
        right = [one.name for number, one in enumerate(fitting) if verdict.judge(program, number, one).right]
    assert right == ["relu_forward_right"]


def test_every_op_is_timed_at_the_networks_sizes():
    for op in judged_ops.OPS.values():
        case = op.network
        known = {256, 3136, 128, 32, 64, 14, 28, 196, 784, 10, 256 * 32, 256 * 64, 256 * 784, 256 * 64 * 196}
        assert set(op.sizes(case).values()) <= known
        assert case.sets == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


# ---- .py files -------------------------------------------------------------------------------------------------------

# NumPy under CuPy's names; what is written to empty the caches is short here.
CUPY = """
import time
from types import SimpleNamespace

import numpy as np

asnumpy, copyto = np.asarray, np.copyto


def asarray(values):
    return np.array(values[: 1 << 27 if values.size < 1 << 27 else 1])


class Event:
    def record(self):
        self.seconds = time.perf_counter()


def get_elapsed_time(start, stop):
    return 1e3 * (stop.seconds - start.seconds)


cuda = SimpleNamespace(
    Device=lambda: SimpleNamespace(synchronize=lambda: None), Event=Event, get_elapsed_time=get_elapsed_time
)
"""
PYTHON = """
import cupy
import numpy as np

calls = 0

def relu_forward(y, passed, x):
    global calls
    calls += 1
    passed[:] = ~(x <= 0)
    y[:] = np.where(passed, x, 0)
    SLIP
"""


@pytest.mark.parametrize(
    ("slip", "failed"),
    [
        ("pass", None),
        ("x[0] = 1", "changes its input x"),
        ("y.base[-1] = 0", "writes outside of y"),
        ("if x.size == 12544 and calls % 3 == 0: y[7] += 1", ""),
        ("raise IndexError('too far')", "line 12: IndexError: too far"),
    ],
)
def test_python_on_a_gpu(slip, failed, log, tmp_path, monkeypatch):
    """In the stand-in's arrays: outputs, guards and inputs of every call are looked at, and right ones are timed."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "cupy.py").write_text(CUPY)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
    (tmp_path / "one.py").write_text(PYTHON.replace("SLIP", slip))
    found = judging.judge_file(tmp_path / "one.py")
    (one,) = found["verdicts"]
    assert one["by"] == "CuPy on the GPU"
    assert "\n".join(found["lines"]).count("it needs a GPU") == 0
    if failed is None:
        assert found["exit_code"] == 0, found["lines"]
        assert one["ran"] == one["cases"]
        assert one["times"]["cold_us"] > 0
        assert one["times"]["warm_us"] is None
        assert "record calls in a CUDA graph" in one["times"]["untimed"]
        return
    assert found["exit_code"] == 1
    assert one["wrong"][0]["failed"] == failed
    assert one["times"] is None or not failed
