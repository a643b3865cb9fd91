#!/usr/bin/env python3
"""Several models at once in JAX: vmap of the baseline's loop over steps. Needs jax and numpy.

Modes: `convolutions` (a filter for each model makes XLA group them), `products` (matrix products of the images' 3x3
windows, which a batch of models leaves what they are). A step trains `models` of them: model m begins m steps later in
the same order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import baseline
import jax_baseline
import numpy as np
from jax_baseline import jax, jnp

MODES = ("convolutions", "products")


class Trainer(jax_baseline.Trainer):
    """Models that share the images; each array of parameters has them as first dimension."""

    OPTIONS = ()

    def set_order(self, order: np.ndarray) -> None:
        super().set_order(np.stack([np.roll(order, -model, axis=0) for model in range(self.setup.models)]))

    def restart(self) -> None:
        super().restart()
        self.params = {name: jnp.stack([value] * self.setup.models) for name, value in self.params.items()}

    def _loop(self, length: int) -> Callable[..., Any]:
        self.by_products = jax_baseline.PRODUCTS[self.setup.mode]
        return jax.vmap(
            super()._loop(length), in_axes=(0, None, None, None, None, None, 0, None), out_axes=(0, None, None, None, 0)
        )


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(baseline.main(Trainer, MODES, __doc__.splitlines()[0]))
