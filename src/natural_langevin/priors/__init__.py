"""Priors: the log-density ln alpha(theta) of a parameter tensor and its exact gradient.

Imports nothing but tools; preconditioners and up import it.

One prior per file; ``resolve`` says which parameter has which.
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
