"""Priors: the log-density ln alpha(theta) of a parameter tensor and its exact gradient.

One prior per file; ``constrained`` is for parameters of a probabilistic model that are positive,
bounded or ordered; ``resolve`` says which parameter has which prior.

Imports nothing but tools; likelihoods and up import it.
"""

from natural_langevin.priors.around import around, mean_squares
from natural_langevin.priors.base import Prior
from natural_langevin.priors.constrained import (
    Beta,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Ordered,
    Positive,
    PositivePrior,
)
from natural_langevin.priors.correlated import Correlated, blur_pixels, smooth_pixels
from natural_langevin.priors.fan_in import FanIn
from natural_langevin.priors.flat import Flat
from natural_langevin.priors.gaussian import Gaussian
from natural_langevin.priors.horseshoe import Horseshoe, horseshoe
from natural_langevin.priors.laplace import Laplace
from natural_langevin.priors.normal_inverse_gamma import NormalInverseGamma
from natural_langevin.priors.resolve import PriorLike, chainwise, of_chains, resolve
from natural_langevin.priors.scale_mixture import ScaleMixture
from natural_langevin.priors.student_t import StudentT

__all__ = [
    "Beta",
    "Correlated",
    "FanIn",
    "Flat",
    "Gamma",
    "Gaussian",
    "HalfCauchy",
    "HalfNormal",
    "Horseshoe",
    "InverseGamma",
    "Laplace",
    "LogNormal",
    "NormalInverseGamma",
    "Ordered",
    "Positive",
    "PositivePrior",
    "Prior",
    "PriorLike",
    "ScaleMixture",
    "StudentT",
    "around",
    "blur_pixels",
    "chainwise",
    "horseshoe",
    "mean_squares",
    "of_chains",
    "resolve",
    "smooth_pixels",
]
