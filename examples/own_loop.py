"""A training loop of one's own over Engine.train: here the rate is halved after every epoch."""

from mnist_cuda import Engine, engines, epoch_order, evaluate, load_dataset

for row in engines():
    print(f"{row.name:10} {row.unavailable or 'can run here'}")

data = load_dataset()
engine = Engine("auto")
engine.init_parameters(seed=0)
engine.set_dataset(data.train_images, data.train_labels)

batch, rate = 64, 0.1
steps = len(data.train_labels) // batch
for epoch in range(1, 4):
    order = epoch_order(0, epoch, len(data.train_labels))[: steps * batch]
    losses, correct = engine.train(order, batch, rate)  # a value for each step
    engine.compute_statistics()  # batch norm's, over all training images
    tested = evaluate(engine, data.test_images, data.test_labels)
    print(f"rate {rate:g}: loss {losses.mean():.4f}, {100 * tested.accuracy:.2f} % of the test images")
    rate /= 2
