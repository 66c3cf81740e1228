"""Predictive distributions of a table's rows: mixtures over the networks of weighted posteriors.

    p(y | x) = sum_m w_m p(y | x, theta_m)

with the noise of real targets widened (or narrowed) by the factor that held-out rows gave, and
everything in the target's own units: a target that was sampled as its logarithm has the density of
the logarithm divided by y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Normal

from natural_langevin.likelihoods.distributions import NegativeBinomial, ZeroOrLogNormal
from natural_langevin.likelihoods.mixtures import check_level, search
from natural_langevin.tabular.outcome import Outcome

Array = NDArray[Any]

#: Standard deviations of the training targets' logarithms above their mean where moments end.
FAR = 6.0
#: In units of the largest training target, and the level of the interval that holds every mean.
BEYOND, MEAN_WITHIN = 2.0, 0.99
#: Standard deviations within which quantiles are searched for, and sqrt(2 pi).
_FURTHEST, _ROOT = 12.0, math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Networks:
    """Outputs (network, n, ...) of several networks, and the variance (network,) that each learned
    where its likelihood learns one."""

    outputs: Tensor
    variance: Tensor | None

    def of(self, numbers: Tensor) -> Networks:
        """Some of the networks, by their numbers."""
        return Networks(
            self.outputs[numbers], None if self.variance is None else self.variance[numbers]
        )

    def law(
        self, outcome: Outcome, scale: float | Tensor = 1.0, drift: Tensor | None = None
    ) -> Distribution:
        """p(u | x, theta) of every network on the sampled scale, (network, n, target); normal noise
        (of a positive amount's logarithm too) is multiplied by ``scale``. ``drift``: the deviation,
        (n, 1) or (network, n, 1), of one more normal variable that is added to it; of counts to the
        logarithm of their rate, whose mean stays."""
        state = {}
        if self.variance is not None:
            state = {"variance": self.variance.double().reshape(-1, 1, 1)}
        outputs = self.outputs.double()
        law = outcome.likelihood.distribution(outputs, state)
        assert law is not None
        if isinstance(law, Normal | ZeroOrLogNormal):
            width = scale * law.scale
            width = width if drift is None else torch.hypot(width, drift.expand_as(law.loc))
            if isinstance(law, Normal):
                return Normal(law.loc, width, validate_args=False)
            return ZeroOrLogNormal(law.logits, law.loc, width)
        if drift is not None and outcome.task == "count":  # a gamma variable for the log-normal
            mean = law.mean
            excess = (law.variance - mean) / mean.square()
            excess = ((1 + excess) * drift.square().clamp_max(10.0).exp() - 1).clamp_min(1e-6)
            return NegativeBinomial(1 / excess, logits=(mean * excess).log(), validate_args=False)
        return law


class Predictive:
    """The distribution of every row's target; arrays of shape (n,), or (n, target) of several.

    Components of several targets are independent given the network, not over networks. Where no
    target can be negative (``Outcome.bounded``) and the noise is normal, y is max(0, z) of the
    normal variable z, of a share or percentage min(max(0, z), c): means, quantiles and draws are
    those of y, and ``log_prob`` is z's density or, at 0 and at c, ln of the probability that y has
    there (beyond them -inf). Of a target whose logarithm is sampled, means and variances are those
    of min(y, c), c BEYOND times ``Outcome.largest`` (of the training targets or, where folds were
    held out, the part of it with which their means come closest to their targets; at most ``FAR``
    standard deviations of their logarithms above the mean; so are those of amounts in two parts): a
    single network with very uncertain noise would make the mean of all infinite. And the mean is
    never outside the central interval of MEAN_WITHIN: beyond it, a few networks would determine it.
    Of any other real target a network's mean counts in the mean of all as no further beyond the
    training targets than these are wide; how far networks are apart is not bounded. Medians and
    intervals need no bound."""

    def __init__(self, outcome: Outcome, law: Distribution, weights: Tensor, *, flat: bool) -> None:
        self._outcome, self._law, self._flat = outcome, law, flat
        self._weights = weights.double()
        self.upper = math.inf if outcome.upper is None else outcome.upper
        self._mean = torch.tensor(outcome.mean, dtype=torch.float64)
        self._scale = torch.tensor(outcome.scale, dtype=torch.float64)

    def __len__(self) -> int:
        return int(self._law.batch_shape[1])

    @property
    def bounded(self) -> bool:
        """Whether nothing is below 0, though the noise is normal."""
        return self._outcome.bounded and isinstance(self._law, Normal)

    @property
    def may_be_zero(self) -> bool:
        """Whether exactly 0 has a probability, and nothing is below it."""
        return self.bounded or isinstance(self._law, ZeroOrLogNormal)

    @property
    def zero(self) -> Array | None:
        """P(y = 0) of counts, and of amounts in two parts; None elsewhere."""
        if isinstance(self._law, Normal | Bernoulli):
            return None
        return self._shaped(self._average(self._law.log_prob(torch.zeros(())).exp()))

    @property
    def mean(self) -> Array:
        """E[y], where the logarithm is sampled within the interval of MEAN_WITHIN."""
        means = self._moments[0]
        if self._outcome.ends:
            low, high = torch.tensor(self._outcome.ends, dtype=torch.float64).T
            means = means.clamp(low - (high - low), high + (high - low))
        found = self._shaped(self._average(means))
        return np.clip(found, *self.interval(MEAN_WITHIN)) if self._outcome.log else found

    @property
    def variance(self) -> Array:
        """The networks' noise on average, and the variance of their means."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Array:
        """The predictive standard deviation of every row."""
        return np.sqrt(self.variance)

    @property
    def aleatoric(self) -> Array:
        """The networks' own variance, on average."""
        return self._shaped(self._average(self._moments[1]))

    @property
    def epistemic(self) -> Array:
        """The variance of the networks' means."""
        means, _ = self._moments
        return self._shaped(self._average((means - self._average(means)).square()))

    def log_prob(self, y: Any) -> Array:
        """ln p of whole targets (n,) or (n, target): (n,)."""
        values = self._given(y)
        u, jacobian = self._sampled(values)
        terms = self._law.log_prob(u.nan_to_num(0.0)) + jacobian
        if self._outcome.whole and isinstance(self._law, ZeroOrLogNormal):
            terms = self._of_counts(self._law, values, terms)
        if isinstance(self._law, Normal):  # at the ends is a probability, and no density
            for end, sign in ((0.0 if self.bounded else math.nan, 1), (self.upper, -1)):
                if bool((values == end).any()):
                    z = sign * (u - self._law.loc) / self._law.scale
                    terms = torch.where(values == end, torch.special.log_ndtr(z), terms)
        beyond = (values > self.upper) | ((values < 0) & self.bounded)
        terms = torch.where(u.isfinite() & ~beyond, terms, -torch.inf).sum(-1)
        terms = torch.where(terms.isnan(), -torch.inf, terms)
        return torch.logsumexp(terms + self._weights.log()[:, None], 0).numpy()

    def _of_counts(self, law: ZeroOrLogNormal, y: Tensor, density: Tensor) -> Tensor:
        """ln P(y) of counts: of all amounts from y - 1/2 to y + 1/2 (of 1: below 3/2)."""
        above = [
            torch.special.ndtr((law.loc - self._sampled(end)[0].log()) / law.scale)
            for end in (torch.where(y > 1, y - 0.5, 0.0), y + 0.5)
        ]
        inside = law.probs * (above[0] - above[1])
        # Far out in a tail the density is what rounding leaves.
        terms = torch.where((y > 0) & (inside > 1e-12), inside.log(), density)
        return torch.where(y == y.round(), terms, -torch.inf)

    def cdf(self, y: Any) -> Array:
        """P(Y <= y) of every component."""
        values = self._given(y)
        if self._outcome.whole:
            values = values.floor() + 0.5 * (values >= 1)
        below = self._cdf(self._sampled(values)[0])
        below = torch.where(values < 0, 0.0, below) if self.bounded else below
        return self._shaped(torch.where(values >= self.upper, 1.0, below))

    def quantile(self, level: float) -> Array:
        """y with P(Y <= y) = level; of counts the smallest with P(Y <= y) >= level."""
        check_level(level)
        if isinstance(self._law, Normal):
            return self._shaped(self._own(self._normal_quantile(self._law, level)))
        if isinstance(self._law, ZeroOrLogNormal):
            return self._shaped(self._own(self._amount_quantile(self._law, level)))
        high = (self._average(self._law.mean) + 1).ceil()
        low = torch.full_like(high, -1.0)
        while bool((self._cdf(high) < level).any()):
            high = torch.where(self._cdf(high) < level, 2 * high + 1, high)
        while bool((high - low > 1).any()):
            middle = ((low + high) / 2).floor()
            below = self._cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return self._shaped(high)

    def _normal_quantile(self, law: Normal, level: float) -> Tensor:
        """On the sampled scale; it lies between the components' own."""
        z = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
        own, mean = law.loc + z * law.scale, self._average(law.loc)
        whole = self._average(law.variance + (law.loc - mean).square()).sqrt()
        return search(
            self._cdf, lambda u: self._average(law.log_prob(u).exp()), level,
            own.amin(0), own.amax(0), start=mean + z * whole,
        )  # fmt: skip

    def _amount_quantile(self, law: ZeroOrLogNormal, level: float) -> Tensor:
        """On the sampled scale: 0 up to the probability of it, then by the logarithm."""
        none = self._average(1 - law.probs)
        low, high = ((law.loc + z * law.scale) for z in (-_FURTHEST, _FURTHEST))
        wanted = torch.maximum(none, torch.tensor(level)).clamp_max(1 - 1e-15)

        def density(t: Tensor) -> Tensor:
            z = (t - law.loc) / law.scale
            return self._average(law.probs * torch.exp(-0.5 * z.square()) / law.scale) / _ROOT

        found = search(lambda t: self._cdf(t.exp()), density, wanted, low.amin(0), high.amax(0))
        return torch.where(none >= level, 0.0, found.exp())

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """The ends of the central interval of this probability."""
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def sample(self, count: int = 1, *, seed: int | np.random.Generator = 0) -> Array:
        """(count, n) draws, or (count, n, target): of a network each, then of its noise."""
        rng, law = np.random.default_rng(seed), self._law
        share = self._weights.numpy()
        chosen = rng.choice(len(share), size=(count, len(self)), p=share / share.sum())
        rows = np.arange(len(self))
        mean = law.mean.numpy()[chosen, rows]
        variance = law.variance.expand_as(law.mean).numpy()[chosen, rows]
        if isinstance(law, Normal):
            return self._shaped(self._own(torch.from_numpy(rng.normal(mean, np.sqrt(variance)))))
        if isinstance(law, ZeroOrLogNormal):
            q, loc, scale = (v.numpy()[chosen, rows] for v in (law.probs, law.loc, law.scale))
            u = np.exp(rng.normal(loc, scale)) * (rng.random(q.shape) < q)
            return self._shaped(self._own(torch.from_numpy(u)))
        if self._outcome.noise == "bernoulli":
            drawn = (rng.random(mean.shape) < mean).astype(np.float64)
            return self._shaped(torch.from_numpy(drawn))
        if isinstance(law, NegativeBinomial):  # a Poisson whose rate is a gamma variable
            excess = variance - mean
            mean = rng.gamma(mean**2 / excess, excess / mean)
        return self._shaped(torch.from_numpy(rng.poisson(mean).astype(np.float64)))

    @property
    def weights(self) -> Array:
        """(network,): how much each network counts."""
        return self._weights.numpy()

    @property
    def network_means(self) -> Array:
        """E[y] of every network: (network, n), or (network, n, target)."""
        return self._shaped(self._moments[0])

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Every network's mean and variance, (network, n, target), in the target's own units."""
        law = self._law
        if isinstance(law, ZeroOrLogNormal):  # of the amount's logarithm, at first
            mean, variance = law.loc, law.scale.square()
        else:
            mean, variance = law.mean, law.variance.expand_as(law.mean)
        if not self._outcome.real:
            return mean, variance
        mean, variance = self._mean + self._scale * mean, self._scale**2 * variance
        if self.bounded:
            return _censored(mean, variance, self.upper)
        if not (self._outcome.log or self._outcome.two_parts):
            return mean, variance
        cap = (self._mean + FAR * self._scale).clamp_max(math.log(self.upper))
        if self._outcome.largest is not None:
            cap = cap.clamp_max(math.log(BEYOND * self._outcome.largest))
        mean, variance = _limited(mean, variance, cap)
        if not isinstance(law, ZeroOrLogNormal):
            return mean, variance
        q = law.probs
        return q * mean, q * variance + q * (1 - q) * mean.square()

    def _average(self, values: Tensor) -> Tensor:
        return torch.tensordot(self._weights, values, 1)

    def _given(self, y: Any) -> Tensor:
        return torch.tensor(np.asarray(y, dtype=np.float64)).reshape(len(self), -1)

    def _sampled(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """u on the sampled scale and ln |du/dy|; -inf where a logarithm does not exist."""
        if not self._outcome.real:
            return y, torch.zeros_like(y)
        jacobian = -self._scale.log().expand_as(y)
        if self._outcome.two_parts:
            there, log_y = y > 0, torch.where(y > 0, y, 1.0).log()
            log_u = (log_y - self._mean) / self._scale
            u = torch.where(there, log_u.exp(), torch.where(y < 0, -1.0, 0.0))
            return u, torch.where(there, jacobian + log_u - log_y, 0.0)
        if self._outcome.log:
            log_y = torch.where(y > 0, y, 0.0).log()
            y, jacobian = log_y, jacobian - log_y.nan_to_num(0.0, neginf=0.0)
        return (y - self._mean) / self._scale, jacobian

    def _own(self, u: Tensor) -> Tensor:
        if self._outcome.two_parts:
            amount = (self._mean + self._scale * u.log()).exp()
            counted = torch.where(amount > 0, (amount - 0.5).ceil().clamp_min(1.0), 0.0)
            return counted if self._outcome.whole else amount
        y = self._mean + self._scale * u
        y = y.clamp_min(0.0) if self.bounded else y
        return (y.exp() if self._outcome.log else y).clamp_max(self.upper)

    def _cdf(self, u: Tensor) -> Tensor:
        if isinstance(self._law, Normal):
            below = torch.special.ndtr((u - self._law.loc) / self._law.scale)
        elif isinstance(self._law, Bernoulli):
            below = torch.where(u < 0, 0.0, torch.where(u < 1, 1 - self._law.probs, 1.0))
        else:
            below = self._law.cdf(u.expand_as(self._law.mean))
        return self._average(below)

    def _shaped(self, values: Tensor) -> Array:
        return (values[..., 0] if self._flat else values).numpy()


def _limited(mean: Tensor, variance: Tensor, log_cap: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of min(exp(z), c), z normal: where c is out of reach those of exp(z)."""
    deviation = variance.sqrt()
    own = torch.exp(mean + variance / 2)
    plain = own, own.square() * torch.expm1(variance)
    beyond = torch.special.ndtr((mean - log_cap) / deviation)  # P(exp(z) > c)
    moments = [
        torch.exp(
            k * mean + k * k * variance / 2
            + torch.special.log_ndtr((log_cap - mean - k * variance) / deviation)
        ) + torch.exp(k * log_cap) * beyond
        for k in (1, 2)
    ]  # fmt: skip
    # Of a huge variance, two huge numbers cancel: no power of min(exp(z), c) is above that of c.
    moments = [m.nan_to_num(torch.inf).minimum(torch.exp((k + 1) * log_cap))
               for k, m in enumerate(moments)]  # fmt: skip
    near = ~((log_cap - mean - 2 * variance) / deviation >= 8)
    spread = (moments[1] - moments[0].square()).clamp_min(0.0)
    return torch.where(near, moments[0], plain[0]), torch.where(near, spread, plain[1])


def _censored(mean: Tensor, variance: Tensor, upper: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of y = min(max(0, z), c) for z ~ N(mean, variance): with w = z - c,
    E y = E z+ - E w+  and  E y^2 = E (z+)^2 - E (w+)^2 - 2 c E w+."""
    first, second = _positive_part(mean, variance.sqrt())
    if upper < math.inf:
        beyond, squared = _positive_part(mean - upper, variance.sqrt())
        first, second = first - beyond, second - squared - 2 * upper * beyond
    return first.clamp_min(0.0), (second - first.square()).clamp_min(0.0)


def _positive_part(mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
    """E z+ and E (z+)^2 of a normal z: with a = mean / sd, m Phi(a) + sd phi(a) and
    (m^2 + sd^2) Phi(a) + m sd phi(a)."""
    a = mean / sd
    above = torch.special.ndtr(a)
    density = torch.exp(-0.5 * a.square()) / (2 * torch.pi) ** 0.5
    first = mean * above + sd * density
    return first, (mean.square() + sd.square()) * above + mean * sd * density
