"""What is handed on: scripts/check wheel notices broken promises, the sdist is whole, baselines keep their names."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from checks import wheel as check
from tiny import ROOT, shell_program

NAME = "mnist_cuda-0.1.0-cp312-abi3-manylinux_2_34_x86_64.whl"
MODULE = "mnist_cuda/_native.abi3.so"
METADATA = """\
Metadata-Version: 2.2
Name: mnist-cuda
Version: 0.1.0
Requires-Dist: numpy>=1.26
Requires-Dist: cuda-python<14,>=12.9
Requires-Dist: nvidia-cudnn-cu12<10,>=9.10
Requires-Dist: pytest>=8; extra == "test"

It reads well.
"""


def make_wheel(folder, *names):
    path = folder / NAME
    with zipfile.ZipFile(path, "w") as archive:
        for name in names or (MODULE, *check.PEERS):
            archive.writestr(name, "x")
        archive.writestr("mnist_cuda-0.1.0.dist-info/METADATA", METADATA)
    return path


# ---- the file --------------------------------------------------------------------------------------------------------


def test_the_name_says_which_glibc():
    assert check.required_glibc(Path(NAME)) == (2, 34)
    assert check.required_glibc(Path("a-1-cp310-cp310-manylinux_2_17_x86_64.manylinux_2_41_x86_64.whl")) == (2, 17)
    with pytest.raises(check.BrokenPromiseError, match=r"newer glibc than 2\.35"):
        check.required_glibc(Path(NAME.replace("2_34", "2_36")))
    with pytest.raises(check.BrokenPromiseError, match="no manylinux tag"):
        check.required_glibc(Path("mnist_cuda-0.1.0-cp312-abi3-linux_x86_64.whl"))


def test_size_and_contents(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path)
    assert check.megabytes(wheel) == wheel.stat().st_size / 1e6
    check.check_contents(wheel)
    for names, fault in (
        ((MODULE, *check.PEERS, "mnist_cuda.libs/libcudart-1.so"), "also holds mnist_cuda.libs/libcudart-1.so"),
        ((MODULE, *check.PEERS, "tests/conftest.py"), "also holds tests/conftest.py"),
        ((MODULE, *check.PEERS, "mnist_cuda/libcudnn.so.9"), "not hold one shared object"),
        ((MODULE, *check.PEERS[:2]), f"lacks {check.PEERS[2]}"),
    ):
        with pytest.raises(check.BrokenPromiseError, match=fault):
            check.check_contents(make_wheel(tmp_path, *names))
    monkeypatch.setattr(check, "LIMIT_MB", 0)
    with pytest.raises(check.BrokenPromiseError, match="expected at most 0"):
        check.megabytes(wheel)


def test_what_only_a_gpu_needs_is_left_out(tmp_path):
    assert check.requirements(make_wheel(tmp_path)) == (
        ["numpy>=1.26"],
        ["cuda-python<14,>=12.9", "nvidia-cudnn-cu12<10,>=9.10"],
    )


def test_architectures_are_what_cuobjdump_lists(tmp_path):
    lists = (
        'case $1 in --list-elf) echo "ELF file    1: _native.1.sm_80.cubin"; '
        'echo "ELF file    2: _native.2.sm_90a.cubin"; echo "ELF file    3: _native.3.sm_120.cubin";; '
        '--list-ptx) echo "PTX file    1: _native.1.sm_120.ptx"; echo "PTX file    2: _native.2.sm_75.ptx";; esac'
    )
    tool = shell_program(tmp_path / "cuobjdump", lists)
    assert check.architectures(Path("x.so"), str(tool)) == {"75-virtual", "80-real", "90a-real", "120"}


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a `mnist-cuda` that does what place.behave says."""
    monkeypatch.setattr(check, "tool", lambda _: str(shell_program(tmp_path / "tool" / "cuobjdump", ":")))
    shell_program(tmp_path / "bin" / "mnist-cuda", "exit 9")
    place = check.Place(tmp_path, Path(sys.executable), tmp_path / "bin")
    place.behave = lambda text: shell_program(tmp_path / "bin" / "mnist-cuda", text)
    return place


def test_a_command_that_fails_breaks_the_promise(place):
    place.behave('echo "half done"; echo "the reason" >&2; exit 4')
    with pytest.raises(check.BrokenPromiseError) as error:
        place.mnist_cuda("engines", "--json")
    assert str(error.value) == "exit code 4, expected 0: mnist-cuda engines --json\nhalf done\nthe reason\n"


