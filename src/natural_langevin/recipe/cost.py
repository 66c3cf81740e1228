"""The cost of a step, counted and not timed: two runs of one seed must choose the same lengths.

``run.problem.work`` counts. On a CPU, chains of linear layers, convolutions and pools have a native
engine, which reaches some 10^10 operations per second and core; other networks use torch, which
reaches a few 10^9. A default run is limited by a ``settings.Budget`` of some tens of seconds. If it
allows fewer steps than the recipe wants, this is logged.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from natural_langevin.posterior.plan import Descent
from natural_langevin.recipe.settings import Budget, Settings
from natural_langevin.run.problem import work
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.problem import Problem
from natural_langevin.run.time_limit import TimeLimit


class Costs(NamedTuple):
    """What the steps of a sampler cost, and may cost."""

    multiplications: float  # M; at least the number of trainable weights
    budget: Budget
    settings: Settings
    native: bool = False  # whether its layers are ones that the engine knows

    @property
    def per_sample(self) -> float:
        """Operations of one sample's part of a step."""
        return 6.0 * self.multiplications

    def rows_of_step(self, steps: int, chains: int) -> int:
        """Rows of a minibatch of each of so many chains, where the budget has so many steps."""
        return int(self.budget.work / (steps * chains * self.per_sample))

    def are_cheap(self, batch: int, chains: int) -> bool:
        """Whether a run can afford to be exact."""
        rule = self.settings.cheap
        return rule is not None and self.native and batch <= self.rows_of_step(rule.steps, chains)

    def fewest_steps(self, num_data: float, batch: int, chains: int) -> int:
        """The least number of steps of a run whose length was not given, whatever they cost."""
        limits = self.settings.cost
        epochs = limits.epochs * num_data / batch
        most = limits.most_budgets * self.budget.work / (self.per_sample * batch * chains)
        return max(self.budget.fewest, int(min(epochs, most)))

    def draws(self, chains: int) -> int:
        """Draws per chain: as many as predictions can afford."""
        limits = self.settings.cost
        work = 2 * self.multiplications * limits.predicted * chains
        affordable = self.budget.predictions / work
        return int(min(limits.most_draws, max(limits.fewest_draws, affordable)))

    def of_trial(self, batch: int, chains: int) -> float:
        """Operations that a trial may take before a run of such steps: its part of the budget, or
        of the fewest steps where these take more."""
        fewest = self.budget.fewest * self.per_sample * batch * chains
        return self.budget.trial * max(1.0, fewest / self.budget.work)

    def descent(self, num_data: float, batch: int, limit: TimeLimit) -> Descent:
        """The rounds that the budget has, beside a run of such minibatches; all where the clock
        ends them."""
        rule = self.settings.descent
        work = self.per_sample * rule.rows_of_batch(int(num_data), batch)
        taken = itertools.accumulate(rule.rounds)
        count = max(1, sum(work * steps <= self.budget.descent for steps in taken))
        return rule if limit.exists else replace(rule, rounds=rule.rounds[:count])

    def pilot_steps(self, samples: int) -> tuple[int, ...]:
        """The steps of a pilot after each of which curvature is measured, with so many samples."""
        pilot = self.settings.pilot
        most = 0.0
        if not self.budget.spares:
            most = pilot.part_of_trial * self.budget.trial / (self.per_sample * samples)
        return tuple(stop for stop in pilot.steps if stop <= max(pilot.fewest, most))

    def costly_pilot(self, samples: int) -> bool:
        """Whether curvature is measured on fewer rows, for what steps of so many samples cost."""
        return self.budget.spares and self.per_sample * samples > self.settings.pilot.costly_step


class Search(NamedTuple):
    """The setting of a pilot and of a trial of scales: the run's motion, whether its chains descend
    first, rows of its minibatches, the cost of steps, and the time limit."""

    motion: Motion
    downhill: bool
    batch_size: int
    costs: Costs
    limit: TimeLimit


def of_problem(problem: Problem, x: Tensor, settings: Settings) -> Costs:
    """Of a problem with inputs like ``x``.

    A model of few weights, whose curvatures are measured, has no such limit, unless its layers use
    weights many times: its posterior itself is of interest."""
    network, weights, known = problem.network, problem.weights, settings.cost
    if problem.device.type != "cpu":
        budget = known.gpu_places if work.reuses(network.model) else known.gpu
        return Costs(max(weights, work.counted(problem, x)), budget, settings)
    chain = work.chain_of_layers(network, x)
    if chain is not None:
        places = any(spec.places is not None for spec in chain)
        budget = known.places if places else known.usual
        return Costs(work.products(network, chain), budget, settings, native=not places)
    if weights <= settings.step_size.most_weights and not work.reuses(network.model):
        return Costs(weights, known.usual, settings)
    return Costs(max(weights, work.counted(problem, x)), known.eager, settings)
