"""Explicit per-sample gradients, for layers without a rule.

A layer without a rule is run again on its recorded inputs, sample by sample, and its outputs'
gradients are pulled back to its own parameters: the cost of that layer's forward and backward pass
a second time. If this is not possible for a layer alone, the whole network is used in the same way.
Both build a few samples' gradients at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params
from natural_langevin._internal.light_autograd import grad, vjp
from natural_langevin.statistics.capture import Network
from natural_langevin.statistics.plan import Plan
from natural_langevin.statistics.tape import Tensors, is_real
from natural_langevin.statistics.vectorised import vectorised

Dense = Callable[[slice], Params]


def replayed(
    network: Network,
    plan: Plan,
    name: str,
    params: Params,
    inputs: Tensors,
    deltas: Tensors,
) -> tuple[Dense, int]:
    """G_n of one layer's own parameters, and how many numbers one sample takes."""
    module = network.model.get_submodule(name)
    names = network.names_within(name)
    own = {k: params[full] for k, full in network.owned[name].items() if full not in plan.whole}
    rest = {k: params[full] for k, full in names.items() if k not in own}
    keys = [key for key in plan.traces if key[0] == name]
    axes = [plan.inputs[key] for key in keys]
    spread = [
        [
            t if a is None else a.apart(t)
            for a, t in zip(plan.inputs[key], plan.spread(key, inputs[key]), strict=True)
        ]
        for key in keys
    ]
    pulled = [
        [a.apart(d) for a, d in zip(plan.outputs[key], deltas[key], strict=True)] for key in keys
    ]

    def outputs(own: Params, tensors: list[list[Tensor]]) -> list[list[Tensor]]:
        found = []
        for key, values in zip(keys, tensors, strict=True):
            pairs = zip(plan.inputs[key], values, strict=True)
            batch = [t if a is None else a.one(t) for a, t in pairs]
            args, kwargs = plan.traces[key].rebuild(batch)
            reduced = nullcontext() if network.dtype is None else network.reduced(batch[0])
            with vectorised(batch[0]), reduced:
                result = functional_call(module, {**rest, **own}, args, kwargs)
            leaves = [leaf for leaf in pytree.tree_leaves(result) if is_real(leaf)]
            found.append([leaf.to(network.dtype or leaf.dtype) for leaf in leaves])
        return found

    def one(tensors: list[list[Tensor]], delta: list[list[Tensor]]) -> Params:
        pullback: Any = vjp(lambda p: outputs(p, tensors), own)[1]
        whose = [
            [a.one(d) for a, d in zip(plan.outputs[key], ds, strict=True)]
            for key, ds in zip(keys, delta, strict=True)
        ]
        return pullback(whose)[0]

    dims: Any = [[None if a is None else 0 for a in row] for row in axes]

    def dense(part: slice) -> Params:
        some = [
            [t if a is None else t[part] for a, t in zip(row, ts, strict=True)]
            for row, ts in zip(axes, spread, strict=True)
        ]
        found = vmap(one, in_dims=(dims, 0))(some, [[d[part] for d in ds] for ds in pulled])
        return {network.owned[name][k]: g for k, g in found.items()}

    batched = [
        t for r, ts in zip(axes, spread, strict=True) for a, t in zip(r, ts, strict=True) if a
    ]
    every = [*batched, *(d for ds in pulled for d in ds)]
    return dense, sum(p.numel() for p in own.values()) + sum(t[0].numel() for t in every)


def whole(
    loss: Callable[[Params, Tensor, Tensor], Tensor],
    params: Params,
    names: frozenset[str],
    x: Tensor,
    y: Tensor,
) -> tuple[Dense, int]:
    """G_n of some parameters from ``loss`` of one sample (a batch of one)."""
    chosen = {k: p for k, p in params.items() if k in names}

    def one(chosen: Params, x_n: Tensor, y_n: Tensor) -> Tensor:
        return loss({**params, **chosen}, x_n[None], y_n[None])

    def dense(part: slice) -> Params:
        return vmap(grad(one), in_dims=(None, 0, 0))(chosen, x[part], y[part])

    return dense, sum(p.numel() for p in chosen.values())
