"""Horseshoe: most weights close to zero, a few not shrunk (Carvalho, Polson & Scott 2010).

    w = z lambda tau,    z ~ N(0, 1),    lambda ~ HalfCauchy(1) of every weight,
                                         tau ~ HalfCauchy(scale) of every tensor.

Integrated over lambda, a weight has the density e^x E_1(x) / (tau sqrt(2 pi^3)), x = w^2 / 2 tau^2,
whose logarithm has a pole at zero: its curvature is infinite, no ``precision`` describes it, and no
step is small enough for it. So the scales remain separate variables. The network has the parameters
z, ln lambda and ln tau in place of w, the sampler moves all three, and each has an ordinary prior,
normalised and differentiated exactly: ``Gaussian(1.0)`` and ``HalfCauchy``, whose Jacobian is that
of the logarithm (see ``constrained``). Their precisions are 1 and 1/2.

``slab`` bounds the weights that are not shrunk (the regularised horseshoe, Piironen & Vehtari
2017): with c for the slab, lambda tau becomes lambda tau / sqrt(1 + (lambda tau / c)^2), and a
large weight has the prior N(0, c^2).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from natural_langevin.priors.base import Prior, check_number_or_vector
from natural_langevin.priors.constrained import HalfCauchy
from natural_langevin.priors.gaussian import Gaussian

Per = Literal["weight", "input", "unit"]
#: The shape of ln lambda for a tensor (unit, input, ...).
_LOCAL: dict[Per, Callable[[Tensor], Tensor]] = {
    "weight": torch.zeros_like,
    "input": lambda w: torch.zeros_like(w[:1]),
    "unit": lambda w: w.new_zeros(len(w), *(1,) * (w.ndim - 1)),
}


class Horseshoe(NamedTuple):
    """A network whose weights have their own scales, and the priors of its new parameters."""

    model: nn.Module
    prior: dict[str, Prior]


class HorseshoeWeight(nn.Module):
    """w as a function of z, ln lambda and ln tau; it starts at w, lambda = 1 and tau = scale."""

    def __init__(self, scale: float, slab: float | None, per: Per) -> None:
        super().__init__()
        self.scale, self.slab, self.per = scale, slab, per

    def deviation(self, log_local: Tensor, log_global: Tensor) -> Tensor:
        """lambda tau, bounded by the slab."""
        total = log_local + log_global
        if self.slab is not None:
            total = total - nn.functional.softplus(2 * (total - math.log(self.slab))) / 2
        return total.exp()

    def forward(self, z: Tensor, log_local: Tensor, log_global: Tensor) -> Tensor:
        """z lambda tau."""
        return z * self.deviation(log_local, log_global)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z, ln lambda, ln tau."""
        log_local = _LOCAL[self.per](weight)
        log_global = weight.new_full((), math.log(self.scale))
        return weight / self.deviation(log_local, log_global), log_local, log_global


def horseshoe(
    model: nn.Module,
    pattern: str = "*weight",
    *,
    scale: float = 0.1,
    slab: float | None = None,
    per: Per = "weight",
) -> Horseshoe:
    """A copy of ``model`` with horseshoe weights, and the priors of the parameters it has for them.

    ``pattern``: which parameters of two axes or more (fnmatch). ``scale``: of tau. ``per``: whether
    every weight has its own lambda, or the weights of an input or of a unit share one, so that
    inputs or units are pruned as a whole. Give both to the sampler, with a prior for the rest:

    >>> from natural_langevin import Langevin, likelihoods, priors
    >>> sparse = priors.horseshoe(nn.Sequential(nn.Linear(3, 2)), scale=0.5)
    >>> list(sparse.prior.values())
    [Gaussian(variance=1.0, mean=0.0), HalfCauchy(scale=1.0), HalfCauchy(scale=0.5)]
    >>> sampler = Langevin(sparse.model, likelihoods.Categorical(),
    ...                    prior=sparse.prior | {"*": priors.Gaussian(1.0)})

    ``posterior.network(chain, draw)[0].weight`` is w. Load such a posterior with ``sparse.model``.
    Statistics of these parameters come from the network run sample by sample, which costs more.
    """
    check_number_or_vector("scale", float(scale), positive=True)
    if slab is not None:
        check_number_or_vector("slab", float(slab), positive=True)
    if per not in _LOCAL:
        raise ValueError(f"per must be one of {', '.join(map(repr, _LOCAL))}, got {per!r}")
    names = [k for k, p in model.named_parameters() if p.ndim > 1 and fnmatchcase(k, pattern)]
    if not names:
        known = [k for k, p in model.named_parameters() if p.ndim > 1]
        raise ValueError(f"pattern {pattern!r} matches no parameter of two axes or more: {known}")
    model, prior = copy.deepcopy(model), dict[str, Prior]()
    for name in names:
        layer, _, own = name.rpartition(".")
        parametrize.register_parametrization(
            model.get_submodule(layer), own, HorseshoeWeight(float(scale), slab, per)
        )
        laws = (Gaussian(1.0), HalfCauchy(1.0), HalfCauchy(float(scale)))
        for i, law in enumerate(laws):
            prior[f"{layer}.parametrizations.{own}.original{i}".lstrip(".")] = law
    return Horseshoe(model, prior)
