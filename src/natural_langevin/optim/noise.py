"""The dynamics of one rank's rows: the same equation, with the noise of those very rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from natural_langevin import random
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.types import Params


@dataclass(frozen=True, eq=False)
class LocalDynamics(LangevinDynamics):
    """``offsets``: how many elements of every tensor come before those that are here.

    Draws are addressed by element, so every rank makes its own, and together they are those of
    the whole tensor: nothing is communicated."""

    offsets: dict[str, int] = field(default_factory=dict)

    def standard_normal(self, like: Params, step: Tensor, draw: int = 0) -> Params:
        key = random.stream(self.noise, step)
        found = {}
        for k, p in like.items():
            start = draw * self.stream_length + self.starts[k] + self.offsets[k]
            before = start % random.BLOCK  # normals are made in whole blocks
            draws = random.normal(key, before + math.prod(p.shape[1:]), start=start - before)
            found[k] = draws[..., before:].to(p.dtype).reshape(p.shape)
        return found
