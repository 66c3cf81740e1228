"""``NaturalLangevinRegressor``: predictive distributions from networks of the posterior."""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor

from natural_langevin.sklearn.base import Array, NaturalLangevinEstimator
from natural_langevin.tabular.outcome import KINDS
from natural_langevin.tabular.predictive import Predictive
from natural_langevin.tabular.target import are_counts

#: Different whole numbers that counts have at least: a regressor's targets name no classes.
FEW_COUNTS = 5


class NaturalLangevinRegressor(RegressorMixin, NaturalLangevinEstimator):  # type: ignore[misc]
    """A Bayesian neural network for one or several real targets; arguments as for
    ``NaturalLangevinEstimator``.

    Held-out rows choose whether the noise has one size or depends on the inputs, and whether a
    skewed positive target is sampled as its logarithm (``noise``, ``log``). If a tenth of the
    targets is exactly 0, a hurdle model is tried too, zero or a positive amount or count
    (``noise="hurdle"``; ``predict_dist(X).zero``, as of all counts, is the probability of 0).
    ``task="count"``: targets 0, 1, 2, ... with Poisson or overdispersed noise; "auto" is that where
    targets look like counts (``tabular.target.are_counts``), and "regression" otherwise.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = NaturalLangevinRegressor(steps=40, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    _tasks = ("regression", "count")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NaturalLangevinRegressor:
        """``X``: (n, features); ``y``: (n,) or (n, targets); ``sample_weight``: (n,), a row of
        weight 2 counts as two."""
        if np.asarray(y).dtype.kind in "mM":
            raise ValueError(
                "y holds dates or durations, which would be learned in nanoseconds: give numbers, "
                "such as days, (y - y.min()) / np.timedelta64(1, 'D')"
            )
        table, y, weight = self._checked(X, y, sample_weight, multi_output=True, y_numeric=True)
        y = np.array(y, dtype=np.float64)
        self._flat = y.ndim == 1
        open_kind = self.task == "auto" and self.noise in ("auto", *KINDS["count"])
        task = "count" if open_kind and self._flat and are_counts(y, FEW_COUNTS) else ""
        self._learn(table, torch.as_tensor(y.reshape(len(y), -1)), weight, task=task)
        return self

    def _targets(self, y: Any) -> Tensor:
        y = np.asarray(y, dtype=np.float64)
        return torch.as_tensor(y.reshape(len(y), -1))

    def predict_dist(self, X: Any) -> Predictive:
        """The predictive distribution of every row: ``mean``, ``std``, ``quantile``, ``interval``,
        ``cdf``, ``log_prob``, ``sample``."""
        x = self._inputs(X)
        return self.learned_.predictive(x, flat=self._flat)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean; with ``return_std`` also its standard deviation, which includes the
        noise of a new observation and the networks' disagreement."""
        if not return_std:
            mean = self._asked(X, lambda found: found.mean)
            return self._answer(mean, X, self._names(mean))
        both = self._asked(X, lambda found: np.stack([found.mean, found.std], axis=-1))
        return self._split(both, X)

    def _names(self, values: Array) -> list[Any]:
        return self._named(1 if values.ndim == 1 else values.shape[1])

    def predict_quantiles(self, X: Any, levels: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Any:
        """(n, level), or (n, target, level): quantiles of the predictive distribution, also of one
        level alone."""
        every = np.atleast_1d(levels).tolist()
        quantiles = self._asked(
            X, lambda found: np.stack([found.quantile(level) for level in every], axis=-1)
        )
        return self._answer(quantiles, X, [f"q{100 * level:g}" for level in every])

    def predict_interval(
        self, X: Any, level: float = 0.9, *, conformal: bool = False
    ) -> tuple[Any, Any]:
        """The bounds of central intervals. ``conformal``: wide enough to hold a share ``level`` of
        the held-out rows (split conformal over the folds)."""
        if conformal:
            level = min(self.learned_.conformal(level), 1 - 1e-9)
        return self._split(
            self._asked(X, lambda found: np.stack(found.interval(level), axis=-1)), X
        )

    def _split(self, both: Array, X: Any) -> tuple[Any, Any]:
        names = self._names(both[..., 0])
        return self._answer(both[..., 0], X, names), self._answer(both[..., 1], X, names)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> Array:
        """(n, n_samples) draws of new observations, or (n, target, n_samples)."""
        rng = np.random.default_rng(random_state)  # rows are asked in parts
        return self._asked(X, lambda found: np.moveaxis(found.sample(n_samples, seed=rng), 0, -1))
