"""Draw the results of runs, sweeps, `bench` and `profile` on one self-contained HTML page.

The model of each run is tested once more, and a step of its engine is timed op by op (`cpu` and `fused`: by
groups of ops, called phases), if it can run here. The page and --figures need Matplotlib.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mnist_cuda.commands.flags import RUN, file_ending_in, run_path
from mnist_cuda.commands.runs import add_folder_flag
from mnist_cuda.errors import UsageError
from mnist_cuda.files import atomic_write, make_folder, require_writable

if TYPE_CHECKING:
    from mnist_cuda.report.panels import Panel
    from mnist_cuda.report.sources import Sources

PAGE, DRAW_PAGE = "report.html", "draw.html"

EXAMPLES = (
    "mnist-cuda report",
    "mnist-cuda report my-run other-run --out both.html",
    "mnist-cuda report sweeps/seeds",
    "mnist-cuda report latest --text",
    "mnist-cuda report --draw",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"{RUN}; the JSON file of `bench` or `profile`; a sweep's folder or table (default: latest)"
    parser.add_argument("source", nargs="*", type=run_path, metavar="RUN|FILE.json|FILE.csv", help=text)
    add_folder_flag(parser)
    parser.add_argument("--no-profile", action="store_true", help="do not time training steps")
    group = parser.add_argument_group("data")
    group.add_argument("-d", "--data-dir", type=Path, metavar="PATH", help="where the data are (default: the run's)")
    group.add_argument("--offline", action="store_true", help="download nothing")
    group = parser.add_argument_group("output")
    text = (
        f"the page (default: {PAGE} in the folder of the run or sweep; for other sources in the current folder, under "
        "a name that is free)"
    )
    group.add_argument("-o", "--out", type=file_ending_in(".html"), metavar="FILE.html", help=text)
    group.add_argument("--figures", type=Path, metavar="DIR", help="also write each picture to DIR, as SVG and PNG")
    group.add_argument("--text", action="store_true", help="print text in the terminal instead")
    text = "write another page: draw a digit, and see what the run's network makes of it"
    group.add_argument("--draw", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Write the page, or print the text; a run whose model cannot be tested here is shown without."""
    from mnist_cuda import machine
    from mnist_cuda.terminal import console

    if args.draw:
        return _draw(args)
    if args.text and (args.out or args.figures):
        raise UsageError("--text prints and writes no file: leave out --out and --figures")
    if not args.text:
        from mnist_cuda.report import page  # before the work, since it may lack matplotlib
    from mnist_cuda.report import panels, sources
    from mnist_cuda.run.names import find_run

    names = args.source or [find_run(None, args.dir)]
    found = sources.read(names, args.dir)
    target = args.out or _target(found)
    if not args.text:
        require_writable(target)
        if args.figures:
            make_folder(args.figures)
    out = console.make_console(stderr=True)
    sources.complete(found, data_dir=args.data_dir, offline=args.offline, profiles=not args.no_profile, say=out.print)
    shown, absent = panels.panels(found)
    if not shown:
        raise UsageError(f"there is nothing to show: {'; '.join(absent)}")
    if args.text:
        _print(found, shown, absent)
        return 0
    atomic_write(target, page.html(found, shown, absent, machine.command_line()).encode())
    if args.figures:
        page.write_figures(shown, args.figures)
    for sentence in absent:
        out.print(f"not shown: {sentence}")
    pictures = f", each as SVG and PNG in {args.figures}" if args.figures else ""
    console.make_console().print(f"{target}: {console.plural(len(shown), 'panel')}{pictures}")
    return 0


def _draw(args: argparse.Namespace) -> int:
    """Write the page of --draw."""
    from mnist_cuda.report import draw
    from mnist_cuda.run.checkpoint import load_model
    from mnist_cuda.run.names import find_run

    if len(args.source) > 1 or args.text or args.figures:
        raise UsageError("--draw makes a page of one run: leave out --text, --figures and further sources")
    run = find_run(args.source[0] if args.source else None, args.dir)
    folder = run if run.is_dir() else run.parent
    target = args.out or folder / DRAW_PAGE
    require_writable(target)
    atomic_write(target, draw.page(load_model(run), folder.name if run.is_dir() else str(run)).encode())
    print(target)
    return 0


def _target(found: Sources) -> Path:
    """The page in the folder of the one run or sweep; otherwise one here that takes no other's place."""
    folders = [*(run.path for run in found.runs), *(swept.folder for swept in found.sweeps)]
    if len(folders) == 1 and folders[0] and not found.profiles and not found.benches:
        return folders[0] / PAGE
    here = Path(PAGE)
    names = itertools.chain([here], (here.with_stem(f"{here.stem}-{n}") for n in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def _print(found: Sources, shown: list[Panel], absent: list[str]) -> None:
    """Everything as text on standard output."""
    import sys

    from mnist_cuda.run import listing
    from mnist_cuda.terminal import console

    out = console.make_console()
    if found.runs:
        console.print_table(out, *listing.table(found.runs), right=listing.RIGHT, optional=listing.OPTIONAL)
    colour = console.coloured(out)
    for panel in shown:
        out.print(f"\n{panel.title}", style="bold")
        sketch = panel.sketch(colour, sys.stdout.encoding or "ascii") if panel.sketch else []
        out.file.writelines(f"{line}\n" for line in sketch)
        for line in panel.text:
            print(line)
        if panel.note:
            out.print(panel.note)
    for sentence in absent:
        out.print(f"\nnot shown: {sentence}")
