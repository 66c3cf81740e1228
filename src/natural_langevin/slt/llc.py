"""The local learning coefficient of one network.

Everything is a run of ``Langevin``: prior around w* (``localised``), likelihood power
beta = 1 / ln n, start at w*, metric and step size by the recipe. E[L_n] is over all data at the
kept draws.
Minibatches heat a chain in proportion to 1 / friction, which raises the value by b. A minibatch is
a fifth of the data, in shuffled epochs, which makes b small; an estimate of it is subtracted
(``minibatch_bias``). If b is not small against the value, that is too rough, as it depends on the
loss beyond its quadratic approximation, and a second run with c times the friction measures b:

    first = lambda + b,   second = lambda + b / c:    b / c = (first - second) / (c - 1).

Where fewer rows leave b small too, a short run of them is tried, and kept if its error is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from natural_langevin import priors
from natural_langevin._internal.chains import Params, likelihood_powers
from natural_langevin._internal.given_weights import Weights, weights_of
from natural_langevin.langevin import Langevin
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.arviz import log_prior
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.recipe.settings import Metric, Settings
from natural_langevin.run.problem import starts
from natural_langevin.slt import losses
from natural_langevin.slt.estimate import (
    HOT,
    MEASURED,
    UNSURE,
    LearningCoefficient,
    mean_and_error,
    slope_and_error,
)

Baseline = Literal["model", "minimum"]

#: Minibatches of an epoch, and the fewest and most rows of one.
MINIBATCHES, FEWEST_ROWS, MOST_ROWS = 5, 1000, 4096
#: Parts of the value: b of the fewest rows, to try them, and the error at which that is enough.
COLD, PRECISE = 0.01, 0.02
#: Draws of a chain at most: each is evaluated on all data.
DRAWS = 64
#: The metric's statistics are taken at a quarter of the burn-in's steps. Chains that disagree after
#: the first part get a part nine times as long, not three: all begin at w*, so that they soon agree
#: again, before any of them has spread over directions that are nearly flat.
SETTINGS = Settings(metric=Metric(every=4), end=replace(Settings().end, growth=9))
#: The friction of the second run in units of the first's.
COOLER = 4.0
#: Options of ``Langevin`` that are no option of what is estimated, and why.
FIXED = {
    "temperature": "the target is at temperature 1; give a power of the likelihood",
    "likelihood_power": "give power=, or powers= of a marginal likelihood",
    "chains": "every power has as many as repeats=",
}
#: Steps of the descent that ``baseline="minimum"`` takes, and its step size in the metric.
DESCENT_STEPS, DESCENT_STEP = 500, 0.05


def llc(
    model: nn.Module,
    likelihood: Likelihood,
    data: Any,
    *,
    gamma: float = 1.0,
    prior: priors.PriorLike | None = None,
    power: float | None = None,
    baseline: Baseline = "model",
    chains: int = 4,
    steps: int | None = None,
    seconds: float | None = None,
    batch_size: int | None = None,
    burn_in: int | None = None,
    draws: int = DRAWS,
    keep_losses: bool = False,
    progress: bool | str = False,
    **options: Any,
) -> LearningCoefficient:
    """The local learning coefficient at the model's weights w*, with its error and warnings.

    Args:
        data: (x, y) tensors, a Dataset, or a DataLoader.
        gamma: localisation: the prior is N(w*, s^2 / gamma), s^2 the mean square of a tensor's
            weights (``localised``). ``prior`` replaces it, such as ``priors.around(model,
            variance=0.01)``.
        power: beta. None: 1 / ln n.
        baseline: L_n(w*) "model", or "minimum", the lowest loss that a descent from w* finds.
        steps, seconds, batch_size, burn_in: as for ``Langevin.sample``. None: chosen by the recipe.
            If minibatch noise is too large, a second run of the same length follows, unless
            ``seconds`` is given.
        draws: the most draws kept per chain; each is evaluated on all data.
        keep_losses: whether to keep the loss of every datum at every draw (``influence`` does not
            need it).
        options: those of ``Langevin``, such as ``seed``, ``device``, ``step_size``,
            ``preconditioner``, ``dynamics`` (with a ``step_size``; a third of ``steps`` is then
            the burn-in).

    >>> from natural_langevin import likelihoods
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> x = torch.randn(500, 3)
    >>> y = x @ torch.tensor([[1.0], [2.0], [0.0]]) + torch.randn(500, 1)
    >>> net = nn.Linear(3, 1)
    >>> _ = net.weight.data.copy_(torch.linalg.lstsq(x, y).solution.T)
    >>> net.bias.data.zero_()
    tensor([0.])
    >>> estimate = llc(net, likelihoods.Gaussian(sigma=1.0), (x, y), gamma=1e-4, steps=400)
    >>> abs(estimate.value - 4 / 2) < 5 * estimate.error  # a regular model: half its weights
    True
    """
    check(likelihood, model, baseline)
    first = run(
        model, likelihood, data, init=model, power=power, chains=chains,
        prior=localised(model, gamma=gamma) if prior is None else prior,
        steps=steps, seconds=seconds, batch_size=batch_size, burn_in=burn_in,
        draws=draws, progress=progress, few=True, **options,
    )  # fmt: skip
    sampler, posterior = first.sampler, first.posterior
    base = at_baseline(sampler, weights_of(model), data, baseline, posterior)
    base, every = base.expand(posterior.chains), list(range(posterior.chains))
    draws_of = Draws.of(sampler, posterior, data)
    found = summarised(posterior, every, base, baseline, draws_of)
    if first.usual is not None and not found.error <= PRECISE * found.value:
        posterior = sampler.sample(data, plan=first.usual, progress=progress)
        first, draws_of = first._replace(posterior=posterior), Draws.of(sampler, posterior, data)
        found = summarised(posterior, every, base, baseline, draws_of)
    cooler = None if seconds else with_more_friction(first, [found], data, progress)
    if cooler is not None:
        second, posterior = Draws.of(sampler, cooler, data), cooler
        found = summarised(cooler, every, base, baseline, second, warmer=draws_of)
    return replace(found, losses=_losses(sampler, posterior, data)) if keep_losses else found


def check(
    likelihood: Likelihood, model: Any, baseline: str, *, what: str = "a learning coefficient"
) -> None:
    """Refuses likelihoods and options for which the loss at w* is not defined."""
    if baseline not in ("model", "minimum"):
        raise ValueError(f'baseline must be "model" or "minimum", got {baseline!r}')
    if isinstance(model, nn.Module) and isinstance(likelihood, Likelihood):
        likelihood.refuse_learning(what)


def by_recipe(
    options: dict[str, Any], steps: int | None, burn_in: int | None
) -> tuple[dict[str, Any], int | None]:
    """Options of ``Langevin`` whose step size, if given, keeps the recipe's dynamics, and the
    burn-in. Other dynamics have a third of the steps as burn-in, and need a step size: held-out
    rows would choose it, and at a power of the likelihood they are best predicted at the start."""
    for name, why in FIXED.items():
        if name in options:
            raise TypeError(f"{name}= cannot be given here: {why}")
    found: dict[str, Any] = {"mean_rate": None, "recipe": SETTINGS} | options
    dynamics, size = found.get("dynamics"), found.get("step_size", "auto")
    if dynamics is None and found["recipe"] != "paper":
        return found, burn_in
    if isinstance(size, str) and not getattr(dynamics, "tunes", False):
        what = f"recipe={found['recipe']!r}" if dynamics is None else f"dynamics={dynamics!r}"
        raise ValueError(
            f"with {what} a power of the likelihood needs a given step_size, got {size!r}: use "
            "that of the default dynamics, posterior.plan.step_size, or leave out dynamics="
        )
    return found, steps // 3 if burn_in is None and steps is not None else burn_in


class Run(NamedTuple):
    """A sampler, its posterior, the same sampler with another start, and the usual plan where the
    run was a short one of few rows."""

    sampler: Langevin
    posterior: Posterior
    starting_at: Callable[[Weights], Langevin]
    usual: Plan | None


def run(
    model: nn.Module,
    likelihood: Likelihood,
    data: Any,
    *,
    init: starts.Init | None,
    prior: priors.PriorLike,
    power: float | None,
    chains: int,
    draws: int,
    batch_size: int | None,
    steps: int | None,
    seconds: float | None,
    burn_in: int | None,
    progress: bool | str,
    few: bool = False,
    **options: Any,
) -> Run:
    """A run at a power of the likelihood; None: 1 / ln n. ``few``: a short one of few rows, if
    its length is open and they heat little."""
    if draws < 1:
        raise ValueError(f"draws must be positive, got {draws!r}")
    if isinstance(power, Tensor) or not (power is None or 0 < power < math.inf):
        raise ValueError(f"power must be one number above 0, got {power!r}")
    count = rows_of(data, options.get("num_data"))
    if power is None:
        power = 1 / math.log(max(count, 3.0))
    options, burn_in = by_recipe(options, steps, burn_in)
    starting_at = partial(
        Langevin, model, likelihood, prior=prior, likelihood_power=power, chains=chains, **options
    )
    sampler = starting_at(init=init)
    plan = usual = None
    if batch_size is None and not isinstance(data, DataLoader):
        batch_size = usual_batch(int(rows_of(data, None)))
        if few and steps is seconds is burn_in is None:
            usual = sampler.plan(data, batch_size=batch_size, keep=draws)
            plan = with_fewest_rows(usual, sampler.problem.weights, count)
            batch_size = plan.batch_size
    posterior = sampler.sample(
        data, steps, seconds=seconds, batch_size=batch_size, burn_in=burn_in, keep=draws, plan=plan,
        progress=progress,
    )  # fmt: skip
    shorter = None if plan is usual else usual
    return Run(sampler, posterior, lambda init: starting_at(init=init), shorter)


def with_fewest_rows(plan: Plan, weights: int, count: float) -> Plan:
    """The plan without a second part and with the fewest rows in a minibatch; or as it is, where by
    its pilot these would add more than ``COLD`` of the value."""
    size, heat, m = plan.step_size, plan.measured.get("heat"), count / FEWEST_ROWS
    few = plan.batch_size <= FEWEST_ROWS
    if few or not heat or plan.end is None or not isinstance(size, float):
        return plan
    added = minibatch_bias(
        weights / 2, weights=weights, heat=heat * (m - 1) / (count / plan.batch_size - 1),
        minibatches=m, step_size=size, steepest=plan.measured["curvature"], shuffled=True,
    )  # fmt: skip
    if added > COLD * weights / 2:
        return plan
    return replace(plan, batch_size=FEWEST_ROWS, end=replace(plan.end, most=plan.steps))


def rows_of(data: Any, num_data: float | None) -> float:
    """n: as given, or the number of rows of the data."""
    if num_data is not None:
        return float(num_data)
    if isinstance(data, DataLoader):
        try:
            return float(len(data.dataset))  # type: ignore[arg-type]
        except TypeError:
            raise ValueError(
                "this DataLoader does not say how many data there are: give num_data=n"
            ) from None
    rows = data
    while isinstance(rows, Mapping | tuple | list):
        rows = next(iter(rows.values())) if isinstance(rows, Mapping) else rows[-1]
    return float(len(rows))


def usual_batch(count: int) -> int:
    """Rows of a minibatch: all of few data, otherwise a fifth, within bounds.

    >>> [usual_batch(n) for n in (300, 4000, 10_000, 60_000)]
    [300, 1000, 2000, 4096]
    """
    return min(count, max(FEWEST_ROWS, min(count // MINIBATCHES, MOST_ROWS)))


def at_baseline(
    sampler: Langevin, start: Params, data: Any, baseline: Baseline, posterior: Posterior
) -> Tensor:
    """The loss to compare with, one per row of ``start``: (chain,), float64."""
    start = {k: v.to(sampler.device) for k, v in start.items() if k in posterior.last}
    own = losses.at_weights(sampler, start, data)
    if baseline == "model":
        return own
    chains = len(own)
    descent = Langevin(
        sampler.model, sampler.likelihood, prior=priors.Flat(), temperature=0.0, init=start,
        chains=chains, step_size=DESCENT_STEP, mean_rate=None, device=sampler.device,
        num_data=None if sampler.num_data is None else int(sampler.num_data),
    )  # fmt: skip
    found = descent.sample(
        data, DESCENT_STEPS, batch_size=posterior.config["batch_size"], thin=DESCENT_STEPS,
        progress=False,
    )  # fmt: skip
    return torch.fmin(own, losses.at_weights(descent, found.last, data))


def with_more_friction(
    run: Run, found: Sequence[LearningCoefficient], data: Any, progress: bool | str
) -> Posterior | None:
    """A second run from the end of this one, with ``COOLER`` times its friction, if the
    minibatches' heat is not small against the values. None if it is small, or if the user gave the
    friction."""
    plan, known = run.posterior.plan, [one for one in found if math.isfinite(one.value)]
    heat, size = sum(one.minibatch_bias for one in known), sum(one.value for one in known)
    if plan is None or plan.friction is None or heat <= HOT * abs(size):
        return None
    plan = replace(plan, friction=COOLER * plan.friction)
    return run.starting_at(run.posterior.last).sample(data, plan=plan, progress=progress)


class Draws(NamedTuple):
    """The healthy chains, and of every draw of theirs, (chain, draw), mean loss and ln alpha; the
    step size, where it is one number."""

    chains: list[int]
    loss: Tensor
    log_prior: Tensor
    step_size: float | None

    def rows(self, chains: list[int]) -> Tensor:
        """The places of these chains among the healthy ones."""
        own = [self.chains.index(c) for c in chains if c in self.chains]
        return torch.tensor(own, dtype=torch.long)

    @classmethod
    def of(cls, sampler: Langevin, posterior: Posterior, data: Any) -> Draws:
        """Those of a posterior, on all data."""
        healthy, plan = posterior.healthy, posterior.plan
        size = (plan and plan.step_size) or sampler.step_size
        return cls(
            healthy, losses.of_draws(sampler, posterior, data), log_prior(posterior, healthy),
            size if isinstance(size, float) else None,
        )  # fmt: skip


def summarised(
    posterior: Posterior,
    chains: list[int],
    base: Tensor,
    baseline: Baseline,
    draws: Draws,
    *,
    warmer: Draws | None = None,
) -> LearningCoefficient:
    """The estimate of some ``chains``; ``base``: the loss at w* of all chains; ``draws``,
    ``warmer``: the draws of all healthy chains, and those of the run with less friction."""
    config, rows = posterior.config, draws.rows(chains)
    count = float(config["num_data"])
    beta = float(likelihood_powers(config, posterior.chains)[chains[0]])

    def trace_of(one: Draws) -> Tensor:
        kept = one.rows(chains)
        return count * beta * (one.loss[kept] - base[torch.tensor(one.chains)[kept]][:, None])

    trace = trace_of(draws)
    value, error = mean_and_error(trace)
    weights = sum(p[0].numel() for p in posterior.last.values())
    if warmer is None:
        hot, unsure = _minibatch_bias(posterior, value, weights, draws.step_size), UNSURE
    else:
        unsure = MEASURED
        before, its_error = mean_and_error(trace_of(warmer))
        hot = (before - value) / (COOLER - 1)
        error = math.hypot(COOLER * error, its_error) / (COOLER - 1)
    slope, slope_error = slope_and_error(trace, -draws.log_prior[rows])
    return LearningCoefficient(
        value=value - hot,
        error=math.hypot(error, unsure * hot),
        chains=trace.mean(1) - hot,
        posterior=posterior,
        rows=tuple(chains),
        trace=trace,
        num_data=count,
        power=beta,
        baseline=baseline,
        baseline_loss=float(base[torch.tensor(chains)].mean()),
        weights=weights,
        minibatch_bias=hot,
        sensitivity=slope,
        sensitivity_error=slope_error,
    )


def _minibatch_bias(
    posterior: Posterior, value: float, weights: int, step_size: float | None
) -> float:
    """The bias by minibatches, from the heat that the run measured; 0 for full batches."""
    config, plan = posterior.config, posterior.plan
    heat = (config.get("effective_temperature") or {}).get("minibatch")
    minibatches = float(config.get("rows", config["num_data"])) / float(config["batch_size"])
    if not heat or minibatches <= 1:
        return 0.0
    return minibatch_bias(
        value, weights=weights, heat=float(heat), minibatches=minibatches,
        step_size=step_size or 0.0,
        steepest=None if plan is None else plan.measured.get("curvature"),
        shuffled=step_size is not None and not config.get("shared_batches"),
    )  # fmt: skip


def _losses(sampler: Langevin, posterior: Posterior, data: Any) -> Tensor:
    """The loss of every datum at every draw: (chain, draw, n)."""
    parts = [
        -posterior.log_likelihood(x, y, chains="all") for x, y in losses.batches(sampler, data)
    ]
    return torch.cat(parts, -1)


def share_of_epochs(omega: float, minibatches: float) -> float:
    """S(omega) = (m - F_m(omega)) / (m - 1), the share of an independent minibatch's power that m
    per shuffled epoch leave at a frequency, as their errors add up to zero; F_m(omega) =
    sin(m omega / 2)^2 / (m sin(omega / 2)^2) is the Fejer kernel.

    >>> [round(share_of_epochs(0.2, m), 3) for m in (1, 5, 100)]
    [0.0, 0.097, 1.007]
    """
    m = minibatches
    if m <= 1:
        return 0.0
    fejer = math.sin(m * omega / 2) ** 2 / (m * math.sin(omega / 2) ** 2)
    return (m - fejer) / (m - 1)


def minibatch_bias(
    value: float, *, weights: int, heat: float, minibatches: float, step_size: float,
    steepest: float | None, shuffled: bool,
) -> float:  # fmt: skip
    """The amount by which minibatches raised a learning coefficient estimated as ``value``.

    Their noise adds half of its heat to the energy of every direction, whatever its curvature: d/2
    times the mean heat of d weights (``diagnostics.kinetic``). In shuffled epochs a direction of
    curvature k in the metric has S(sqrt(eta k)) of that. k lies between its mean over the 2 lambda
    directions that the data determine and the ``steepest``, where that is known; their geometric
    mean is used for all.
    """
    alone = weights * heat / 2
    if not shuffled:
        return alone
    seen = max(1.0, weights / max(1.0, 2 * value))
    k = math.sqrt(seen * max(seen, steepest or seen))
    return alone * share_of_epochs(min(math.pi, math.sqrt(step_size * k)), minibatches)


def localised(
    weights: Weights | Sequence[Weights], *, gamma: float = 1.0
) -> dict[str, priors.Prior]:
    """N(w*, s^2 / gamma) for every parameter, s^2 the mean square of its values
    (``priors.mean_squares``); of a list of networks, one per chain, every chain's own. If a layer
    is multiplied by c and the next divided by c, so is its prior: the coefficient stays the same.

    ``priors.around(model, variance=1 / gamma)`` is that of Lau et al. (2023), the same for all
    weights.

    >>> from torch import nn
    >>> prior = localised(nn.Linear(100, 3), gamma=2.0)
    >>> sorted(prior)
    ['bias', 'weight']
    """
    if not (math.isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma must be positive and finite, got {gamma!r}")
    found = weights_of(weights)
    variances = {k: v / gamma for k, v in priors.mean_squares(found).items()}
    several = len(next(iter(found.values()))) > 1
    return priors.around(
        weights, variance={k: v if several else float(v[0]) for k, v in variances.items()}
    )
