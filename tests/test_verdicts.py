"""What the judge says: three verdicts, only what it knows, and that no judged file ends or holds it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, needs_compiler
from test_judge import RELU
from tiny import prints, said

from mnist_cuda.errors import NotJudgedError, UsageError
from mnist_cuda.judge import build, exercises, judged_ops, judging, program, python_files, report, verdict
from mnist_cuda.judge.exercises import EXERCISES
from mnist_cuda.judge.hints import HINTS
from mnist_cuda.judge.judged_ops import OPS

EMULATOR = ROOT / "docs" / "emulator.md"
FILE = ROOT / "tests" / "judge" / "verdicts.cu"
pytestmark = pytest.mark.usefixtures("emulator")


def line_of(text):
    """Such as `:3: `, of the only line of verdicts.cu that has the text."""
    (found,) = (number for number, line in enumerate(FILE.read_text().splitlines(), 1) if text in line)
    return f":{found}: "


@pytest.fixture(autouse=True)
def _solved(tmp_path, monkeypatch):
    """What is solved is kept in a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """By launcher of verdicts.cu: its verdict, and its report as one line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "SECONDS", 4)
        patch.setattr(program, "MOST_WRITTEN", 4 << 20)
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        found = judging.judge_file(FILE)
    assert found["exit_code"] == 1
    assert not found["error"]
    reports = "\n".join(found["lines"]).split("\n\n")
    assert max(map(len, (line for text in reports for line in text.splitlines()[1:]))) <= judging.WIDTH
    names = [one["name"].removeprefix("relu_forward_") for one in found["verdicts"]]
    return dict(zip(names, zip(found["verdicts"], reports, strict=True), strict=True))


def words(text):
    return " ".join(text.split())


# ---- the verdicts of one file ----------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    ("name", "label", "sentences"),
    [
        ("long", "RIGHT", ["right in all 19 cases", "set, in 65 calls; inputs unchanged", "blocks, in 19 cases"]),
        ("long_long", "RIGHT", []),
        ("prints", "RIGHT", ["printed x[0] of 1 x[0] of 1", "and more: of what it prints, 5 lines"]),
        ("by_memset", "RIGHT", []),
        ("bounded", "RIGHT", []),
        ("pipes", "RIGHT", ["in 65 calls"]),
        ("ptx", "NOT JUDGED", ["does not know wgmma.fence", "right in 14 of 19 cases, the others are not known"]),
        ("nested", "NOT JUDGED", [line_of("right<<<1, 32>>>") + "the emulator has no launch inside a kernel"]),
        ("deep", "NOT JUDGED", ["wrote where only the judge's own program writes"]),
        ("odd", "NOT JUDGED", ["wrote where only the judge's own program writes"]),
        (
            "empty_tile",
            "WRONG",
            ["y[0] was stored from memory that nothing had set", "remedy store each element before"],
        ),
        (
            "threads",
            "WRONG",
            [line_of("right<<<unsigned") + "launch: a block of 2048 threads, at most 1024"],
        ),
        (
            "ragged",
            "WRONG",
            ["y[256] was never written", "right in all 3 cases whose count is a multiple of 256", "because"],
        ),
        ("endless", "WRONG", ["did not end within 4 s"]),
        (
            "waits",
            "WRONG",
            [
                "cudaErrorLaunchTimeout: a kernel that never ends",
                line_of("nobody stores it") + "deadlock: 1 thread waits for a change that no thread of the block makes",
                "and some thread store what a loop waits for: chapter 4",
            ],
        ),
        ("floods", "WRONG", ["printed or wrote more than 4 MB"]),
        ("line", "WRONG", []),
        ("text", "WRONG", ["throws: AAA"]),
        ("closes", "WRONG", ["did not end within 4 s"]),
    ],
)
def test_a_verdict_says_what_is_known(judged, name, label, sentences):
    one, text = judged[name]
    lines = text.splitlines()
    assert one["verdict"] == label.lower()
    assert lines[0] == f"{label:<{judging.MARGIN}}{FILE}: relu_forward_{name}, op relu"
    assert lines[-1].startswith(label)
    for sentence in sentences:
        assert sentence in words(text)
    if not one["calls"]:  # no assurance without a call behind it
        assert not {line.split()[0] for line in lines if line[:1].strip()} & {"memory", "bits"}


def test_every_label_fits_its_margin_and_every_remedy_has_its_chapter():
    assert max(map(len, report.STYLES)) < judging.MARGIN
    for sentence, chapter in (*report.REMEDIES.values(), report.UNWRITTEN):
        assert list((ROOT / "docs" / "guide").glob(f"{chapter:02}-*.md"))
        assert len(sentence) < 140
    kinds = set(re.findall("`(.*?)`", "".join(re.findall("^[|] (`.*?) [|]", EMULATOR.read_text(), re.MULTILINE))))
    assert kinds - {"instruction", "unsupported"} <= report.REMEDIES.keys()  # these two are the emulator's


# ---- files that are not judged ---------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("#include <cstdint>", 'extern "C" void __tsan_read4(void*) {}'), "line 3 names __tsan_read4"),
        (
            ("#include <cstdint>", '#define J(a, b) a##b\nextern "C" void J(__ts, an_read4)(void*) {}'),
            "it defines __tsan_read4",
        ),
        (
            ("#include <cstdint>", 'extern "C" long write(int, const void*, unsigned long) { return 0; }'),
            "it defines write",
        ),
        (
            ("#include <cstdint>", "int n; __attribute__((constructor(101))) void first() { n = 1; }"),
            "it has code that runs before the judge's: section .init_array.00101",
        ),
        (("__global__", "namespace emulator { void reset(); }\n__global__"), "line 4 names emulator"),
        (("#include <cstdint>", "#include <cublas_v2.h>"), "the emulator does not have cublas_v2.h, line 3"),
        (("kernel<<<", "cudaMallocAsync(nullptr, 4, stream);\n  kernel<<<"), "does not have cudaMallocAsync, line 9"),
    ],
)
def test_what_the_emulator_cannot_take_is_not_judged(tmp_path, capsys, change, why):
    file = tmp_path / 'a "quoted" \\ name é.cu'
    assert RELU.count(change[0]) == 1
    file.write_text(RELU.replace(*change))
    code, shown, _ = said(capsys, "judge", file)
    assert code == NotJudgedError.exit_code
    assert why in words(shown)
    lines = shown.splitlines()
    assert lines[0].startswith("NOT JUDGED ")
    assert lines[-1].startswith("NOT JUDGED ")


@needs_compiler
def test_what_does_not_compile_is_told_by_the_files_own_name(tmp_path):
    file = tmp_path / 'a "quoted" \\ name é.cu'
    file.write_text(RELU.replace("if (k < count)", "__synchthreads(); if (k < count)"))
    error = f"{file.name}:6:3: error: ‘__synchthreads’ was not declared in this scope; did you mean ‘__syncthreads’?"
    found = judging.judge_file(file)
    assert (found["exit_code"], error in found["error"]) == (1, True)
    file.write_text(RELU.replace("int64_t count, cudaStream_t", "int count, cudaStream_t"))
    found = judging.judge_file(file)
    assert found["exit_code"] == 2
    assert found["error"].startswith("relu_forward has other parameters than relu's launchers: void relu_forward(")


@needs_compiler
def test_a_failing_report_has_the_compilers_warnings(tmp_path):
    file = tmp_path / 'a "quoted" \\ name é.cu'
    # In Latin-1, as old files are.
    text = RELU.replace("if (k < count)", "float none;  // größer\n  if (k < count)").replace(
        "? x[k] : 0", "? x[k] * none : 0"
    )
    file.write_bytes(text.encode("latin-1"))
    found = judging.judge_file(file)
    (one,) = found["verdicts"]
    assert one["warnings"] == [f"{file.name}:7: ‘none’ may be used uninitialized [-Wmaybe-uninitialized]"] or one[
        "warnings"
    ] == [f"{file.name}:7: ‘none’ is used uninitialized [-Wuninitialized]"]
    shown = any(line.startswith("g++ warns") for line in found["lines"])
    assert shown == (one["verdict"] == "wrong")


def test_whatever_fails_is_that_files_verdict_and_the_next_one_is_judged(tmp_path, monkeypatch, capsys):
    def fails(text):
        if "bad" in text:
            raise IndexError("list index out of range")
        return [], []

    monkeypatch.setattr(python_files, "find", fails)
    files = [tmp_path / name for name in ("bad.py", "good.py")]
    for file in files:
        file.write_text(file.stem)
    assert judging.command(files, json=False) == 8
    shown = words(capsys.readouterr().out)
    assert "bad.py the judge itself failed, by IndexError: list index out of range" in shown
    assert "good.py: it has no launcher" in shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = " + "(" * 5000 + ")" * 5000, "too many nested parentheses"),
        ("x = 1\0", "null bytes"),
        ("x = " + "-" * 100000 + "1", ""),
    ],
)
def test_what_python_cannot_read_does_not_compile(tmp_path, text, why):
    (tmp_path / "one.py").write_text(text)
    found = judging.judge_file(tmp_path / "one.py")
    assert found["exit_code"] == 1
    assert why in found["error"]


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.cu")
    (tmp_path / "folder.cu").mkdir()
    with (tmp_path / "long.cu").open("wb") as file:
        file.truncate(judging.MOST_BYTES + 1)
    for name, why in (("pipe", "is no regular file"), ("folder", "Is a directory"), ("long", "longer than 4 MB")):
        with pytest.raises(UsageError, match=why):
            judging.judge_file(tmp_path / f"{name}.cu")


# ---- sizes, and what comes next --------------------------------------------------------------------------------------


def right_at(op, condition):
    """The sentence on a kernel that is right in the cases that fit, and wrong in the others."""
    bad = {case: not condition(case) for case in (*op.cases, judged_ops.Case(op.cost.sizes, calls=1))}
    return verdict._right_sizes(op, bad)


def test_sizes_at_which_a_kernel_is_right():
    linear, relu = OPS["linear_forward"], OPS["relu_forward"]
    all_32 = right_at(linear, lambda case: all(size % 32 == 0 for size in case.sizes))
    assert all_32 == "in all 3 cases whose sides (batch, in, out) are multiples of 32"
    assert right_at(linear, lambda case: case.sizes[1] % 64 == 0) == "in all 5 cases whose in is a multiple of 64"
    assert right_at(relu, lambda case: case.sizes[0] % 256 == 0) == ("in all 3 cases whose count is a multiple of 256")
    assert right_at(relu, lambda case: False) == right_at(relu, lambda case: True) == ""
    assert right_at(relu, lambda case: case.sizes[0] != 4096) == ""


def counters(**waste):
    return verdict.Counters("", 2.0, 4.0, 9.0, 0.6, 4.0, 3.0, 1, 0, [], waste)


def test_the_next_step_is_what_costs_most_and_never_a_solved_exercise():
    one = verdict.Verdict("linear_forward", "linear", counters=counters(sectors=5.0, turns=70.0, traffic=7, loads=6))
    assert verdict.advice(one).endswith("exercise `padding`")
    assert verdict.advice(one, {"padding"}).endswith("exercise `tile`")
    assert verdict.advice(one, {"padding", "tile"}).endswith("exercise `registers`")
    assert "lanes idle" in verdict.advice(one, {"padding", "tile", "registers", "coalesce"})
    one.faults = [{"kind": "unset"}]
    assert verdict.advice(one) == ""


def test_a_verdict_of_the_gpu_stands_where_the_emulator_knows_nothing():
    gpu = verdict.Verdict("relu_forward", "relu", by="the GPU", compiled_for="sm_90", calls=4, cases=1, ran=1)
    unknown = verdict.Verdict("relu_forward", "relu", by=build.EMULATOR, unknown=["one.cu:3: no clusters"])
    assert unknown.outcome == verdict.NOT_JUDGED
    assert not unknown.right
    merged = verdict.merge(gpu, unknown)
    assert merged.outcome == verdict.RIGHT
    assert any("no more was seen: one.cu:3: no clusters" in text for _, text in report.lines(merged, 1.0, "one.cu"))


# ---- hints, solutions and --watch ------------------------------------------------------------------------------------


def test_hints_come_one_by_one_and_then_the_solution(capsys):
    assert HINTS.keys() == EXERCISES.keys()
    hints = HINTS["tile"]
    for count in (*range(1, len(hints) + 1), len(hints)):
        shown = prints(capsys, "exercise", "hint", "tile")
        assert [hint in shown for hint in hints] == [number < count for number in range(len(hints))]
        assert ("exercise solution tile" in shown) == (count == len(hints))
    exercises.hints_file().write_text('{"tile": "x", "relu": 1}')
    assert len(exercises.next_hint(EXERCISES["tile"])[0]) == 1
    assert len(exercises.next_hint(EXERCISES["relu"])[0]) == 2
    assert said(capsys, "exercise", "hint", "tiel")[0] == UsageError.exit_code
    assert exercises.answer(EXERCISES["tile"]) in prints(capsys, "exercise", "solution", "tile") + "\n"


def test_the_first_exercises_are_short():
    for name in list(EXERCISES)[:5]:
        assert len(exercises.skeleton(EXERCISES[name]).splitlines()) <= 40, name


@pytest.mark.usefixtures("heard")
def test_watch_judges_again_after_each_save(tmp_path):
    file = tmp_path / "one.py"
    file.write_text("def relu_forward(y): pass\n")
    command = [sys.executable, "-m", "mnist_cuda", "judge", "--watch", file]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    try:
        assert child.stdout.readline() == f"{file}:\n"
        assert "relu_forward has 1 parameters" in child.stdout.readline()
        assert "Ctrl-C ends it" in child.stderr.readline()
        new = tmp_path / "new"
        new.write_text("nothing = 1\n")
        file.unlink()  # as some editors save
        time.sleep(3 * judging.POLL)
        new.rename(file)
        assert child.stdout.readline() == f"{file}:\n"
        assert "it has no launcher" in child.stdout.readline()
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(20)
        child.stdout.close()
        child.stderr.close()
    assert child.returncode == 128 + signal.SIGINT


def test_colours_are_for_a_terminal(tmp_path):
    file = Path(tmp_path, "one.py")
    file.write_text("import numpy as np\ndef relu_forward(y, p, x):\n    p[:] = ~(x <= 0)\n    y[:] = x\n")
    command = f"{sys.executable} -m mnist_cuda judge {file}"
    shown = subprocess.run(
        ["script", "-qec", command, os.devnull], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if shown.returncode == 127:
        pytest.skip("script, of util-linux, is not here")
    first, *_, last = shown.stdout.strip().splitlines()
    assert first.startswith("\x1b[1;31mWRONG ")
    assert last.startswith("\x1b[1;31mWRONG ")
    plain = subprocess.run(command.split(), capture_output=True, text=True)
    assert "\x1b" not in plain.stdout
    assert plain.returncode == shown.returncode == 1
