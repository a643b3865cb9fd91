"""Who takes part in a benchmark: THE tables of peers and their variants, and a row for each engine of the registry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mnist_cuda.engine import EngineInfo, find_engine
from mnist_cuda.errors import UnavailableError, UsageError, did_you_mean
from mnist_cuda.machine import CHECKOUT

# The peers' interpreter if none is named: the one that scripts/peers makes, and without a checkout our own.
PEER_PYTHON = CHECKOUT / ".venv-peers" / "bin" / "python" if CHECKOUT else Path(sys.executable)
PEER_SCRIPTS = Path(__file__).parents[1] / "peers"


@dataclass(frozen=True)
class Variant:
    """One way to run a peer: on which kind of device, with which fields of its set-up.

    script: if not the peer's. ranks: several GPUs can make a step together. A label with `{models}` is of a way to
    train several models in one step.
    """

    label: str
    device: str
    fields: dict[str, Any] = field(default_factory=dict)
    script: str = ""
    ranks: bool = False


@dataclass(frozen=True)
class Peer:
    """Another framework: its script in peers/, what it imports, how to get it, and its variants. The best one counts.

    install: the command in a checkout. packages: what to install without one.
    """

    script: str
    module: str
    install: str
    packages: str
    variants: tuple[Variant, ...]


PEERS = {
    "torch": Peer(
        "pytorch_baseline.py",
        "torch",
        "scripts/peers",
        "torch numpy",
        (
            Variant("torch eager NCHW", "cpu", {"mode": "eager"}),
            Variant("torch eager NHWC", "cpu", {"mode": "eager", "channels_last": True}),
            Variant("torch eager NCHW", "cuda", {"mode": "eager"}, ranks=True),
            Variant("torch eager NHWC", "cuda", {"mode": "eager", "channels_last": True}, ranks=True),
            Variant("torch graph NCHW", "cuda", {"mode": "graph"}, ranks=True),
            Variant("torch graph NHWC", "cuda", {"mode": "graph", "channels_last": True}, ranks=True),
            Variant("torch compile", "cuda", {"mode": "compile", "channels_last": True}),
            Variant("torch autotune", "cuda", {"mode": "max-autotune", "channels_last": True}),
        ),
    ),
    "jax": Peer(
        "jax_baseline.py",
        "jax",
        "scripts/peers --jax",
        "jax numpy",
        (Variant("jax scan", "cpu"), Variant("jax scan", "cuda")),
    ),
}
# The ways to train many models: one after another, and several in one step.
SWEEP_PEERS = {
    "torch": replace(
        PEERS["torch"],
        variants=(
            Variant("torch eager NHWC, one after another", "cpu", {"mode": "eager", "channels_last": True}),
            Variant("torch vmap of {models}", "cpu", {"mode": "eager"}, "pytorch_models.py"),
            Variant("torch graph NCHW, one after another", "cuda", {"mode": "graph"}),
            Variant("torch graph NHWC, one after another", "cuda", {"mode": "graph", "channels_last": True}),
            Variant("torch vmap of {models} in a graph", "cuda", {"mode": "graph"}, "pytorch_models.py"),
        ),
    ),
    "jax": replace(
        PEERS["jax"],
        variants=tuple(
            variant
            for device in ("cpu", "cuda")
            for variant in (
                Variant("jax scan, one after another", device),
                Variant("jax vmap of {models}, convolutions", device, {"mode": "convolutions"}, "jax_models.py"),
                Variant("jax vmap of {models}, products", device, {"mode": "products"}, "jax_models.py"),
            )
        ),
    ),
}
PEER_PRECISIONS = ("fp32", "tf32", "bf16")

# How far a peer's loss may be from that of its own untimed run, relatively: atomics may add in another order.
PEER_LOSS_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Competitor:
    """A label and a command line that speaks the protocol of bench/worker.py; or why it cannot take part.

    device: `cpu` or `cuda`. fields: its part of the set-up. peer: not one of our engines. loss_tolerance: relative,
    between its timed and untimed run; our engines are deterministic, so theirs is 0. shares_batches: several GPUs can
    make a step together. models: that one of its steps trains.
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

    def reason(self, precision: str) -> str:
        """Why it cannot take part in that precision; empty if it can."""
        return self.unavailable or self.unavailable_precisions.get(precision, "")


def on_gpus(competitors: Iterable[Competitor], counts: Iterable[int]) -> list[Competitor]:
    """The same on so many GPUs each; those that cannot share a batch on one alone."""
    fan_out = (sys.executable, "-m", "mnist_cuda.bench.fan_out")
    return [
        competitor
        if count == 1
        else replace(
            competitor,
            label=f"{competitor.label} x{count}",
            command=(*fan_out, str(count), *competitor.command),
        )
        for count in counts
        for competitor in competitors
        if count == 1 or competitor.shares_batches
    ]


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
    """All variants of these peers on these kinds of device; `torch:graph` takes those with that word in their label,
    `torch:graph:NHWC` those with both words. Of a variant for several models there is one for each number of `models`.

    Raises UsageError for an unknown peer or word.
    """
    devices = set(devices)
    found = []
    for chosen in dict.fromkeys(names):
        name, _, wanted = chosen.partition(":")
        if name not in peers:
            raise UsageError(f"peer '{name}' is unknown, expected one of {', '.join(peers)}{did_you_mean(name, peers)}")
        peer = peers[name]
        variants = [v for v in peer.variants if set(wanted.split(":")) <= {"", *_words_of(v)}]
        if not variants:
            words = ", ".join(dict.fromkeys(w for v in peer.variants for w in _words_of(v)[1:]))
            raise UsageError(f"peer '{name}' has no variant '{wanted}', expected one of {words}")
        reason = "" if has_module(python, peer.module) else f"{python} has no {peer.module}; {_remedy(peer)}"
        for variant in variants:
            if variant.device not in devices:
                continue
            competitor = Competitor(
                variant.label,
                (str(python), str(PEER_SCRIPTS / (variant.script or peer.script)), "--serve"),
                variant.device,
                PEER_PRECISIONS,
                {"device": variant.device, **variant.fields},
                peer=True,
                loss_tolerance=PEER_LOSS_TOLERANCE,
                shares_batches=variant.ranks,
                unavailable=reason,
            )
            if "{models}" in variant.label:
                found += [of_models(competitor, variant.label, number) for number in models]
            else:
                found.append(competitor)
    return found


def _words_of(variant: Variant) -> list[str]:
    return variant.label.replace(",", "").split()


def first_variants(names: Iterable[str], device: str, python: Path) -> list[Competitor]:
    """The first variant of each of these peers on this kind of device: of PyTorch eager, in its own memory format.

    Raises UsageError for an unknown peer or word or one without a variant here, UnavailableError for one that cannot
    run.
    """
    found = []
    for name in dict.fromkeys(names):
        variants = peer_competitors([name], (device,), python)
        if not variants:
            raise UsageError(f"peer '{name}' has no variant on the {device}")
        if variants[0].unavailable:
            raise UnavailableError(f"{variants[0].label} cannot run here: {variants[0].unavailable}")
        found.append(variants[0])
    return found


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
