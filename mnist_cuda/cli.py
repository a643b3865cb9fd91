"""Sub-commands and flags, no logic. Nothing heavy is imported before a command runs, so that --help is instant."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from mnist_cuda import MAX_THREADS, __version__
from mnist_cuda.data.catalogue import CHOICES
from mnist_cuda.data.commands import add_data_commands
from mnist_cuda.errors import MnistCudaError, OutOfMemoryError, OutputError, UnavailableError, UsageError

Run = Callable[[argparse.Namespace], int]


def later(module: str) -> Run:
    """The `command` function of a module of this package, imported when it is called."""

    def run(args: argparse.Namespace) -> int:
        code: int = import_module(f"mnist_cuda.{module}").command(args)
        return code

    return run


def begun(run: Run) -> Run:
    """`run`, while threads already do what they can for it: read the data, make the GPU's context."""

    def wrapped(args: argparse.Namespace) -> int:
        from mnist_cuda.startup import Startup

        args.startup = Startup(args)
        return run(args)

    return wrapped


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, instead of after a screen of usage."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(UsageError.exit_code, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too small, expected at least 1")
    return value


def non_negative(text: str) -> int:
    """An integer of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative, expected at least 0")
    return value


def json_file(text: str) -> Path:
    """A file that `--json` may replace: its name ends in .json, so that no argument's place can cost another file."""
    if not (text == "-" or text.endswith(".json")):
        raise argparse.ArgumentTypeError(f"'{text}' does not end in .json; to print the object, put --json last")
    return Path(text)


def threads(text: str) -> int:
    """A number of threads; 0 for one a core."""
    value = non_negative(text)
    if value > MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{value} is too many, expected at most {MAX_THREADS}")
    return value


