"""``fidelity``: a posterior compared with Metropolis-adjusted chains on the same network and data.

The adjusted sampler (``dynamics.Adjusted``: trajectories of leapfrog steps on all data, accepted or
rejected) has no bias by step size, minibatch or metric, so that any difference is an error of the
posterior:

    classes   agreement: share of inputs with the same most probable class
              total variation: mean over inputs of sum_k |p_k - q_k| / 2
    numbers   Kolmogorov distance: sup_f |F(f) - F_ref(f)| of the networks' means at an input
              total variation over ten bins that hold a tenth of the reference's draws each

each is compared with the same between two halves of the reference, divided by sqrt 2, the size of
the sampling error. The temperature follows from the energy U = N loss - ln alpha, for which dE/dT =
Var U / T^2, so that

    T = 1 + (E - E_ref) / Var_ref U,

exactly where the posterior is Gaussian. Every step of the reference is a gradient on all data: for
small networks only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torch.func import vmap

from natural_langevin import random, schedules
from natural_langevin._internal.chains import Params, likelihood_powers
from natural_langevin._internal.messages import text_shown
from natural_langevin.data.checks import split_pair
from natural_langevin.data.streams import as_stream
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.dynamics import Adjusted
from natural_langevin.dynamics.frame import Conditions, LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.engine import Engine
from natural_langevin.likelihoods import Likelihood
from natural_langevin.metrics import agreement, total_variation
from natural_langevin.preconditioners import QuasiDiagonalFisher
from natural_langevin.priors import Prior, PriorLike, chainwise, resolve
from natural_langevin.statistics import Gradients, Network, plain_copy, prepare_model

#: Parameters, and parameters times rows, above which a reference would take hours.
MOST_PARAMETERS, MOST_WORK = 20_000, 20_000_000
#: Draws of a chain whose energy is looked at, and inputs that predictions are compared at, at most.
MOST_DRAWS, MOST_INPUTS = 200, 500
#: Reference chains, where one value per chain does not say otherwise.
CHAINS = 4
BINS = 10


class Predicted(Protocol):
    """Predictions of a posterior: the mean, and those of every network, (network, input, ...)."""

    @property
    def mean(self) -> Tensor:
        """(input, ...)."""

    @property
    def samples(self) -> Tensor:
        """(network, input, ...)."""


class Standard(Protocol):
    """The units that data and weights had in a run."""

    def data(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Rows in these units."""

    def given(self, params: Params) -> Params:
        """Weights of these units as the user's data need them."""


class Sampled(Protocol):
    """The interface of a ``Posterior`` that is compared."""

    template: nn.Module
    likelihood: Likelihood
    samples: Params
    prior: Mapping[str, Prior] | None
    config: dict[str, Any]

    @property
    def chains(self) -> int:
        """How many chains there are."""

    @property
    def draws(self) -> int:
        """How many draws of each."""

    @property
    def healthy(self) -> list[int]:
        """The chains that did not diverge."""

    def in_standard_units(self) -> tuple[Self, Standard]:
        """The same as it was sampled, which is what its prior is of, and the units of that."""

    def predict(self, x: Tensor, *, sharpness: float | None = None) -> Predicted:
        """At these inputs."""

    def of_draws(self, samples: Params) -> Self:
        """The same network and likelihood with other draws."""


class Fidelity(NamedTuple):
    """The distance of a posterior from the reference; ``str()`` explains it.

    ``floor`` is the ``total_variation`` that sampling error explains. ``agreement`` is None for
    numbers, ``kolmogorov`` for classes. ``reference`` is a ``Posterior`` itself."""

    total_variation: float
    floor: float
    agreement: float | None
    kolmogorov: float | None
    temperature: Reading
    acceptance: float
    reference: Sampled

    @property
    def settled(self) -> bool:
        """Whether the reference itself has converged."""
        return self.floor <= 0.15 and self.acceptance >= 0.2

    @property
    def near(self) -> bool:
        """Whether the distance is explained by sampling error, or negligible."""
        return self.total_variation <= max(0.02, 1.5 * self.floor)

    @property
    def heat(self) -> str:
        """Either "too hot", "too cold" or "": beyond a tenth, and beyond three errors."""
        gap = self.temperature.value - 1
        if abs(gap) <= max(0.1, 3 * self.temperature.error):
            return ""
        return "too hot" if gap > 0 else "too cold"

    def _repr_html_(self) -> str:
        return text_shown(str(self))

    def __str__(self) -> str:
        if self.agreement is not None:
            first = f"agrees with the reference on the class of {self.agreement:.1%} of the inputs"
        else:
            first = f"Kolmogorov distance {self.kolmogorov:.3f} from the reference's predictions"
        second = (
            f"total variation {self.total_variation:.3f}, of which sampling error explains about "
            f"{self.floor:.3f}"
        )
        heat = {
            "": "no sign of being too hot or too cold",
            "too hot": "too hot: use a smaller step size, a larger minibatch, or more burn-in",
            "too cold": "too cold: is it burnt in, does it move, and is its temperature 1?",
        }[self.heat]
        third = f"temperature {self.temperature} by its energy: {heat}"
        verdict = "indistinguishable from it" if self.near else "a measurable distance away"
        if not self.settled:
            verdict = (
                f"the reference itself has not converged (acceptance {self.acceptance:.2f}, its "
                "halves differ): give more trajectories"
            )
        return "\n".join([first, second, third, verdict])


