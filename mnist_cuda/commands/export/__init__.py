"""Write a trained network in a form that other programs load."""

from __future__ import annotations

import argparse
from pathlib import Path

from mnist_cuda.commands.parser import add_commands

COMMANDS = {
    "onnx": "as an ONNX model, for ONNX Runtime and others",
    "state-dict": "as a state dict, for PyTorch",
}

EXAMPLES = ("mnist-cuda export onnx", "mnist-cuda export state-dict --model my-run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, __name__, COMMANDS, title="commands", metavar="COMMAND", required=True)


def target(out: Path | None, model: Path, name: str) -> Path:
    """The file to write: what was named, or else `name` beside the model. Never the model's own."""
    from mnist_cuda.errors import UsageError
    from mnist_cuda.run.names import MODEL_FILE

    folder, file = (model, model / MODEL_FILE) if model.is_dir() else (model.parent, model)
    path = folder / name if out is None else out
    if path.exists() and file.exists() and path.samefile(file):
        raise UsageError(f"{path}: this is the model itself; give --out another name")
    return path
