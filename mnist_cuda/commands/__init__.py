"""The commands, a module each: its docstring says what it does, `add_arguments(parser)` its flags, `run(args)` does it.

`run` returns the exit code. Only the module of the command that was chosen is imported, and what it needs to run only
when it runs. A command with commands of its own (`bench`, `data`) is a package with a table such as this one, and
perhaps with a function `spelled_out(words)`, which says what shorter words stand for.
EXAMPLES are lines that a user may type; they end the help.
"""

from pathlib import Path

# Name -> one line of help, in the order of `mnist-cuda --help`. The module has the name, with _ for -.
COMMANDS = {
    "train": "train the network and save it",
    "sweep": "train many models, and write one table of them",
    "evaluate": "test a saved model",
    "predict": "read the digit in a picture",
    "export": "write a saved model for PyTorch or ONNX Runtime",
    "runs": "list, show, compare and remove runs",
    "report": "draw the results of runs, sweeps and benchmarks on one page",
    "bench": "time engines against other frameworks",
    "profile": "time the parts of a training step",
    "exercise": "list the exercises, and begin one",
    "judge": "judge a kernel of your own, with or without a GPU",
    "engines": "list the engines, and why some cannot run here",
    "doctor": "check GPU, driver, libraries and caches, and say how to fix them",
    "data": "fetch, verify and show data sets",
    "completion": "print shell completions for bash, zsh or fish",
    "help": "print the help of a command",
}

_PICTURE = Path(__file__).parents[1] / "digit.png"  # in a wheel
EXAMPLE_PICTURE = _PICTURE if _PICTURE.is_file() else "docs/digit.png"

EXAMPLES = (
    "mnist-cuda train --epochs 1",
    "mnist-cuda evaluate latest --confusion",
    f"mnist-cuda predict {EXAMPLE_PICTURE}",
)
