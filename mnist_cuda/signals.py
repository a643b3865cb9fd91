"""Ctrl-C and SIGTERM, noticed at once even while the main thread is inside a native call."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_code(signum: int) -> int:
    """What a shell reports of a process that ended by this signal: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signum


class StopRequest:
    """While entered, the first SIGINT or SIGTERM sets `signal`; a second one ends the process at once.

    Python runs signal handlers between two bytecodes of the main thread, so not during a native call. The interpreter's
    C handler does run then and writes the signal's number into a pipe (`signal.set_wakeup_fd`), which a thread reads.
    A signal that the parent process has set to be ignored stays ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._lock = threading.Lock()
        self._give_up: Callable[[int], object] | None = None

    def __enter__(self) -> StopRequest:
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._old_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        heard = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
        self._old_handlers = {s: signal.signal(s, lambda *_: None) for s in heard}
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self._writer)  # ends the thread

    @contextmanager
    def giving_up_with(self, give_up: Callable[[int], object]) -> Iterator[None]:
        """A block that is not worth finishing: a signal runs `give_up(signum)` in the watching thread and exits.

        The main thread is then still inside the block and never leaves it.
        """
        with self._lock:
            self._give_up = give_up
        try:
            if self.signal is not None:  # it came just before
                with self._lock:
                    self._leave(self.signal)
            yield
        finally:
            with self._lock:
                self._give_up = None

    def _watch(self, reader: int) -> None:
        while byte := os.read(reader, 1):
            signum = byte[0]
            if signum not in self._old_handlers:
                continue
            if self.signal is not None:
                _exit(signum)
            self.signal = signum
            # Held to the end, so that the main thread cannot leave the block meanwhile; a second signal must still
            # be read, hence the other thread.
            threading.Thread(target=self._leave_locked, args=(signum,), daemon=True).start()
        os.close(reader)

    def _leave_locked(self, signum: int) -> None:
        with self._lock:
            self._leave(signum)

    def _leave(self, signum: int) -> None:
        if self._give_up is not None:
            try:
                self._give_up(signum)
            except Exception as error:
                print(f"mnist-cuda: error: {error}", file=sys.stderr)
            finally:
                _exit(signum)


def _exit(signum: int) -> None:
    """End now: no clean-up, no waiting for native code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream.isatty():
                stream.write("\x1b[?25h")  # a live display hides the cursor
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(exit_code(signum))
