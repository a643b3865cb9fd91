"""The errors a user can cause or meet, each with the exit code the command line ends with.

Every message is one line: what, where, expected, found, what to do.
"""

from __future__ import annotations


class MnistCudaError(Exception):
    """Base of all errors that end the program with one line instead of a traceback."""

    exit_code = 1


class UsageError(MnistCudaError):
    """The command line asks for something impossible."""

    exit_code = 2


class DataError(MnistCudaError):
    """A data set is missing, unreachable or not what it should be."""

    exit_code = 3


class UnavailableError(MnistCudaError):
    """This machine or build lacks what was asked for by name: a GPU, a library, an engine, a peer."""

    exit_code = 4


class OutOfMemoryError(MnistCudaError):
    """Host or device memory ran out."""

    exit_code = 5


class CheckpointError(MnistCudaError):
    """A model file cannot be read, written or used."""

    exit_code = 6


class OutputError(MnistCudaError):
    """Standard output, or a file or folder other than a model's or a data set's, cannot be read or written."""

    exit_code = 6
