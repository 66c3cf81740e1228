"""Gradients: model + batch -> loss, mean gradient and Fisher statistics, for all chains at once.

This is the only backward pass of the library. For every chain, with per-sample loss l_n:

    gradient = mean_n d l_n / d theta                      what Algorithm 1 calls g
    second, cross                                          see ``rules``
    samples  = d l_n / d theta for every n                 for the full Fisher matrix only

With ``targets="model"`` the statistics come from labels y~ drawn from the model (the Fisher matrix
proper); the gradient always comes from the data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from natural_langevin.gradients.capture import CallKey, Network, prepare_model
from natural_langevin.gradients.rules import RULES, Call, LayerStatistics, Rule
from natural_langevin.likelihoods import Likelihood
from natural_langevin.likelihoods import State as LikelihoodState

__all__ = [
    "RULES", "Call", "DeferredCall", "Evaluation", "Gradients", "LayerStatistics", "Network",
    "Rule", "Statistics", "prepare_model",
]  # fmt: skip

Need = Literal["gradient", "diagonal", "samples"]
Params = dict[str, Tensor]


@dataclass
class Statistics:
    """Fisher statistics by parameter name, with a leading chain axis."""

    second: Params = field(default_factory=dict)
    cross: dict[str, Params] = field(default_factory=dict)
    samples: Params = field(default_factory=dict)


@dataclass
class Evaluation:
    """What one batch says of every chain: loss (chain,), gradient, statistics, likelihood state."""

    loss: Tensor
    gradient: Params
    statistics: Statistics
    likelihood: LikelihoodState
    deferred: dict[str, DeferredCall] = field(default_factory=dict)


class DeferredCall(NamedTuple):
    """The one call of a linear layer whose products somebody else forms: (chain, B, features)."""

    input: Tensor  # a
    delta: Tensor  # per-sample output gradients of the data's losses
    fisher_delta: Tensor | None = None  # of drawn labels, for statistics; None: the same as delta


class Gradients:
    """Evaluates all chains on a batch. ``need`` says which statistics the preconditioner wants."""

    def __init__(
        self,
        network: Network,
        likelihood: Likelihood,
        *,
        need: Need = "gradient",
        targets: Literal["data", "model"] = "data",
    ) -> None:
        self.network, self.likelihood = network, likelihood
        self.need, self.targets = need, targets
        self._shapes: dict[tuple[int, ...], dict[CallKey, tuple[torch.Size, torch.dtype]]] = {}
        if need == "diagonal":
            network.install_hooks()
        self._units = network.units()  # once: it walks over all layers

    def prepare(self, params: Params, x: Tensor) -> None:
        """Learns the layers' output shapes for a batch like ``x`` (no chain axis). Idempotent."""
        if self.network.watched and tuple(x.shape) not in self._shapes:
            first = {name: value[0] for name, value in params.items()}
            self._shapes[tuple(x.shape)] = self.network.call_shapes(first, x)

    def output_shapes(self, x: Tensor) -> dict[CallKey, tuple[torch.Size, torch.dtype]]:
        """Output shape and dtype of every watched call, for a batch that was prepared."""
        return self._shapes.get(tuple(x.shape), {})

    def __call__(
        self,
        params: Params,
        likelihood: LikelihoodState,
        batch: tuple[Tensor, Tensor],
        *,
        chain_axis: bool,
        key: Tensor,
        step: Tensor,
        deferred: tuple[str, ...] = (),
    ) -> Evaluation:
        """``key`` (chain, 2) draws y~; the likelihood's own averages use the rate 1/sqrt(t).

        For the linear layers named in ``deferred``, each called once on a matrix, neither gradient
        nor statistics are formed: the evaluation holds their ``DeferredCall`` instead."""
        rate = (step + 1).to(next(iter(params.values())).dtype).rsqrt()
        data = 0 if chain_axis else None
        chain = vmap(
            lambda p, s, x, y, k, r: self._one_chain(p, s, x, y, k, r, deferred),
            in_dims=(0, 0, data, data, 0, None),
        )
        loss, gradient, (second, cross, samples), state, calls = chain(
            params, likelihood, *batch, key, rate
        )
        statistics = Statistics(second, cross, samples)
        calls = {name: DeferredCall(*call) for name, call in calls.items()}
        return Evaluation(loss, gradient, statistics, state, calls)

    def _one_chain(
        self,
        params: Params,
        state: LikelihoodState,
        x: Tensor,
        y: Tensor,
        key: Tensor,
        rate: Tensor,
        deferred: tuple[str, ...],
    ) -> tuple[
        Tensor, Params, tuple[Params, dict[str, Params], Params], LikelihoodState, dict[str, Any]
    ]:
        if self.need == "samples":
            return *self._with_samples(params, state, x, y, key, rate), {}
        batch_size = x.shape[0]
        own = {f"{layer}.{kind}".lstrip(".") for layer in deferred for kind in ("weight", "bias")}
        apart = {name: p for name, p in params.items() if name in own}
        params = {name: p for name, p in params.items() if name not in own}
        epsilons = {
            k: torch.zeros(shape, dtype=dtype, device=x.device)
            for k, (shape, dtype) in self.output_shapes(x).items()
        }
        outputs, pullback, inputs = vjp(  # type: ignore[misc]
            lambda p, e: self.network.recorded_call(p | apart, e, x), params, epsilons, has_aux=True
        )
        state = self.likelihood.update(state, outputs, y, rate)
        losses = self.likelihood.log_loss(outputs, y, state)
        # The sum of losses: its output gradients are the per-sample ones, whatever the batch size.
        total, deltas = pullback(self._output_gradient(outputs, y, state))
        gradient = {name: g / batch_size for name, g in total.items()}
        fisher_deltas = deltas
        calls: dict[str, Any] = {n: (inputs[n, 0], deltas[n, 0]) for n in deferred}
        if self.need == "diagonal" and self.targets == "model":
            drawn = self.likelihood.sample(outputs, key, state)
            _, fisher_deltas = pullback(self._output_gradient(outputs, drawn, state))
            calls = {n: (*call, fisher_deltas[n, 0]) for n, call in calls.items()}
        if self.need == "gradient":
            return losses.mean(), gradient, ({}, {}, {}), state, calls
        rest = {k: a for k, a in inputs.items() if k[0] not in deferred}
        second, cross = self._layer_statistics(params, rest, fisher_deltas)
        return losses.mean(), gradient, (second, cross, {}), state, calls

    def _output_gradient(self, outputs: Tensor, y: Tensor, state: LikelihoodState) -> Tensor:
        """d loss_n / d outputs_n for every sample."""
        return grad(lambda o: self.likelihood.log_loss(o, y, state).sum())(outputs)

    def _layer_statistics(
        self, params: Params, inputs: dict[CallKey, Tensor], deltas: dict[CallKey, Tensor]
    ) -> tuple[Params, dict[str, Params]]:
        # A layer that the forward pass never calls has no gradient, hence zeros.
        second = {name: torch.zeros_like(p) for name, p in params.items()}
        units = {b: ws for b, ws in self._units.items() if b in second}
        cross = {b: {w: second[w] for w in ws} for b, ws in units.items()}
        for name, calls in self.network.calls_by_layer(inputs, deltas).items():
            module = self.network.model.get_submodule(name)
            layer = self.network.rules[name].statistics(module, calls)
            prefix = f"{name}." if name else ""
            second |= {prefix + k: v for k, v in layer.second.items() if prefix + k in params}
            for bias, row in layer.cross.items():
                if prefix + bias in cross:
                    known = cross[prefix + bias]
                    known |= {prefix + k: v for k, v in row.items() if prefix + k in known}
        return second, cross

    def _with_samples(
        self,
        params: Params,
        state: LikelihoodState,
        x: Tensor,
        y: Tensor,
        key: Tensor,
        rate: Tensor,
    ) -> tuple[Tensor, Params, tuple[Params, dict[str, Params], Params], LikelihoodState]:
        """Per-sample gradients of the whole network: any layer, at B times the memory."""
        outputs = self.network.call(params, x)
        state = self.likelihood.update(state, outputs, y, rate)
        losses = self.likelihood.log_loss(outputs, y, state)
        samples = self._per_sample(params, state, x, y)
        gradient = {name: g.mean(0) for name, g in samples.items()}
        if self.targets == "model":
            drawn = self.likelihood.sample(outputs, key, state)
            samples = self._per_sample(params, state, x, drawn)
        return losses.mean(), gradient, ({}, {}, samples), state

    def _per_sample(self, params: Params, state: LikelihoodState, x: Tensor, y: Tensor) -> Params:
        def loss(p: Params, x_n: Tensor, y_n: Tensor) -> Tensor:
            outputs = self.network.call(p, x_n[None])
            return self.likelihood.log_loss(outputs, y_n[None], state).squeeze(0)

        return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
