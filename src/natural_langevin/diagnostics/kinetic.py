"""Kinetic temperature: the ratio of a step's noise to its drift.

A step adds Delta = -a eta C v + sqrt(b) sqrt(2 h eta T / N) C^{1/2} xi, where a = b = 1 if the
dynamics are correct, and h = 1 for ``Overdamped`` (see ``Integrator.innovation``). In general they
sample, for small eta, at the temperature

    T_effective = T b / a.

The dynamics take the steps; only the result of each is used. The drift p = -eta C v is formed from
v by autograd (see ``energy``) and the metric's own C. With any positive weights D, independent of
the noise, and r = Delta - a p:

    a = p.D^{-1} Delta / p.D^{-1} p,      b = N/(2 eta T) r.D^{-1} r / tr(D^{-1} C)

D is a rough diagonal of C, so that large and small entries of C count alike. The trace is found by
applying C to random signs s (Hutchinson), which is exact for a diagonal C and unbiased for any.
Sums run over all parameters, steps and chains. Their errors follow from C, since the noise is
Gaussian: those measured over 16 steps would be too small wherever a reading seems precise by
chance. With M = D^{-1/2} C D^{-1/2}, whose tr M^2 is the mean of |M s|^2,

    var a = b 2 eta T/N p.D^{-1} C D^{-1} p / (p.D^{-1} p)^2
    var b = b^2 2 (tr M^2 + sum of squares of M off its diagonal) / (tr M)^2

where the second term is the trace's. Nothing needs the chain to have converged.

A minibatch adds noise of its own, which is not Langevin's: eta C (v_B - v). Its size follows from
the difference of two halves of a batch (without replacement from R rows, hence the last factor;
these are N, but where ``num_data`` says otherwise):

    minibatch = N/(2 eta) |eta C delta|^2 / tr(D^{-1} C),   delta = (v_1 - v_2)/2 sqrt(1 - B/R)

in units of temperature: 0.3 means that samples may be as hot as T + 0.3. That holds for independent
minibatches; ``left_by_epochs`` is the share that remains for shuffled epochs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Batch, Params, per_chain
from natural_langevin.diagnostics.energy import energy_gradient
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import Rates
from natural_langevin.preconditioners import Factor

#: Squared draws of the noise that are averaged into the weights D.
_WEIGHT_DRAWS = 16
#: E[D^-2] / E[D^-1]^2 of one such weight.
_ROUGH = (_WEIGHT_DRAWS - 2) / (_WEIGHT_DRAWS - 4)
#: A drift known less well than this says nothing useful about its scale.
DRIFT_ERROR = 0.1


def left_by_epochs(eta_k: float, num_data: float, batch: float) -> float:
    """The share of the heat of independent minibatches that remains with shuffled epochs, in a
    direction of curvature k: their errors add up to zero over an epoch of m = N / B steps, except
    for dropped rows.

        min(1, eta k m (m + 1) / 12 + dropped / (N - B))

    >>> round(left_by_epochs(0.06, 100, 25), 4), left_by_epochs(0.06, 60_000, 100)
    (0.1, 1.0)
    """
    if num_data <= batch:
        return 0.0
    m = num_data / batch
    return min(1.0, eta_k * m * (m + 1) / 12 + (num_data % batch) / (num_data - batch))


@dataclass(frozen=True)
class Kinetic:
    """``temperature``, ``noise`` (b) and ``drift`` (a) are ratios to what they should be: 1.

    ``temperature`` is b / a, or b alone where the drift is too weak to be measured against the
    noise (``drift`` is None). ``tensors`` holds b of every parameter tensor. ``cold``: the
    temperature of chains whose T is 0, beyond rounding; None without such chains. ``lost`` is the
    fraction of steps whose noise is comparable to the parameters' rounding; they are left out.
    """

    temperature: Reading | None
    noise: Reading | None
    drift: Reading | None
    tensors: dict[str, Reading]
    minibatch: float | None
    cold: float | None
    lost: float

    @property
    def wrong_tensors(self) -> dict[str, Reading]:
        """The parameter tensors whose ratio of noise to drift is not 1 within its error."""
        return {name: b for name, b in self.tensors.items() if b.differs_from(1.0)}

    @property
    def wrong(self) -> bool:
        """Whether any of the readings is beyond its error."""
        readings = [r for r in (self.temperature, self.noise, self.drift) if r is not None]
        hot = self.cold is not None and self.cold > 1e-6
        return hot or bool(self.wrong_tensors) or any(r.differs_from(1.0) for r in readings)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(words: dict[str, Any]) -> Kinetic:
        """The inverse of ``dataclasses.asdict``, for what a run folder holds as JSON."""
        known = {k: words[k] for k in Kinetic.__dataclass_fields__}
        for name in ("temperature", "noise", "drift"):
            known[name] = None if known[name] is None else Reading(*known[name])
        known["tensors"] = {k: Reading(*v) for k, v in known["tensors"].items()}
        return Kinetic(**known)


class Replicates(NamedTuple):
    """Measurements of some steps of some chains, a row for each: (row, tensor, column)."""

    warm: Tensor
    cold: Tensor
    lost: Tensor  # (1,): steps whose noise was lost in rounding


def nothing(names: list[str]) -> Replicates:
    """Replicates of no step at all, for a process without running chains."""
    none = torch.empty(0, len(names), _ROUNDING + 1, dtype=torch.float64)
    return Replicates(none, none, torch.zeros(1, dtype=torch.int64))


def measure(
    dynamics: LangevinDynamics,
    state: State,
    batches: Iterable[Batch],
    rates: Rates,
    num_data: float,
    *,
    chain_axis: bool,
    rows: float | None = None,
    seed: int = 0,
) -> Replicates:
    """One step per batch, from ``state`` on, which is not changed. ``rows``: R; None: N.

    With control variates the noise is measured on plain gradients, and minibatch heat is not
    measured, because that of plain gradients would be wrong."""
    reduced, state = bool(state.anchor), state._replace(anchor=())
    generator = torch.Generator(state.step.device).manual_seed(seed)
    temperature, eta = dynamics.temperature.double().cpu(), rates.step_size.cpu()
    none = nothing(list(state.params))
    warm, cold, swallowed = [none.warm], [none.cold], 0
    for batch in batches:
        new, _ = dynamics.step(state, batch, rates, num_data, chain_axis=chain_axis)
        found = dynamics.integrator.innovation(state, new)
        if found is None:
            break
        used = new.metric if dynamics.fresh(rates.kind) else state.metric
        C = dynamics.factor(used, state.params, num_data)
        weights = _rough_diagonal(C, state, generator)
        sums = _step_sums(dynamics, state, new, batch, rates, num_data, C, weights, chain_axis,
                          generator, num_data if rows is None else rows)  # fmt: skip
        if reduced:
            sums[..., _HEAT] = torch.nan
        finite = torch.isfinite(sums[..., : _TRACE + 1]).flatten(1).all(1)
        running = (new.diverged < 0).cpu() & finite & (eta > 0)
        lost = sums[..., _ROUNDING].sum(1) > 0.01 * temperature * sums[..., _TRACE].sum(1)
        hot = running & (temperature > 0) & ~lost
        swallowed += int((running & (temperature > 0) & lost).sum())
        # In units of every chain's own temperature, so that chains can be pooled.
        unit = torch.where(hot, temperature, 1.0)[:, None, None]
        scaled = torch.cat([sums[..., :_TRACE] / unit, sums[..., _TRACE:]], dim=2)
        warm.append(scaled[hot])
        cold.append(sums[running & (temperature == 0)])
        state = new
    return Replicates(torch.cat(warm), torch.cat(cold), torch.tensor([swallowed]))


# Columns of the sums of a step, (chain, tensor, column), times N / (2 eta), those before the trace
# in units of the temperature. _PCP is the variance of _PD, _SPREAD that of _DD - _TRACE.
_PP, _PD, _DD, _PCP, _TRACE, _SPREAD, _HEAT, _ROUNDING = range(8)


def _step_sums(
    dynamics: LangevinDynamics,
    old: State,
    new: State,
    batch: Batch,
    rates: Rates,
    num_data: float,
    metric: Factor,
    weights: Params,
    chain_axis: bool,
    generator: torch.Generator,
    rows: float,
) -> Tensor:
    eta, theta = rates.step_size, old.params
    v, delta = _gradient_of_halves(dynamics, old, new, batch, num_data, chain_axis, rows)
    p = {k: -per_chain(eta, c) * c for k, c in metric.apply(v).items()}
    heat = {k: per_chain(eta, c) * c for k, c in metric.apply(delta).items()}
    root = {k: weights[k].rsqrt() for k in weights}
    signs = {
        k: torch.randint(0, 2, t.shape, generator=generator, device=t.device).to(t) * 2 - 1
        for k, t in theta.items()
    }
    image = metric.apply({k: signs[k] * root[k] for k in signs})
    pushed = metric.apply({k: p[k] / weights[k] for k in p})
    innovation = dynamics.integrator.innovation(old, new)
    assert innovation is not None
    change, share = innovation
    scale = dynamics.weight(num_data) / (2 * share * eta.double())
    columns = []
    for k, w in weights.items():
        moved = change[k].double()
        rounding = torch.finfo(theta[k].dtype).eps * theta[k].double().abs()
        pairs = [(p[k], p[k]), (p[k], moved), (moved, moved), (p[k], pushed[k])]
        quadratic = [scale * _dot(a.double() / w.double(), b) for a, b in pairs]
        # M s, and from it tr M and tr M^2
        turned = root[k].double() * image[k]
        trace, square = _dot(signs[k], turned), _dot(turned, turned)
        diagonal = trace.square() * _ROUGH / (theta[k][0].numel() - 1 + _ROUGH)
        quadratic += [trace, 2 * (2 * square - diagonal)]
        quadratic += [scale * _dot(a.double() / w.double(), a) for a in (heat[k], rounding)]
        columns.append(torch.stack(quadratic, dim=1))
    return torch.stack(columns, dim=1).cpu()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of every chain, in float64: (chain,)."""
    return (a.double() * b.double()).reshape(len(a), -1).sum(1)


