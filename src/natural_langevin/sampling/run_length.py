"""How long a run is whose length was left open, and whether another follows it.

``recipe`` says in words which lengths these are, and has the numbers.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from natural_langevin.sampling import cost, recipe, slowness, trials

log = logging.getLogger("natural_langevin")


@dataclass(frozen=True)
class Length:
    """How long a run is, and what of it is kept; where its length was open, how often another may
    follow one whose loss still falls (None: it was given), and the most steps of all together."""

    steps: int
    burn_in: int
    thin: int
    repeats: int | None = None
    most: int = 0

    @staticmethod
    def usual(steps: int, burn_in: int | None = None, thin: int | None = None) -> Length:
        """A third of burn-in, and about ``DRAWS`` draws of every chain."""
        burn_in = steps // 3 if burn_in is None else burn_in
        thin = max(1, (steps - burn_in) // recipe.DRAWS) if thin is None else thin
        return Length(steps, burn_in, thin)

    def runs(self) -> list[Length]:
        """One after the other, each of which is the last unless its loss still falls: a part of
        the steps (also the last only if its chains agree), the rest of them with more draws as far
        as ``most`` allows, and then as many as usual again for every one of ``repeats``."""
        if self.repeats is None:
            return [self]
        again = [Length.usual(self.steps)] * self.repeats
        first = max(recipe.FIRST_STEPS, self.steps // recipe.FIRST_PART)
        if self.steps < 2 * first:
            return [Length.usual(self.steps), *again]
        rest = self.steps - first
        room = min(recipe.MOST_STEPS, self.most - self.steps * self.repeats) - first
        longer = max(rest, min(int(recipe.LONGER * rest), room))
        return [Length.usual(first), Length.usual(longer, rest // 3), *again]


def choose(
    choice: recipe.Choice,
    *,
    steps: int | None,
    burn_in: int | None,
    thin: int | None,
    work: float,
    budget: cost.Budget = cost.USUAL,
) -> Length:
    """What the user leaves open of a run's length; ``work``: operations of one step."""
    repeats, affordable = None, 0
    if steps is None:
        affordable = max(budget.fewest, int(budget.work / max(work, 1.0) / 100) * 100)
        wanted = usual_steps(choice.step_size, choice.way, choice.friction, budget)
        if choice.relaxation is not None:
            wanted = math.ceil(slowness.RELAXATIONS * choice.relaxation / 100) * 100
            affordable = min(affordable, recipe.MOST_STEPS)
        steps = min(max(recipe.FEWEST_STEPS, wanted), affordable)
        # Where the slowest direction is known, the length follows from it.
        if choice.slowest is None and burn_in is None and thin is None:
            repeats = min(recipe.MOST_REPEATS, affordable // steps - 1)
        if choice.relaxation is not None and steps < wanted:
            log.warning(
                "the slowest direction relaxes in %.0f steps (curvatures in the metric from "
                "%.2g to %.2g): %d steps are %.0f such times, and %d would be needed. Inputs "
                "of mean 0 and size 1, or a denser metric (preconditioners.FullFisher()), are "
                "the remedy", choice.relaxation, choice.slowest, choice.curvature, steps,
                steps / choice.relaxation, wanted,
            )  # fmt: skip
        elif steps < wanted:
            log.log(
                trials.level() if budget.spares else logging.INFO,
                "%d steps, where %d would be usual: a step takes %.1g operations. Give steps= for "
                "more", steps, wanted, work,
            )  # fmt: skip
    return replace(Length.usual(steps, burn_in, thin), repeats=repeats, most=affordable)


def look_interval(steps: int) -> int:
    """Steps between two looks at the losses of a run whose fall is to be measured: every look is
    a minibatch, and short runs would have few.

    >>> [look_interval(steps) for steps in (1_500, 4_500, 20_000)]
    [10, 30, 50]
    """
    return max(10, min(50, steps // recipe.LOOKS))


def falls_by(trace: Tensor) -> float:
    """By how many nats per sample a run's loss is lower in its last third than in the one before,
    in the mean of its chains; 0 where that is not above ``FALLING`` and ``ERRORS`` standard errors
    of it. ``trace`` (look, 1 + chain): losses of minibatches at every look, the step first."""
    looks = len(trace) // 3
    if looks < recipe.FEWEST_LOOKS or not bool(torch.isfinite(trace).all()):
        return 0.0
    middle, last = trace[-2 * looks :, 1:].double().mean(1).split(looks)
    error = ((middle.var() + last.var()) / looks).sqrt()
    fall = middle.mean() - last.mean()
    return float(fall) if fall > max(recipe.FALLING, recipe.ERRORS * float(error)) else 0.0


def disagreement(density: Tensor, weights: Tensor | None = None) -> float:
    """What it costs that chains say different things, in nats per sample: with p_c the densities
    (chain, row, ...) of chain c, and p that of all C chains,

        (1 / 2C) mean over rows of var_c(p_c) / p^2,

    by which E[-ln p] is above that of as many runs pooled. 0 of one chain. ``weights`` (row, ...):
    of what may be observed, in place of what was. Classes are weighed by p: rows that networks have
    learned have a class of which they are all sure, where new rows would have another."""
    if len(density) < 2:
        return 0.0
    density = density.double()
    relative = density.var(0) / density.mean(0).square().clamp_min(1e-300)
    cost = relative if weights is None else (relative * weights).sum(-1)
    return float(cost.mean()) / (2 * len(density))


def usual_steps(
    step_size: float, way: str, friction: float = recipe.FRICTION, budget: cost.Budget = cost.USUAL
) -> int:
    """By the directions that only the prior sees; fewer where less friction lets them relax sooner,
    but not as many times fewer: the metric and the steep directions gain nothing by it."""
    shorter = (friction / recipe.FRICTION) ** recipe.SHORTER
    usual = budget.relaxations * recipe.FRICTION / step_size * shorter
    wanted = math.ceil(usual / 100) * 100
    most = recipe.MOST_EAGER_STEPS if way.startswith("eager") else recipe.MOST_STEPS
    return min(max(recipe.FEWEST_STEPS, wanted), most)
