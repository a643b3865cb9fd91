"""The cell magic `%%judge`: the cell is a file; the judge's words and the access picture are the cell's output."""

from __future__ import annotations

import base64
import re
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from mnist_cuda.judge import access_picture


def judge_cell(line: str, cell: str) -> None:
    """`%%judge NAME`: NAME is what the report calls the file, `cell` without it."""
    from mnist_cuda.errors import MnistCudaError
    from mnist_cuda.judge.judging import judge_file

    python = re.search(r"^\s*def \w+\(", cell, re.MULTILINE)
    name = (re.sub(r"\W+", "_", line.strip()) or "cell") + (".py" if python else ".cu")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text("\n" + cell)  # lines have their numbers in the notebook, where the magic is the first
        try:
            found = judge_file(file)
        except MnistCudaError as error:
            found = {"lines": [str(error)]}
        print("\n".join(found["lines"]).replace(f"{folder}/", ""))
    for one in found.get("verdicts", []):
        if one["right"] and one["counters"]:
            _show(access_picture.draw(one["counters"]["lines"]))


def _show(picture: access_picture.Picture) -> None:
    """As an image, because the style of an SVG within a page would hold for the whole page."""
    from IPython import display

    show: Any = display.display
    data = base64.b64encode(picture.svg.replace(access_picture.DARK, "").encode()).decode()  # whatever the notebook has
    words = escape(picture.words)
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{words}" style="background:white">'
    show({"text/html": image}, raw=True)


def register(shell: Any) -> None:
    """For IPython's shell."""
    shell.register_magic_function(judge_cell, "cell", "judge")
