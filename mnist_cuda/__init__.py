"""Train an MNIST CNN with a native CUDA or CPU engine.

The command line is `mnist-cuda` (or `python -m mnist_cuda`). From Python, start with `mnist_cuda.engine.Engine`.
Importing this package is cheap: nothing native is loaded until it is used.
"""

__version__ = "0.1.0"
MAX_THREADS = 1024  # of an engine on the CPU; more than that is a slip of the hand
