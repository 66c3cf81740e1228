"""Phases: what of a plan is run one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from natural_langevin import schedules
from natural_langevin.posterior.plan import OpenEnd, Plan
from natural_langevin.run.kept_draws import check_thinning
from natural_langevin.run.loop import LOOK_EVERY


@dataclass(frozen=True)
class Phase:
    """One call of the loop: which iterates are kept and looked at. ``spent``: the steps of those
    before. ``part``: whether it is a first part of the whole length."""

    steps: int
    burn_in: int
    thin: int
    draws: int
    look_every: int
    spent: int
    part: bool


def phases(plan: Plan, explores: schedules.Stages | None = None) -> list[Phase]:
    """Each is the last unless it was too short (``ending``). ``explores``: see ``schedules``."""
    found: list[Phase] = []
    lengths, spent = plan.lengths(), 0
    for number, (steps, burn_in, thin) in enumerate(lengths):
        thin, draws = check_thinning(steps, burn_in, thin, plan.keep, explores)
        last = number == len(lengths) - 1
        looks = LOOK_EVERY if last else look_interval(steps, plan.end)
        part = spent == 0 and steps < plan.steps
        found.append(Phase(steps, burn_in, thin, draws, looks, spent, part))
        spent += steps
    if plan.extended is None:
        return found
    number, steps = plan.extended
    return [*found[:number], longer(found[number], steps, explores)]


def longer(phase: Phase, steps: int, explores: schedules.Stages | None = None) -> Phase:
    """The phase with another number of steps, and draws as far apart."""
    thin, draws = check_thinning(steps, phase.burn_in, phase.thin, None, explores)
    return replace(phase, steps=steps, thin=thin, draws=draws)


def look_interval(steps: int, end: OpenEnd | None) -> int:
    """Steps between two looks at the losses of a run whose fall is to be measured: every look is
    a minibatch, and short runs would have few."""
    return LOOK_EVERY if end is None else max(10, min(LOOK_EVERY, steps // end.rule.looks))
