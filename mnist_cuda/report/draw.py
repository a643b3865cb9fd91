"""`report --draw`: a page on which one draws a digit and sees what a run's network makes of it; needs nothing else."""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path

import numpy as np

from mnist_cuda import _native
from mnist_cuda.run.checkpoint import no_statistics
from mnist_cuda.run.onnx_export import folded, single
from mnist_cuda.run.results import Model

TEMPLATE = Path(__file__).with_name("draw.html")


def page(model: Model, title: str) -> str:
    """The page of a model, with its weights inside. Raises CheckpointError for a model without statistics."""
    if model.statistics is None:
        raise no_statistics("the model")
    tensors = folded({name: np.asarray(v, np.float64) for name, v in {**model.parameters, **model.statistics}.items()})
    weights = b"".join(single(name, value).astype("<f4").tobytes() for name, value in tensors.items())
    inserted = {
        "TITLE": escape(title),
        "MEAN": repr(_native.PIXEL_MEAN),
        "STD": repr(_native.PIXEL_STD),
        "SIZES": json.dumps({name: value.size for name, value in tensors.items()}),
        "WEIGHTS": base64.b64encode(weights).decode(),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in inserted.items():
        text = text.replace(f"@{name}@", value)
    return text
