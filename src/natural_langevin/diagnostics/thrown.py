"""Chains that steps threw out of the posterior for a while: too large for a part of the way.

A network that learns its noise has places where the noise is small and curvature many times what
was measured; a step there throws the chain to where the data are hundreds of nats less likely. Few
draws are kept of such a moment, but they make deviations too wide: those of 1-12-2 were 1.2 times
NUTS's for two of five seeds, with chains that agreed. In d dimensions ln p varies by about
sqrt(d / 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

#: Nats below the median of a chain that no draw of a posterior has: so many, and for every weight.
NATS, PER_WEIGHT = 50.0, 2.0


class Thrown(NamedTuple):
    """The ``chain`` that was furthest out, at ``step``, by ``nats``; ``part`` of all looks are."""

    chain: int
    step: int
    nats: float
    part: float

    def said(self, remedy: str) -> str:
        """In words."""
        return (
            f"Chain {self.chain} was thrown to where the data are {self.nats:.0f} nats less likely "
            f"than usual (at step {self.step}; {self.part:.2g} of all looks): steps are too large "
            f"for a part of its way, and spreads may be too wide. Remedy: {remedy}."
        )


def thrown(
    trace: Tensor, *, burn_in: int, rows: float, weights: int, chains: Sequence[int]
) -> Thrown | None:
    """Of looks (step, loss of every chain), with losses of all ``rows``: the furthest of those
    after burn-in, if it is too far."""
    late = trace[trace[:, 0] > burn_in].double()
    if not len(late):
        return None
    losses = late[:, [1 + c for c in chains]]
    apart = (rows * (losses - losses.nanmedian(0).values)).nan_to_num(0.0, posinf=0.0)
    far = apart > NATS + PER_WEIGHT * weights
    if not bool(far.any()):
        return None
    look, place = divmod(int(apart.argmax()), len(chains))
    part = float(far.double().mean())
    return Thrown(chains[place], int(late[look, 0]), float(apart.max()), part)
