"""Outcomes: the meaning of a network's outputs for a target, and the scale on which it is sampled.

A real target is sampled as u = (y - mean) / scale, or u = (ln y - mean) / scale; its density is
that of u times |du/dy|, exactly, so that both can be compared. Of amounts with many zeros
("hurdle") u = exp((ln y - mean) / scale), and 0 stays 0. So are counts: a positive count y stands
for the numbers from y - 1/2 to y + 1/2, of which every row has one, at random, to learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from natural_langevin import likelihoods, models
from natural_langevin.data.errors import DataError
from natural_langevin.likelihoods import Likelihood
from natural_langevin.tabular.settings import AUTO, MOST_PARAMETERS, Settings

#: Noise that a task may have, the simplest first; of those with a choice, held-out rows choose.
KINDS = {
    "classification": ("categorical",),
    "ordinal": ("ordinal",),
    "multilabel": ("bernoulli",),
    "regression": ("constant", "varying", "hurdle"),
    "count": ("poisson", "overdispersed", "hurdle"),
}
HURDLE = "hurdle"
#: Positive targets more skewed than this are also tried as their logarithm.
SKEWED = 1.0
#: Rows that it takes to say that a target is never negative, or never above one of these, and the
#: share of them that must be near it.
FEWEST_BOUNDED, UPPER, NEAR_THE_END = 20, (1.0, 100.0), 0.02
#: The share of rows that are exactly 0, and the number of positive ones, from which on amounts and
#: counts are tried in two parts: whether there is one, and how much.
MANY_ZEROS, FEWEST_AMOUNTS = 0.1, 20


@dataclass(frozen=True)
class Outcome:
    """``noise``: of KINDS. ``classes``: how many (0 of numbers). ``mean``, ``scale``: of the
    targets or, with ``log``, of their logarithms, one value per target. ``bounded``: no target is
    below 0, and so no prediction is (see ``Predictive``); ``upper``: nor above this.
    ``largest``: of the training targets, where their logarithm is sampled, or a part of it
    (``weighing.mean_bound``); ``ends``: the least and
    the largest of every other real target."""

    task: str
    noise: str
    classes: int = 0
    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    log: bool = False
    bounded: bool = False
    upper: float | None = None
    largest: float | None = None
    ends: tuple[tuple[float, float], ...] = ()

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the outputs. Constant noise is learned from the residuals during the
        run."""
        kinds: dict[str, Callable[[], Likelihood]] = {
            "categorical": likelihoods.Categorical,
            "ordinal": lambda: likelihoods.Ordinal(self.classes),
            "bernoulli": likelihoods.Bernoulli,
            "constant": lambda: likelihoods.Gaussian(sigma="rmse"),
            "varying": likelihoods.HeteroscedasticGaussian,
            "hurdle": likelihoods.Hurdle,
            "poisson": likelihoods.Poisson,
            "overdispersed": likelihoods.NegativeBinomial,
        }
        return kinds[self.noise]()

    @property
    def real(self) -> bool:
        """Whether targets are sampled as real numbers, on a scale of their own."""
        return self.task == "regression" or self.two_parts

    @property
    def whole(self) -> bool:
        """Whether what is sampled as a real number is a count."""
        return self.task == "count" and self.two_parts

    @property
    def two_parts(self) -> bool:
        """Whether zero or not, and the amount, are modelled separately (hurdle)."""
        return self.noise == HURDLE

    @property
    def outputs(self) -> int:
        """How many outputs the network needs."""
        if self.task == "ordinal":  # a latent value and the gaps between levels
            return self.classes - 1
        return self.classes or len(self.mean) * self.likelihood.outputs_per_target

    def network(self, inputs: int, settings: Settings) -> nn.Module:
        """A new, untrained network for so many inputs."""
        check_size([inputs, *settings.layers, self.outputs])
        found = models.mlp(
            inputs, self.outputs, settings.layers, activation=settings.function,
            seed=settings.seed,
        )  # fmt: skip
        if self.task == "count" and not self.two_parts:  # rates start at the average count
            found = nn.Sequential(found, _shift(self.mean, self.outputs))
        return found.to(settings.dtype)

    def encode(self, y: Tensor) -> Tensor:
        """Targets (n,) of classes, or (n, target) in their own units, as they are sampled."""
        if self.classes or not self.real:
            return y
        y = _between_counts(y) if self.whole else y
        values = y.log() if self.log or self.two_parts else y
        found = (values - y.new_tensor(self.mean)) / y.new_tensor(self.scale)
        return found.exp() if self.two_parts else found

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"mean": list(self.mean), "scale": list(self.scale)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Outcome:
        """The outcome of a file; a ``ValueError`` says what is wrong with it."""
        found = Outcome(**value)
        found = replace(
            found,
            mean=tuple(map(float, found.mean)),
            scale=tuple(map(float, found.scale)),
            ends=tuple((float(a), float(b)) for a, b in found.ends),
        )
        if found.noise not in KINDS[found.task] or type(found.classes) is not int:
            raise ValueError(f"{found.task} with {found.noise!r} noise")
        if not all(0 < s < float("inf") for s in found.scale):
            raise ValueError(f"scale is {found.scale}")
        return found


