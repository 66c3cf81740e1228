"""What both estimators share: settings, standardised inputs, candidates weighed by held-out data.

A fit is two rounds of ``Langevin``. In the first, every candidate (prior, temperature, step size)
runs on the folds of a cross-validation, which are chains of one run; what is held out gives the
candidates their weights. In the second, those that count run on all the data.
"""

# ruff: noqa: N803 (scikit-learn calls its inputs X)
from __future__ import annotations

import logging
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from natural_langevin import models, preconditioners
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.prediction import Prediction
from natural_langevin.sampling import step_size_search
from natural_langevin.sampling.loop import DivergenceError
from natural_langevin.sklearn.candidates import Candidate, candidates
from natural_langevin.sklearn.problem import HeldOut, Problem, split
from natural_langevin.sklearn.weighing import Weighed

log = logging.getLogger("natural_langevin")

Array = NDArray[Any]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}
#: The paper's abbreviations: (Q)DOP, (quasi-)diagonal outer product.
PRECONDITIONERS: dict[str, Callable[[float], preconditioners.Preconditioner]] = {
    "qdop": lambda damping: preconditioners.QuasiDiagonalFisher(damping=damping),
    "dop": lambda damping: preconditioners.DiagonalFisher(damping=damping),
    "rmsprop": lambda damping: preconditioners.RMSProp(),
    "sgld": lambda damping: preconditioners.Euclidean(),
}
#: Where there are too few data to hold some out for the choice of a step size.
STEP_SIZE_OF_FEW = 0.03
#: Rows that a fold must have at least; with fewer there is no cross-validation.
FEWEST_PER_FOLD = 3


class NaturalLangevinEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of both; not for use by itself.

    ``hidden_layer_sizes``: units of every hidden layer; ``activation``: "relu", "tanh" or "silu".
    ``prior_variance``: "auto", a number, "learned" (a layer's own, integrated out) or "fan_in" (3
    divided by a layer's inputs).
    ``temperature``: "auto" or a number. Below 1 with a learned variance, weights may vanish.
    ``step_size``: "auto", or a number or schedule (see ``Langevin``).
    ``folds``: of the cross-validation that weighs what "auto" leaves open and corrects how sure
    the predictions are. 0: none; then "auto" is a learned variance at temperature 1, with a step
    size from a short pilot run.
    ``preconditioner``: "qdop", "dop", "rmsprop" or "sgld".
    ``steps``, ``chains``, ``batch_size``: of a run; the first half is burn-in.
    ``random_state``: a number for the same result every time. ``verbose``: shows progress.

    Fitted: ``choice_`` (the candidates, with held-out NLL and weight), ``reason_`` (in words),
    ``scale_`` (below 1: surer than the networks by themselves), ``posteriors_`` and ``weights_``
    (of the candidates that count, on standardised inputs), ``posterior_`` (of the largest
    weight), ``n_iter_``, ``n_features_in_``, ``feature_names_in_``, ``input_mean_``,
    ``input_scale_``.
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (50,),
        *,
        activation: str = "relu",
        prior_variance: float | str = "auto",
        temperature: float | str = "auto",
        step_size: float | str = "auto",
        folds: int = 4,
        preconditioner: str = "qdop",
        steps: int = 400,
        chains: int = 8,
        batch_size: int = 256,
        random_state: int | np.random.RandomState | None = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.prior_variance = prior_variance
        self.temperature = temperature
        self.step_size = step_size
        self.folds = folds
        self.preconditioner = preconditioner
        self.steps = steps
        self.chains = chains
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _weigh(self, held_out: HeldOut, y: Tensor, count: int) -> Weighed:
        """How much each of ``count`` candidates counts."""
        raise NotImplementedError

    def _sample(self, X: Array, y: Tensor, outputs: int, likelihood: Likelihood) -> None:
        """Draws the posteriors of a network X -> outputs; X is dense and has been validated."""
        self._standardise(X)
        x = self._inputs(X)
        network = models.mlp(
            x.shape[1], outputs, self._hidden(), activation=self._named("activation", ACTIVATIONS)
        )
        problem = Problem(
            network.double(),  # overhead, not arithmetic, is what small networks cost
            likelihood,
            x,
            y,
            preconditioner=self._named("preconditioner", PRECONDITIONERS),
            batch_size=self._count("batch_size"),
            steps=self._count("steps"),
            chains=self._count("chains"),
            seed=int(check_random_state(self.random_state).randint(2**31 - 2)),
            device=self.device,
            progress=self.verbose,
        )
        folds = self._folds(len(x))
        offered = self._candidates(folds, len(x))
        weighed = Weighed([None] * len(offered), [1.0] * len(offered), 1.0)
        if folds:
            rows = split(len(x), folds, problem.seed, y.numpy() if likelihood.discrete else None)
            weighed = self._weigh(problem.held_out(offered, rows), y, len(offered))
        self.scale_, self.n_iter_ = weighed.scale, problem.steps
        weighed = self._run(problem, offered, weighed)
        self._explain(offered, weighed, folds)

    def _run(self, problem: Problem, offered: list[Candidate], weighed: Weighed) -> Weighed:
        """All the data, for every candidate that counts; one that diverges counts no more."""
        runs: dict[int, Posterior] = {}
        for k, weight in enumerate(weighed.weight):
            if not weight:
                continue
            try:
                runs[k] = problem.posterior(offered[k])
            except DivergenceError:
                if not any(weighed.weight[k + 1 :]) and not runs:
                    raise
                log.warning("%s diverged on all the data, and is left out", offered[k])
        self.posteriors_: list[Posterior] = list(runs.values())
        self.weights_ = np.array([weighed.weight[k] for k in runs])
        self.weights_ /= self.weights_.sum()
        shares = dict(zip(runs, self.weights_.tolist(), strict=True))
        return Weighed(
            weighed.nll, [shares.get(k, 0.0) for k in range(len(offered))], weighed.scale
        )

    @property
    def posterior_(self) -> Posterior:
        """The posterior of the largest weight."""
        check_is_fitted(self, "posteriors_")
        return self.posteriors_[int(self.weights_.argmax())]

    def _explain(self, offered: list[Candidate], weighed: Weighed, folds: int) -> None:
        self.choice_ = [
            candidate.as_dict() | {"nll": nll, "weight": weight}
            for candidate, nll, weight in zip(offered, weighed.nll, weighed.weight, strict=True)
        ]
        if not folds:
            self.reason_ = f"{offered[0]} (no cross-validation)"
        else:
            order = np.argsort(weighed.weight)[::-1]
            parts = [
                f"{weighed.weight[k]:.0%} {offered[k]} (held-out NLL {weighed.nll[k]:.4g})"
                for k in order
                if weighed.weight[k]
            ]
            surer = "surer" if weighed.scale < 1 else "no surer"
            self.reason_ = (
                f"{'; '.join(parts)}; stacked by the density of held-out rows, {folds} folds, "
                f"{len(offered)} candidates; made {surer} by a scale of {weighed.scale:.3g}"
            )
        log.info("%s: %s", type(self).__name__, self.reason_)

    def _folds(self, rows: int) -> int:
        """How many folds there will be: fewer, or none, where there are too few data."""
        folds: Any = self.folds
        whole = isinstance(folds, numbers.Integral) and not isinstance(folds, bool)
        if not whole or folds < 0 or folds == 1:
            raise ValueError(f"folds must be 0 or an integer of at least 2, got {folds!r}")
        fewer = min(int(folds), rows // FEWEST_PER_FOLD)
        return fewer if fewer > 1 else 0

    def _candidates(self, folds: int, rows: int) -> list[Candidate]:
        variance = self._setting("prior_variance", "auto", "learned", "fan_in")
        temperature = self._setting("temperature", "auto")
        if isinstance(self.step_size, str) and self.step_size != "auto":
            raise ValueError(
                f'step_size must be "auto", a number or a schedule, got {self.step_size!r}'
            )
        if folds:
            return candidates(
                variance, temperature, self.step_size, preconditioner=self.preconditioner
            )
        step_size: Any = self.step_size
        if (
            isinstance(step_size, str)
            and step_size == "auto"
            and rows < step_size_search.FEWEST_DATA
        ):
            step_size = STEP_SIZE_OF_FEW
        return [
            Candidate(
                "learned" if variance == "auto" else variance,
                1.0 if isinstance(temperature, str) else temperature,
                step_size,
                automatic=False,
            )
        ]

    def _standardise(self, X: Array) -> None:
        self.input_mean_ = X.mean(axis=0)
        deviation = X.std(axis=0)
        # A constant column says nothing; rounding leaves it a deviation of about eps |mean|.
        noise = 10 * np.finfo(X.dtype).eps * np.abs(self.input_mean_)
        self.input_scale_ = np.where(deviation > noise, deviation, 1.0)

    def _inputs(self, X: Array) -> Tensor:
        return torch.as_tensor((X - self.input_mean_) / self.input_scale_)

    def _predictions(self, X: Any, **options: Any) -> list[Prediction]:
        """What the posteriors say of new inputs, each by itself."""
        check_is_fitted(self, "posteriors_")
        X = self._validated(X, reset=False)
        options = {"keep_samples": False} | options
        x = self._inputs(X)
        return [posterior.predict(x, **options) for posterior in self.posteriors_]

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
        given: list[Any] = list(sizes) if isinstance(sizes, Iterable) else [sizes]
        # True is an integer to Python, and not a number of units.
        if any(type(n) is bool or not isinstance(n, numbers.Integral) or n < 1 for n in given):
            raise ValueError(
                f"hidden_layer_sizes must be positive integers such as (50,), got {sizes!r}"
            )
        return tuple(int(n) for n in sizes)

    def _named(self, setting: str, table: dict[str, Any]) -> Any:
        value = getattr(self, setting)
        if value not in table:
            raise ValueError(f"{setting} must be one of {sorted(table)}, got {value!r}")
        return table[value]

    def _setting(self, setting: str, *words: str) -> float | str:
        """A positive number, or one of these words."""
        value: Any = getattr(self, setting)
        if isinstance(value, str) and value in words:
            return value
        if (
            isinstance(value, (bool, str))
            or not isinstance(value, numbers.Real)
            or not 0 < float(value) < np.inf
        ):
            remedy = " or ".join(f'"{word}"' for word in words)
            raise ValueError(f"{setting} must be a positive number or {remedy}, got {value!r}")
        return float(value)

    def _count(self, setting: str) -> int:
        value = getattr(self, setting)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise ValueError(f"{setting} must be a positive integer, got {value!r}")
        return int(value)
