"""Train, test and use the network. `python examples/five_lines.py`"""

from mnist_cuda import TrainOptions, load_dataset, predict, train

data = load_dataset()
result = train(data, TrainOptions(epochs=3), progress=True)
print("these are", data.test_labels[:10], "and the network says", predict(result, data.test_images[:10]).classes)
result.save("model.safetensors")
