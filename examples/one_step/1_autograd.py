"""1. Autograd: numbers that remember how they were made, so that gradients come by themselves; then arrays that do.

python 1_autograd.py start.bin [gradients.bin], where start.bin, made by 9_engine.py --write, has weights and batches.
"""

import sys
import time

import numpy as np


class Value:
    """A number, the numbers that it was made of, and the function that passes its gradient on to them."""

    def __init__(self, data, parents=(), pass_on=lambda grad: ()):
        self.data, self.grad, self.parents, self.pass_on = data, 0.0, parents, pass_on

    def __add__(self, other):
        return type(self)(self.data + other.data, (self, other), lambda grad: (grad, grad))

    def __mul__(self, other):  # each factor's share is the other factor
        return type(self)(self.data * other.data, (self, other), lambda grad: (grad * other.data, grad * self.data))

    def relu(self):
        return type(self)(self.data * (self.data > 0), (self,), lambda grad: (grad * (self.data > 0),))

    def exp(self):
        return type(self)(np.exp(self.data), (self,), lambda grad: (grad * np.exp(self.data),))

    def log(self):
        return type(self)(np.log(self.data), (self,), lambda grad: (grad / self.data,))

    def backward(self):
        """Set the gradient of every number that this one was made of, later ones first: then each has all its parts."""
        order, seen, todo = [], set(), [(self, False)]
        while todo:  # depth first: a number follows all that it was made of
            value, done = todo.pop()
            if done:
                order.append(value)
            elif value not in seen:
                seen.add(value)
                todo += [(value, True), *((parent, False) for parent in value.parents)]
        self.grad = 1.0
        for value in reversed(order):
            for parent, grad in zip(value.parents, value.pass_on(value.grad), strict=True):
                parent.grad = parent.grad + grad  # a number that is used twice gets two parts


class Tensor(Value):
    """An array for the number: NumPy's loops instead of Python's. New are operations that only move elements."""

    def __init__(self, data, parents=(), pass_on=lambda grad: ()):
        super().__init__(np.asarray(data, np.float32), parents, lambda grad: map(summed, pass_on(grad), parents))

    def sum(self, *axes):
        total = self.data.sum(axes, np.float64, keepdims=True)  # thousands of float32, one by one, lose three digits
        return Tensor(total, (self,), lambda grad: (np.broadcast_to(grad, self.data.shape),))

    def __matmul__(self, other):
        return Tensor(self.data @ other.data, (self, other), lambda grad: (grad @ other.data.T, self.data.T @ grad))

    def reshape(self, *shape):
        return Tensor(self.data.reshape(shape), (self,), lambda grad: (grad.reshape(self.data.shape),))

    def transpose(self, *axes):
        return Tensor(self.data.transpose(axes), (self,), lambda grad: (grad.transpose(np.argsort(axes)),))

    def __getitem__(self, where):  # slices, which take an element at most once
        def put_back(grad):
            whole = np.zeros_like(self.data)
            whole[where] = grad
            return (whole,)

        return Tensor(self.data[where], (self,), put_back)

    def max(self):
        """Along the last axis; the gradient goes to the first of the largest."""
        first = np.arange(self.data.shape[-1]) == self.data.argmax(-1)[..., None]
        return Tensor(self.data.max(-1), (self,), lambda grad: (grad[..., None] * first,))


def summed(grad, tensor):
    """A tensor's gradient in the tensor's shape: where NumPy repeated it, those of the copies are summed."""
    shape = tensor.data.shape
    grad = np.sum(grad, tuple(range(np.ndim(grad) - len(shape))), np.float64)
    return grad.sum(tuple(k for k, n in enumerate(shape) if n == 1), np.float64, keepdims=True)


