"""The logarithm of a model's marginal likelihood, by a ladder of powers of the likelihood.

Control variates for means of ln p: functions of known mean zero (Stein's identity) are regressed
out.

Under pi ~ exp(-U), E[F . grad U] = E[div F] for every smooth F. With F = A (w - c), A diagonal and
c fixed, F . grad U - tr A has mean zero, whatever the posterior is; where it is a Gaussian with
independent weights, and A the part of every weight's precision that comes from the data, it is
twice -ln p but for a constant. Two A are used: the identity, and rho_i = 1 - (posterior variance /
prior variance). Draws that are too hot have F . grad U too large in the same proportion, so that
this bias is removed as well.

c, rho and the coefficients come from one half of the draws, and are applied to the other.

Powers of the likelihood from the prior to the posterior, and the integrals over them.

In u = ln beta the integrand g = beta E_beta[ln p - c] is smooth, c the mean at beta = 1, and its
slope is known from the same draws, dg/du = g + beta^2 Var_beta[ln p]: every interval is integrated
by Hermite's cubic. Below the first power beta_1, draws of the prior are used: ln E_prior[p^beta_1].

Powers are ``spacing`` apart in u: 2 / sqrt(d / 2) for d weights, at which half of the proposed
swaps are accepted, within bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.utils.data import DataLoader

from natural_langevin import priors
from natural_langevin._internal.chains import Params
from natural_langevin._internal.extras import new_figure
from natural_langevin._internal.fingerprints import fingerprint
from natural_langevin._internal.messages import shown, text_shown
from natural_langevin._internal.whole_numbers import whole_number
from natural_langevin.diagnostics import ranks
from natural_langevin.langevin import Langevin
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.preconditioners import QuasiDiagonalFisher, UnitFisher
from natural_langevin.preconditioners.base import FisherPreconditioner
from natural_langevin.priors import of_chains
from natural_langevin.slt.llc import by_recipe, check, rows_of, usual_batch
from natural_langevin.slt.losses import at_weights, batches
from natural_langevin.statistics import Network

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
    targets: str | None = field(default=None, repr=False)  # a fingerprint of y

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
    check(likelihood, model, "model", what="a marginal likelihood")
    if isinstance(data, DataLoader):
        raise TypeError(
            "a marginal likelihood needs all data in memory, got a DataLoader: give (x, y)"
        )
    if "num_data" in options:
        raise TypeError("num_data= cannot be given here: a marginal likelihood is of given rows")
    for name, count, least in (("exchange", exchange, 1), ("prior_draws", prior_draws, 2)):
        if whole_number(name, count) < least:
            raise ValueError(f"{name} must be at least {least}, got {count}")
    options, burn_in = by_recipe(options, steps, burn_in)
    at_prior = Langevin(
        model, likelihood, prior=prior, init="prior", chains=prior_draws, seed=seed,
        step_size=1e-3, mean_rate=None, parallel=None, device=options.get("device"),
    )  # fmt: skip
    start = at_prior.init().params
    rows = rows_of(data, None)
    log_p = -rows * at_weights(at_prior, start, data)
    if not bool(log_p.isfinite().all()):
        raise ValueError("the likelihood of draws of the prior is not finite: use a narrower prior")
    weights = sum(p[0].numel() for p in start.values())
    if powers is None:
        low, high = torch.quantile(log_p, torch.tensor([0.16, 0.84], dtype=torch.float64))
        powers = ladder(float(high - low) / 2, weights)
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
        batch_size=usual_batch(int(rows)) if batch_size is None else batch_size,
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
    below, below_error = from_prior(log_p, float(beta[0]))
    total, weight, steep = thermodynamic(beta, mean, variance)
    # The slope at the posterior is a variance, of which few effective draws know little.
    squares = [_error((r - r.mean()).square()) for r in raw]
    slope_error = steep * torch.tensor(squares, dtype=torch.float64)
    return Evidence(
        value=float(total) + below,
        error=math.hypot(float((weight * error).norm()), float(slope_error.norm()), below_error),
        stepping_stone=stepping_stone(beta, raw) + below,
        powers=beta,
        mean=mean,
        mean_error=error,
        swaps=list(posterior.config["exchange"]["rates"]),
        unsettled=settled.count(False),
        posterior=posterior,
        targets=fingerprint({"y": sampler.problem.on(data).rows()[1]}),
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
    loss, gradient, weights = losses_and_gradients(sampler, posterior, data, chain)
    pull, precision = pull_of_prior(posterior, chain)
    slope = beta * gradient - pull
    return -loss, reduced(-loss, weights, slope, precision)


def _agree(raw: Tensor, reduced: Tensor) -> bool:
    """Whether both means agree within errors. If weights that ln p hardly depends on have not
    converged, the control variates do not have mean zero, and ``raw`` must be used."""
    return abs(float(reduced.mean() - raw.mean())) <= APART * _error(raw)


def _error(series: Tensor) -> float:
    return float(ranks.error_of_mean(series.double().numpy()[:, :, None])[0])


#: Draws at a time.
SOME = 32


def losses_and_gradients(
    sampler: Langevin, posterior: Posterior, data: Any, chain: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of every draw of a chain: -ln p of all data, (draw,); its gradient, and the weights:
    (draw, weight), all float64."""
    network = Network(sampler.model, signature=sampler.signature)
    likelihood = sampler.likelihood

    def total(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return likelihood.log_loss(network.call(params, x), y, {}).sum()

    each = vmap(grad_and_value(total), in_dims=(0, None, None))
    draws = {k: s[chain].to(posterior.last[k]) for k, s in posterior.samples.items()}
    count = posterior.draws
    loss = torch.zeros(count, dtype=torch.float64)
    gradient = torch.zeros(count, sum(v[0].numel() for v in draws.values()), dtype=torch.float64)
    for x, y in batches(sampler, data):
        x, y = x.to(sampler.device), y.to(sampler.device)
        for start in range(0, count, SOME):
            some = {k: v[start : start + SOME] for k, v in draws.items()}
            slope, value = each(some, x, y)
            loss[start : start + SOME] += value.double().cpu()
            gradient[start : start + SOME] += _flat(slope)
    return loss, gradient, _flat(draws)


def pull_of_prior(posterior: Posterior, chain: int) -> tuple[Tensor, Tensor]:
    """d ln alpha / d w of every draw of a chain, (draw, weight), and the prior's precision of every
    weight, (weight,): float64."""
    assert posterior.prior is not None
    own = of_chains(posterior.prior, torch.full((posterior.draws,), chain))
    theta = {k: s[chain].to(posterior.last[k]) for k, s in posterior.samples.items()}
    pulls = {name: own[name].gradient(p) for name, p in theta.items()}
    precisions = []
    for name, p in theta.items():
        precision = torch.as_tensor(own[name].precision, dtype=torch.float64).reshape(-1)[0]
        precisions.append(precision.expand(p[0].numel()))
    return _flat(pulls), torch.cat(precisions)


def reduced(log_p: Tensor, weights: Tensor, slope: Tensor, precision: Tensor) -> Tensor:
    """ln p of every draw, (draw,), with its noise regressed out: the same mean under the target.

    Args:
        weights: (draw, weight).
        slope: grad U at them, (draw, weight), U the negative log target.
        precision: the prior's, (weight,).
    """
    half = len(log_p) // 2
    if half < 8:
        return log_p
    found = torch.empty_like(log_p)
    halves = torch.arange(half), torch.arange(half, len(log_p))
    for here, there in (halves, halves[::-1]):
        centre, variance = weights[there].mean(0), weights[there].var(0)
        rho = (1 - variance * precision).clamp(0, 1)

        def controls(rows: Tensor) -> Tensor:
            terms = (weights[rows] - centre) * slope[rows]  # noqa: B023 - used at once
            return torch.stack([(terms - 1).sum(1), (rho * (terms - 1)).sum(1)], 1)  # noqa: B023

        known, target = controls(there), log_p[there]
        known, target = known - known.mean(0), target - target.mean()
        coefficients = torch.linalg.lstsq(known, target[:, None]).solution[:, 0]
        found[here] = log_p[here] - controls(here) @ coefficients
    return found


def _flat(tree: Params) -> Tensor:
    return torch.cat([v.double().cpu().reshape(len(v), -1) for v in tree.values()], 1)


#: In ln beta: the widest and the narrowest interval; and how many powers there are at most.
WIDEST, NARROWEST, MOST_POWERS = 0.7, 0.3, 40
#: beta_1 times the deviation of ln p under the prior.
FIRST = 0.3


def ladder(deviation: float, weights: int) -> Tensor:
    """beta_1 < ... < 1, float64, in equal steps of ln beta. ``deviation``: of ln p under the prior.

    >>> ladder(1e4, 8).tolist()[-1], len(ladder(1e4, 8))
    (1.0, 16)
    """
    first = min(0.3, FIRST / max(deviation, 1e-12))
    spacing = min(WIDEST, max(NARROWEST, 2 / math.sqrt(max(weights, 1) / 2)))
    count = min(MOST_POWERS, max(4, math.ceil(-math.log(first) / spacing) + 1))
    found = torch.exp(torch.linspace(math.log(first), 0.0, count, dtype=torch.float64))
    found[-1] = 1.0
    return found


def thermodynamic(beta: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """integral of E_beta[ln p] from beta_1 to 1 by Hermite's cubic in ln beta, from the means and
    variances of ln p at every power; and the weights of every mean and variance in it. The mean of
    ln p at the last power, which is large, is integrated separately and exactly."""
    h, last = beta.log().diff(), mean[-1]
    g = beta * (mean - last)
    own = beta * variance
    ascending = _monotone(mean.diff() / h, own)
    slope = g + beta * ascending
    rest = (h * (g[1:] + g[:-1]) / 2 + h.square() * (slope[:-1] - slope[1:]) / 12).sum()
    weight = torch.zeros_like(beta)
    weight[1:] += h / 2 - h.square() / 12
    weight[:-1] += h / 2 + h.square() / 12
    weight = weight * beta
    weight[-1] += 1 - beta[0] - weight.sum()
    steep = torch.zeros_like(beta)
    steep[:-1] += h.square() / 12
    steep[1:] -= h.square() / 12
    return (1 - beta[0]) * last + rest, weight, steep * beta.square() * (ascending == own)


def _monotone(secants: Tensor, slopes: Tensor) -> Tensor:
    """The slopes of an ascending curve, at most three times those of the secants beside them, where
    a cubic still ascends (Fritsch & Carlson 1980): draws of a chain that has not mixed have
    variances of a thousand times as much."""
    most = 3 * secants.clamp_min(0)
    return torch.minimum(
        slopes, torch.minimum(most[[0, *range(len(most))]], most[[*range(len(most)), -1]])
    )


def from_prior(log_p: Tensor, power: float) -> tuple[float, float]:
    """ln E_prior[p^power] from draws of the prior, and its error."""
    terms = power * log_p
    top = terms.max()
    ratio = torch.exp(terms - top)
    value = float(top + ratio.mean().log())
    return value, float(ratio.std() / (ratio.mean() * math.sqrt(len(ratio))))


def stepping_stone(beta: Tensor, log_p: list[Tensor]) -> float:
    """sum over neighbours of the ratio of their normalisers by Bennett's equation, from the draws
    of both powers."""
    return sum(
        _bennett(float(high - low), below.flatten(), above.flatten())
        for low, high, below, above in zip(beta[:-1], beta[1:], log_p[:-1], log_p[1:], strict=True)
    )


def _bennett(step: float, below: Tensor, above: Tensor) -> float:
    """ln Z(beta + step) / Z(beta): the root of sum sigmoid(up) = sum sigmoid(down)."""
    up, down = step * below, step * above
    low, high = float(up.min()), float(down.max())
    for _ in range(64):
        ratio = (low + high) / 2
        forward = torch.sigmoid(up - ratio).sum() / len(up)
        backward = torch.sigmoid(ratio - down).sum() / len(down)
        low, high = (ratio, high) if forward > backward else (low, ratio)
    return (low + high) / 2


@dataclass(frozen=True)
class Comparison:
    """Models by descending evidence; ``differences`` are to the best, in nats, with ``errors``."""

    names: tuple[str, ...]
    evidences: tuple[Evidence, ...] = field(repr=False)

    @property
    def differences(self) -> list[float]:
        """ln Z of every model minus that of the best."""
        return [e.value - self.evidences[0].value for e in self.evidences]

    @property
    def errors(self) -> list[float]:
        """Standard errors of the differences: 0 for the best."""
        first = self.evidences[0].error
        return [0.0, *(math.hypot(e.error, first) for e in self.evidences[1:])]

    @property
    def probabilities(self) -> list[float]:
        """Posterior probabilities of the models, with equal prior probabilities."""
        terms = [math.exp(d) for d in self.differences]
        return [t / sum(terms) for t in terms]

    def _repr_html_(self) -> str:
        known = zip(self.names, self.evidences, self.differences, self.probabilities, strict=True)
        rows = [
            (name, f"{e.value:.2f} ± {e.error:.2g}", f"{d:.2f}", f"{p:.3f}")
            for name, e, d, p in known
        ]
        return shown("Models", rows, head=("model", "ln Z", "difference", "probability"))

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        rows = zip(
            self.names, self.evidences, self.differences, self.errors, self.probabilities,
            strict=True,
        )  # fmt: skip
        return "\n".join(
            f"{name:>{width}}  ln Z {e.value:12.2f} +- {e.error:<6.2g}  difference {d:9.2f} +- "
            f"{s:<6.2g}  probability {p:.3f}"
            for name, e, d, s, p in rows
        )


def compare(evidences: Mapping[str, Evidence] | Sequence[Evidence]) -> Comparison:
    """A table of models, the best first. All must be of the same targets, of whatever inputs.

    ``evidences``: a dictionary by name, or a list, whose indices are then the names."""
    named = (
        dict(evidences)
        if isinstance(evidences, Mapping)
        else {str(k): e for k, e in enumerate(evidences)}
    )
    if not named:
        raise ValueError("give at least one evidence to compare")
    other = next((e for e in named.values() if not isinstance(e, Evidence)), None)
    if other is not None:
        raise TypeError(
            f"compare takes results of log_marginal_likelihood, got {type(other).__name__}"
        )
    data = {e.targets or e.posterior.config["data"] for e in named.values()}
    if len(data) > 1:
        raise ValueError(
            f"these evidences are of {len(data)} different data sets: marginal likelihoods compare "
            "models of the same targets"
        )
    order = sorted(named, key=lambda name: -named[name].value)
    return Comparison(tuple(order), tuple(named[name] for name in order))
