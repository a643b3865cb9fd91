"""Look inside one step: its loss, activations, gradients and decisions; and a gradient checked by a difference."""

import numpy as np

from mnist_cuda import Engine, init_parameters, load_dataset

data = load_dataset()
images, labels = data.train_images[:8], data.train_labels[:8]
engine = Engine("reference")  # float64
weights = init_parameters(seed=0)
engine.set_parameters(weights)

step = engine.probe(images, labels)
print(f"loss {step.loss:.4f}, {step.correct} of {len(labels)} right")
print("conv1 after its pool", step.a1.shape, "conv2 after its pool", step.a2.shape, "fc1", step.h.shape)
pool1, _, relu3 = step.routing
print(f"relu stopped {100 * np.mean(pool1 == 4):.0f} % of conv1's cells and {100 * np.mean(relu3 == 0):.0f} % of fc1's")
for name, gradient in step.gradients.items():
    print(f"{name:14} {gradient.shape!s:18} |gradient| {np.linalg.norm(gradient):.3e}")

# The gradient of one weight is the change of the loss; the decisions are kept, so that the loss stays smooth.
name, at, h = "conv2.weight", (5, 3, 1, 1), 1e-5
losses = []
for sign in (1, -1):
    moved = {key: value.copy() for key, value in weights.items()}
    moved[name][at] += sign * h
    engine.set_parameters(moved)
    losses.append(engine.probe(images, labels, routing=step.routing).loss)
difference = (losses[0] - losses[1]) / (2 * h)
print(f"{name}{list(at)}: gradient {step.gradients[name][at]:.9f}, difference {difference:.9f}")
