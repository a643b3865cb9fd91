#!/usr/bin/env python3
"""Runs the commands that the documentation shows and compares what they print; with --write, keeps what they print.

A transcript is a .txt in docs/records/transcripts. Its first line is the command, after a `$ `; the rest is what the
command prints, errors included. All of them run in the order of their names, in one new folder with a new home and the
checkout's docs/, on the CPU. `./scripts/train` is run as what it runs, `mnist-cuda train`. In a comparison one number
is as good as another, and so are the paths of that folder and home: they differ between runs and machines.

scripts/docs_from_records.py puts transcripts where the documentation shows them.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRANSCRIPTS = ROOT / "docs" / "records" / "transcripts"
LIMIT = 300  # seconds a command

_PLAIN = (
    (re.compile(r"\bweights [0-9a-f]{12}\b"), "weights #"),
    (re.compile(r"\b(?:\d+\.\d s|\d+(?::\d\d){1,2})\b"), "# s"),  # as durations are printed: 12.3 s, 4:05, 1:02:03
    (re.compile(r"\d+(?:[.,:-]\d+)*"), "#"),  # 98.94, 10,000, 1:05, 20261120-221411
    (re.compile(r"(?<=\S)  +(?=\S)"), "  "),  # columns are as wide as their numbers
)


def normalised(text: str) -> list[str]:
    """The lines without what differs between machines and runs."""
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    return text.splitlines()


def run(command: str, folder: Path, home: Path) -> str:
    """What a command prints, run in `folder` by a user of this home; its end, if it is not a good one, too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MNIST_CUDA_", "XDG_"))}
    environment |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "LC_ALL": "C.UTF-8",
    }
    result = subprocess.run(
        ["bash", "-c", command.replace("./scripts/train", "mnist-cuda train")],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=LIMIT,
    )
    text = result.stdout.replace(str(home), "~").replace(str(folder), ".")
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join([*lines, *([f"(exit code {result.returncode})"] if result.returncode else [])]) + "\n"


def main() -> int:
    """Compare or write every transcript; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(os.environ.get("MNIST_CUDA_TEST_DATA") or ROOT.parent / "shared" / "mnist")
    parser.add_argument("--write", action="store_true", help="replace the transcripts by what is printed now")
    parser.add_argument("--data", type=Path, default=data, metavar="DIR", help="MNIST's files (default: %(default)s)")
    args = parser.parse_args()
    stale = 0
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name).resolve() / "work", Path(name).resolve() / "home"
        folder.mkdir()
        (folder / "docs").symlink_to(ROOT / "docs")
        cache = home / ".cache" / "mnist-cuda" / "mnist"
        cache.mkdir(parents=True)
        for file in args.data.glob("*.gz"):
            (cache / file.name).symlink_to(file.resolve())
        for path in sorted(TRANSCRIPTS.glob("*.txt")):
            kept = path.read_text()
            head, _, expected = kept.partition("\n")
            found = run(head.removeprefix("$ "), folder, home)
            lines = normalised(expected), normalised(found)
            if args.write:
                path.write_text(f"{head}\n{found}")
            elif lines[0] != lines[1]:
                stale += 1
                print(*difflib.unified_diff(*lines, f"{path.relative_to(ROOT)}", head, lineterm=""), sep="\n")
    if stale:
        print("stale: run scripts/transcripts.py --write and scripts/docs_from_records.py", file=sys.stderr)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
