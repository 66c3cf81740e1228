"""R-hat, effective sample size and distances between chains.

Weights of a network have many equivalent arrangements (permute the hidden units), so chains are
compared in function space, by their predictions on probe inputs. The same functions work for single
parameters.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from natural_langevin._internal.extras import needing
from natural_langevin.diagnostics import ranks
from natural_langevin.diagnostics.ranks import Array

#: Numbers that move by less than this part of their size do so by rounding.
_ROUNDING = 1e-7
#: Larger values of R-hat are not told apart: chains that do not move have an infinite one.
_LARGEST = 100.0


class StillError(ValueError):
    """All quantities are constant: they have no autocorrelation."""


class Mixing(NamedTuple):
    """Mixing of quantities (chain, draw, k): one entry for each that is not constant."""

    values: Array  # (chain, draw, k)
    rhat: Array | None  # (k,); None with fewer than two chains
    ess: Array  # (k,), summed over chains; corrected where these share their minibatches
    places: tuple[tuple[int, ...], ...] = ()  # of every number, in what was followed

    @property
    def autocorrelation_time(self) -> float:
        """The number of draws worth one independent draw: the median over quantities."""
        return float(np.median(self.values.shape[0] * self.values.shape[1] / self.ess))

    @property
    def worst(self) -> int:
        """The number of the largest R-hat; of one chain, of the fewest effective draws."""
        return int(self.ess.argmin() if self.rhat is None else self.rhat.argmax())

    def __repr__(self) -> str:
        return f"Mixing({self})"

    def __str__(self) -> str:
        rhat = "R-hat needs two chains"
        if self.rhat is not None:
            rhat = f"R-hat {said(np.median(self.rhat))} (largest {said(self.rhat.max())})"
        total = self.values.shape[0] * self.values.shape[1]
        return (
            f"{rhat}, effective sample size {np.median(self.ess):.0f} (smallest "
            f"{self.ess.min():.0f}) of {total}"
        )


def said(rhat: float) -> str:
    """R-hat with three decimals, or "above 100".

    >>> said(1.0123), said(2e16)
    ('1.012', 'above 100')
    """
    return f"{rhat:.3f}" if rhat <= _LARGEST else f"above {_LARGEST:.0f}"


def mixing(followed: Tensor, *, shared: bool = False, least: float = 0.0) -> Mixing:
    """Of numbers (chain, draw, ...): rank-normalised split R-hat and bulk ESS.

    ``shared``: the chains saw the same minibatches, and are not independent (``_ess_of_mean``).
    ``least``: numbers of a smaller standard deviation are left out, unless all are."""
    chains, draws = followed.shape[:2]
    if draws < 4:
        raise ValueError(f"diagnosing needs at least 4 draws per chain, got {draws}: lower thin")
    values = followed.detach().double().cpu().reshape(chains, draws, -1).numpy()
    size = values.std(axis=(0, 1))
    moving = size > _ROUNDING * np.abs(values).max(axis=(0, 1), initial=0.0)
    if not moving.any():
        raise StillError("every draw predicts exactly the same: is the temperature 0?")
    if (moving & (size > least)).any():
        moving &= size > least
    values = values[:, :, moving]
    rhat = ranks.rhat(values) if chains > 1 else None
    ess = ranks.ess(values)
    if shared and chains > 1:
        ess = np.minimum(ess, _ess_of_mean(values))
    shape = tuple(followed.shape[2:])
    axes = np.unravel_index(np.flatnonzero(moving), shape) if shape else ()
    return Mixing(values, rhat, ess, tuple(zip(*(axis.tolist() for axis in axes), strict=True)))


def _ess_of_mean(values: Array) -> Array:
    """Independent draws that would leave the error of the mean over (chain, draw).

    Noise that all chains share does not average out over them. The mean over chains is one series,
    of variance V and effective size e, whose mean has variance V/e: of draws with variance s^2
    that is s^2 e / V. Chains that are independent have V = s^2 / C."""
    series = values.mean(axis=0, keepdims=True)
    found: Array = values.var(axis=1).mean(axis=0) / series.var(axis=(0, 1)) * ranks.ess(series)
    return found


def chain_distances(values: Array) -> Array:
    """Between the chains' mean predictions, in standard deviations within a chain: (chain, chain).

    d_ab = sqrt(mean_k (m_ak - m_bk)^2 / s_k^2), s_k^2 the variance within chains, averaged over
    them. 0: the chains agree; above 1 they differ by more than the spread within a chain.
    """
    means = values.mean(axis=1)
    within = values.var(axis=1).mean(axis=0)
    with np.errstate(over="ignore"):  # chains that do not move are infinitely far apart
        gaps = (means[:, None] - means[None]) ** 2 / np.maximum(within, np.finfo(np.float64).tiny)
    return np.sqrt(gaps.mean(axis=2))


def some_components(
    samples: Mapping[str, Tensor], patterns: tuple[str, ...], most: int = 50
) -> dict[str, Tensor]:
    """Of the parameters that match a pattern, {name: (chain, draw, ...)}: tensors of at most
    ``most`` components whole, of others as many, evenly spaced."""
    names = [name for name in samples if any(fnmatchcase(name, p) for p in patterns)]
    if patterns and not names:
        raise ValueError(f"no parameter matches {patterns}: there are {list(samples)}")
    found = {}
    for name in names:
        value = samples[name]
        every = -(-value[0, 0].numel() // most)
        found[name] = value if every <= 1 else value.flatten(2)[..., ::every]
    return found


def import_arviz() -> Any:
    """The module that builds ArviZ groups: ``arviz`` of any version, or ``arviz_base`` since
    version 1. ImportError names the extra."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # 0.2x announces the next version
        with contextlib.suppress(ImportError):
            return importlib.import_module("arviz")
    with needing("this needs ArviZ", "diagnostics"):
        return importlib.import_module("arviz_base")
