"""The likelihood in a training loop: its loss, its state, and labels drawn from the model."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from natural_langevin import random
from natural_langevin.likelihoods import Likelihood
from natural_langevin.optim import shards
from natural_langevin.optim.fisher import Fisher, Reduction


class Loop(Protocol):
    """The interface of the optimizer (``NaturalLangevin``)."""

    likelihood: Likelihood
    param_groups: list[dict[str, Any]]
    reduction: Reduction
    seed: int
    chain: int

    @property
    def steps(self) -> int:
        """Steps taken."""

    def sampled(self) -> dict[str, nn.Parameter]:
        """The parameters that are sampled, by name."""


class Labels:
    """Everything in an optimizer that needs its likelihood."""

    def __init__(self, optimizer: Loop, fisher: Fisher) -> None:
        self._optimizer, self._fisher, self._likelihood = optimizer, fisher, optimizer.likelihood
        self._pending: dict[str, Tensor] | None = None
        start = self._likelihood.init(1, dtype=torch.float64, device=torch.device("cpu"))
        self._start = {name: float(value) for name, value in start.items()}
        if fisher.targets == "model":
            if start:
                raise ValueError(
                    f'targets="model" does not go with {self._likelihood!r}, whose state is known '
                    'only after the loss: give a number for sigma, or use targets="data"'
                )
            fisher.draw = self._draw

    def learned(self) -> dict[str, Tensor]:
        """The likelihood's own state, (chain,) each."""
        known = self._optimizer.param_groups[0].get("learned", self._start)
        return {name: torch.tensor([value], dtype=torch.float64) for name, value in known.items()}

    def newest(self) -> dict[str, Tensor]:
        """The state that the loss of this step was computed with, () each."""
        return self._pending or {name: value[0] for name, value in self.learned().items()}

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """The likelihood's loss, reduced as the optimizer says; what it learns waits for
        ``commit``."""
        state: dict[str, Tensor] = {
            name: value[0].to(outputs.dtype).to(outputs.device)
            for name, value in self.learned().items()
        }
        if state and torch.is_grad_enabled() and outputs.requires_grad:
            self._refuse_parts()
            if self._pending is not None and (self._fisher.samples or self._fisher.capture.touched):
                raise RuntimeError(
                    f"{self._likelihood!r} learns from a whole minibatch: call backward() once per "
                    "step, or give a number for sigma"
                )
            rate = torch.tensor(self._optimizer.steps + 1, dtype=outputs.dtype).rsqrt()
            state = self._likelihood.update(state, outputs.detach(), y, rate.to(outputs.device))
            self._pending = state
        losses: Tensor = self._likelihood.log_loss(outputs, y, state)
        return losses.mean() if self._optimizer.reduction == "mean" else losses.sum()

    def _refuse_parts(self) -> None:
        """Refuses several ranks: each would learn a different value from its part of the
        minibatch."""
        if shards.place(self._fisher.group)[1] > 1 or shards.any_sharded(
            self._optimizer.sampled().values()
        ):
            raise ValueError(
                f"{self._likelihood!r} learns from a whole minibatch, of which every rank sees a "
                "part only: give a number for sigma, or use Langevin(..., parallel=...)"
            )

    def forget(self) -> None:
        """Drops what the likelihood learned since the last step."""
        self._pending = None

    def commit(self) -> None:
        """At a step: what the likelihood learned from its batch counts from now on."""
        if not self._start:
            return
        if self._pending is None:
            raise RuntimeError(
                f"{self._likelihood!r} learns from the outputs, which only optimizer.loss sees: "
                "compute the loss as optimizer.loss(model(x), y)"
            )
        found = {name: float(value) for name, value in self._pending.items()}
        for group in self._optimizer.param_groups:
            group["learned"] = dict(found)
        self._pending = None

    def _draw(self, outputs: Any, index: int) -> None:
        """Gradients of the loss of labels y~ drawn from the model, by a backward pass of their
        own. ``index`` counts the forward passes since the last step: each has its own stream, and
        so has each rank."""
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f'targets="model" draws labels from the network\'s output, which must be a tensor, '
                f'got {type(outputs).__name__}: use targets="data"'
            )
        optimizer = self._optimizer
        rank, ranks = shards.place(self._fisher.group)
        stream = optimizer.chain + ((index * ranks + rank) << 32)
        chain = torch.tensor([stream], device=outputs.device)
        origin = random.origin(optimizer.seed, random.LABELS, chain)
        leaf = outputs.detach().requires_grad_()
        with torch.no_grad():
            labels = self._likelihood.sample(leaf, random.stream(origin, optimizer.steps)[0], {})
        total = self._likelihood.log_loss(leaf, labels, {}).sum()
        (cotangent,) = torch.autograd.grad(total, leaf)
        params = [p for p in optimizer.sampled().values() if p.requires_grad]
        self._fisher.capture.draw(
            lambda: torch.autograd.grad(
                outputs, params, cotangent, retain_graph=True, allow_unused=True
            )
        )
