"""Natural Langevin: Bayesian posteriors for neural networks at the price of SGD."""

from natural_langevin import (
    data,
    likelihoods,
    metrics,
    models,
    preconditioners,
    priors,
    schedules,
)
from natural_langevin._version import __version__
from natural_langevin.langevin import Info, State
from natural_langevin.posterior import Posterior, Prediction
from natural_langevin.run import DivergenceError
from natural_langevin.sampler import Langevin
from natural_langevin.tensorfile import StorageError

__all__ = [
    "DivergenceError",
    "Info",
    "Langevin",
    "Posterior",
    "Prediction",
    "State",
    "StorageError",
    "__version__",
    "data",
    "likelihoods",
    "metrics",
    "models",
    "preconditioners",
    "priors",
    "schedules",
]
