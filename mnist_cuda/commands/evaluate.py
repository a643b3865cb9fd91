"""Test a saved model on the 10,000 test images."""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_engine_flags,
    add_evaluation_flag,
    add_json_flag,
    add_model_argument,
    model_file,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_model_argument(parser)
    add_evaluation_flag(parser)
    add_json_flag(parser)
    add_engine_flags(parser)
    add_data_flags(parser, None, "the one that the model was trained on")


def run(args: argparse.Namespace) -> int:
    """Evaluate."""
    args.file = model_file(args.file)
    from mnist_cuda.startup import Startup

    Startup(args.engine, args.device, args.dataset)
    from mnist_cuda import evaluate

    return evaluate.command(args)