def _rough_diagonal(metric: Factor, state: State, generator: torch.Generator) -> Params:
    """Weights D > 0: mean squares of a few vectors of covariance C."""
    total = {k: torch.zeros_like(p) for k, p in state.params.items()}
    for _ in range(_WEIGHT_DRAWS):
        z = {
            k: torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
            for k, p in state.params.items()
        }
        drawn = metric.sample(z)
        total = {k: total[k] + drawn[k].square() / _WEIGHT_DRAWS for k in total}
    return {k: t.clamp_min(torch.finfo(t.dtype).tiny) for k, t in total.items()}


def _gradient_of_halves(
    dynamics: LangevinDynamics,
    old: State,
    new: State,
    batch: Batch,
    num_data: float,
    chain_axis: bool,
    rows: float,
) -> tuple[Params, Params]:
    """v on the batch, and delta: a vector with the covariance of its minibatch noise."""
    axis = 1 if chain_axis else 0
    size = batch[0].shape[axis]
    first = size // 2
    (x, x_rest), (y, y_rest) = (t.tensor_split([first], dim=axis) for t in batch)
    parts = [(x_rest, y_rest), (x, y)] if first else [(x_rest, y_rest)]
    gradients = [
        energy_gradient(
            dynamics.gradients.network.call, dynamics.gradients.likelihood, dynamics.prior,
            dynamics.weight(num_data), old.params, new.likelihood, part, chain_axis=chain_axis,
        )
        for part in parts
    ]  # fmt: skip
    if not first:
        return gradients[0], {k: torch.full_like(g, torch.nan) for k, g in gradients[0].items()}
    share = first / size
    left = max(0.0, 1 - size / float(rows)) * share * (1 - share)
    one, two = gradients
    mean = {k: (1 - share) * one[k] + share * two[k] for k in one}
    return mean, {k: left**0.5 * (one[k] - two[k]) for k in one}


