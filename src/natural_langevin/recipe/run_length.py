"""The length of a run for which none was given, and whether another part follows.

``rules`` describes the lengths, ``settings`` has the numbers.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import NamedTuple

from natural_langevin.posterior.plan import OpenEnd
from natural_langevin.recipe.rules import Choice, of_calls
from natural_langevin.recipe.settings import Budget, Settings

log = logging.getLogger("natural_langevin")


class Length(NamedTuple):
    """The length of a run and its kept draws (None: as usual); and the rule that ends it, if no
    length was given."""

    steps: int
    burn_in: int | None
    thin: int | None
    end: OpenEnd | None
    reason: str


def choose(
    choice: Choice,
    settings: Settings,
    budget: Budget,
    *,
    steps: int | None,
    burn_in: int | None,
    thin: int | None,
    work: float,
    fewest: int | None = None,
) -> Length:
    """Chooses the length where it was not given; ``work``: operations of one step, ``fewest``: the
    least number of steps (None: the budget's)."""
    end, reason, relaxations = None, "given", settings.step_size.relaxations
    length = settings.length
    if steps is None:
        affordable = max(fewest or budget.fewest, int(budget.work / max(work, 1.0) / 100) * 100)
        wanted = usual_steps(choice.step_size, choice.way, settings, budget)
        if choice.relaxation is not None:
            wanted = math.ceil(relaxations * choice.relaxation / 100) * 100
            affordable = min(affordable, length.most)
        steps = min(max(length.fewest, wanted), affordable)
        if burn_in is None and thin is None:
            few = choice.slowest is not None  # weights, of which all curvatures are known
            longer = length.unmixed if few or choice.way == "native" else 1
            most = min(affordable, longer * _most(choice.way, settings))
            rule = replace(settings.end, ess=settings.step_size.ess) if few else settings.end
            end = OpenEnd(steps, max(steps, most), rule)
        reason = (
            f"{budget.relaxations} relaxation times of directions that only the prior determines"
        )
        if choice.relaxation is not None:
            reason = f"{relaxations} relaxation times of the slowest direction"
        if steps < wanted:
            reason = f"{wanted} would be usual: a step takes {work:.1g} operations"
        if choice.relaxation is not None and steps < wanted:
            log.log(
                logging.WARNING if length.warns else logging.INFO,
                "the slowest direction relaxes in %.0f steps (curvatures in the metric from "
                "%.2g to %.2g): %d steps are %.0f such times, and %d would be needed. %s",
                choice.relaxation, choice.slowest, choice.curvature, steps,
                steps / choice.relaxation, wanted, _remedy(choice),
            )  # fmt: skip
        elif steps < wanted:
            log.log(
                logging.WARNING if budget.spares else logging.INFO,
                "%d steps, where %d would be usual: a step takes %.1g operations. Give steps= for "
                "more", steps, wanted, work,
            )  # fmt: skip
    return Length(steps, burn_in, thin, end, reason)


def _remedy(choice: Choice) -> str:
    """The remedy for a slow direction: if curvatures are similar, minibatch noise limits the step
    size."""
    if choice.slowest is not None and (choice.curvature or 0.0) < 10 * choice.slowest:
        return (
            "Minibatch noise allows no larger steps. Remedy: larger minibatches (batch_size=), "
            "or data in memory with a fixed likelihood (sigma a number or a prior), for which "
            "control variates are used"
        )
    return "Remedy: inputs of mean 0 and size 1, or a denser metric (preconditioners.FullFisher())"


def usual_steps(step_size: float, way: str, settings: Settings, budget: Budget) -> int:
    """Steps by the directions that only the prior determines, at the usual friction."""
    length = settings.length
    usual = budget.relaxations * settings.step_size.friction / step_size
    wanted = math.ceil(usual / 100) * 100
    return min(max(length.fewest, wanted), _most(way, settings))


def _most(way: str, settings: Settings) -> int:
    return settings.length.most_eager if of_calls(way) else settings.length.most
