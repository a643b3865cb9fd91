"""The documentation points at what is there: files, headings, environment variables and exit codes."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import plain_blocks

from mnist_cuda import cli, errors
from mnist_cuda.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "records"
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "native/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
VARIABLE = re.compile(r"\bMNIST_CUDA_[A-Z_]+\b")
MACROS = {  # of the compiler and of CMake
    "MNIST_CUDA_ARCHITECTURES",
    "MNIST_CUDA_CHOSEN",
    "MNIST_CUDA_CHOSEN_FOR",
    "MNIST_CUDA_REASONS",
}


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them; the lines of another file."""
    if page.suffix != ".md":
        return {f"L{n}" for n in range(1, len(page.read_text().splitlines()) + 1)}
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def test_every_variable_is_documented_and_every_documented_one_is_used() -> None:
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


def test_every_exit_code_is_documented() -> None:
    table = (ROOT / "docs" / "scripting.md").read_text().partition("| exit code |")[2].partition("\n\n")[0]
    codes = {int(code) for row in table.splitlines()[2:] for code in re.findall(r"\d+", row.split("|")[1])}
    declared = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert declared | {0, 130, 143} <= codes


def commands(page: Path) -> list[str]:
    """The lines of code blocks and the words in backticks that start the program, without what stands before it."""
    text = page.read_text()
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    found = (
        re.match(r"!?(?:\w+=\S+ )*((?:mnist-cuda (?=\w)|\./scripts/train\b).*)$", line)
        for line in [*plain_blocks(text), *spans]
    )
    return [match[1] for match in found if match]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if RECORDS not in page.parents], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_can_be_pasted_as_it_stands(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(page):
        bash = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert not bash.returncode, f"{command}: {bash.stderr}"
        program, *argv = shlex.split(command, comments=True)
        with contextlib.suppress(SystemExit):
            cli.make_parser().parse_args(["train", *argv] if program == "./scripts/train" else argv)
        assert not capsys.readouterr().err, command


def test_commands_are_found_in_pages() -> None:
    """A page without any would be no test."""
    found = {line.partition("  ")[0].rstrip() for line in commands(ROOT / "README.md")}
    assert {"./scripts/train", "mnist-cuda engines"} <= found
    assert len(commands(ROOT / "docs" / "commands.md")) >= 30


def test_every_command_is_explained() -> None:
    """On docs/commands.md, each by an example."""
    shown = {shlex.split(line, comments=True)[1] for line in commands(ROOT / "docs" / "commands.md")}
    assert set(COMMANDS) <= shown


def test_the_pages_say_what_the_code_does() -> None:
    """How the input is normalised; how large the README may be, and how much disk it says that set-up takes."""
    page = (ROOT / "docs" / "network.md").read_text()
    model = (ROOT / "native" / "include" / "mnist" / "model.h").read_text()
    mean, std = (re.search(rf"kPixel{name} = ([\d.]+);", model) for name in ("Mean", "Std"))
    assert mean
    assert std
    assert f"x = (u/255 - {mean[1]}) / {std[1]}" in page
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 130
    start = readme.partition("## Start")[2].partition("\n## ")[0]
    assert re.search(r"[\d.]+ GB of disk", start)
