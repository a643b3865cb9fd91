"""Print a shell's completion of this program's commands and flags.

To install it for good, run the line for your shell:

  bash: mkdir -p ~/.local/share/bash-completion/completions && mnist-cuda completion bash > $_/mnist-cuda
  zsh: mnist-cuda completion zsh > ${fpath[1]}/_mnist-cuda
  fish: mkdir -p ~/.config/fish/completions && mnist-cuda completion fish > ~/.config/fish/completions/mnist-cuda.fish
"""

from __future__ import annotations

import argparse
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")

EXAMPLES = ("mnist-cuda completion bash",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


# Each shell's function that offers the runs in runs/, `latest` and files.
RUNS_FUNCTION = "_mnist_cuda_runs"
PREAMBLES = {
    "bash": """
_mnist_cuda_runs() {
  compgen -W "latest $(command ls runs 2>/dev/null)" -- "$1"
  compgen -f -- "$1"
}
""",
    "zsh": """
_mnist_cuda_runs() {
  local -a runs
  runs=(latest ${(f)"$(command ls runs 2>/dev/null)"})
  compadd -a runs
  _files
}
""",
    "fish": """
function _mnist_cuda_runs
  echo latest
  command ls runs 2>/dev/null
  __fish_complete_path (commandline -ct)
end
""",
}


def run(args: argparse.Namespace) -> int:
    import shtab

    from mnist_cuda import _native, cli
    from mnist_cuda.commands import COMMANDS
    from mnist_cuda.commands.flags import json_file, run_path
    from mnist_cuda.commands.parser import all_parsers
    from mnist_cuda.judge.exercises import EXERCISES

    offers_runs = dict.fromkeys(SHELLS, RUNS_FUNCTION) | {"fish": f"({RUNS_FUNCTION})"}
    values = {
        "engine": ("auto", *(row["name"] for row in _native.engines())),
        "precision": ("fp32", "tf32", "bf16", "fp64"),
        "schedule": ("constant", "linear", "triangle"),
    }
    values |= {f"{name}s": found for name, found in values.items()}
    parser = cli.make_parser()
    for each in list(all_parsers(parser)):
        of_exercises = each.prog.startswith("mnist-cuda exercise")
        for action in each._actions:
            if of_exercises and isinstance(action, argparse._SubParsersAction):
                action._parser_class = argparse.ArgumentParser
                for name, exercise in EXERCISES.items():  # short for `show NAME`
                    action.add_parser(name, help=exercise.title, add_help=False)
            elif of_exercises and action.dest == "name":
                action.choices = list(EXERCISES)
            elif action.dest == "command" and each.prog == "mnist-cuda help":
                action.choices = list(COMMANDS)
            elif action.type is run_path:
                action.complete = offers_runs  # type: ignore[attr-defined]
            elif action.type in (Path, json_file):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.dest in values:
                action.choices = values[action.dest]
    print(shtab.complete(parser, args.shell, preamble=PREAMBLES[args.shell]))
    return 0
