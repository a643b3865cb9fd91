"""The network in PyTorch, made of this project's operators: the losses of its engine, and its accuracy.

On a GPU it takes five epochs of all images, on the CPU, where the operators are plain loops, one epoch of 6000.
"""

import sys

import numpy as np

from mnist_cuda import Engine, epoch_order, evaluate, init_parameters, load_dataset

try:
    import torch
    from torch import nn
except ImportError as error:
    sys.exit(f"this example needs PyTorch: {error}")

from mnist_cuda.torch import conv_bn_relu_pool, conv_bn_relu_pool_inference, linear, linear_relu, log_softmax_nll


class Net(nn.Module):
    """PyTorch's modules hold the parameters by their names; the operators compute."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def block(self, x: torch.Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d) -> torch.Tensor:
        arguments = (x, conv.weight, conv.bias, bn.weight, bn.bias)
        if self.training:
            return conv_bn_relu_pool(*arguments)[0]
        return conv_bn_relu_pool_inference(*arguments, bn.running_mean, bn.running_var)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N,10) of images (N,28,28) uint8."""
        x = ((images.float() / 255 - 0.1307) / 0.3081)[:, None]
        x = self.block(self.block(x, self.conv1, self.bn1), self.conv2, self.bn2)
        return linear(linear_relu(x.flatten(1), self.fc1.weight, self.fc1.bias), self.fc2.weight, self.fc2.bias)


def load(net: Net, tensors: dict[str, np.ndarray]) -> None:
    net.load_state_dict({name: torch.tensor(value) for name, value in tensors.items()}, strict=False)


def train(net: Net, order: np.ndarray, rates: np.ndarray) -> list[float]:
    """A step of SGD for each rate; their losses."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.0)
    losses = []
    for batch, rate in zip(torch.tensor(order, device=device).split(BATCH), rates, strict=True):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        loss = log_softmax_nll(net(images[batch]), labels[batch])
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


device = "cuda" if torch.cuda.is_available() else "cpu"
data = load_dataset()
count, epochs = (len(data.train_labels), 5) if device == "cuda" else (min(6000, len(data.train_labels)), 1)
images = torch.tensor(data.train_images[:count], device=device)
labels = torch.tensor(data.train_labels[:count], device=device)
engine = Engine("auto", "fp32")
engine.set_dataset(data.train_images[:count], data.train_labels[:count])
net = Net().to(device)
BATCH = 64

# The first steps, from the same weights, by the operators and by the engine.
initial = init_parameters(seed=0)
load(net, initial)
engine.set_parameters(initial)
steps = min(20, count // BATCH)
order, rates = epoch_order(0, 1, count)[: steps * BATCH], np.full(steps, 0.001)
ours, _ = engine.train(order, BATCH, rates)
difference = np.abs(ours - train(net, order, rates)).max()
print(f"{steps} steps on {device} and by engine {engine.info.name}: losses differ by at most {difference:.1e}")

# A training of both, with a rate that falls to 0.
load(net, initial)
engine.set_parameters(initial)
steps = count // BATCH
order = np.concatenate([epoch_order(0, epoch, count)[: steps * BATCH] for epoch in range(1, epochs + 1)])
rates = np.linspace(0.1, 0, epochs * steps, endpoint=False)
engine.train(order, BATCH, rates)
engine.compute_statistics()
by_engine = evaluate(engine, data.test_images, data.test_labels).accuracy

train(net, order, rates)
engine.set_parameters({name: value.detach().cpu().numpy() for name, value in net.named_parameters()})
engine.compute_statistics()  # batch norm's, over all training images
load(net, engine.statistics)
net.eval()
with torch.no_grad():
    scores = torch.cat([net(part) for part in torch.tensor(data.test_images, device=device).split(1000)])
by_operators = (scores.argmax(1).cpu().numpy() == data.test_labels).mean()
print(f"of the test images: {100 * by_operators:.2f} % by the operators, {100 * by_engine:.2f} % by the engine")
