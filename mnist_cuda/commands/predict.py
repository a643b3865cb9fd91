"""Read the digits in a picture of any size, colour and lighting.

For a picture of one digit it prints the 28x28 pixels that the network saw and a probability for each class, for one of
several the numbers that they make row by row, for a folder and those below it a table. A picture that does not look
like a digit gets a warning, and so does ink that is left out, such as a point or a minus sign; but a letter often
passes for a digit. A picture is brought into the form of the model's training images, or the one that --form names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnist_cuda.commands import EXAMPLE_PICTURE
from mnist_cuda.commands.flags import add_engine_flags, add_json_flag, add_model_flag
from mnist_cuda.errors import CheckpointError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from mnist_cuda.data.dataset import Dataset
    from mnist_cuda.data.digit import Digit
    from mnist_cuda.run.results import Model

    _Scores = tuple[NDArray[np.float64], float | None]  # probabilities, and the distance that `nearest` finds

# A best probability below this is called unsure. After one epoch with the defaults that is so of 2.6 % of MNIST's test
# images, and the network is wrong about 40 % of these; about the others it is wrong in 0.8 %.
SURE = 0.7
UNSURE = "the network is not sure"

_BAR = 24  # characters of a bar for 100 %

EXAMPLES = (f"mnist-cuda predict {EXAMPLE_PICTURE}", "mnist-cuda predict photos --model my-run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a picture, a folder of pictures, or - for a picture on standard input"
    parser.add_argument("image", nargs="+", type=Path, metavar="IMAGE", help=text)
    add_model_flag(parser)
    text = "how a picture becomes 28x28 pixels: mnist finds digits on paper, scaled takes the picture as a whole; by "
    text += "default as the model's training images did"
    parser.add_argument("--form", choices=("mnist", "scaled"), help=text)
    add_json_flag(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from mnist_cuda.data.likeness import nearest
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
    form = _form(args.form, file, model)
    names = model.classes
    if not set(names) <= set("0123456789"):
        known = ", ".join(model.names)
        print(f"{file}: the classes that it names are not digits: {known}", file=sys.stderr)
    files = [found for named in args.image for found in _files(named)]
    digits = _digits([path for path, _ in files], out, form, several=names[0] == "0")  # of garments there is one
    engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)
    set_model(engine, model)
    read = [digit for found in digits if not isinstance(found, DataError) for digit in found]
    pixels = np.stack([digit.pixels for digit in read]) if read else np.empty((0, 28, 28), np.uint8)
    answers, data = predict(engine, pixels), _training_images(file, model) if read else None
    distances = nearest(pixels, answers.classes, data.train_images, data.train_labels).tolist() if data else None
    rows = iter(zip(answers.probabilities, distances or [None] * len(read), strict=True))
    reports: list[dict[str, Any]] = []
    table: list[tuple[str, ...]] = []
    for (path, in_folder), found in zip(files, digits, strict=True):
        if isinstance(found, DataError):
            print("mnist-cuda: error:", found, file=sys.stderr)
            reports.append({"file": str(path), "error": str(found)})
            continue
        report = _report(path, found, [next(rows) for _ in found], names)
        reports.append(report)
        if in_folder:
            probability = "-" if report["text"] is None else _percent(report["probability"])
            table.append((str(path), " / ".join(report["rows"]) or "-", probability, report["doubt"]))
        elif not output.on_stdout:
            _show(out, found[0], report, names, len(model.names))
    if table and not output.on_stdout:
        console.print_table(out, ("file", "digit", "probability", "doubt"), table, right=("digit", "probability"))
    facts = {"model": str(file), "engine": engine.info.name, "precision": engine.precision, "form": form}
    output.write({**facts, "trained": model.metadata, "images": reports})
    return 0 if not any(isinstance(found, DataError) for found in digits) else DataError.exit_code


def _form(named: str | None, file: Path, model: Model) -> str:
    """The form that pictures are brought into: the named one, or the model's; a line names another than MNIST's."""
    from mnist_cuda.data.digit import FORMS, MNIST

    if (named or model.form) not in FORMS:
        expected = " or ".join(FORMS)
        raise CheckpointError(f"{file}: its form is {model.form!r}, expected {expected}: name one by --form")
    if not named and model.form != MNIST:
        print(f"{file}: pictures are made grey and scaled to 28x28, as its training images were", file=sys.stderr)
    return named or model.form


def _training_images(file: Path, model: Model) -> Dataset | None:
    """The images of MNIST that the model was trained on; None for another data set, and where they are not here."""
    from mnist_cuda.run.confusion import load_data_of

    if model.metadata.get("dataset") != "mnist":
        return None
    try:
        return load_data_of(file, model, offline=True)
    except DataError:
        print("MNIST's training images are not here, so the pictures are not compared with them", file=sys.stderr)
        return None


def _files(named: Path) -> list[tuple[Path, bool]]:
    """The files that an argument names, and for each whether it is from a folder."""
    from mnist_cuda.data.picture_file import picture_files

    return [(path, True) for path in picture_files(named)] if named.is_dir() else [(named, False)]


def _digits(paths: list[Path], out: Console, form: str, *, several: bool) -> list[list[Digit] | DataError]:
    """For each file its digits as they are read, or why it cannot be. several: whether there may be more than one."""
    from mnist_cuda.data.digit import in_form
    from mnist_cuda.data.picture_file import read_picture
    from mnist_cuda.terminal.console import Estimate, LiveLine

    digits: list[list[Digit] | DataError] = []
    estimate = Estimate(out)
    with LiveLine(out, enabled=len(paths) > 1) as line:
        for count, path in enumerate(paths):
            line.show(count / len(paths), f"{count} of {len(paths)} pictures")
            estimate.after(count / len(paths))
            try:
                digits.append(in_form(read_picture(path), form, several=several))
            except DataError as error:
                digits.append(error)
    return digits


def _report(path: Path, digits: list[Digit], answers: list[_Scores], names: Sequence[str]) -> dict[str, Any]:
    """A picture's part of the object of `--json`: of one digit, and of each."""
    each = [_one(digit, answer, names) for digit, answer in zip(digits, answers, strict=True)]
    doubts = [f"{part['name']}: {part['doubt']}" if len(each) > 1 else part["doubt"] for part in each if part["doubt"]]
    known = [part for part in each if part["digit"] is not None]
    rows: dict[int, str] = {}
    for part in known:
        rows[part["row"]] = rows.get(part["row"], "") + part["name"]
    only: dict[str, Any] = each[0] if len(each) == 1 else {}
    return {
        "file": str(path),
        "text": "\n".join(rows.values()) or None,
        "rows": list(rows.values()),
        "digit": only.get("digit"),
        "probability": min((part["probability"] for part in known), default=None),
        "probabilities": only.get("probabilities"),
        "distance": only.get("distance"),
        "doubt": "; ".join(doubts),
        "dark_on_light": digits[0].dark,
        "box": only.get("box"),
        "digits": each,
    }


