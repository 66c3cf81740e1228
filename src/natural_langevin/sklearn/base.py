"""What both estimators share: settings, standardised inputs, one call of ``Langevin``.

Inputs are standardised with the training data's means and deviations. The metric's damping is
1 / (N variance): the prior's own curvature on the scale of the mean loss, so that C is the inverse
of (Fisher + prior) and step sizes up to 1 are stable in directions that the data do not see. By
default every layer's prior variance is unknown and integrated out (``NormalInverseGamma``).
"""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from natural_langevin import models, pilot, preconditioners, priors
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior import Posterior
from natural_langevin.prediction import Prediction
from natural_langevin.sampler import Langevin

Array = NDArray[Any]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}
#: The paper's abbreviations: (Q)DOP, (quasi-)diagonal outer product.
PRECONDITIONERS: dict[str, Callable[[float], preconditioners.Preconditioner]] = {
    "qdop": lambda damping: preconditioners.QuasiDiagonalFisher(damping=damping),
    "dop": lambda damping: preconditioners.DiagonalFisher(damping=damping),
    "rmsprop": lambda damping: preconditioners.RMSProp(),
    "sgld": lambda damping: preconditioners.Euclidean(),
}
#: Networks kept of every chain.
DRAWS = 25
#: Of weights whose prior variance is integrated out; only the damping depends on it.
SUPPOSED_VARIANCE = 0.5
#: Where there are too few data to hold some out for the choice of a step size.
STEP_SIZE_OF_FEW = 0.03


class NaturalLangevinEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of both; not for use by itself.

    ``hidden_layer_sizes``: units of every hidden layer; ``activation``: "relu", "tanh" or "silu".
    ``prior_variance``: a number, or "learned" (a layer's own, integrated out).
    ``preconditioner``: "qdop", "dop", "rmsprop" or "sgld".
    ``step_size``: "auto", or a number or schedule (see ``Langevin``).
    ``steps``, ``chains``, ``batch_size``, ``temperature``: of the run; the first half is burn-in.
    Below temperature 1 give ``prior_variance`` a number: a learned one lets cold weights vanish.
    ``random_state``: a number for the same result every time. ``verbose``: shows progress.

    Fitted: ``posterior_`` (on standardised inputs), ``n_iter_``, ``n_features_in_``,
    ``feature_names_in_``, ``input_mean_``, ``input_scale_``.
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (50,),
        *,
        activation: str = "relu",
        prior_variance: float | str = "learned",
        preconditioner: str = "qdop",
        step_size: float | str = "auto",
        steps: int = 500,
        chains: int = 8,
        batch_size: int = 256,
        temperature: float = 1.0,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.prior_variance = prior_variance
        self.preconditioner = preconditioner
        self.step_size = step_size
        self.steps = steps
        self.chains = chains
        self.batch_size = batch_size
        self.temperature = temperature
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _sample(self, X: Array, y: Tensor, outputs: int, likelihood: Likelihood) -> None:
        """Draws the posterior of a network X -> outputs; X is dense and has been validated."""
        self._standardise(X)
        x = self._inputs(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        network = models.mlp(
            x.shape[1], outputs, self._hidden(), activation=self._named("activation", ACTIVATIONS)
        )
        steps, batch_size = self._count("steps"), min(self._count("batch_size"), len(x))

        step_size: Any = self.step_size
        if isinstance(step_size, str) and step_size == "auto" and len(x) < pilot.FEWEST_DATA:
            step_size = STEP_SIZE_OF_FEW
        prior, variance = self._prior()
        damping = 1 / (len(x) * variance)
        sampler = Langevin(
            network.double(),  # overhead, not arithmetic, is what small networks cost
            likelihood,
            prior=prior,
            preconditioner=self._named("preconditioner", PRECONDITIONERS)(damping),
            step_size=step_size,
            temperature=self.temperature,
            chains=self.chains,
            init="fan_in",
            seed=seed,
            device=self.device,
        )
        burn_in = steps // 2
        self.posterior_: Posterior = sampler.sample(
            (x, y),
            steps,
            batch_size=batch_size,
            burn_in=burn_in,
            thin=max(1, (steps - burn_in) // DRAWS),
            progress=self.verbose,
        )
        self.n_iter_ = steps

    def _prior(self) -> tuple[priors.Prior, float]:
        """The prior, and the variance that the damping supposes."""
        if isinstance(self.prior_variance, str) and self.prior_variance == "learned":
            return priors.NormalInverseGamma(), SUPPOSED_VARIANCE
        variance = self._positive("prior_variance", 'or "learned"')
        return priors.Gaussian(variance=variance), variance

    def _standardise(self, X: Array) -> None:
        self.input_mean_ = X.mean(axis=0)
        deviation = X.std(axis=0)
        # A constant column says nothing; rounding leaves it a deviation of about eps |mean|.
        noise = 10 * np.finfo(X.dtype).eps * np.abs(self.input_mean_)
        self.input_scale_ = np.where(deviation > noise, deviation, 1.0)

    def _inputs(self, X: Array) -> Tensor:
        return torch.as_tensor((X - self.input_mean_) / self.input_scale_)

    def _predictions(self, X: Any, **options: Any) -> Prediction:
        """What the posterior says of new inputs."""
        check_is_fitted(self, "posterior_")
        X = self._validated(X, reset=False)
        options = {"keep_samples": False} | options
        return self.posterior_.predict(self._inputs(X), **options)

    def _validated(self, X: Any, y: Any = "no_validation", **options: Any) -> Any:
        """Dense float64 rows (and targets). Standardised columns are dense, sparse or not."""
        found = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, **options)
        X, *rest = found if isinstance(found, tuple) else (found,)
        X = X.toarray() if hasattr(X, "toarray") else X
        return (X, *rest) if rest else X

    def _hidden(self) -> tuple[int, ...]:
        sizes: Any = self.hidden_layer_sizes
        if isinstance(sizes, numbers.Integral):
            sizes = (int(sizes),)
        if not all(isinstance(n, numbers.Integral) and int(n) > 0 for n in sizes):
            raise ValueError(
                f"hidden_layer_sizes must be positive integers such as (50,), got {sizes!r}"
            )
        return tuple(int(n) for n in sizes)

    def _named(self, setting: str, table: dict[str, Any]) -> Any:
        value = getattr(self, setting)
        if value not in table:
            raise ValueError(f"{setting} must be one of {sorted(table)}, got {value!r}")
        return table[value]

    def _positive(self, setting: str, remedy: str) -> float:
        value: Any = getattr(self, setting)
        if (
            isinstance(value, bool)
            or not isinstance(value, numbers.Real)
            or not 0 < float(value) < np.inf
        ):
            raise ValueError(f"{setting} must be a positive number {remedy}, got {value!r}")
        return float(value)

    def _count(self, setting: str) -> int:
        value = getattr(self, setting)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise ValueError(f"{setting} must be a positive integer, got {value!r}")
        return int(value)
