"""The command line of scripts/check: a module of this folder for each check."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The folder of `checks` and `pages` instead of this one, whose modules have names of others'.
sys.path[:] = [str(HERE.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]

from checks.runner import Parser, Problem

CHECKS = {
    "gpu": "everything that needs a GPU, in processes side by side",
    "sanitize": "an engine under compute-sanitizer's tools",
    "races": "the bits of `fused` while its warps sleep at random",
    "mutations": "whether a test notices each line broken on purpose",
    "machine-code": "whether two builds have the same kernels",
    "kernel-resources": "registers, memory and some instructions of all kernels against the committed table",
    "wheel": "a wheel's promises, in a clean environment",
    "cuda12": "a build by nvcc 12.4",
    "trace": "when the thread blocks of a step of `fused` pass its trace points",
    "doubt": "how often `predict` doubts digits, letters and noise, and is right",
    "recipes": "which training reaches 99 % of the test images soonest, chosen on held-out ones",
    "one-step": "the programs of examples/one_step against float64, and their times",
    "emulator-counters": "the emulator's sectors and turns of the banks against ncu's",
}


def main() -> int:
    """Run the check that the command line names; the exit code."""
    words = sys.argv[1:]
    if words[:1] == ["cuda12"]:
        os.execvp("bash", ["bash", str(HERE / "cuda12.sh"), *words[1:]])
    parser = Parser(prog="scripts/check", description="Checks something that the tests do not; each has its --help.")
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
    for name, text in CHECKS.items():
        summary = text.replace("%", "%%")  # argparse formats it
        if [name] == words[:1]:
            module = import_module(f"checks.{name.replace('-', '_')}")
            module.add_arguments(add(name, help=summary, description=module.__doc__))
        else:
            add(name, help=summary)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        code: int = module.run(args)
        return code
    except Problem as problem:
        print(f"scripts/check {args.command}: {problem}", file=sys.stderr)
        return problem.code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the package's own, of a check that has imported it
        if not hasattr(error, "exit_code"):
            raise
        print(f"scripts/check {args.command}: {error}", file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
