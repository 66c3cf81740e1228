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
    trial: float  # operations of a trial of the prior's scales
    predictions: float  # operations of predicting ``PREDICTED`` rows
    spares: bool  # whether a pilot is short where steps cost much


#: Linear layers with an engine, or models of few numbers.
USUAL = Budget(2e11, 2_000, 150, 1.2e11, 1.5e11, spares=False)
#: Convolutions with an engine: every weight is used many times.
PLACES = Budget(4e11, 300, 150, 1.2e11, 1.5e11, spares=True)
#: Without an engine on a CPU.
EAGER = Budget(1.5e11, 300, 50, 5e10, 1.5e11, spares=True)
#: On a GPU, at some 10^13 operations per second; and with layers that use every weight many times,
#: at some 10^12.
GPU = Budget(2e14, 2_000, 150, 4e13, 5e13, spares=False)
GPU_PLACES = Budget(5e13, 2_000, 150, 5e12, 5e13, spares=True)

#: Epochs that a run has at least, where they take no more than so many times its budget.
EPOCHS, MOST_BUDGETS = 10, 10
#: Rows by which predictions are counted, and draws of a chain that are kept: fewer where so many
#: would cost too much to predict with.
PREDICTED, FEWEST_DRAWS, MOST_DRAWS = 10_000, 20, 200

#: Operations of a pilot's steps where they are spared.
PILOT_WORK = 4e10
#: A pilot has so many steps before it may end early, and at most where they are spared.
FEWEST_PILOT_STEPS, MOST_PILOT_STEPS = 50, 150
#: Rows on which curvature is measured, where steps cost much.
ROWS = 250


class Costs(NamedTuple):
    """What the steps of a sampler cost, and may cost."""

    multiplications: float  # M; at least the number of trainable weights
    budget: Budget

    @property
    def per_sample(self) -> float:
        """Operations of one sample's part of a step."""
        return 6.0 * self.multiplications

    def rows_of_step(self, steps: int, chains: int) -> int:
        """Rows of a minibatch of each of so many chains, where the budget has so many steps."""
        return int(self.budget.work / (steps * chains * self.per_sample))

    def fewest_steps(self, num_data: float, batch: int, chains: int) -> int:
        """Steps that a run of open length has, whatever they cost."""
        epochs = EPOCHS * num_data / batch
        most = MOST_BUDGETS * self.budget.work / (self.per_sample * batch * chains)
        return max(self.budget.fewest, int(min(epochs, most)))

    def draws(self, chains: int) -> int:
        """Of every chain, as many as predictions can afford."""
        affordable = self.budget.predictions / (2 * self.multiplications * PREDICTED * chains)
        return int(min(MOST_DRAWS, max(FEWEST_DRAWS, affordable)))

    def of_trial(self, batch: int, chains: int) -> float:
        """Operations that a trial may take before a run of such steps: its part of the budget, or
        of the fewest steps where these take more."""
        fewest = self.budget.fewest * self.per_sample * batch * chains
        return self.budget.trial * max(1.0, fewest / self.budget.work)

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
        budget = GPU_PLACES if work.reuses(network.model) else GPU
        return Costs(max(weights, work.counted(problem, x)), budget)
    chain = work.chain_of_layers(network, x)
    if chain is not None:
        places = any(spec.places is not None for spec in chain)
        return Costs(work.products(network, chain), PLACES if places else USUAL)
    if weights <= slowness.MOST_WEIGHTS and not work.reuses(network.model):
        return Costs(weights, USUAL)
    return Costs(max(weights, work.counted(problem, x)), EAGER)
