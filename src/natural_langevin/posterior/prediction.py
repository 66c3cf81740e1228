"""Prediction: the average of many networks for one batch of inputs, and its uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution

from natural_langevin._internal import messages
from natural_langevin.likelihoods import Likelihood, State, mixtures
from natural_langevin.likelihoods.predictive import (
    Mixture,
    NetworkPredictions,
    of_classes,
    predicted_by,
)
from natural_langevin.posterior import monte_carlo, sharpening

#: Inputs, and numbers of each, that a notebook shows.
MOST_SHOWN = 10, 10


class Prediction(NamedTuple):
    """Predictions for B inputs, averaged over networks.

    Classes: ``mean`` holds probabilities (B, K); uncertainties are entropies in nats (B,): total =
    entropy of the mean, aleatoric = mean entropy, epistemic = their difference (the mutual
    information between label and weights). Numbers and counts: ``mean`` is the predictive mean and
    the uncertainties are variances, total = aleatoric (the networks' own, on average) + epistemic
    (of their means); None if the likelihood has no distribution.

    ``quantiles``, if requested, has one row per level. Numbers and counts: quantiles of the
    predictive distribution, noise included (without it if the likelihood has no distribution).
    Classes: quantiles of every class's probability over the networks.

    ``error``, where samples are kept, is the Monte-Carlo standard error of ``mean`` (see
    ``monte_carlo``): more draws make it smaller; it does not include the noise of the data.

    With a ``sharpness`` other than 1 (see ``sharpening``) ``mean`` is the sharpened mixture, and
    ``samples`` are the networks' probabilities after one shift common to all of them: ``mean`` is
    still the mean of ``samples``, and total = aleatoric + epistemic.
    """

    mean: Tensor
    total: Tensor | None
    aleatoric: Tensor | None
    epistemic: Tensor
    samples: Tensor | None  # (network, B, ...) in the order chain, then draw
    quantiles: Tensor | None = None  # (level, B, ...)
    error: Tensor | None = None  # of the shape of ``mean``

    def __repr__(self) -> str:
        """Shows only the shape of ``samples``, which may hold hundreds of networks."""
        shown = {
            k: f"tensor of shape {tuple(v.shape)}" if k == "samples" and v is not None else v
            for k, v in self._asdict().items()
        }
        return f"Prediction({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def _repr_html_(self) -> str:
        """A table of the first inputs, with the first outputs or classes of each."""
        count = min(len(self.mean), MOST_SHOWN[0])
        flat = self.mean[:count].reshape(count, -1)[:, : MOST_SHOWN[1]].tolist()
        parts = {
            name: value[:count].reshape(count, -1).sum(1).tolist()
            for name in ("total", "aleatoric", "epistemic")
            if (value := getattr(self, name)) is not None
        }
        rows = [
            (str(k), ", ".join(f"{v:.4g}" for v in row), *(f"{v[k]:.4g}" for v in parts.values()))
            for k, row in enumerate(flat)
        ]
        caption = f"Prediction for {len(self.mean):,} inputs, mean of {tuple(self.mean.shape[1:])}"
        left = len(self.mean) - count
        notes = [f"and {left:,} inputs more"] if left else []
        return messages.shown(caption, rows, notes, head=("input", "mean", *parts))


class Averager:
    """Averages the networks' outputs, chunk by chunk, into a ``Prediction``.

    ``count`` networks in all; ``state`` is what the likelihood learned, a value for each network
    that will be added. Only what was requested is kept: without samples, quantiles or the ``whole``
    distribution, memory does not grow with the number of networks. With a ``sharpness`` or a
    ``spread`` other than 1 all outputs of a batch are held until ``settle``; ``draws`` of every
    chain then ask for ``moves``.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        count: int,
        state: State,
        *,
        keep_samples: bool,
        levels: Sequence[float],
        whole: bool = False,
        sharpness: float = 1.0,
        spread: float = 1.0,
        draws: int | None = None,
    ) -> None:
        self.likelihood, self.count, self.whole = likelihood, count, whole
        self.sharpness, self.spread, self.draws = sharpness, spread, draws
        self._state, self._seen = state, 0
        self.keep_samples, self.levels = keep_samples, levels
        self._values: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._held: list[Tensor] = []  # outputs, until all networks are known
        #: How sharpened ln q moves with blocks of draws, (chain, block, B, ..., K).
        self.moves: Tensor | None = None
        #: Averages over the networks: of values, or of the differences of numbers from the
        #: ``centre`` and of their squares; and of spreads.
        self._sums: list[Tensor] = []
        self._centre: Tensor | None = None  # the first network's, so that nothing cancels
        self._predicted: NetworkPredictions | None = None
        self.example = torch.empty(0)  # of the shape of one network's outputs

    def add(self, outputs: Tensor) -> None:
        """Outputs (network, B, ...) of the next networks."""
        first, self._seen = self._seen, self._seen + len(outputs)
        state = {k: v[first : self._seen] for k, v in self._state.items()}
        self.example = outputs.new_empty(outputs.shape[1:])
        if self.spread != 1 or self.sharpness != 1:
            self._held.append(outputs)
        else:
            self._take(predicted_by(self.likelihood, outputs, state), outputs)

    def settle(self) -> None:
        """Applies the spread or the sharpness, once all networks have been added and pooled."""
        if not self._held:
            return
        outputs, self._held = torch.cat(self._held), []
        new, each = sharpening.together(
            self.likelihood, outputs, self._state, self.sharpness, self.spread
        )
        self._take(new, each)
        if self.spread == 1 and self.draws is not None:
            blocks = monte_carlo.block_means(each.exp().unflatten(0, (-1, self.draws)))
            self.moves = sharpening.moves(blocks, self.sharpness)

    def _take(self, new: NetworkPredictions, outputs: Tensor) -> None:
        """Adds predictions of networks to the sums."""
        self._predicted = new
        numbers = new.classes is None
        if self.keep_samples or (self.levels and (not numbers or new.spread is None)):
            self._values.append(new.value)
        if numbers and new.spread is not None and (self.whole or self.levels):
            self._outputs.append(outputs)
        value = new.value
        parts = [value]
        if numbers:
            value = value.double()
            self._centre = value[:1].sum(0) if self._centre is None else self._centre
            parts = [value - self._centre, (value - self._centre).square()]
        if new.spread is not None:
            parts.append(new.spread.to(value.dtype))
        sums = [part.sum(0) / self.count for part in parts]
        self._sums = [a + b for a, b in zip(self._sums, sums, strict=True)] if self._sums else sums

    def pool(self, add_up: Callable[[Tensor], Tensor], join: Callable[[Tensor], Tensor]) -> None:
        """Merges several averagers: sums are added, networks concatenated."""
        self._values, self._outputs, self._held = (
            [join(torch.cat(kept))] if kept else []
            for kept in (self._values, self._outputs, self._held)
        )
        self._state = {k: join(v) for k, v in self._state.items()}
        if self._centre is not None:  # around the mean of all
            own = self._seen / self.count
            mean = add_up(own * self._centre + self._sums[0])
            off = self._centre - mean
            self._sums[1] = self._sums[1] + off * (2 * self._sums[0] + own * off)
            self._sums[0] = self._sums[0] + own * off
            self._centre = mean
        self._sums = [add_up(total) for total in self._sums]

    def finish(self) -> Prediction:
        """The prediction in the networks' own dtype."""
        assert self._predicted is not None
        dtype, classes = self._predicted.value.dtype, self._predicted.classes
        mean, *others = self._sums
        total, aleatoric, epistemic = combined(classes, mean, *others)
        if self._centre is not None:
            mean = self._centre + mean
        values = torch.cat(self._values) if self._values else None
        quantiles = None
        if self.levels and values is not None and not self._outputs:
            quantiles = quantiles_over_networks(values, self.levels)
        elif self.levels:
            levels = torch.tensor(self.levels, dtype=torch.float64)
            quantiles = self.distribution().icdf(levels).to(dtype)
        return Prediction(
            mean.to(dtype),
            None if total is None else total.to(dtype),
            None if aleatoric is None else aleatoric.to(dtype),
            epistemic.to(dtype),
            values if self.keep_samples else None,
            quantiles,
            self._error(),
        )

    def _error(self) -> Tensor | None:
        """The Monte-Carlo error of sharpened probabilities."""
        if self.moves is None:
            return None
        assert self._predicted is not None
        moves = self.moves[..., 1] if self._predicted.classes is Bernoulli else self.moves
        found = monte_carlo.error_of_blocks(self._sums[0] * moves)
        return None if found is None else found.to(self._predicted.value.dtype)

    def distribution(self, *others: Averager) -> Distribution:
        """The predictive distribution of these inputs, and of the others' after them."""
        classes = self._predicted.classes if self._predicted is not None else None
        if classes is not None:
            means = torch.cat([one._sums[0] for one in (self, *others)])
            return of_classes(classes, means.double())
        if not self._outputs:
            raise TypeError(
                f"{type(self.likelihood).__name__} has no predictive distribution: give "
                "LogLoss(fn, distribution=...), or score posterior.predict(x).samples with your "
                "own loss"
            )
        outputs = torch.cat([torch.cat(one._outputs) for one in (self, *others)], dim=1)
        return Mixture(self.likelihood, outputs, self._state)


def combined(
    classes: type[Distribution] | None,
    mean: Tensor,
    second: Tensor,
    spread: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Total, aleatoric and epistemic uncertainty, from averages over networks.

    Classes: of probabilities and entropies; numbers: of means and their squares, as differences
    from any centre, and of variances."""
    if classes is not None:
        total = of_classes(classes, mean).entropy()
        return total, second, (total - second).clamp_min(0)
    epistemic = (second - mean.square()).clamp_min(0)
    return (None, None, epistemic) if spread is None else (spread + epistemic, spread, epistemic)


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


def one_tensor(outputs: Any) -> Tensor:
    """The outputs, if they are one tensor that can be averaged; otherwise raises an error."""
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"predict needs a network whose output is one tensor, got a "
            f"{type(outputs).__name__}: average what you need over the networks "
            "posterior.network(chain, draw)"
        )
    return outputs


def check_levels(levels: Iterable[float] | float | None) -> tuple[float, ...]:
    """Quantile levels, several or one, as numbers between 0 and 1."""
    if isinstance(levels, float | int):
        levels = (levels,)
    return tuple(mixtures.check_level(float(level)) for level in levels or ())
