"""The logarithm of a model's marginal likelihood, by a ladder of powers of the likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from natural_langevin import priors
from natural_langevin._internal.figures import new_figure
from natural_langevin._internal.html import text_shown
from natural_langevin.diagnostics import ranks
from natural_langevin.evidence import control, ladder
from natural_langevin.langevin import Langevin
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.preconditioners import QuasiDiagonalFisher, UnitFisher
from natural_langevin.preconditioners.base import FisherPreconditioner
from natural_langevin.slt.llc import by_recipe, check, rows_of, usual_batch
from natural_langevin.slt.losses import at_weights

#: Draws of the prior, draws kept of every chain, steps of the run, and between two swaps.
PRIOR_DRAWS, DRAWS, STEPS, EXCHANGE = 256, 150, 3000, 20
#: Errors by which both estimates may differ; and the least rate of swaps.
APART, RARE = 4.0, 0.05
#: Inputs of a unit up to which the metric is unit-wise, and steps between two of its statistics.
FAN_IN, EVERY = 64, 10


@dataclass(frozen=True)
class Evidence:
    """ln Z in nats: ``value`` by thermodynamic integration, with its Monte-Carlo ``error``, and
    ``stepping_stone``, by Bennett's equation between neighbouring powers, as a check.

    ``powers``: beta, ascending; ``mean`` and ``mean_error``: E_beta[ln p(D | w)], the integrand;
    ``swaps``: the accepted part of the swaps between neighbours; ``unsettled``: powers at which
    some weights have not converged yet, so that control variates could not be used."""

    value: float
    error: float
    stepping_stone: float
    powers: Tensor = field(repr=False)
    mean: Tensor = field(repr=False)
    mean_error: Tensor = field(repr=False)
    swaps: list[float] = field(repr=False)
    unsettled: int
    posterior: Posterior = field(repr=False)

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the value, each with a remedy."""
        found = []
        apart = abs(self.value - self.stepping_stone)
        if apart > max(1.0, APART * self.error):
            found.append(
                f"The two estimates are {apart:.2g} nats apart: use more steps or more powers."
            )
        if self.swaps and min(self.swaps) < RARE:
            found.append(
                f"Neighbouring powers hardly swap ({min(self.swaps):.1%}): each chain may stay in "
                "its own mode. Use more powers."
            )
        if self.unsettled:
            found.append(
                f"At {self.unsettled} of {len(self.powers)} powers some weights still drift away "
                "from their start: use more steps."
            )
        falls = (self.mean[:-1] - self.mean[1:]) > APART * torch.hypot(
            self.mean_error[:-1], self.mean_error[1:]
        )
        if bool(falls.any()):
            found.append("E[ln p] falls as the power rises, which is impossible: use more steps.")
        return found

    def _repr_html_(self) -> str:
        return text_shown(str(self))

    def __str__(self) -> str:
        lines = [
            f"ln marginal likelihood {self.value:.2f} +- {self.error:.2g} nats "
            f"(stepping stones: {self.stepping_stone:.2f}; {len(self.powers)} powers)"
        ]
        return "\n".join([*lines, *self.warnings])

    def plot(self) -> Any:
        """E_beta[ln p] along the powers: a matplotlib figure."""
        found = new_figure()
        axes = found.subplots()
        axes.errorbar(self.powers.numpy(), self.mean.numpy(), self.mean_error.numpy(), marker=".")
        axes.set_xscale("log")
        axes.set_xlabel("power of the likelihood")
        axes.set_ylabel("E[ln p(D | w)]")
        return found


