"""Gradients of random cases against float64 under the engine's routing, with PyTorch's as the yardstick.

A case has a scale of its own for every layer and channel, batch norm scales of both signs and 0, images of one kind and
a batch size around a threshold of the engine or another up to 4300. Some of its gradients cancel to a small rest, so
that no fixed bound holds for any implementation. PyTorch, in the same precision and under the same routing, says what
can be had: an error counts relative to the bound or to PyTorch's error, whichever is larger.

With MNIST_CUDA_TEST_FULL=1 it runs on a GPU, too, 300 cases a precision. `pytest -s` shows how the ratios are spread.
"""

import functools
import subprocess

import cases
import numpy as np
import pytest
from conformance import BIASES, ORACLE, bounding_batch
from conftest import FULL, ROOT, engine_params

from mnist_cuda.engine.tolerances import error_of, limits_of_random_cases, tolerance

LARGEST = 4300  # batch
MANY = 700  # images; every fourth case has more
DECADES = 1.5  # up and down: scales lie within three


def specs():
    """All that round: in float64 PyTorch is no yardstick."""
    return [param for param in engine_params() if param.values[0][1] != "fp64" and (FULL or not param.marks)]


class RoutedPeer:
    """PyTorch's step under a given routing: tests/routed_step.py, running."""

    def __init__(self, python, folder, precision, device):
        self.file = folder / "case.npz"
        command = [str(python), str(ROOT / "tests" / "routed_step.py"), precision, device]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.__exit__(*error)

    def gradients(self, images, labels, weights, routing):
        arrays = dict(zip(("pool1", "pool2", "relu3"), routing, strict=True))
        np.savez(self.file, images=images, labels=labels, **arrays, **weights)
        print(self.file, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().rstrip("\n")
        assert answer == "ok", f"PyTorch: {answer or 'it ended'}"
        with np.load(self.file.with_name("gradients.npz")) as found:
            return dict(found)


@functools.cache
def pool(kind):
    """256 images of a kind, to draw batches from."""
    return cases.IMAGES[kind](256)


def batch_sizes(engine, count):
    """`count` batch sizes in no order: on both sides of every threshold of the engine, again and again, and others."""
    rng = np.random.default_rng(1)
    near = {max(1, threshold + by) for threshold in (2, *engine.batch_thresholds()) for by in (-1, 0, 1)}
    few = sorted(size for size in near if size <= MANY) + [int(size) for size in rng.integers(3, 200, 4)]
    others = [int(size) for size in rng.integers(MANY + 1, LARGEST, 40)]
    many = [*sorted(size for size in near if MANY < size <= LARGEST), *others, LARGEST]
    if engine.info.device == "cpu":
        return rng.choice([size for size in few if size <= 64], count).tolist()
    draw = {name: iter(np.resize(rng.permutation(sizes), count)) for name, sizes in (("few", few), ("many", many))}
    return [int(next(draw["many" if k % 4 == 3 else "few"])) for k in range(count)]


def random_weights(rng):
    """As PyTorch initialises them, then scaled, by layers and, in half of the layers, by channels."""
    weights = cases.initial_weights(int(rng.integers(1 << 30)))

    def scale(shape=()):
        return 10 ** rng.uniform(-DECADES, DECADES, shape)

    for layer in ("conv1", "conv2", "fc1", "fc2", "bn1", "bn2"):
        weight, bias = (weights[f"{layer}.{kind}"] for kind in ("weight", "bias"))
        if layer.startswith("bn"):
            weight[...] = rng.uniform(-1.5, 1.5, weight.shape)
            bias[...] = rng.uniform(-0.5, 0.5, bias.shape)
        factor = scale() * (scale(len(weight)) if rng.random() < 0.5 else np.ones(len(weight)))
        weight *= factor.reshape(-1, *[1] * (weight.ndim - 1))
        bias *= factor
        if layer.startswith("bn"):
            weight[rng.random(len(weight)) < 0.06] = 0
    return {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}


def random_case(oracle, seed, size):
    """(kind of images, images, labels, weights).

    The last layer is scaled so that scores differ by 0.03 to 3: a softmax of larger ones decides, as routing does.
    """
    rng = np.random.default_rng([7, seed])
    kind = str(rng.choice(list(cases.IMAGES)))
    images = pool(kind)[rng.integers(0, 256, size)]
    labels, weights = rng.integers(0, 10, size).astype(np.uint8), random_weights(rng)
    oracle.set_parameters(weights)
    spread = oracle.logits(images[:64], "batch").std() or 1.0
    factor = 10 ** rng.uniform(-1.5, 0.5) / spread
    for name in ("fc2.weight", "fc2.bias"):
        weights[name] = (factor * weights[name]).astype(np.float32).astype(np.float64)
    return kind, images, labels, weights


def test_yardstick(make_engine, peer, tmp_path):
    """PyTorch's step in float64 under decisions that nobody would take: the reference's under the same."""
    reference = make_engine("reference")
    images, labels, weights = cases.mixed(5), cases.labels(5), cases.signed_weights()
    reference.set_parameters(weights)
    taken = reference.probe(images, labels).routing
    routing = tuple(
        ((values + np.arange(values.size).reshape(values.shape)) % limit).astype(np.uint8)
        for values, limit in zip(taken, (5, 5, 2), strict=True)
    )
    expected = reference.probe(images, labels, routing=routing).gradients
    with RoutedPeer(peer.command[0], tmp_path, "fp64", "cpu") as torch:
        found = torch.gradients(images, labels, weights, routing)
    for name in expected.keys() - set(BIASES):
        assert error_of(found[name], expected[name]) <= 1e-9, name


@pytest.mark.parametrize("spec", specs())
def test_random_cases(make_engine, peer, tmp_path, spec):
    engine = make_engine(*spec)
    device = engine.info.device
    oracle = make_engine(*(ORACLE if device == "cuda" else ["reference"]))
    count = 300 if device == "cuda" else 5
    ratios = []
    with RoutedPeer(peer.command[0], tmp_path, spec[1], device) as torch:
        for seed, size in enumerate(batch_sizes(engine, count)):
            kind, images, labels, weights = random_case(oracle, seed, size)
            engine.set_parameters(weights)
            probe = engine.probe(images, labels)
            oracle.set_parameters(weights)
            expected = oracle.probe(images, labels, routing=probe.routing).gradients
            yardstick = torch.gradients(images, labels, weights, probe.routing)
            for name, gradient in probe.gradients.items():
                if name in BIASES:
                    assert not gradient.any(), name
                    continue
                error, of_torch = error_of(gradient, expected[name]), error_of(yardstick[name], expected[name])
                bound = tolerance(*spec, name, bounding_batch(size, kind), "frozen")
                what = f"{name}, case {seed}, batch {size}, {kind}: error {error:.1e}, bound {bound:.0e}"
                assert np.isfinite(error), what
                assert np.isfinite(of_torch), f"PyTorch: {what}"
                ratios.append((error / max(bound, of_torch), f"{what}, PyTorch {of_torch:.1e}"))
    ratios.sort(reverse=True)
    in_99_percent = ratios[len(ratios) // 100][0]
    summary = "\n".join(
        [
            f"{'-'.join(spec)}: {len(ratios)} gradients of {count} cases, times the bound or PyTorch's error: "
            f"50 % {np.median([ratio for ratio, _ in ratios]):.2f}, 99 % {in_99_percent:.2f}, the largest",
            *(f"  {ratio:.2f}  {what}" for ratio, what in ratios[:8]),
        ]
    )
    print(summary)
    of_99_percent, of_all = limits_of_random_cases(*spec)
    assert in_99_percent <= of_99_percent, summary
    assert ratios[0][0] <= of_all, summary
