"""Predictive distribution of an ensemble: the equal-weight mixture of its networks' distributions.

    p(y | x) = (1/M) sum_m p(y | x, theta_m)

Of classes it is again a distribution over classes, with the mean probabilities. Of anything else
it is a ``Mixture``. ``outputs`` are those of M networks for B inputs, (M, B, ...), and ``state``
is what the likelihood learned, one value per network.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, Normal, Poisson
from torch.nn.functional import logsigmoid

from natural_langevin import random
from natural_langevin.likelihoods import mixtures
from natural_langevin.likelihoods.base import Likelihood, State, components, per_sample, shape_of

#: Quantiles further than this from the mean are not searched for.
_LARGEST = 2.0**52
#: Numbers evaluated at once, over networks, targets and places.
_VALUES = 1 << 22
#: Counts up to here are added up one by one.
_COUNTS = 1000
#: Classes up to which their probabilities are worked out class by class.
_FEW_CLASSES = 32
#: Gauss-Legendre nodes in every panel of a CRPS by quadrature.
_NODES = 12


class NetworkPredictions(NamedTuple):
    """Every network's prediction: its value and its own uncertainty.

    ``classes``: the kind of distribution over classes, whose probabilities the values are and whose
    entropies the spreads; None: values are means and spreads variances, or None if the likelihood
    has no distribution."""

    value: Tensor  # (M, B, ...)
    spread: Tensor | None
    classes: type[Distribution] | None


def predicted_by(likelihood: Likelihood, outputs: Tensor, state: State) -> NetworkPredictions:
    """Every network's own prediction."""
    logits = likelihood.class_logits(outputs)
    if logits is not None and logits.ndim > 2 and logits.shape[-1] <= _FEW_CLASSES:
        return NetworkPredictions(*_of_few_classes(logits), Categorical)
    law = _side_by_side(likelihood, outputs, state)
    if law is None:
        return NetworkPredictions(outputs, None, None)
    count, batch = outputs.shape[:2]
    if isinstance(law, Categorical | Bernoulli):
        value, spread = law.probs, law.entropy()
        classes: type[Distribution] | None = type(law)
    else:
        # In memory of its own: torch.export cannot tell the rows of an expanded view apart.
        value, spread, classes = law.mean + 0, law.variance, None
    return NetworkPredictions(
        value.unflatten(0, (count, batch)), spread.unflatten(0, (count, batch)), classes
    )


