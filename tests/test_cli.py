"""The command line: instant help, one line and the right exit code for every failure, plain text without a terminal."""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tiny import ENVIRONMENT, prints, said, start

from mnist_cuda import __version__, _native, cli, errors
from mnist_cuda.commands import COMMANDS, EXAMPLE_PICTURE, data, exercise, export, runs
from mnist_cuda.commands import bench as bench_command
from mnist_cuda.commands import engines as engines_command
from mnist_cuda.commands.flags import run_path
from mnist_cuda.commands.parser import RENAMED
from mnist_cuda.engine import engines
from mnist_cuda.run.checkpoint import load_model
from mnist_cuda.terminal import console, signals

ALL_COMMANDS = [
    [],
    *([name] for name in COMMANDS),
    *(["bench", name] for name in bench_command.COMMANDS),
    *(["data", name] for name in data.COMMANDS),
    *(["exercise", name] for name in exercise.COMMANDS),
    *(["export", name] for name in export.COMMANDS),
    *(["runs", name] for name in runs.COMMANDS),
]


def python(*argv, **environment):
    kept = ENVIRONMENT | {"MNIST_CUDA_CACHE": os.environ["MNIST_CUDA_CACHE"]} | environment
    return subprocess.run([sys.executable, *map(str, argv)], env=kept, capture_output=True, text=True)


@cache
def parsers(command=()):
    """Every parser of the command line by the words that lead to it, with the flags of its module."""
    parser = cli.make_parser()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        parser.parse_args([*command, "--help"])
    for word in command:
        parser = next(a.choices for a in parser._actions if isinstance(a.choices, dict) and word in a.choices)[word]
    found = {command: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name in action.choices:
                found |= parsers((*command, name))
    return found


def test_every_type_says_what_is_wrong_in_plain_words():
    """argparse's own message would have the name of a function: invalid positive value: 'x!'."""
    seen = set()
    for command, parser in parsers().items():
        for action in parser._actions:
            if action.type not in (None, Path, run_path):
                with pytest.raises(argparse.ArgumentTypeError, match="'x!' "):
                    action.type("x!")
                seen.add(" ".join((*command, action.dest)))
    assert {"train epochs", "train json", "data show index", "bench seconds", "bench accuracy jobs"} <= seen


def test_a_short_flag_is_the_same_in_every_command():
    lists = {"--engines": "--engine", "--precisions": "--precision"}
    meanings = {}
    for parser in parsers().values():
        for action in parser._actions:
            short = [flag for flag in action.option_strings if not flag.startswith("--")]
            long = [lists.get(flag, flag) for flag in action.option_strings if flag.startswith("--")]
            meanings |= {flag: meanings.get(flag, set()) | set(long) for flag in short}
            if set(long) & set().union(*meanings.values()):
                assert short, f"{parser.prog} {long} lacks its letter"
    assert all(len(names) == 1 for names in meanings.values()), meanings
    assert meanings.keys() == {f"-{letter}" for letter in "bdehjnopqst"}


def test_help_tells_the_data_flags_apart():
    flags = {flag: action.help for action in parsers()[("train",)]._actions for flag in action.option_strings}
    assert flags["--dataset"].startswith("data set: auto, mnist, ")
    assert flags["--data-dir"].startswith("read the data from there only: a folder with MNIST's four files, an .npz")
    assert flags["--placement"].startswith("keep the training images in the GPU's memory")


def test_only_the_module_of_the_chosen_command_is_imported():
    code = (
        "import sys, mnist_cuda.cli as c\n"
        "c.make_parser().parse_args(['data', 'fetch'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('mnist_cuda.commands.')))"
    )
    own = ["data", "data.fetch", "parser"]
    assert python("-c", code).stdout == f"{[f'mnist_cuda.commands.{name}' for name in own]}\n"


@pytest.mark.parametrize("command", ALL_COMMANDS, ids="-".join)
def test_help_fits(command, monkeypatch, capsys):
    kept = {line for line in (parsers()[tuple(command)].description or "").splitlines() if line.startswith(" ")}
    for columns in (80, 40):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = prints(capsys, *command, "--help")
        # argparse breaks between words only; the longest are a flag with its choices.
        lines = text.replace(str(EXAMPLE_PICTURE), "docs/digit.png").splitlines()  # a wheel lies anywhere
        assert max(len(line) for line in lines if line not in kept) <= max(columns, 60)
        assert text.startswith("usage: mnist-cuda")


@pytest.mark.parametrize("command", [[], ["train"], ["bench", "ops"], ["exercise", "start"]], ids="-".join)
def test_help_is_a_command_too(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "--help"])
    by_flag = capsys.readouterr().out
    with pytest.raises(SystemExit) as other:
        cli.main(["help", *command])
    assert (other.value.code, capsys.readouterr()) == (end.value.code, (by_flag, ""))
    assert "there is no command 'tain'" in said(capsys, "help", "tain")[2]


