"""Simulation-based calibration: whether posterior intervals hold the truth as often as they should.

Draw theta* from the prior, data y from the likelihood at theta*, and L posterior draws given y.
Then theta* is one more draw of the same posterior, so the rank of any of its quantities among the
L is uniform on 0 .. L (Cook, Gelman & Rubin 2006; Talts et al. 2018). Ranks that pile up at both
ends: the posterior is too narrow; in the middle: too wide; at one end: biased. It checks prior,
likelihood, N, noise, step size and metric together, without knowing any posterior.

Every simulation is a chain with data of its own, so that all of them are one run. Chains start at
their theta*; ``burn_in`` must be long enough to forget it, and ``thin`` for draws to be nearly
independent, or ranks pile up at both ends by that alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from natural_langevin import random
from natural_langevin.data.streams import Subsets
from natural_langevin.langevin import Langevin
from natural_langevin.likelihoods import Likelihood

#: A sampler that is right fails with this probability, over all quantities together.
ERROR_RATE = 0.01
#: Inputs at which the network's outputs are ranked.
PROBES = 5


@dataclass(frozen=True)
class Calibration:
    """``ranks[name]`` (simulation,): how many of ``draws`` posterior draws are below theta*'s."""

    ranks: dict[str, Tensor]
    draws: int

    def p_values(self) -> dict[str, float]:
        """Of a chi-squared test of uniform ranks, by quantity; bins hold 8 simulations at least."""
        from scipy import stats

        found = {}
        for name, ranks in self.ranks.items():
            bins = max(2, min(self.draws + 1, len(ranks) // 8))
            every = torch.arange(self.draws + 1)
            width, counts = (
                torch.bincount(r * bins // (self.draws + 1), minlength=bins) for r in (every, ranks)
            )
            expected = width.double() / (self.draws + 1) * len(ranks)
            found[name] = float(stats.chisquare(counts.numpy(), expected.numpy()).pvalue)
        return found

    def spread(self, name: str) -> float:
        """12 E[(rank share - 1/2)^2]: 1 is uniform, above it the posterior is too narrow."""
        share = (self.ranks[name] + 0.5) / (self.draws + 1)
        return float(12 * (share - 0.5).square().mean())

    @property
    def passed(self) -> bool:
        """Whether no quantity's ranks are surprising."""
        values = self.p_values().values()
        return min(values) > ERROR_RATE / len(values)

    def __str__(self) -> str:
        count = len(next(iter(self.ranks.values())))
        lines = [
            f"{count} simulations, {self.draws} draws each; ranks are uniform where p is large"
        ]
        lines += [
            f"{name:<24} p {p:.3f}  spread {self.spread(name):.2f}"
            for name, p in self.p_values().items()
        ]
        verdict = "nothing suspicious" if self.passed else (
            "ranks are not uniform: spreads above 1 are posteriors too narrow (or draws too "
            "correlated), below 1 too wide"
        )  # fmt: skip
        return "\n".join([*lines, verdict])


def calibrate(
    model: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    *,
    simulations: int = 200,
    draws: int = 15,
    burn_in: int = 500,
    thin: int = 100,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> Calibration:
    """Ranks of the outputs at some rows of ``x`` and of every tensor's mean square.

    ``options`` are ``Langevin``'s: prior, preconditioner, step_size, dynamics, ..."""
    if likelihood.learns:
        raise ValueError(f"{likelihood!r} learns its noise from data: give a number instead")
    sampler = Langevin(
        model, likelihood, chains=simulations, init="prior", num_data=len(x), seed=seed, **options
    )
    truth, x = sampler.init().params, x.to(sampler.device)
    outputs = vmap(lambda p: functional_call(sampler.model, p, (x,)))(truth)
    # Labels of another seed: the sampler may draw labels of its own from the model.
    keys = random.stream(random.origin(seed + 1, random.LABELS, sampler.chain_ids), 0)
    y = torch.cat([likelihood.sample(o, key, {}) for o, key in zip(outputs, keys, strict=True)])
    own = torch.arange(simulations * len(x), device=x.device).reshape(simulations, len(x))
    data = Subsets(x.repeat(simulations, *(1,) * (x.ndim - 1)), y, own)
    posterior = sampler.sample(
        data, burn_in + thin * draws, batch_size=batch_size or len(x), burn_in=burn_in, thin=thin,
        partial=False, progress=progress,
    )  # fmt: skip
    rows = torch.linspace(0, len(x) - 1, PROBES).long().to(x.device)

    def quantities(params: dict[str, Tensor]) -> dict[str, Tensor]:
        said = vmap(lambda p: functional_call(sampler.model, p, (x[rows],)))(params)
        found = {f"output at row {row}": said[:, k].flatten(1)[:, 0] for k, row in enumerate(rows)}
        return found | {f"mean square of {n}": p.square().flatten(1).mean(1)
                        for n, p in params.items()}  # fmt: skip

    expected = quantities(truth)
    below = {name: torch.zeros(simulations, dtype=torch.long) for name in expected}
    for k in range(draws):
        for name, value in quantities({n: s[:, k] for n, s in posterior.samples.items()}).items():
            below[name] += (value < expected[name]).long().cpu()
    alive = torch.tensor(posterior.healthy)
    return Calibration({name: count[alive] for name, count in below.items()}, draws)
