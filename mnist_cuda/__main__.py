"""`python -m mnist_cuda` is `mnist-cuda`."""

import sys

from mnist_cuda.cli import main

sys.exit(main())