def check_size(sizes: Sequence[int]) -> None:
    """Refuses an unreasonably large network before memory is allocated."""
    count = sum((a + 1) * b for a, b in pairwise(sizes))
    if count > MOST_PARAMETERS:
        raise DataError(
            f"a network of {'-'.join(map(str, sizes))} units has {count:,} parameters, more than "
            f"{MOST_PARAMETERS:,}: use smaller layers, or leave out columns"
        )


def _shift(log_mean: tuple[float, ...], outputs: int) -> nn.Module:
    """Adds ln of the average count to ln of the rate: a frozen layer, as fast engines know it."""
    layer = nn.Linear(outputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(outputs))
        layer.bias.copy_(torch.tensor([*log_mean, *[0.0] * (outputs - len(log_mean))]))
    return layer.requires_grad_(False)


def outcomes(
    task: str, y: Tensor, settings: Settings, *, classes: int = 0, weights: Tensor | None = None
) -> list[Outcome]:
    """All outcomes that the settings allow for these targets, the simplest first.

    ``y``: labels (n,) below ``classes``, or (n, target) numbers; ``weights`` (n,) of the rows."""
    if task in ("classification", "ordinal"):
        return [Outcome(task, KINDS[task][0], classes=classes or int(y.max()) + 1)]
    share = torch.full((len(y),), 1 / len(y), dtype=y.dtype) if weights is None else weights
    share = (share / share.sum())[:, None]
    kinds: tuple[str, ...] = KINDS[task] if settings.noise == AUTO else (settings.noise,)
    if unknown := [kind for kind in kinds if kind not in KINDS[task]]:
        raise DataError(f"noise must be one of {KINDS[task]}, got {unknown[0]!r}")
    if task == "multilabel":
        return [Outcome(task, "bernoulli", mean=(0.0,) * y.shape[1], scale=(1.0,) * y.shape[1])]
    often = float(share[y[:, 0] == 0].sum()) >= MANY_ZEROS
    if task == "count":
        mean = (share * y).sum(0).clamp_min(1e-3).log()
        parts = _amounts(_between_counts(y), share, None)
        found = [Outcome(task, kind, mean=tuple(mean.tolist())) for kind in kinds if kind != HURDLE]
        if HURDLE in kinds and parts is not None and (not found or often):
            found.append(replace(parts, task=task))
        return found or _refused()
    count = len(y) if weights is None else float(weights.sum())
    found, upper = [], _upper(y, share, count)
    amounts = _amounts(y, share, upper)
    if kinds == (HURDLE,) and amounts is None:
        _refused()
    kinds, plain = tuple(kind for kind in kinds if kind != HURDLE), kinds
    bounded = upper is not None or _bounded(y, share, count)
    for log in _logs(y, share, settings.log):
        values = y.log() if log else y
        # Divided by the largest first, so that squares neither overflow nor vanish.
        largest = values.abs().amax(0)
        largest = torch.where(largest > 0, largest, 1.0)
        centre = (share * values / largest).sum(0)
        spread = (share * (values / largest - centre).square()).sum(0).sqrt()
        mean, scale = centre * largest, torch.where(spread > 0, spread * largest, 1.0)
        one = Outcome(
            task, "constant", mean=tuple(mean.tolist()), scale=tuple(scale.tolist()), log=log,
            bounded=bounded and not log, upper=upper,
            largest=float(y[share[:, 0] > 0].max()) if log else None,
            ends=() if log else tuple(zip(y.amin(0).tolist(), y.amax(0).tolist(), strict=True)),
        )  # fmt: skip
        found += [replace(one, noise=kind) for kind in kinds]
    if amounts is not None and HURDLE in plain and (often or not kinds):
        found.append(amounts)
    return found


