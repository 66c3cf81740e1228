"""A variance that keeps a layer's outputs at one scale, whatever its number of inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from natural_langevin.priors.base import Prior, check_mean, check_number_or_vector
from natural_langevin.priors.gaussian import Gaussian


@dataclass(frozen=True)
class FanIn(Prior):
    """N(mean, gain^2 / fan_in) for every weight of a tensor (out, in, ...), whose fan-in is the
    number of inputs of one output unit, in x ...; a vector (a bias, or the gains of a norm layer)
    counts as the weights of one constant input: N(mean, gain^2).

    ``resolve`` turns it into the ``Gaussian`` of each tensor, whose shape it needs to know.

    >>> import torch
    >>> FanIn(2.0).for_tensor(torch.zeros(3, 8))
    Gaussian(variance=0.5, mean=0.0)
    """

    gain: float | Tensor = 1.0
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        check_number_or_vector("gain", self.gain, positive=True)
        check_mean(self, self.mean)

    def for_tensor(self, parameter: Tensor | None) -> Prior:
        if parameter is None:
            raise ValueError(
                "FanIn depends on a tensor's shape: give priors.resolve the parameters themselves, "
                "dict(model.named_parameters()), instead of their names"
            )
        shape = parameter.shape
        return Gaussian(self.gain**2 / (math.prod(shape[1:]) if len(shape) > 1 else 1), self.mean)

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"gain": self.gain, "mean": self.mean}
