"""Priors: the log-density ln alpha(theta) of a parameter tensor and its exact gradient.

One prior per file; ``resolve`` says which parameter has which. Needs nothing but random numbers;
the dynamics, the kernels and the diagnostics import it.
"""

from natural_langevin.priors.base import Prior
from natural_langevin.priors.flat import Flat
from natural_langevin.priors.gaussian import Gaussian
from natural_langevin.priors.normal_inverse_gamma import NormalInverseGamma
from natural_langevin.priors.resolve import PriorLike, of_chains, resolve

__all__ = [
    "Flat",
    "Gaussian",
    "NormalInverseGamma",
    "Prior",
    "PriorLike",
    "of_chains",
    "resolve",
]
