"""Start-up: what a command imports, asks for and begins early, and its account, which `bench around` times."""

import json
import re
import time

import pytest
import tiny
from test_cli import ALL_COMMANDS, python
from tiny import prints, start

from mnist_cuda import _native, engine
from mnist_cuda.data import unpacked
from mnist_cuda.run import startup

HEAVY = {"numpy", "rich", "requests", "urllib3", "safetensors", "platformdirs", "cuda", "importlib.metadata"}
STAGES = ["command_line", "imports", "engine", "parameters", "data", "folder", "upload", "first_step"]


def imports(*argv):
    """Which modules a Python program imports, at its start and later."""
    result = python("-X", "importtime", *argv)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    assert len(rows) > 10
    return {line.rpartition("|")[2].strip() for line in rows}


def test_importing_the_package_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import mnist_cuda; print(*sorted(set(sys.modules) - before))"
    assert python("-S", "-c", code).stdout == "mnist_cuda\n"  # -S: without the hook of an editable installation


def test_help_and_version_import_nothing_heavy():
    code = (
        "import contextlib, sys, mnist_cuda.cli as c\n"
        "for argv in eval(sys.argv[1]):\n"
        "    with contextlib.suppress(SystemExit): c.main(argv)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    found = set(python("-c", code, [["--version"], *([*command, "--help"] for command in ALL_COMMANDS)]).stderr.split())
    assert {"mnist_cuda.cli", "mnist_cuda.commands.train", "mnist_cuda.commands.data.fetch"} <= found
    assert not found & (HEAVY | {"mnist_cuda._native", "mnist_cuda.run.startup", "json", "threading"})


def test_engines_imports_no_file_formats():
    found = imports("-m", "mnist_cuda", "engines")
    assert "mnist_cuda._native" in found
    assert not found & (HEAVY - {"numpy", "rich", "cuda"})


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_training_on_the_host_imports_only_what_it_uses(tmp_path, engine):
    argv = ["train", "--engine", engine, "--epochs", 1, "--batch-size", 5, "--out", tmp_path / "run"]
    found = imports(tiny.__file__, *argv)
    assert {"numpy", "rich", "safetensors"} <= found
    assert not found & (HEAVY - {"numpy", "rich", "safetensors"} | {"cuda.pathfinder", "mnist_cuda.data.synthetic"})


@pytest.fixture
def asked(monkeypatch):
    """Which engines were asked whether they can run, and which libraries were looked for; all can run."""
    questions = []
    monkeypatch.setattr(_native, "unavailable", lambda name, device: questions.append(name) or {})
    monkeypatch.setattr(engine, "find_libraries", lambda libraries: questions.extend(libraries))
    return questions


@pytest.mark.parametrize(
    ("name", "questions"),
    [
        ("auto", ["fused"]),
        ("fused", ["fused"]),
        ("naive", ["naive"]),
        ("cpu", ["cpu"]),
        ("cudnn", ["cublasLt", "cudnn", "cudnn"]),
    ],
)
def test_only_an_engine_that_may_be_taken_is_asked_for(asked, name, questions):
    assert engine.find_engine(name).name == ("fused" if name == "auto" else name)
    assert asked == questions


def test_auto_looks_for_no_library_when_fused_cannot_run(asked, monkeypatch):
    reasons = {"fused": dict.fromkeys(("fp32", "tf32", "bf16"), "no")}
    monkeypatch.setattr(_native, "unavailable", lambda name, device: asked.append(name) or reasons.get(name, {}))
    assert engine.find_engine("auto").name == "layerwise"
    assert asked == ["fused", "layerwise"]


@pytest.mark.parametrize(("name", "warmed"), [("auto", [3]), ("fused", [3]), ("cpu", []), ("nonsense", [])])
def test_a_context_is_made_only_for_a_gpu_engine(monkeypatch, name, warmed):
    devices = []
    monkeypatch.setattr(_native, "warm_up", devices.append)
    thread = startup.Startup(name, 3, "synthetic")._threads["gpu"]
    thread.join()
    assert devices == warmed
    assert thread.seconds > 0


def test_what_goes_wrong_early_is_left_to_who_meets_it_again(monkeypatch, capfd):
    def fail(device):
        raise RuntimeError("no GPU")

    monkeypatch.setattr(_native, "warm_up", fail)
    startup.Startup("auto", 0, "synthetic")._threads["gpu"].join()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("dataset", "name"), [("auto", "mnist"), (None, "mnist"), ("fashion-mnist", "fashion-mnist")])
def test_the_data_that_will_be_asked_for_are_read_early(monkeypatch, dataset, name):
    begun = []
    monkeypatch.setattr(unpacked, "begin", begun.append)
    startup.Startup("cpu", 0, dataset)
    assert [info.name for info in begun] == [name]


def test_the_start_of_the_process_is_the_kernels():
    before = startup._now()
    code = "from mnist_cuda.run import startup; print(startup._process_start())"
    found = float(python("-c", code).stdout)
    assert before - 0.02 < found < startup._now()


def test_the_summary_says_where_the_start_went(tmp_path):
    argv = ("train", "--engine", "reference", "--epochs", 2, "--batch-size", 5, "--json", "--out", tmp_path / "run")
    begin = time.monotonic()
    process = start(*argv)
    out, err = process.communicate()
    seconds = time.monotonic() - begin
    assert process.returncode == 0, err
    report = json.loads(out)["startup_seconds"]
    assert list(report) == [*STAGES, "total", "meanwhile"]
    assert all(report[stage] > 0 for stage in STAGES)
    assert report["total"] == pytest.approx(sum(report[stage] for stage in STAGES))
    assert 0.02 < report["total"] < seconds + 0.02  # the kernel's clock ticks every 10 ms
    assert set(report["meanwhile"]) == {"gpu", "data"}


def test_bench_around_times_every_command_stage_and_call(data_dir, capsys):
    words = ["bench", "around", "-e", "cpu", "--runs", "2", "--dataset", "idx", "-d", str(data_dir), "-b", "16"]
    found = json.loads(prints(capsys, *words, "--json"))
    (runs,) = found["trainings"].values()
    assert set(STAGES) <= set(runs[0])
    assert runs[0]["total"] < runs[0]["command"]
    samples = [*found["commands"].values(), *found["calls"]["cpu fp32"].values()]
    assert len(samples) == 4 + 6
    assert all(len(times) == 2 and min(times) > 0 for times in samples)
    shown = prints(capsys, *words, "--runs", "1")
    for row in ("mnist-cuda --help", "first_step", "statistics of 83 images"):
        assert re.search(rf"^ *{row} +[\d.]+$", shown, re.MULTILINE), row
