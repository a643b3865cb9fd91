"""How a training is shown while it runs: in words, on a terminal, and in a notebook."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any, Protocol

from mnist_cuda.run.training import Progress
from mnist_cuda.terminal import console

NOTEBOOK_SECONDS = 0.25  # between two updates


def parts(now: Progress) -> tuple[str, ...]:
    """The parts of a live line, the most important first."""
    return (
        f"epoch {now.epoch}/{now.epochs}",
        f"step {now.step}/{now.steps}",
        f"loss {now.loss:.4f}",
        f"{console.format_duration(now.seconds_left)} left",
        f"{now.images_per_second:.0f} img/s",
        f"train {100 * now.accuracy:.1f} %",
        f"{console.format_count(now.us_per_iteration)} us/it",
    )


def epoch_line(record: dict[str, Any], epochs: int) -> str:
    """The line of an epoch that is over."""
    us = 1e6 * record["train_seconds"] / record["steps"]
    held = f"validation {100 * record['validation_accuracy']:.2f} %  " if "validation_accuracy" in record else ""
    return (
        f"epoch {record['epoch']}/{epochs}  loss {record['loss']:.4f}  "
        f"train {100 * record['train_accuracy']:.2f} %  {held}test {100 * record['test_accuracy']:.2f} %  "
        f"{console.format_count(us)} us/it  {record['images_per_second']:.0f} img/s"
    )


class Display(Protocol):
    """Where a live line and lines that stay are shown."""

    def show(self, fraction: float, *parts: str) -> None:
        """Show the live line: how much is done, and parts of a sentence, the most important first."""

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:
        """Take the live line away."""


def display(wanted: bool | None) -> Display:
    """Where a library call shows its progress. None: in a notebook or on standard error, if that is a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if wanted is not False and hasattr(shell, "kernel"):
        return _Notebook()
    out = console.make_console(stderr=True)
    out.quiet = not (console.on_terminal(out) if wanted is None else wanted)
    return _Terminal(out)


class _Terminal:
    def __init__(self, out: Any) -> None:
        live = console.LiveLine(out, enabled=not out.quiet)
        live.__enter__()
        self.show, self.say, self.close = live.show, out.print, live.stop


class _Notebook:
    """One output, replaced as a whole: what is saved with the notebook is what was shown last."""

    def __init__(self) -> None:
        from IPython import display as ipython

        show: Any = ipython.display
        self._lines: list[str] = []
        self._shown = -NOTEBOOK_SECONDS
        self._handle = show(self._bundle(""), raw=True, display_id=True)

    def _bundle(self, live: str, fraction: float | None = None) -> dict[str, str]:
        text = "\n".join([*self._lines, *([live] if live else [])])
        bar = "" if fraction is None else f'<progress value="{fraction:.3f}"></progress>'
        return {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>{bar}"}

    def show(self, fraction: float, *parts: str) -> None:
        now = time.monotonic()
        if now - self._shown >= NOTEBOOK_SECONDS:
            self._shown = now
            self._handle.update(self._bundle("  ".join(parts), fraction), raw=True)

    def say(self, line: str) -> None:
        self._lines.append(line)
        self.close()

    def close(self) -> None:
        self._handle.update(self._bundle(""), raw=True)
