"""The formulas that docs/guide derives, in float64; gradients against finite differences of the forward pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[np.float64]
EPSILON = 1e-5


def differences(loss: Callable[[Array], float], at: Array) -> Array:
    """The gradient, by the step that the page recommends."""
    gradient = np.empty_like(at)
    for k in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[k] = 6e-6
        gradient[k] = (loss(at + step) - loss(at - step)) / 12e-6
    return gradient


def close(got: Array, wanted: Array) -> bool:
    return np.allclose(got, wanted, rtol=1e-6, atol=1e-7)


def convolution(x: Array, w: Array) -> Array:
    """The page's sum, zero outside of the image."""
    (batch, _, side, _), out = x.shape, len(w)
    y = np.zeros((batch, out, side, side))
    for b, o, p, q in np.ndindex(y.shape):
        for i, u, v in np.ndindex(w.shape[1:]):
            if 0 <= p + u - 1 < side and 0 <= q + v - 1 < side:
                y[b, o, p, q] += w[o, i, u, v] * x[b, i, p + u - 1, q + v - 1]
    return y


def batch_norm(z: Array, gamma: float, beta: float = 0.3) -> Array:
    return gamma * (z - z.mean()) / np.sqrt(z.var() + EPSILON) + beta


def batch_norm_backward(g: Array, z: Array, gamma: float) -> tuple[Array, float, float]:
    """dz, dgamma, dbeta."""
    sigma = np.sqrt(z.var() + EPSILON)
    normal = (z - z.mean()) / sigma
    dbeta, dgamma = g.sum(), (g * normal).sum()
    return gamma / sigma * (g - dbeta / z.size - normal * dgamma / z.size), dgamma, dbeta


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_convolution(random: np.random.Generator) -> None:
    x, w, dy = (random.normal(size=shape) for shape in ((2, 2, 4, 4), (3, 2, 3, 3), (2, 3, 4, 4)))
    dw, dx, side = np.zeros_like(w), np.zeros_like(x), 4
    for o, i, u, v in np.ndindex(dw.shape):
        for b, p, q in np.ndindex(2, side, side):
            if 0 <= p + u - 1 < side and 0 <= q + v - 1 < side:
                dw[o, i, u, v] += dy[b, o, p, q] * x[b, i, p + u - 1, q + v - 1]
    for b, i, r, s in np.ndindex(dx.shape):
        for o, u, v in np.ndindex(3, 3, 3):
            if 0 <= r - u + 1 < side and 0 <= s - v + 1 < side:
                dx[b, i, r, s] += dy[b, o, r - u + 1, s - v + 1] * w[o, i, u, v]
    assert close(dw, differences(lambda w: float((dy * convolution(x, w)).sum()), w))
    assert close(dx, differences(lambda x: float((dy * convolution(x, w)).sum()), x))
    turned = convolution(dy, w[:, :, ::-1, ::-1].swapaxes(0, 1))
    assert close(dx, turned)


def test_linear(random: np.random.Generator) -> None:
    x, w, bias, dy = (random.normal(size=shape) for shape in ((4, 5), (3, 5), 3, (4, 3)))

    def loss(x: Array, w: Array, bias: Array) -> float:
        return float((dy * (x @ w.T + bias)).sum())

    assert close(dy.T @ x, differences(lambda w: loss(x, w, bias), w))
    assert close(dy @ w, differences(lambda x: loss(x, w, bias), x))
    assert close(dy.sum(0), differences(lambda bias: loss(x, w, bias), bias))


def test_loss(random: np.random.Generator) -> None:
    x, labels = random.normal(size=(5, 10)), random.integers(0, 10, 5)

    def loss(x: Array) -> float:
        log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
        return float(-log_p[np.arange(5), labels].mean())

    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    assert close((p - np.eye(10)[labels]) / 5, differences(loss, x))


@pytest.mark.parametrize("gamma", [1.7, -0.4, 0.0])
def test_batch_norm(gamma: float, random: np.random.Generator) -> None:
    z, g = random.normal(3, 2, 20), random.normal(size=20)
    dz, dgamma, dbeta = batch_norm_backward(g, z, gamma)
    assert close(dz, differences(lambda z: float((g * batch_norm(z, gamma)).sum()), z))
    scale_and_shift = differences(lambda v: float((g * batch_norm(z, v[0], v[1])).sum()), np.array([gamma, 0.3]))
    assert close(np.array([dgamma, dbeta]), scale_and_shift)
    assert abs(dz.sum()) < 1e-12  # the gradient of a bias before it


