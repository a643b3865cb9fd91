"""How much of an accuracy is the seed, and which digit is hardest. `python examples/many_seeds.py`"""

from statistics import mean, stdev

from mnist_cuda import TrainOptions, load_dataset, sweep

data = load_dataset()
rows = sweep(data, [TrainOptions(epochs=1, seed=seed) for seed in range(10)])
accuracies = [100 * row.test_accuracy for row in rows]
print(f"{len(rows)} seeds: {mean(accuracies):.2f} % of the test images, standard deviation {stdev(accuracies):.2f}")
shares = [mean(row.correct[digit] for row in rows) / (data.test_labels == digit).sum() for digit in range(10)]
print(f"the hardest digit is {shares.index(min(shares))}: {100 * min(shares):.2f} % of it")
