"""How much of an accuracy is the seed, and on which images networks differ. `python examples/many_seeds.py`"""

from mnist_cuda import TrainOptions, load_dataset, sweep

data = load_dataset()
found = sweep(data, [TrainOptions(epochs=1, seed=seed) for seed in range(10)], hits=True).arrays
accuracies = 100 * found["test_accuracy"]
mean, deviation = accuracies.mean(), accuracies.std(ddof=1)
print(f"{len(accuracies)} seeds: {mean:.2f} % of the test images, standard deviation {deviation:.2f}")

shares = found["hits"][:, 0].mean(axis=0)  # of the networks, that get an image right
print(
    f"right by all: {100 * (shares == 1).mean():.2f} % of the images; wrong by all: {100 * (shares == 0).mean():.2f} %"
)
variances = shares * (1 - shares) * len(accuracies) / (len(accuracies) - 1)  # of each image, from seed to seed
alone = 100 * variances.sum() ** 0.5 / len(shares)
print(f"if each image were a draw of its own, the standard deviation would be {alone:.2f}")
print("the hardest:")
for k in shares.argsort(kind="stable")[:5]:
    print(f"  image {k}, a {data.test_labels[k]}: right by {100 * shares[k]:.0f} % of the networks")
