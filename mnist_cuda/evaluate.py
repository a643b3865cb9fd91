"""Accuracy and loss on a set of images, and the `evaluate` command."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mnist_cuda import console
from mnist_cuda.checkpoint import load_checkpoint
from mnist_cuda.engine import BatchNorm, Engine
from mnist_cuda.errors import DataError
from mnist_cuda.json_output import JsonOutput
from mnist_cuda.run_folder import recorded_data_dir

if TYPE_CHECKING:
    from rich.console import Console

    from mnist_cuda.data.dataset import Dataset

# Images a call. With batch statistics it is also the batch; it divides the 10,000 test images.
BATCH_SIZE = 250


@dataclass(frozen=True)
class Evaluation:
    """How many of `count` images were right, and their mean loss."""

    correct: int
    count: int
    loss: float

    @property
    def accuracy(self) -> float:
        """Fraction of images that were right."""
        return self.correct / self.count


def evaluate(
    engine: Engine, images: NDArray[np.uint8], labels: NDArray[np.uint8], batch_norm: BatchNorm = "population"
) -> Evaluation:
    """Evaluate images (N,28,28) uint8 with labels (N,). An image whose scores are not finite is wrong.

    batch_norm: `population` needs the engine's statistics; `batch` normalises each BATCH_SIZE images by their own.
    """
    if batch_norm == "population":
        engine.set_evaluation_set(images, labels)
        return evaluate_again(engine)
    correct, loss = 0, 0.0
    for first in range(0, len(labels), BATCH_SIZE):
        of_batch = labels[first : first + BATCH_SIZE]
        scores = engine.logits(images[first : first + BATCH_SIZE], batch_norm)
        finite = np.isfinite(scores).all(axis=1)
        correct += int(((scores.argmax(axis=1) == of_batch) & finite).sum())
        shifted = scores - scores.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(axis=1))
        loss += float((log_sum - shifted[np.arange(len(of_batch)), of_batch]).sum())
    return Evaluation(correct, len(labels), loss / len(labels))


def evaluate_again(engine: Engine) -> Evaluation:
    """Evaluate the images that the engine already has, by its population statistics."""
    correct, loss = engine.evaluate()
    return Evaluation(correct, engine.evaluation_size, loss)


def _load_data(args: argparse.Namespace, trained_on: str | None, out: Console) -> Dataset:
    """The data set asked for, by default the model's own: from the folder that its run read, if that still exists.

    A mirror that was named is asked instead of that folder.
    """
    from mnist_cuda.data import dataset

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


def command(args: argparse.Namespace) -> int:
    """`mnist-cuda evaluate FILE`."""
    output = JsonOutput(args.json)
    checkpoint = load_checkpoint(args.file)
    engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)
    engine.set_parameters(checkpoint.parameters)
    out = console.make_console(stderr=output.on_stdout)
    trained_on = checkpoint.metadata.get("dataset")
    data = _load_data(args, trained_on, out)
    if data.warning:
        console.print_warning(data.warning)
    computed = args.eval_bn == "population" and checkpoint.statistics is None
    if computed:
        out.print(
            f"{args.file} has no population statistics: computing them from the {len(data.train_labels)} training "
            f"images of {data.name}"
        )
        engine.set_dataset(data.train_images, data.train_labels)
        engine.compute_statistics()
    elif checkpoint.statistics is not None:
        engine.set_statistics(checkpoint.statistics)
    result = evaluate(engine, data.test_images, data.test_labels, args.eval_bn)
    if output:
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
            "trained": checkpoint.metadata,
        }
        output.write(report)
    if not output.on_stdout:
        other = trained_on if trained_on not in (None, data.name) or trained_on == "synthetic" else None
        origin = f"trained on {'synthetic digits' if other == 'synthetic' else other}; " if other else ""
        out.print(
            f"{100 * result.accuracy:.2f} % of {result.count} test images of {data.name} right, loss {result.loss:.4f} "
            f"({origin}engine {engine.info.name}, {engine.precision}, {args.eval_bn} statistics)"
        )
    return 0