@pytest.mark.parametrize("command", [[], ["data"], ["export"]], ids="-".join)
def test_a_command_without_its_command_prints_help(command, capsys):
    ends = []
    for argv in (command, [*command, "--help"]):
        with pytest.raises(SystemExit) as end:
            cli.main(argv)
        ends.append((end.value.code, capsys.readouterr()))
    assert ends[0] == ends[1]
    assert ends[0][0] == 0


def test_every_help_ends_in_examples_of_its_command():
    for command, parser in parsers().items():
        heading, blank, *lines = parser.epilog.splitlines()
        assert (heading, blank) == ("examples:", "")
        assert lines, command
        for line in lines:
            words = line.split()
            assert tuple(words[: 1 + len(command)]) == ("mnist-cuda", *command)
            cli.make_parser().parse_args(words[1:])


def test_every_old_name_has_a_new_one_that_is_there():
    found = parsers()
    for old, new in RENAMED.items():
        *command, word = old.split()[1:]
        parser = found[tuple(command)]
        assert word not in parser._option_string_actions, old
        if new.startswith("--"):
            assert new in parser._option_string_actions, old
        else:
            cli.make_parser().parse_args([word.replace("N", "1") for word in new.split()[1:]])


def test_version(capsys):
    assert prints(capsys, "--version") == f"mnist-cuda {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["fly"], "there is no command 'fly', expected one of train, "),
        (["trian"], "; did you mean train?; see `mnist-cuda --help`"),
        (["data", "shwo", "7"], "; did you mean show?; see `mnist-cuda data --help`"),
        (["bench", "acuracy"], "; did you mean accuracy?"),
        (["--epochs", "3", "train"], "there is no option --epochs before the command"),
        (["train", "--epochs", "0"], "expected at least 1"),
        (["train", "--epochs", "many"], "argument -n/--epochs: 'many' is not a whole number; see"),
        (["train", "--epochs", "1.5"], "'1.5' is not a whole number"),
        (["train", "--batch-size", "-3"], "expected at least 1"),
        (["train", "--epochs", "9" * 20], "is too large, expected at most 2147483647"),
        (["profile", "--steps", "9" * 20], "is too large, expected at most 2147483647"),
        (["train", "--device", "9" * 20], "is too large, expected at most 2147483647"),
        (["bench", "ops", "--device", "9" * 20], "is too large, expected at most 2147483647"),
        (["train", "--lr", "nan"], "finite"),
        (["train", "--lr", "-1"], "at least 0"),
        (["train", "--lr", "-1e-3"], "-1e-3 is negative, expected at least 0"),
        (["bench", "time-to-accuracy", "--target", "200"], "argument --target: 200 is too large, expected at most 100"),
        (["bench", "time-to-accuracy", "--target", "nan"], "argument --target: nan is not a finite number"),
        (["train", "--lr", "fast"], "'fast' is not a number"),
        (["train", "--schedule", "cosine"], "argument --schedule: 'cosine' is unknown, expected constant, linear or"),
        (["sweep", "--schedule", "constant", "triangle:2"], "argument --schedule: 'triangle:2' is unknown, expected"),
        (["train", "--seed", "-1"], "negative"),
        (["train", "--dataset", "cifar"], "'cifar' is unknown, expected one of auto, mnist, "),
        (["train", "--dataset", "minst"], "; did you mean mnist?"),
        (["train", "--placement", "ram"], "argument --placement: 'ram' is unknown, expected one of device, host; see"),
        (["train", "--engine", "warp"], "expected auto or one of reference"),
        (["train", "--engine", "fuse"], "; did you mean fused?"),
        (["bench", "--peers", "torhc"], "; did you mean torch?"),
        (["train", "--engine", "reference", "--precision", "fp16"], "no precision fp16"),
        (["train", "--engine", "cpu", "--device", "1"], "device 1 is a GPU and engine 'cpu' runs on the CPU"),
        (["bench", "check", "--engines", "cpu", "--device", "1"], "device 1 is a GPU"),
        (["train", "--engine", "cpu", "--offline", "--mirror", "http://m/"], "with --offline nothing is fetched"),
        # No abbreviations: a later flag must not change a script's meaning.
        (["train", "--epoch", "3"], "mnist-cuda train: error: there is no option --epoch; did you mean --epochs?"),
        (["train", "--batch_size=3"], "there is no option --batch_size; did you mean --batch-size?"),
        (["train", "-epochs", "3"], "there is no option -epochs; did you mean --epochs?"),  # not -e with `pochs`
        (["train", "-x"], "there is no option -x; see `mnist-cuda train --help`"),
        (["train", "-qb8", "-n", "x"], "argument -n/--epochs: 'x' is not a whole number"),
        (["bench", "--batch", "64"], "there is no option --batch; did you mean --batch-size?"),
        # What had another name once.
        (["compare", "--engines", "cpu"], "there is no command compare any more, it is `mnist-cuda bench check` now"),
        (["bench", "batches", "--engine", "cpu"], "it is `mnist-cuda bench --all-batches` now"),
        (["bench", "sweep", "--batch-sizes", "64"], "it is `mnist-cuda bench --models 16 64` now"),
        (["bench", "--batch-sizes=64"], "there is no option --batch-sizes any more, it is `--batch-size` now"),
        (["bench", "--data", "host"], "it is `--placement` now"),
        (["bench", "accuracy", "--peer", "jax"], "it is `--peers` now"),
        (["data", "show", "--wrong"], "it is `mnist-cuda evaluate RUN --mistakes N` now"),
        (["data", "show", "--count", "3"], "it is `mnist-cuda evaluate RUN --mistakes N` now"),
        (["sweep", "--data", "host"], "it is `--placement` now"),
        (["train", "--data=host"], "there is no option --data any more, it is `--placement` now"),
        # What one question of `bench` has no use for.
        (["bench", "--all-batches", "--peers", "torch"], "--all-batches does not use --peers: leave it out"),
        (["bench", "--models", "2", "--gpus", "2"], "--models does not use --gpus: leave it out"),
        (["bench", "--models", "2", "-e", "cpu,naive"], "--engines is cpu,naive, expected one engine with --models"),
        (["train", "model"], "unexpected argument 'model'"),
        (["train", "--quiet=1"], "argument -q/--quiet: takes no value, found '1'"),
        (["train", "--dataset", "a\nb"], "'a b' is unknown"),
        (["completion", "csh"], "'csh'"),
    ],
)
def test_usage_errors_take_one_line(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(capsys, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_only_commands_see_the_command_line():
    """What a program may import takes arguments with names and types, not what argparse made of the flags."""
    package = Path(cli.__file__).parent
    others = [p for p in package.rglob("*.py") if p.parent.name != "commands" and p.parents[1].name != "commands"]
    assert len(others) > 50
    assert [str(path) for path in others if "Namespace" in path.read_text()] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("what\nhappened"), 2),
        (errors.DataError("bad"), 3),
        (errors.UnavailableError("none"), 4),
        (errors.OutOfMemoryError("full"), 5),
        (errors.CheckpointError("torn"), 6),
        (ValueError("refused by the seam"), 2),
        (MemoryError(), 5),
        (ModuleNotFoundError("No module named 'rich'", name="rich"), 4),
        (ImportError("cannot import name '_native'", name="mnist_cuda"), 4),
        (KeyboardInterrupt(), 130),
        (errors.UnavailableError(""), 4),
        (signals.Interrupted(signal.SIGTERM), 143),
        (signals.Interrupted(signal.SIGHUP), 129),
    ],
)
def test_exit_codes(error, code, monkeypatch, capsys):
    def run(args):
        raise error

    monkeypatch.setattr(engines_command, "run", run)
    assert cli.main(["engines"]) == code
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("cudaErrorLaunchFailure in launch()"), 4, "cudaErrorLaunchFailure"),
        (MemoryError("std::bad_alloc"), 5, "host memory ran out"),
    ],
)
def test_native_failures_take_one_line(error, code, words, monkeypatch, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(_native, "create_engine", fail)
    assert cli.main(["train"]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


def test_unexpected_errors_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(engines_command, "run", lambda args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["engines"])


def test_engines_lists_the_registry(capsys):
    text = prints(capsys, "engines")
    assert "\x1b" not in text
    assert [line.split()[0] for line in text.splitlines() if line[:1].isalpha()][1:] == [r.name for r in engines()]
    rows = json.loads(prints(capsys, "engines", "--json"))["engines"]
    assert [(r["name"], r["unavailable"]) for r in rows] == [(r.name, r.unavailable) for r in engines()]


def test_engines_says_which_precisions_cannot_run(older_gpu, capsys):
    lines = [" ".join(line.split()) for line in prints(capsys, "engines").splitlines()]
    assert "fused cuda fp32 tf32 bf16 no four or six kernels of our own per step" in lines
    assert lines[lines.index("cudnn cuda fp32 tf32 bf16 yes cuDNN and cuBLAS, one library call per op") + 1] == (
        f"tf32, bf16: {older_gpu}"
    )
    assert lines[-1] == "`--engine auto` takes layerwise."
    rows = {row["name"]: row for row in json.loads(prints(capsys, "engines", "--json"))["engines"]}
    assert rows["cudnn"]["unavailable_precisions"] == {"tf32": older_gpu, "bf16": older_gpu}
    assert (rows["fused"]["unavailable"], rows["cudnn"]["unavailable"]) == (older_gpu, "")


@pytest.mark.parametrize("engine", [row.name for row in engines() if row.unavailable])
def test_an_engine_that_cannot_run_here_says_why(engine, capsys):
    err = prints(capsys, "train", "--engine", engine, code=4)
    assert err.count("\n") == 1
    assert f"engine '{engine}' cannot run here: " in err


def test_a_closed_pipe_ends_quietly(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "mnist_cuda", "engines"], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_a_closed_pipe_costs_no_training(tmp_path):
    process = start("train", "--epochs", 3, "--batch-size", 5, "--engine", "reference", "--out", tmp_path / "run")
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == (
        "mnist-cuda: standard output cannot be written: Broken pipe; the run goes on without it\n"
    )
    process.stderr.close()
    assert process.wait() == 0
    assert load_model(tmp_path / "run").metadata["epochs"] == "3"


def test_no_colour_codes_in_a_file_or_under_no_color():
    code = (
        "import sys; from mnist_cuda.terminal import console; c = console.make_console(); "
        "c.print('text', style='bold red'); console.print_table(c, ('a', 'b'), [('1', '2')])"
    )
    assert python("-c", code).stdout == "text\na  b\n1  2\n"
    assert "\x1b[31m" not in python("-c", code, FORCE_COLOR="1", NO_COLOR="1").stdout


@pytest.mark.parametrize("columns", [20, 40, 80])
@pytest.mark.parametrize("classes", [("class",), ("class", "name")])
def test_a_narrow_terminal_cuts_no_number(columns, classes, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(console, "on_terminal", lambda _: True)
    numbers = [str(10**places) for places in range(3, 13)]
    header, row = [*classes, *numbers], [*("seven" for _ in classes), *(f"{n}5" for n in numbers)]
    console.print_table(console.make_console(), header, [row], right=numbers)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [header, row]


def test_a_narrow_terminal_wraps_a_line_of_a_report_beside_its_word(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    for terminal, lines in (
        (True, ["plan    3 epochs of 937 steps,", "        batch 64, lr 0.05"]),
        (False, ["plan    3 epochs of 937 steps, batch 64, lr 0.05"]),
    ):
        monkeypatch.setattr(console, "on_terminal", lambda _, terminal=terminal: terminal)
        console.print_fact(console.make_console(), "plan", "3 epochs of 937 steps, batch 64, lr 0.05")
        assert capsys.readouterr().out.splitlines() == lines


def test_an_error_is_one_write(monkeypatch, tmp_path):
    writes = []
    monkeypatch.setattr(sys, "stderr", type("Stderr", (), {"write": writes.append, "flush": lambda: None}))
    assert cli.main(["runs", "--dir", str(tmp_path / "none")]) == 2
    assert len(writes) == 1  # ranks that fail at once write lines, not mixed words
    assert writes[0].startswith("mnist-cuda: error: there is no folder ")
    assert writes[0].endswith("\n")
