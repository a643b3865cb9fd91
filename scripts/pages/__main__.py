"""Writes the parts of the documentation that come from code, records and commands, or says which are stale."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The folder of `checks` and `pages` instead of this one, whose modules have names of others'.
sys.path[:] = [str(HERE.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]

from pages import api, guide, ladder, site, tables, transcripts
from pages.records import RecordError

from mnist_cuda.bench.op_tables import StaleError

# What writes which part: the text that each of its files is to have.
PARTS: dict[str, Callable[[argparse.Namespace], dict[Path, str]]] = {
    "tables": lambda _: tables.Documents().files,
    "api": lambda _: {api.PAGE: api.page()},
    "ladder": lambda _: {ladder.PAGE: ladder.page()},
    "guide": lambda _: guide.Documents().files,
    "transcripts": lambda args: transcripts.files(args.data, exact=not args.check),
}
BUILD = "build"
USUAL = ("tables", "api", "ladder", "guide")  # transcripts take minutes
HELP = """tables: in README.md, docs/*.md and docs/guide/*.md, with charts and ranges, from docs/records
api: docs/api.md, from docstrings
ladder: docs/ladder.md, from the tables of ops and records of `mnist-cuda bench ops`
guide: docs/guide, from functions of the code, the emulator's counts and records of `mnist-cuda bench ops`
transcripts: docs/records/transcripts, what commands print; after it, tables
build: alone; the documentation as a web site in build/site
"""
DIFFERENCE = 40  # lines of each file


def main() -> int:
    """Write or check the parts that the command line names; the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/docs", description=f"{__doc__}\n\n{HELP}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text = f"default: {', '.join(USUAL)}"
    parser.add_argument("parts", nargs="*", choices=[*PARTS, BUILD, []], metavar="PART", help=text)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where something is stale")
    text = "MNIST's files, for transcripts (default: %(default)s)"
    parser.add_argument("--data", type=Path, default=transcripts.DATA, metavar="DIR", help=text)
    args = parser.parse_args()
    if BUILD in args.parts:
        return site.build() if args.parts == [BUILD] else parser.error("build stands alone")
    stale = []
    for part in args.parts or USUAL:
        try:
            wanted = PARTS[part](args)
        except (RecordError, StaleError, KeyError) as error:
            print(f"scripts/docs {part}: {error}", file=sys.stderr)
            return 1
        for path, text in wanted.items():
            there = path.read_text() if path.exists() else ""
            if there == text:
                continue
            if not args.check:
                path.write_text(text)
                continue
            stale.append(part)
            lines = difflib.unified_diff(there.splitlines(), text.splitlines(), str(path), "today", lineterm="", n=0)
            print(*[line[:300] for line in lines][:DIFFERENCE], sep="\n")
    if stale:
        print(f"stale: run scripts/docs {' '.join(dict.fromkeys(stale))}", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
