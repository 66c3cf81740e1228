"""What a step costs, counted and not timed: two runs of one seed must choose the same lengths.

A forward pass takes M multiply-adds per sample; a step of all chains about 6 M B floating-point
operations per chain (forward, and twice that backward, two operations each). A chain of linear
layers has M = its number of weights; convolutions and attention use every weight many times.

On a CPU, chains of linear layers, convolutions and pools have an engine of their own, which
reaches some 10^10 operations per second and core; other networks have none, and torch a few 10^9.
What they may take by themselves is a ``Budget``, of some tens of seconds. Where it leaves fewer
steps than the recipe would take, the log says so.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from natural_langevin.problem import work
from natural_langevin.problem.problem import Problem
from natural_langevin.recipe import slowness


class Budget(NamedTuple):
    """What a run of open length may cost."""

    work: float  # operations of all its steps
    fewest: int  # steps that it has whatever they cost
    relaxations: int  # so many relaxation times it wants to be long
    trial: float | None  # operations of a trial of the prior's scales; None: ``prior_scale``'s own
    spares: bool  # whether a pilot, and the rows of a minibatch, are few where steps cost much


#: Linear layers with an engine, or steps on a GPU, or models of few numbers.
USUAL = Budget(2e11, 2_000, 150, None, spares=False)
#: Convolutions with an engine: every weight is used many times.
PLACES = Budget(4e11, 300, 150, 1.2e11, spares=True)
#: Without an engine on a CPU.
EAGER = Budget(1.5e11, 300, 50, 5e10, spares=True)

#: Operations of a pilot's steps where they are spared.
PILOT_WORK = 4e10
#: A pilot has so many steps before it may end early, and at most where they are spared.
FEWEST_PILOT_STEPS, MOST_PILOT_STEPS = 50, 150
#: Rows of a minibatch, and rows on which curvature is measured, where steps cost much.
BATCH, ROWS = 100, 250


class Costs(NamedTuple):
    """What the steps of a sampler cost, and may cost."""

    multiplications: float  # M; at least the number of trainable weights
    budget: Budget

    @property
    def per_sample(self) -> float:
        """Operations of one sample's part of a step."""
        return 6.0 * self.multiplications

    def of_pilot(self, samples: int, steps: int) -> tuple[float, bool]:
        """Operations of a pilot's step with so many samples, and whether they are spared where it
        would have so many steps."""
        work = self.per_sample * samples
        return work, self.budget is EAGER or (self.budget.spares and work * steps > PILOT_WORK)


def of_problem(problem: Problem, x: Tensor) -> Costs:
    """Of a problem with inputs like ``x``.

    A model of few numbers, whose curvatures are measured, may take its time, unless it is a
    network with layers that use them many times: such a model is asked for its posterior."""
    network, weights = problem.network, problem.weights
    if problem.device.type != "cpu":
        return Costs(weights, USUAL)
    chain = work.chain_of_layers(network, x)
    if chain is not None:
        places = any(spec.places is not None for spec in chain)
        return Costs(work.products(network, chain), PLACES if places else USUAL)
    if weights <= slowness.MOST_WEIGHTS and not work.reuses(network.model):
        return Costs(weights, USUAL)
    return Costs(max(weights, work.counted(problem, x)), EAGER)
