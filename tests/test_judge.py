"""`mnist-cuda judge` and `mnist-cuda exercise`: answers pass; skeletons, cheats and faulty kernels do not.

Each compiled file takes seconds, so a sample of the exercises and faulty kernels is judged; MNIST_CUDA_TEST_FULL=1
judges all of them, and all kernels of ours.
"""

import json
import re
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
from conftest import FULL, ROOT, needs_compiler
from judge.faulty_kernels import FAULTS
from tiny import prints, said

import mnist_cuda
from mnist_cuda.bench import emulate
from mnist_cuda.errors import OutputError, UnavailableError, UsageError
from mnist_cuda.judge import (
    access_picture,
    build,
    exercises,
    judged_ops,
    judging,
    program,
    python_files,
    signatures,
    verdict,
)
from mnist_cuda.judge.exercises import EXERCISES
from mnist_cuda.judge.judged_ops import OPS

KERNELS = ROOT / "native" / "gpu" / "kernels"
slow = pytest.mark.skipif(not FULL, reason="a sample is judged; MNIST_CUDA_TEST_FULL=1 judges all")
RELU = """
#include <cuda_runtime.h>
#include <cstdint>
__global__ void kernel(float* y, std::uint8_t* pass, const float* x, std::int64_t count) {
  const std::int64_t k = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (k < count) pass[k] = !(x[k] <= 0), y[k] = pass[k] ? x[k] : 0;
}
extern "C" void relu_forward(float* y, uint8_t* pass, float const* x, int64_t count, cudaStream_t stream) {
  kernel<<<unsigned((count + 255) / 256), 256, 0, stream>>>(y, pass, x, count);
}
"""


def sampled(names, kept):
    """Parameters; those that are not kept are for a full test."""
    return [pytest.param(name, marks=() if name in kept else slow) for name in names]


