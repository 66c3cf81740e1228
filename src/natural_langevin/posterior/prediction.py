"""Prediction: what many networks say together of one batch of inputs, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin.likelihoods import Bernoulli, Likelihood, mixtures


class Prediction(NamedTuple):
    """Predictions for B inputs, averaged over networks.

    Classes: ``mean`` holds probabilities (B, K); uncertainties are entropies in nats (B,): total =
    entropy of the mean, aleatoric = mean entropy, epistemic = their difference (the mutual
    information between label and weights). Regression: ``mean`` is the predictive mean and the
    uncertainties are variances, total = aleatoric (sigma^2) + epistemic; None where the
    likelihood does not know its noise.

    ``quantiles``, when asked for, has one row per level. Regression: of the predictive
    distribution, the noise included (without it where the likelihood does not know its noise).
    Classes: of every class's probability over the networks.
    """

    mean: Tensor
    total: Tensor | None
    aleatoric: Tensor | None
    epistemic: Tensor
    samples: Tensor | None  # (network, B, ...) in the order chain, then draw
    quantiles: Tensor | None = None  # (level, B, ...)


def entropy(probabilities: Tensor, likelihood: Likelihood) -> Tensor:
    """In nats: over the classes, or of every binary target on its own."""
    if isinstance(likelihood, Bernoulli):
        return torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)
    return torch.special.entr(probabilities).sum(-1)


class Averager:
    """Takes the networks' predictions chunk by chunk, and says what they predict together.

    ``count`` networks in all; ``noise`` (network,) is each one's observation variance, or None.
    Only what was asked for is kept: without samples or quantiles, memory does not grow with the
    number of networks.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        count: int,
        noise: Tensor | None,
        *,
        keep_samples: bool,
        levels: Sequence[float],
    ) -> None:
        self.likelihood, self.count, self.noise = likelihood, count, noise
        self.keep_samples, self.levels = keep_samples, levels
        self._kept: list[Tensor] = []
        self._first = self._second = torch.zeros(())
        self._dtype = torch.float32

    def add(self, p: Tensor) -> None:
        """Predictions of the next networks: (network, B, ...)."""
        self._dtype = p.dtype
        if self.keep_samples or self.levels:
            self._kept.append(p)
        if self.likelihood.discrete:
            second = entropy(p, self.likelihood)
        else:  # in float64, where the difference of two large squares survives
            p, second = p.double(), p.double().square()
        self._first = self._first.to(p.device) + p.sum(0) / self.count
        self._second = self._second.to(p.device) + second.sum(0) / self.count

    def pool(self, add_up: Callable[[Tensor], Tensor], join: Callable[[Tensor], Tensor]) -> None:
        """Puts together what several of these have seen: sums added up, networks side by side."""
        if self._kept:
            self._kept = [join(torch.cat(self._kept))]
        self._first, self._second = add_up(self._first), add_up(self._second)

    def finish(self) -> Prediction:
        """The prediction in the networks' own dtype."""
        dtype = self._dtype
        outputs = torch.cat(self._kept) if self._kept else None
        quantiles = self._quantiles(outputs) if outputs is not None and self.levels else None
        samples = outputs if self.keep_samples else None
        mean, second = self._first, self._second
        if self.likelihood.discrete:
            total = entropy(mean, self.likelihood)
            epistemic = (total - second).clamp_min(0)
            return Prediction(mean, total, second, epistemic, samples, quantiles)
        epistemic = (second - mean.square()).clamp_min(0).to(dtype)
        mean = mean.to(dtype)
        if self.noise is None:
            return Prediction(mean, None, None, epistemic, samples, quantiles)
        aleatoric = self.noise.double().mean().to(mean).expand(mean.shape)
        return Prediction(mean, aleatoric + epistemic, aleatoric, epistemic, samples, quantiles)

    def _quantiles(self, outputs: Tensor) -> Tensor:
        if self.likelihood.discrete or self.noise is None:
            return quantiles_over_networks(outputs, self.levels)
        variance = self.noise.reshape(-1, *(1,) * (outputs.ndim - 1)).to(outputs.device)
        rows = [mixtures.quantile(q, outputs, variance) for q in self.levels]
        return torch.stack(rows).to(outputs.dtype)


def quantiles_over_networks(outputs: Tensor, levels: Sequence[float]) -> Tensor:
    """(level, ...) of values (network, ...), with linear interpolation between order statistics.

    By sorting: torch.quantile refuses tensors of more than 2^24 numbers."""
    ordered = outputs.sort(0).values
    rows = []
    for level in levels:
        position = level * (len(ordered) - 1)
        below = min(int(position), len(ordered) - 1)
        above = min(below + 1, len(ordered) - 1)
        rows.append(torch.lerp(ordered[below], ordered[above], position - below))
    return torch.stack(rows)


def join(parts: Sequence[Prediction]) -> Prediction:
    """Predictions of consecutive batches as one: samples and quantiles have B second."""
    columns = zip(Prediction._fields, zip(*parts, strict=True), strict=True)
    joined = {
        name: None
        if column[0] is None
        else torch.cat(column, dim=1 if name in ("samples", "quantiles") else 0)
        for name, column in columns
    }
    return Prediction(**joined)  # type: ignore[arg-type]


def input_batches(x: Tensor | Iterable[Any], batch_size: int) -> Iterator[Tensor]:
    """Inputs in batches: a tensor is split; a DataLoader gives its own, x alone or (x, ...)."""
    if isinstance(x, Tensor):
        yield from x.split(batch_size)
        return
    for item in x:
        first = item[0] if isinstance(item, (tuple, list)) else item
        if not isinstance(first, Tensor):
            raise TypeError(
                f"inputs must be a tensor, or batches of tensors such as a DataLoader gives, got "
                f"a batch of type {type(first).__name__}: use torch.as_tensor on arrays"
            )
        yield first


def one_tensor(outputs: Any) -> Tensor:
    """Outputs that can be averaged, or an error that says what to do with others."""
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"predict needs a network whose output is one tensor, got a "
            f"{type(outputs).__name__}: average what you need over the networks "
            "posterior.network(chain, draw)"
        )
    return outputs


def check_levels(levels: Iterable[float] | None) -> tuple[float, ...]:
    return tuple(mixtures.check_level(float(level)) for level in levels or ())
