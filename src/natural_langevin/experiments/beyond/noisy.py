"""Classes some of whose labels are wrong: a share of them is drawn from all classes alike.

    p(y | x) = (1 - noise) softmax(outputs)_y + noise / K

So that no image, however sure a network is of it, can cost more than ln(K / noise) nats, and labels
that contradict everything else need not be fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributions

from natural_langevin.likelihoods.base import Likelihood, State, check_labels
from natural_langevin.likelihoods.categorical import draw_classes


def with_noise(p: Tensor, noise: float | Tensor) -> Tensor:
    """Probabilities p (..., K) of labels, of which a share ``noise`` is drawn at random.

    >>> with_noise(torch.tensor([1.0, 0.0]), 0.5)
    tensor([0.7500, 0.2500])
    """
    return (1 - noise) * p + noise / p.shape[-1]


@dataclass(frozen=True)
class NoisyLabels(Likelihood):
    """The law above, with a share for every chain; outputs (B, K), targets integer (B,)."""

    noise: tuple[float, ...]

    discrete = True

    def __post_init__(self) -> None:
        if not all(0 <= noise < 1 for noise in self.noise):
            raise ValueError(f"shares of wrong labels must lie in [0, 1), got {self.noise}")

    def init(self, chains: int, *, dtype: torch.dtype, device: torch.device) -> State:
        if chains != len(self.noise):
            raise ValueError(f"{len(self.noise)} shares of wrong labels for {chains} chains")
        return {"noise": torch.tensor(self.noise, dtype=dtype, device=device)}

    def distribution(self, outputs: Tensor, state: State) -> distributions.Categorical:
        p = with_noise(outputs.softmax(-1), state["noise"])
        return distributions.Categorical(probs=p, validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        log_p = outputs.log_softmax(-1).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        noise = state["noise"]
        return -torch.logaddexp(log_p + torch.log1p(-noise), (noise / outputs.shape[-1]).log())

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        return draw_classes(with_noise(outputs.softmax(-1), state["noise"]), key)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        check_labels("NoisyLabels", y, outputs.shape[-1])
