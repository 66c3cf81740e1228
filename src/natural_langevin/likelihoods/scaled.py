"""Regression of several targets with different noise levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, distributions

from natural_langevin.likelihoods.base import Likelihood, State
from natural_langevin.likelihoods.distributions import StudentT as StudentTLaw


@dataclass(frozen=True)
class Scaled(Likelihood):
    """``likelihood`` of targets and outputs (B, D) in units of ``scale``, one number for every
    component of a target:

        p(y | outputs) = p_likelihood(y / scale | outputs / scale) / prod(scale).

    With a ``Gaussian`` or a ``StudentT`` whose width is learned, component d has noise of the size
    scale_d sigma: one sigma is learned, for numbers whose sizes differ. The recipe applies it when
    the targets' scales are far from 1.

    >>> from natural_langevin.likelihoods import Gaussian
    >>> law = Scaled(Gaussian(0.1), (1.0, 1000.0)).distribution(torch.zeros(1, 2), {})
    >>> law.scale.tolist()
    [[0.10000000149011612, 100.0]]
    """

    likelihood: Likelihood
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        own = self.likelihood
        one_width = isinstance(own, Likelihood) and own.has_units
        if not one_width or own.outputs_per_target > 1 or own.own_parameter is not None:
            raise TypeError(
                "Scaled takes a Gaussian or a StudentT likelihood, whose noise is of one size, got "
                f"{own!r}"
            )
        scale = tuple(float(s) for s in self.scale)  # of a tensor or an array as well
        if not scale or not all(math.isfinite(s) and s > 0 for s in scale):
            raise ValueError(f"scale must hold positive numbers, got {self.scale!r}")
        object.__setattr__(self, "scale", scale)

    @staticmethod
    def takes(likelihood: Likelihood) -> bool:
        """Whether the noise is of a kind that can be scaled."""
        state = likelihood.init(1, dtype=torch.float64, device=torch.device("cpu"))
        outputs = torch.zeros(1, 1, dtype=torch.float64)
        law = likelihood.distribution(outputs, {k: v[0] for k, v in state.items()})
        return isinstance(law, distributions.Normal | StudentTLaw)

    def in_units(self, size: float) -> Likelihood:
        """Of targets in units of ``self.scale``, the one that is scaled."""
        return self.likelihood

    @property
    def can_draw(self) -> bool:
        return self.likelihood.can_draw

    def init(self, chains: int, *, dtype: torch.dtype, device: torch.device) -> State:
        return self.likelihood.init(chains, dtype=dtype, device=device)

    def update(self, state: State, outputs: Tensor, y: Tensor, rate: Tensor) -> State:
        size = self._sizes(outputs)
        own = y.to(outputs.dtype).reshape(outputs.shape) / size
        return self.likelihood.update(state, outputs / size, own, rate)

    def distribution(self, outputs: Tensor, state: State) -> distributions.Distribution:
        size = self._sizes(outputs)
        law = cast(Any, self.likelihood.distribution(outputs / size, state))
        if isinstance(law, StudentTLaw):
            return StudentTLaw(law.df, outputs, law.scale * size, validate_args=False)
        if not isinstance(law, distributions.Normal):
            raise TypeError(f"Scaled knows Normal and Student's t noise, not {law!r}")
        return distributions.Normal(outputs, law.scale * size, validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        size = self._sizes(outputs)
        own = y.to(outputs.dtype).reshape(outputs.shape) / size
        shift = sum(math.log(s) for s in self.scale)
        return self.likelihood.log_loss(outputs / size, own, state) + shift

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        size = self._sizes(outputs)
        return size * self.likelihood.sample(outputs / size, key, state)

    def noise_variance(self, state: State) -> Tensor | None:
        """(chain, D), or (1, D) where it is known."""
        own = self.likelihood.noise_variance(state)
        if own is None:
            return None
        own = own.reshape(-1, 1)
        return own * own.new_tensor(self.scale).square()

    def check(self, outputs: Tensor, y: Tensor) -> None:
        self.likelihood.check(outputs, y)
        if outputs[0].numel() != len(self.scale):
            raise ValueError(
                f"scale has {len(self.scale)} numbers, and a target has {outputs[0].numel()}"
            )

    def _sizes(self, outputs: Tensor) -> Tensor:
        return outputs.new_tensor(self.scale).reshape(outputs.shape[1:])