def fidelity(
    posterior: Sampled,
    data: Any,
    *,
    at: Tensor | None = None,
    prior: PriorLike | None = None,
    trajectories: int = 400,
    steps: int = 10,
    seed: int = 0,
) -> Fidelity:
    """Runs the reference on the posterior's network and data, and compares predictions.

    ``data``: the (x, y) that the posterior was sampled with; ``at``: inputs to predict, by default
    x. ``prior``: needed where the posterior was loaded from a folder, which does not hold it.
    ``trajectories`` of ``steps`` gradients each are kept in every chain, after half as many to
    burn in; they begin where the posterior's chains ended. The reference is always at T = 1, with
    the posterior's own power of the likelihood.
    """
    x, y = split_pair(getattr(data, "tensors", data))
    inside, units = posterior.in_standard_units()
    rows = units.data(x, y)
    params = {k: s[:, -1] for k, s in inside.samples.items()}
    _refuse(sum(p[0].numel() for p in params.values()), len(x))
    starts, chosen, power = _starts(inside, params, prior)
    states, acceptance = _reference_draws(
        inside, rows, starts, chosen, power, trajectories=trajectories, steps=steps, seed=seed
    )
    samples = {k: torch.stack([s[k] for s in states], dim=1) for k in starts}
    chains = len(next(iter(starts.values())))
    reference = posterior.of_draws(units.given(samples))
    inputs = x if at is None else at
    inputs = inputs[:: -(-len(inputs) // MOST_INPUTS)]
    own, other = posterior.predict(inputs, sharpness=1.0), reference.predict(inputs)
    halves = other.samples.unflatten(0, (chains, -1))
    first, second = _halves(halves)
    classes = own.mean.ndim == 2 and own.mean.shape == own.samples.shape[1:] and _sums_to_one(own)
    if classes:
        distance = total_variation(own.mean, other.mean)
        floor = total_variation(first.mean(0), second.mean(0))
    else:
        distance = _binned(own.samples, other.samples)
        floor = _binned(first, second)
    return Fidelity(
        total_variation=distance,
        floor=floor / math.sqrt(2),  # the halves are half as long
        agreement=agreement(own.mean, other.mean) if classes else None,
        kolmogorov=None if classes else _kolmogorov(own.samples, other.samples),
        temperature=_temperature(inside, inside.of_draws(samples), chosen, power, rows),
        acceptance=acceptance,
        reference=reference,
    )


def _refuse(parameters: int, rows: int) -> None:
    if parameters > MOST_PARAMETERS or parameters * rows > MOST_WORK:
        raise ValueError(
            f"a network of {parameters:,} parameters on {rows:,} rows is too large for a "
            "Metropolis-adjusted reference: every one of its steps is a gradient on all rows, and "
            "it needs thousands. The limits are "
            f"{MOST_PARAMETERS:,} parameters, and {MOST_WORK:,} for parameters times rows: give a "
            "smaller network, or use posterior.diagnose(x)"
        )


def _starts(
    posterior: Sampled, last: Params, prior: PriorLike | None
) -> tuple[Params, Mapping[str, Prior], Tensor]:
    """Where the reference's chains begin, their prior, and their power of the likelihood, (chain,).
    Values per chain stay with their chain."""
    chains, healthy = posterior.chains, posterior.healthy
    if not healthy:
        raise ValueError("every chain of the posterior diverged: there is nothing to compare")
    known = posterior.prior if prior is None else resolve(prior, last, chains)
    if known is None:
        raise ValueError(
            "a posterior from a folder does not know its prior: give fidelity(..., prior=...)"
        )
    power = likelihood_powers(posterior.config, chains)
    per_chain = any(map(chainwise, known.values())) or bool((power != power[0]).any())
    rows = healthy if per_chain else [healthy[c % len(healthy)] for c in range(CHAINS)]
    if per_chain and len(healthy) < chains:
        raise ValueError("some chain diverged, and priors differ by chain: sample again without it")
    return {k: p[rows].clone() for k, p in last.items()}, known, power[rows]


def _reference_draws(
    posterior: Sampled,
    data: tuple[Tensor, Tensor],
    starts: Params,
    prior: Mapping[str, Prior],
    power: Tensor,
    *,
    trajectories: int,
    steps: int,
    seed: int,
) -> tuple[list[Params], float]:
    """The kept points of all chains, one after every trajectory, and their mean acceptance."""
    model = plain_copy(posterior.template)
    prepare_model(model, logging.DEBUG)  # the user's sampler has said the same
    first = next(iter(starts.values()))
    chains, device = len(first), first.device
    metric = QuasiDiagonalFisher(decay=schedules.polynomial_average())
    integrator = Adjusted(steps=steps)
    ids = torch.arange(chains, device=device)
    on = LangevinDynamics(
        integrator,
        gradients=Gradients(Network(model), posterior.likelihood, requests=metric.requests),
        preconditioner=metric,
        prior=dict(prior),
        temperature=first.new_ones(chains),
        power=power.to(first),
        noise=random.origin(seed, random.NOISE, ids),
        labels=random.origin(seed, random.LABELS, ids),
        keep_mean=False,
    )
    stream = as_stream(data, batch_size=len(data[0]), chain=ids, seed=seed, device=device)
    burn_in = steps * max(1, trajectories // 2)
    total = burn_in + steps * trajectories
    rates = RatesTable.build(
        0.1, integrator.adaptation(metric, burn_in), stop=total, chains=chains, tuned=burn_in,
        settles=metric.adapt == "burn-in", dtype=first.dtype, device=device,
    )  # fmt: skip
    on.prepare(starts, data[0])
    largest, count = rates.step_size.max(0).values, len(data[0])
    integrator.check(on, Conditions(largest, count, count, rates.adapts_from(burn_in)))
    engine, state = Engine(on, stream, rates, len(data[0]), mode="auto"), on.init(starts)
    state, _ = engine.run(state, 0, burn_in)
    kept = []
    for trajectory in range(trajectories):
        state, _ = engine.run(state, burn_in + trajectory * steps, steps)
        kept.append({k: p.clone() for k, p in state.params.items()})
    return kept, float(integrator.report(state)["acceptance"].mean())


def _sums_to_one(prediction: Predicted) -> bool:
    total = prediction.mean.sum(1)
    return bool(torch.allclose(total, torch.ones_like(total), atol=1e-3)) and bool(
        (prediction.mean >= 0).all()
    )


def _halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """Of draws (chain, draw, ...): those of the first and of the other chains, (draw, ...)."""
    if len(values) > 1:
        middle = len(values) // 2
        return values[:middle].flatten(0, 1), values[middle:].flatten(0, 1)
    first, second = values[0].chunk(2)
    return first, second


def _binned(values: Tensor, reference: Tensor) -> float:
    """Total variation over bins of equal probability under the reference, (draw, input, ...)."""
    levels = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    v, r = values.double().flatten(1).cpu(), reference.double().flatten(1).cpu()
    edges = torch.quantile(r, levels, dim=0).mT.contiguous()
    shares = []
    for each in (v, r):
        places = torch.searchsorted(edges, each.mT.contiguous())
        one_hot = torch.nn.functional.one_hot(places, BINS).double()
        shares.append(one_hot.mean(1))
    return float((shares[0] - shares[1]).abs().sum(1).mean() / 2)


def _kolmogorov(values: Tensor, reference: Tensor) -> float:
    """sup |F - F_ref| of draws (draw, input, ...), averaged over inputs."""
    v, r = (t.double().flatten(1).cpu().mT.contiguous() for t in (values, reference))
    points = torch.cat([v, r], dim=1).sort(dim=1).values
    low, high = (
        torch.searchsorted(t.sort(dim=1).values, points, right=True) / t.shape[1] for t in (v, r)
    )
    return float((low - high).abs().amax(1).mean())


def _temperature(
    posterior: Sampled,
    reference: Sampled,
    prior: Mapping[str, Prior],
    power: Tensor,
    data: tuple[Tensor, Tensor],
) -> Reading:
    """1 + (E - E_ref) / Var_ref U, with the error of the means over quarters of the chains."""
    own = _energies(posterior, prior, likelihood_powers(posterior.config, posterior.chains), data)
    exact = _energies(reference, prior, power, data)
    variance = float(exact.var())
    value = 1 + float(own.mean() - exact.mean()) / variance
    return Reading(value, math.hypot(_error(own), _error(exact)) / variance)


def _energies(
    posterior: Sampled, prior: Mapping[str, Prior], power: Tensor, data: tuple[Tensor, Tensor]
) -> Tensor:
    """U of the healthy chains' draws: (chain, draw) in float64."""
    x, y = data
    network, likelihood = Network(posterior.template), posterior.likelihood
    draws = posterior.draws
    rows = torch.tensor(posterior.healthy)

    def loss(params: Params) -> Tensor:
        outputs = network.call(params, x)
        return likelihood.log_loss(outputs, y, {}).double().sum()

    found = []
    for draw in range(0, draws, -(-draws // MOST_DRAWS)):
        params = {k: s[rows, draw] for k, s in posterior.samples.items()}
        ln_alpha = torch.stack([prior[k].log_density(p).double() for k, p in params.items()]).sum(0)
        with torch.no_grad():
            found.append(power[rows].to(ln_alpha) * vmap(loss)(params) - ln_alpha)
    return torch.stack(found, dim=1)


def _error(values: Tensor) -> float:
    """Of the mean of (chain, draw): from the means of every chain's quarters."""
    means = torch.stack([part.mean(1) for part in values.chunk(4, dim=1)]).flatten()
    return float(means.std() / math.sqrt(len(means)))
