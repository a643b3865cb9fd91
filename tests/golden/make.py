"""Makes values.npz, what PyTorch's float64 autograd says of the golden cases; test_pytorch_parity.py compares with it.

.venv-peers/bin/python tests/golden/make.py MNIST_FOLDER     (scripts/peers makes .venv-peers)
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "mnist_cuda" / "peers")]
import baseline  # noqa: E402
import cases  # noqa: E402


def pooled(z, weights, layer, statistics=None):
    """Batch norm by the batch's statistics or those given, ReLU, 2x2 maxima."""
    mean, var = statistics or (None, None)
    y = F.batch_norm(z, mean, var, weights[f"{layer}.weight"], weights[f"{layer}.bias"], statistics is None, 0.0, 1e-5)
    return F.max_pool2d(F.relu(y), 2)


def scores(images, weights, population):
    """Logits, and the population statistics of these images if they are what batch norm takes."""
    x = (torch.from_numpy(images).double()[:, None] / 255 - 0.1307) / 0.3081
    found = {}
    for k in (1, 2):
        z = F.conv2d(x, weights[f"conv{k}.weight"], weights[f"conv{k}.bias"], padding=1)
        of_layer = (z.mean((0, 2, 3)), z.var((0, 2, 3), correction=0)) if population else None
        if population:
            found |= {f"bn{k}.running_mean": of_layer[0], f"bn{k}.running_var": of_layer[1]}
        x = pooled(z, weights, f"bn{k}", of_layer)
    h = F.relu(F.linear(x.flatten(1), weights["fc1.weight"], weights["fc1.bias"]))
    return F.linear(h, weights["fc2.weight"], weights["fc2.bias"]), found


def loss_of(images, labels, weights):
    logits, _ = scores(images, weights, population=False)
    return F.nll_loss(F.log_softmax(logits, 1), torch.from_numpy(labels.astype(np.int64))), logits


def trajectory(images, labels, batch):
    """Losses of plain SGD over the first batches of the real training set, one a step."""
    weights = {name: torch.from_numpy(v).requires_grad_() for name, v in cases.initial_weights().items()}
    losses = []
    for first in range(0, cases.TRAJECTORY_STEPS * batch, batch):
        loss, _ = loss_of(images[first : first + batch], labels[first : first + batch], weights)
        for parameter, gradient in zip(weights.values(), torch.autograd.grad(loss, weights.values()), strict=True):
            parameter.data -= cases.TRAJECTORY_RATE * gradient
        losses.append(loss.item())
    return np.array(losses)


def main():
    torch.set_num_threads(1)  # one order of summation
    values = {}
    for case, (images, labels, start) in cases.GOLDEN.items():
        weights = {name: torch.from_numpy(value).requires_grad_() for name, value in start.items()}
        loss, logits = loss_of(images, labels, weights)
        loss.backward()
        with torch.no_grad():
            _, statistics = scores(images, weights, population=True)
        values |= {f"{case}/digest": cases.digest(case), f"{case}/loss": loss.item(), f"{case}/logits": logits}
        values |= {f"{case}/{name}": value for name, value in statistics.items()}
        for name, parameter in weights.items():
            values[f"{case}/gradient/{name}"] = cases.sketch(parameter.grad.numpy())
            values[f"{case}/norm/{name}"] = parameter.grad.norm().item()
    folder = Path(sys.argv[1])
    images = baseline.read_idx(folder, "train-images-idx3-ubyte", 0x803).copy()
    labels = baseline.read_idx(folder, "train-labels-idx1-ubyte", 0x801)
    for batch in cases.TRAJECTORY_BATCHES:
        values[f"trajectory/{batch}"] = trajectory(images, labels, batch)
    np.savez_compressed(
        HERE / "values.npz",
        **{name: v.detach().numpy() if torch.is_tensor(v) else v for name, v in values.items()},
    )
    print(f"wrote {HERE / 'values.npz'} with torch {torch.__version__}")


if __name__ == "__main__":
    main()