@pytest.fixture(autouse=True)
def _solved(emulator, tmp_path, monkeypatch):
    """What is solved is kept in a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def judged(tmp_path, text, name="one.cu"):
    file = tmp_path / name
    file.write_text(text)
    return judging.judge_file(file)


# ---- launchers -------------------------------------------------------------------------------------------------------


def test_launchers_are_found_in_namespaces_and_by_their_parameters():
    found, others = signatures.find((KERNELS / "linear" / "tiled.cu").read_text())
    assert [one.qualified for one in found] == [
        "mnist::kernels::linear_forward_tiled",
        "mnist::kernels::linear_backward_tiled",
    ]
    assert others == []
    found, _ = signatures.find(RELU)
    assert [(one.qualified, one.op.name) for one in found] == [("relu_forward", "relu")]
    found, others = signatures.find("void linear_forward(float* y, const float* x, int n) { }\nvoid other() { }")
    assert found == []
    assert others == [
        "linear_forward has other parameters than linear's launchers: void linear_forward(float* y, float* partial, "
        "const float* x, const float* w, const float* bias, std::int64_t batch, int in, int out, cudaStream_t stream)"
    ]
    assert signatures.op_of("conv2d_backward_weight_tiled").name == "conv2d_backward_weight"
    assert signatures.op_of("relu_forwards") is None


def test_every_op_has_the_parameters_of_its_ladder():
    """Those of the function types in the headers."""
    declared = {}
    for header in KERNELS.glob("*/*.h"):
        text = signatures.without_comments(header.read_text())
        for part in text.split("using ")[1:]:
            name, _, rest = part.partition(" = void (*)(")
            if rest:
                declared[name] = [words.split() for words in rest.partition(")")[0].split(",")]
        for op in OPS.values():  # a launch that rows are made of has no type
            if f"void {op.launcher}(" in text:
                rest = text.partition(f"void {op.launcher}(")[2]
                declared.setdefault(op.launcher, [words.split() for words in rest.partition(")")[0].split(",")])
    for op in OPS.values():
        name = "".join(word.title() for word in op.launcher.split("_")).replace("Conv2D", "Conv2d")
        name = name.replace("Pool2D", "Pool2d").replace("LinearRelu", "Linear")
        parameters = [(" ".join(words[:-1]), words[-1]) for words in declared.get(name) or declared[op.launcher]]
        assert parameters == [(p.type, p.name) for p in op.parameters], op.name


# ---- cases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_answers_have_the_outputs_shapes_and_inputs_differ_by_seed(op):
    for case in (*op.cases, op.cost):
        given = judged_ops.inputs(op, case, 0)
        answer = judged_ops.answer(op, case, given)
        assert {name: a.value.shape for name, a in answer.items()} == {
            p.name: judged_ops.shape_of(p, op.sizes(case)) for p in op.arrays("out")
        }
        again, other = judged_ops.inputs(op, case, 0), judged_ops.inputs(op, case, 1)
        assert all(given[name].tobytes() == again[name].tobytes() for name in given)
        if max(a.size for a in given.values()) > 3:
            assert any(given[name].tobytes() != other[name].tobytes() for name in given)
    assert len({(case.sizes, case.fill, case.shifted) for case in op.cases}) == len(op.cases)


def test_answers_by_hand():
    case = judged_ops.Case((1, 1, 1, 2))
    given = {
        "x": np.float32([[[[1, 2], [3, 4]]]]),
        "w": np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3),
        "bias": np.float32([10]),
    }
    y = judged_ops.answer(OPS["conv2d_forward"], case, given)["y"]
    assert y.value.tolist() == [
        [[[10 + 4 + 10 + 21 + 32, 10 + 3 + 8 + 18 + 28], [10 + 1 + 4 + 12 + 20, 10 + 0 + 2 + 9 + 16]]]
    ]
    x = np.float32([[[-1, -2, 3, 3], [-3, -4, np.nan, 9], [0, -0.0, 5, 6], [-7, 0, 7, 7]]])
    pooled = judged_ops.answer(OPS["relu_max_pool2d_forward"], judged_ops.Case((1, 2)), {"x": x})
    assert pooled["route"].value.tolist() == [[[4, 2], [4, 2]]]
    np.testing.assert_equal(pooled["y"].value, [[[0, np.nan], [0, 7]]])


# ---- exercises -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=lambda one: one.name)
def test_a_skeleton_is_its_answer_with_a_hole(exercise):
    text, answer = exercises.skeleton(exercise), exercises.answer(exercise)
    assert text.startswith(f"// exercise: {exercise.name}\n// ")
    assert verdict.exercise_of(text) == exercise.name
    assert text.count(exercises.HOLE) == len(exercise.holes)
    assert not text.endswith(answer)
    assert exercise.launcher in {one.name for one in signatures.find(text)[0]}
    assert bool(exercise.holes) != bool(exercise.changes)
    for name in verdict.EXERCISES_NAMED:
        assert name in EXERCISES


@pytest.mark.parametrize(("turns", "missed"), [(16.0, True), (1.0, False), (None, True)])
def test_a_goal_that_is_missed_is_not_right(turns, missed):
    counters = verdict.Counters("", 1.0, turns, 1.0, 0.0, 4.0, None, 1, 0, [])
    one = verdict.Verdict("linear_forward_tiled", "linear", counters=counters)
    exercises.apply_goal(EXERCISES["padding"], one)
    assert one.right != missed
    assert one.goal.startswith("MISSED" if missed else "reached")
    again = verdict.Verdict("batch_norm_statistics_shuffle", "batch_norm_statistics", deterministic=False)
    assert again.right
    exercises.apply_goal(EXERCISES["reduction"], again)
    assert not again.right


@needs_compiler
@pytest.mark.parametrize("name", sampled(EXERCISES, {"float4", "softmax"}))
def test_a_skeleton_fails_and_its_answer_passes(name, tmp_path):
    exercise = EXERCISES[name]
    found = judged(tmp_path, exercises.skeleton(exercise))
    assert found["exit_code"] == 1, found["lines"]
    assert exercises.solved() == {}
    found = judged(tmp_path, f"// exercise: {name}\n{exercises.answer(exercise)}")
    assert found["exit_code"] == 0, found["lines"]
    assert exercises.solved() == {name: str(tmp_path / "one.cu")}


def test_start_writes_once_and_the_list_says_what_is_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = prints(capsys, "exercise", "start", "relu")
    assert "mnist-cuda judge relu.cu" in shown
    Path("relu.cu").write_text("mine")
    assert said(capsys, "exercise", "start", "relu")[0] == OutputError.exit_code
    assert Path("relu.cu").read_text() == "mine"
    error = prints(capsys, "exercise", "start", "rleu", "--out", "other.cu", code=UsageError.exit_code)
    assert "did you mean relu?" in error
    exercises.mark_solved("relu", Path("relu.cu"))
    found = json.loads(said(capsys, "exercise", "--json")[1])
    assert found["next"] == "float4"
    assert [row["name"] for row in found["exercises"] if row["solved"]] == ["relu"]
    exercises.state_file().write_text("{")
    assert "next: `mnist-cuda exercise start relu`" in said(capsys, "exercise")[1]


# ---- verdicts --------------------------------------------------------------------------------------------------------


@needs_compiler
def test_every_cheat_fails(monkeypatch):
    monkeypatch.setattr(program, "SECONDS", 5)
    found = judging.judge_file(ROOT / "tests" / "judge" / "cheats.cu")
    right = [one["name"] for one in found["verdicts"] if one["right"]]
    assert right == ["relu_forward_right"]
    assert len(found["verdicts"]) == 21
    why = {one["name"].removeprefix("relu_forward_"): one for one in found["verdicts"]}
    assert why["wrong_later"]["wrong"][0]["call"] == 11
    assert why["in_place"]["wrong"][0]["failed"] == "changes its input x"
    assert why["empty_later"]["wrong"][0]["unwritten"]
    assert why["by_host"]["verdict"] == why["answers_itself"]["verdict"] == "not judged"
    assert why["by_host"]["unknown"][0].startswith("launches no kernel (count 2)")
    assert not why["by_host"]["wrong"]
    assert not why["no_launch_later"]["wrong"][0]["launched"]
    assert why["too_many_threads"]["faults"][0]["words"].startswith("a block of 1025 threads, at most 1024")
    assert why["ends"]["wrong"][0]["failed"] == "ended the program, with exit code 0"
    assert why["crashes"]["wrong"][0]["failed"].startswith("ended by SIGABRT")
    assert why["waits_for_ever"]["wrong"][0]["failed"] == "did not end within 5 s"
    assert why["drops_nan"]["wrong"][0]["case"] == "count 515, NaN, infinity, -0, denormals"
    assert {fault["kind"] for fault in why["by_host_in_gpu"]["faults"]} == {"outside"}


def test_the_faulty_kernels_are_changes_of_ours():
    assert len(FAULTS) >= 40
    for file, launcher, before, after in FAULTS:
        text = (KERNELS / file).read_text()
        assert text.count(before) == 1, (file, before)
        assert launcher in {one.name for one in signatures.find(text.replace(before, after))[0]}


@needs_compiler
@pytest.mark.parametrize("number", sampled(range(len(FAULTS)), {4, 36}))
def test_a_faulty_kernel_fails(number, tmp_path):
    file, launcher, before, after = FAULTS[number]
    text = (KERNELS / file).read_text().replace(before, after)
    source = tmp_path / Path(file).name
    source.write_text(text)
    fitting = [one for one in signatures.find(text)[0] if one.name == launcher]
    with build.EmulatedProgram(source, fitting) as emulated:
        assert verdict.judge(emulated, 0, fitting[0]).outcome == verdict.WRONG


OWN = sorted(str(path.relative_to(KERNELS)) for path in KERNELS.glob("*/*.cu") if path.parent.name != "fused")


@needs_compiler
@slow
@pytest.mark.parametrize("name", OWN)
def test_our_kernels_pass(name):
    if not signatures.find((KERNELS / name).read_text())[0] or Path(name).stem in emulate.left_out(ROOT / "native"):
        pytest.skip("no launcher of an op, or not emulated")
    found = judging.judge_file(KERNELS / name)
    if name == "batch_norm/atomics.cu":  # kept in the ladder to show both faults
        (one,) = found["verdicts"]
        assert [wrong["case"] for wrong in one["wrong"]] == ["batch 3, channels 2, area 36, numbers around 4096"]
        assert not one["deterministic"]
        return
    if name == "linear/int8.cu":  # 8 bits are less than a float32's sum may lose
        assert found["exit_code"] == 1
        return
    assert found["exit_code"] == 0, found["lines"]


@needs_compiler
def test_a_right_file_and_its_words(tmp_path, capsys):
    (tmp_path / "mine.cu").write_text(RELU + "int main() { return 3; }\n")
    (tmp_path / "none.cu").write_text("int main() {}")
    (tmp_path / "broken.cu").write_text(RELU.replace("if (k < count)", "if k < count)"))
    code, shown, error = said(capsys, "judge", *(tmp_path / f"{name}.cu" for name in ("mine", "none", "broken")))
    assert code == 2, error
    assert max(map(len, shown.replace(str(tmp_path), "").splitlines())) <= 80
    words = " ".join(shown.split())
    assert "right in all 19 cases; all elements exact" in words
    assert "fast not run here: it needs a GPU" in words
    assert "expected void NAME(...)" in words
    assert "does not compile: broken.cu:6:" in words
    assert said(capsys, "judge", tmp_path / "broken.cu")[0] == 1
    assert said(capsys, "judge", tmp_path / "absent.cu")[0] == UsageError.exit_code


def test_no_compiler(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.cu").write_text(RELU)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = prints(capsys, "judge", tmp_path / "mine.cu", code=UnavailableError.exit_code)
    assert error.splitlines()[-1].endswith("apt install g++")


def test_help_begins_with_what_it_does_and_whose_rights_a_file_has(capsys):
    first = " ".join(prints(capsys, "judge", "--help").split("\n\n")[1].split())
    assert first.startswith("Judge a kernel of your own")
    assert "A judged file runs with your rights" in first


# ---- Python ----------------------------------------------------------------------------------------------------------

NORM = """
import numpy as np
def batch_norm_backward(dx, dgamma, dbeta, dy, x, gamma, mean, var):
    n, sigma = x.shape[0] * x.shape[2], np.sqrt(var + 1e-5)[:, None]
    xhat = (x - mean[:, None]) / sigma
    dbeta[:] = dy.sum((0, 2))
    dgamma[:] = (dy * xhat).sum((0, 2))
    dx[:] = gamma[:, None] / sigma * (dy - dbeta[:, None] / n - xhat * dgamma[:, None] / n)
