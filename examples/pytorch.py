"""Weights to PyTorch and back: a model trained here goes on in PyTorch, and its state_dict comes back."""

import sys

import numpy as np
from safetensors.torch import load_file, save_file

from mnist_cuda import TrainOptions, load_dataset, load_model, predict, save_model, train

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    sys.exit(f"this example needs PyTorch: {error}")


class Net(nn.Module):
    """The same network in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N,10) of images (N,28,28) uint8."""
        x = ((images.float() / 255 - 0.1307) / 0.3081)[:, None]
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


data = load_dataset()
save_model("model.safetensors", train(data, TrainOptions(epochs=1)).model)

# There.
net = Net()
net.load_state_dict(load_file("model.safetensors"), strict=True)
net.eval()
images = torch.from_numpy(data.test_images[:1000].copy())
with torch.no_grad():
    theirs = net(images).numpy()
ours = predict("model.safetensors", images)  # PyTorch's tensors are taken as they are
print(f"logits differ by at most {np.abs(ours.logits - theirs).max():.1e}")

# And back, after a step there.
net.train()
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
F.cross_entropy(net(images), torch.from_numpy(data.test_labels[:1000].astype(np.int64))).backward()
optimiser.step()
save_file(net.state_dict(), "from_pytorch.safetensors")
torch.save(net.state_dict(), "from_pytorch.pt")
for name in ("from_pytorch.safetensors", "from_pytorch.pt"):
    result = train(data, TrainOptions(epochs=1), init=load_model(name))
    print(f"{name}: {100 * result.accuracy:.2f} % after one more epoch here")
