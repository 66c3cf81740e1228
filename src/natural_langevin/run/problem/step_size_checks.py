"""Checks of a step size before a run: too stiff for the prior, or too small at the end."""

from __future__ import annotations

import logging
import math
from typing import Literal

import torch
from torch import Tensor

from natural_langevin import schedules
from natural_langevin.data.loaders import Loader
from natural_langevin.data.streams import Stream
from natural_langevin.dynamics import Integrator, RatesTable
from natural_langevin.preconditioners import Preconditioner, resolve_damping
from natural_langevin.priors import Prior

log = logging.getLogger("natural_langevin")

StepSize = float | Tensor | schedules.Schedule
#: From here on the prior's own stiffness is worth a word: variances 5 % too large.
STIFF = 0.1
#: A second half that goes less than this part of the way of the first is hardly worth its time.
SATURATED = 0.1


def known_step_size(value: StepSize | Literal["auto"]) -> StepSize:
    """A step size that must be known beforehand."""
    if isinstance(value, str) and value == "auto":
        raise ValueError(
            'step_size="auto" is chosen by sample(), which sees all the data: call it first, or '
            "give step_size= here, or to Langevin"
        )
    return value


def largest_step(
    preconditioner: Preconditioner, prior: dict[str, Prior], num_data: float | Tensor,
    *, discrete: bool,
) -> float:  # fmt: skip
    """eta / k, where k is the rate at which the prior alone pulls a weight that no datum sees.

    There C has its largest value c, and a step is theta <- (1 - k) theta + noise with

        k = eta c precision / N,      c = 1 / damping, or 1 with ``Euclidean``,

    so k = eta with ``damping="prior"``. The variance comes out as the prior's / (1 - k/2); beyond 1
    steps overshoot, and beyond 2 ever further: a chain will diverge whatever the data say.
    Infinite where the prior does not pull. ``num_data``: times the power of the likelihood;
    ``discrete``: whether targets are."""
    damping = resolve_damping(preconditioner, prior, num_data, discrete=discrete)
    limits = []
    for name, one in prior.items():
        epsilon = torch.as_tensor(damping[name], dtype=torch.float64)
        inverse = preconditioner.inverse_from(epsilon)
        precision = torch.as_tensor(one.precision, dtype=torch.float64)
        limits.append(float((inverse * num_data / precision.to(inverse.device)).min()))
    return min([limit for limit in limits if limit > 0], default=math.inf)


def warn_if_stiff(
    preconditioner: Preconditioner,
    prior: dict[str, Prior],
    step_size: float,
    num_data: float | Tensor,
    *,
    discrete: bool,
    level: int = logging.WARNING,
) -> None:
    """Warns before the run if the step size exceeds ``largest_step``."""
    k = step_size / largest_step(preconditioner, prior, num_data, discrete=discrete)
    if k < STIFF:
        return
    effect = "grows without bound, and the chain diverges"
    if k < 2:
        effect = f"comes out {1 / (1 - k / 2):.3g} times too large"
    remedy = f"a step size below {step_size * STIFF / k:.2g}"
    given = preconditioner.damping
    if isinstance(given, Tensor) or given not in ("prior", 0.0):
        remedy += ', or damping="prior"'
    log.log(
        level,
        "step_size precision / (damping N) = %.2g: the variance of a weight that only the prior "
        "sees (dead inputs, dead units) %s. Use %s", k, effect, remedy,
    )  # fmt: skip


def warn_if_saturated(step_size: Tensor) -> None:
    """``step_size`` (step, chain) of the steps whose iterates are kept.

    Sum eta is the time that a chain diffuses for. Where it converges, as for ``halving``, more
    steps do not explore further: late draws repeat each other, and longer is worse than shorter."""
    half = len(step_size) // 2
    total = step_size.double().sum(0)
    late = step_size[half:].double().sum(0)
    if half < 100 or not bool((total > 0).all()):
        return
    share = float((late / total).min())
    if share < SATURATED:
        log.warning(
            "the step size falls so fast that the second half of the run moves %.2g %% of the way: "
            "its draws add next to nothing. Use fewer steps, or a schedule whose sum does not "
            "converge, such as schedules.polynomial(initial, offset)", 100 * share,
        )  # fmt: skip


def warn_if_epochs(dynamics: Integrator, stream: Stream) -> None:
    """Warns about dynamics that need independent minibatches, given those of shuffled epochs."""
    epochs = not isinstance(stream, Loader) and stream.batch_size < stream.num_data
    if epochs and dynamics.cold_epochs:
        log.warning("%s", dynamics.cold_epochs)


def check_stages(dynamics: Integrator, rates: RatesTable) -> None:
    """Not every integrator moves at temperature 0."""
    if rates.explores is not None and dynamics.needs_temperature:
        raise ValueError(
            f"{dynamics!r} needs a temperature above 0, and the step size's schedule "
            "has exploration stages at temperature 0: use dynamics.Overdamped() or Underdamped(), "
            "or exploration=0"
        )
