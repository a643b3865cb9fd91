"""Check every variant of the GPU ops against float64, and time it.

Times are with an empty L2 cache (cold) and back to back (warm). The roof is the least possible time at this GPU's
measured rates. A second table shows each kernel's registers, shared memory and occupancy. --sass and --ptx print a
variant's code.
"""

from __future__ import annotations

import argparse

from mnist_cuda.commands.flags import add_peer_python_flag, add_record_flags, gpu, options_of, positive

OPS = (  # op_entries of native/gpu/bench/op_cases.cpp, which only a CUDA build has
    *("linear", "linear_relu", "linear_backward", "linear_sparse"),
    *("conv2d", "conv2d_backward_data", "conv2d_backward_weight"),
    *("relu", "relu_max_pool2d", "relu_max_pool2d_backward"),
    *("batch_norm_statistics", "batch_norm_forward", "batch_norm_backward"),
    *("conv_bn_relu_pool", "conv_bn_relu_pool_backward"),
    *("conv_bn_relu_pool_layer1", "conv_bn_relu_pool_layer1_backward"),
    *("log_softmax", "log_softmax_nll_backward"),
    *("transpose", "row_sums", "histogram"),
)

EXAMPLES = (
    "mnist-cuda bench ops --op conv2d",
    "mnist-cuda bench ops --op relu --variant float4 --sass",
    "mnist-cuda bench ops --emulate --op linear",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"only this op (default: all): {', '.join(OPS)}"
    parser.add_argument("--op", default="", choices=OPS, metavar="NAME", help=text)
    text = "images in the batch (default: %(default)s)"
    parser.add_argument("-b", "--batch-size", type=positive, default=256, metavar="N", help=text)
    parser.add_argument("--device", type=gpu, default=0, metavar="N", help="number of the GPU (default: %(default)s)")
    text = "only this variant (default: all); --list names each op's"
    parser.add_argument("--variant", default="", metavar="NAME", help=text)
    add = parser.add_argument
    text = "PyTorch's functions, and kernels in other languages (default: torch triton numba; without a name: none)"
    add("--peers", nargs="*", default=["torch", "triton", "numba"], metavar="NAME", help=text)
    add_peer_python_flag(parser)
    add("--emulate", type=positive, nargs="?", const=2, default=0, metavar="N",
        help="without a GPU: run our variants on the CPU, on N images (default: 2), find their faults and count their "
        "memory accesses; those in Triton and Numba by their own simulators")  # fmt: skip
    add("--as", dest="emulate_as", choices=("h200", "t4", "a100", "rtx4090"), default="h200",
        help="the GPU for which --emulate computes the roof, and with --variant "
        "occupancy (default: %(default)s)")  # fmt: skip
    add(
        "--list", action="store_true", help="only list the variants and their files; needs neither a GPU nor a compiler"
    )
    code = parser.add_mutually_exclusive_group()
    code.add_argument(
        "--sass", action="store_true", help="print the machine code of --op's --variant (by cuobjdump and nvdisasm)"
    )
    code.add_argument(
        "--ptx",
        action="store_true",
        help="print its PTX (by cuobjdump; from a build with an architecture such as 80, not 80-real)",
    )
    add_record_flags(parser)


def run(args: argparse.Namespace) -> int:
    from mnist_cuda.bench import ops

    return ops.command(options_of(ops.OpsOptions, args))
