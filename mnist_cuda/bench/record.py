"""The record of a benchmark: the object of `--json`, with what its figures depend on; and when a file is refused."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mnist_cuda import machine
from mnist_cuda.errors import UsageError
from mnist_cuda.terminal import console
from mnist_cuda.terminal.json_output import JsonOutput

QUIET_LOAD = 0.25  # a core, over the last minute


def load_text(load: float) -> str:
    """Such as `load 3.1 on 2 cores`."""
    return f"load {load:.1f} on {console.plural(machine.cores(), 'core')}"


def is_busy(load: float) -> bool:
    """Whether other programs are at work; load: runnable processes, the mean over the last minute."""
    return load > QUIET_LOAD * machine.cores()


def require_recordable(file: Path, load: float, busy: bool) -> None:
    """Raises UsageError where figures would not be those of a commit on a quiet machine; `busy` accepts the machine."""
    if (given := os.environ.get(machine.COMMIT_VARIABLE)) and not re.fullmatch("[0-9a-f]{40}", given):
        raise UsageError(
            f"{machine.COMMIT_VARIABLE} is '{given}', expected the 40 digits that `git rev-parse HEAD` prints"
        )
    if changed := machine.changed_files():
        names = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        raise UsageError(
            f"--json {file}: a record is of a commit, and this checkout has changed files ({names}); "
            "commit them first, or use --json without FILE, which prints the object"
        )
    if is_busy(load) and not busy:
        raise UsageError(
            f"--json {file}: this machine is busy ({load_text(load)}, expected at most {QUIET_LOAD:g} a core); "
            "wait until it is quiet, or record anyway by --busy"
        )


class Record(JsonOutput):
    """Where the flag `--json` of a benchmark wants its record. To be made before anything is measured.

    Raises CheckpointError for a file that cannot be written, and what `require_recordable` does for a file; what is
    printed is not checked.
    """

    def __init__(self, target: Path | None, *, busy: bool = False) -> None:
        super().__init__(target)
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._load = os.getloadavg()
        if self.file:
            require_recordable(self.file, self._load[0], busy)
        if self:
            machine.commit()  # of the time before the first measurement

    def whole(self, value: dict[str, Any], **of_machine: Any) -> dict[str, Any]:
        """The object after the circumstances. of_machine: what else there is to say of it."""
        facts = machine.circumstances(load_before=self._load, load_after=os.getloadavg(), **of_machine)
        return {"started": self._started, **facts, **value}

    def write(self, value: dict[str, Any], **of_machine: Any) -> None:
        """Deliver the object after the circumstances, as `whole` takes them, if it is wanted."""
        if self:
            super().write(self.whole(value, **of_machine))
