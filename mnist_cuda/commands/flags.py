"""Types and groups of flags that commands share. Nothing heavy is imported, so that --help is instant."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from mnist_cuda import rules
from mnist_cuda.data.catalogue import CHOICES
from mnist_cuda.rules import Number, Rule

Options = TypeVar("Options")


def options_of(kind: type[Options], args: argparse.Namespace) -> Options:
    """A command's options, a dataclass, from its flags: each field is the flag of its name, or again such options."""
    kinds = get_type_hints(kind)
    values: dict[str, Any] = {
        field.name: options_of(kinds[field.name], args)
        if is_dataclass(kinds[field.name])
        else getattr(args, field.name)
        for field in fields(kind)  # type: ignore[arg-type]
    }
    return kind(**values)


def obeying(rule: Rule) -> Callable[[str], Any]:
    """The type of a flag whose value obeys a rule."""

    def parse(text: str) -> Any:
        value: Any = text
        if isinstance(rule, Number):
            try:
                value = rule.kind(text)
            except ValueError:
                raise argparse.ArgumentTypeError(f"'{text}' is not {rule.name}") from None
        if fault := rule.fault(value):
            raise argparse.ArgumentTypeError(f"{text if isinstance(rule, Number) else repr(text)} {fault}")
        return rule.value(value)

    return parse


integer = obeying(rules.INTEGER)
positive = obeying(rules.COUNT)
non_negative = obeying(rules.NATURAL)
gpu = obeying(rules.GPU)
threads = obeying(rules.THREADS)
processes = obeying(rules.PROCESSES)
rate = obeying(rules.RATE)
percent = obeying(rules.PERCENT)
schedule = obeying(rules.SCHEDULE)


def file_ending_in(ending: str) -> Callable[[str], Path]:
    """The type of a file that may be replaced: its name has this ending."""

    def file(text: str) -> Path:
        if not text.endswith(ending):
            raise argparse.ArgumentTypeError(f"'{text}' does not end in {ending}")
        return Path(text)

    return file


def json_file(text: str) -> Path:
    """A file that `--json` may replace: its name ends in .json, so that no argument's place can cost another file."""
    if not (text == "-" or text.endswith(".json")):
        raise argparse.ArgumentTypeError(f"'{text}' does not end in .json; to print the object, put --json last")
    return Path(text)


# The short flags: each letter means the same, one or several, in every command.
#   -b --batch-size   -d --data-dir   -e --engine(s)   -j --json   -n --epochs   -o --out   -p --precision(s)
#   -q --quiet   -s --seed   -t --threads


def add_engine_flags(
    parser: argparse.ArgumentParser, threads_of: str = "threads of a CPU engine"
) -> argparse._ArgumentGroup:
    """Which engine computes, and how; returns the group for more."""
    group = parser.add_argument_group("engine")
    add = group.add_argument
    text = "an engine that `mnist-cuda engines` lists, or auto, the best one here (default: %(default)s)"
    add("-e", "--engine", default="auto", metavar="NAME", help=text)
    add(
        "-p",
        "--precision",
        metavar="P",
        help="fp32, tf32, bf16 or fp64 (default: the engine's first in `mnist-cuda engines`)",
    )
    add("-t", "--threads", type=threads, default=0, metavar="N", help=f"{threads_of} (default: one per core)")
    add("--device", type=gpu, default=0, metavar="N", help="number of the GPU (default: %(default)s)")
    return group


class _Each(argparse.Action):
    """A flag that may be repeated; as argparse's `append`, but where `given` is found out there is no list yet."""

    def __call__(self, parser: Any, namespace: Any, value: Any, _word: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, [*before, value] if isinstance(before, list) else [value])


def add_own_flag(group: argparse._ActionsContainer) -> None:
    """Kernels of the user's."""
    text = (
        "put the launchers of this .cu file, as `mnist-cuda judge` takes them, in the place of the engine's (tiled); "
        "may be repeated; the file runs with your rights"
    )
    group.add_argument("--with", dest="own", action=_Each, type=Path, default=[], metavar="FILE", help=text)


def add_data_flags(
    parser: argparse.ArgumentParser, default: str | None, otherwise: str = "%(default)s"
) -> argparse._ArgumentGroup:
    """Which data set, and where from; returns the group for more."""
    group = parser.add_argument_group("data")
    add = group.add_argument
    names = ", ".join(CHOICES)
    text = (
        f"data set: {names} (default: {otherwise}); auto: mnist, or where it can be neither read nor downloaded, drawn "
        "digits (synthetic); with --data-dir: what is there; own: what is there, even if it looks like a damaged MNIST"
    )
    add("--dataset", default=default, choices=CHOICES, metavar="NAME", help=text)
    text = (
        "read the data from there only: a folder with MNIST's four files, an .npz or .csv file, a folder of pictures "
        "by class (default: the cache, then a download)"
    )
    add("-d", "--data-dir", type=Path, metavar="PATH", help=text)
    add("--mirror", metavar="URL", help="download from this mirror (also MNIST_CUDA_MIRROR)")
    add("--offline", action="store_true", help="download nothing")
    return group


def add_limit_flag(group: argparse._ActionsContainer) -> None:
    """A part of the data."""
    text = "train on the first N training images only, for a quick look (default: all)"
    group.add_argument("--limit", type=non_negative, default=0, metavar="N", help=text)


def add_json_flag(group: argparse._ActionsContainer) -> None:
    """What a program reads."""
    text = "print one JSON object on stdout and all else on stderr, or write the object to FILE, which ends in .json"
    group.add_argument("-j", "--json", nargs="?", const=Path("-"), type=json_file, metavar="FILE", help=text)


def add_record_flags(group: argparse._ActionsContainer) -> None:
    """What a benchmark leaves behind."""
    add_json_flag(group)
    text = "write the FILE of --json even if other programs keep this machine busy; the file then says so"
    group.add_argument("--busy", action="store_true", help=text)


def add_peer_python_flag(group: argparse._ActionsContainer) -> None:
    """What runs the other frameworks: competitors.PEER_PYTHON by default."""
    text = (
        "interpreter of the other frameworks (default: .venv-peers/bin/python in a checkout, else the Python that runs "
        "this command)"
    )
    group.add_argument("--peer-python", type=Path, metavar="FILE", help=text)


def add_placement_flag(group: argparse._ActionsContainer) -> None:
    """Where the training images are."""
    text = "keep the training images in the GPU's memory (device) or the host's (default: %(default)s)"
    group.add_argument("--placement", choices=rules.PLACEMENT.words, default="device", help=text)


def add_rare_group(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The last group of a command's help: what few need."""
    return parser.add_argument_group("rarely needed")


def add_evaluation_flag(group: argparse._ActionsContainer) -> None:
    """Which statistics batch norm takes on the test images."""
    text = (
        "batch norm statistics for test images: of all training images, or of each batch of 250 (default: %(default)s)"
    )
    group.add_argument("--eval-bn", choices=rules.EVAL_BN.words, default="population", help=text)


RUN = "a run's name or folder, a file in it, or latest"  # as `find_run` takes it


def run_path(text: str) -> Path:
    """RUN, to be found by `find_run` or `find_folder`."""
    return Path(text)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Which model, to be found by `find_run`."""
    parser.add_argument("run_path", nargs="?", type=run_path, metavar="RUN", help=f"{RUN} (default: latest)")


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    """Which model, where the arguments are something else; to be found by `find_run`, too."""
    parser.add_argument("--model", type=run_path, metavar="RUN", help=f"{RUN} (default: latest)")
