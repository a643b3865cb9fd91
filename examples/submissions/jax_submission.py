"""A submission to `mnist-cuda bench time-to-accuracy --submit`: JAX, by the recipe of docs/mnist-99.md."""

import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "mnist_cuda" / "peers"))
import jax
import jax_baseline
import submission

GPU = {"device": "cuda", "precision": "bf16", "options": ("vjp", "conv1-products")}
CPU = {"device": "cpu", "precision": "fp32", "options": ("vjp",)}

choice = GPU if jax.default_backend() == "gpu" else CPU
submission.serve(submission.OfBaseline(jax_baseline.Trainer, mode="scan", **choice))