def _of_few_classes(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and entropies of logits (..., K), class by class: torch's softmax over a few
    numbers that lie side by side takes ten times as long."""
    z = logits.movedim(-1, 0).contiguous()
    z = (z - z.amax(0)).clamp_min(torch.finfo(z.dtype).min)  # -inf: a class of probability 0
    p = z.exp()
    total = p.sum(0)
    p = p / total
    return p.movedim(0, -1).contiguous(), total.log() - (p * z).sum(0)


def log_probabilities(
    likelihood: Likelihood, outputs: Tensor, state: State
) -> tuple[Tensor, type[Distribution]] | None:
    """ln p of every class by every network, (M, B, ..., K), two classes of a binary target, and
    the kind of distribution; None where targets are no classes."""
    law = _side_by_side(likelihood, outputs, state)
    if not isinstance(law, Categorical | Bernoulli):
        return None
    log_p: Tensor = law.logits
    if isinstance(law, Bernoulli):
        log_p = torch.stack([logsigmoid(-log_p), logsigmoid(log_p)], -1)
    return log_p.unflatten(0, outputs.shape[:2]), type(law)


def of_classes(classes: type[Distribution], probabilities: Tensor) -> Distribution:
    """The distribution of this kind with these (mean) probabilities."""
    return classes(probs=probabilities, validate_args=False)  # type: ignore[call-arg]


def probabilities(law: Distribution) -> Tensor:
    """Of every class, (..., K): a binary target has two, 0 and 1."""
    p: Tensor = law.probs  # type: ignore[attr-defined]
    return torch.stack([1 - p, p], -1) if isinstance(law, Bernoulli) else p


class Mixture(Distribution):
    """The predictive distribution of B targets. ``log_prob`` (B,) is that of whole targets, whose
    components are independent given the network, not over networks; everything else is of single
    components, (B, ...). In float64."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, likelihood: Likelihood, outputs: Tensor, state: State) -> None:
        self._likelihood, self._outputs, self._state = likelihood, outputs.double(), state
        law = _side_by_side(likelihood, self._outputs, state)
        assert law is not None, "the likelihood has no distribution to mix"
        self._networks, self._count = law, len(outputs)
        self._below = self._outputs.new_empty(0, *outputs.shape[1:2], *shape_of(law)[1:])
        super().__init__(torch.Size(outputs.shape[1:2]), shape_of(law)[1:], validate_args=False)

    def __repr__(self) -> str:
        name = type(self._networks).__name__
        return f"Mixture({self._count} x {name}, targets {tuple(self._batch_shape)})"

    def _of_each(self, values: Tensor) -> Tensor:
        """(M * B, ...) -> (M, B, ...)."""
        return values.unflatten(0, (self._count, self.batch_shape[0]))

    def _over_networks(self, function: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        """The networks' average of a function of a component, at y (B, ...) or (n, B, ...)."""
        shape = self.batch_shape + self.event_shape
        y = y.double().reshape(-1, *shape)
        part = max(1, _VALUES // max(1, y[:1].numel() * self._count))
        found = [
            function(some.repeat(1, self._count, *(1,) * len(self.event_shape)))
            .unflatten(1, (self._count, shape[0]))
            .mean(1)
            for some in y.split(part)
        ]
        return torch.cat(found)

    @property
    def is_normal(self) -> bool:
        """Whether the noise of every network is normal."""
        return isinstance(self._networks, Normal)

    @property
    def mean_state(self) -> State:
        """What the likelihood learned, averaged over the networks."""
        return {k: v.mean() for k, v in self._state.items()}

    @property
    def is_discrete(self) -> bool:
        """Whether targets are counts."""
        support = self._networks.support
        return support is not None and bool(support.is_discrete)

    @property
    def mean(self) -> Tensor:
        return self._of_each(self._networks.mean).mean(0)

    @property
    def aleatoric(self) -> Tensor:
        """The networks' own variance, on average."""
        return self._of_each(self._networks.variance).mean(0)

    @property
    def epistemic(self) -> Tensor:
        """The variance of the networks' means."""
        return self._of_each(self._networks.mean).var(0, correction=0)

    @property
    def variance(self) -> Tensor:
        """Aleatoric and epistemic together."""
        return self.aleatoric + self.epistemic

    def log_prob(self, value: Tensor) -> Tensor:
        """ln p of whole targets (B, ...): (B,)."""
        return torch.logsumexp(self.log_prob_of_each(value), dim=0) - math.log(self._count)

    def log_prob_of_each(self, value: Tensor) -> Tensor:
        """ln p of whole targets (B, ...) by every network: (M, B)."""
        y = value.double().reshape(self.batch_shape + self.event_shape)
        y = y.repeat(self._count, *(1,) * len(self.event_shape))
        return self._of_each(per_sample(self._networks.log_prob(y)))

    def cdf(self, value: Tensor) -> Tensor:
        """P(Y <= y) of every component, at (B, ...) or (n, B, ...)."""
        below = self._over_networks(self._networks.cdf, value)
        return below if value.ndim > len(self.event_shape) + 1 else below[0]

    def _smooth_cdf(self, t: Tensor) -> Tensor:
        """That of numbers; of counts, linear between them."""
        if not self.is_discrete:
            return self.cdf(t)
        whole = t.floor()
        return torch.lerp(self.cdf(whole), self.cdf(whole + 1), t - whole)

    def icdf(self, value: float | Sequence[float] | Tensor) -> Tensor:
        """The quantile of every component at a level, (B, ...), or at several, (n, B, ...): y with
        P(Y <= y) = level, or of counts the smallest with P(Y <= y) >= level."""
        levels = torch.as_tensor(value, dtype=torch.float64, device=self._outputs.device)
        for level in levels.flatten().tolist():
            mixtures.check_level(level)
        law = self._networks
        if isinstance(law, Normal):  # the components' own quantiles make a tight bracket
            means, variance = self._of_each(law.loc), self._of_each(law.scale).square()
            rows = [mixtures.quantile(q, means, variance) for q in levels.flatten().tolist()]
            found = torch.stack(rows)
        else:
            found = self._search(levels.reshape(-1, 1, *(1,) * len(self.event_shape)))
        return found if levels.ndim else found[0]

    def _search(self, level: Tensor) -> Tensor:
        """Quantiles of counts by adding up, or by bisection where they are large; of numbers with
        Newton's steps."""
        if self.is_discrete:
            below = self._cumulative(float(level.max()))
            if below is not None:
                return torch.cat([(below < one).sum(0, keepdim=True) for one in level]).double()
        low, high = self._bracket(level)
        if not self.is_discrete:
            found = mixtures.search(self.cdf, self._density, level, low, high)
            least = self.least  # which may have a probability of its own
            if least is None:
                return found
            there = self.cdf(torch.full_like(found, least)) >= level
            return found.masked_fill(there, least)
        while bool((high - low > 1).any()):
            middle = ((low + high) / 2).floor()
            below = self.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high

    @property
    def least(self) -> float | None:
        """The smallest number that a target can be, if there is one, the same for all."""
        bound = getattr(self._networks.support, "lower_bound", None)
        return float(bound) if isinstance(bound, int | float) else None

    def between(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low <= Y <= high) of every component, the ends included: of counts, and of numbers one
        of which has a probability, more than the level of the interval that they are ends of."""
        before = low - 1 if self.is_discrete else low
        below = self.cdf(before)
        if self.least is not None:
            below = below.masked_fill(low <= self.least, 0.0)
        return self.cdf(high) - below

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score of every component, integral of
        (P(Y <= t) - 1[y <= t])^2 dt: in closed form for normal distributions, a sum for counts up
        to a thousand, otherwise by quadrature between quantiles (relative error about 1e-4)."""
        y, law = y.double().reshape(self.batch_shape + self.event_shape), self._networks
        if isinstance(law, Normal):
            return mixtures.crps(y, self._of_each(law.loc), self._of_each(law.scale).square())
        total = torch.zeros_like(y)
        if self.is_discrete:
            below = self._cumulative(1 - 1e-9, y.max())
            if below is not None:
                t = torch.arange(len(below), device=y.device).reshape(-1, *(1,) * y.ndim)
                return (below - (y <= t).double()).square().sum(0)
            last = torch.maximum(self.icdf(1 - 1e-9), y)
            few = last <= _COUNTS
            if bool(few.any()):
                for t in torch.arange(int(last[few].max()) + 1).to(y).split(64):
                    t = t.reshape(-1, *(1,) * y.ndim).expand(-1, *y.shape)
                    total += (self.cdf(t) - (y <= t).double()).square().sum(0)
            # Euler and Maclaurin: the sum over t < y, of F(t)^2, is the integral - F(y)^2 / 2, and
            # that from y on, of (1 - F(t))^2, is the integral + (1 - F(y))^2 / 2.
            return (
                total
                if bool(few.all())
                else total.where(few, self._integral(y) + 0.5 - self.cdf(y))
            )
        return self._integral(y)

    def _integral(self, y: Tensor) -> Tensor:
        """The integral of (P(Y <= t) - 1[y <= t])^2 dt, by quadrature between quantiles."""
        total = torch.zeros_like(y)
        levels = [1e-5, 1e-3, 0.02, 0.15, 0.5, 0.85, 0.98, 1 - 1e-3, 1 - 1e-5]
        knots = torch.cat([self.icdf(levels), y[None]]).sort(0).values
        nodes, weights = (
            torch.as_tensor(v).to(y).reshape(-1, *(1,) * y.ndim)
            for v in np.polynomial.legendre.leggauss(_NODES)
        )
        for low, high in itertools.pairwise(knots):
            t = low + (high - low) * (nodes + 1) / 2
            heights = (self._smooth_cdf(t) - (y <= t).double()).square()
            total += (high - low) / 2 * (weights * heights).sum(0)
        return total

    def sample(self, sample_shape: Any = (), *, seed: int = 0) -> Tensor:
        """Draws of whole targets, (*sample_shape, B, ...): first of a network, then of its noise.
        Counter-based: the same seed, the same draws, and torch's generators are untouched."""
        count, batch = math.prod(sample_shape), self.batch_shape[0]
        origin = random.origin(seed, random.LABELS, torch.arange(1, device=self._outputs.device))
        u = random.uniform(random.stream(origin, 0)[0], count * batch).double()
        network = (u * self._count).long().clamp_max(self._count - 1)
        rows = torch.arange(batch, device=network.device).repeat(count)
        outputs = self._outputs[network, rows]
        state = {k: _like(v.to(outputs.device)[network], outputs) for k, v in self._state.items()}
        draws = self._likelihood.sample(outputs, random.stream(origin, 1)[0], state)
        return draws.reshape(*sample_shape, *self.batch_shape, *self.event_shape)

    def _density(self, y: Tensor) -> Tensor:
        """p(y) of every component."""
        return self._over_networks(lambda t: self._networks.log_prob(t).exp(), y)

    def _cumulative(self, level: float, least: Tensor | float = 0.0) -> Tensor | None:
        """P(Y <= 0), P(Y <= 1), ... of every component, (n, B, ...), up to where all of them have
        reached ``level`` and beyond ``least``; None where that is far. Probabilities of counts are
        added up: the networks' own cdf is an incomplete gamma or beta function for each."""
        if float(least) > _COUNTS or float(self.mean.max()) > _COUNTS:
            return None
        if self.mean.numel() * _COUNTS > 16 * _VALUES:  # all of them are kept
            return None
        while len(self._below) <= float(least) or not bool((self._below[-1] >= level).all()):
            first = len(self._below)
            if first >= _COUNTS:
                return None
            heights = torch.stack([self._height(t) for t in range(first, first + 16)])
            before = self._below[-1:] if first else torch.zeros_like(heights[:1])
            self._below = torch.cat([self._below, before + heights.cumsum(0)])
        return self._below

    def _height(self, count: int) -> Tensor:
        """P(Y = count) of every component."""
        law = self._networks
        if not isinstance(law, Poisson):
            return self._density(self.mean.new_full(self.mean.shape, float(count)))[0]
        # A logarithm of every rate once, where ``log_prob`` takes ln gamma of every count, too.
        log_p = count * self._log_rate - law.rate - math.lgamma(count + 1)
        return self._of_each(log_p.exp()).mean(0)

    @functools.cached_property
    def _log_rate(self) -> Tensor:
        return self._networks.rate.clamp_min(1e-300).log()  # type: ignore[attr-defined]

    def _bracket(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers below and above the quantiles: further from the middle network's mean until they
        are. (The mean of all may be infinite where one network's noise is wide.)"""
        middle, reach = (
            self._of_each(v).nanquantile(0.5, dim=0).nan_to_num(usual, posinf=usual, neginf=usual)
            for v, usual in ((self._networks.mean, 0.0), (self._networks.stddev, 1.0))
        )
        middle = middle.expand(len(level), *middle.shape)
        reach = reach.clamp_min(1e-6)
        floor = -math.inf
        if self.is_discrete:
            middle, reach, floor = middle.floor(), reach.ceil(), -1.0
        low, high = (middle - reach).clamp_min(floor), middle + reach
        while bool((reach < _LARGEST).any()):
            too_high = (self.cdf(low) >= level) & (low > floor)
            too_low = self.cdf(high) < level
            if not bool((too_high | too_low).any()):
                break
            reach = 2 * reach
            low = torch.where(too_high, middle - reach, low).clamp_min(floor)
            high = torch.where(too_low, middle + reach, high)
        return low, high


def _side_by_side(likelihood: Likelihood, outputs: Tensor, state: State) -> Distribution | None:
    """The networks' distributions as one, of M * B samples."""
    batch, flat = outputs.shape[1], outputs.flatten(0, 1)
    # Not by repeat_interleave, which becomes a fixed number of inputs in ONNX.
    repeated = {
        k: _like(v.to(flat)[:, None].expand(-1, batch).reshape(-1), flat) for k, v in state.items()
    }
    law = likelihood.distribution(flat, repeated)
    return None if law is None else components(law)


def _like(values: Tensor, outputs: Tensor) -> Tensor:
    """One value per sample, shaped to broadcast against the outputs."""
    return values.reshape(-1, *(1,) * (outputs.ndim - 1)).to(outputs.dtype)
