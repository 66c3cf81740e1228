"""Natural Langevin: Bayesian posteriors for neural networks at the price of SGD."""

from natural_langevin import (
    data,
    dynamics,
    likelihoods,
    metrics,
    models,
    optim,
    preconditioners,
    priors,
    schedules,
)
from natural_langevin._internal.tensorfile import StorageError
from natural_langevin._internal.version import __version__
from natural_langevin.dynamics.base import Info, State
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.prediction import Prediction
from natural_langevin.run.loop import DivergenceError

__all__ = [
    "DivergenceError",
    "Info",
    "Langevin",
    "Plan",
    "Posterior",
    "Prediction",
    "State",
    "StorageError",
    "__version__",
    "data",
    "dynamics",
    "likelihoods",
    "metrics",
    "models",
    "optim",
    "preconditioners",
    "priors",
    "schedules",
]
