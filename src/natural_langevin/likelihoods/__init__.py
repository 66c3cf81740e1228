"""Likelihoods: a network's outputs become a distribution p_theta(y | x).

Imports priors; statistics and up import it.

One per file, each under the same contract test. ``predictive`` and ``mixtures`` are what an
ensemble of such distributions predicts.
"""

from natural_langevin.likelihoods.base import Likelihood, State
from natural_langevin.likelihoods.bernoulli import Bernoulli
from natural_langevin.likelihoods.categorical import Categorical
from natural_langevin.likelihoods.gaussian import Gaussian
from natural_langevin.likelihoods.heteroscedastic import HeteroscedasticGaussian
from natural_langevin.likelihoods.hurdle import Hurdle
from natural_langevin.likelihoods.log_loss import LogLoss
from natural_langevin.likelihoods.negative_binomial import NegativeBinomial
from natural_langevin.likelihoods.ordinal import Ordinal
from natural_langevin.likelihoods.own_parameter import (
    OwnParameter,
    attach,
    detach,
    weight_name,
    with_own,
)
from natural_langevin.likelihoods.poisson import Poisson
from natural_langevin.likelihoods.scaled import Scaled
from natural_langevin.likelihoods.student_t import StudentT

#: Those that are known by name and numbers alone, so that a file can hold them.
REGISTRY: dict[str, type[Likelihood]] = {
    kind.__name__: kind
    for kind in (
        Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Hurdle, NegativeBinomial,
        Ordinal, Poisson, StudentT,
    )
}  # fmt: skip

__all__ = [
    "REGISTRY",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Hurdle",
    "Likelihood",
    "LogLoss",
    "NegativeBinomial",
    "Ordinal",
    "OwnParameter",
    "Poisson",
    "Scaled",
    "State",
    "StudentT",
    "attach",
    "detach",
    "weight_name",
    "with_own",
]
