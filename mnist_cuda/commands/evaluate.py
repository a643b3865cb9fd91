"""Test a saved model on the 10,000 test images."""

from __future__ import annotations

import argparse
import time

from mnist_cuda.commands.flags import (
    add_data_flags,
    add_engine_flags,
    add_evaluation_flag,
    add_json_flag,
    add_model_argument,
    add_rare_group,
    positive,
)

SAMPLE = 100  # images whose time says how long all take

EXAMPLES = ("mnist-cuda evaluate", "mnist-cuda evaluate my-run --confusion", "mnist-cuda evaluate latest --mistakes 5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    text = "also print which classes are mistaken for which; --json always has this"
    parser.add_argument("--confusion", action="store_true", help=text)
    text = "also print at most N test images that it gets wrong, the worst first"
    parser.add_argument("--mistakes", type=positive, default=0, metavar="N", help=text)
    add_json_flag(parser)
    add_engine_flags(parser)
    add_data_flags(parser, None, "the one that the model was trained on")
    add_evaluation_flag(add_rare_group(parser))


def run(args: argparse.Namespace) -> int:
    """Evaluate, and print a line or an object."""
    from mnist_cuda.run.names import find_run
    from mnist_cuda.run.startup import Startup

    Startup(args.engine, args.device, args.dataset)
    from mnist_cuda.engine import Engine
    from mnist_cuda.run import confusion
    from mnist_cuda.run.checkpoint import load_model
    from mnist_cuda.run.evaluation import evaluate, set_model
    from mnist_cuda.terminal import console
    from mnist_cuda.terminal.json_output import JsonOutput

    output = JsonOutput(args.json)
    file = find_run(args.run_path)
    model = load_model(file)
    engine = Engine(args.engine, args.precision, threads=args.threads, device=args.device)
    set_model(engine, model)
    out = console.make_console(stderr=output.on_stdout)
    trained_on = model.metadata.get("dataset")
    data = confusion.load_data_of(
        file, model, name=args.dataset, data_dir=args.data_dir, offline=args.offline, mirror=args.mirror,
        say=out.print,
    )  # fmt: skip
    if data.warning:
        console.print_warning(data.warning)
    computed = args.eval_bn == "population" and model.statistics is None
    wanted = bool(output or args.confusion or args.mistakes)
    if engine.info.device == "cpu":
        start = time.perf_counter()
        engine.logits(data.test_images[:SAMPLE], "batch")
        images = (1 + wanted) * len(data.test_labels) + computed * len(data.train_labels)
        console.Estimate(out).say((time.perf_counter() - start) * images / SAMPLE)
    if computed:
        out.print(
            f"{file} has no population statistics: computing them from the {len(data.train_labels)} training "
            f"images of {data.name}"
        )
        engine.set_dataset(data.train_images, data.train_labels)
        engine.compute_statistics()
    result = evaluate(engine, data.test_images, data.test_labels, args.eval_bn)
    answers = None
    if wanted:
        answers = confusion.answers_of(engine, data.test_images, data.test_labels, args.eval_bn, model.names)
    if output and answers:
        report = {
            "file": str(file),
            "accuracy": result.accuracy,
            "correct": result.correct,
            "count": result.count,
            "loss": result.loss,
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
            "mistakes": answers.mistakes()[: args.mistakes].tolist(),
        }
        output.write(report)
    if not output.on_stdout:
        if args.confusion and answers:
            out.print("rows: the true class, columns: the predicted class")
            columns, rows = confusion.table(answers)
            console.print_table(out, columns, rows, right=columns[1:], optional=("of", "errors"))
        if args.mistakes and answers:
            from mnist_cuda.data.picture import print_image

            wrong = answers.mistakes()
            for index in wrong[: args.mistakes]:
                title = f"{data.name} test {index}: {confusion.mistake(answers, index)}"
                print_image(out, data.test_images[index], title)
            shown = len(wrong[: args.mistakes])
            out.print(f"{len(wrong)} of {len(answers.labels)} test images are wrong, {shown} of them shown")
        other = trained_on if trained_on not in (None, data.name) or trained_on == "synthetic" else None
        origin = f"trained on {'synthetic digits' if other == 'synthetic' else other}; " if other else ""
        out.print(
            f"{100 * result.accuracy:.2f} % of {result.count} test images of {data.name} correct, "
            f"loss {result.loss:.4f} ({origin}engine {engine.info.name}, {engine.precision}, {args.eval_bn} statistics)"
        )
    return 0
