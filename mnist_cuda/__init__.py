"""Train an MNIST CNN with a native CUDA or CPU engine.

    from mnist_cuda import TrainOptions, load_dataset, predict, save_model, train

    data = load_dataset()
    result = train(data, TrainOptions(epochs=3))
    print(result.accuracy, predict(result, data.test_images[:10]).classes)
    save_model("model.safetensors", result.model)

The command line is `mnist-cuda` (or `python -m mnist_cuda`). Importing this package is cheap: each name below is
imported from its module when it is first used.
"""

TYPE_CHECKING = False  # typing's, without the time that its import takes
if TYPE_CHECKING:
    from mnist_cuda.data.class_folders import dataset_from_folder
    from mnist_cuda.data.dataset import Dataset
    from mnist_cuda.data.dataset import load as load_dataset
    from mnist_cuda.data.digit import Digit, as_mnist, digits_of
    from mnist_cuda.data.own import dataset_of
    from mnist_cuda.data.picture_file import read_picture
    from mnist_cuda.engine import Engine, EngineInfo, OpTime, Probe, engines
    from mnist_cuda.engine.model import init_parameters
    from mnist_cuda.errors import (
        CheckpointError,
        DataError,
        DivergedError,
        MnistCudaError,
        OutOfMemoryError,
        UnavailableError,
        UsageError,
    )
    from mnist_cuda.run.callbacks import Callback, EarlyStopping, StopTraining, TensorBoard
    from mnist_cuda.run.checkpoint import load_model, save_model
    from mnist_cuda.run.evaluation import Predictions, evaluate, predict
    from mnist_cuda.run.onnx_export import onnx_model
    from mnist_cuda.run.options import TrainOptions
    from mnist_cuda.run.results import Evaluation, Model, TrainingResult
    from mnist_cuda.run.train import train
    from mnist_cuda.run.training import Progress, Trainer, epoch_order
    from mnist_cuda.sweeps.result import SweepResult
    from mnist_cuda.sweeps.sweep import sweep
    from mnist_cuda.sweeps.table import SweptModel

__version__ = "0.1.0"
MAX_THREADS = 1024  # of an engine on the CPU; more than that is a slip of the hand

# The public names by subject, in the order of docs/api.md, each with its module, or MODULE:NAME if that differs.
PUBLIC: dict[str, dict[str, str]] = {
    "Data": {
        "load_dataset": "data.dataset:load",
        "dataset_of": "data.own",
        "dataset_from_folder": "data.class_folders",
        "Dataset": "data.dataset",
        "read_picture": "data.picture_file",
        "as_mnist": "data.digit",
        "digits_of": "data.digit",
        "Digit": "data.digit",
    },
    "Training": {
        "train": "run.train",
        "TrainOptions": "run.options",
        "TrainingResult": "run.results",
        "Progress": "run.training",
        "Callback": "run.callbacks",
        "StopTraining": "run.callbacks",
        "EarlyStopping": "run.callbacks",
        "TensorBoard": "run.callbacks",
        "Trainer": "run.training",
        "epoch_order": "run.training",
        "sweep": "sweeps.sweep",
        "SweepResult": "sweeps.result",
        "SweptModel": "sweeps.table",
    },
    "Models": {
        "evaluate": "run.evaluation",
        "Evaluation": "run.results",
        "predict": "run.evaluation",
        "Predictions": "run.evaluation",
        "load_model": "run.checkpoint",
        "save_model": "run.checkpoint",
        "Model": "run.results",
        "init_parameters": "engine.model",
        "onnx_model": "run.onnx_export",
    },
    "Engines": {
        "engines": "engine",
        "EngineInfo": "engine",
        "Engine": "engine",
        "Probe": "engine",
        "OpTime": "engine",
    },
    "Errors": {
        "MnistCudaError": "errors",
        "UsageError": "errors",
        "DivergedError": "errors",
        "DataError": "errors",
        "UnavailableError": "errors",
        "OutOfMemoryError": "errors",
        "CheckpointError": "errors",
    },
}
_WHERE = {name: where for names in PUBLIC.values() for name, where in names.items()}

__all__ = [
    "Callback",
    "CheckpointError",
    "DataError",
    "Dataset",
    "Digit",
    "DivergedError",
    "EarlyStopping",
    "Engine",
    "EngineInfo",
    "Evaluation",
    "MnistCudaError",
    "Model",
    "OpTime",
    "OutOfMemoryError",
    "Predictions",
    "Probe",
    "Progress",
    "StopTraining",
    "SweepResult",
    "SweptModel",
    "TensorBoard",
    "TrainOptions",
    "Trainer",
    "TrainingResult",
    "UnavailableError",
    "UsageError",
    "__version__",
    "as_mnist",
    "dataset_from_folder",
    "dataset_of",
    "digits_of",
    "engines",
    "epoch_order",
    "evaluate",
    "init_parameters",
    "load_dataset",
    "load_model",
    "onnx_model",
    "predict",
    "read_picture",
    "save_model",
    "sweep",
    "train",
]


def __getattr__(name: str) -> object:
    """A public name, imported from its module now."""
    if name not in _WHERE:
        raise AttributeError(f"module 'mnist_cuda' has no attribute {name!r}")
    from importlib import import_module

    module, _, other = _WHERE[name].partition(":")
    value: object = getattr(import_module(f"mnist_cuda.{module}"), other or name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: object) -> None:
    """`%load_ext mnist_cuda` in a notebook: the cell magic `%%judge`."""
    from mnist_cuda.judge.notebook import register

    register(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