def test_how_a_normalised_value_moves(random: np.random.Generator) -> None:
    z = random.normal(3, 2, 6)
    sigma = np.sqrt(z.var() + EPSILON)
    normal = (z - z.mean()) / sigma
    for k in range(6):
        wanted = ((np.arange(6) == k) - 1 / 6 - normal[k] * normal / 6) / sigma
        assert close(wanted, differences(lambda z, k=k: float(batch_norm(z, 1.0)[k]), z))  # type: ignore[misc]


@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_pooling_may_come_first(number: type, random: np.random.Generator) -> None:
    """Bit for bit: rounding keeps the order, too."""
    z = random.normal(size=(1000, 4)).astype(number)
    scale, shift = number(0.37), number(-1.3)
    assert ((scale * z + shift).max(1) == scale * z.max(1) + shift).all()
    assert ((-scale * z + shift).max(1) == -scale * z.min(1) + shift).all()


def test_first_layer(random: np.random.Generator) -> None:
    """The statistics without z, and the gradient from G alone."""
    p, w, g, gamma, n = random.normal(size=(50, 9)), random.normal(size=9), random.normal(size=50), 0.8, 50
    g[random.permutation(50)[:38]] = 0  # what ReLU and pooling leave
    z, mean, centred = p @ w, p.mean(0), p - p.mean(0)
    covariance = centred.T @ centred / n
    assert close(z.mean(), w @ mean)
    assert close(z.var(), w @ covariance @ w)
    sigma = np.sqrt(w @ covariance @ w + EPSILON)
    without_mean = g @ p - g.sum() * mean
    assert close(w @ without_mean / sigma, batch_norm_backward(g, z, gamma)[1])
    dw = gamma / sigma * (without_mean - w @ without_mean / sigma**2 * covariance @ w)
    assert close(dw, differences(lambda w: float((g * batch_norm(p @ w, gamma)).sum()), w))


def test_moments(random: np.random.Generator) -> None:
    """Of chapter 7: Welford's step, and the merge of two groups."""
    x = random.normal(4096, 1, 300)
    mean = squares = 0.0
    for n, value in enumerate(x[:100], 1):
        d = value - mean
        mean += d / n
        squares += d * (value - mean)
    assert close(np.array([mean, squares]), np.array([x[:100].mean(), 100 * x[:100].var()]))
    delta = x[100:].mean() - mean
    merged = squares + 200 * x[100:].var() + delta**2 * 100 * 200 / 300
    assert close(np.float64(merged), np.float64(300 * x.var()))


def test_online_softmax(random: np.random.Generator) -> None:
    """Of chapter 9: one number more, two groups, and that float32 overflows where the page says so."""
    x = random.normal(0, 30, 20)

    def online(x: Array) -> tuple[float, float]:
        most, total = -np.inf, 0.0
        for value in x:
            higher = max(most, value)
            most, total = higher, total * np.exp(most - higher) + np.exp(value - higher)
        return most, total

    (a, of_a), (b, of_b), (most, total) = online(x[:7]), online(x[7:]), online(x)
    assert most == max(a, b) == x.max()
    assert close(np.float64(total), np.float64(of_a * np.exp(a - most) + of_b * np.exp(b - most)))
    assert close(np.float64(most + np.log(total)), np.float64(np.logaddexp.reduce(x)))
    with np.errstate(over="ignore"):
        assert np.exp(np.float32(88)) < np.inf == np.exp(np.float32(89))


def test_the_short_formula_loses_every_digit(random: np.random.Generator) -> None:
    x = random.normal(4096, 1, 1000).astype(np.float32)
    sums = [np.float32(0), np.float32(0)]
    for value in x:
        sums = [sums[0] + value, sums[1] + value * value]
    mean, mean_square = (total / np.float32(1000) for total in sums)
    assert abs(float(mean_square - mean * mean) - 1) > 0.5


@pytest.mark.parametrize(("number", "step", "error"), [(np.float64, 6e-6, 4e-11), (np.float32, 5e-3, 2e-5)])
def test_the_step_of_finite_differences(number: type, step: float, error: float) -> None:
    """Its error is about what the page says, and larger by ten times the step or a tenth."""
    at = np.linspace(0.2, 1.2, 200, dtype=number)

    def typical(h: float) -> float:
        h = number(h)
        quotient = (np.exp(at + h) - np.exp(at - h)) / (2 * h)
        return float(np.sqrt(np.mean((quotient - np.exp(at.astype(np.float64))) ** 2)))

    assert error / 5 < typical(step) < 5 * error
    assert typical(step) < min(typical(10 * step), typical(step / 10))