"""


def test_numpy(tmp_path):
    found = judged(tmp_path, NORM, "norm.py")
    assert found["exit_code"] == 0, found["lines"]
    assert found["verdicts"][0]["by"] == "NumPy"
    found = judged(tmp_path, NORM.replace("- xhat *", "+ xhat *"), "norm.py")
    assert found["exit_code"] == 1
    assert found["verdicts"][0]["wrong"][0]["output"] == "dx"
    found = judged(tmp_path, NORM.replace("dbeta[:] = ", "dy[0] = dbeta[:] = "), "norm.py")
    assert "changes its input dy" in {wrong["failed"] for wrong in found["verdicts"][0]["wrong"]}
    outside = "import numpy as np\ndef relu_forward(y, passed, x):\n    passed[:] = ~(x <= 0)\n    y[:] = x * passed\n"
    outside += "    np.lib.stride_tricks.as_strided(y, (y.size + 1,))[-1] = 0\n"
    assert judged(tmp_path, outside, "relu.py")["verdicts"][0]["wrong"][0]["failed"] == "writes outside of y"
    found = judged(tmp_path, NORM.replace("n, sigma", "n sigma"), "norm.py")
    assert found["error"].startswith("does not compile: line 4: ")
    found = judged(tmp_path, "def relu_forward(y): pass", "norm.py")
    assert found["exit_code"] == 2
    assert found["error"] == "relu_forward has 1 parameters, expected def relu_forward(y, pass, x)"


def test_numbas_simulator(tmp_path, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setitem(python_files.RUNNERS, "numba", (*python_files.RUNNERS["numba"][:2], 300))  # it is slow
    found = judged(
        tmp_path,
        "from numba import cuda\n"
        "@cuda.jit\n"
        "def kernel(y, passed, x):\n"
        "    k = cuda.grid(1)\n"
        "    if k < x.size:\n"
        "        passed[k] = not (x[k] <= 0)\n"
        "        y[k] = x[k] if passed[k] else 0\n"
        "def relu_forward(y, passed, x):\n"
        "    kernel[(x.size + 255) // 256, 256](y, passed, x)\n",
        "relu.py",
    )
    assert found["exit_code"] == 0, found["lines"]
    assert found["verdicts"][0]["by"] == "Numba's simulator"
    assert found["verdicts"][0]["ran"] < found["verdicts"][0]["cases"]


def test_cupy_needs_a_gpu(tmp_path):
    with pytest.raises(UnavailableError, match="CuPy runs on a GPU only"):
        judged(tmp_path, "import cupy\ndef relu_forward(y, passed, x): pass\n", "one.py")


def test_pytorch(tmp_path):
    text = "import torch\ndef linear_forward(y, x, w, bias): torch.addmm(bias, x, w.T, out=y)\n"
    try:
        found = judged(tmp_path, text, "one.py")
    except UnavailableError as error:
        pytest.skip(str(error))
    assert found["exit_code"] == 0, found["lines"]
    assert python_files.RUNNERS["torch"][1] == found["verdicts"][0]["by"]


# ---- notebooks -------------------------------------------------------------------------------------------------------


def test_a_cell_is_judged(capsys):
    magics = {}

    class Shell:
        def register_magic_function(self, function, kind, name):
            magics[name, kind] = function

    mnist_cuda.load_ipython_extension(Shell())
    magics["judge", "cell"]("norm", NORM)
    shown = capsys.readouterr().out
    first = "RIGHT      norm.py: batch_norm_backward, op batch_norm_backward\nran        by NumPy\nnumbers    right "
    assert shown.startswith(first)
    magics["judge", "cell"]("", "void nothing() {}")
    assert capsys.readouterr().out.startswith("cell.cu:\n")
    magics["judge", "cell"]("", "import cupy\ndef relu_forward(y, passed, x): pass\n")
    assert "CuPy runs on a GPU only" in capsys.readouterr().out


def test_the_access_picture_shows_each_word_that_a_lane_asked_for():
    strided = {"file": "a.cu", "line": 3, "array": "x", "write": False, "unit": "sectors", "cost": 48, "least": 12}
    strided |= {"accesses": 3, "bytes": 4, "first": [None, *(16 * k for k in range(31))]}
    column = {**strided, "array": "tile", "unit": "turns", "first": [128 * k for k in range(32)]}
    row = {**column, "line": 4, "first": [16 * k for k in range(32)], "bytes": 16}  # 4 words a bank, and no fewer turns
    picture = access_picture.draw([strided, column, row, {}])
    assert picture.words.startswith(
        "a.cu:3 reads x: 16.0 sectors of 32 bytes a warp, 4.0 at best; a.cu:3 reads tile: 16.0 t"
    )
    styles = {
        name: [
            re.search(r'class="(\w+)"/>', shape)[1] for shape in access_picture.draw([line]).shapes if "<rect" in shape
        ]
        for name, line in (("strided", strided), ("column", column), ("row", row))
    }
    assert (styles["strided"].count("on"), styles["strided"].count("off")) == (31, 8 * 16 - 31)
    bytes_of = access_picture.draw([{**strided, "bytes": 1, "first": [*range(6), *[None] * 26]}]).svg
    assert (bytes_of.count('class="on"'), bytes_of.count('class="half"')) == (1, 1)
    assert (styles["column"].count("bad"), styles["column"].count("on")) == (32, 0)
    assert (styles["row"].count("bad"), styles["row"].count("on")) == (0, 128)
    assert xml.etree.ElementTree.fromstring(picture.svg).tag.endswith("svg")


def test_a_file_that_cannot_be_judged_ends_nothing_else(tmp_path, capsys):
    files = [tmp_path / name for name in ("norm.py", "typo.py", "none.py", "text.txt", "again.py")]
    for file, text in zip(files, (NORM, "# exercise: rleu\n", None, "", NORM), strict=True):
        if text is not None:
            file.write_text(text.replace("# exercise", "// exercise"))
    assert judging.command(files, json=True) == 2
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["file"], one["exit_code"], one["version"]) for one in found] == [
        (str(file), code, 1) for file, code in zip(files, (0, 2, 2, 2, 0), strict=True)
    ]
    assert [bool(one["error"]) for one in found] == [False, True, True, True, False]
    judging.command(files[:2], json=False)
    assert "there is no exercise 'rleu'" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UsageError, match="there is no exercise 'rleu'"):
        judging.command(files[1:2], json=False)
