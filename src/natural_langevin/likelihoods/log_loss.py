"""A likelihood defined by functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from natural_langevin.likelihoods.base import Likelihood, State


@dataclass(frozen=True)
class LogLoss(Likelihood):
    """Anything with a per-sample log-loss: ``fn(outputs, y) -> (B,)``, in nats.

    ``sample(outputs, key)`` draws y~ from the model; it is needed only by Fisher preconditioners
    with ``targets="model"``, and should draw from ``natural_langevin.random`` with that key.
    ``distribution(outputs)`` gives p(y | x) as a ``torch.distributions`` object with the targets'
    shape: with it, ``predict`` and ``evaluate`` give a mean, uncertainties and scores; without it
    they average the outputs. It also provides draws if torch has its quantile function, and
    ``fn=None`` uses its log-density. Without inputs (``data`` is one tensor) the network is called
    on y.

    >>> import torch
    >>> laplace = LogLoss(None, distribution=lambda f: torch.distributions.Laplace(f, 0.5))
    >>> laplace.log_loss(torch.zeros(1, 1), torch.zeros(1, 1), {})
    tensor([0.])
    """

    raw_outputs = True

    fn: Callable[[Any, Tensor], Tensor] | None
    draw: Callable[[Any, Tensor], Tensor] | None = None
    law: Callable[[Any], Distribution] | None = None

    def __init__(
        self,
        fn: Callable[[Any, Tensor], Tensor] | None,
        sample: Callable[[Any, Tensor], Tensor] | None = None,
        distribution: Callable[[Any], Distribution] | None = None,
    ) -> None:
        if fn is None and distribution is None:
            raise ValueError("LogLoss needs a function of (outputs, y), or a distribution")
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "draw", sample)
        object.__setattr__(self, "law", distribution)

    @property
    def can_draw(self) -> bool:
        return self.draw is not None

    def distribution(self, outputs: Tensor, state: State) -> Distribution | None:
        return None if self.law is None else self.law(outputs)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        return self.fn(outputs, y) if self.fn is not None else super().log_loss(outputs, y, state)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        if self.draw is not None:
            return self.draw(outputs, key)
        if self.law is None:
            raise ValueError(
                'targets="model" needs to draw labels from the model, and this LogLoss has no '
                'sample function: give LogLoss(fn, sample=...) or use targets="data"'
            )
        return super().sample(outputs, key, state)