def log_marginal_likelihood(
    model: nn.Module,
    likelihood: Likelihood,
    data: Any,
    *,
    prior: priors.PriorLike,
    powers: Tensor | None = None,
    repeats: int = 1,
    steps: int = STEPS,
    burn_in: int | None = None,
    batch_size: int | None = None,
    draws: int = DRAWS,
    prior_draws: int = PRIOR_DRAWS,
    exchange: int = EXCHANGE,
    seed: int = 0,
    progress: bool | str = False,
    **options: Any,
) -> Evidence:
    """ln Z = ln integral alpha(w) p(D | w) dw, in nats, of data in memory, with its error.

    Args:
        prior: alpha, a proper and normalised prior: ln Z depends on it.
        powers: beta_1 < ... < 1. None: chosen from the spread of ln p under the prior.
        repeats: chains of every power.
        draws: of every chain, each evaluated on all data with its gradient.
        prior_draws: draws of the prior, for the interval below beta_1.
        exchange: steps between swaps.
        options: those of ``Langevin``.
    """
    check(likelihood, model, "model")
    if isinstance(data, DataLoader):
        raise TypeError(
            "a marginal likelihood needs all data in memory, got a DataLoader: give (x, y)"
        )
    options, burn_in = by_recipe(options, steps, burn_in)
    kind = {k: options[k] for k in ("device",) if k in options}
    at_prior = Langevin(
        model, likelihood, prior=prior, init="prior", chains=prior_draws, seed=seed,
        step_size=1e-3, mean_rate=None, parallel=None, **kind,
    )  # fmt: skip
    start = at_prior.init().params
    count = rows_of(data, options.get("num_data"))
    log_p = -count * at_weights(at_prior, start, data)
    if not bool(log_p.isfinite().all()):
        raise ValueError("the likelihood of draws of the prior is not finite: use a narrower prior")
    weights = sum(p[0].numel() for p in start.values())
    if powers is None:
        low, high = torch.quantile(log_p, torch.tensor([0.16, 0.84], dtype=torch.float64))
        powers = ladder.powers(float(high - low) / 2, weights)
    beta = _checked(powers)
    options = _metric(model, likelihood) | options
    # The step size is chosen by the first two chains: the posterior's, and the widest.
    order = torch.tensor([len(beta) - 1, *range(len(beta) - 1)])
    sampler = Langevin(
        model, likelihood, prior=prior, likelihood_power=beta[order].repeat(repeats),
        chains=len(beta) * repeats, seed=seed, **options,
    )  # fmt: skip
    posterior = sampler.sample(
        data, steps, burn_in=burn_in, keep=draws, exchange=exchange, progress=progress,
        batch_size=usual_batch(int(count)) if batch_size is None else batch_size,
    )  # fmt: skip
    if len(posterior.healthy) < posterior.chains:
        raise ValueError(
            "a chain diverged, and the ladder needs all of them: use a smaller step_size"
        )
    raw, reduced = [], []
    for k in range(len(beta)):
        place = int((order == k).nonzero())
        chains = range(place, posterior.chains, len(beta))
        pairs = [_series(sampler, posterior, data, chain, float(beta[k])) for chain in chains]
        raw.append(torch.stack([a for a, _ in pairs]))
        reduced.append(torch.stack([b for _, b in pairs]))
    settled = [_agree(a, b) for a, b in zip(raw, reduced, strict=True)]
    reduced = [b if fine else a for a, b, fine in zip(raw, reduced, settled, strict=True)]
    mean = torch.stack([r.mean() for r in reduced])
    error = torch.tensor([_error(r) for r in reduced], dtype=torch.float64)
    variance = torch.stack([r.var() for r in raw])
    below, below_error = ladder.from_prior(log_p, float(beta[0]))
    total, weight = ladder.thermodynamic(beta, mean, variance)
    return Evidence(
        value=float(total) + below,
        error=math.hypot(float((weight * error).square().sum().sqrt()), below_error),
        stepping_stone=ladder.stepping_stone(beta, raw) + below,
        powers=beta,
        mean=mean,
        mean_error=error,
        swaps=list(posterior.config["exchange"]["rates"]),
        unsettled=settled.count(False),
        posterior=posterior,
    )


def _metric(model: nn.Module, likelihood: Likelihood) -> dict[str, FisherPreconditioner]:
    """The metric as an option: unit-wise if all weights are sampled, and of linear layers with few
    inputs, because that of single weights is slow along correlated ones. With outputs in units its
    labels are the model's: far from the data residuals are large, and so would their squares be."""
    targets: Literal["data", "model"] = "model" if likelihood.has_units else "data"
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    few = all(isinstance(m, nn.Linear) and m.in_features <= FAN_IN for m in layers)
    if few and all(p.requires_grad for p in model.parameters()):
        return {"preconditioner": UnitFisher(targets=targets, every=EVERY)}
    if targets == "model":
        return {"preconditioner": QuasiDiagonalFisher(targets=targets)}
    return {}  # the recipe's


def _checked(powers: Tensor) -> Tensor:
    beta = torch.as_tensor(powers, dtype=torch.float64)
    ascending = beta.ndim == 1 and len(beta) > 1 and bool((beta.diff() > 0).all())
    if not ascending or float(beta[0]) <= 0 or float(beta[-1]) != 1:
        raise ValueError(f"powers must ascend from above 0 to 1, got {powers!r:.200}")
    return beta


def _series(
    sampler: Langevin, posterior: Posterior, data: Any, chain: int, beta: float
) -> tuple[Tensor, Tensor]:
    """ln p of every draw of a chain, raw and with control variates: (draw,) each."""
    loss, gradient, weights = control.losses_and_gradients(sampler, posterior, data, chain)
    pull, precision = control.pull_of_prior(posterior, chain)
    slope = beta * gradient - pull
    return -loss, control.reduced(-loss, weights, slope, precision)


def _agree(raw: Tensor, reduced: Tensor) -> bool:
    """Whether both means agree within errors. If weights that ln p hardly depends on have not
    converged, the control variates do not have mean zero, and ``raw`` must be used."""
    return abs(float(reduced.mean() - raw.mean())) <= APART * _error(raw)


def _error(series: Tensor) -> float:
    return float(ranks.error_of_mean(series.double().numpy()[:, :, None])[0])
