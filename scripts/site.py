#!/usr/bin/env python3
"""Builds the documentation as a web site, by Sphinx (the extra `docs`). A warning, as of a bad link, is an error.

    scripts/site.py [FOLDER]    by default build/site; open its index.html, which needs no server and no network

docs/conf.py has Sphinx's settings.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(out: Path) -> int:
    """Build the site anew into a folder; the exit code."""
    from sphinx.cmd.build import build_main

    status = build_main(["-q", "-E", "-W", "--keep-going", "-c", str(ROOT / "docs"), str(ROOT), str(out)])
    if not status:
        shutil.copy(out / "README.html", out / "index.html")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site", metavar="FOLDER")
    out = parser.parse_args().folder.resolve()
    try:
        status = build(out)
    except ModuleNotFoundError as error:
        print(f"scripts/site.py: {error}: run `{sys.executable} -m pip install '.[docs]'`", file=sys.stderr)
        return 4
    if not status:
        print(f"{out / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
