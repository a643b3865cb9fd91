"""How much of an accuracy is the seed, and which digit is hardest. `python examples/many_seeds.py`"""

from mnist_cuda import TrainOptions, load_dataset, sweep

data = load_dataset()
found = sweep(data, [TrainOptions(epochs=1, seed=seed) for seed in range(10)]).arrays
accuracies = 100 * found["test_accuracy"]
mean, deviation = accuracies.mean(), accuracies.std(ddof=1)
print(f"{len(accuracies)} seeds: {mean:.2f} % of the test images, standard deviation {deviation:.2f}")
chance = (mean * (100 - mean) / len(data.test_labels)) ** 0.5
print(f"one network on other test images would vary by {chance:.2f} (binomial)")
shares = found["correct"].mean(axis=0) / [(data.test_labels == digit).sum() for digit in range(10)]
print(f"the hardest digit is {shares.argmin()}: {100 * shares.min():.2f} % of it")
