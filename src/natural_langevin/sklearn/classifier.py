"""``NaturalLangevinClassifier``: class probabilities averaged over networks of the posterior."""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from torch import Tensor

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NaturalLangevinClassifier:
        """``X``: (n, features); ``y``: (n,) labels of any kind, or (n, labels) of 0 and 1, several
        labels per row; ``sample_weight``: (n,), a row of weight 2 counts as two."""
        table, y, weight = self._checked(X, y, sample_weight, multi_output=True)
        check_classification_targets(y)
        y = y.toarray() if hasattr(y, "toarray") else y
        self._several = type_of_target(y) == "multilabel-indicator"
        if self._several:
            self.classes_ = np.arange(y.shape[1])
            targets = torch.as_tensor(np.asarray(y, dtype=np.float64))
            self._learn(table, targets, weight, task="multilabel")
            return self
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        self._learn(table, torch.as_tensor(labels), weight, classes=len(self.classes_))
        return self

    def _targets(self, y: Any) -> Tensor:
        y = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
        if self._several:
            return torch.as_tensor(y.astype(np.float64))
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise ValueError(f"y holds {y[unknown][0]!r}, which is none of {self.classes_}")
        return torch.as_tensor(np.searchsorted(self.classes_, y))

    def predict_proba(self, X: Any) -> Array:
        """(n, classes), in the order of ``classes_``: averages over the posteriors' networks, with
        the weights and the scale that cross-validation gave. Of several labels per row, each
        label's own probability."""
        x = self._inputs(X)
        if self._several:
            return self.learned_.predictive(x, flat=False).mean
        found: Array = self.learned_.probabilities(x).numpy()
        return found

    def predict_log_proba(self, X: Any) -> Array:
        """ln of ``predict_proba``."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> Array:
        """The most probable class of every row; of several labels, those that are more probable
        than not."""
        probabilities = self.predict_proba(X)
        if self._several:
            return (probabilities > 0.5).astype(np.int64)
        return self.classes_[probabilities.argmax(axis=1)]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> Array:
        """(n, n_samples) labels drawn from the predictive probabilities; of several labels per row
        (n, labels, n_samples), drawn together from one network each."""
        if self._several:
            found = self.learned_.predictive(self._inputs(X), flat=False)
            return np.moveaxis(found.sample(n_samples, seed=random_state), 0, -1).astype(np.int64)
        cumulative = self.predict_proba(X).cumsum(axis=1)
        u = np.random.default_rng(random_state).random((len(cumulative), n_samples))
        return self.classes_[(cumulative[:, None, :-1] < u[..., None]).sum(-1)]

    def predict_set(self, X: Any, level: float = 0.9) -> Array:
        """Which classes are in each row's set, (n, classes) bool: as many as held-out rows say it
        takes to hold the truth in ``level`` of all rows (split conformal over the folds)."""
        x = self._inputs(X)
        if self._several:
            raise ValueError("predict_set is for one class per row, and there are several labels")
        return (1 - self.learned_.probabilities(x) <= self.learned_.conformal(level)).numpy()
