"""7. Triton: the kernels of 5_tiled.cu in Python. A program owns a tile; the compiler hands it out to threads.

    python 7_triton.py start.bin [gradients.bin]        # with TRITON_INTERPRET=1 before it by NumPy: slow, to try it

9_engine.py --write makes start.bin, with the initial weights and all batches. PyTorch gives memory and small sums.
"""

import sys
import time

import numpy as np
import torch
import triton
import triton.language as tl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "conv1.weight": (32, 1, 3, 3), "conv1.bias": (32,), "bn1.weight": (32,), "bn1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3), "conv2.bias": (64,), "bn2.weight": (64,), "bn2.bias": (64,),
    "fc1.weight": (128, 3136), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,),
}  # fmt: skip


@triton.jit
def matmul_kernel(c, a, b, bias, rows, columns, depth, a_row, a_k, b_k, b_column, RELU: tl.constexpr):
    """c = a b + bias for any strides of a and b, so also for transposed ones. A program makes 32 x 32 of it."""
    m = tl.program_id(0) * 32 + tl.arange(0, 32)[:, None]
    n = tl.program_id(1) * 32 + tl.arange(0, 32)[None, :]
    total = tl.zeros((32, 32), tl.float32)
    for k0 in range(0, depth, 32):
        ka, kb = k0 + tl.arange(0, 32)[None, :], k0 + tl.arange(0, 32)[:, None]
        left = tl.load(a + m * a_row + ka * a_k, (m < rows) & (ka < depth), 0.0)
        right = tl.load(b + kb * b_k + n * b_column, (kb < depth) & (n < columns), 0.0)
        total = tl.dot(left, right, total, input_precision="ieee")  # float32 as it is, not tf32
    if bias is not None:
        total += tl.load(bias + n, n < columns, 0.0)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(c + m * columns + n, total, (m < rows) & (n < columns))


@triton.jit
def neighbours(x, b, channel, position, tap, channels, SIDE: tl.constexpr, mask):
    """Values of x (B,C,SIDE,SIDE) at a position moved by a tap of a filter; 0 outside."""
    r, s = position // SIDE + tap // 3 - 1, position % SIDE + tap % 3 - 1
    inside = (r >= 0) & (r < SIDE) & (s >= 0) & (s < SIDE)
    return tl.load(x + (b * channels + channel) * SIDE * SIDE + r * SIDE + s, inside & mask, 0.0)


