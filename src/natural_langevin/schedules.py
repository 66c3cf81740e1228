"""Schedules: callables ``step -> rate``, with steps counted from 0.

Every rate of the library (step size, metric decay, running-mean rate) accepts a float or a
schedule. The step size alone may also be a tensor of one value per chain, and so may the
``initial`` value of its schedule, so that a grid over step sizes is one run; metric decay and
running-mean rate are common to all chains.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Value = float | Tensor
Schedule = Callable[[int], Value]
#: Which steps of a run explore: see ``stages``.
Stages = Callable[[int], bool]


@dataclass(frozen=True)
class constant:
    """The same value at every step."""

    value: Value

    def __call__(self, step: int) -> Value:
        return self.value


@dataclass(frozen=True)
class halving:
    """initial / 2^floor(step / every): the paper halves its step size every 10,000 updates.

    >>> eta = halving(1e-3, every=10_000)
    >>> eta(0), eta(9_999), eta(10_000)
    (0.001, 0.001, 0.0005)
    """

    initial: Value
    every: int

    def __post_init__(self) -> None:
        _positive("every", self.every)

    def __call__(self, step: int) -> Value:
        return self.initial * 0.5 ** (step // self.every)


@dataclass(frozen=True)
class polynomial:
    """initial (1 + step / offset)^(-power).

    The default power 1/3 is the asymptotically optimal rate of SGLD (Teh, Thiery & Vollmer 2016):
    larger than what stochastic gradient descent wants.

    >>> eta = polynomial(1.0, offset=1)
    >>> eta(0), round(eta(7), 12)
    (1.0, 0.5)
    """

    initial: Value
    offset: float
    power: float = 1 / 3

    def __post_init__(self) -> None:
        _positive("offset", self.offset)
        if not self.power >= 0:
            raise ValueError(f"power must be at least 0, got {self.power!r}")

    def __call__(self, step: int) -> Value:
        return self.initial * (1.0 + step / self.offset) ** -self.power


@dataclass(frozen=True)
class cyclical:
    """initial (1 + cos(pi (step mod period) / period)) / 2: warm restarts every ``period`` steps.

    Each cycle starts at ``initial``, explores, and falls towards 0. With ``exploration`` it has the
    two stages of cyclical SG-MCMC (Zhang et al. 2020, arXiv 1902.03932): in its first
    round(exploration period) steps the temperature is 0 and no iterate is kept, so that chains
    descend, by large steps, into a mode that may be a new one; in the other steps the chains sample
    as usual.

    >>> eta = cyclical(0.1, period=100, exploration=0.8)
    >>> eta(0), round(eta(50), 12), eta(100)
    (0.1, 0.05, 0.1)
    >>> eta.explores(79), eta.explores(80), eta.explores(100)
    (True, False, True)
    """

    initial: Value
    period: int
    exploration: float = 0.0

    def __post_init__(self) -> None:
        _positive("period", self.period)
        if not 0 <= self.exploration < 1 or round(self.exploration * self.period) >= self.period:
            raise ValueError(
                "exploration must be a share of the cycle, at least 0 and below 1, that leaves "
                f"steps to sample in, got {self.exploration!r} of period={self.period!r}: give "
                "0.8, for example"
            )

    def __call__(self, step: int) -> Value:
        return self.initial * (0.5 * (1.0 + math.cos(math.pi * (step % self.period) / self.period)))

    def explores(self, step: int) -> bool:
        """Whether this step belongs to the exploration stage of its cycle."""
        return step % self.period < round(self.exploration * self.period)


@dataclass(frozen=True)
class polynomial_average:
    """(p + 1) / (step + b + p + 1): as the rate of a moving average, it weighs batch t like t^p, so
    that early batches are forgotten and the last (p + 1)-th part has most of the weight.
    ``before``: b, the number of batches that the initial value counts for.

    >>> gamma = polynomial_average(1)
    >>> gamma(0), gamma(2)
    (1.0, 0.5)
    """

    power: float = 3.0
    before: float = 0.0

    def __post_init__(self) -> None:
        if not self.power >= 0:
            raise ValueError(f"power must be at least 0 (the plain average), got {self.power!r}")
        if not self.before >= 0:
            raise ValueError(f"before must be at least 0 batches, got {self.before!r}")

    def __call__(self, step: int) -> float:
        return (self.power + 1) / (step + self.before + self.power + 1)

    def table(self, start: int, stop: int) -> Tensor:
        """The same for steps ``start`` to ``stop - 1``, to the last bit: float64, (step, 1)."""
        step = torch.arange(start, stop, dtype=torch.float64)[:, None]
        above = torch.full_like(step, self.power + 1)  # by a number torch takes 1 / step first
        return above / (step + self.before + self.power + 1)


@dataclass(frozen=True)
class inverse_sqrt:
    """1/sqrt(t) with t = step + 1: the paper's gamma_t and mu_t. The first value is 1."""

    def __call__(self, step: int) -> Value:
        return 1.0 / math.sqrt(step + 1)

    def table(self, start: int, stop: int) -> Tensor:
        """The same for steps ``start`` to ``stop - 1``, to the last bit: float64, (step, 1)."""
        steps = np.arange(start + 1, stop + 1, dtype=np.float64)  # torch's roots may be a bit off
        return torch.from_numpy(1.0 / np.sqrt(steps))[:, None]


