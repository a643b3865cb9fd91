"""Print a shell's completion of this program's commands and flags.

To keep it, run the command of your shell:

  bash: mkdir -p ~/.local/share/bash-completion/completions && mnist-cuda completion bash > $_/mnist-cuda
  zsh: mnist-cuda completion zsh > ${fpath[1]}/_mnist-cuda
  fish: mkdir -p ~/.config/fish/completions && mnist-cuda completion fish > ~/.config/fish/completions/mnist-cuda.fish
"""

from __future__ import annotations

import argparse
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print it."""
    import shtab

    from mnist_cuda import cli
    from mnist_cuda.commands.flags import json_file, run_path
    from mnist_cuda.commands.parser import all_parsers

    parser = cli.make_parser()
    for each in all_parsers(parser):
        for action in each._actions:
            if action.type in (Path, json_file, run_path):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0
