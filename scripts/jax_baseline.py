#!/usr/bin/env python3
"""The baseline in JAX, by its usual name: runs mnist_cuda/peers/jax_baseline.py with these arguments."""

import os
import sys
from pathlib import Path

program = Path(__file__).resolve().parents[1] / "mnist_cuda" / "peers" / Path(__file__).name
os.execv(sys.executable, [sys.executable, str(program), *sys.argv[1:]])
