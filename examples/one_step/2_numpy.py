"""2. NumPy: the training step by hand, forward and backward, every gradient written out.

    python 2_numpy.py start.bin [gradients.bin]

9_engine.py --write makes start.bin, with the initial weights and all batches. x is the input, z a convolution's output,
y batch norm's, a the pool's, dz the gradient of the loss with respect to z: arrays of (batch, channel, row, column).
"""

import sys
import time

import numpy as np

SHAPES = {
    "conv1.weight": (32, 1, 3, 3), "conv1.bias": (32,), "bn1.weight": (32,), "bn1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3), "conv2.bias": (64,), "bn2.weight": (64,), "bn2.bias": (64,),
    "fc1.weight": (128, 3136), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,),
}  # fmt: skip


def columns(x):
    """Each position's 3x3 neighbourhood in all channels, zeros beyond the border, as a row: (B*H*W, C*9)."""
    b, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # (B,C,H,W,3,3), a view
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(b * h * w, c * 9)


def images_of(rows, b, side):
    """(B*H*W, C) back to (B,C,H,W)."""
    return np.ascontiguousarray(rows.reshape(b, side, side, -1).transpose(0, 3, 1, 2))


def conv_forward(x, w, bias):
    """A convolution is a product: neighbourhoods times filters."""
    return images_of(columns(x) @ w.reshape(len(w), -1).T + bias, len(x), x.shape[2])


def conv_backward(dz, x, w):
    """dx is dz, convolved with the filters turned by 180 degrees; dw sums dz times the neighbourhood it came from.

    The bias has gradient 0: batch norm subtracts the mean, so a constant before it changes nothing.
    """
    rows = dz.transpose(0, 2, 3, 1).reshape(-1, len(w))
    turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3).reshape(w.shape[1], -1)
    return images_of(columns(dz) @ turned.T, len(x), x.shape[2]), (rows.T @ columns(x)).reshape(w.shape)


def bn_forward(z, gamma, beta):
    mean, var = z.mean((0, 2, 3), keepdims=True), z.var((0, 2, 3), keepdims=True)
    sigma = np.sqrt(var + np.float32(1e-5))
    zhat = (z - mean) / sigma
    return gamma[:, None, None] * zhat + beta[:, None, None], zhat, sigma


def bn_backward(dy, zhat, sigma, gamma):
    """Every input of a channel moves its mean and variance, hence the two sums."""
    n = dy.size // dy.shape[1]
    dbeta, dgamma = dy.sum((0, 2, 3)), (dy * zhat).sum((0, 2, 3))
    dz = gamma[:, None, None] / sigma * (dy - dbeta[:, None, None] / n - zhat * dgamma[:, None, None] / n)
    return dz, dgamma, dbeta


def pool_forward(y):
    """ReLU and the maximum of each 2x2 window; and which of its four was the maximum."""
    b, c, side, _ = y.shape
    windows = y.reshape(b, c, side // 2, 2, side // 2, 2).swapaxes(3, 4).reshape(b, c, side // 2, side // 2, 4)
    return np.maximum(windows.max(-1), 0), windows.argmax(-1)[..., None]


def pool_backward(da, a, choice):
    """Only the maximum of a window gets its gradient, and only where it was positive."""
    b, c, side, _ = da.shape
    windows = np.where((np.arange(4) == choice) & (a > 0)[..., None], da[..., None], 0)
    return windows.reshape(b, c, side, side, 2, 2).swapaxes(3, 4).reshape(b, c, 2 * side, 2 * side)


def forward(w, images):
    x = ((images / 255 - 0.1307) / 0.3081).astype(np.float32)
    y1, zhat1, sigma1 = bn_forward(conv_forward(x, w["conv1.weight"], w["conv1.bias"]), w["bn1.weight"], w["bn1.bias"])
    a1, choice1 = pool_forward(y1)
    y2, zhat2, sigma2 = bn_forward(conv_forward(a1, w["conv2.weight"], w["conv2.bias"]), w["bn2.weight"], w["bn2.bias"])
    a2, choice2 = pool_forward(y2)
    h = np.maximum(a2.reshape(len(x), -1) @ w["fc1.weight"].T + w["fc1.bias"], 0)
    logits = h @ w["fc2.weight"].T + w["fc2.bias"]
    shifted = logits - logits.max(1, keepdims=True)  # or exp would overflow
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return log_p, (x, zhat1, sigma1, a1, choice1, zhat2, sigma2, a2, choice2, h)


def backward(w, log_p, labels, saved):
    x, zhat1, sigma1, a1, choice1, zhat2, sigma2, a2, choice2, h = saved
    g = {"conv1.bias": np.zeros(32), "conv2.bias": np.zeros(64)}
    dlogits = (np.exp(log_p) - np.eye(10, dtype=np.float32)[labels]) / np.float32(len(labels))
    g["fc2.weight"], g["fc2.bias"] = dlogits.T @ h, dlogits.sum(0)
    du = np.where(h > 0, dlogits @ w["fc2.weight"], 0)
    g["fc1.weight"], g["fc1.bias"] = du.T @ a2.reshape(len(x), -1), du.sum(0)
    dy2 = pool_backward((du @ w["fc1.weight"]).reshape(a2.shape), a2, choice2)
    dz2, g["bn2.weight"], g["bn2.bias"] = bn_backward(dy2, zhat2, sigma2, w["bn2.weight"])
    da1, g["conv2.weight"] = conv_backward(dz2, a1, w["conv2.weight"])
    dz1, g["bn1.weight"], g["bn1.bias"] = bn_backward(pool_backward(da1, a1, choice1), zhat1, sigma1, w["bn1.weight"])
    g["conv1.weight"] = conv_backward(dz1, x, w["conv1.weight"])[1]
    return g


if __name__ == "__main__":
    content = np.fromfile(sys.argv[1], np.uint8)
    (steps, batch, tests), rate = (int(n) for n in content[:12].view(np.int32)), content[12:16].view(np.float32)
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    ends = np.cumsum([4 * sum(sizes), 784 * steps * batch, steps * batch, 784 * tests])
    weights, images, labels, test_images, test_labels = np.split(content[16:], ends)
    images, test_images = images.reshape(-1, 1, 28, 28), test_images.reshape(-1, 1, 28, 28)
    parts = np.split(weights.view(np.float32), np.cumsum(sizes)[:-1])
    w = {name: part.reshape(SHAPES[name]) for name, part in zip(SHAPES, parts, strict=True)}
    for step in range(steps):
        if step == 10:
            begin = time.perf_counter()  # the first steps warm up
        now = slice(step * batch, (step + 1) * batch)
        log_p, saved = forward(w, images[now])
        g = backward(w, log_p, labels[now], saved)
        w = {name: value - rate * g[name] for name, value in w.items()}
        if step < 10 or step % 10 == 9:
            print(f"step {step + 1:3}  loss {-log_p[np.arange(batch), labels[now]].mean():.5f}", flush=True)
        if step == 0 and len(sys.argv) > 2:
            np.concatenate([g[name].ravel() for name in SHAPES]).astype(np.float32).tofile(sys.argv[2])
    if steps > 10:
        print(f"{1e6 * (time.perf_counter() - begin) / (steps - 10):.1f} us per step, mean of {steps - 10}")
    begins = range(0, tests - batch + 1, batch)  # each batch has its own mean and variance
    answers = np.concatenate([forward(w, test_images[k : k + batch])[0].argmax(1) for k in begins])
    print(f"{100 * np.mean(answers == test_labels[: len(answers)]):.2f} % of the test images are right")