def test_commands_see_no_compiler_and_few_variables(place, tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CUDA_MIRROR", "http://127.0.0.1:9/")
    place.behave("export -p")
    shown = place.mnist_cuda("x")
    assert str(tmp_path / "home") in shown
    assert "MNIST_CUDA_MIRROR" not in shown
    shell_program(tmp_path / "bin" / "g++", "exit 0")
    with pytest.raises(check.BrokenPromiseError, match=r"a clean environment has no g\+\+"):
        check.Place(tmp_path / "bin", Path(sys.executable), tmp_path / "bin")


def test_the_module_must_be_the_wheels_and_hold_what_it_says(place, monkeypatch):
    answers = {"file": "/site/_native.so", "cuda": "80"}
    monkeypatch.setattr(
        place, "evaluate", lambda expression: answers["cuda" if "cuda_status" in expression else "file"]
    )
    with pytest.raises(check.BrokenPromiseError, match=r"cuobjdump finds \[\], the module says \['80'\]"):
        check.check_module(place)
    answers["file"] = str(ROOT / MODULE)
    with pytest.raises(check.BrokenPromiseError, match="expected the wheel's module"):
        check.check_module(place)


def test_a_row_without_a_time_is_noticed(place):
    place.behave(":")

    def bench(peer_python, commit=None, **times):
        rows = [{"competitor": name.replace("_", " "), "us": us} for name, us in times.items()]
        (place.work / "bench.json").write_text(json.dumps({"commit": commit, "rows": rows}))
        check.check_bench(place, ["cpu"], peer_python)

    bench(None, cpu={"median": 1})
    bench("python3", cpu={"median": 1}, torch_eager_NCHW={"median": 2})
    with pytest.raises(check.BrokenPromiseError, match="no time of torch eager NCHW"):
        bench("python3", cpu={"median": 1}, torch_eager_NCHW=None)
    with pytest.raises(check.BrokenPromiseError, match="no time of cpu"):
        bench("python3", cpu=None, torch_eager_NCHW={"median": 2})
    with pytest.raises(check.BrokenPromiseError, match="commit 15019f9"):
        bench(None, commit="15019f9", cpu={"median": 1})


def test_the_remedy_without_a_checkout(place):
    place.behave("echo 'python has no torch; `pip install torch numpy` in an environment of its own' >&2; exit 4")
    check.check_remedy(place)
    place.behave("echo 'python has no torch; `scripts/peers` installs it' >&2; exit 4")
    with pytest.raises(check.BrokenPromiseError, match="scripts/peers"):
        check.check_remedy(place)


def test_accuracy_is_held_to(place):
    def train(accuracy, evaluated):
        place.behave(
            f"/bin/mkdir -p run-cpu-fp32; echo '{{\"test_accuracy\": {accuracy}}}' >run-cpu-fp32/metrics.jsonl; "
            f"echo '{{\"accuracy\": {evaluated}}}'"
        )
        check.check_engine(place, "cpu", "fp32")

    train(0.98, 0.98)
    with pytest.raises(check.BrokenPromiseError, match=r"0\.96 right after an epoch"):
        train(0.96, 0.96)
    with pytest.raises(check.BrokenPromiseError, match=r"right after an epoch"):
        train("NaN", "NaN")
    with pytest.raises(check.BrokenPromiseError, match=r"evaluate says 0\.97, training said 0\.98"):
        train(0.98, 0.97)


# ---- scripts/wheels, the sdist and the baselines ---------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--out"], ["/no/such/python"]])
def test_wheels_names_what_is_wrong(arguments):
    run = subprocess.run([ROOT / "scripts" / "wheels", *arguments], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert arguments[0] in run.stderr


def test_the_sdist_is_whole(tmp_path):
    """It holds what git tracks of the parts that build, and nothing that lies about."""
    parts = ["CMakeLists.txt", "LICENSE", "README.md", "cmake", "mnist_cuda", "native", "pyproject.toml"]
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *parts]
    tracked = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode or not tracked.stdout:
        pytest.skip("not a git checkout: what belongs in the sdist is not known")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == set(tracked.stdout.split()) | {"PKG-INFO"}


@pytest.mark.parametrize(("name", "module"), [("pytorch", "torch"), ("jax", "jax")])
def test_a_baselines_old_name_runs_it(name, module, tmp_path, monkeypatch):
    """With the arguments, the interpreter and the exit code; tests of the baseline itself go by this name, too."""
    (tmp_path / f"{module}.py").write_text("raise ImportError('not today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = ROOT / "scripts" / f"{name}_baseline.py"
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith(f"error: {sys.executable} has no ")
    assert "(not today)" in run.stderr
    assert run.stderr.count("\n") == 1
