"""The cell magic `%%judge`: the cell is a file, and the judge's words are the cell's output."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any


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


def register(shell: Any) -> None:
    """For IPython's shell."""
    shell.register_magic_function(judge_cell, "cell", "judge")
