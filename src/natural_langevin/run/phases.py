"""Phases: the parts of a plan that run one after the other."""

from __future__ import annotations

from dataclasses import dataclass

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

    def continues(self, other: Phase) -> bool:
        """Whether it is the other with more steps."""
        same = self.burn_in == other.burn_in and self.thin % other.thin == 0
        return same and self.steps > other.steps


def phases(plan: Plan, explores: schedules.Stages | None = None) -> list[Phase]:
    """Each is the last unless it was too short (``ending``). ``explores``: see ``schedules``."""
    found, spent = list[Phase](), 0
    for steps, burn_in, thin in plan.lengths():
        kept = check_thinning(steps, burn_in, thin, plan.keep, explores)
        found.append(Phase(steps, burn_in, *kept, spent))
        spent += steps
    return found
