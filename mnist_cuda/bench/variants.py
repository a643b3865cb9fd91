"""THE tables of other frameworks that take part in a benchmark, and of their variants, which docs/peers.md explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

PEER_PRECISIONS = ("fp32", "tf32", "bf16")
PRECISIONS_OF = {"fp16": ("tf32",), "tf32x3": ("fp32",)}  # of an option
JEMALLOC = "jemalloc"


@dataclass(frozen=True)
class Variant:
    """One way to run a peer: on which kind of device, with which fields of its set-up.

    script: if not the peer's. ranks: several GPUs can make a step together. A label with `{models}` is of a way to
    train several models in one step. options: the set-up's field of that name. allocator: a library to preload, by its
    name. usual: one of those that the peer's name alone stands for.
    """

    label: str
    device: str
    fields: dict[str, Any] = field(default_factory=dict)
    script: str = ""
    ranks: bool = False
    options: tuple[str, ...] = ()
    allocator: str = ""
    usual: bool = True

    @property
    def words(self) -> list[str]:
        """Of its label, without the peer's name."""
        return self.label.replace(",", "").split()[1:]

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those that it is for."""
        return next((PRECISIONS_OF[word] for word in self.options if word in PRECISIONS_OF), PEER_PRECISIONS)


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


def torch_variants() -> Iterator[Variant]:
    """Each mode in both memory formats, and what else it may do; docs/peers.md explains the words."""
    usual = {
        "cpu": ("eager NHWC", "eager NHWC jemalloc", "compile NHWC jemalloc"),
        "cuda": ("graph NHWC", "compile NHWC", "max-autotune NHWC", "max-autotune fp16 NHWC"),
    }
    whole = {"eager": ("",), "graph": ("",), "compile": ("", "whole"), "max-autotune": ("", "whole")}
    modes = [("cpu", mode) for mode in whole if mode != "graph"] + [("cuda", mode) for mode in whole]
    for device, mode in modes:
        halves, allocators = (("",), ("", JEMALLOC)) if device == "cpu" else (("", "fp16"), ("",))
        choices = (whole[mode], halves, ("NCHW", "NHWC"), ("", "floats"), allocators)
        for region, half, layout, images, allocator in product(*choices):
            label = " ".join(filter(None, (mode, region, half, layout, images, allocator)))
            yield Variant(
                f"torch {label}",
                device,
                {"mode": mode, "channels_last": layout == "NHWC"},
                ranks=device == "cuda" and mode != "max-autotune",
                options=tuple(filter(None, (region, half, images))),
                allocator=allocator,
                usual=label in usual[device],
            )


def jax_variants() -> Iterator[Variant]:
    """The scan, and what it may do otherwise; docs/peers.md explains the words."""
    usual = {"cpu": ("", "vjp jemalloc"), "cuda": ("", "vjp", "vjp fp16")}
    norms = ("", "one-pass", "vjp")
    of_device = {
        "cpu": (norms, ("", "convolutions"), ("", "unroll"), ("", "floats")),
        "cuda": (
            *(norms, ("", "conv1-products", "products"), ("", "fp16", "tf32x3"), ("", "unroll"), ("", "floats")),
            *(("", "graphs"), ("", "search")),
        ),
    }
    for device, choices in of_device.items():
        for words in product(*choices, ("", JEMALLOC) if device == "cpu" else ("",)):
            *options, allocator = words
            label = " ".join(filter(None, words))
            yield Variant(
                f"jax scan {label}".strip(),
                device,
                ranks=device == "cuda",
                options=tuple(filter(None, options)),
                allocator=allocator,
                usual=label in usual[device],
            )


PEERS = {
    "torch": Peer("pytorch_baseline.py", "torch", "scripts/peers", "torch numpy", tuple(torch_variants())),
    "jax": Peer("jax_baseline.py", "jax", "scripts/peers --jax", "jax numpy", tuple(jax_variants())),
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


def chosen_variants(peer: Peer, device: str, wanted: str | None) -> list[Variant]:
    """Those with the wanted words, a:b:c, and as few options as possible; the usual variants if none are wanted."""
    variants = [v for v in peer.variants if v.device == device]
    if wanted is None:
        return [v for v in variants if v.usual]
    variants = [v for v in variants if set(wanted.split(":")) <= {"", *v.words}]
    extras = [len(v.options) + bool(v.allocator) for v in variants]
    return [v for v, extra in zip(variants, extras, strict=True) if extra == min(extras)]


def words_of_peers(peers: Mapping[str, Peer] = PEERS) -> str:
    """Each peer's name and the words of its variants."""
    words = {name: ", ".join(dict.fromkeys(w for v in peer.variants for w in v.words)) for name, peer in peers.items()}
    return "; ".join(f"for {name}: {text}" for name, text in words.items())
