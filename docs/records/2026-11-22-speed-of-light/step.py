"""One training step of an engine, for a profiler: `python step.py naive`."""

import sys

import numpy as np

from mnist_cuda import Engine

rng = np.random.default_rng(0)
engine = Engine(sys.argv[1], "fp32")
engine.set_dataset(rng.integers(0, 256, (256, 28, 28), np.uint8), rng.integers(0, 10, 256).astype(np.uint8))
engine.train(np.arange(256), 256, 1e-4)
