"""Binary targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, distributions

from natural_langevin import random
from natural_langevin.likelihoods.base import Likelihood, State, per_sample, same_observation


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Independent binary targets in {0, 1} from logits: outputs (B,), (B, 1) or (B, D)."""

    discrete = True
    link = "sigmoid"

    def distribution(self, outputs: Tensor, state: State) -> distributions.Bernoulli:
        return distributions.Bernoulli(logits=outputs, validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        y = y.to(outputs.dtype).reshape(outputs.shape)
        return per_sample(F.softplus(outputs) - y * outputs)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        u = random.uniform(key, outputs.numel()).reshape(outputs.shape)
        return (u <= outputs.sigmoid()).to(outputs.dtype)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(self, outputs, y)
        if not ((y == 0) | (y == 1)).all():
            raise ValueError(
                f"Bernoulli targets must be 0 or 1, got values from {y.min().item()} "
                f"to {y.max().item()}"
            )
