"""Write a trained network as an ONNX model that takes any number of images and gives their logits.

The model normalises the pixels itself and needs nothing of mnist-cuda to run. The package onnx builds and checks it.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_model_flag, file_ending_in

EXAMPLES = ("mnist-cuda export onnx --model my-run", "mnist-cuda export onnx --input float --fold-bn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_flag(parser)
    add = parser.add_argument
    text = "input of the model: uint8 (N,28,28) as in MNIST's files, or float (N,1,28,28) from 0 to 1, as ToTensor "
    add("--input", choices=("uint8", "float"), default="uint8", help=text + "of torchvision makes it (default: uint8)")
    add("--fold-bn", action="store_true", help="fold the batch norms into the convolutions")
    text = "file to write (default: model.onnx next to the model)"
    add("-o", "--out", type=file_ending_in(".onnx"), metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.commands.export import target
    from mnist_cuda.files import atomic_write, require_writable
    from mnist_cuda.run.checkpoint import load_model
    from mnist_cuda.run.names import find_run
    from mnist_cuda.run.onnx_export import onnx_model

    file = find_run(args.model)
    model = load_model(file)
    out = target(args.out, file, "model.onnx")
    require_writable(out)
    content = onnx_model(model, args.input, fold_bn=args.fold_bn)
    atomic_write(out, content)
    shape = "(N,28,28) uint8" if args.input == "uint8" else "(N,1,28,28) float32 from 0 to 1"
    print(f"saved {out}: images {shape} in, logits (N,10) float32 out")
    return 0
