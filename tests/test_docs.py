"""What the documentation says of variables, exit codes and commands is so; the site's build checks its links."""

import contextlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, plain_blocks

from mnist_cuda import cli, errors
from mnist_cuda.commands import COMMANDS

RECORDS = ROOT / "docs" / "records"
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "native/**/*.md")
    for path in ROOT.glob(pattern)
    if RECORDS not in path.parents
)
VARIABLE = re.compile(r"\bMNIST_CUDA_[A-Z_]+\b")
MACROS = {  # of the compiler and of CMake
    "MNIST_CUDA_ARCHITECTURES",
    "MNIST_CUDA_CHOSEN",
    "MNIST_CUDA_CHOSEN_FOR",
    "MNIST_CUDA_REASONS",
}


def test_every_variable_is_documented_and_every_documented_one_is_used():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("this is no checkout")
    used, documented = set(), set()
    for path in (ROOT / name for name in listing.stdout.split("\0")[:-1]):
        of_cmake = path.name == "CMakeLists.txt" or path.suffix == ".cmake"  # its variables look the same
        if of_cmake or path == Path(__file__) or path.suffix == ".npz" or RECORDS in path.parents or not path.exists():
            continue
        names = set(VARIABLE.findall(path.read_text(errors="replace")))
        if path.suffix == ".md":
            documented |= names
        else:
            used |= names
    assert documented == used - MACROS


def test_every_exit_code_is_documented():
    table = (ROOT / "docs" / "scripting.md").read_text().partition("| exit code |")[2].partition("\n\n")[0]
    codes = {int(code) for row in table.splitlines()[2:] for code in re.findall(r"\d+", row.split("|")[1])}
    declared = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.MnistCudaError)
    }
    assert declared | {0, 130, 143} <= codes


def commands(page):
    """The lines of code blocks and the words in backticks that start the program, without what stands before it."""
    text = page.read_text()
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    found = (
        re.match(r"!?(?:\w+=\S+ )*((?:mnist-cuda (?=\w)|\./scripts/train\b).*)$", line)
        for line in [*plain_blocks(text), *spans]
    )
    return [match[1] for match in found if match]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_can_be_pasted_as_it_stands(page, capsys):
    parser = cli.make_parser()
    for command in commands(page):
        bash = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert not bash.returncode, f"{command}: {bash.stderr}"
        program, *argv = shlex.split(command, comments=True)
        with contextlib.suppress(SystemExit):
            parser.parse_args(["train", *argv] if program == "./scripts/train" else argv)
        assert not capsys.readouterr().err, command


def test_every_command_is_explained():
    """On docs/commands.md, each by an example."""
    shown = {shlex.split(line, comments=True)[1] for line in commands(ROOT / "docs" / "commands.md")}
    assert set(COMMANDS) <= shown


def test_the_pages_say_what_the_code_does():
    """How the input is normalised; and how large the README may be."""
    page = (ROOT / "docs" / "network.md").read_text()
    model = (ROOT / "native" / "include" / "mnist" / "model.h").read_text()
    mean, std = (re.findall(rf"kPixel{name} = ([\d.]+);", model)[0] for name in ("Mean", "Std"))
    assert f"x = (u/255 - {mean}) / {std}" in page
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
