"""Levels that have an order: grades, stages, answers from "never" to "always"."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from natural_langevin._internal.whole_numbers import whole_number
from natural_langevin.likelihoods import distributions
from natural_langevin.likelihoods.base import Likelihood, State, check_labels
from natural_langevin.likelihoods.categorical import draw_classes

#: Every sample has a probability of every level.
MOST_LEVELS = 10_000


@dataclass(frozen=True)
class Ordinal(Likelihood):
    """Levels 0 < 1 < ... < K-1 from a latent value f(x) and K-1 increasing cutpoints c:

        P(y <= k) = sigmoid(c_k - f),   k = 0 .. K-2

    (cumulative logits). Targets are integer, (B,). The network's outputs say how:

    * (B, 1): f. The cutpoints are fixed, one unit apart and centred at 0; the network sets the
      scale. The right choice when the levels are about equally far apart.
    * (B, K-1): f, then the logarithms of the K-2 gaps between neighbouring cutpoints, which are
      sampled with the network: zero outputs are the fixed cutpoints above, and a prior around zero
      pulls towards them. Gaps that depend on x model more than an order.
    """

    levels: int

    discrete = True

    def __post_init__(self) -> None:
        if not 2 <= whole_number("levels", self.levels) <= MOST_LEVELS:
            raise ValueError(
                f"levels must be an integer from 2 to {MOST_LEVELS:,}, got {self.levels!r}: more "
                "are numbers, and likelihoods.Gaussian() takes them"
            )

    def distribution(self, outputs: Tensor, state: State) -> distributions.Levels:
        return distributions.Levels(logits=self._log_probabilities(outputs), validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        log_p = self._log_probabilities(outputs)
        return -log_p.gather(-1, y.long().reshape(-1, 1)).squeeze(-1)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        return draw_classes(self._log_probabilities(outputs).exp(), key)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.ndim != 2 or outputs.shape[1] not in (1, self.levels - 1):
            raise ValueError(
                f"Ordinal({self.levels}) needs outputs of shape (batch, 1), a latent value, or "
                f"(batch, {self.levels - 1}), with the gaps' logarithms; the model gives "
                f"{tuple(outputs.shape)}: end the network with nn.Linear(..., 1)"
            )
        if y[0].numel() != 1:
            raise ValueError(f"Ordinal targets are one level each, got shape {tuple(y.shape)}")
        check_labels("Ordinal", y, self.levels)

    def _log_probabilities(self, outputs: Tensor) -> Tensor:
        """(B, K): P(c_{k-1} < latent + noise <= c_k), by sigmoid(b) - sigmoid(a) =
        sigmoid(b) sigmoid(-a) (1 - e^(a - b)), which is exact in both tails."""
        f, inner = outputs[..., :1], self.levels - 2
        log_gaps = outputs[..., 1:] if outputs.shape[-1] > 1 else f.new_zeros(inner)
        gaps = log_gaps.exp().expand(*f.shape[:-1], inner)
        c = torch.cat([torch.zeros_like(f), gaps.cumsum(-1)], -1) - inner / 2 - f
        below, above = F.logsigmoid(c), F.logsigmoid(-c)
        between = below[..., 1:] + above[..., :-1] + torch.log(-torch.expm1(-gaps))
        return torch.cat([below[..., :1], between, above[..., -1:]], -1)
