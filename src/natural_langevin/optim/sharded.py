"""Statistics of a network that no rank holds as a whole: FSDP2's ``fully_shard``.

Every rank runs its own part of the minibatch. FSDP2 gathers a layer's parameters while it runs, and
reduces gradients onto the shards. A layer's statistics are formed from the rank's own samples, one
layer at a time, and reduced onto the shards in the same way: no rank ever holds those of two layers
in full. The copy of the network has no parameters at all (they are on the meta device), so it can
be rehearsed but not run again: every layer needs a rule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin._internal.chains import Params
from natural_langevin.optim import shards
from natural_langevin.optim.capture import Arguments, Pass
from natural_langevin.optim.fisher import Fisher
from natural_langevin.statistics.moments import Averaging, Moments, dense_moments, merge
from natural_langevin.statistics.plan import Plan, make_plan
from natural_langevin.statistics.statistics import LayerStatistics, Recorded, ruled_layers


class ShardedFisher(Fisher):
    """``Fisher`` for a model whose parameters are DTensors."""

    whole = False

    def _copied(self, model: nn.Module) -> nn.Module:
        if not self.requests <= {"second", "cross"} or self.targets == "model":
            raise ValueError(
                "a sharded network cannot be run sample by sample, nor backward twice: use "
                'QuasiDiagonalFisher(targets="data"), DiagonalFisher(targets="data"), RMSProp() '
                "or Euclidean()"
            )
        self._whose = dict(model.named_parameters())
        return skeleton(model)

    def _make_plan(self, arguments: Arguments) -> Plan:
        leaves = [x.to("meta") if isinstance(x, Tensor) else x for x in arguments.leaves]
        with (
            _meta_buffers(self.network_copy.model),
            self.network_copy.called_with(arguments._replace(leaves=leaves)),
        ):
            rows = torch.arange(arguments.size, device="meta")
            return make_plan(self.network_copy, self.network_copy.trainable(), rows, frozenset())

    def _accept(self, plan: Plan) -> None:
        inside = [key[0] for key in plan.traces if self._inside_opaque(key[0])]
        dear = [*plan.replayed, *sorted(plan.whole), *inside]
        dear += [name for name in plan.ruled if name in self._opaque]
        if dear:
            raise NotImplementedError(
                f"{dear[0]!r} has no rule for its statistics, or is used outside of its layer, so "
                "it would have to be run again, which a sharded network cannot be: register a rule "
                "(gradients.register_rule), build attention from nn.Linear layers, or use "
                "preconditioners.RMSProp() for this network"
            )

    def _like(self) -> Tensor:
        return shards.local(next(iter(self._whose.values())))

    def _everywhere(self, largest: Tensor) -> Tensor:
        """The ranks' statistics are added up before they are brought to scale: one unit for all."""
        return shards.largest(largest, next(iter(self._whose.values())))

    def _moments(self, one: Pass, rows: Tensor, scale: Tensor, loss_scale: float | None) -> Moments:
        plan, params = one.plan, self.network_copy.trainable()
        assert plan is not None
        inputs, deltas = self._recorded(one, plan)
        scale = scale * len(rows) ** -0.5
        recorded = Recorded(params, inputs, deltas, rows, rows, self._loss, scale)
        groups, how = self.groups(params), self.averaging(rows, divisor=1)
        statistics = LayerStatistics(self.network_copy, plan, groups, recorded, how)
        result: Moments = {}
        for layers in ruled_layers(self.network_copy, plan):
            found = statistics.ruled(layers)
            found["second"] = self._shards(found["second"], len(rows))
            if "cross" in found:
                found["cross"] = {b: self._shards(r, len(rows)) for b, r in found["cross"].items()}
            merge(result, found)
        unused = [g for g in groups if not result["second"].keys() & set(g.names)]
        if unused:  # layers that were never called
            names = [k for g in unused for k in g.names]
            zeros = {k: torch.zeros_like(shards.local(self._whose[k]))[None] for k in names}
            merge(result, dense_moments(lambda part: zeros, unused, Averaging(1), 1))
        return result

    def _shards(self, means: Params, samples: int) -> Params:
        return {k: self._shard(k, mean, samples) for k, mean in means.items()}

    def _shard(self, name: str, mean: Tensor, samples: int) -> Tensor:
        """This rank's rows of the sum over all ranks' samples, in units of a mean over its own."""
        parameter = self._whose[name]
        return shards.reduced(mean.reshape(parameter.shape) * samples, parameter) / samples


def skeleton(model: nn.Module) -> nn.Module:
    """A copy of a sharded model's modules, of their own classes, with parameters on ``meta``.

    FSDP2 gives every module it wraps a class of its own, hooks, and no way to be copied."""
    from torch.distributed.fsdp import FSDPModule

    params: dict[int, nn.Parameter] = {}
    copies: dict[int, nn.Module] = {}

    def parameter(p: nn.Parameter) -> nn.Parameter:
        if id(p) not in params:
            empty = torch.empty(p.shape, dtype=p.dtype, device="meta")
            params[id(p)] = nn.Parameter(empty, requires_grad=p.requires_grad)
        return params[id(p)]

    def copied(module: nn.Module) -> nn.Module:
        if id(module) in copies:
            return copies[id(module)]
        # The class that FSDP2 made has two bases: its own, and the one the module had before.
        kind: Any = type(module).__mro__[2] if isinstance(module, FSDPModule) else type(module)
        new = copies[id(module)] = kind.__new__(kind)
        new.__dict__.update(module.__dict__)
        for table in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = getattr(module, table)
            new.__dict__[table] = OrderedDict(
                (k, h)
                for k, h in hooks.items()
                if type(getattr(h, "__self__", 0)).__name__ != "FSDPState"
            )
        new.__dict__["_buffers"] = dict(module._buffers)
        new.__dict__["_parameters"] = {
            k: None if p is None else parameter(p) for k, p in module._parameters.items()
        }
        new.__dict__["_modules"] = {
            k: None if m is None else copied(m) for k, m in module._modules.items()
        }
        return new

    return copied(model)


@contextmanager
def _meta_buffers(model: nn.Module) -> Iterator[None]:
    """For a rehearsal on the meta device."""
    saved: list[tuple[nn.Module, dict[str, Any]]] = []
    for module in model.modules():
        saved.append((module, dict(module._buffers)))
        for name, value in module._buffers.items():
            module._buffers[name] = None if value is None else value.to("meta")
    try:
        yield
    finally:
        for module, buffers in saved:
            module._buffers.update(buffers)
