"""The temperature of the samples, as they come by (see ``diagnostics.configurational``).

    E[(theta - c) . dU] / d = T      with U = -ln [alpha(theta) prod_n p_theta(y_n | x_n)]

c is a chain's mean over the first half of its kept draws; the second half is read, so that nothing
but one sum of parameters is stored. dU is N times the mean gradient on fresh random data.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import Tensor

from natural_langevin.data.streams import InMemory
from natural_langevin.diagnostics.energy import energy_gradient
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine

#: Of the draws of the second half, every so many is looked at, on so many images.
EVERY, IMAGES = 8, 500


class Virial:
    """(theta - c) . dU / d of every chain, added up over draws."""

    def __init__(self, engine: Engine, params: dict[str, Tensor], draws: int) -> None:
        assert isinstance(engine.dynamics, LangevinDynamics)
        assert isinstance(engine.stream, InMemory)
        self._on, self._stream, self._half = engine.dynamics, engine.stream, draws // 2
        self._num_data = engine.num_data
        first = next(iter(params.values()))
        self.centre = {k: torch.zeros_like(p) for k, p in params.items()}
        self.total = torch.zeros(len(first), dtype=torch.float64, device=first.device)
        self.counts = torch.zeros(2, dtype=torch.int64)  # draws seen, and draws read

    def tree(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""
        return {"centre": self.centre, "total": self.total, "counts": self.counts}

    def keep(self, state: Any) -> None:
        """Takes an iterate."""
        seen = int(self.counts[0])
        self.counts[0] += 1
        if seen < self._half:
            for k, c in self.centre.items():
                c += state.params[k] / self._half
        elif (seen - self._half) % EVERY == 0:
            self.total += self._read(state, seen)
            self.counts[1] += 1

    def _read(self, state: Any, seen: int) -> Tensor:
        stream, on = self._stream, self._on
        generator = torch.Generator().manual_seed(seen)
        count = min(IMAGES, stream.num_data)
        chosen = torch.randperm(stream.num_data, generator=generator)[:count].to(stream.x.device)
        rows = chosen if stream.rows is None else stream.rows[:, chosen]
        v = energy_gradient(
            on.gradients.network.call, on.gradients.likelihood, on.prior, float(self._num_data),
            state.params, state.likelihood, (stream.x[rows], stream.y[rows]),
            chain_axis=stream.rows is not None,
        )  # fmt: skip
        size = sum(p[0].numel() for p in v.values())
        away = [
            ((state.params[k] - c) * v[k]).double().flatten(1).sum(1)
            for k, c in self.centre.items()
        ]
        return torch.stack(away).sum(0) * self._num_data / size / on.temperature.double()

    def reading(self, chains: slice) -> dict[str, float] | None:
        """Mean over draws and these chains (those that run), and its standard error over chains."""
        if not int(self.counts[1]):
            return None
        every = (self.total[chains] / float(self.counts[1])).tolist()
        values = [v for v in every if math.isfinite(v)] or [math.nan]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return {"temperature": statistics.fmean(values), "error": spread / len(values) ** 0.5}
