"""Phases: the parts of a plan that run one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from natural_langevin import schedules
from natural_langevin.posterior.plan import Plan
from natural_langevin.run.kept_draws import check_thinning


@dataclass(frozen=True)
class Phase:
    """One call of the loop: which iterates are kept. ``spent``: the steps of those before."""

    steps: int
    burn_in: int
    thin: int
    draws: int
    spent: int


def phases(plan: Plan, explores: schedules.Stages | None = None) -> list[Phase]:
    """Each is the last unless it was too short (``ending``). ``explores``: see ``schedules``."""
    found: list[Phase] = []
    lengths, spent = plan.lengths(), 0
    for steps, burn_in, thin in lengths:
        thin, draws = check_thinning(steps, burn_in, thin, plan.keep, explores)
        found.append(Phase(steps, burn_in, thin, draws, spent))
        spent += steps
    if plan.extended is None:
        return found
    number, steps = plan.extended
    return [*found[:number], longer(found[number], steps, explores)]


def longer(phase: Phase, steps: int, explores: schedules.Stages | None = None) -> Phase:
    """The phase with another number of steps, and draws as far apart."""
    thin, draws = check_thinning(steps, phase.burn_in, phase.thin, None, explores)
    return replace(phase, steps=steps, thin=thin, draws=draws)
