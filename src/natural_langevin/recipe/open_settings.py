"""The arguments that a sampler was not given, and the recipe that chooses them.

"auto": everything that is not given is chosen for the data (``rules``): dynamics, metric, prior by
fan-in with its scale chosen on held-out rows, start, step size, and the length of a run. "paper":
Algorithm 1, ``dynamics.Overdamped()``, with QDOP, the prior N(0, 0.1), starting at the model, every
iterate kept; the step size, if not given, by the search on held-out rows. By default it is "paper"
with a given step size or dynamics, and "auto" otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from natural_langevin import preconditioners, priors
from natural_langevin.dynamics.frame import Integrator
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.likelihoods import Likelihood
from natural_langevin.recipe import rules
from natural_langevin.recipe.settings import Settings
from natural_langevin.run.problem import starts
from natural_langevin.run.problem.step_size_checks import StepSize

RecipeName = Literal["auto", "paper"]
#: Where dynamics that tune their step size begin.
TUNED_FROM = 0.1
#: The constants of those who name none.
DEFAULT = Settings()


def for_tables() -> Settings:
    """The constants of tables, which have a length of their own (``LONGER`` in
    ``tabular.crossvalidation``) and gain nothing by all curvatures of a linear model."""
    return replace(
        DEFAULT, length=replace(DEFAULT.length, unmixed=1, warns=False), cheap=None,
        step_size=replace(DEFAULT.step_size, most_weights=0),
    )  # fmt: skip


@dataclass(frozen=True)
class Given:
    """Complete arguments; the step size is still to be chosen if ``auto``, the prior's scale if
    ``scale_open``. ``by_recipe``: whether the recipe's dynamics, start and length are used;
    ``chains_open``: whether it may choose the number of chains; ``why``: of prior, metric and
    dynamics, whether they were given or are a recipe's."""

    prior: priors.PriorLike
    preconditioner: preconditioners.Preconditioner
    dynamics: Integrator
    step_size: StepSize | Literal["auto"]
    init: starts.Init
    auto: bool
    by_recipe: bool
    scale_open: bool
    start_open: bool
    chains_open: bool
    calibrate: bool
    recipe: RecipeName
    settings: Settings
    why: Mapping[str, str]


def fill(
    model: nn.Module,
    likelihood: Likelihood,
    *,
    prior: priors.PriorLike | None,
    preconditioner: preconditioners.Preconditioner | None,
    dynamics: Integrator | None,
    step_size: StepSize | Literal["auto"],
    init: starts.Init | None,
    chains_open: bool = False,
    recipe: RecipeName | Settings | None = None,
    calibrate: bool = True,
    device: object = None,
) -> Given:
    """The arguments that were given, and the recipe's default in the place of every None.
    Unchecked but for ``recipe`` and ``calibrate``."""
    settings = recipe if isinstance(recipe, Settings) else DEFAULT
    recipe = "auto" if isinstance(recipe, Settings) else recipe
    if recipe not in (None, "auto", "paper"):
        raise ValueError(f'recipe must be "auto", "paper", Settings or None, got {recipe!r}')
    if not isinstance(calibrate, bool):
        raise TypeError(f"calibrate must be True or False, got {calibrate!r}")
    auto = isinstance(step_size, str) and step_size == "auto"
    if auto and isinstance(dynamics, Integrator) and dynamics.tunes:
        step_size, auto = TUNED_FROM, False
    if recipe is None:
        recipe = "auto" if auto and dynamics is None else "paper"
    ours = recipe == "auto"
    theirs = {"prior": prior, "metric": preconditioner, "dynamics": dynamics}
    usual_words = "the recipe's" if ours else "the paper's"
    why = {name: usual_words if one is None else "given" for name, one in theirs.items()}
    by_recipe = ours and dynamics is None
    scale_open, start_open = by_recipe and prior is None, init is None
    if prior is None:
        prior = rules.prior() if ours else priors.Gaussian(variance=0.1)
    if init is None:
        init = "auto" if by_recipe else "model"
    if ours:
        usual_metric = preconditioner
        if usual_metric is None:
            usual_metric = rules.metric(model, likelihood, settings.metric, device)
        averages = settings.metric.averages
        preconditioner = rules.averaged(usual_metric) if averages else usual_metric
    elif preconditioner is None:
        preconditioner = preconditioners.QuasiDiagonalFisher()
    usual = rules.dynamics(settings.step_size.friction) if by_recipe else Overdamped()
    return Given(
        prior=prior, preconditioner=preconditioner,
        dynamics=usual if dynamics is None else dynamics, step_size=step_size, init=init,
        auto=auto, by_recipe=by_recipe, scale_open=scale_open, start_open=start_open,
        chains_open=chains_open and auto and scale_open and start_open, calibrate=calibrate,
        recipe=recipe, settings=settings, why=why,
    )  # fmt: skip
