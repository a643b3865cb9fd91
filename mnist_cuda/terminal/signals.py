"""Ctrl-C, SIGTERM and SIGHUP, noticed at once even while the main thread is inside a native call."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# How long a command may take to leave what it is in, clean-up included, before it is ended there.
GRACE_SECONDS = 1.0


def exit_code(signum: int) -> int:
    """What a shell reports of a process that ended by this signal: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + signum


class Interrupted(KeyboardInterrupt):
    """One of STOP_SIGNALS outside a training run; unwinds like Ctrl-C."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


class _Watcher:
    """While entered, a thread hears STOP_SIGNALS at once; at the second one it ends the process.

    Python runs signal handlers between two bytecodes of the main thread, so not during a native call. The interpreter's
    C handler does run then and writes the signal's number into a pipe (`signal.set_wakeup_fd`), which the thread reads.
    A signal that the parent process has set to be ignored stays ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Self:
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._old_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        heard = [s for s in STOP_SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
        self._old_handlers = {s: signal.signal(s, self._handle) for s in heard}
        threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self._writer)  # ends the thread

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """In the main thread, between two bytecodes, at every signal."""

    def _hear(self, signum: int) -> None:
        """In a thread of its own, at the first signal."""

    def _watch(self, reader: int) -> None:
        while byte := os.read(reader, 1):
            signum = byte[0]
            if signum not in self._old_handlers:
                continue
            if self.signal is not None:
                end_now(signum, "stopped by a second signal, at once")
            self.signal = signum
            threading.Thread(target=self._hear, args=(signum,), daemon=True).start()
        os.close(reader)


class Interruptible(_Watcher):
    """While entered, one of STOP_SIGNALS raises Interrupted; what is not out of the block in GRACE_SECONDS is ended.

    A native call does not: no exception reaches it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left = threading.Event()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._left.set()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    def _hear(self, signum: int) -> None:
        if not self._left.wait(GRACE_SECONDS):
            end_now(signum, f"stopped by {signal.Signals(signum).name}")


class StopRequest(_Watcher):
    """While entered, the first of STOP_SIGNALS only sets `signal`.

    heard: called with its number, in another thread, at once.
    """

    def __init__(self, heard: Callable[[int], object] = lambda signum: None) -> None:
        super().__init__()
        self._heard = heard
        self._lock = threading.Lock()
        self._give_up: Callable[[int], object] | None = None

    @contextlib.contextmanager
    def giving_up_with(self, give_up: Callable[[int], object]) -> Iterator[None]:
        """A block that is not worth finishing: a signal runs `give_up(signum)` in another thread and exits.

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

    def _hear(self, signum: int) -> None:
        with self._lock:  # held to the end, so that the main thread cannot leave the block meanwhile
            self._leave(signum)
        self._heard(signum)

    def _leave(self, signum: int) -> None:
        if self._give_up is not None:
            try:
                self._give_up(signum)
            except Exception as error:
                print(f"mnist-cuda: error: {error}", file=sys.stderr)
            finally:
                os._exit(exit_code(signum))


def end_now(signum: int, message: str) -> NoReturn:
    """End with a line on stderr, if that takes it at once: no clean-up, no waiting for native code."""
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            begin, to = "", 2
            if os.isatty(2):  # there stand a live line and the ^C
                begin = "\n" if os.environ.get("TERM", "dumb") == "dumb" else "\r\x1b[2K"
                to, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
                for stream in (1, 2):  # or the thread that draws the live line would do so once more, below the message
                    os.dup2(nowhere, stream)
            os.write(to, f"{begin}mnist-cuda: error: {message}\n".encode())
    os._exit(exit_code(signum))
