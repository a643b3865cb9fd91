"""A program that ends while other threads use engines: its own exit code, soon, no abort and no words."""

import subprocess
import sys
import time

import pytest
from tiny import ENVIRONMENT

REPEATS = 3  # of what depends on chance
SOON = 3.5  # seconds: two for the threads, the rest to start Python and to end it on a busy machine

BEGIN = """
import sys, threading, time
import numpy as np
from mnist_cuda import Engine, TrainOptions, Trainer, _native, dataset_of, evaluate, predict, sweep, train
images = (np.arange(600 * 784, dtype=np.uint32).reshape(600, 28, 28) % 100).astype(np.uint8)
labels = (np.arange(600) % 10).astype(np.uint8)
data = dataset_of(images, labels, images, labels)
begun = threading.Event()
def engine(name="cpu", threads=1):
    made = Engine(name, threads=threads)
    made.init_parameters(0)
    made.set_dataset(images, labels)
    made.set_evaluation_set(images, labels)
    return made
def again(call):
    while True:
        begun.set()
        call()
"""

# What a thread does when the program ends, by name.
WORK = {
    "train": "one = engine(threads=2)\n    again(lambda: one.train(np.arange(600), 8, 0.01))",
    "one long call": "one = engine()\n    begun.set()\n    one.train(np.tile(np.arange(600), 10000), 8, 0.01)",
    "probe": "one = engine()\n    again(lambda: one.probe(images[:64], labels[:64]))",
    "logits": "one = engine()\n    again(lambda: one.logits(images, 'batch'))",
    "evaluate": "one = engine()\n    one.compute_statistics()\n    again(one.evaluate)",
    "statistics": "one = engine()\n    again(one.compute_statistics)",
    "parameters": "one = engine()\n    again(lambda: one.set_parameters(one.parameters))",
    "make engines": "again(engine)",
    "the library": "again(lambda: train(data, TrainOptions(epochs=1, batch_size=8), engine='cpu'))",
    "predict": "one = engine()\n    one.compute_statistics()\n    again(lambda: predict(one, images))",
    "sweep": "begun.set()\n    runs = [TrainOptions(epochs=500, batch_size=8, seed=n) for n in range(4)]\n"
    "    sweep(data, runs, engine='cpu', jobs=2)",
    "refused": "one = engine()\n    again(lambda: refused(one))",
    "the seam": "again(lambda: _native.unavailable('cpu', 0))",
    "gather": "begun.set()\n    _native.launched_communicator(0, 2, lambda *_: time.sleep(60)).all_gather(b'x')",
    "gather and train": "one = engine()\n    one.join(_native.launched_communicator(0, 2, gather))\n"
    "    again(lambda: one.train(np.arange(600), 8, 0.01))",
}
MORE = """
def refused(one):
    try:
        one.train(np.array([-1]), 8, 0.01)
    except ValueError:
        pass
def gather(mine, all):
    time.sleep(0)
    all[:len(mine)] = all[len(mine):] = mine
"""


def program(work, end="", daemon=True, count=4):
    """A program whose threads do this work when its end comes."""
    threads = f"for _ in range({count}):\n    threading.Thread(target=work, daemon={daemon}).start()\n"
    text = f"{BEGIN}{MORE}def work():\n    {work}\n{threads}begun.wait()\ntime.sleep(0.2)\n{end}"
    start = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", text], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout, result.stderr, time.perf_counter() - start


@pytest.mark.parametrize("what", WORK)
def test_a_program_ends_while_threads_work(what):
    for end, code in (("", 0), ("sys.exit(7)", 7), ("print('last')", 0))[:REPEATS]:
        assert program(WORK[what], end)[:3] == (code, "last\n" if "last" in end else "", "")


BY_POOL = """
from concurrent.futures import ThreadPoolExecutor
one = engine()
pool = ThreadPoolExecutor(1)
job = pool.submit(lambda: print(len(one.train(np.tile(np.arange(600), 4), 8, 0.01)[0]), flush=True))
"""


def test_threads_that_are_no_daemons_are_waited_for():
    """Those of an executor, too: their training ends as if nothing were."""
    assert program("begun.set()", BY_POOL, daemon=False)[:3] == (0, "300\n", "")


def test_the_programs_last_calls_may_use_engines():
    """Those of atexit: an engine of their own, and one that a stopped thread was in."""
    last = """
import atexit
mine, shared = engine(), engine()
def use():
    print(len(mine.train(np.arange(600), 8, 0.01)[0]), shared.parameters["conv1.bias"].shape)
atexit.register(use)
threading.Thread(target=lambda: again(lambda: shared.train(np.arange(600), 8, 0.01)), daemon=True).start()
"""
    assert program("again(engine)", last)[:3] == (0, "75 (32,)\n", "")


def test_a_program_ends_soon():
    """In two seconds more than Python needs, even where a call of seconds does not come back."""
    work = "one = engine('reference')\n    begun.set()\n    one.probe(np.tile(images, (9, 1, 1)), np.tile(labels, 9))"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", BEGIN], env=ENVIRONMENT, check=True)
    python = time.perf_counter() - start
    code, out, err, seconds = program(work, count=1)
    assert (code, out, err) == (0, "", "")
    assert seconds < 2 * python + SOON


def test_a_fork_does_not_wait_for_the_threads_of_its_parent():
    end = """
import os
child = os.fork()
if not child:
    start = time.perf_counter()
    import atexit
    sys.exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert program("one = engine()\n    again(lambda: one.train(np.arange(600), 8, 0.01))", end)[:3] == (0, "0\n", "")
