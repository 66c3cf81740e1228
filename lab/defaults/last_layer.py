"""The test NLL with the last layer integrated exactly, which few draws can tell.

Where noise and prior are Gaussian and known, the last layer given the others is a Bayesian linear
model of their features, so that the posterior's density of a test target is

    E[p(y | hidden weights)],   p(y | hidden weights) = N(phi m, phi A^-1 phi' + sigma^2),

with A = Phi' Phi / sigma^2 + 1 / v and m = A^-1 Phi' y / sigma^2. The average of N(y; f, sigma^2)
over networks tends to the same number, but where a target lies six deviations outside only with
hundreds of millions of them: until then the nearest network decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lab.defaults.small import Problem
from natural_langevin import likelihoods


def integrable(problem: Problem) -> bool:
    """Whether the last layer is linear under Gaussian noise of a given sigma."""
    noise = problem.likelihood
    known = isinstance(noise, likelihoods.Gaussian) and isinstance(noise.sigma, float)
    return known and problem.x.ndim == 2


def log_density(
    problem: Problem, weights: Mapping[str, Tensor], variances: Mapping[str, float]
) -> Tensor:
    """ln p(y_n | hidden weights) at the test rows, (draw, n), for ``weights`` {name: (draw, ...)}
    under N(0, variance) of every tensor."""
    *hidden, (last, _) = problem.network().named_children()
    sigma = float(problem.likelihood.sigma)  # type: ignore[attr-defined]
    w = {k: v.double() for k, v in weights.items()}
    draws = len(w[f"{last}.bias"])

    def features(x: Tensor) -> Tensor:
        found = x.double().expand(draws, *x.shape)
        for name, layer in hidden:
            if isinstance(layer, nn.Linear):
                found = found @ w[f"{name}.weight"].mT + w[f"{name}.bias"][:, None]
            else:
                found = layer(found)
        return torch.cat([found, torch.ones_like(found[..., :1])], -1)

    seen, asked = features(problem.x), features(problem.x_test)
    prior = torch.full(seen.shape[-1:], 1 / variances[f"{last}.weight"]).double()
    prior[-1] = 1 / variances[f"{last}.bias"]
    root = torch.linalg.cholesky(seen.mT @ seen / sigma**2 + prior.diag())
    mean = torch.cholesky_solve(seen.mT @ problem.y.double() / sigma**2, root)
    wide = torch.linalg.solve_triangular(root, asked.mT, upper=False).square().sum(1)
    law = torch.distributions.Normal((asked @ mean)[..., 0], (wide + sigma**2).sqrt())
    return law.log_prob(problem.y_test[:, 0].double())


def nll(chains: Sequence[Tensor]) -> tuple[float, float]:
    """Of ln p, (draw, n) for every chain: minus the mean log of the averaged densities, and its
    jackknife error over chains, NaN of one."""

    def pooled(some: Sequence[Tensor]) -> float:
        every = torch.cat(list(some))
        return float((math.log(len(every)) - torch.logsumexp(every, 0)).mean())

    if len(chains) < 2:
        return pooled(chains), math.nan
    left = torch.tensor([pooled([*chains[:k], *chains[k + 1 :]]) for k in range(len(chains))])
    return pooled(chains), math.sqrt((len(chains) - 1) * float(left.var(correction=0)))


def of_chains(
    problem: Problem, weights: Mapping[str, Tensor], variances: Mapping[str, float]
) -> tuple[float, float]:
    """``nll`` of ``weights`` {name: (chain, draw, ...)}."""
    chains = range(len(next(iter(weights.values()))))
    each = ({k: v[c] for k, v in weights.items()} for c in chains)
    return nll([log_density(problem, one, variances) for one in each])