def _one(digit: Digit, answer: _Scores, names: Sequence[str]) -> dict[str, Any]:
    """What there is to say of one digit."""
    from mnist_cuda.data.likeness import FAR

    probabilities, distance = answer
    best = int(probabilities.argmax())
    blank = not digit.pixels.any()
    unsure = "" if probabilities[best] >= SURE else UNSURE
    unlike = f"it is unlike every {best} of MNIST" if distance is not None and distance > FAR else ""
    return {
        "digit": None if blank else best,
        "name": "-" if blank else names[best],
        "probability": None if blank else float(probabilities[best]),
        "probabilities": None if blank else probabilities.tolist(),
        "distance": None if blank else distance,
        "doubt": "; ".join(filter(None, (digit.doubt or unlike or unsure, digit.beside))),
        "beside": digit.beside,
        "row": digit.row,
        "box": digit.box,
    }


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %"


def _show(out: Console, first: Digit, report: dict[str, Any], names: Sequence[str], count: int) -> None:
    """Print the answer, and the pixels beside the bars; of several digits the probabilities, of each row a line.

    count: of classes that are shown.
    """
    from mnist_cuda.terminal.console import print_warning

    digits = report["digits"]
    if report["text"] is not None:
        least = "least " if len(digits) > 1 else ""
        rows = f"{len(report['rows'])} rows" if len(report["rows"]) > 1 else report["text"]
        out.print(f"{report['file']}: {rows}, {least}{_percent(report['probability'])}")
        if len(report["rows"]) > 1:
            for row, text in enumerate(report["rows"]):
                least = min(part["probability"] for part in digits if part["row"] == row)
                out.print(f"  {text}  {'least ' if len(text) > 1 else ''}{_percent(least)}")
        elif len(digits) > 1:
            for part in digits:
                out.print(f"  {part['name']}  {_percent(part['probability']):>7}")
        else:
            shown = max(count, report["digit"] + 1)
            _show_bars(out, first, report["probabilities"][:shown], report["digit"], names[:shown])
    if report["doubt"]:
        no_digit = len(digits) == 1 and report["doubt"] not in (UNSURE, digits[0]["beside"])
        print_warning(f"{report['file']}: {'this looks like no digit: ' if no_digit else ''}{report['doubt']}")


def _show_bars(out: Console, digit: Digit, probabilities: Sequence[float], best: int, names: Sequence[str]) -> None:
    """The pixels that the network saw, beside a bar for each class."""
    from rich.text import Text

    from mnist_cuda.data.picture import render
    from mnist_cuda.terminal.console import coloured, on_terminal

    lines = render(digit.pixels, colour=coloured(out), encoding=out.encoding).splitlines()
    full = "=" if out.options.ascii_only else "━"
    widest = max(map(len, names))
    around = 40 + widest  # what stands around a bar
    length = min(_BAR, max(0, out.width - around)) if on_terminal(out) else _BAR
    for row, line in enumerate(lines, start=-2):  # the bars stand in the middle
        text = Text.from_ansi(line)
        if 0 <= row < len(probabilities):
            bar = f"{full * round(length * probabilities[row]):{length}} " if length else ""
            style = "bold green" if row == best else ""
            text.append(f"   {names[row]:{widest}} {bar}{_percent(probabilities[row]):>7}", style)
        text.rstrip()
        out.print(text)
