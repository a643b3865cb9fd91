"""What is handed on: scripts/check wheel notices broken promises, the sdist is whole, baselines keep their names."""

import ast
import contextlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from checks import wheel as check
from tiny import ROOT, shell_program

NAME = "mnist_cuda-0.1.0-cp312-abi3-manylinux_2_34_x86_64.whl"
MODULE = "mnist_cuda/_native.abi3.so"


def test_the_name_says_which_glibc():
    assert check.required_glibc(Path(NAME)) == (2, 34)
    assert check.required_glibc(Path("a-1-cp310-cp310-manylinux_2_17_x86_64.manylinux_2_41_x86_64.whl")) == (2, 17)
    with pytest.raises(check.BrokenPromiseError, match=r"newer glibc than 2\.35"):
        check.required_glibc(Path(NAME.replace("2_34", "2_36")))
    with pytest.raises(check.BrokenPromiseError, match="no manylinux tag"):
        check.required_glibc(Path("mnist_cuda-0.1.0-cp312-abi3-linux_x86_64.whl"))


def test_size_and_contents(tmp_path, monkeypatch):
    wheel = tmp_path / NAME
    whole = (MODULE, *check.PEERS)
    for names, fault in (
        ((*whole, "mnist_cuda.libs/libcudart-1.so"), "also holds mnist_cuda.libs/libcudart-1.so"),
        ((*whole, "mnist_cuda/libcudnn.so.9"), "not hold one shared object"),
        (whole[:-1], f"lacks {whole[-1]}"),
        (whole, ""),
    ):
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in names:
                archive.writestr(name, "x")
        with pytest.raises(check.BrokenPromiseError, match=fault) if fault else contextlib.nullcontext():
            check.check_contents(wheel)
    assert check.megabytes(wheel) == wheel.stat().st_size / 1e6
    monkeypatch.setattr(check, "LIMIT_MB", 0)
    with pytest.raises(check.BrokenPromiseError, match="expected at most 0"):
        check.megabytes(wheel)


def test_architectures_are_what_cuobjdump_lists(tmp_path):
    lists = (
        'case $1 in --list-elf) echo "ELF file    1: _native.1.sm_80.cubin"; '
        'echo "ELF file    2: _native.2.sm_90a.cubin"; echo "ELF file    3: _native.3.sm_120.cubin";; '
        '--list-ptx) echo "PTX file    1: _native.1.sm_120.ptx"; echo "PTX file    2: _native.2.sm_75.ptx";; esac'
    )
    tool = shell_program(tmp_path / "cuobjdump", lists)
    assert check.architectures(Path("x.so"), str(tool)) == {"75-virtual", "80-real", "90a-real", "120"}


def test_accuracy_is_held_to(tmp_path):
    place = check.Place(tmp_path, Path(sys.executable), tmp_path)

    def train(accuracy, evaluated):
        metrics = f"/bin/mkdir -p run-cpu-fp32; echo '{{\"test_accuracy\": {accuracy}}}' >run-cpu-fp32/metrics.jsonl"
        shell_program(place.program, f"{metrics}; echo '{{\"accuracy\": {evaluated}}}'")
        check.check_engine(place, "cpu", "fp32")

    train(0.98, 0.98)
    for accuracy, evaluated, fault in (
        (0.96, 0.96, r"0\.96 right after an epoch"),
        ("NaN", "NaN", "right after an epoch"),
        (0.98, 0.97, r"evaluate says 0\.97, training said 0\.98"),
    ):
        with pytest.raises(check.BrokenPromiseError, match=fault):
            train(accuracy, evaluated)


# A file of a checkout in words that a user reads; only these say so where there is a checkout.
NAMES = re.compile(r"(?<![\w/.-])(?:\./)?(?:docs|scripts|examples|tests|native)/[\w*]|\b[\w-]+\.(?:md|ipynb)\b")
IN_A_CHECKOUT = {
    "cli.py": 1,  # "in a checkout by ./scripts/train"
    "machine.py": 1,  # scripts/check itself
    "bench/op_peers.py": 2,  # beside CHECKOUT
    "bench/op_tables.py": 2,  # files that the wheel has, too, and
    "bench/machine_code.py": 1,  # a pattern for them
    "bench/variants.py": 2,  # beside CHECKOUT
    "commands/__init__.py": 1,  # where mnist_cuda/digit.png is not
    "peers/baseline.py": 1,
}


def test_no_words_name_a_file_that_a_wheel_lacks():
    """In strings, and in docstrings of commands, which are help; C++ has error messages."""
    found = Counter()
    for path in sorted((ROOT / "mnist_cuda").rglob("*.py")):
        tree = ast.parse(path.read_text())
        help_text = "commands" in path.parts
        documented = (ast.FunctionDef, ast.ClassDef) if help_text else (ast.FunctionDef, ast.ClassDef, ast.Module)
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
        silent = {id(node.body[0].value) for node in nodes}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
                found[str(path.relative_to(ROOT / "mnist_cuda"))] += bool(NAMES.search(node.value))
    assert +found == Counter(IN_A_CHECKOUT)
    for path in sorted((ROOT / "native").rglob("*")):
        if path.suffix in (".cpp", ".h", ".cu", ".cuh"):
            code = re.sub(r"//.*|#include.*", "", path.read_text())
            assert not [text for text in re.findall(r'"(?:\\.|[^"\\\n])*"', code) if NAMES.search(text)], path


def test_the_sdist_is_whole(tmp_path):
    """It holds what git tracks of the parts that build, and nothing that lies about."""
    parts = [
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "cmake",
        "docs/digit.png",
        "mnist_cuda",
        "native",
        "pyproject.toml",
    ]
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