@triton.jit
def convolve_kernel(z, x, w, bias, batch, inputs, SIDE: tl.constexpr, OUTPUTS: tl.constexpr):
    """A product of neighbourhoods (rows) and filters (columns): k counts taps of all input channels."""
    m = tl.program_id(0) * 64 + tl.arange(0, 64)[:, None]
    n = tl.arange(0, OUTPUTS)[None, :]
    AREA: tl.constexpr = SIDE * SIDE
    b, position, depth = m // AREA, m % AREA, inputs * 9
    total = tl.zeros((64, OUTPUTS), tl.float32)
    for k0 in range(0, depth, 16):
        ka, kb = k0 + tl.arange(0, 16)[None, :], k0 + tl.arange(0, 16)[:, None]
        left = neighbours(x, b, ka // 9, position, ka % 9, inputs, SIDE, (b < batch) & (ka < depth))
        right = tl.load(w + n * depth + kb, kb < depth, 0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + n)
    tl.store(z + (b * OUTPUTS + n) * AREA + position, total, b < batch)


@triton.jit
def convolve_weight_kernel(slices, dz, x, batch, each, inputs, SIDE: tl.constexpr, OUTPUTS: tl.constexpr):
    """dw sums over all positions of the batch: `each` of them a program, whose sums PyTorch adds."""
    n, slice = tl.program_id(0) * 64 + tl.arange(0, 64)[None, :], tl.program_id(1)
    o = tl.arange(0, OUTPUTS)[:, None]
    AREA: tl.constexpr = SIDE * SIDE
    total = tl.zeros((OUTPUTS, 64), tl.float32)
    for k0 in range(slice * each, (slice + 1) * each, 32):
        ka, kb = k0 + tl.arange(0, 32)[None, :], k0 + tl.arange(0, 32)[:, None]
        left = tl.load(dz + (ka // AREA * OUTPUTS + o) * AREA + ka % AREA, ka < batch * AREA, 0.0)
        right = neighbours(
            x, kb // AREA, n // 9, kb % AREA, n % 9, inputs, SIDE, (kb < batch * AREA) & (n < inputs * 9)
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(slices + (slice * OUTPUTS + o) * inputs * 9 + n, total, n < inputs * 9)


@triton.jit
def bn_statistics_kernel(mean, sigma, z, batch, channels, AREA: tl.constexpr):
    """A program for each channel: its mean, then its deviation from that mean."""
    c, count = tl.program_id(0), batch * AREA
    total = tl.zeros((1024,), tl.float32)
    for k0 in range(0, count, 1024):
        k = k0 + tl.arange(0, 1024)
        total += tl.load(z + (k // AREA * channels + c) * AREA + k % AREA, k < count, 0.0)
    centre = tl.sum(total) / count
    squares = tl.zeros((1024,), tl.float32)
    for k0 in range(0, count, 1024):
        k = k0 + tl.arange(0, 1024)
        d = tl.load(z + (k // AREA * channels + c) * AREA + k % AREA, k < count, centre) - centre
        squares += d * d
    tl.store(mean + c, centre)
    tl.store(sigma + c, tl.sqrt(tl.sum(squares) / count + 1e-5))


@triton.jit
def bn_pool_kernel(a, route, z, mean, sigma, gamma, beta, count, channels, SIDE: tl.constexpr):
    """Batch norm, ReLU and pooling. SIDE: of what is pooled; route: the cell of each window, 4 for none above 0."""
    k = tl.program_id(0) * 256 + tl.arange(0, 256)
    mask, c, window = k < count, k // (SIDE * SIDE) % channels, 4 * (k // SIDE) * SIDE + 2 * (k % SIDE)
    scale = tl.load(gamma + c) / tl.load(sigma + c)
    best, choice = tl.zeros((256,), tl.float32), tl.full((256,), 4, tl.int8)
    for cell in tl.static_range(4):
        value = tl.load(z + window + cell // 2 * 2 * SIDE + cell % 2, mask, 0.0)
        y = (value - tl.load(mean + c)) * scale + tl.load(beta + c)
        choice = tl.where(y > best, cell, choice).to(tl.int8)
        best = tl.maximum(y, best)
    tl.store(a + k, best, mask)
    tl.store(route + k, choice, mask)


@triton.jit
def bn_pool_sums_kernel(dgamma, dbeta, da, route, z, mean, sigma, batch, channels, SIDE: tl.constexpr):
    """The sums of batch norm's gradient; only the cell that a window chose has one."""
    c, count = tl.program_id(0), batch * SIDE * SIDE
    total, total_zhat = tl.zeros((1024,), tl.float32), tl.zeros((1024,), tl.float32)
    for n0 in range(0, count, 1024):
        n = n0 + tl.arange(0, 1024)
        k = (n // (SIDE * SIDE) * channels + c) * SIDE * SIDE + n % (SIDE * SIDE)
        cell = tl.load(route + k, n < count, 4)
        mask = cell < 4
        value = tl.load(z + 4 * (k // SIDE) * SIDE + 2 * (k % SIDE) + cell // 2 * 2 * SIDE + cell % 2, mask, 0.0)
        grad = tl.load(da + k, mask, 0.0)
        total += grad
        total_zhat += grad * (value - tl.load(mean + c)) / tl.load(sigma + c)
    tl.store(dbeta + c, tl.sum(total))
    tl.store(dgamma + c, tl.sum(total_zhat))


@triton.jit
def bn_pool_backward_kernel(dz, da, route, z, mean, sigma, gamma, dgamma, dbeta, count, channels, SIDE: tl.constexpr):
    k = tl.program_id(0) * 256 + tl.arange(0, 256)
    mask, c, window = k < count, k // (SIDE * SIDE) % channels, 4 * (k // SIDE) * SIDE + 2 * (k % SIDE)
    deviation, grad, chosen = tl.load(sigma + c), tl.load(da + k, mask, 0.0), tl.load(route + k, mask, 4)
    for cell in tl.static_range(4):
        at = window + cell // 2 * 2 * SIDE + cell % 2
        zhat = (tl.load(z + at, mask, 0.0) - tl.load(mean + c)) / deviation
        dy = tl.where(chosen == cell, grad, 0.0)
        centred = dy - (tl.load(dbeta + c) + zhat * tl.load(dgamma + c)) / (4 * count // channels)
        tl.store(dz + at, tl.load(gamma + c) / deviation * centred, mask)


@triton.jit
def loss_kernel(losses, dlogits, logits, labels, batch):
    """Log-softmax, loss and its gradient, a program for each image."""
    b, k = tl.program_id(0), tl.arange(0, 16)
    row = tl.load(logits + b * 10 + k, k < 10, -float("inf"))
    label = tl.load(labels + b).to(tl.int32)
    shifted = row - tl.max(row)
    log_p = shifted - tl.log(tl.sum(tl.exp(shifted)))
    tl.store(losses + b, -tl.sum(tl.where(k == label, log_p, 0.0)))
    tl.store(dlogits + b * 10 + k, (tl.exp(log_p) - (k == label)) / batch, k < 10)


def matmul(a, b, bias=None, relu=False):
    c = a.new_empty(len(a), b.shape[1])
    grid = triton.cdiv(len(a), 32), triton.cdiv(b.shape[1], 32)
    matmul_kernel[grid](c, a, b, bias, *c.shape, a.shape[1], *a.stride(), *b.stride(), relu)
    return c


def convolve(x, w, bias=None):
    batch, inputs, side, _ = x.shape
    z = x.new_empty(batch, len(w), side, side)
    convolve_kernel[(triton.cdiv(batch * side * side, 64),)](z, x, w, bias, batch, inputs, side, len(w))
    return z


def convolve_weight(dz, x):
    (batch, inputs, side, _), outputs = x.shape, dz.shape[1]
    each = 32 * triton.cdiv(batch * side * side, 32 * 32)
    slices = x.new_empty(triton.cdiv(batch * side * side, each), outputs, inputs, 3, 3)
    convolve_weight_kernel[triton.cdiv(inputs * 9, 64), len(slices)](slices, dz, x, batch, each, inputs, side, outputs)
    return slices.sum(0)


def bn_pool(z, gamma, beta):
    batch, channels, side, _ = z.shape
    mean, sigma = torch.empty_like(gamma), torch.empty_like(gamma)
    bn_statistics_kernel[(channels,)](mean, sigma, z, batch, channels, side * side)
    a = z.new_empty(batch, channels, side // 2, side // 2)
    route = torch.empty_like(a, dtype=torch.int8)
    bn_pool_kernel[(triton.cdiv(a.numel(), 256),)](
        a, route, z, mean, sigma, gamma, beta, a.numel(), channels, side // 2
    )
    return a, (route, z, mean, sigma)


def bn_pool_backward(da, saved, gamma):
    batch, channels, side, _ = da.shape
    dgamma, dbeta, dz = torch.empty_like(gamma), torch.empty_like(gamma), torch.empty_like(saved[1])
    bn_pool_sums_kernel[(channels,)](dgamma, dbeta, da, *saved, batch, channels, side)
    bn_pool_backward_kernel[(triton.cdiv(da.numel(), 256),)](
        dz, da, *saved, gamma, dgamma, dbeta, da.numel(), channels, side
    )
    return dz, dgamma, dbeta


def forward(w, images):
    x = (images / 255 - 0.1307) / 0.3081
    a1, saved1 = bn_pool(convolve(x, w["conv1.weight"], w["conv1.bias"]), w["bn1.weight"], w["bn1.bias"])
    a2, saved2 = bn_pool(convolve(a1, w["conv2.weight"], w["conv2.bias"]), w["bn2.weight"], w["bn2.bias"])
    h = matmul(a2.flatten(1), w["fc1.weight"].T, w["fc1.bias"], relu=True)
    return matmul(h, w["fc2.weight"].T, w["fc2.bias"]), (x, a1, saved1, a2, saved2, h)


def backward(w, g, logits, labels, saved):
    x, a1, saved1, a2, saved2, h = saved
    losses, dlogits = logits.new_empty(len(x)), torch.empty_like(logits)
    loss_kernel[(len(x),)](losses, dlogits, logits, labels, len(x))
    g["fc2.weight"], g["fc2.bias"] = matmul(dlogits.T, h), dlogits.sum(0)
    du = matmul(dlogits, w["fc2.weight"]) * (h > 0)
    g["fc1.weight"], g["fc1.bias"] = matmul(du.T, a2.flatten(1)), du.sum(0)
    da2 = matmul(du, w["fc1.weight"]).view(a2.shape)
    dz2, g["bn2.weight"], g["bn2.bias"] = bn_pool_backward(da2, saved2, w["bn2.weight"])
    g["conv2.weight"] = convolve_weight(dz2, a1)
    da1 = convolve(dz2, w["conv2.weight"].flip(2, 3).transpose(0, 1).contiguous())
    dz1, g["bn1.weight"], g["bn1.bias"] = bn_pool_backward(da1, saved1, w["bn1.weight"])
    g["conv1.weight"] = convolve_weight(dz1, x)
    return losses.mean()


if __name__ == "__main__":
    content = np.fromfile(sys.argv[1], np.uint8)
    steps, batch, tests = (int(n) for n in content[:12].view(np.int32))
    rate = float(content[12:16].view(np.float32)[0])
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    lengths = 4 * sum(sizes), 784 * steps * batch, steps * batch, 784 * tests, tests
    weights, images, labels, test_images, test_labels = torch.from_numpy(content[16:]).to(DEVICE).split(lengths)
    parts = weights.view(torch.float32).split(sizes)
    w = {name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}
    g = {name: torch.zeros_like(value) for name, value in w.items()}  # the convolutions' biases keep it
    losses = []
    for step in range(steps):
        if step == 10:  # the first steps compile and warm up; to read a loss is to wait for the GPU
            losses[-1].item()
            begin = time.perf_counter()
        now = slice(step * batch, (step + 1) * batch)
        logits, saved = forward(w, images.view(-1, 1, 28, 28)[now])
        losses.append(backward(w, g, logits, labels[now], saved))
        if step == 0 and len(sys.argv) > 2:
            torch.cat([value.flatten() for value in g.values()]).cpu().numpy().tofile(sys.argv[2])
        for name, value in w.items():
            value -= rate * g[name]
    losses, end = torch.stack(losses).tolist(), time.perf_counter()  # waits for the GPU
    for step, loss in enumerate(losses, 1):
        if step <= 10 or step % 10 == 0:
            print(f"step {step:3}  loss {loss:.5f}")
    if steps > 10:
        print(f"{1e6 * (end - begin) / (steps - 10):.1f} us per step, mean of {steps - 10}")
    begins = range(0, tests - batch + 1, batch)  # each batch has its own mean and variance
    answers = torch.cat([forward(w, test_images.view(-1, 1, 28, 28)[k : k + batch])[0].argmax(1) for k in begins])
    print(f"{100 * (answers == test_labels[: len(answers)]).float().mean().item():.2f} % of the test images are right")
