"""9. The engine: the same step by `Engine("fused")`; and every program of this folder against float64.

    python 9_engine.py --write start.bin     # initial weights, batches and test images, from which all programs start
    python 9_engine.py start.bin             # train, as each of the others does
    python 9_engine.py start.bin --compare "./4_naive start.bin gradients.bin"  # compare one with float64

start.bin holds, little-endian: steps, batch, tests (int32), rate (float32) and 421,834 weights (float32) in PyTorch's
order; then bytes: steps x batch images of 784 and their labels, `tests` images and their labels. In seed 1's first
batch no value is so close to 0 or to a neighbour that rounding decides what ReLU or pooling choose."""

import argparse
import re
import subprocess
import sys
import time

import numpy as np

from mnist_cuda import Engine, init_parameters, load_dataset
from mnist_cuda.engine import find_engine
from mnist_cuda.engine.model import PARAMETERS, pack, unpack
from mnist_cuda.engine.tolerances import PEER_BIAS_NOISE, TRAJECTORY, error_of, tolerance

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("start", metavar="start.bin")
parser.add_argument("--write", action="store_true")
parser.add_argument("--data-dir", help="where MNIST is, if not in the cache")
defaults = {"steps": 110, "batch": 64, "tests": 10000, "seed": 1, "rate": 0.01, "engine": "fused", "precision": "fp32"}
for name, value in defaults.items():
    parser.add_argument(f"--{name}", type=type(value), default=value)
parser.add_argument("--compare", metavar="COMMAND", help="its last word is the file for its gradients")
args = parser.parse_args()
COUNT = sum(t.size for t in PARAMETERS)
if args.write:
    data = load_dataset(data_dir=args.data_dir)
    order = np.random.default_rng(args.seed).permutation(len(data.train_labels))[: args.steps * args.batch]
    weights = pack(init_parameters(seed=0), PARAMETERS, np.empty(COUNT, np.float32))
    head = np.array([args.steps, args.batch, args.tests], np.int32), np.float32(args.rate), weights
    training = data.train_images[order], data.train_labels[order]
    tests = data.test_images[: args.tests], data.test_labels[: args.tests]
    with open(args.start, "wb") as file:
        sys.exit(file.writelines(array.tobytes() for array in (*head, *training, *tests)))

content = np.fromfile(args.start, np.uint8)
(steps, batch, tests), rate = (int(n) for n in content[:12].view(np.int32)), float(content[12:16].view(np.float32)[0])
ends = np.cumsum([4 * COUNT, 784 * steps * batch, steps * batch, 784 * tests])
weights, images, labels, test_images, test_labels = np.split(content[16:], ends)
oracle = ("reference", "fp64") if find_engine("naive").unavailable else ("naive", "fp64")  # the same, on a GPU
engine = Engine(*oracle) if args.compare else Engine(args.engine, args.precision)
engine.set_parameters(unpack(weights.view(np.float32), PARAMETERS))
if args.compare:
    expected = engine.probe(images.reshape(-1, 28, 28)[:batch], labels[:batch]).gradients
engine.set_dataset(images, labels)
for _ in range(1 if args.compare else 2):  # the first time warms up
    engine.set_parameters(unpack(weights.view(np.float32), PARAMETERS))
    begin = time.perf_counter()
    losses, _ = engine.train(np.arange(steps * batch), batch, rate)
    seconds = time.perf_counter() - begin
if args.compare:
    print(
        output := subprocess.run(args.compare, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout, end=""
    )
    found = re.findall(r"step +(\d+)  loss +(\S+)", output)
    apart = [abs(float(loss) - losses[int(step) - 1]) for step, loss in found]
    rows = [("loss, first steps", max(apart[:10]), {"fp32": 1e-5, "bf16": 5e-3}[args.precision])]
    rows += [("loss, all steps", max(apart), TRAJECTORY[args.precision])]
    for name, value in unpack(np.fromfile(args.compare.split()[-1], np.float32), PARAMETERS).items():
        bound = tolerance("naive", args.precision, name, batch, "free").median or PEER_BIAS_NOISE
        rows.append((name, error_of(value, expected[name]), bound))
    for name, error, bound in rows:
        print(f"{name:20} {error:8.1e}  bound {bound:.0e}  {'ok' if error <= bound else 'BROKEN'}")
    sys.exit(any(not error <= bound for _, error, bound in rows))
for step, loss in enumerate(losses, 1):
    if step <= 10 or step % 10 == 0:
        print(f"step {step:3}  loss {loss:.5f}")
print(f"{1e6 * seconds / steps:.1f} us per step, mean of {steps}")
parts = test_images[: tests // batch * batch * 784].reshape(-1, batch, 784)
answers = np.concatenate([engine.logits(part, "batch").argmax(1) for part in parts])
print(f"{100 * np.mean(answers == test_labels[: len(answers)]):.2f} % of the test images are right")
