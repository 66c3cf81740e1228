"""The temperature of the samples, as they come by (see ``diagnostics.configurational``).

    E[(theta - c) . dU] / d = T      with U = -ln [alpha(theta) prod_n p_theta(y_n | x_n)]

c is a chain's mean over the first half of its kept draws; the second half is read, so that nothing
but one sum of parameters is stored. dU is N times the mean gradient on fresh random data. The same
holds for the parameters of one tensor alone, so that each has its own reading: where only some are
above T, it is they that minibatches heat.
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
        shape = (len(params), len(first))  # sums by tensor and chain
        self.total = torch.zeros(shape, dtype=torch.float64, device=first.device)
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
        away = [
            ((state.params[k] - c) * v[k]).double().flatten(1).sum(1)
            for k, c in self.centre.items()
        ]
        return torch.stack(away) * self._num_data / on.temperature.double()

    def reading(self, chains: slice) -> dict[str, Any] | None:
        """Mean over draws and these chains (those that run), and its standard error over chains:
        of all parameters, and of every tensor's."""
        if not int(self.counts[1]):
            return None
        sums = self.total[:, chains] / float(self.counts[1])
        sizes = {k: c[0].numel() for k, c in self.centre.items()}
        tensors = {k: _mean(one / sizes[k]) for k, one in zip(sizes, sums, strict=True)}
        temperature, error = _mean(sums.sum(0) / sum(sizes.values()))
        return {"temperature": temperature, "error": error, "tensors": tensors}


def _mean(values: Tensor) -> list[float]:
    """Mean of the finite ones and its standard error."""
    known = [v for v in values.tolist() if math.isfinite(v)] or [math.nan]
    spread = statistics.stdev(known) if len(known) > 1 else 0.0
    return [statistics.fmean(known), spread / len(known) ** 0.5]
