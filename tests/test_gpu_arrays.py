"""Arrays in a GPU's memory: what is asked of other libraries' and told of ours; with a GPU torch_gpu_arrays.py."""

import numpy as np
import pytest

from mnist_cuda import Engine, _native
from mnist_cuda.engine.gpu_arrays import GpuArray, gpu_bytes

IMAGES = np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28)


class Interface:
    """An object with the CUDA array interface, as if it were on a GPU."""

    def __init__(self, shape=(2, 28, 28), typestr="|u1", **more):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (4096, True), "version": 3, **more}


@pytest.fixture
def waits(monkeypatch):
    """The streams that were waited for."""
    streams = []
    monkeypatch.setattr(_native, "wait_for_stream", lambda address, stream: streams.append(stream))
    return streams


@pytest.mark.gpu
def test_with_pytorch(make_engine, run_with_torch):
    make_engine("naive")  # skips where our kernels cannot run
    run_with_torch("torch_gpu_arrays.py", "cuda")


def test_arrays_on_the_host_are_not_on_a_gpu(waits):
    assert gpu_bytes(IMAGES) is None
    assert gpu_bytes([1, 2]) is None
    assert waits == []


@pytest.mark.parametrize(("more", "waited"), [({}, []), ({"stream": None}, []), ({"stream": 77}, [77])])
def test_the_stream_that_the_interface_names_is_waited_for(waits, more, waited):
    array = gpu_bytes(Interface(strides=(784, 28, 1), **more))
    assert (array.address, array.size) == (4096, 1568)
    assert waits == waited


@pytest.mark.parametrize("wrong", [{"typestr": "<f4"}, {"strides": (784, 1, 28)}])
def test_what_an_engine_cannot_read_is_refused(waits, wrong):
    with pytest.raises(ValueError, match=r"^the array on a GPU has type .*, expected uint8 that lies row by row$"):
        gpu_bytes(Interface(**wrong))


def test_an_engine_on_the_host_copies_from_the_gpu(waits, monkeypatch):
    monkeypatch.setattr(_native, "download", lambda address, count: IMAGES.ravel()[:count])
    engine = Engine("cpu")
    engine.init_parameters(0)
    engine.set_dataset(Interface(), np.array([3, 5], np.uint8))
    assert engine.dataset_size == 2
    assert np.array_equal(engine.logits(Interface(), "batch"), engine.logits(IMAGES, "batch"))
    for ask in (engine.gpu_parameters, lambda: engine.gpu_logits(Interface())):
        with pytest.raises(ValueError, match="engine cpu runs on the CPU, expected one on a GPU"):
            ask()


def test_what_ours_says_of_itself():
    array = GpuArray((2, 3), np.dtype(np.float32), 1, 4096, None)
    assert array.__dlpack_device__() == (2, 1)
    assert array.__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (4096, False),
        "strides": None,
        "stream": None,
    }
