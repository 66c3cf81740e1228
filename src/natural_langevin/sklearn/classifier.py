"""``NaturalLangevinClassifier``: class probabilities averaged over networks of the posterior."""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from natural_langevin.likelihoods import Categorical
from natural_langevin.metrics import TemperatureScaling
from natural_langevin.sklearn.base import Array, NaturalLangevinEstimator
from natural_langevin.sklearn.problem import HeldOut
from natural_langevin.sklearn.weighing import Weighed, weigh_classes


class NaturalLangevinClassifier(ClassifierMixin, NaturalLangevinEstimator):  # type: ignore[misc]
    """A Bayesian network for classes; the settings are those of ``NaturalLangevinEstimator``.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NaturalLangevinClassifier(steps=40, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    def fit(self, X: Any, y: Any) -> NaturalLangevinClassifier:
        """``X``: (n, features), dense or sparse; ``y``: (n,) labels of any kind."""
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._sample(X, torch.as_tensor(labels), len(self.classes_), Categorical())
        return self

    def _weigh(self, held_out: HeldOut, y: Tensor, count: int) -> Weighed:
        return weigh_classes(held_out, y, count)

    def predict_proba(self, X: Any) -> Array:
        """(n, classes), in the order of ``classes_``: averages over the posteriors' networks, with
        the weights and the scale that cross-validation gave."""
        said = self._predictions(X)
        average = sum(
            weight * one.mean.cpu() for weight, one in zip(self.weights_, said, strict=True)
        )
        p: Array = TemperatureScaling(self.scale_)(torch.as_tensor(average)).numpy()
        return p / p.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Array:
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> Array:
        """The most probable class of every row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]
