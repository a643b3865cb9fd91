"""Checkpoints of a run: files from which a stopped training goes on to the same bits.

They lie in the run's folder `checkpoints`, by the number of steps done. Each is a safetensors file with the parameters
in the engine's own type, loss and hits of each step of the running epoch, and as metadata where the training stands,
on what data, by what engine and versions it was made, and a sha256 of all that. The population statistics are not in
it: they are computed anew from the weights.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mnist_cuda.engine.model import PARAMETERS
from mnist_cuda.errors import CheckpointError, UsageError
from mnist_cuda.files import atomic_write, make_folder, writing
from mnist_cuda.machine import versions
from mnist_cuda.run.checkpoint import digest_of, one_line, read_safetensors, safetensors_bytes
from mnist_cuda.run.folder import CHECKPOINTS, ResumedFolder
from mnist_cuda.run.options import fixed_options
from mnist_cuda.run.training import State
from mnist_cuda.terminal.console import plural, print_warning
from mnist_cuda.terminal.json_input import parse_json

FORMAT = "mnist-cuda checkpoint 1"
STATE = {
    "epoch": int,
    "step": int,
    "seconds": float,
    "facts": {"options": dict, "data_digest": str, "versions": dict, "ranks?": int},
}


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read: its file, the state, and the facts that were saved with it."""

    path: Path
    state: State
    facts: dict[str, Any]


def save_state(folder: Path, steps: int, state: State, facts: Mapping[str, Any], keep: int) -> Path:
    """Write a run's checkpoint after so many steps, remove all but the latest `keep`, and return its file.

    facts: what else has to be known, for JSON. Raises CheckpointError where it cannot be written.
    """
    where = folder / CHECKPOINTS
    with writing(where):
        make_folder(where)
    tensors = {**state.parameters, "epoch.losses": state.losses, "epoch.correct": state.correct}
    stand = {"epoch": state.epoch, "step": state.step, "seconds": state.seconds, "facts": facts}
    metadata = {"format": FORMAT, "state": json.dumps(stand, sort_keys=True)}
    path = where / f"step-{steps:09d}.safetensors"
    atomic_write(path, safetensors_bytes(tensors, metadata))
    for old in checkpoints(folder)[keep:]:
        with writing(old):
            old.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The files of a run's checkpoints, latest first."""
    return sorted((folder / CHECKPOINTS).glob("step-*.safetensors"), key=_place, reverse=True)


def _place(path: Path) -> tuple[int, str]:
    """By steps: a number of more digits than the others have is the larger, too."""
    return len(path.name), path.name


def load_state(path: Path) -> Saved:
    """Read a checkpoint. Raises CheckpointError where it is not exactly as it was written."""
    try:
        tensors, metadata = read_safetensors(path)
        if metadata.get("sha256") != digest_of(tensors, metadata) or metadata["format"] != FORMAT:
            raise ValueError("its sha256 is not that of its content")
        stand = parse_json(metadata["state"], STATE)
        losses, correct = tensors.pop("epoch.losses"), tensors.pop("epoch.correct")
        parameters = {t.name: tensors.pop(t.name) for t in PARAMETERS}
        state = State(stand["epoch"], stand["step"], parameters, losses, correct, stand["seconds"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a sound checkpoint: {one_line(error)}") from error
    return Saved(path, state, stand["facts"])


def remove_later(folder: Path, than: Path | None) -> None:
    """Remove the checkpoints after this one, or all: what is trained now writes them anew."""
    for path in checkpoints(folder):
        if than is None or _place(path) > _place(than):
            with contextlib.suppress(OSError):
                path.unlink()


def take_up(
    folder: ResumedFolder, options: Mapping[str, Any], data_digest: str, *, more: str, ranks: int = 1
) -> tuple[State | None, list[dict[str, Any]]]:
    """Where a run goes on, and the records of the epochs before; later checkpoints are removed. None: at the start.

    options: those of the run that goes on, by name. more: how to ask for more epochs. ranks: how many train it now.
    Warns on standard error of what may change the last bits. Raises CheckpointError where the checkpoint was made with
    options that change more, UsageError where all epochs are done.
    """
    saved = _last_checkpoint(folder.path, options, data_digest, ranks)
    done = folder.epochs_done()
    if done >= options["epochs"]:
        remedy = f"; {more}" if options["schedule"] == "constant" else ""
        raise UsageError(f"{folder.path}: all {done} epochs are done{remedy}")
    records = folder.records_before(saved.state.epoch if saved else 1)
    remove_later(folder.path, saved.path if saved else None)
    return saved.state if saved else None, records


def _last_checkpoint(folder: Path, options: Mapping[str, Any], data_digest: str, ranks: int) -> Saved | None:
    """The latest sound checkpoint of a run; None, to begin anew, where there is none yet."""
    found = None
    for path in checkpoints(folder):
        try:
            found = load_state(path)
            break
        except CheckpointError as error:
            print_warning(f"{error}; looking for an older one")
    if found is None:
        print(f"mnist-cuda: {folder} has no checkpoint yet: the run begins anew", file=sys.stderr)
        return None
    wanted = fixed_options(options)
    for name, value in found.facts["options"].items():
        if wanted.get(name) != value:
            raise CheckpointError(f"{found.path}: made with {name} {value}, and config.json says {wanted.get(name)}")
    if found.facts["data_digest"] != data_digest:
        raise CheckpointError(f"{found.path}: was made on other data, of digest {found.facts['data_digest'][:12]}")
    before = found.facts.get("ranks", 1)
    if before != ranks:
        print_warning(
            f"{found.path} was made by {plural(before, 'rank')}, and now it is {ranks}: the weights will differ "
            "from what they would have been, in their last bits at first"
        )
    made_by, here = found.facts["versions"], versions()
    other = [f"{name} {made_by.get(name)}, now {here[name]}" for name in here if made_by.get(name) != here[name]]
    if other:
        print_warning(f"{found.path} was made by {'; '.join(other)}: the weights may differ in their last bits")
    return found
