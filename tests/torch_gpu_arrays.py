"""Arrays in a GPU's memory between PyTorch and the engines; test_gpu_arrays.py runs this where there is PyTorch."""

import gc

import numpy as np
import pytest
import torch

from mnist_cuda import Engine, init_parameters
from mnist_cuda.engine import engines

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of itself
ENGINES = [
    pytest.param(row.name, precision, id=f"{row.name}-{precision}")
    for row in engines()
    if row.device == "cuda"
    for precision in row.precisions
    if precision not in row.unavailable_precisions
]
IMAGES = np.random.default_rng(0).integers(0, 256, (300, 28, 28), dtype=np.uint8)
LABELS = (np.arange(300) % 10).astype(np.uint8)


class Interface:
    """A tensor that has the CUDA array interface alone, made on the stream that it names."""

    def __init__(self, tensor, stream):
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, "stream": stream}


def late(array, stream):
    """The array on the GPU, where it arrives some tenths of a second after this returns; bytes of 255 until then."""
    tensor = torch.full(array.shape, 255, dtype=torch.uint8, device="cuda")
    values = torch.tensor(array, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        tensor.copy_(values)
    return tensor


def trained(name, precision, images, labels):
    engine = Engine(name, precision)
    engine.set_parameters(init_parameters(0))
    engine.set_dataset(images, labels)
    return engine


def step(engine):
    losses, correct = engine.train(np.arange(300), 100, 0.05)
    engine.compute_statistics()
    return losses, correct, *engine.parameters.values(), *engine.statistics.values()


@pytest.mark.parametrize(("name", "precision"), ENGINES)
def test_a_data_set_on_the_gpu_gives_the_bits_of_one_on_the_host(name, precision):
    expected = step(trained(name, precision, IMAGES, LABELS))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        images, labels = late(IMAGES, stream), late(LABELS, stream)
        if precision == "fp32":  # else by DLPack
            images, labels = (Interface(tensor, stream.cuda_stream) for tensor in (images, labels))
        engine = trained(name, precision, images, labels)
    for array in (images, labels):  # the engine has its own
        getattr(array, "tensor", array).zero_()
    torch.cuda.synchronize()
    for got, want in zip(step(engine), expected, strict=True):
        assert np.array_equal(got, want)


@pytest.mark.parametrize(("name", "precision"), ENGINES)
def test_parameters_on_the_gpu(name, precision):
    engine = trained(name, precision, IMAGES, LABELS)
    step(engine)
    expected, arrays = engine.parameters, engine.gpu_parameters()
    assert list(arrays) == list(expected)
    tensors = {key: torch.from_dlpack(array) for key, array in arrays.items()}
    for key, array in arrays.items():
        by_interface = torch.as_tensor(array, device="cuda")
        assert tensors[key].data_ptr() == by_interface.data_ptr() == array.address, "no copy"
        assert by_interface.shape == tensors[key].shape == expected[key].shape
    del engine, arrays, array, by_interface  # the tensors keep the memory
    gc.collect()
    junk = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(8)]
    for key, tensor in tensors.items():
        assert np.array_equal(tensor.cpu().numpy(), expected[key])
    del junk


@pytest.mark.parametrize(("name", "precision"), ENGINES)
@pytest.mark.parametrize("batch_norm", ["population", "batch"])
def test_logits_on_the_gpu(name, precision, batch_norm):
    engine = trained(name, precision, IMAGES, LABELS)
    step(engine)
    expected = engine.logits(IMAGES, batch_norm)
    stream = torch.cuda.Stream()
    images = late(IMAGES, stream)
    with torch.cuda.stream(stream):
        scores = engine.gpu_logits(images, batch_norm)
    assert scores.shape == (300, 10)
    assert np.array_equal(torch.from_dlpack(scores).double().cpu().numpy(), expected)
    assert np.array_equal(engine.logits(images, batch_norm), expected)


def test_an_evaluation_set_and_a_data_set_for_the_host():
    images, labels = torch.tensor(IMAGES, device="cuda"), torch.tensor(LABELS, device="cuda")
    for name, placement in (("cpu", "device"), ("naive", "host")):
        scores = []
        for given in ((IMAGES, LABELS), (images, labels)):
            engine = Engine(name)
            engine.set_parameters(init_parameters(0))
            engine.set_dataset(*given, placement)
            engine.set_evaluation_set(*given)
            losses, _ = engine.train(np.arange(300), 100, 0.05)
            engine.compute_statistics()
            scores.append((*losses, *engine.evaluate()))
        assert scores[0] == scores[1]


def test_what_is_refused():
    images, labels = torch.tensor(IMAGES, device="cuda"), torch.tensor(LABELS, device="cuda")
    engine = Engine("naive")
    for array, found in ((images.float(), "dtype torch.float32"), (images.transpose(1, 2), "shape (300, 28, 28)")):
        with pytest.raises(ValueError, match="expected uint8 that lies row by row") as error:
            engine.set_dataset(array, labels)
        assert found in str(error.value)
    with pytest.raises(ValueError, match="784 pixels for 300 labels, expected 235200"):
        engine.set_dataset(images[:1], labels)
    with pytest.raises(ValueError, match="label 299 is 10, expected 0 to 9"):
        engine.set_dataset(images, torch.where(torch.arange(300, device="cuda") == 299, 10, labels).to(torch.uint8))
    with pytest.raises(ValueError, match="the images are on the host"):
        engine.gpu_logits(IMAGES)
    with pytest.raises(ValueError, match="no population statistics"):
        engine.gpu_logits(images)