def rate(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Which engine computes, and how."""
    group = parser.add_argument_group("engine")
    add = group.add_argument
    add("--engine", default="auto", metavar="NAME", help="one that `mnist-cuda engines` lists, or auto: the best here")
    add("--precision", metavar="P", help="fp32, tf32, bf16 or fp64 (default: the first that the engine offers)")
    add("--threads", type=threads, default=0, metavar="N", help="of a host engine (default: one for each core)")
    add("--device", type=non_negative, default=0, metavar="N", help="GPU of a CUDA engine (default: %(default)s)")


def add_data_flags(
    parser: argparse.ArgumentParser, default: str | None, otherwise: str = "%(default)s"
) -> argparse._ArgumentGroup:
    """Which data set, and where from; returns the group for more."""
    group = parser.add_argument_group("data")
    add = group.add_argument
    names = ", ".join(CHOICES)
    add("--dataset", default=default, choices=CHOICES, metavar="NAME", help=f"{names} (default: {otherwise})")
    add("--data-dir", type=Path, metavar="DIR", help="read the data set's files here and nowhere else")
    add("--mirror", metavar="URL", help="fetch from this mirror instead (also MNIST_CUDA_MIRROR)")
    add("--offline", action="store_true", help="fetch nothing")
    return group


def add_json_flag(group: argparse._ActionsContainer) -> None:
    """What a program reads."""
    text = "print one JSON object on stdout and the rest on stderr; with FILE, which ends in .json, write it there"
    group.add_argument("--json", nargs="?", const=Path("-"), type=json_file, metavar="FILE", help=text)


def add_placement_flag(group: argparse._ActionsContainer) -> None:
    """Where the training images are."""
    text = "where the training images live between steps; for host engines the same (default: %(default)s)"
    group.add_argument("--data", choices=("device", "host"), default="device", help=text)


def add_evaluation_flag(group: argparse._ActionsContainer) -> None:
    """Which statistics batch norm takes on the test images."""
    text = "batch norm on test images by the statistics of all training images, or of each 250 (default: %(default)s)"
    group.add_argument("--eval-bn", choices=("population", "batch"), default="population", help=text)


def add_train(subparsers: Any) -> None:
    """`mnist-cuda train`."""
    parser = subparsers.add_parser("train", help="train the network and save it", allow_abbrev=False)
    parser.description = (
        "Train the network and save it with its configuration and metrics in a new folder. Ctrl-C (or SIGTERM, or a "
        "closed terminal) finishes the running steps, saves and exits; a second one exits at once."
    )
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--epochs", type=positive, default=5, metavar="N", help="default: %(default)s")
    add("--batch-size", type=positive, default=64, metavar="N", help="images a step (default: %(default)s)")
    add("--lr", type=rate, default=0.05, metavar="RATE", help="learning rate of plain SGD (default: %(default)s)")
    add("--schedule", default="constant", metavar="SHAPE",
        help="of the rate, with --lr its peak: constant, linear (falls to 0) or triangle[:FRACTION], which first rises "
        "for this fraction of the steps, 0.2 if not given (default: %(default)s)")  # fmt: skip
    add("--seed", type=non_negative, default=0, metavar="N", help="of weights and sample order (default: %(default)s)")
    add_evaluation_flag(group)
    add_engine_flags(parser)
    add_placement_flag(add_data_flags(parser, "auto"))
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--out", type=Path, metavar="DIR", help="new folder of this run (default: runs/<date>-<time>-<engine>)")
    add_json_flag(group)
    add("--quiet", action="store_true", help="print only warnings and the last line")
    parser.set_defaults(run=begun(later("train")))


def add_evaluate(subparsers: Any) -> None:
    """`mnist-cuda evaluate`."""
    parser = subparsers.add_parser("evaluate", help="test a saved model", allow_abbrev=False)
    parser.description = "Test a saved model on the 10,000 test images."
    parser.add_argument("file", type=Path, metavar="FILE", help="model.safetensors, or the folder of a run")
    add_evaluation_flag(parser)
    add_json_flag(parser)
    add_engine_flags(parser)
    add_data_flags(parser, None, "the one that the model was trained on")
    parser.set_defaults(run=begun(later("evaluate")))


def add_bench(subparsers: Any) -> None:
    """`mnist-cuda bench`."""
    parser = subparsers.add_parser("bench", help="compare engines and other frameworks", allow_abbrev=False)
    parser.description = (
        "Time a training step of our engines and of other frameworks, each in a process of its own and interleaved. "
        "Lists take commas or spaces."
    )
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("--engines", nargs="+", default=["auto"], metavar="NAME", help="our engines (default: auto, the best here)")
    add(
        "--peers",
        nargs="*",
        default=["torch"],
        metavar="NAME",
        help="torch, jax, torch:graph, ... or nothing (default: torch)",
    )
    add("--peer-python", type=Path, metavar="FILE", help="their interpreter (default: .venv-peers/bin/python or ours)")
    group = parser.add_argument_group("measurement")
    add = group.add_argument
    add("--batch-sizes", nargs="+", default=["64", "256", "1024"], metavar="N", help="default: 64 256 1024")
    add("--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16, fp64 (default: each engine's first)")
    add("--data", nargs="+", choices=("device", "host"), default=["device"], metavar="PLACE",
        help="where the training images live, device or host; one table for each (default: device)")  # fmt: skip
    add("--threads", type=threads, default=0, metavar="N", help="on the CPU, for all (default: one for each core)")
    add("--blocks", type=positive, default=20, metavar="N", help="blocks to time, 50 ms or more (default: %(default)s)")
    add("--seconds", type=rate, default=10.0, metavar="S",
        help="time for each competitor and table, after three blocks (default: %(default)g)")  # fmt: skip
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_json_flag(group)
    parser.set_defaults(run=later("bench.compare"))
    others = parser.add_subparsers(title="others", metavar="WHAT")
    for add_other in (add_bench_accuracy, add_bench_time_to_accuracy, add_bench_ops):
        add_other(others)


def add_compare(subparsers: Any) -> None:
    """`mnist-cuda compare`."""
    parser = subparsers.add_parser("compare", help="hold a step of engines against float64", allow_abbrev=False)
    parser.description = (
        "Take one step from the same weights and batch on each engine, and in PyTorch, and hold its loss, activations "
        "and gradients against the float64 reference. Exit code 1 if a bound is broken. Lists take commas or spaces."
    )
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("--engines", nargs="+", default=["auto"], metavar="NAME", help="our engines (default: auto, the best here)")
    add("--peers", nargs="*", default=[], metavar="NAME", help="torch, jax (default: none)")
    add("--peer-python", type=Path, metavar="FILE", help="its interpreter (default: .venv-peers/bin/python or ours)")
    add("--precision", metavar="P", help="fp32, tf32, bf16 or fp64 (default: each engine's first)")
    add("--threads", type=threads, default=0, metavar="N", help="of host engines (default: one for each core)")
    add("--device", type=non_negative, default=0, metavar="N", help="GPU of CUDA engines (default: %(default)s)")
    group = parser.add_argument_group("step")
    add = group.add_argument
    add("--batch-size", type=positive, default=64, metavar="N", help="training images (default: %(default)s)")
    add("--seed", type=non_negative, default=0, metavar="N", help="of weights and batch (default: %(default)s)")
    add("--weights", type=Path, metavar="FILE", help="start from this saved model instead")
    add_data_flags(parser, "auto")
    add_json_flag(parser.add_argument_group("output"))
    parser.set_defaults(run=later("compare"))


def add_profile(subparsers: Any) -> None:
    """`mnist-cuda profile`."""
    parser = subparsers.add_parser("profile", help="where a step's time goes", allow_abbrev=False)
    parser.description = (
        "Time a training step op by op, beside what this GPU was measured to do at its best, and print the command "
        "lines of the profilers that look closer. It needs no hardware counters."
    )
    group = parser.add_argument_group("step")
    group.add_argument("--batch-size", type=positive, default=64, metavar="N", help="images (default: %(default)s)")
    group.add_argument("--steps", type=positive, metavar="N", help="steps to time (default: 100, or what 5 s allow)")
    add_engine_flags(parser)
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_json_flag(group)
    parser.set_defaults(run=begun(later("profile")))


def add_engines(subparsers: Any) -> None:
    """`mnist-cuda engines`."""
    parser = subparsers.add_parser("engines", help="list the engines: available here, or why not", allow_abbrev=False)
    parser.description = "List the engines, slowest first: what each is and whether it can run here, or why not."
    add_json_flag(parser)
    parser.set_defaults(run=later("engines"))


def add_bench_accuracy(subparsers: Any) -> None:
    """`mnist-cuda bench accuracy`."""
    parser = subparsers.add_parser("accuracy", help="test accuracies beside another framework's", allow_abbrev=False)
    parser.description = (
        "Train some epochs with every engine and precision and with another framework, from the same weights and in "
        "the same order, and compare the mean test accuracies over several seeds. Every engine must also repeat its "
        "first run bit by bit. Exit code 1 if a mean is more than 0.2 points off or a run is not repeated. Lists take "
        "commas or spaces."
    )
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("--engines", nargs="+", metavar="NAME", help="default: all that run here, but for `reference`")
    add("--precisions", nargs="+", metavar="P", help="fp32, tf32, bf16, fp64 (default: each engine's all)")
    add("--peer", default="torch", metavar="NAME", help="torch, torch:graph, jax, ... (default: %(default)s)")
    add("--peer-python", type=Path, metavar="FILE", help="its interpreter (default: .venv-peers/bin/python or ours)")
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--seeds", type=positive, default=10, metavar="N", help="0 to N-1, a run each (default: %(default)s)")
    add("--epochs", type=positive, default=3, metavar="N", help="default: %(default)s")
    add("--batch-size", type=positive, default=64, metavar="N", help="images a step (default: %(default)s)")
    add("--lr", type=rate, default=0.05, metavar="RATE", help="learning rate of plain SGD (default: %(default)s)")
    add("--jobs", type=positive, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    add("--threads", type=threads, default=0, metavar="N", help="of a run on the CPU (default: cores by jobs)")
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_json_flag(group)
    parser.set_defaults(run=later("bench.accuracy"))


def add_bench_time_to_accuracy(subparsers: Any) -> None:
    """`mnist-cuda bench time-to-accuracy`."""
    text = "training time to a test accuracy"
    parser = subparsers.add_parser("time-to-accuracy", help=text, allow_abbrev=False)
    parser.description = (
        "For each budget of batch size and epochs, choose the learning rate's schedule and peak on held-out training "
        "images; then train with it on the whole training set, budgets in rising time, until the median test accuracy "
        "of the seeds is at the target. Lists take commas or spaces. Exit code 1 if no budget gets there."
    )
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--target", type=rate, default=99.0, metavar="P", help="per cent of the test images (default: %(default)g)")
    add("--budgets", nargs="+", metavar="BxE", help="batch size and epochs, such as 192x3 (default: 13 of them)")
    add("--schedules", nargs="+", metavar="SHAPE", help="candidates (default: triangle:0.2 triangle:0.4 linear)")
    add("--peaks", nargs="+", metavar="RATE", help="candidates (default: 0.1 0.2 0.3 0.5 0.8)")
    add("--seeds", type=positive, default=20, metavar="N", help="of the result (default: %(default)s)")
    add("--selection-seeds", type=positive, default=5, metavar="N", help="of each candidate (default: %(default)s)")
    add("--hold-out", type=positive, default=5000, metavar="N", help="images to choose by (default: %(default)s)")
    group = parser.add_argument_group("competitors")
    add = group.add_argument
    add("--peers", nargs="+", default=[], metavar="NAME", help="the result's recipe in torch:graph, jax, ... too")
    add("--peer-python", type=Path, metavar="FILE", help="their interpreter (default: .venv-peers/bin/python or ours)")
    add_engine_flags(parser)
    add_data_flags(parser, "auto")
    group = parser.add_argument_group("output")
    add_json_flag(group)
    parser.set_defaults(run=later("bench.time_to_accuracy"))


def add_bench_ops(subparsers: Any) -> None:
    """`mnist-cuda bench ops`."""
    parser = subparsers.add_parser("ops", help="every variant of every GPU op", allow_abbrev=False)
    parser.description = (
        "Check every variant of the GPU ops against float64 and time it: with an empty L2 cache (cold) and back to "
        "back (warm), against the best that this GPU was measured to do."
    )
    parser.add_argument("--op", default="", metavar="NAME", help="this one only (default: all)")
    parser.add_argument("--batch-size", type=positive, default=256, metavar="N", help="images (default: %(default)s)")
    parser.add_argument("--device", type=non_negative, default=0, metavar="N", help="GPU (default: %(default)s)")
    add_json_flag(parser)
    parser.set_defaults(run=later("bench.ops"))


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="mnist-cuda", description="Train an MNIST CNN with a native CUDA or CPU engine.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"mnist-cuda {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (add_train, add_evaluate, add_bench, add_compare, add_profile, add_engines, add_data_commands):
        add(subparsers)
    return parser


def _fail(message: str, code: int) -> int:
    print("mnist-cuda: error:", " ".join(message.splitlines()), file=sys.stderr)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: every expected failure is one line on stderr."""
    try:
        try:
            args = make_parser().parse_args(argv)
        finally:
            sys.stdout.flush()  # --help ends the program there
        from mnist_cuda import signals

        with signals.Interruptible():
            code: int = args.run(args)
            sys.stdout.flush()
        return code
    except MnistCudaError as error:
        return _fail(str(error), error.exit_code)
    except ValueError as error:  # the seam refuses an argument
        return _fail(str(error), UsageError.exit_code)
    except MemoryError as error:
        return _fail(str(error) or "host memory ran out", OutOfMemoryError.exit_code)
    except ImportError as error:
        if (error.name or "").startswith("mnist_cuda") and "_native" not in str(error):
            raise  # our own fault
        return _fail(f"{error}; install mnist-cuda again, in a checkout by ./scripts/train", UnavailableError.exit_code)
    except BrokenPipeError:  # whoever read our output has left
        return 128 + signal.SIGPIPE
    except OSError as error:  # a file's errors name it
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", OutputError.exit_code)
    except KeyboardInterrupt as interrupt:
        signum = getattr(interrupt, "signum", signal.SIGINT)  # signals.Interrupted has one
        return _fail(f"stopped by {signal.Signals(signum).name}", 128 + signum)
