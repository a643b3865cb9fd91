"""The documentation as a web site, by Sphinx (the extra `docs`); docs/conf.py has Sphinx's settings."""

from __future__ import annotations

import shutil
import sys

from pages.records import ROOT

SITE = ROOT / "build" / "site"


def build() -> int:
    """Build the site anew; a warning, as of a bad link, is an error. The exit code."""
    try:
        from sphinx.cmd.build import build_main
    except ModuleNotFoundError as error:
        print(f"scripts/docs build: {error}: run `{sys.executable} -m pip install '.[docs]'`", file=sys.stderr)
        return 4
    status = build_main(["-q", "-E", "-W", "--keep-going", "-c", str(ROOT / "docs"), str(ROOT), str(SITE)])
    if not status:
        shutil.copy(SITE / "README.html", SITE / "index.html")
        print(SITE / "index.html")
    return status
