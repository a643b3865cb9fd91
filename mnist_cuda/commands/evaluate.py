"""Test a saved model on the 10,000 test images."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_engine_flags,
    add_evaluation_flag,
    add_json_flag,
    add_model_argument,
    model_file,
)
from mnist_cuda.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

    from mnist_cuda.data.dataset import Dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_model_argument(parser)
    add_evaluation_flag(parser)
    text = "also print what each class was taken for, and its errors; --json always has them"
    parser.add_argument("--confusion", action="store_true", help=text)
    add_json_flag(parser)
    add_engine_flags(parser)
    add_data_flags(parser, None, "the one that the model was trained on")


def _load_data(args: argparse.Namespace, trained_on: str | None, out: Console) -> Dataset:
    """The data set asked for, by default the model's own: from the folder that its run read, if that still exists.

    A mirror that was named is asked instead of that folder.
    """
    from mnist_cuda.data import dataset
    from mnist_cuda.run_folder import recorded_data_dir

    name, data_dir, gone = args.dataset or trained_on or "auto", args.data_dir, ""
    if data_dir and not args.dataset and name == "synthetic":
        name = "auto"  # files were named, and synthetic digits have none
    named = data_dir or args.dataset or args.mirror
    recorded = None if named or name == "synthetic" else recorded_data_dir(args.file)
    if recorded and recorded.is_dir():
        data_dir = recorded
        out.print(f"reading {name} from {recorded}, as the training run did")
    elif recorded:
        gone = f"; {recorded}, which the training run read, is gone: name the folder by --data-dir"
    try:
        return dataset.load(name, data_dir=data_dir, offline=args.offline, mirror=args.mirror)
    except DataError as error:
        raise DataError(f"{error}{gone}") from error


def run(args: argparse.Namespace) -> int:
    """Evaluate, and print a line or an object."""
    from mnist_cuda.startup import Startup

    args.file = model_file(args.file)
    Startup(args.engine, args.device, args.dataset)
    from dataclasses import asdict

    from mnist_cuda import confusion, console
    from mnist_cuda.checkpoint import load_model
    from mnist_cuda.engine import Engine
    from mnist_cuda.evaluation import evaluate, set_model
    from mnist_cuda.json_output import JsonOutput

    output = JsonOutput(args.json)
    model = load_model(args.file)
    engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)
    set_model(engine, model)
    out = console.make_console(stderr=output.on_stdout)
    trained_on = model.metadata.get("dataset")
    data = _load_data(args, trained_on, out)
    if data.warning:
        console.print_warning(data.warning)
    computed = args.eval_bn == "population" and model.statistics is None
    if computed:
        out.print(
            f"{args.file} has no population statistics: computing them from the {len(data.train_labels)} training "
            f"images of {data.name}"
        )
        engine.set_dataset(data.train_images, data.train_labels)
        engine.compute_statistics()
    result = evaluate(engine, data.test_images, data.test_labels, args.eval_bn)
    answers = None
    if output or args.confusion:
        answers = confusion.answers_of(engine, data.test_images, data.test_labels, args.eval_bn)
    if output and answers:
        report = {
            "file": str(args.file),
            "accuracy": result.accuracy,
            **asdict(result),
            "eval_bn": args.eval_bn,
            "statistics_computed": computed,
            "dataset": data.name,
            "source": data.source,
            "hashes": data.hashes,
            "warning": data.warning,
            "engine": engine.info.name,
            "precision": engine.precision,
            "trained": model.metadata,
            "confusion": answers.as_dict(),
        }
        output.write(report)
    if not output.on_stdout:
        if args.confusion and answers:
            out.print("rows: the class, columns: what its images were taken for")
            console.print_table(out, confusion.COLUMNS, confusion.table(answers), right=confusion.COLUMNS[1:])
        other = trained_on if trained_on not in (None, data.name) or trained_on == "synthetic" else None
        origin = f"trained on {'synthetic digits' if other == 'synthetic' else other}; " if other else ""
        out.print(
            f"{100 * result.accuracy:.2f} % of {result.count} test images of {data.name} right, loss {result.loss:.4f} "
            f"({origin}engine {engine.info.name}, {engine.precision}, {args.eval_bn} statistics)"
        )
    return 0
