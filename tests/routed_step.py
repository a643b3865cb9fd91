"""PyTorch's gradients of a batch under a given routing; a program for the interpreter that has PyTorch.

Each line of its input is the path of an npz file with images (B,28,28) uint8, labels (B,) uint8, the routing as pool1,
pool2 and relu3 (see engine.Probe) and the 12 parameters by name. It answers a line: ok, when the gradients lie in
gradients.npz beside that file; or what went wrong.

    python tests/routed_step.py PRECISION DEVICE
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mnist_cuda" / "peers"))
import baseline
import torch
from pytorch_baseline import Net, pin_precision
from torch.nn import functional as F


def pooled(y: torch.Tensor, routing: torch.Tensor) -> torch.Tensor:
    """ReLU and pooling of (B,C,2H,2W) as the routing (B,C,H,W) says: one of four positions, or 0 beyond them."""
    batch, channels, height, width = y.shape
    windows = y.reshape(batch, channels, height // 2, 2, width // 2, 2).transpose(3, 4).flatten(4)
    chosen = windows.gather(4, routing.clamp(max=3).unsqueeze(4)).squeeze(4)
    return torch.where(routing < 4, chosen, 0)


class RoutedNet(Net):
    """The network without decisions of its own."""

    def follow(self, pool1: torch.Tensor, pool2: torch.Tensor, relu3: torch.Tensor) -> None:
        self.pool1, self.pool2, self.relu3 = pool1, pool2, relu3

    def layer1(self, x: torch.Tensor) -> torch.Tensor:
        return pooled(self.bn1(self.conv1(x)), self.pool1)

    def layer2(self, a1: torch.Tensor) -> torch.Tensor:
        return pooled(self.bn2(self.conv2(a1)), self.pool2)

    def hidden(self, a2: torch.Tensor) -> torch.Tensor:
        return torch.where(self.relu3 > 0, self.fc1(a2.flatten(1)), 0)


def gradients(net: RoutedNet, arrays: dict[str, np.ndarray], precision: str, device: str) -> dict[str, np.ndarray]:
    """The 12 gradients of the mean loss, by name."""
    given = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    net.follow(*(given.pop(name).long() for name in ("pool1", "pool2", "relu3")))
    images, labels = given.pop("images"), given.pop("labels").long()
    net.load_state_dict(given)
    x = ((images.to(net.fc1.weight.dtype) / 255 - baseline.PIXEL_MEAN) / baseline.PIXEL_STD).unsqueeze(1)
    net.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
        loss = F.cross_entropy(net(x), labels)
    loss.backward()
    return {name: parameter.grad.double().cpu().numpy() for name, parameter in net.named_parameters()}


def main(precision: str, device: str) -> None:
    """Answers until the end of its input."""
    pin_precision(precision, device, torch.bfloat16 if precision == "bf16" else None)
    net = RoutedNet().to(device, torch.float64 if precision == "fp64" else torch.float32)
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        try:
            with np.load(path) as arrays:
                np.savez(path.with_name("gradients.npz"), **gradients(net, dict(arrays), precision, device))
            print("ok", flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}".splitlines()[0], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
