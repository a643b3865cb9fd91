"""The other end of the protocol: starts a competitor's process, speaks with it and writes the files that it reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.dataset import Dataset
from mnist_cuda.engine.model import init_parameters
from mnist_cuda.errors import OutputError
from mnist_cuda.run.checkpoint import save_model
from mnist_cuda.run.results import Model


def write_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """Write a .npz that competitors read. Raises OutputError."""
    with _writing(path):
        np.savez(path, **arrays)  # type: ignore[arg-type]


def write_data(path: Path, data: Dataset) -> None:
    """Write a data set as a .npz. Raises OutputError."""
    of_test = {"test_images": data.test_images, "test_labels": data.test_labels}
    write_arrays(path, images=data.train_images, labels=data.train_labels, **of_test)


def write_weights(path: Path, seed: int) -> None:
    """Write a seed's initial weights. Raises CheckpointError."""
    save_model(path, Model(init_parameters(seed)), steps=0)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a .npy, such as the samples' order. Raises OutputError."""
    with _writing(path):
        np.save(path, array)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot write it: {error.strerror or error}; free some room or let TMPDIR name another folder"
        ) from error


class CompetitorError(Exception):
    """A competitor answered with an error or ended; its row of the table says so."""


class CompetitorProcess:
    """A running competitor. Use it as a context manager: the process never outlives the block."""

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C reaches only us, and `kill` what it has started, too
        )

    def kill(self) -> None:
        """End it and what it has started; whoever waits for its answer gets a CompetitorError."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> CompetitorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.communicate()
        self._stderr.close()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer. Raises CompetitorError."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):  # it has ended, and may have said why before
            print(json.dumps(command), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._stderr.seek(0)
            last = ([text.strip() for text in self._stderr if text.strip()] or ["without a word"])[-1]
            raise CompetitorError(f"its process ended with {self._process.wait()}: {last}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise CompetitorError(f"it answered {line.strip()[:80]!r}, expected JSON") from None
        if "error" in answer:
            raise CompetitorError(answer["error"])
        return answer


class CompetitorGroup:
    """Competitors that several threads start and that one thread can end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[CompetitorProcess] = []
        self._ended = False

    def start(self, command: tuple[str, ...]) -> CompetitorProcess:
        """As CompetitorProcess(command). Raises CompetitorError after `end`."""
        with self._lock:
            if self._ended:
                raise CompetitorError("the benchmark was ended")
            process = CompetitorProcess(command)
            self._processes.append(process)
            return process

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.kill()
