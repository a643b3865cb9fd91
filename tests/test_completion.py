"""mnist-cuda completion: what a shell offers, made from the parsers."""

import shutil
import subprocess
import sys

import pytest
from tiny import prints

from mnist_cuda.commands import COMMANDS
from mnist_cuda.commands.completion import SHELLS
from mnist_cuda.judge.exercises import EXERCISES

BASH = r"""
source "$1"
_get_comp_words_by_ref() { :; }
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
_shtab_mnist_cuda mnist-cuda "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """A file with the completion of bash, as a user makes it."""
    file = tmp_path_factory.mktemp("completion") / "mnist-cuda"
    command = [sys.executable, "-m", "mnist_cuda", "completion", "bash"]
    file.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return file


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tra"], {"train"}),
        ([""], set(COMMANDS)),
        (["train", "--sch"], {"--schedule"}),
        (["train", "--placement", "h"], {"host"}),
        (["train", "--engine", "c"], {"cpu", "cudnn"}),
        (["bench", "--engines", "ref"], {"reference"}),
        (["sweep", "--schedule", ""], {"constant", "linear", "triangle"}),
        (["bench", "ops", "--op", "conv2d_backward_"], {"conv2d_backward_data", "conv2d_backward_weight"}),
        (["runs", "show", "l"], {"latest"}),
        (["evaluate", "fi"], {"first", "file"}),
        (["train", "--resume", "fir"], {"first"}),
        (["bench", "time"], {"time-to-accuracy"}),
        (["runs", "rem"], {"remove"}),
        (["runs", "remove", "--"], {"--help", "--dir", "--yes"}),
        (["completion", ""], set(SHELLS)),
        (["exercise", "rel"], {"relu"}),
        (["exercise", "start", "bug-1"], {"bug-1", *(f"bug-1{k}" for k in range(10) if f"bug-1{k}" in EXERCISES)}),
        (["exercise", "show", "float"], {"float4"}),
        (["help", "tr"], {"train"}),
    ],
)
def test_bash_offers(script, words, expected, tmp_path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "file").touch()
    bash = shutil.which("bash") or pytest.skip("there is no bash")
    command = [bash, "-c", BASH, "bash", str(script), "mnist-cuda", *words]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert expected <= set(result.stdout.split()) <= expected | {"-h", "--help", "--version"}, result.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_hears_of_every_command(shell, capsys):
    text = prints(capsys, "completion", shell)
    for word in (*COMMANDS, "time-to-accuracy", "batch-size", "remove"):
        assert word in text, word
    program = shutil.which(shell)
    if program:
        assert subprocess.run([program, "-n"], input=text, text=True, capture_output=True).stderr == ""


def test_help_has_the_command_of_each_shell_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    lines = prints(capsys, "completion", "--help").splitlines()
    for shell in SHELLS:
        (line,) = (line for line in lines if line.startswith(f"  {shell}: "))
        assert f"mnist-cuda completion {shell} > " in line
        assert line.endswith("mnist-cuda.fish" if shell == "fish" else "mnist-cuda")
