"""Exercise of chapter 1: batch norm's backward pass. Fill in `batch_norm_backward`, then run this file."""

import sys

import numpy as np

EPSILON = 1e-5


def batch_norm_backward(g, z, gamma):
    """dz, dgamma, dbeta of y = gamma * (z - mean) / sqrt(var + EPSILON) + beta, of each column by itself.

    g: the gradient of y, and z: both (N, channels) in float64; gamma: (channels).
    """
    return np.full_like(z, np.nan), np.full_like(gamma, np.nan), np.full_like(gamma, np.nan)  # yours


def forward(z, gamma, beta):
    return gamma * (z - z.mean(0)) / np.sqrt(z.var(0) + EPSILON) + beta


def differences(loss, at, h=6e-6):
    """The gradient of a function of an array, by finite differences."""
    gradient = np.empty_like(at)
    for k in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[k] = h
        gradient[k] = (loss(at + step) - loss(at - step)) / (2 * h)
    return gradient


def judge(backward):
    """What is right of a function like the one above, by name."""
    random = np.random.default_rng(0)
    z, g = random.normal(3, 2, (12, 4)), random.normal(size=(12, 4))
    gamma, beta = random.normal(size=4), random.normal(size=4)
    z[:, 3] = 5 + 1e-3 * random.normal(size=12)  # EPSILON counts where the variance is small
    dz, dgamma, dbeta = backward(g, z, gamma)
    wanted = {
        "dbeta": (dbeta, differences(lambda b: (g * forward(z, gamma, b)).sum(), beta)),
        "dgamma": (dgamma, differences(lambda s: (g * forward(z, s, beta)).sum(), gamma)),
        "dz sums to 0": (dz.sum(0) / np.abs(dz).max(0), np.zeros(4)),
        "dz by finite differences": (dz, differences(lambda x: (g * forward(x, gamma, beta)).sum(), z)),
    }
    return {name: np.allclose(got, right, rtol=1e-5, atol=1e-6) for name, (got, right) in wanted.items()}


if __name__ == "__main__":
    verdicts = judge(batch_norm_backward)
    for name, right in verdicts.items():
        print(f"{'right' if right else 'WRONG'}  {name}")
    sys.exit(not all(verdicts.values()))
