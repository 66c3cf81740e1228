"""Replica exchange (parallel tempering): chains of neighbouring targets swap their weights.

Hot chains cross barriers that cold ones never do. With the energy of all data

    E(theta) = beta N loss(theta) - ln alpha(theta),        chain c samples exp(-E / T_c),

of its own temperature T_c and power beta_c of the likelihood, before every ``every``-th step chains
i and j, neighbours on a ladder, swap theta with probability

    min(1, exp[(beta_i / T_i - beta_j / T_j) N (loss_i - loss_j)
               - (1 / T_i - 1 / T_j) (ln alpha_i - ln alpha_j)])

which leaves the product of all chains' targets invariant (Geyer 1991; Earl & Deem 2005). A chain
keeps its temperature, its power, its metric, its running mean and its momentum, which is
independent of theta in equilibrium: theta alone travels. (Most integrators store the momentum
before half a kick by theta's gradient; unless that half is exchanged too, by
``Integrator.relocated``, variances are 4 to 20 % too small.)

Pairs (0, 1), (2, 3), ... and (1, 2), ... of rungs take turns, by which replicas travel along the
ladder rather than diffuse (Okabe et al. 2001; Syed et al. 2022). Chains of equal targets belong to
different ladders, which never exchange, so that they remain independent and R-hat stays valid.

E is computed from all data, also where steps take minibatches: swaps are exact, one pass over the
data each. The bias by minibatches and step size between swaps remains (see ``dynamics.heat``): a
rung that they heat has a slightly higher temperature.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin import random
from natural_langevin._internal.chains import Params
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.full_data import mean_gradient, mean_loss
from natural_langevin.priors import Prior
from natural_langevin.run.problem.problem import Problem, like_chains
from natural_langevin.run.problem.validation import whole_number

log = logging.getLogger("natural_langevin")

#: Swaps rarer than this connect two temperatures by chance only.
RARE = 0.05


class Target(NamedTuple):
    """What the likelihood and the prior are raised to, beta / T and 1 / T: (chain,) each."""

    likelihood: Tensor
    prior: Tensor


class Swaps(NamedTuple):
    """Of every chain with the next hotter one, since burn-in: (chain,) each."""

    accepted: Tensor  # sum of acceptance probabilities
    proposed: Tensor  # and of how many


def ladders(target: Target) -> list[list[int]]:
    """Chains from cold to hot, by what the likelihood is raised to; the k-th chain of every rung is
    on ladder k.

    >>> cold = torch.tensor([1.0, 1.0, 0.5, 0.25, 0.5])
    >>> ladders(Target(cold, cold))
    [[0, 2, 3], [1, 4]]
    """
    values = list(zip(*(t.tolist() for t in target), strict=True))
    rungs = [
        [c for c, own in enumerate(values) if own == rung]
        for rung in sorted(set(values), reverse=True)
    ]
    return [[rung[k] for rung in rungs if k < len(rung)] for k in range(max(len(r) for r in rungs))]


def log_ratio(target: Target, loss: Tensor, log_prior: Tensor, cold: Tensor, hot: Tensor) -> Tensor:
    """ln of the ratio of densities after and before chains ``cold`` and ``hot`` swap; ``loss``: of
    all data, their sum."""
    of_loss, of_prior = (t[cold] - t[hot] for t in target)
    return of_loss * (loss[cold] - loss[hot]) - of_prior * (log_prior[cold] - log_prior[hot])


class ReplicaExchange:
    """A pause of the engine (``execution.full_data.Pause``): the swaps of one run of a problem.

    ``spent``: steps of phases before, whose random numbers are not used again."""

    def __init__(
        self, engine: Engine, problem: Problem, *, every: Any, burn_in: int, spent: int = 0
    ) -> None:
        self.every, self._burn_in = whole_number("exchange", every), burn_in
        self._seed, self._spent = problem.chains.seed, spent
        if self.every < 1:
            raise ValueError(
                f"exchange must be a positive number of steps between swaps, got {every!r}"
            )
        inverse, power = 1 / problem.temperature.double().cpu(), problem.power
        beta = torch.ones_like(inverse) if power is None else power.double().cpu()
        self._target, self._processes = Target(beta * inverse, inverse), problem.chains.processes
        self._engine = engine
        self._dynamics, self._stream = _check(engine, self._target, problem.prior)
        rungs = [
            (pair, place % 2)
            for ladder in ladders(self._target)
            for place, pair in enumerate(itertools.pairwise(ladder))
        ]
        self.pairs = [list(pair) for pair, _ in rungs]
        self._turns = [
            torch.tensor([pair for pair, turn in rungs if turn == k]).reshape(-1, 2)
            for k in range(2)
        ]

    def begin(self, state: State) -> State:
        """A state that counts swaps."""
        zero = torch.zeros(state.chains, dtype=torch.float64, device=state.step.device)
        return state._replace(swaps=Swaps(zero, zero.clone()))

    def energies(self, state: State) -> Tensor:
        """N loss and ln alpha of the chains here, (chain, 2), in float64; NaN where a chain has
        stopped."""
        loss = self._engine.num_data * mean_loss(self._dynamics, state, self._stream)
        both = torch.stack([loss, self._dynamics.log_prior(state.params)], 1)
        return torch.where((state.diverged < 0)[:, None], both, torch.nan)

    def __call__(self, state: State, step: int) -> State:
        """Proposes every second pair; the state after the swaps that were accepted."""
        cold, hot = self._turns[step // self.every % 2].unbind(1)
        if step == 0 or not len(cold):
            return state
        loss, log_prior = self._processes.all_rows(self.energies(state)).cpu().unbind(1)
        gain = log_ratio(self._target, loss, log_prior, cold, hot)
        key = random.stream(random.origin(self._seed, random.EXCHANGE, cold), step + self._spent)
        uniform = torch.special.ndtr(random.normal(key, 1)[:, 0].double())
        accept = uniform.log() < gain  # false where it is not a number
        own, swaps = list(self._processes.own), state.swaps
        if step > self._burn_in:
            counts = torch.zeros(2, len(loss), dtype=torch.float64)
            counts[0, cold] = gain.clamp(max=0).exp().nan_to_num(0.0)
            counts[1, cold] = gain.isfinite().double()
            new = counts[:, own].to(state.step.device)
            swaps = Swaps(swaps.accepted + new[0], swaps.proposed + new[1])
        source = torch.arange(len(loss))
        source[cold[accept]], source[hot[accept]] = hot[accept], cold[accept]
        if not bool(accept.any()):
            return state._replace(swaps=swaps)
        rows = source[own].to(state.step.device)

        def from_others(tree: Any) -> Any:
            return pytree.tree_map(lambda t: self._processes.all_rows(t)[rows], tree)

        def change() -> Params:
            g = mean_gradient(self._dynamics, state, self._stream)
            v = self._dynamics.posterior_gradient(state.params, g, num_data)
            theta, slope = from_others((state.params, g))
            return pytree.tree_map(
                torch.sub, self._dynamics.posterior_gradient(theta, slope, num_data), v
            )

        rates, num_data = self._engine.rates.row(step), self._engine.num_data
        moved = self._dynamics.integrator.relocated(self._dynamics, state, change, rates, num_data)
        params, anchor = from_others((state.params, state.anchor))
        return state._replace(params=params, anchor=anchor, own=moved, swaps=swaps)

    def describe(self) -> dict[str, Any]:
        """For ``posterior.config["exchange"]``, before the run."""
        return {"every": self.every, "pairs": self.pairs}

    def report(self, state: State) -> dict[str, Any]:
        """The same after it: ``rates`` are the mean acceptance probabilities of ``pairs``."""
        accepted, proposed = (self._processes.all_rows(v).tolist() for v in state.swaps)
        rates = [accepted[c] / max(1.0, proposed[c]) for c, _ in self.pairs]
        beta = self._target.likelihood.tolist()
        for (cold, hot), rate in zip(self.pairs, rates, strict=True):
            if proposed[cold] and rate < RARE:
                log.warning(
                    "chains %d and %d, of power / temperature %g and %g, swapped in %.1f %% of %d "
                    "proposals: put more chains between them", cold, hot,
                    beta[cold], beta[hot], 100 * rate, int(proposed[cold]),
                )  # fmt: skip
        return self.describe() | {"rates": [float(f"{r:.4g}") for r in rates]}


def _check(
    engine: Engine, target: Target, prior: Mapping[str, Prior]
) -> tuple[LangevinDynamics, InMemory]:
    """Refuses what cannot be exchanged, with the remedy."""
    dynamics, stream = engine.dynamics, engine.stream
    if not isinstance(stream, InMemory) or stream.rows is not None:
        raise ValueError(
            "exchange= compares energies of all data, which must be in memory and the same for all "
            "chains: give the tensors (x, y)"
        )
    if dynamics.integrator.tunes:
        raise ValueError(
            f"exchange= cannot interrupt the trajectories of {dynamics.integrator!r}: use "
            "dynamics.Underdamped() or Overdamped()"
        )
    rungs = set(zip(*(t.tolist() for t in target), strict=True))
    if not bool(target.prior.isfinite().all()) or len(rungs) < 2:
        raise ValueError(
            "exchange= needs a ladder of at least two temperatures above 0, or two powers of the "
            f"likelihood, got temperatures {(1 / target.prior).tolist()}: give "
            "temperature=torch.logspace(0, 1, chains), for example"
        )
    if len(set(like_chains(torch.ones_like(target.prior), None, prior))) > 1:
        raise ValueError(
            "exchange= needs one prior, and the chains differ in theirs: only temperatures and "
            "powers of the likelihood may differ along a ladder"
        )
    dynamics.gradients.likelihood.refuse_learning("exchange=")
    return dynamics, stream
