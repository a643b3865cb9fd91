"""Log a training to trackio or Weights & Biases, whichever is installed. `python examples/trackers.py`

Both have the same three calls. mnist_cuda.TensorBoard writes for TensorBoard.
"""

from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec

from mnist_cuda import Callback, TrainOptions, load_dataset, train


class Tracker(Callback):
    """Writes each epoch's numbers by a module that is like wandb."""

    def __init__(self, module, project):
        self.module, self.project = module, project

    def on_start(self, trainer):
        self.module.init(project=self.project, config=asdict(trainer.options))

    def on_epoch(self, record):
        self.module.log({name: value for name, value in record.items() if isinstance(value, float)})

    def on_end(self, result):
        self.module.finish()


names = [name for name in ("trackio", "wandb") if find_spec(name)]
if not names:
    print("neither is installed: python -m pip install trackio")
callbacks = [Tracker(import_module(name), "mnist") for name in names[:1]]
result = train(load_dataset(), TrainOptions(epochs=2), callbacks=callbacks)
print(f"{100 * result.accuracy:.2f} %, logged by {', '.join(names[:1]) or 'nobody'}")