def stages(step_size: object) -> Stages | None:
    """The method ``explores(step)`` of a step size's schedule, which tells the exploration steps
    (temperature 0, no iterate kept); None if it has none.

    >>> stages(0.1) is None, stages(cyclical(0.1, 100)) is None
    (True, True)
    """
    found = getattr(step_size, "explores", None)
    return found if found is not None and getattr(step_size, "exploration", True) else None


def as_schedule(rate: Value | Schedule) -> Schedule:
    """A float or a per-chain tensor becomes a constant schedule; a schedule stays itself."""
    return rate if callable(rate) else constant(rate)


def tabulate(
    rate: Value | Schedule,
    start: int,
    stop: int,
    *,
    name: str,
    chains: int,
    low: float = 0.0,
    high: float = math.inf,
) -> Tensor:
    """Values at steps ``start .. stop - 1`` for every chain: float64, shape (stop - start, chains).

    This is where rates enter the sampler, so this is where they are checked: every value must be
    a number, finite and in [low, high], and a per-chain tensor must have one value per chain. A
    schedule may have a method ``table(start, stop)``, (stop - start, chains or 1), to be quick.
    """
    schedule = as_schedule(rate)
    whole = getattr(schedule, "table", None)
    if whole is not None:
        found = whole(start, stop).double().cpu()
        if found.shape[1] not in (1, chains):
            raise ValueError(
                f"{name} must be a number or one value per chain (shape ({chains},)), got "
                f"{found.shape[1]} values at step {start}"
            )
        return _checked(found.expand(-1, chains), name, start, low, high)
    if isinstance(schedule, constant) and stop > start + 1:
        one = tabulate(rate, start, start + 1, name=name, chains=chains, low=low, high=high)
        return one.expand(stop - start, -1)
    values = [schedule(step) for step in range(start, stop)]
    unusual = [k for k, value in enumerate(values) if type(value) is not float]
    for step, value in ((start + k, values[k]) for k in unusual):
        if isinstance(value, bool) or not isinstance(value, (numbers.Real, Tensor)):
            raise TypeError(
                f"{name} must be a number, a tensor or a schedule of those, got {value!r} at step "
                f"{step}: use float(...), or torch.tensor(...) for one value per chain"
            )
        if isinstance(value, Tensor) and value.ndim and tuple(value.shape) != (chains,):
            raise ValueError(
                f"{name} must be a number or one value per chain (shape ({chains},)), "
                f"got shape {tuple(value.shape)} at step {step}"
            )
    if any(isinstance(values[k], Tensor) for k in unusual):
        # On the host, wherever the user's tensor lies: columns of several rates come together.
        rows = [
            torch.as_tensor(v, dtype=torch.float64, device="cpu").expand(chains) for v in values
        ]
        table = torch.stack(rows)
    else:
        table = torch.tensor([float(v) for v in values], dtype=torch.float64)[:, None].expand(
            -1, chains
        )
    return _checked(table, name, start, low, high)


def _checked(table: Tensor, name: str, start: int, low: float, high: float) -> Tensor:
    bad = ~(torch.isfinite(table) & (table >= low) & (table <= high))
    if bad.any():
        row, chain = (int(i) for i in bad.nonzero()[0])
        bound = f"between {low:g} and {high:g}" if math.isfinite(high) else f"at least {low:g}"
        raise ValueError(
            f"{name} must be finite and {bound}, got {table[row, chain].item()!r} "
            f"at step {start + row} (chain {chain}): correct the number or the schedule"
        )
    return table


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