def convolve(x, w, bias):
    """Nine products, one for each tap of the filters: the image, shifted, times the weights of that tap."""
    batch, channels, side, _ = x.data.shape
    border = Tensor(np.pad(x.data, ((0, 0), (0, 0), (1, 1), (1, 1))), (x,), lambda grad: (grad[:, :, 1:-1, 1:-1],))
    x, z = border.transpose(0, 2, 3, 1), bias
    for u, v in np.ndindex(3, 3):
        shifted = x[:, u : u + side, v : v + side].reshape(batch * side * side, channels)
        z = shifted @ w[:, :, u, v].transpose(1, 0) + z
    return z.reshape(batch, side, side, -1).transpose(0, 3, 1, 2)


def batch_norm(z, gamma, beta):
    one_of = Tensor(z.data.shape[1] / z.data.size)  # of a channel's values
    centred = z + z.sum(0, 2, 3) * one_of * Tensor(-1)
    variance = (centred * centred).sum(0, 2, 3) * one_of
    one_over_sigma = ((variance + Tensor(1e-5)).log() * Tensor(-0.5)).exp()  # a root is half of a logarithm
    return gamma.reshape(-1, 1, 1) * (centred * one_over_sigma) + beta.reshape(-1, 1, 1)


def pool(y):
    """ReLU and the maximum of each 2x2 window."""
    b, c, side, _ = y.data.shape
    windows = y.reshape(b, c, side // 2, 2, side // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    return windows.reshape(b, c, side // 2, side // 2, 4).max().relu()


def log_probabilities(w, images):
    a1 = pool(batch_norm(convolve(Tensor((images / 255 - 0.1307) / 0.3081), w[0], w[1]), w[2], w[3]))
    a2 = pool(batch_norm(convolve(a1, w[4], w[5]), w[6], w[7]))
    h = (a2.reshape(len(images), -1) @ w[8].transpose(1, 0) + w[9]).relu()
    logits = h @ w[10].transpose(1, 0) + w[11]
    shifted = logits + Tensor(-logits.data.max(1, keepdims=True))  # or exp would overflow
    return shifted + shifted.exp().sum(1).log() * Tensor(-1)


SHAPES = (32, 1, 3, 3), (32,), (32,), (32,), (64, 32, 3, 3), (64,), (64,), (64,), (128, 3136), (128,), (10, 128), (10,)

if __name__ == "__main__":
    content = np.fromfile(sys.argv[1], np.uint8)
    (steps, batch, tests), rate = (int(n) for n in content[:12].view(np.int32)), content[12:16].view(np.float32)
    ends = np.cumsum([4 * sum(map(np.prod, SHAPES)), 784 * steps * batch, steps * batch, 784 * tests])
    weights, images, labels, test_images, test_labels = np.split(content[16:], ends)
    images, test_images = images.reshape(-1, 1, 28, 28), test_images.reshape(-1, 1, 28, 28)
    parts = np.split(weights.view(np.float32), np.cumsum([np.prod(shape) for shape in SHAPES])[:-1])
    w = [Tensor(part.reshape(shape)) for part, shape in zip(parts, SHAPES, strict=True)]
    for step in range(steps):
        if step == 10:
            begin = time.perf_counter()  # the first steps warm up
        now = slice(step * batch, (step + 1) * batch)
        loss = (log_probabilities(w, images[now]) * Tensor(np.eye(10)[labels[now]] / -batch)).sum(0, 1)
        loss.backward()
        if step == 0 and len(sys.argv) > 2:
            np.concatenate([p.grad.ravel() for p in w]).astype(np.float32).tofile(sys.argv[2])
        w = [Tensor(p.data - rate * p.grad) for p in w]  # new ones, which remember nothing
        if step < 10 or step % 10 == 9:
            print(f"step {step + 1:3}  loss {loss.data.item():.5f}", flush=True)
    if steps > 10:
        print(f"{1e6 * (time.perf_counter() - begin) / (steps - 10):.1f} us per step, mean of {steps - 10}")
    begins = range(0, tests - batch + 1, batch)  # each batch has its own mean and variance
    answers = np.concatenate([log_probabilities(w, test_images[k : k + batch]).data.argmax(1) for k in begins])
    print(f"{100 * np.mean(answers == test_labels[: len(answers)]):.2f} % of the test images are right")
