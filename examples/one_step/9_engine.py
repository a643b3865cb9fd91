"""9. The engine: the same step by `Engine("fused")`, and every program of this folder against float64.

    python 9_engine.py --write start.bin     # weights, batches and test images, from which all programs start
    python 9_engine.py start.bin             # train, as each of the others does
    python 9_engine.py start.bin --compare "./4_naive start.bin gradients.bin"

The last runs another program and compares its losses, and the gradients of its first step, with those of `reference`.
start.bin holds, little-endian: steps, batch, tests (int32) and rate (float32); 421,834 weights (float32) in PyTorch's
order; steps x batch images of 784 bytes and their labels, a byte each; `tests` images and their labels.
"""

import argparse
import re
import subprocess
import sys
import time

import numpy as np

from mnist_cuda import Engine, init_parameters, load_dataset
from mnist_cuda.engine.model import PARAMETERS, pack, unpack
from mnist_cuda.engine.tolerances import PEER_BIAS_NOISE, TRAJECTORY, error_of, tolerance


def write_start(path, data, steps, batch, tests, rate, seed):
    order = np.random.default_rng(seed).permutation(len(data.train_labels))[: steps * batch]
    weights = pack(init_parameters(seed=0), PARAMETERS, np.empty(sum(t.size for t in PARAMETERS), np.float32))
    head = np.array([steps, batch, tests], np.int32), np.float32(rate), weights
    with open(path, "wb") as file:
        for array in (*head, data.train_images[order], data.train_labels[order], data.test_images[:tests]):
            file.write(array.tobytes())
        file.write(data.test_labels[:tests].tobytes())


def read_start(path):
    content = np.fromfile(path, np.uint8)
    steps, batch, tests = (int(n) for n in content[:12].view(np.int32))
    sizes = 16, 4 * sum(t.size for t in PARAMETERS), 784 * steps * batch, steps * batch, 784 * tests
    head, weights, *arrays = np.split(content, np.cumsum(sizes))
    return steps, batch, float(head[12:].view(np.float32)[0]), weights.view(np.float32), arrays


def train(engine, start):
    """Losses of all steps, seconds of a step (the first 10 warm up), and the share of test images that are right."""
    steps, batch, rate, weights, (images, labels, test_images, test_labels) = start
    order, warm = np.arange(steps * batch), min(10, steps)
    engine.set_parameters(unpack(weights, PARAMETERS))
    engine.set_dataset(images, labels)
    first, _ = engine.train(order[: warm * batch], batch, rate)
    begin = time.perf_counter()
    rest, _ = engine.train(order[warm * batch :], batch, rate) if steps > warm else (np.empty(0), 0)
    seconds = (time.perf_counter() - begin) / max(1, steps - warm)
    whole = len(test_labels) // batch * batch
    logits = [engine.logits(part, "batch") for part in test_images.reshape(-1, 784)[:whole].reshape(-1, batch, 784)]
    right = np.mean(np.concatenate(logits).argmax(1) == test_labels[:whole]) if whole else np.nan
    return np.concatenate([first, rest]), seconds, right


def compare(start, command, precision):
    """Print how far a program is from float64; whether it is within the bounds."""
    steps, batch, _, weights, (images, labels, *_) = start
    reference = Engine("reference")
    reference.set_parameters(unpack(weights, PARAMETERS))
    gradients = reference.probe(images[: 784 * batch], labels[:batch]).gradients
    expected = train(reference, (*start[:4], (images, labels, images[:0], labels[:0])))[0]
    output = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    print(output, end="")
    losses = {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)  loss +(\S+)", output)}
    apart = max(abs(loss - expected[step - 1]) for step, loss in losses.items() if step <= 100)
    ten = max(abs(loss - expected[step - 1]) for step, loss in losses.items() if step <= 10)
    rows = [("loss, steps 1 to 10", ten, 1e-5 if precision == "fp32" else 5e-3)]
    rows += [("loss, to step 100", apart, TRAJECTORY[precision])]
    found = unpack(np.fromfile(command.split()[-1], np.float32), PARAMETERS)
    for name, value in found.items():
        bias = name in ("conv1.bias", "conv2.bias")
        bound = PEER_BIAS_NOISE if bias else tolerance("naive", precision, name, batch, "free").median
        rows.append((name, error_of(value, gradients[name]), bound))
    for name, error, bound in rows:
        print(f"{name:20} {error:8.1e}  bound {bound:.0e}  {'ok' if error <= bound else 'BROKEN'}")
    return all(error <= bound for _, error, bound in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", metavar="start.bin")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--data-dir")
    for name, value in (("steps", 110), ("batch", 64), ("tests", 10000), ("rate", 0.01), ("seed", 0)):
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--engine", default="fused")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compare", metavar="COMMAND", help="its last word is the file of its gradients")
    args = parser.parse_args()
    if args.write:
        write_start(args.start, load_dataset(data_dir=args.data_dir), args.steps, args.batch, args.tests, args.rate, args.seed)
    elif args.compare:
        sys.exit(not compare(read_start(args.start), args.compare, args.precision))
    else:
        losses, seconds, right = train(Engine(args.engine, args.precision), read_start(args.start))
        for step, loss in enumerate(losses, 1):
            if step <= 10 or step % 10 == 0:
                print(f"step {step:3}  loss {loss:.5f}")
        print(f"{1e6 * seconds:.1f} us per step, mean of {len(losses) - 10}")
        print(f"{100 * right:.2f} % of the test images are right")
