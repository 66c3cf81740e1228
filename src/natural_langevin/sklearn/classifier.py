"""``NaturalLangevinClassifier``: class probabilities averaged over networks of the posterior."""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from natural_langevin.sklearn.base import Array, NaturalLangevinEstimator


class NaturalLangevinClassifier(ClassifierMixin, NaturalLangevinEstimator):  # type: ignore[misc]
    """A Bayesian network for classes; the settings are those of ``NaturalLangevinEstimator``.

    ``task="ordinal"``: the classes have an order, that of ``classes_``. Rare classes stay as rare
    as they are, which is what probabilities should say; for balanced decisions give
    ``sample_weight=compute_sample_weight("balanced", y)`` of scikit-learn.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NaturalLangevinClassifier(steps=40, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    _tasks = ("classification", "ordinal")

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NaturalLangevinClassifier:
        """``X``: (n, features); ``y``: (n,) labels of any kind; ``sample_weight``: (n,), a row of
        weight 2 counts as two."""
        table, y, weight = self._checked(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._learn(table, torch.as_tensor(labels), weight, classes=len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Array:
        """(n, classes), in the order of ``classes_``: averages over the posteriors' networks, with
        the weights and the scale that cross-validation gave."""
        x = self._inputs(X)
        found: Array = self.learned_.probabilities(x).numpy()
        return found

    def predict_log_proba(self, X: Any) -> Array:
        """ln of ``predict_proba``."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> Array:
        """The most probable class of every row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> Array:
        """(n, n_samples) labels drawn from the predictive probabilities."""
        cumulative = self.predict_proba(X).cumsum(axis=1)
        u = np.random.default_rng(random_state).random((len(cumulative), n_samples))
        return self.classes_[(cumulative[:, None, :-1] < u[..., None]).sum(-1)]

    def predict_set(self, X: Any, level: float = 0.9) -> Array:
        """Which classes are in each row's set, (n, classes) bool: as many as held-out rows say it
        takes to hold the truth in ``level`` of all rows (split conformal over the folds)."""
        x = self._inputs(X)
        return (1 - self.learned_.probabilities(x) <= self.learned_.conformal(level)).numpy()
