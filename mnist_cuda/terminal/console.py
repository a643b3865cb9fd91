"""What people see: lines, tables and the live progress line; plain text without a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mnist_cuda.terminal.streams import Stream, clean

REFRESHES_PER_SECOND = 4
UNKNOWN_WIDTH = 80  # columns
SHORTEST_BAR, ROOMY = 15, 80  # columns of a live line's bar, on a terminal of so many or more
SHORTEST_NARROW_BAR = 5  # and on a narrower one
NARROWEST = 8  # columns that text wraps to, if not shorter
LABEL = 8  # columns of the word that begins a line of a report
_UNBOUNDED = 10_000
LONG = 10.0  # seconds; a command that takes longer begins by saying so
EARLY = 1.0  # seconds after which the pace of a command is known


class _Styled:
    """A Stream that takes text with our own escape sequences."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.write = stream.write_styled

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Clean what is shown; what comes with it from a style or a live line is our own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))

    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to cli.main; rich would exit with 1."""
        raise

    def show_cursor(self, show: bool = True) -> bool:
        """Never hide the cursor: then nothing that ends the program can leave it hidden."""
        return False


def make_console(*, stderr: bool = False) -> Console:
    """A console that wraps lines at words on a terminal and keeps them whole elsewhere."""
    stream = sys.stderr if stderr else sys.stdout
    file = cast("IO[str]", _Styled(stream)) if isinstance(stream, Stream) else None
    console = _Console(stderr=stderr, file=file, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not on_terminal(console)
    if console.width < 1:  # COLUMNS=0: unknown
        console.width = UNKNOWN_WIDTH
    return console


def on_terminal(console: Console) -> bool:
    """Whether people watch; FORCE_COLOR makes rich believe it of a file, too."""
    return console.is_terminal and console.file.isatty()


def coloured(console: Console) -> bool:
    """Whether people watch and their terminal shows colours."""
    return on_terminal(console) and console.color_system is not None and not console.no_color


def print_warning(sentence: str) -> None:
    """Print on stderr what must not be missed: framed on a terminal, a line that starts with WARNING elsewhere."""
    console = make_console(stderr=True)
    if on_terminal(console):
        console.print(Panel(sentence, title="WARNING", style="bold yellow"), soft_wrap=False)
    else:
        console.print(f"WARNING: {sentence}")


def print_fact(console: Console, word: str, text: str, *, column: int = LABEL, style: str | None = None) -> None:
    """Print a word in a column of its own and the text beside it, where a terminal that wraps the text leaves it."""
    line = f"{word:{column}}{text}"
    if on_terminal(console):
        width = max(console.width, column + NARROWEST)
        line = textwrap.fill(line, width, subsequent_indent=column * " ", break_on_hyphens=False)
    console.print(line, style=style)


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print rows under `columns`; those in `right` are flush right. Only a terminal makes a table narrower.

    There text wraps, and numbers stay whole; or, if there are `optional` columns, these are left out one by one, which
    a line says, and the rest stays whole. Either may then still be wider than the terminal.
    """
    rows, left_out = [[clean(cell) for cell in row] for row in rows], 0  # now, so that columns are wide enough
    lengths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    while True:
        shown = [c for c in columns if c not in optional[:left_out]]
        narrowest = 2 * (len(shown) - 1)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for column, longest in zip(columns, lengths, strict=True):
            if column not in shown:
                continue
            number = column in right
            whole = number or bool(optional)
            least = longest if number else min(longest, NARROWEST)
            narrowest += least
            table.add_column(
                column, justify="right" if number else "left", no_wrap=whole, overflow="fold", min_width=least
            )
        for row in rows:
            table.add_row(*(Text(cell) for column, cell in zip(columns, row, strict=True) if column in shown))
        width = Measurement.get(console, console.options.update(width=_UNBOUNDED), table).maximum
        if not on_terminal(console) or width <= console.width or left_out == len(optional):
            break
        left_out += 1
    if optional or not on_terminal(console):
        table.width = width
    elif narrowest > console.width:
        table.width = narrowest
    with console.capture() as text:
        console.print(table, soft_wrap=False, crop=False)
    console.file.writelines(f"{line.rstrip()}\n" for line in text.get().splitlines())
    if left_out:
        console.print(f"not shown, the terminal is too narrow: {', '.join(optional[:left_out])}")


def format_count(value: float) -> str:
    """Three to five significant digits without an exponent: 5.23, 52.3, 523, 5234."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def plural(count: int, noun: str) -> str:
    """`1 epoch`, `2 epochs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """12.3 s, 4:05 or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Estimate:
    """Says how long a command takes, once, on a line that stays, and only if that is LONG or more.

    label: what comes before the time. enabled: whether anything is to be said.
    """

    def __init__(self, console: Console, label: str = "it takes about", *, enabled: bool = True) -> None:
        self._console, self._label, self._wanted = console, label, enabled
        self._start = time.perf_counter()

    def after(self, fraction: float) -> None:
        """Say it by the fraction that is done since the estimate was made, as soon as that tells the pace."""
        seconds = time.perf_counter() - self._start
        if 0 < fraction < 1 and seconds >= EARLY:
            self.say(seconds / fraction)

    def say(self, seconds: float, more: str = "") -> None:
        """Say that all of it takes so many seconds, and `more`."""
        if self._wanted and seconds >= LONG:
            self._console.print(f"{self._label} {format_duration(round(seconds)).replace('.0 s', ' s')}{more}")
        self._wanted = False


def _in_notebook() -> bool:
    """Whether this is the `!command` of a notebook: a terminal, but every redraw would stay in the saved page."""
    return any(name in os.environ for name in ("JPY_PARENT_PID", "COLAB_RELEASE_TAG"))


class LiveLine:
    """One line at the bottom of a terminal, redrawn a few times a second by its own thread; nothing elsewhere.

    Nor in a notebook that runs the command.

    `show` only stores the parts, so it costs nothing to call it often. Parts that do not fit beside a bar are left out
    from the end.
    """

    def __init__(self, console: Console, *, enabled: bool = True) -> None:
        self._parts: tuple[str, ...] = ()
        self._fraction = 0.0
        self._console = console
        self._live: Live | None = None
        if enabled and on_terminal(console) and not console.is_dumb_terminal and not _in_notebook():
            self._live = Live(
                console=console,
                get_renderable=self._render,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> LiveLine:
        if self._live:
            self._live.start(refresh=bool(self._parts))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def shown(self) -> bool:
        """Whether there is a line: on a terminal."""
        return self._live is not None

    def show(self, fraction: float, *parts: str) -> None:
        """Show a bar for `fraction` (0 to 1) and the parts, most important first."""
        self._fraction, self._parts = fraction, parts

    def stop(self) -> None:
        """Remove the line; may be called twice and from any thread."""
        if self._live:
            self._live.stop()

    def _render(self) -> Text:
        width = self._console.width - 3  # so that ^C fits behind it, and goes when it does
        shortest = SHORTEST_BAR if self._console.width >= ROOMY else SHORTEST_NARROW_BAR
        line = Text(no_wrap=True, overflow="crop")
        for i, part in enumerate(self._parts):
            if line.cell_len + len(part) + 2 > width - (shortest + 2 if i else 0):
                break
            line.append(("  " if i else "") + part)
        room = min(width - line.cell_len - 2, 30)
        if room >= shortest:
            done = round(room * self._fraction)
            full, empty = "=-" if self._console.options.ascii_only else "━━"
            line.append("  ").append(full * done, "green").append(empty * (room - done), "bright_black")
        return line
