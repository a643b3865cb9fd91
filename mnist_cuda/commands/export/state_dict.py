"""Write a trained network as a state dict that a PyTorch module of the same layers loads strictly.

Its inputs are normalised pixels, (u/255 - 0.1307)/0.3081. With --input float they are u/255, as ToTensor of torchvision
makes them, and a layer before the first convolution, normalise = nn.Conv2d(1, 1, 1), normalises them. (That cannot be
part of the convolution, which pads normalised pixels with zeros.)

`safetensors.torch.load_file` reads a file that ends in .safetensors, `torch.load` one that ends in .pt; PyTorch must be
installed to write the latter.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnist_cuda.commands.flags import add_model_flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mnist_cuda.run.results import Model


def _state_file(text: str) -> Path:
    """A file whose name says how to write it."""
    if not text.endswith((".safetensors", ".pt")):
        raise argparse.ArgumentTypeError(f"'{text}' ends neither in .safetensors nor in .pt")
    return Path(text)


EXAMPLES = (
    "mnist-cuda export state-dict",
    "mnist-cuda export state-dict --model my-run --out out.pt",
    "mnist-cuda export state-dict --input float",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_flag(parser)
    add = parser.add_argument
    text = "leave out the statistics of the batch norms, for modules made with track_running_stats=False"
    add("--parameters-only", action="store_true", help=text)
    text = "input of the module: normalised pixels, or float from 0 to 1, as ToTensor of torchvision makes it, which a "
    text += "layer `normalise` normalises (default: %(default)s)"
    add("--input", choices=("normalised", "float"), default="normalised", help=text)
    text = "file to write, .safetensors or .pt (default: state-dict.safetensors next to the model)"
    add("-o", "--out", type=_state_file, metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    from safetensors.numpy import save

    from mnist_cuda import _native
    from mnist_cuda.commands.export import target
    from mnist_cuda.files import atomic_write, require_writable
    from mnist_cuda.run.checkpoint import NORMALISATION, load_model, no_statistics
    from mnist_cuda.run.names import find_run

    file = find_run(args.model)
    model = load_model(file)
    if model.statistics is None and not args.parameters_only:
        raise no_statistics(str(file), "export it by --parameters-only")
    out = target(args.out, file, "state-dict.safetensors")
    require_writable(out)
    plain = args.input == "float"
    tensors = _state_dict(model, args.parameters_only, plain)
    atomic_write(out, _torch_file(tensors) if out.suffix == ".pt" else save(tensors, {"format": "pt"}))
    print(f"saved {out}: {len(tensors)} tensors")
    after = f"by transforms.Normalize(({_native.PIXEL_MEAN:g},), ({_native.PIXEL_STD:g},)) after ToTensor"
    layer = "as ToTensor makes them; its module has normalise = nn.Conv2d(1, 1, 1) before conv1"
    print(f"inputs  (N,1,28,28) {f'u/255, {layer}' if plain else f'{NORMALISATION}, {after}'}")
    return 0


def _state_dict(model: Model, parameters_only: bool, plain: bool) -> dict[str, NDArray[Any]]:
    """The tensors by PyTorch's names; with the statistics go PyTorch's counters of steps.

    plain: the inputs are u/255, which one more layer normalises.
    """
    import numpy as np

    from mnist_cuda import _native

    tensors = dict(model.parameters)
    if plain:
        dtype = tensors["conv1.weight"].dtype
        tensors["normalise.weight"] = np.full((1, 1, 1, 1), 1 / _native.PIXEL_STD, dtype)
        tensors["normalise.bias"] = np.full(1, -_native.PIXEL_MEAN / _native.PIXEL_STD, dtype)
    if model.statistics is not None and not parameters_only:
        tensors |= model.statistics
        steps = np.array(model.steps, np.int64)
        tensors |= {f"{layer}.num_batches_tracked": steps for layer in ("bn1", "bn2")}
    return {name: np.array(value, order="C") for name, value in tensors.items()}


def _torch_file(tensors: dict[str, NDArray[Any]]) -> bytes:
    """The bytes that `torch.save` writes. Raises UnavailableError without PyTorch."""
    from io import BytesIO

    from mnist_cuda.errors import UnavailableError

    try:
        import torch
    except ImportError as error:
        raise UnavailableError(
            f"a file that ends in .pt takes PyTorch, which cannot be imported here ({error}); PyTorch loads one that "
            "ends in .safetensors as well"
        ) from error
    content = BytesIO()
    torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, content)
    return content.getvalue()
