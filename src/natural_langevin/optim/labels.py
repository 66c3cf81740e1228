"""The likelihood in a training loop: its loss, its state, labels drawn from the model, and a check.

At the first step ``LossCheck`` looks whether the loop's loss is the likelihood's mean log-loss.

The optimizer uses the gradients as they are. A loss that differs from the mean log-loss by a factor
samples the likelihood to that power: ``F.mse_loss`` for ``Gaussian(sigma=.1)`` is a fiftieth of it.
So the gradient of the loop's loss is compared with that of the likelihood,

    n dL/do_k = f  d(-ln p(y_k | o_k))/do_k,        f = 1,

with n samples since the last step (``reduction="mean"``) or n = 1 ("sum"). The labels y are among
the tensors that the loop combines with the outputs. To see them, the first outputs are a subclass
of Tensor that records these tensors; from the second step on they are plain.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin import random
from natural_langevin.likelihoods import Likelihood
from natural_langevin.optim import shards
from natural_langevin.optim.capture import Pass
from natural_langevin.optim.fisher import Fisher, Reduction

log = logging.getLogger("natural_langevin")


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


#: Factors this close to 1 are rounding, also under autocast; and so are differences in direction.
TOLERANCE, DIRECTION = 0.05, 0.05


class _Handed(NamedTuple):
    """Outputs that the loop was given, and where their gradient will stand. The pass itself, with
    all activations, goes when its graph goes."""

    one: weakref.ref[Pass]
    deltas: list[Tensor | None]
    outputs: Tensor

    @property
    def pending(self) -> bool:
        """A gradient has come, or may still come."""
        return self.one() is not None or self.deltas[0] is not None


class LossCheck:
    """Belongs to an optimizer, until its first step."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._likelihood, self._passes = likelihood, list[_Handed]()
        self._met: list[Tensor] = []
        self._watched = _watched(self._met)
        self.done = False

    def forget(self) -> None:
        """Drops the outputs handed out since the last step, and the labels they met."""
        self._passes = []
        self._met.clear()

    def hand_out(self, one: Pass, outputs: Any) -> Any:
        """The outputs for the loop, watched while nothing has been compared yet."""
        if self.done or type(outputs) is not Tensor or not outputs.is_floating_point():
            return outputs
        self._passes = [known for known in self._passes if known.pending]
        if one.root is not None and len(one.root.deltas) == 1:
            self._passes.append(_Handed(weakref.ref(one), one.root.deltas, outputs.detach()))
        return outputs.as_subclass(self._watched)

    def compare(self, samples: float, loss_scale: float, state: dict[str, Tensor]) -> None:
        """Refuses a factor, and warns of a loss that is not proportional to the likelihood's.

        ``samples``: n; ``loss_scale``: what a GradScaler multiplied the loss by; ``state``: what
        the likelihood has learned."""
        passes, met, self.done = self._passes, tuple(self._met), True
        self.forget()
        state = {name: value.as_subclass(Tensor) for name, value in state.items()}
        for _, deltas, outputs in passes:
            if deltas[0] is None:
                continue
            delta = deltas[0].double() * (samples / loss_scale)
            found = [self._fit(delta, outputs, y, state) for y in met]
            known = [fit for fit in found if fit is not None]
            if not known:
                log.warning(
                    "the loss was not compared with %r: no labels that fit it were seen. Use "
                    "optimizer.loss(model(x), y), whose scale is known", self._likelihood,
                )  # fmt: skip
                return
            factor, apart = min(known, key=lambda fit: fit[1])
            if apart > DIRECTION:
                log.warning(
                    "the loss is not that of %r: its gradient is %.0f %% off in direction, so the "
                    "chain samples something else (class weights, smoothed labels, labels that "
                    "broadcast?). Use optimizer.loss(model(x), y), or give the loss as "
                    "likelihoods.LogLoss(fn)", self._likelihood, 100 * apart,
                )  # fmt: skip
            elif abs(factor - 1) > TOLERANCE:
                raise ValueError(_refusal(factor, self._likelihood, len(outputs), samples))

    def _fit(
        self, delta: Tensor, outputs: Tensor, y: Tensor, state: dict[str, Tensor]
    ) -> tuple[float, float] | None:
        """(f, |delta - f own| / |delta|) where y are labels of these outputs."""
        own = self._own_gradient(outputs, y, state)
        if own is None or own.shape != delta.shape:
            return None
        norm = float(own.square().sum())
        if not 0 < norm < float("inf") or not float(delta.square().sum()):
            return None
        factor = float((own * delta).sum()) / norm
        return factor, float((delta - factor * own).norm() / delta.norm())

    def _own_gradient(self, outputs: Tensor, y: Tensor, state: dict[str, Tensor]) -> Tensor | None:
        for shape in (y.shape, outputs.shape, outputs.shape[:-1]):
            if y.numel() != shape.numel() or len(outputs) != (shape[0] if shape else 0):
                continue
            # A tensor that is no label of this likelihood fails somewhere in here.
            with contextlib.suppress(ValueError, TypeError, RuntimeError, IndexError):
                labels = y.detach().reshape(shape).to(outputs.device)
                leaf = outputs.double().requires_grad_()
                with torch.enable_grad(), torch.autocast(outputs.device.type, enabled=False):
                    self._likelihood.check(leaf, labels)
                    learned = {k: v.double().to(leaf.device) for k, v in state.items()}
                    total = self._likelihood.log_loss(leaf, labels, learned).sum()
                    return torch.autograd.grad(total, leaf)[0]
        return None


def _watched(met: list[Tensor]) -> type[Tensor]:
    """A Tensor that adds to ``met`` whatever plain tensors it meets, and so do its results."""

    class Watched(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            for leaf in pytree.tree_leaves((args, kwargs)):
                plain = isinstance(leaf, Tensor) and not isinstance(leaf, Watched)
                if plain and leaf.ndim and not any(leaf is other for other in met):
                    met.append(leaf)  # a candidate for the labels
            return super().__torch_function__(func, types, args, kwargs or {})

    return Watched


def _refusal(factor: float, likelihood: Likelihood, rows: int, samples: float) -> str:
    parts = ""
    if rows < samples:
        parts = (
            f" (here on a micro-batch of {rows} of {samples:g} samples: each one's sum is to be "
            "divided by all samples of the step, not its mean by the number of micro-batches)"
        )
    return (
        f"the loss's gradient is {factor:.4g} times that of the mean log-loss of {likelihood!r}"
        f"{parts}, so the likelihood would count to that power. Use optimizer.loss(model(x), y), "
        "which is -ln p in nats, reduction= as your loss adds up, or a likelihood that says what "
        "the loss is; check_loss=False where the factor is meant"
    )
