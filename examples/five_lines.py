"""Train, test and use the network. `python examples/five_lines.py`"""

from mnist_cuda import TrainOptions, load_dataset, predict, save_model, train

data = load_dataset()
result = train(data, TrainOptions(epochs=3), on_epoch=lambda epoch: print(f"{100 * epoch['test_accuracy']:.2f} %"))
print("these are", data.test_labels[:10], "and the network says", predict(result, data.test_images[:10]).classes)
save_model("model.safetensors", result.model)
