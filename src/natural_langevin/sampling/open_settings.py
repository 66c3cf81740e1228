"""What a sampler's arguments leave open, and what it then is.

With ``step_size="auto"`` and no dynamics of one's own, everything open follows the recipe
(``sampling.recipe``). With a step size of one's own it is the paper's: ``dynamics.Overdamped()``,
Algorithm 1, with QDOP, the prior N(0, 0.1), starting at the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from natural_langevin import preconditioners, priors
from natural_langevin.dynamics.base import Integrator
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.sampling import recipe, starts
from natural_langevin.sampling.step_size_checks import StepSize

#: Where dynamics that tune their step size begin.
TUNED_FROM = 0.1


@dataclass(frozen=True)
class SamplerSettings:
    """Nothing open but the step size where ``auto``, and the prior's scale where ``scale_open``."""

    prior: priors.PriorLike
    preconditioner: preconditioners.Preconditioner
    dynamics: Integrator
    step_size: StepSize | Literal["auto"]
    init: starts.Init
    auto: bool
    by_recipe: bool
    scale_open: bool


def settle(
    model: nn.Module,
    *,
    prior: priors.PriorLike | None,
    preconditioner: preconditioners.Preconditioner | None,
    dynamics: Integrator | None,
    step_size: StepSize | Literal["auto"],
    init: starts.Init | None,
) -> SamplerSettings:
    """The arguments that were given, and the default in the place of every None. Unchecked."""
    auto = isinstance(step_size, str) and step_size == "auto"
    if auto and isinstance(dynamics, Integrator) and dynamics.tunes:
        step_size, auto = TUNED_FROM, False
    by_recipe = auto and dynamics is None
    scale_open = by_recipe and prior is None
    if prior is None:
        prior = recipe.prior() if by_recipe else priors.Gaussian(variance=0.1)
    if init is None:
        init = "auto" if by_recipe else "model"
    if by_recipe:
        usual_metric = recipe.metric(model) if preconditioner is None else preconditioner
        preconditioner = recipe.averaged(usual_metric)
    elif preconditioner is None:
        preconditioner = preconditioners.QuasiDiagonalFisher()
    usual = recipe.dynamics() if by_recipe else Overdamped()
    return SamplerSettings(
        prior=prior, preconditioner=preconditioner,
        dynamics=usual if dynamics is None else dynamics, step_size=step_size, init=init,
        auto=auto, by_recipe=by_recipe, scale_open=scale_open,
    )  # fmt: skip
