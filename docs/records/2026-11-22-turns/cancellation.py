"""What rounding alone does to bn1.bias's gradient in test_weights_of_all_sizes[an input of conv2], in float64.

    .venv-peers/bin/python docs/records/2026-11-22-turns/cancellation.py [RUNS]

The step of tests/test_engine_state.py at 1e3, after its three updates, where a test failed; values are rounded where
engine fused stores them, and nothing else is. `halves` rounds the gradient of conv1's pooled cells as conv2_backward on
halves of images does, of each half of conv2's channels for itself, `whole` as on whole images, `exact` not at all. Each
run has weights that are off by one part in 10,000, so that every value is rounded another way.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
import cases

EPSILON, IMAGES = 1e-5, 20


def rounded_to(bits):
    """To so many bits of mantissa, the first included."""

    def rounded(x):
        mantissa, exponent = torch.frexp(x)
        return torch.ldexp(torch.round(mantissa * 2**bits), exponent - bits)

    return rounded


def by_channel(values):
    return values[None, :, None, None]


def pooled(y, where):
    """ReLU and pooling: the values, and for each which of four positions it is from, 4 where ReLU stopped it."""
    b, c, h, w = y.shape
    windows = y.reshape(b, c, h // 2, 2, w // 2, 2).transpose(3, 4).flatten(4)
    if where is None:
        top = windows.max(4)
        where = torch.where(top.values > 0, top.indices, 4)
    return torch.where(where < 4, windows.gather(4, where.clamp(max=3)[..., None])[..., 0], 0.0), where


def unpooled(gradient, where):
    b, c, h, w = gradient.shape
    chosen = torch.where(where < 4, gradient, 0.0)[..., None]
    windows = torch.zeros(b, c, h, w, 4, dtype=torch.float64).scatter_(4, where.clamp(max=3)[..., None], chosen)
    return windows.reshape(b, c, h, w, 2, 2).transpose(3, 4).reshape(b, c, 2 * h, 2 * w)


def normalised(z, weight, bias):
    """Batch norm of the batch: y, xhat and 1 / sigma."""
    inverse = torch.rsqrt(z.var((0, 2, 3), unbiased=False) + EPSILON)
    xhat = (z - by_channel(z.mean((0, 2, 3)))) * by_channel(inverse)
    return by_channel(weight) * xhat + by_channel(bias), xhat, inverse


def terms(weights, images, labels, rounded, routing=(None, None, None)):
    """What bn1.bias's gradient sums up over images and cells, by how it is rounded; and the routing."""
    p = {name: torch.from_numpy(value) for name, value in weights.items()}
    x = ((torch.from_numpy(images).double() / 255 - 0.1307) / 0.3081)[:, None]
    y1, _, _ = normalised(F.conv2d(x, p["conv1.weight"], padding=1), p["bn1.weight"], p["bn1.bias"])
    a1, where1 = pooled(y1, routing[0])
    filters = rounded(p["conv2.weight"])
    z2 = rounded(F.conv2d(rounded(a1), filters, padding=1))
    y2, xhat, inverse = normalised(z2, p["bn2.weight"], p["bn2.bias"])
    a2, where2 = pooled(y2, routing[1])
    u = rounded(a2).flatten(1) @ rounded(p["fc1.weight"]).T + p["fc1.bias"]
    alive = u > 0 if routing[2] is None else routing[2]
    d = torch.softmax(torch.where(alive, u, 0.0) @ p["fc2.weight"].T + p["fc2.bias"], 1)
    d[torch.arange(len(labels)), torch.from_numpy(labels).long()] -= 1
    dh = rounded(d / len(labels) @ p["fc2.weight"] * alive)
    dy2 = unpooled(rounded((dh @ rounded(p["fc1.weight"])).reshape(a2.shape)), where2)
    mean, slope = dy2.mean((0, 2, 3)), (dy2 * xhat).mean((0, 2, 3))
    dz2 = rounded(by_channel(p["bn2.weight"] * inverse) * (dy2 - by_channel(mean) - xhat * by_channel(slope)))
    low, high = (F.conv_transpose2d(dz2[:, half], filters[half], padding=1) for half in (np.s_[:32], np.s_[32:]))
    da1 = {"halves": rounded(low) + rounded(high), "whole": rounded(low + high), "exact": low + high}
    return {name: torch.where(where1 < 4, value, 0.0) for name, value in da1.items()}, (where1, where2, alive)


def updated(weights, images, labels, rate):
    """The weights after a step of SGD."""
    p = {name: torch.from_numpy(value).requires_grad_() for name, value in weights.items()}
    x = ((torch.from_numpy(images).double() / 255 - 0.1307) / 0.3081)[:, None]
    for layer in "12":
        z = F.conv2d(x, p[f"conv{layer}.weight"], padding=1)
        x = F.max_pool2d(F.relu(normalised(z, p[f"bn{layer}.weight"], p[f"bn{layer}.bias"])[0]), 2)
    h = F.relu(F.linear(x.flatten(1), p["fc1.weight"], p["fc1.bias"]))
    F.cross_entropy(F.linear(h, p["fc2.weight"], p["fc2.bias"]), torch.from_numpy(labels).long()).backward()
    steps = {name: 0 if value.grad is None else rate * value.grad.numpy() for name, value in p.items()}
    return {name: (value - steps[name]).astype(np.float32).astype(np.float64) for name, value in weights.items()}


def main(runs):
    images, labels, weights = cases.mixed(IMAGES), cases.labels(IMAGES), cases.signed_weights()
    weights["conv2.weight"][:, 17] *= 1e3
    for _ in range(3):
        weights = updated(weights, images, labels, 1e-4)
    for name, bits, bound in (("bf16", 8, 8e-2), ("tf32 in 16 bits", 11, 8e-3)):
        random, errors, ratios = np.random.default_rng(0), {}, []
        for _ in range(runs):
            near = {key: value * (1 + 1e-4 * random.standard_normal(value.shape)) for key, value in weights.items()}
            found, routing = terms(near, images, labels, rounded_to(bits))
            want = terms(near, images, labels, lambda x: x, routing)[0]["exact"]
            gradient = want.sum((0, 2, 3))
            ratios.append(float(want.norm() / gradient.norm()))
            for kind, value in found.items():
                error = (value.sum((0, 2, 3)) - gradient).norm() / gradient.norm()
                errors.setdefault(kind, []).append(float(error))
        low, middle, high = np.percentile(ratios, (5, 50, 95))
        print(f"{name}, {runs} runs: norm of the terms / norm of the gradient {middle:.1f} ({low:.1f} to {high:.1f})")
        for kind, found in errors.items():
            middle, high = np.percentile(found, (50, 95))
            over = sum(error > bound for error in found)
            print(f"  {kind:7} error {middle:.1e}, in 1 of 20 over {high:.1e}; over the bound of {bound:g}: {over}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
