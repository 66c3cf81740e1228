"""One table, one network: runs ``Langevin`` on it, for all data or for folds on the chain axis.

The metric's damping is 1 / (N variance): the prior's own curvature on the scale of the mean loss,
so that C is the inverse of (Fisher + prior) and step sizes up to 1 are stable in directions that
the data do not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from natural_langevin import preconditioners, schedules
from natural_langevin.data.streams import Subsets
from natural_langevin.langevin import Langevin
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.sampling.loop import DivergenceError
from natural_langevin.sklearn.candidates import Candidate

#: Networks kept of every chain, at most.
DRAWS = 25
#: Of the cross-validation: chains of every fold and candidate, and how many rows of a fold are held
#: out at most. It takes as many steps as the fit itself: how sure networks are depends on it.
CHAINS_OF_FOLD, MOST_HELD_OUT = 2, 500


@dataclass(frozen=True)
class Problem:
    """Everything of a fit that does not depend on the candidate."""

    network: nn.Module
    likelihood: Likelihood
    x: Tensor
    y: Tensor
    preconditioner: Callable[[float], preconditioners.Preconditioner]
    batch_size: int
    steps: int
    chains: int
    seed: int
    device: str | None
    progress: bool

    def posterior(self, candidate: Candidate) -> Posterior:
        """All data, ``chains`` chains."""
        runs = [candidate] * self.chains
        return self._run(runs, (self.x, self.y), len(self.x), self.seed)

    def held_out(self, offered: Sequence[Candidate], folds: Sequence[Tensor]) -> HeldOut:
        """What networks that have not seen a fold's rows say of them, for every candidate.

        The folds are chains: one run for every prior, whatever else its candidates differ by."""
        found: dict[int, list[Networks]] = {}
        for variance in dict.fromkeys(c.variance for c in offered):
            group = [k for k, c in enumerate(offered) if c.variance == variance]
            found |= self._of_group(offered, group, folds)
        if not found:
            raise DivergenceError(
                "no candidate ran to its end in cross-validation: give a smaller step_size"
            )
        rows = torch.cat(list(folds))
        return HeldOut(rows, {k: found[k] for k in sorted(found)})

    def _of_group(
        self, offered: Sequence[Candidate], group: list[int], folds: Sequence[Tensor]
    ) -> dict[int, list[Networks]]:
        everything = torch.arange(len(self.x))
        seen = [everything[~torch.isin(everything, fold)] for fold in folds]
        chains = [(k, f) for k in group for f in range(len(folds)) for _ in range(CHAINS_OF_FOLD)]
        data = Subsets(self.x, self.y, torch.stack([seen[f] for _, f in chains]))
        try:
            run = self._run([offered[k] for k, _ in chains], data, len(seen[0]), self.seed + 1)
        except DivergenceError:
            return {}
        running = [chains[c] for c in run.healthy]
        every = len(folds) * CHAINS_OF_FOLD
        fine = [k for k in group if sum(chain[0] == k for chain in running) == every]
        found: dict[int, list[Networks]] = {k: [] for k in fine}
        for f, fold in enumerate(folds):
            outputs = run.predict(self.x[fold], chains="all").samples
            assert outputs is not None
            by_chain = outputs.unflatten(0, (len(running), -1)).cpu()
            noise = None if run.sigma is None else run.sigma[run.healthy].cpu()
            for k in fine:
                own = torch.tensor([chain == (k, f) for chain in running])
                found[k].append(_networks(by_chain[own], None if noise is None else noise[own]))
        return found

    def _run(self, runs: Sequence[Candidate], data: Any, num_data: int, seed: int) -> Posterior:
        """One chain for every entry of ``runs``, which have one prior."""
        first = runs[0]
        step_size: Any = first.step_size
        if first.automatic:
            sizes = torch.tensor([c.step_size for c in runs], dtype=torch.float64)
            step_size = schedules.polynomial(sizes, offset=max(1, self.steps // 10))
        damping = 1 / (num_data * first.least_variance(self.network))
        sampler = Langevin(
            self.network,
            self.likelihood,
            prior=first.prior(self.network),
            preconditioner=self.preconditioner(damping),
            step_size=step_size,
            temperature=torch.tensor([c.temperature for c in runs], dtype=torch.float64),
            chains=len(runs),
            init="fan_in",
            seed=seed,
            device=self.device,
        )
        burn_in = self.steps // 2
        return sampler.sample(
            data,
            self.steps,
            batch_size=min(self.batch_size, num_data),
            burn_in=burn_in,
            thin=math.ceil((self.steps - burn_in) / DRAWS),
            progress=self.progress,
        )


@dataclass(frozen=True)
class Networks:
    """Predictions (network, n, ...) and, of a regression, each one's noise (network,).

    Of classes the average alone: as if of one network."""

    outputs: Tensor
    sigma: Tensor | None


@dataclass(frozen=True)
class HeldOut:
    """``rows`` of the table, fold by fold, and for every candidate that ran what its networks say
    of each fold."""

    rows: Tensor
    networks: dict[int, list[Networks]]


def _networks(by_chain: Tensor, sigma: Tensor | None) -> Networks:
    """(chain, draw, n, ...) as networks."""
    if sigma is None:
        return Networks(by_chain.flatten(0, 1).mean(0, keepdim=True), None)
    each = sigma.reshape(-1).repeat_interleave(by_chain.shape[1])
    return Networks(by_chain.flatten(0, 1), each)


def split(count: int, folds: int, seed: int, labels: NDArray[Any] | None) -> list[Tensor]:
    """Rows of every fold, of one size; with ``labels`` every class is spread over all folds."""
    order = np.random.default_rng(seed).permutation(count)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    size = min(count // folds, MOST_HELD_OUT)
    parts = (order[fold::folds] for fold in range(folds))
    generator = np.random.default_rng(seed + 1)
    return [torch.as_tensor(np.sort(generator.permutation(p)[:size])) for p in parts]
