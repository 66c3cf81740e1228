"""``NaturalLangevinRegressor``: means and honest deviations from networks of the posterior."""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from natural_langevin.likelihoods import Gaussian
from natural_langevin.posterior.prediction import Prediction
from natural_langevin.sklearn.base import Array, NaturalLangevinEstimator
from natural_langevin.sklearn.problem import HeldOut
from natural_langevin.sklearn.weighing import Weighed, weigh_numbers


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

    def _weigh(self, held_out: HeldOut, y: Tensor, count: int) -> Weighed:
        return weigh_numbers(held_out, y, count)

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The predictive mean; with ``return_std`` also its standard deviation, which holds both
        the noise of a new observation and the networks' disagreement."""
        said = self._predictions(X)
        weights = self.weights_[:, None, None]
        means = np.stack([one.mean.cpu().numpy() for one in said])
        mean = (weights * means).sum(0)
        found = self._as_given(mean) * self.target_scale_ + self.target_mean_
        if not return_std:
            return found
        noise = np.stack([self._noise(one) for one in said])
        within = np.stack([one.epistemic.cpu().numpy() for one in said])
        variance = (weights * (self.scale_**2 * noise + within + (means - mean) ** 2)).sum(0)
        return found, self._as_given(np.sqrt(variance)) * self.target_scale_

    def predict_networks(self, X: Any) -> tuple[Array, Array, Array]:
        """The predictive mixture: every network's mean, (network, n) or (network, n, targets), the
        standard deviation of its noise, (network,) or (network, targets), and its weight."""
        check_is_fitted(self, "posteriors_")
        parts = []
        for posterior, weight, said in zip(
            self.posteriors_, self.weights_, self._predictions(X, keep_samples=True), strict=True
        ):
            assert said.samples is not None
            assert posterior.sigma is not None
            sigma = posterior.sigma[posterior.healthy].repeat_interleave(posterior.draws)
            count = len(said.samples)
            parts.append(
                (
                    said.samples,
                    self.scale_ * sigma,
                    torch.full((count,), weight / count, dtype=torch.float64),
                )
            )
        means, noise, weights = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        deviations = noise[:, None]
        if self._flat:
            means, deviations = means[..., 0], deviations[:, 0]
        means = means * self.target_scale_ + self.target_mean_
        return means, deviations * self.target_scale_, weights

    def _noise(self, said: Prediction) -> Array:
        assert said.aleatoric is not None
        found: Array = said.aleatoric.cpu().numpy()
        return found

    def _as_given(self, values: Array) -> Array:
        """(n, targets) in the shape of the y that was fitted."""
        return values[:, 0] if self._flat else values
