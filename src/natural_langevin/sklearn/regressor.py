"""``NaturalLangevinRegressor``: means and honest deviations from networks of the posterior."""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin

from natural_langevin.likelihoods import Gaussian
from natural_langevin.sklearn.base import Array, NaturalLangevinEstimator


class NaturalLangevinRegressor(RegressorMixin, NaturalLangevinEstimator):  # type: ignore[misc]
    """A Bayesian network for real targets, one or several; the settings are those of
    ``NaturalLangevinEstimator``.

    Targets are standardised, and the noise level, common to all targets on that scale, follows
    the residuals (``likelihoods.Gaussian("rmse")``).

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = NaturalLangevinRegressor(steps=40, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> mean.shape, std.shape
    ((2,), (2,))
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> NaturalLangevinRegressor:
        """``X``: (n, features), dense or sparse; ``y``: (n,) or (n, targets)."""
        X, y = self._validated(X, y, multi_output=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        self.target_mean_, scale = y.mean(axis=0), y.std(axis=0)
        self.target_scale_ = np.where(scale > 0, scale, 1.0)
        self._flat = y.ndim == 1
        targets = torch.as_tensor((y - self.target_mean_) / self.target_scale_)
        targets = targets.reshape(len(X), -1)
        self._sample(X, targets, targets.shape[1], Gaussian(sigma="rmse"))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The predictive mean; with ``return_std`` also its standard deviation, which holds both
        the noise of a new observation and the networks' disagreement."""
        found = self._predictions(X)
        mean = self._as_given(found.mean.cpu().numpy()) * self.target_scale_ + self.target_mean_
        if not return_std:
            return mean
        assert found.total is not None
        return mean, self._as_given(found.total.sqrt().cpu().numpy()) * self.target_scale_

    def predict_networks(self, X: Any) -> tuple[Array, Array]:
        """The predictive mixture: every network's mean, (network, n) or (network, n, targets), and
        the standard deviation of its noise, (network,) or (network, targets)."""
        samples = self._predictions(X, keep_samples=True).samples
        assert samples is not None
        noise = self.posterior_.sigma
        assert noise is not None
        by_network = noise[self.posterior_.healthy].repeat_interleave(self.posterior_.draws)
        means, sigma = samples.cpu().numpy(), by_network.cpu().numpy()[:, None]
        if self._flat:
            means, sigma = means[..., 0], sigma[:, 0]
        return means * self.target_scale_ + self.target_mean_, sigma * self.target_scale_

    def _as_given(self, values: Array) -> Array:
        """(n, targets) in the shape of the y that was fitted."""
        return values[:, 0] if self._flat else values
