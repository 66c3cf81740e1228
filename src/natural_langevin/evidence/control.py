"""Control variates for means of ln p: functions of known mean zero (Stein's identity) are regressed
out.

Under pi ~ exp(-U), E[F . grad U] = E[div F] for every smooth F. With F = A (w - c), A diagonal and
c fixed, F . grad U - tr A has mean zero, whatever the posterior is; where it is a Gaussian with
independent weights, and A the part of every weight's precision that comes from the data, it is
twice -ln p but for a constant. Two A are used: the identity, and rho_i = 1 - (posterior variance /
prior variance). Draws that are too hot have F . grad U too large in the same proportion, so that
this bias is removed as well.

c, rho and the coefficients come from one half of the draws, and are applied to the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from natural_langevin._internal.chains import Params
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.priors import of_chains
from natural_langevin.slt.losses import batches
from natural_langevin.statistics import Network

#: Draws at a time.
SOME = 32


def losses_and_gradients(
    sampler: Langevin, posterior: Posterior, data: Any, chain: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of every draw of a chain: -ln p of all data, (draw,); its gradient, and the weights:
    (draw, weight), all float64."""
    network = Network(sampler.model, signature=sampler.signature)
    likelihood = sampler.likelihood

    def total(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return likelihood.log_loss(network.call(params, x), y, {}).sum()

    each = vmap(grad_and_value(total), in_dims=(0, None, None))
    draws = {k: s[chain].to(posterior.last[k]) for k, s in posterior.samples.items()}
    count = posterior.draws
    loss = torch.zeros(count, dtype=torch.float64)
    gradient = torch.zeros(count, sum(v[0].numel() for v in draws.values()), dtype=torch.float64)
    for x, y in batches(sampler, data):
        x, y = x.to(sampler.device), y.to(sampler.device)
        for start in range(0, count, SOME):
            some = {k: v[start : start + SOME] for k, v in draws.items()}
            slope, value = each(some, x, y)
            loss[start : start + SOME] += value.double().cpu()
            gradient[start : start + SOME] += _flat(slope)
    return loss, gradient, _flat(draws)


def pull_of_prior(posterior: Posterior, chain: int) -> tuple[Tensor, Tensor]:
    """d ln alpha / d w of every draw of a chain, (draw, weight), and the prior's precision of every
    weight, (weight,): float64."""
    assert posterior.prior is not None
    own = of_chains(posterior.prior, torch.full((posterior.draws,), chain))
    theta = {k: s[chain].to(posterior.last[k]) for k, s in posterior.samples.items()}
    pulls = {name: own[name].gradient(p) for name, p in theta.items()}
    precisions = []
    for name, p in theta.items():
        precision = torch.as_tensor(own[name].precision, dtype=torch.float64).reshape(-1)[0]
        precisions.append(precision.expand(p[0].numel()))
    return _flat(pulls), torch.cat(precisions)


def reduced(log_p: Tensor, weights: Tensor, slope: Tensor, precision: Tensor) -> Tensor:
    """ln p of every draw, (draw,), with its noise regressed out: the same mean under the target.

    Args:
        weights: (draw, weight).
        slope: grad U at them, (draw, weight), U the negative log target.
        precision: the prior's, (weight,).
    """
    half = len(log_p) // 2
    if half < 8:
        return log_p
    found = torch.empty_like(log_p)
    halves = torch.arange(half), torch.arange(half, len(log_p))
    for here, there in (halves, halves[::-1]):
        centre, variance = weights[there].mean(0), weights[there].var(0)
        rho = (1 - variance * precision).clamp(0, 1)

        def controls(rows: Tensor) -> Tensor:
            terms = (weights[rows] - centre) * slope[rows]  # noqa: B023 - used at once
            return torch.stack([(terms - 1).sum(1), (rho * (terms - 1)).sum(1)], 1)  # noqa: B023

        known, target = controls(there), log_p[there]
        known, target = known - known.mean(0), target - target.mean()
        coefficients = torch.linalg.lstsq(known, target[:, None]).solution[:, 0]
        found[here] = log_p[here] - controls(here) @ coefficients
    return found


def _flat(tree: Params) -> Tensor:
    return torch.cat([v.double().cpu().reshape(len(v), -1) for v in tree.values()], 1)
