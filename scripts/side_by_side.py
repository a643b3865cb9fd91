"""What runs of tests side by side on GPUs share: their environment, and which GPUs they may take."""

from __future__ import annotations

import os

# Of pytest's processes. The C library keeps what is freed: a probe of 4,229 images hands out 320 MB, whose pages would
# be new ones every time. NumPy's sums take one thread: a process has no more than a core here.
ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36), "OPENBLAS_NUM_THREADS": "1"}


def visible_gpus(count: int) -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them, of a machine with `count`."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(gpu) for gpu in range(count)]
