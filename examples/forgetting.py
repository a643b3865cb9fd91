"""What a network forgets: trained on the digits 0 to 4, then on 5 to 9 alone. `python examples/forgetting.py`"""

from mnist_cuda import TrainOptions, dataset_of, evaluate, load_dataset, train

data = load_dataset()
halves = []
for digits in (range(5), range(5, 10)):
    chosen = [k for k, label in enumerate(data.train_labels) if label in digits]
    images, labels = data.train_images[chosen], data.train_labels[chosen]
    halves.append(dataset_of(images, labels, data.test_images, data.test_labels))
    print(f"{len(labels)} images of the digits {digits[0]} to {digits[-1]}")
counts = [int((data.test_labels == digit).sum()) for digit in range(10)]


def print_shares(when, result):
    right = evaluate(result, data.test_images, data.test_labels).correct_by_class
    shares = (f"{digit}: {100 * right[digit] / counts[digit]:3.0f} %" for digit in range(10))
    print(when, *shares, sep="  ")


first = train(halves[0], TrainOptions(epochs=1))
print_shares("after 0 to 4  ", first)
for lr in (0.05, 0.002):
    second = train(halves[1], TrainOptions(epochs=1, lr=lr, seed=1), init=first.model)
    print_shares(f"then at {lr:5g} ", second)
