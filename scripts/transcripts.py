#!/usr/bin/env python3
"""Runs the commands that the documentation shows and compares what they print; with --write, keeps what they print.

A transcript is a .txt in docs/records/transcripts. Its first line is the command, after a `$ `; the rest is what the
command prints, errors included. All of them run in the order of their names, in one new folder with a new home and the
checkout's docs/, on the CPU. `./scripts/train` is run as what it runs, `mnist-cuda train`.

Times, rates and the names of runs differ between runs, so one is as good as another. Every other number, such as a
loss, an accuracy or the digest of the weights, must be the same where the compiler and the processor's instructions are
those of the file `made-by`; elsewhere the bits may differ, and one number is as good as another.

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

MADE_BY = "made-by"

_OF_RUNS = (  # what differs between runs
    (re.compile(r"\b(?:\d+\.\d s|\d+(?::\d\d){1,2})\b"), "# s"),  # as durations are printed: 12.3 s, 4:05, 1:02:03
    (re.compile(r"\b[\d.,]+ (us/it|us/iteration|img/s)(?= |\b)"), r"# \1"),
    (re.compile(r"\(mean of the last \d+\)"), "(mean of the last #)"),
    (re.compile(r"\b\d{8}-\d{6}\b"), "#"),  # 20261120-221411
    (re.compile(r"(?<=\S)  +(?=\S)"), "  "),  # columns are as wide as their numbers
)
_OF_BITS = (  # what differs between machines as well
    (re.compile(r"\bweights [0-9a-f]{12}\b"), "weights #"),
    (re.compile(r"\d+(?:[.,:-]\d+)*"), "#"),  # 98.94, 10,000
)


def normalised(text: str, *, same_bits: bool) -> list[str]:
    """The lines without what differs between runs, and between machines where the bits are not the same."""
    for pattern, plain in _OF_RUNS if same_bits else _OF_RUNS + _OF_BITS:
        text = pattern.sub(plain, text)
    return text.splitlines()


def made_by() -> str:
    """What the bits of an engine on the host depend on."""
    from mnist_cuda import machine

    facts = machine.build()
    return f"{facts['build'].partition(',')[0]}, {facts['instructions']}\n"


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
    stale, of_bits = 0, TRANSCRIPTS / MADE_BY
    if args.write:
        of_bits.write_text(made_by())
    same_bits = of_bits.read_text() == made_by()
    if not same_bits:
        print(f"here is {made_by().strip()}, and the transcripts are by {of_bits.read_text().strip()}: words alone")
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
            lines = [normalised(text, same_bits=same_bits) for text in (expected, found)]
            if args.write:
                path.write_text(f"{head}\n{found}")
            elif lines[0] != lines[1]:
                stale += 1
                print(
                    *difflib.unified_diff(lines[0], lines[1], f"{path.relative_to(ROOT)}", head, lineterm=""), sep="\n"
                )
    if stale:
        print("stale: run scripts/transcripts.py --write and scripts/docs_from_records.py", file=sys.stderr)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
