"""A submission to `mnist-cuda bench time-to-accuracy --submit`: PyTorch, by the recipe of docs/mnist-99.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "mnist_cuda" / "peers"))
import pytorch_baseline
import submission
import torch

GPU = {"device": "cuda", "precision": "bf16", "mode": "compile", "options": ("whole",), "channels_last": True}
CPU = {"device": "cpu", "precision": "fp32", "mode": "eager", "channels_last": True}

submission.serve(submission.OfBaseline(pytorch_baseline.Trainer, **(GPU if torch.cuda.is_available() else CPU)))
