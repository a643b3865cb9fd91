"""Read the digit in a picture of any size, colour and lighting.

For a picture it prints the 28x28 pixels that the network saw and ten probabilities, for a folder a table. A picture
that does not look like a digit gets a warning.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnist_cuda.commands.flags import add_engine_flags, add_json_flag, add_model_flag
from mnist_cuda.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from mnist_cuda.data.digit import Digit

# A best probability below this is called unsure. After one epoch with the defaults that is so of 2.6 % of MNIST's test
# images, and the network is wrong about 40 % of these; about the others it is wrong in 0.8 %.
SURE = 0.7

_BAR = 24  # characters of a bar for 100 %

EXAMPLES = ("mnist-cuda predict docs/digit.png", "mnist-cuda predict photos --model first")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    text = "a picture, a folder of pictures, or - for a picture on standard input"
    parser.add_argument("image", nargs="+", type=Path, metavar="IMAGE", help=text)
    add_model_flag(parser)
    add_json_flag(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Predict."""
    import numpy as np

    from mnist_cuda.data.picture_file import require_pillow
    from mnist_cuda.engine import Engine
    from mnist_cuda.run.checkpoint import load_model, no_statistics
    from mnist_cuda.run.evaluation import predict, set_model
    from mnist_cuda.run.names import find_run
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    require_pillow()
    output = JsonOutput(args.json)
    out = console.make_console(stderr=output.on_stdout)
    file = find_run(args.model)
    model = load_model(file)
    if model.statistics is None:
        raise no_statistics(str(file))
    if model.metadata.get("dataset") == "fashion-mnist":
        console.print_warning(f"{file} was trained on fashion-mnist: the classes that it names are not digits")
    files = [found for named in args.image for found in _files(named)]
    digits = _digits([path for path, _ in files], out)
    engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)
    set_model(engine, model)
    read = [digit for digit in digits if not isinstance(digit, DataError)]
    probabilities = predict(engine, np.stack([digit.pixels for digit in read])).probabilities if read else np.empty(0)
    rows = iter(probabilities)
    reports: list[dict[str, Any]] = []
    table: list[tuple[str, ...]] = []
    for (path, in_folder), digit in zip(files, digits, strict=True):
        if isinstance(digit, DataError):
            print("mnist-cuda: error:", digit, file=sys.stderr)
            reports.append({"file": str(path), "error": str(digit)})
            continue
        row = next(rows)
        report = _report(path, digit, row)
        reports.append(report)
        if in_folder:
            table.append((str(path), *_answer(report), report["doubt"]))
        elif not output.on_stdout:
            _show(out, digit, row, report)
    if table and not output.on_stdout:
        console.print_table(out, ("file", "digit", "probability", "doubt"), table, right=("digit", "probability"))
    facts = {"model": str(file), "engine": engine.info.name, "precision": engine.precision}
    output.write({**facts, "trained": model.metadata, "images": reports})
    return 0 if len(read) == len(files) else DataError.exit_code


def _files(named: Path) -> list[tuple[Path, bool]]:
    """The files that an argument names, and for each whether it is from a folder."""
    from mnist_cuda.data.picture_file import picture_files

    return [(path, True) for path in picture_files(named)] if named.is_dir() else [(named, False)]


def _digits(paths: list[Path], out: Console) -> list[Digit | DataError]:
    """For each file its digit, or why it cannot be read."""
    from mnist_cuda.data.digit import as_mnist
    from mnist_cuda.data.picture_file import read_picture
    from mnist_cuda.terminal.console import LiveLine

    digits: list[Digit | DataError] = []
    with LiveLine(out, enabled=len(paths) > 1) as line:
        for count, path in enumerate(paths):
            line.show(count / len(paths), f"{count} of {len(paths)} pictures")
            try:
                digits.append(as_mnist(read_picture(path)))
            except DataError as error:
                digits.append(error)
    return digits


def _report(path: Path, digit: Digit, probabilities: NDArray[np.float64]) -> dict[str, Any]:
    """A picture's part of the object of `--json`."""
    best = int(probabilities.argmax())
    blank = not digit.pixels.any()
    unsure = "" if probabilities[best] >= SURE else "the network is not sure"
    return {
        "file": str(path),
        "digit": None if blank else best,
        "probability": None if blank else float(probabilities[best]),
        "probabilities": None if blank else probabilities.tolist(),
        "doubt": digit.doubt or unsure,
        "dark_on_light": digit.dark,
        "box": digit.box,
    }


def _answer(report: dict[str, Any]) -> tuple[str, str]:
    """Digit and probability for people."""
    return ("-", "-") if report["digit"] is None else (str(report["digit"]), _percent(report["probability"]))


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %"


def _show(out: Console, digit: Digit, probabilities: NDArray[np.float64], report: dict[str, Any]) -> None:
    """Print the answer, and the pixels beside the bars."""
    from rich.text import Text

    from mnist_cuda.data.picture import render
    from mnist_cuda.terminal.console import coloured, on_terminal, print_warning

    if report["digit"] is not None:
        out.print(f"{report['file']}: {', '.join(_answer(report))}")
        lines = render(digit.pixels, colour=coloured(out), encoding=out.encoding).splitlines()
        full = "=" if out.options.ascii_only else "━"
        length = min(_BAR, max(0, out.width - 41)) if on_terminal(out) else _BAR  # 41: what stands around a bar
        for row, line in enumerate(lines, start=-2):  # the bars stand in the middle
            text = Text.from_ansi(line)
            if 0 <= row < len(probabilities):
                bar = f"{full * round(length * probabilities[row]):{length}} " if length else ""
                style = "bold green" if row == report["digit"] else ""
                text.append(f"   {row} {bar}{_percent(probabilities[row]):>7}", style)
            text.rstrip()
            out.print(text)
    if report["doubt"]:
        print_warning(f"{report['file']}: {'this looks like no digit: ' if digit.doubt else ''}{report['doubt']}")
