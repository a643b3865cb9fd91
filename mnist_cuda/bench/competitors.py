"""Who takes part in a benchmark: the chosen variants of peers, and a row for each engine of the registry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from mnist_cuda.bench.variants import PEERS, Peer, chosen_variants, words_of_peers
from mnist_cuda.engine import EngineInfo, find_engine
from mnist_cuda.errors import UnavailableError, UsageError, did_you_mean
from mnist_cuda.machine import CHECKOUT

# The peers' interpreter if none is named: the one that scripts/peers makes, and without a checkout our own.
PEER_PYTHON = CHECKOUT / ".venv-peers" / "bin" / "python" if CHECKOUT else Path(sys.executable)
PEER_SCRIPTS = Path(__file__).parents[1] / "peers"
# Keeps the pages that a step frees for the next one, instead of giving them back to the system.
JEMALLOC_SETTINGS = "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"
# Bits of an activation as it is stored between two layers, if an engine or a variant does not say otherwise.
STORED_BITS = {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16}
SIXTEEN_BITS_IN_TF32 = {"tf32": 16}


# How far a peer's loss may be from that of its own untimed run, relatively: atomics may add in another order.
PEER_LOSS_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Competitor:
    """A label and a command line that speaks the protocol of bench/worker.py; or why it cannot take part.

    device: `cpu` or `cuda`. fields: its part of the set-up. peer: not one of our engines. loss_tolerance: relative,
    between its timed and untimed run; our engines are deterministic, so theirs is 0. shares_batches: several GPUs can
    make a step together, and gpus do. models: that one of its steps trains. stored_bits: by precision, where they are
    not STORED_BITS.
    """

    label: str
    command: tuple[str, ...]
    device: str
    precisions: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    peer: bool = False
    loss_tolerance: float = 0.0
    shares_batches: bool = False
    unavailable: str = ""
    unavailable_precisions: dict[str, str] = field(default_factory=dict)
    models: int = 1
    gpus: int = 1
    stored_bits: dict[str, int] = field(default_factory=dict)

    def storage(self, precision: str) -> int:
        """Bits of an activation as it is stored between two layers."""
        return {**STORED_BITS, **self.stored_bits}[precision]

    def reason(self, precision: str) -> str:
        """Why it cannot take part in that precision; empty if it can."""
        return self.unavailable or self.unavailable_precisions.get(precision, "")


def on_gpus(competitors: Iterable[Competitor], counts: Iterable[int]) -> list[Competitor]:
    """The same on so many GPUs each; those that cannot share a batch on one alone."""

    def together(competitor: Competitor, count: int) -> Competitor:
        if count == 1:
            return competitor
        command = (sys.executable, "-m", "mnist_cuda.bench.fan_out", str(count), *competitor.command)
        return replace(competitor, label=f"{competitor.label} x{count}", gpus=count, command=command)

    return [together(c, count) for count in counts for c in competitors if count == 1 or c.shares_batches]


def words(arguments: Iterable[str]) -> list[str]:
    """A list on the command line, `a,b c` in any mixture, as a, b, c; each once."""
    return list(dict.fromkeys(word for argument in arguments for word in argument.split(",") if word))


def some_words(flag: str, arguments: Iterable[str]) -> list[str]:
    """The words of a list that may not be empty. Raises UsageError."""
    found = words(arguments)
    if not found:
        raise UsageError(f"{flag} names nothing, expected at least one; leave it out to take its default")
    return found


def whole_numbers(flag: str, arguments: Iterable[str], *, some: bool = True) -> list[int]:
    """The numbers of a list, of at least 1 each; none is fine where `some` is not set. Raises UsageError."""
    arguments = list(arguments)
    try:
        numbers = [int(word) for word in words(arguments)]
    except ValueError:
        numbers = [0]
    if min(numbers, default=0 if some else 1) < 1:
        raise UsageError(f"{flag} is {' '.join(arguments)}, expected whole numbers of at least 1")
    return numbers


def the_engine(names: Sequence[str], flag: str) -> EngineInfo:
    """The only engine of --engines, for a flag that takes one. Raises UsageError."""
    found = some_words("--engines", names)
    if len(found) > 1:
        raise UsageError(f"--engines is {' '.join(names)}, expected one engine with {flag}")
    return find_engine(found[0])


def engine_competitor(info: EngineInfo) -> Competitor:
    """An engine in a worker process."""
    command = (sys.executable, "-m", "mnist_cuda.bench.worker", info.name)
    return Competitor(
        info.name,
        command,
        info.device,
        info.precisions,
        shares_batches=info.shares_batches and info.device == "cuda",
        unavailable=info.unavailable,
        unavailable_precisions=info.unavailable_precisions,
        stored_bits=SIXTEEN_BITS_IN_TF32 if info.name == "fused" else {},
    )


def engine_competitors(names: Iterable[str]) -> list[Competitor]:
    """The engines of these names. Raises UsageError for an unknown one."""
    infos = {info.name: info for info in map(find_engine, names)}
    return [engine_competitor(info) for info in infos.values()]


def of_models(competitor: Competitor, label: str, models: int) -> Competitor:
    """The competitor with so many models in a step."""
    fields = competitor.fields | {"models": models}
    return replace(competitor, label=label.format(models=models), fields=fields, models=models)


def peer_competitors(
    names: Iterable[str],
    devices: Iterable[str],
    python: Path,
    peers: Mapping[str, Peer] = PEERS,
    models: Sequence[int] = (),
) -> list[Competitor]:
    """Variants of these peers on these kinds of device: for `torch` the usual ones, for `torch:graph` the plainest with
    that word in their label, for `torch:graph:NHWC` the plainest with both. Of a variant for several models there is
    one for each number of `models`.

    Raises UsageError for an unknown peer or word.
    """
    devices = dict.fromkeys(devices)
    found = []
    for chosen in dict.fromkeys(names):
        name, colon, words = chosen.partition(":")
        wanted = words if colon else None
        if name not in peers:
            expected = f"{', '.join(peers)}{did_you_mean(name, peers)}; words {words_of_peers(peers)}"
            raise UsageError(f"peer '{name}' is unknown, expected one of {expected}")
        peer = peers[name]
        if not any(chosen_variants(peer, device, wanted) for device in ("cpu", "cuda")):
            raise UsageError(f"peer '{name}' has no variant '{words}'; words {words_of_peers({name: peer})}")
        missing = "" if has_module(python, peer.module) else f"{lack(python, peer.module)}; {_remedy(peer)}"
        for variant in (v for device in devices for v in chosen_variants(peer, device, wanted)):
            preload, reason = _preload(variant.allocator)
            competitor = Competitor(
                variant.label,
                (*preload, str(python), str(PEER_SCRIPTS / (variant.script or peer.script)), "--serve"),
                variant.device,
                variant.precisions,
                {"device": variant.device, "options": variant.options, **variant.fields},
                peer=True,
                loss_tolerance=PEER_LOSS_TOLERANCE,
                shares_batches=variant.ranks,
                unavailable=missing or reason,
                stored_bits=SIXTEEN_BITS_IN_TF32 if "fp16" in variant.options else {},
            )
            if "{models}" in variant.label:
                found += [of_models(competitor, variant.label, number) for number in models]
            else:
                found.append(competitor)
    return found


@cache
def _preload(allocator: str) -> tuple[tuple[str, ...], str]:
    """What stands before a command to give it that allocator; and why it cannot have it."""
    if not allocator:
        return (), ""
    library = find_library(allocator)
    if library is None:
        return (), f"there is no {allocator} on this machine; install it (Debian and Ubuntu: libjemalloc2)"
    return ("env", f"LD_PRELOAD={library}", f"MALLOC_CONF={JEMALLOC_SETTINGS}"), ""


def first_variants(names: Iterable[str], device: str, python: Path) -> list[Competitor]:
    """The first and plainest variant of each of these peers on this kind of device: `torch` is eager in NCHW.

    Raises UsageError for an unknown peer or word or one without a variant here, UnavailableError for one that cannot
    run.
    """
    found = []
    for name in dict.fromkeys(names):
        variants = peer_competitors([name if ":" in name else f"{name}:"], (device,), python)
        if not variants:
            raise UsageError(f"peer '{name}' has no variant on the {device}")
        if variants[0].unavailable:
            raise UnavailableError(f"{variants[0].label} cannot run here: {variants[0].unavailable}")
        found.append(variants[0])
    return found


def lack(python: Path, module: str) -> str:
    """Why `has_module` says no."""
    if python.exists():
        return f"{python} has no {module}"
    return f"{module} is not installed (there is no {python})"


def _remedy(peer: Peer) -> str:
    if CHECKOUT:
        return f"`{peer.install}` installs it, or name another --peer-python"
    return f"`pip install {peer.packages}` in an environment of its own and name its interpreter by --peer-python"


def has_module(python: Path, module: str) -> bool:
    """Whether that interpreter is there and finds the module."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
