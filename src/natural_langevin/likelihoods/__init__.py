"""Likelihoods: a network's outputs become a distribution p_theta(y | x).

A likelihood turns the outputs of one chain for a batch, (B, ...), into the per-sample log-loss
-ln p(y_n | x_n), shape (B,): a *sum* over the components of one observation, never averaged over
the batch. It also draws y~ from the model (for the Fisher matrix proper) and says what a
prediction is.

``state`` holds what a likelihood learns along the way ({} for most): a dict of tensors with one
value per chain, seen here without the chain axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from natural_langevin import random

State = dict[str, Tensor]


class Likelihood:
    """What the dynamics and the posterior ask of a likelihood. Subclasses are final."""

    #: Whether predictions are probabilities over classes (else they are means).
    discrete = False

    def init(self, chains: int, *, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first step, with a leading chain axis."""
        return {}

    def update(self, state: State, outputs: Tensor, y: Tensor, rate: Tensor) -> State:
        """The state after seeing a batch."""
        return state

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        """-ln p(y_n | x_n) for every sample: shape (B,)."""
        raise NotImplementedError

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        """y~ ~ p_theta(. | x) for every sample, drawn from the stream ``key``."""
        raise NotImplementedError

    def predictive(self, outputs: Tensor) -> Tensor:
        """One network's prediction: class probabilities, or the mean."""
        return outputs

    def noise_variance(self, state: State) -> Tensor | None:
        """The observation variance of a regression, where it is known."""
        return None

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Refuses targets ``y`` (all, or a batch) that do not fit ``outputs`` (of any samples)."""


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Classes 0 .. K-1 from logits: outputs (B, ..., K), targets integer (B, ...)."""

    discrete = True

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        log_p = outputs.log_softmax(-1)
        chosen = log_p.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
        return -chosen.reshape(chosen.shape[0], -1).sum(1)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        cumulative = outputs.softmax(-1).cumsum(-1)
        u = random.uniform(key, cumulative[..., 0].numel()).reshape(cumulative[..., :1].shape)
        # Counting the classes below u; the last class catches what rounding leaves over.
        return (cumulative[..., :-1] < u).sum(-1)

    def predictive(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.ndim < 2:
            raise ValueError(
                f"Categorical needs logits of shape (batch, classes), the model gives "
                f"{tuple(outputs.shape)}: end the network with nn.Linear(..., classes)"
            )
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
            raise TypeError(
                f"Categorical targets must be integer class indices, got dtype {y.dtype}: "
                "use y.long() (or y.argmax(-1) for one-hot targets)"
            )
        if y.ndim != outputs.ndim - 1:
            raise ValueError(
                f"Categorical targets of shape {tuple(y.shape)} do not fit logits of shape "
                f"(batch, {', '.join(map(str, outputs.shape[1:]))}): give one class index each"
            )
        classes, low, high = outputs.shape[-1], int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"class indices must lie in 0 .. {classes - 1} (the model has {classes} outputs), "
                f"got values from {low} to {high}"
            )


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Independent binary targets in {0, 1} from logits: outputs (B,), (B, 1) or (B, D)."""

    discrete = True

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        y = y.to(outputs.dtype).reshape(outputs.shape)
        loss = F.softplus(outputs) - y * outputs
        return loss.reshape(loss.shape[0], -1).sum(1)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        u = random.uniform(key, outputs.numel()).reshape(outputs.shape)
        return (u <= outputs.sigmoid()).to(outputs.dtype)

    def predictive(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def check(self, outputs: Tensor, y: Tensor) -> None:
        _same_observation("Bernoulli", outputs, y)
        if not ((y == 0) | (y == 1)).all():
            raise ValueError(
                f"Bernoulli targets must be 0 or 1, got values from {y.min().item()} "
                f"to {y.max().item()}"
            )


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y ~ N(outputs, sigma^2 Id): the square loss properly cast as a log-loss.

    -ln p = |y - outputs|^2 / (2 sigma^2) + dim(y) ln sigma + dim(y) ln(2 pi) / 2.

    ``sigma`` is a number, or "rmse": the empirical root-mean-square residual, a running average
    over minibatches with rate 1/sqrt(t), one value per chain, stated in ``posterior.sigma``.
    There is no default: sigma = 1 is a badly specified model for almost any data (the paper's
    first practical remark).
    """

    sigma: float | str

    def __post_init__(self) -> None:
        if isinstance(self.sigma, str):
            if self.sigma != "rmse":
                raise ValueError(f'sigma must be a positive number or "rmse", got {self.sigma!r}')
        elif not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ValueError(f'sigma must be a positive number or "rmse", got {self.sigma!r}')

    def init(self, chains: int, *, dtype: torch.dtype, device: torch.device) -> State:
        if self.sigma == "rmse":
            return {"variance": torch.ones(chains, dtype=dtype, device=device)}
        return {}

    def update(self, state: State, outputs: Tensor, y: Tensor, rate: Tensor) -> State:
        if self.sigma != "rmse":
            return state
        residual = y.to(outputs.dtype).reshape(outputs.shape) - outputs
        # The floor keeps a network that interpolates its data from dividing by zero.
        mean_square = residual.square().mean().clamp_min(1e-12)
        return {"variance": (1 - rate) * state["variance"] + rate * mean_square}

    def noise_variance(self, state: State) -> Tensor | None:
        if isinstance(self.sigma, str):
            return state["variance"]
        return torch.tensor(float(self.sigma) ** 2, dtype=torch.float64)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        variance = self._variance(state, outputs)
        residual = (y.to(outputs.dtype).reshape(outputs.shape) - outputs).square() / variance
        terms = 0.5 * (residual + torch.log(2 * math.pi * variance))
        return terms.reshape(terms.shape[0], -1).sum(1)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        z = random.normal(key, outputs.numel()).reshape(outputs.shape).to(outputs.dtype)
        return outputs + self._variance(state, outputs).sqrt() * z

    def check(self, outputs: Tensor, y: Tensor) -> None:
        _same_observation("Gaussian", outputs, y)
        if not y.dtype.is_floating_point:
            raise TypeError(
                f"Gaussian targets must be floating point, got dtype {y.dtype}: use y.float()"
            )

    def _variance(self, state: State, outputs: Tensor) -> Tensor:
        variance = self.noise_variance(state)
        assert variance is not None
        return variance.to(dtype=outputs.dtype, device=outputs.device)


