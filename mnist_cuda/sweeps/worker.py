"""The process behind `InProcess`: reads what to train from standard input and answers on standard output, pickled."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys

from mnist_cuda.errors import MnistCudaError


def main() -> None:
    """Answer until nobody asks any more. Whatever else writes on standard output goes to standard error."""
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    parent = os.getppid()

    def orphaned() -> bool:
        return os.getppid() != parent

    from mnist_cuda.sweeps.trainers import OneByOne, SideBySide, trainers_for

    trainers: OneByOne | SideBySide | None = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            question = pickle.load(questions)
            answer: object
            try:
                if trainers is None:
                    trainers = trainers_for(question)
                    answer = trainers.at_once, trainers.remark
                else:
                    answer = list(trainers.train(question, orphaned))
            except MnistCudaError as error:
                answer = error
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    main()
