"""The program: `python -m mnist_cuda` is `mnist-cuda`."""

import sys


def main() -> int:
    """`cli.main`, and the same line for a Ctrl-C that comes while it is being imported."""
    try:
        from mnist_cuda.terminal import streams

        streams.prepare()
        from mnist_cuda import cli
    except KeyboardInterrupt:
        print("mnist-cuda: error: stopped by SIGINT", file=sys.stderr)
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
