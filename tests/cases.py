"""Small images, labels and weights without real data; numpy only, so that golden/make.py can use them too."""

import hashlib
import json
import math

import numpy as np

SHAPES = {
    "conv1.weight": (32, 1, 3, 3),
    "conv1.bias": (32,),
    "bn1.weight": (32,),
    "bn1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3),
    "conv2.bias": (64,),
    "bn2.weight": (64,),
    "bn2.bias": (64,),
    "fc1.weight": (128, 3136),
    "fc1.bias": (128,),
    "fc2.weight": (10, 128),
    "fc2.bias": (10,),
}
# What `bench ops` measures of a GPU, made up, and of one without our code for tensor cores.
ROOFS = {"bytes_per_second": 4e12, "fma_flops": 6e13, "tf32_flops": 3e14, "bf16_flops": 6e14}
OLDER_ROOFS = {name: ROOFS[name] for name in ("bytes_per_second", "fma_flops")}
# A kernel's launch, as `bench ops` and Engine.profile tell it.
KERNEL = {
    "name": "relu_forward_kernel<float>",
    "symbol": "_Z19relu_forward_kernel",
    "grid": (196, 2, 1),
    "block": (256, 1, 1),
    "registers": 12,
    "local_bytes": 0,
    "shared_bytes": 1024,
    "blocks_per_multiprocessor": 6,
    "occupancy": 0.75,
}


def uniform(seed, shape, low, high):
    """Uniform values from the generator's raw bits, which numpy keeps the same from version to version."""
    return low + (high - low) * np.random.Generator(np.random.PCG64(seed)).random(shape)


def strokes(count, seed=1):
    """(count,28,28) uint8: a few soft-edged bars on a flat background, so that most pool windows are ties."""
    images = np.zeros((count, 28, 28))
    y, x = np.mgrid[0:28, 0:28]
    for image, bars in zip(images, uniform(seed, (count, 3, 4), 0, 1), strict=True):
        for cy, cx, angle, length in bars:
            dy, dx = y - 6 - 16 * cy, x - 6 - 16 * cx
            along = dx * math.cos(3.2 * angle) + dy * math.sin(3.2 * angle)
            across = dy * math.cos(3.2 * angle) - dx * math.sin(3.2 * angle)
            distance = np.hypot(np.maximum(np.abs(along) - 3 - 5 * length, 0), across)
            np.maximum(image, np.clip(2.2 - distance, 0, 1) * 255, out=image)
    return images.round().astype(np.uint8)


def noise(count, seed=2):
    """(count,28,28) uint8 without any tie."""
    return uniform(seed, (count, 28, 28), 0, 256).astype(np.uint8)


def constant(count):
    """(count,28,28) uint8: flat images of different grey, the first black and the last white."""
    levels = np.linspace(0, 255, count).round().astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(levels[:, None, None], (count, 28, 28)))


def one_hot(count):
    """(count,28,28) uint8: black but for one white pixel, which visits the corners first."""
    images = np.zeros((count, 28, 28), np.uint8)
    places = [0, 27, 27 * 28, 28 * 28 - 1, *range(29, 28 * 28, 53)]
    for k in range(count):
        images[k].flat[places[k % len(places)]] = 255
    return images


def zeros(count):
    """(count,28,28) uint8, all black."""
    return np.zeros((count, 28, 28), np.uint8)


def mixed(count):
    """(count,28,28) uint8: strokes, noise, flat and one-pixel images in turn."""
    kinds = [strokes(count), noise(count), constant(count), one_hot(count)]
    return np.stack([kinds[k % 4][k] for k in range(count)])


IMAGES = {"strokes": strokes, "noise": noise, "constant": constant, "one_hot": one_hot, "zeros": zeros, "mixed": mixed}


def labels(count, seed=3):
    """(count,) uint8 from 0 to 9."""
    return uniform(seed, count, 0, 10).astype(np.uint8)


def initial_weights(seed=4):
    """Parameters as PyTorch initialises them: float32 numbers held as float64."""
    weights = {}
    for k, (name, shape) in enumerate(SHAPES.items()):
        layer, kind = name.split(".")
        bound = 1 / math.sqrt(math.prod(SHAPES[f"{layer}.weight"][1:]))
        value = np.full(shape, float(kind == "weight")) if layer in ("bn1", "bn2") else 0
        weights[name] = value + (0 if layer in ("bn1", "bn2") else uniform([seed, k], shape, -bound, bound))
    return {name: value.astype(np.float32).astype(np.float64) for name, value in weights.items()}


def signed_weights(seed=5):
    """The same with batch norm scales of both signs, shifts, and values before ReLU that are exactly 0.

    In each batch norm one channel has scale 0 and passes ReLU by its shift, so that its gradients are not all 0;
    another has scale and shift 0, and so has one hidden unit: there ReLU's gradient is 0, as PyTorch takes it.
    """
    weights = initial_weights(seed)
    for k, layer in enumerate(("bn1", "bn2")):
        shape = weights[f"{layer}.weight"].shape
        scale = uniform([seed, 20, k], shape, -1.5, 1.5)
        scale[[3, 7]] = 0
        weights[f"{layer}.weight"] = scale.astype(np.float32).astype(np.float64)
        weights[f"{layer}.bias"] = uniform([seed, 30, k], shape, -0.5, 0.5).astype(np.float32).astype(np.float64)
        weights[f"{layer}.bias"][[3, 7]] = 0.25, 0
    weights["fc1.weight"][5] = weights["fc1.bias"][5] = 0
    return weights


# What tests/golden/values.npz holds: case -> (images, labels, weights).
GOLDEN = {
    "init": (strokes(32), labels(32), initial_weights()),
    "signed": (mixed(32), labels(32), signed_weights()),
}

# It also holds the losses of so many steps of SGD from initial_weights() over the first real digits, by batch size.
TRAJECTORY_STEPS = 100
TRAJECTORY_RATE = 0.01
TRAJECTORY_BATCHES = (4, 64)


def digest(case):
    """A number that changes with any bit of a golden case's inputs."""
    images, targets, weights = GOLDEN[case]
    parts = (images, targets, *weights.values())
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def sketch(gradient):
    """A compact image of a gradient: small ones whole, large ones as products with fixed random signs on either side.

    An error anywhere in the gradient shows in it, at the same size relative to the norm.
    """
    if gradient.size <= 2000:
        return gradient.ravel()
    matrix = gradient.reshape(len(gradient), -1)
    left, right = (np.sign(uniform([6, n], n, -1, 1)) for n in matrix.shape)
    return np.concatenate([matrix @ right, left @ matrix])


def check_trace(events):
    """The spans of a trace, after holding its events to the Trace Event Format.

    They have names, rows and times; those of one row lie side by side or one within the other.
    """
    spans, open_until = [], {}
    for event in events:
        assert event["ph"] in ("X", "M"), event
        assert isinstance(event["name"], str), event
        assert isinstance(event["pid"], int), event
        if event["ph"] == "X":
            assert event["ts"] >= 0, event
            assert event["dur"] >= 0, event
            spans.append(event)
        else:
            assert event["args"], event
    for event in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
        stack = open_until.setdefault((event["pid"], event["tid"]), [])
        while stack and stack[-1] <= event["ts"] + 1e-3:
            stack.pop()
        assert not stack or event["ts"] + event["dur"] <= stack[-1] + 1e-3, event
        stack.append(event["ts"] + event["dur"])
    return spans


def trace_spans(path):
    """As check_trace, of a file."""
    return check_trace(json.loads(path.read_text())["traceEvents"])
