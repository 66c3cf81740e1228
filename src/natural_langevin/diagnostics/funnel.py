"""Funnels: one parameter scales others, as in a hierarchical model in centred form.

If theta_j ~ N(mu, e^(2 u)) is sampled directly, the width of every theta_j follows u; steps for the
wide end are far too long at the narrow one, which chains do not reach. In the draws u is correlated
with ln (theta_j - median)^2, by sd / sqrt(sd^2 + 4.9) where 2 u has this sd, for many j at once,
theta_j being taken from the mean of its tensor, which at the narrow end is mu for all of them.
Independent parameters, and those of a linear model, have no such correlation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

#: Numbers whose widths must follow one, which must be half of all others; the least rank
#: correlation; and how many numbers there may be. Weights of networks that have not mixed are
#: correlated too, by chance and by their products, but a few of them with any one.
FEWEST, LEAST, MOST_WEIGHTS = 3, 0.4, 100


class Funnel(NamedTuple):
    """``scale`` names the parameter that the widths of ``followers`` follow, with the median rank
    ``correlation``."""

    scale: str
    followers: tuple[str, ...]
    correlation: float

    def __str__(self) -> str:
        more = f" and {len(self.followers) - 2} others" if len(self.followers) > 2 else ""
        return (
            f"The widths of {', '.join(self.followers[:2])}{more} follow {self.scale} (rank "
            f"correlation {self.correlation:.2f}): a funnel, typical of a hierarchical model in "
            "centred form. Use the non-centred form: sample z ~ N(0, 1), and compute mean + "
            "scale * z in the forward pass."
        )


def funnel(samples: Mapping[str, Tensor], healthy: list[int]) -> Funnel | None:
    """The clearest funnel in draws (chain, draw, *shape) of few weights, if there is one."""
    sizes = {k: v[0, 0].numel() for k, v in samples.items()}
    if not FEWEST < sum(sizes.values()) <= MOST_WEIGHTS:
        return None
    names = [f"{k}[{j}]" if n > 1 else k for k, n in sizes.items() for j in range(n)]
    kept = {k: v[healthy].double().cpu().flatten(2) for k, v in samples.items()}
    values = np.concatenate([v.flatten(0, 1).numpy() for v in kept.values()], 1)
    if len(values) < 4 or not np.isfinite(values).all():
        return None
    apart = {k: v - v.mean(2, keepdim=True) if v.shape[2] > FEWEST else v for k, v in kept.items()}
    widths = np.concatenate([v.flatten(0, 1).numpy() for v in apart.values()], 1)
    found = _ranks(values).T @ _ranks(np.abs(widths - np.median(widths, 0))) / len(values)
    np.fill_diagonal(found, 0.0)
    best = int((found > LEAST).sum(1).argmax())
    which = np.flatnonzero(found[best] > LEAST)
    if len(which) < max(FEWEST, (len(names) - 1) / 2):
        return None
    middle = float(np.median(found[best][which]))
    return Funnel(names[best], tuple(names[j] for j in which), middle)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of every column, of mean 0 and variance 1 (0 where nothing moves)."""
    ranks = values.argsort(0).argsort(0).astype(float)
    moving = values.std(0) > 0
    return moving * (ranks - ranks.mean(0)) / max(ranks.std(0).max(), 1e-300)