def _refused() -> NoReturn:
    raise DataError(
        'noise="hurdle" needs one target of amounts or counts, none negative, with zeros and with '
        f"at least {FEWEST_AMOUNTS} that are not"
    )


def _between_counts(y: Tensor) -> Tensor:
    """Positive counts, each with a number from -1/2 to 1/2 that is added."""
    near = torch.rand(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    return torch.where(y > 0, y + near - 0.5, y)


def _amounts(y: Tensor, share: Tensor, upper: float | None) -> Outcome | None:
    """Amounts in two parts, with the mean and deviation of the logarithms of positive ones; None
    where targets are no amounts with zeros, or too few are positive."""
    counted = share[:, 0] > 0
    if y.shape[1] > 1 or upper is not None or bool((y[counted] < 0).any()):
        return None
    there = (y[:, 0] > 0) & counted
    if int(there.sum()) < FEWEST_AMOUNTS or bool(there[counted].all()):
        return None
    values, weight = y[there].log(), share[there] / share[there].sum()
    mean = (weight * values).sum(0)
    spread = (weight * (values - mean).square()).sum(0).sqrt()
    scale = torch.where(spread > 0, spread, 1.0)
    return Outcome(
        "regression", "hurdle", mean=tuple(mean.tolist()), scale=tuple(scale.tolist()),
        largest=float(y[there].max()),
    )  # fmt: skip


def _logs(y: Tensor, share: Tensor, asked: bool | str) -> tuple[bool, ...]:
    if asked != AUTO:
        if asked and bool((y <= 0).any()):
            raise DataError(f"log=True needs positive targets, got {float(y.min()):g}")
        return (bool(asked),)
    if y.shape[1] > 1 or not bool((y > 0).all()):
        return (False,)
    return (False, True) if _skewness(y, share) > SKEWED else (False,)


def _bounded(y: Tensor, share: Tensor, count: float) -> bool:
    """Whether the target is an amount, which cannot be negative: skewed or with zeros, of at least
    FEWEST_BOUNDED rows, so that a negative one is rarer than what a 90 % interval leaves out."""
    counted = y[share[:, 0] > 0]
    if y.shape[1] > 1 or count < FEWEST_BOUNDED or bool((counted < 0).any()):
        return False
    return bool((counted == 0).any()) or _skewness(y, share) > SKEWED


def _upper(y: Tensor, share: Tensor, count: float) -> float | None:
    """1 or 100 where targets are shares or percentages: from 0 on, and spread over nearly all of it
    (a tenth to 95 %, with NEAR_THE_END of the rows beyond that: the longest tail of something else
    may end anywhere), or several of exactly 100. Those of exactly 1 may be anything."""
    counted = y[share[:, 0] > 0]
    if y.shape[1] > 1 or count < FEWEST_BOUNDED or bool((counted < 0).any()):
        return None
    least, most = float(counted.min()), float(counted.max())
    for upper in UPPER:
        near = float(share[:, 0][y[:, 0] >= 0.95 * upper].sum())
        spread = least <= 0.1 * upper and near >= NEAR_THE_END
        if most <= upper and (spread or (upper == 100 and int((counted == upper).sum()) > 1)):
            return upper
    return None


def _skewness(y: Tensor, share: Tensor) -> float:
    centred = y - (share * y).sum(0)
    variance = (share * centred.square()).sum()
    return float((share * centred**3).sum() / variance.clamp_min(1e-300) ** 1.5)
