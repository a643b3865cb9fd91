"""The estimator of scikit-learn: it is what `train` trains, and passes what scikit-learn asks of a classifier."""

import pickle

import numpy as np
import pytest
from tiny import tiny_dataset

from mnist_cuda import TrainOptions, predict, train

pytest.importorskip("sklearn", minversion="1.6", reason="scikit-learn is not installed")
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from mnist_cuda.sklearn import MnistClassifier

OPTIONS = {"epochs": 3, "batch_size": 5, "lr": 0.02, "engine": "cpu"}


class Padded(MnistClassifier):
    """Takes any table of numbers for images: scikit-learn's checks have few columns, and they are no pixels."""

    def fit(self, X, y):
        self.range_ = None
        return super().fit(X, y)

    def _images(self, X):
        table = np.asarray(X, dtype=float)
        if self.range_ is None:
            self.range_ = (table.min(), np.ptp(table) or 1)
        shares = np.clip((table - self.range_[0]) / self.range_[1], 0, 1)
        pixels = np.repeat(np.round(255 * shares), max(1, 784 // table.shape[1]), axis=1)[:, :784]
        return np.pad(pixels, ((0, 0), (0, 784 - pixels.shape[1]))).astype(np.uint8).reshape(-1, 28, 28)


@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn():
    """All of them pass, but for one that is only made where scikit-learn is set up for other libraries' arrays."""
    estimator = Padded(epochs=20, batch_size=16, engine="cpu", threads=1)
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    names = {result["status"]: set() for result in results}
    for result in results:
        names[result["status"]].add(result["check_name"])
    print("\n".join(f"{result['status']:8} {result['check_name']}" for result in results))
    assert len(names.pop("passed")) > 40
    assert names in ({}, {"skipped": {"check_array_api_input"}}), names


def test_it_is_what_train_trains():
    data = tiny_dataset()
    rows = data.train_images.reshape(-1, 784)
    classifier = MnistClassifier(**OPTIONS).fit(rows, data.train_labels)
    result = train(data, TrainOptions(epochs=3, batch_size=5, lr=0.02), engine="cpu")
    test = data.test_images.reshape(-1, 784)
    expected = predict(result.model, data.test_images, engine="cpu")
    np.testing.assert_array_equal(classifier.predict(test), expected.classes)
    np.testing.assert_allclose(classifier.predict_proba(test), expected.probabilities, rtol=1e-9)
    assert classifier.score(test, data.test_labels) == result.accuracy
    assert [row["loss"] for row in classifier.epochs_] == [row["loss"] for row in result.epochs]
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict(data.test_images), expected.classes)


def test_labels_are_anything():
    data = tiny_dataset()
    chosen = data.train_labels < 3
    names = np.array(["shoe", "bag", "coat"])[data.train_labels[chosen]]
    classifier = MnistClassifier(**OPTIONS | {"epochs": 10}).fit(data.train_images[chosen], names)
    assert classifier.classes_.tolist() == ["bag", "coat", "shoe"]
    shares = classifier.predict_proba(data.test_images)
    assert shares.shape == (20, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert classifier.score(data.train_images[chosen], names) == 1
    with pytest.raises(ValueError, match=r"^y: there are 11 classes, expected at most 10: 0, 1, 2"):
        MnistClassifier(**OPTIONS).fit(data.train_images, np.arange(35) % 11)
    with pytest.raises(ValueError, match="astype"):
        MnistClassifier(**OPTIONS).fit(data.train_images / 255, data.train_labels)


def test_a_search_in_processes(tmp_path):
    data = tiny_dataset()
    rows = data.train_images.reshape(-1, 784)
    estimator = MnistClassifier(**OPTIONS, threads=1)
    search = GridSearchCV(estimator, {"lr": [0.0, 0.05]}, cv=3, n_jobs=2).fit(rows, data.train_labels)
    assert search.best_params_ == {"lr": 0.05}
    assert len(cross_val_score(estimator, rows, data.train_labels, cv=3)) == 3
