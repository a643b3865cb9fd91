"""The network as an estimator of scikit-learn (the extra `sklearn`), for its pipelines, searches and scores.

from mnist_cuda.sklearn import MnistClassifier

classifier = MnistClassifier(epochs=3).fit(X, y)
print(classifier.score(X_test, y_test), classifier.predict(X_test[:10]))
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mnist_cuda.data.arrays import encoded, images_of
from mnist_cuda.data.idx import CLASSES
from mnist_cuda.data.own import dataset_of
from mnist_cuda.engine import Engine, Images
from mnist_cuda.errors import UnavailableError
from mnist_cuda.run.evaluation import predict
from mnist_cuda.run.options import TrainOptions
from mnist_cuda.run.train import train

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    remedy = f"run `{sys.executable} -m pip install 'scikit-learn>=1.6'`"
    raise UnavailableError(f"mnist_cuda.sklearn needs scikit-learn 1.6 or newer ({error}): {remedy}") from error

if TYPE_CHECKING:
    from typing_extensions import Self


def _rows(X: Any) -> Any:
    """Images as scikit-learn knows samples: a row of pixels each."""
    array = X if hasattr(X, "shape") else np.asarray(X)
    return np.asarray(array).reshape(array.shape[0], -1) if len(array.shape) > 2 else X


class MnistClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of images 28x28 in at most 10 classes.

    Images are given as to `dataset_of`: (N,784) or (N,28,28) whole numbers from 0 to 255, also as a data frame. Classes
    are any labels, also text. The options are those of TrainOptions and Engine; where there are fewer images than
    `batch_size`, all of them are a batch. verbose: show the progress.

    classes_: the labels in their order. model_: the Model. epochs_: a record for each epoch, of the training images
    alone: `loss` and `train_accuracy`.
    """

    def __init__(
        self,
        epochs: int = 5,
        batch_size: int = 64,
        lr: float = 0.05,
        schedule: str = "constant",
        seed: int = 0,
        engine: str = "auto",
        precision: str | None = None,
        threads: int = 0,
        verbose: bool = False,
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.schedule = schedule
        self.seed = seed
        self.engine = engine
        self.precision = precision
        self.threads = threads
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Train on images and their classes. Raises ValueError for others, KeyboardInterrupt at Ctrl-C."""
        X, y = validate_data(self, _rows(X), y, dtype=None)
        check_classification_targets(y)
        try:
            self.classes_, labels = encoded(y)
        except ValueError as error:
            raise ValueError(f"y: {error}") from error
        if len(self.classes_) < 2:
            raise ValueError(f"y has {len(self.classes_)} class, expected 2 to {CLASSES}")
        images = self._images(X)
        options = TrainOptions(
            epochs=self.epochs,
            batch_size=min(self.batch_size, len(images)),
            lr=self.lr,
            schedule=self.schedule,
            seed=self.seed,
        )
        data = dataset_of(images, labels, images[:1], labels[:1])  # nothing is tested here: that is `score`'s
        engine = Engine(self.engine, self.precision, threads=self.threads)
        result = train(data, options, engine=engine, progress=None if self.verbose else False)
        if result.stopped:
            raise KeyboardInterrupt  # or a search would go on with the next one
        self.model_ = result.model
        self.epochs_ = [{key: row[key] for key in ("epoch", "loss", "train_accuracy")} for row in result.epochs]
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability (N,C) of each of the classes_."""
        check_is_fitted(self)
        images = self._images(validate_data(self, _rows(X), dtype=None, reset=False))
        found = predict(self.model_, images, engine=self.engine, precision=self.precision)
        logits = found.logits[:, : len(self.classes_)]
        shares: NDArray[np.float64] = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class (N,)."""
        found: NDArray[Any] = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[found])

    def _images(self, X: Any) -> Images:
        """The images of rows of pixels."""
        return images_of(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        tags.input_tags.three_d_array = True
        return tags
