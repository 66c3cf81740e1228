"""Natural Langevin: Bayesian posteriors for neural networks at the price of SGD."""

# ruff: noqa: E402
from natural_langevin.pages import keep_pages_before_torch

keep_pages_before_torch()

from natural_langevin import (
    data,
    likelihoods,
    metrics,
    models,
    optim,
    preconditioners,
    priors,
    schedules,
)
from natural_langevin._version import __version__
from natural_langevin.langevin import Info, State
from natural_langevin.posterior import Posterior
from natural_langevin.prediction import Prediction
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
    "optim",
    "preconditioners",
    "priors",
    "schedules",
]
