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
from natural_langevin.tabular.target import in_order


class NaturalLangevinClassifier(ClassifierMixin, NaturalLangevinEstimator):  # type: ignore[misc]
    """A Bayesian neural network classifier; arguments as for ``NaturalLangevinEstimator``.

    ``task="ordinal"``: the classes have an order, that of ``classes_``: of numbers, of words that
    are known (low, medium, high) or of an ordered pandas column. Probabilities reflect the class
    frequencies of the data; for balanced decisions give
    ``sample_weight=compute_sample_weight("balanced", y)`` of scikit-learn.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NaturalLangevinClassifier(steps=40, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    _tasks = ("classification", "ordinal")
    _several = False  # labels per row

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NaturalLangevinClassifier:
        """``X``: (n, features); ``y``: (n,) labels of any kind, or (n, labels) of 0 and 1, several
        labels per row; ``sample_weight``: (n,), a row of weight 2 counts as two."""
        given = y
        table, y, weight = self._checked(X, y, sample_weight, multi_output=True)
        check_classification_targets(y)
        y = y.toarray() if hasattr(y, "toarray") else y
        self._several = type_of_target(y) == "multilabel-indicator"
        if self._several:
            self.classes_ = np.arange(y.shape[1])
            targets = torch.as_tensor(np.asarray(y, dtype=np.float64))
            self._learn(table, targets, weight, task="multilabel")
            return self
        y = column_or_1d(y, warn=True)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if self.task == "ordinal":
            self._order_classes(given)
            labels = self._targets(y).numpy()
        self._learn(table, torch.as_tensor(labels), weight, classes=len(self.classes_))
        return self

    def _order_classes(self, y: Any) -> None:
        """From low to high: as an ordered pandas column says, or as numbers and known scales (low,
        medium, high) go."""
        categories = getattr(getattr(y, "dtype", None), "categories", None)
        # An Enum of polars is a list in its order, and has no word for it.
        if categories is not None and getattr(y.dtype, "ordered", True):
            found = [level for level in categories if level in set(self.classes_)]
        elif self.classes_.dtype.kind in "biuf":
            return
        else:
            found = list(in_order([str(level) for level in self.classes_]) or ())
        if len(found) != len(self.classes_):
            shown = ", ".join(map(str, self.classes_[:4]))
            raise ValueError(
                f'task="ordinal" needs an order, and that of {shown} is not '
                "known: give numbers, or an ordered pandas column (pd.Categorical(..., "
                "ordered=True))"
            )
        self.classes_ = np.array(found, dtype=self.classes_.dtype)

    def _targets(self, y: Any) -> Tensor:
        y = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
        if self._several:
            return torch.as_tensor(y.astype(np.float64))
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise ValueError(f"y holds {y[unknown][0]!r}, which is none of {self.classes_}")
        order = np.argsort(self.classes_, kind="stable")
        return torch.as_tensor(order[np.searchsorted(self.classes_, y, sorter=order)])

    def predict_proba(self, X: Any) -> Any:
        """(n, classes), in the order of ``classes_``: averages over the networks, with the weights
        and the calibration of the cross-validation. With several labels per row, the probability of
        each label."""
        return self._answer(self._probabilities(X), X, self._columns())

    def _columns(self) -> list[Any]:
        return self._named(len(self.classes_)) if self._several else list(self.classes_)

    def _probabilities(self, X: Any) -> Array:
        if self._several:
            return self._asked(X, lambda found: found.mean)
        x = self._inputs(X)
        found: Array = self.learned_.probabilities(x).numpy()
        return found

    def predict_log_proba(self, X: Any) -> Any:
        """ln of ``predict_proba``."""
        found = np.log(np.maximum(self._probabilities(X), np.finfo(np.float64).tiny))
        return self._answer(found, X, self._columns())

    def predict(self, X: Any) -> Any:
        """The most probable class of every row; with several labels per row, those of probability
        above 1/2."""
        probabilities = self._probabilities(X)
        if self._several:
            return self._answer((probabilities > 0.5).astype(np.int64), X, self._columns())
        return self._answer(self.classes_[probabilities.argmax(axis=1)], X, self._named(1))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> Array:
        """(n, n_samples) labels drawn from the predictive probabilities; with several labels per
        row (n, labels, n_samples), each drawn from one network."""
        if self._several:
            rng = np.random.default_rng(random_state)  # rows are asked in parts
            drawn = self._asked(
                X, lambda found: np.moveaxis(found.sample(n_samples, seed=rng), 0, -1)
            )
            return drawn.astype(np.int64)
        cumulative = self._probabilities(X).cumsum(axis=1)
        u = np.random.default_rng(random_state).random((len(cumulative), n_samples))
        return self.classes_[(cumulative[:, None, :-1] < u[..., None]).sum(-1)]

    def predict_set(self, X: Any, level: float = 0.9) -> Any:
        """Which classes are in each row's set, (n, classes) bool: large enough to hold the true
        class in a share ``level`` of the held-out rows (split conformal over the folds)."""
        x = self._inputs(X)
        if self._several:
            raise ValueError("predict_set is for one class per row, and there are several labels")
        inside = 1 - self.learned_.probabilities(x) <= self.learned_.conformal(level)
        return self._answer(inside.numpy(), X, self._columns())