@dataclass(frozen=True)
class LogLoss(Likelihood):
    """Anything with a per-sample log-loss: ``fn(outputs, y) -> (B,)``, in nats.

    ``sample(outputs, key)`` draws y~ from the model; it is needed only by Fisher preconditioners
    with ``targets="model"``, and should draw from ``natural_langevin.random`` with that key.
    Without inputs (``data`` is one tensor) the network is called on y itself.
    """

    fn: Callable[[Any, Tensor], Tensor]
    draw: Callable[[Any, Tensor], Tensor] | None = None

    def __init__(
        self,
        fn: Callable[[Any, Tensor], Tensor],
        sample: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> None:
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "draw", sample)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        return self.fn(outputs, y)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        if self.draw is None:
            raise ValueError(
                'targets="model" needs to draw labels from the model, and this LogLoss has no '
                'sample function: give LogLoss(fn, sample=...) or use targets="data"'
            )
        return self.draw(outputs, key)


def _same_observation(kind: str, outputs: Tensor, y: Tensor) -> None:
    """Outputs (B, D) and targets (B, D) must hold the same number of components per sample."""
    per_output, per_target = outputs[0].numel(), y[0].numel()
    if per_output != per_target:
        raise ValueError(
            f"{kind} targets hold {per_target} values per sample (shape {tuple(y.shape)}) but the "
            f"model gives {per_output} (shape {tuple(outputs.shape)}): they must agree"
        )
