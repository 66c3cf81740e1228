"""What predictions learn from rows when a run has ended: the noise's widths, and the weight of a
trained network."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from natural_langevin.dynamics.base import State
from natural_langevin.likelihoods import weight_name
from natural_langevin.posterior import calibration
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.run.problem.problem import Problem

log = logging.getLogger("natural_langevin")


def noise_is_open(problem: Problem, plan: Plan) -> bool:
    """Whether the widths of the noise are left open with all else: of numbers in memory, with
    learned noise, under the recipe's own prior."""
    # Rows that were given to choose by are not all that the layers before have been fitted to.
    whole = problem.origin is None or problem.held_out is None
    ours = plan.prior_scale is not None and plan.calibrate and whole
    cold = bool((problem.temperature == 1).all()) and problem.power is None
    return ours and cold and problem.likelihood.learns_width and problem.in_memory


def noise_widths(
    problem: Problem, plan: Plan, so_far: Callable[[State], Posterior], state: State
) -> tuple[State, dict[str, Any]]:
    """The widths of the noise in predictions, and how far networks are from their mean there: as
    the trial chose them, or by the rows of the run. The state has the noise that rows allow."""
    x, y, _ = problem.rows()
    state = state._replace(likelihood=calibration.raised(state.likelihood, y))
    asks = plan.calibration
    if asks is not None and asks.spread is not None and asks.variance is not None:
        noise = float(state.likelihood["variance"][state.diverged < 0].double().mean())
        value = calibration.spread_of_run(asks.spread, asks.variance, noise)
        log.info("spread of networks x %.3g in predictions", value)
        return state, {"spread": value, "noise_widths": list(asks.widths)}
    found = _widths_by_rows(so_far(state), x, y)
    return state, {} if found is None else {"noise_widths": found}


def _widths_by_rows(so_far: Posterior, x: Tensor, y: Tensor) -> list[float] | None:
    """The weights by the rows of the run, or as many of them as memory allows; None: one width."""
    if len(x) < calibration.FEWEST_ROWS:
        freedom = calibration.FREEDOM * len(x)
        log.info("noise by width: that of Student's law, of %g degrees of freedom", freedom)
        return calibration.widths_of_few(len(x))
    rows = calibration.affordable_rows(len(so_far.healthy) * so_far.draws * y[0].numel(), len(x))
    if rows < calibration.FEWEST_ROWS or not so_far.healthy:
        return None
    outputs = so_far.predict(x[:rows], sharpness=1.0).samples
    assert outputs is not None
    variance = so_far.learned["variance"][so_far.healthy].repeat_interleave(so_far.draws)
    found = calibration.fit_widths(outputs.cpu(), y[:rows].cpu(), variance.cpu())
    if found is None:
        return None
    said = ", ".join(
        f"{w:.0%} of {c:g}" for c, w in zip(calibration.WIDTHS, found.weights, strict=True)
    )
    log.info("noise by width: %s; %.3g nats on %d rows left out", said, found.gain, rows)
    return found.weights


def beside_trained(found: Posterior, problem: Problem) -> None:
    """Compares predictions with those of the trained network on rows that it has not seen, where
    there are some, and gives it weight where they are worse (see ``posterior.calibration``)."""
    alike = problem.one_temperature and problem.power is None and problem.units is None
    if problem.held_out is None or not alike or not found.healthy or not found.processes.whole:
        return
    (x, y), noise = problem.held_out, weight_name(problem.likelihood)
    weights = {
        k: p.detach().to(found.last[k])
        for k, p in problem.template.named_parameters()
        if k in found.last and k != noise
    }
    given = found.of_weights(weights)
    try:
        ours, own = found.evaluate(x, y).nll, given.evaluate(x, y, sharpness=1.0).nll
    except TypeError as error:  # a likelihood without a predictive distribution
        log.info("predictions were not compared with those of the trained network: %s", error)
        return
    said = f"{ours:.4g} nats on {len(x)} held-out rows, the trained network {own:.4g}"
    found.config["beside_trained"] = {"nll": ours, "trained_nll": own, "rows": len(x)}
    if ours <= own:
        log.info("predictions have %s", said)
        return
    each = [p.log_likelihood(x, y).double().flatten(0, 1).cpu() for p in (found, given)]
    rows = torch.stack([torch.logsumexp(v, 0) - math.log(len(v)) for v in each], 1)
    share = calibration.trained_share(rows)
    found.config = found.calibrated(False).config | {"trained_share": share}
    found.trained = weights
    log.warning(
        "predictions have %s: its own predictions are mixed in with weight %.2g", said, share
    )