def _readings(sums: Tensor) -> list[Reading]:
    """(tensor, column) -> b / a, b, a, and b of every tensor."""

    def noise(s: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        residual = s[..., _DD] - 2 * a * s[..., _PD] + a.square() * s[..., _PP]
        b = residual / s[..., _TRACE]
        return b, b.abs() * s[..., _SPREAD].sqrt() / s[..., _TRACE]

    total = sums.sum(0)
    a = torch.where(total[_PP] > 0, total[_PD] / total[_PP], 1.0)
    b, error = noise(total, a)
    of_a = (b.clamp_min(0) * total[_PCP]).sqrt() / total[_PP]
    of_ratio = (error.square() + (b / a * of_a).square()).sqrt() / a.abs()
    of_all = torch.stack([torch.stack([b / a, b, a]), torch.stack([of_ratio, error, of_a])])
    both = torch.cat([of_all, torch.stack(noise(sums, a))], dim=1)
    return [Reading(value, error) for value, error in both.T.tolist()]


def summarise(found: Replicates, names: list[str]) -> Kinetic | None:
    """All steps of all chains together; None if no chain was running."""
    (warm, cold, _), swallowed = found, int(found.lost.sum())
    both = torch.cat([warm, cold])
    if not len(both) + swallowed:
        return None
    lost = swallowed / (len(both) + swallowed)
    heat = both[..., _HEAT].sum(1) / both[..., _TRACE].sum(1)
    heat = heat[torch.isfinite(heat)]
    minibatch = float(heat.mean()) if len(heat) else None
    hot = None
    if len(cold):
        total = cold.sum((0, 1))
        residual = total[_DD] - 2 * total[_PD] + total[_PP]
        hot = float(((residual - 4 * total[_ROUNDING]) / total[_TRACE]).clamp_min(0))
    if not len(warm):
        return Kinetic(None, None, None, {}, minibatch, hot, lost)
    ratio, noise, drift, *by_tensor = _readings(warm.sum(0))
    known = drift.error < DRIFT_ERROR * max(1.0, abs(drift.value)) and isfinite(ratio.error)
    return Kinetic(
        temperature=ratio if known else noise,
        noise=noise,
        drift=drift if known else None,
        tensors={n: b for n, b in zip(names, by_tensor, strict=True) if isfinite(b.error)},
        minibatch=minibatch,
        cold=hot,
        lost=lost,
    )
