"""What a network forgets: images right after one epoch and wrong after the next. `python examples/forgetting.py`"""

from mnist_cuda import TrainOptions, load_dataset, sweep

data = load_dataset()
runs = [TrainOptions(epochs=4, lr=0.1, seed=seed) for seed in range(2)]
found = sweep(data, runs, each_epoch=True, hits=True).arrays
hits = found["hits"]  # (networks, epochs, test images)
forgotten = (hits[:, :-1] & ~hits[:, 1:]).any(axis=1)  # at least once
for accuracies, lost, right in zip(found["test_accuracies"], forgotten, hits, strict=True):
    print("accuracy by epoch:", *(f"{100 * accuracy:.2f} %" for accuracy in accuracies))
    print(f"  forgotten at least once: {lost.sum()} images, of these right in the end: {(lost & right[-1]).sum()}")
    print(f"  never right: {(~right.any(axis=0)).sum()} images")

first, second = forgotten
chance = first.mean() * second.sum()
print(f"both networks forget {(first & second).sum()} images; by chance they would share {chance:.1f}")
