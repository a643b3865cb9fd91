"""The program: which command, and how it ends. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from mnist_cuda import __version__, commands
from mnist_cuda.commands.parser import Parser, add_commands, examples
from mnist_cuda.errors import (
    DataWarning,
    MnistCudaError,
    OutputError,
    RankLostError,
    UnavailableError,
    UsageError,
    exit_code_of,
    name_by_flags,
)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mnist-cuda",
        description="Train an MNIST CNN with a native CUDA or CPU engine.",
        epilog=examples(*commands.EXAMPLES),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mnist-cuda {__version__}")
    add_commands(parser, commands.__name__, commands.COMMANDS, title="commands", metavar="COMMAND", required=True)
    return parser


class _Ending:
    """How a command ends that fails: a line on standard error and, where `--json` prints, an object."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._json = wants_json(argv) and "MNIST_CUDA_RANK" not in os.environ
        if self._json:
            from mnist_cuda.terminal.json_output import JsonOutput

            JsonOutput.printed = False

    def __call__(self, message: str, code: int) -> int:
        """Say so and return the exit code."""
        message = " ".join(message.splitlines())
        if message:  # one write, as several ranks may fail at once
            sys.stderr.write(f"mnist-cuda: error: {message}\n")
        self.tell(message, code)
        return code

    def tell(self, message: str, code: int) -> None:
        """The object alone."""
        if self._json and message:
            from mnist_cuda.terminal.json_output import print_error

            print_error(message, code)


def wants_json(argv: Sequence[str]) -> bool:
    """Whether `--json` is there without a file."""
    following = [*argv[1:], "-"]
    flags = [k for k, word in enumerate(argv) if word in ("-j", "--json")]
    return any(not following[k].endswith(".json") for k in flags)


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """A DataWarning in this block is a line, of several ranks by the first alone."""
    show = warnings.showwarning

    def line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, DataWarning):
            show(message, category, *where, **more)
        elif os.environ.get("MNIST_CUDA_RANK", "0") == "0":
            from mnist_cuda.terminal.console import print_warning

            print_warning(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = line
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: every expected failure is one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    failed = _Ending(words)
    by_flags = name_by_flags(True)
    try:
        try:
            args = make_parser().parse_args(argv)
            args.argv = words
        except SystemExit as end:
            if end.code:
                failed.tell(Parser.fault, UsageError.exit_code)
            raise
        finally:
            sys.stdout.flush()  # --help ends the program there
        from mnist_cuda.terminal import signals

        warnings.filterwarnings("ignore", message="MNIST IS NOT HERE")  # commands print it in a frame
        with signals.Interruptible(), warnings_as_lines():
            code: int = args.run(args)
            sys.stdout.flush()
        return code
    except RankLostError as error:  # without a text where another rank prints one
        return failed(str(error), error.exit_code)
    except (MnistCudaError, ValueError) as error:  # or the seam refuses an argument
        return failed(str(error) or repr(error.__cause__ or error), exit_code_of(error))
    except MemoryError as error:
        return failed(str(error) or "host memory ran out", exit_code_of(error))
    except ImportError as error:
        if (error.name or "").startswith("mnist_cuda") and "_native" not in str(error):
            raise  # our own fault
        remedy = "install mnist-cuda again, in a checkout by ./scripts/train"
        return failed(f"{error}; {remedy}", UnavailableError.exit_code)
    except BrokenPipeError:  # whoever read our output has left
        return 128 + signal.SIGPIPE
    except OSError as error:  # a file's errors name it
        where = f"{error.filename}: " if error.filename else ""
        return failed(f"{where}{error.strerror or error}", OutputError.exit_code)
    except KeyboardInterrupt as interrupt:
        code = exit_code_of(interrupt)
        return failed(f"stopped by {signal.Signals(code - 128).name}", code)
    finally:
        name_by_flags(by_flags)
