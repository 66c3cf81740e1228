"""Natural Langevin: Bayesian posteriors for neural networks at the price of SGD."""

# ruff: noqa: E402
import gc
import sys

from natural_langevin._internal.allocator import keep_pages_before_torch

keep_pages_before_torch()
# Importing makes no garbage, and looking for some among all that torch has made takes as long as a
# third of what is imported here.
_collects = gc.isenabled()
gc.disable()

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
    statistics,
)
from natural_langevin._internal.tensorfile import StorageError
from natural_langevin._internal.version import __version__
from natural_langevin.dynamics.base import Info, State
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.prediction import Prediction
from natural_langevin.sampling.loop import DivergenceError

if _collects:
    gc.enable()
    if not gc.get_freeze_count():
        # All this, and torch, goes to the oldest generation at once: on the way there it would be
        # looked through once more, a tenth of a second of the first run.
        gc.freeze()
        gc.unfreeze()

# Layer rules were registered under this path; code that does so keeps working.
sys.modules["natural_langevin.gradients"] = statistics

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
    "dynamics",
    "likelihoods",
    "metrics",
    "models",
    "optim",
    "preconditioners",
    "priors",
    "schedules",
]
