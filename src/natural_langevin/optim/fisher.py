"""Fisher statistics of the user's forward and backward passes, summed between two steps.

With n samples since the last step and L what ``backward()`` was called on, all in all, the
gradient of an output of sample k is dL/do_k = delta_k / n where L is the mean over these samples
(``reduction="mean"``), and delta_k where it is their sum. Per-sample gradients are linear in it, so
the sums of their squares are kept in units of L and brought to scale at the step:

    second = (1/n) sum_k (n dL/dw_k)^2      or      (1/n) sum_k (dL/dw_k)^2

Micro-batches of any sizes therefore add up to what the whole minibatch would have given. In a step
of one pass the scale is known before anything is squared.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin._internal import cuda_graphs
from natural_langevin._internal.chains import Params, Units
from natural_langevin.execution.kernels.layer import LayerCall
from natural_langevin.execution.traced import TracedFunction
from natural_langevin.optim import shards
from natural_langevin.optim.agreement import waiting
from natural_langevin.optim.capture import (
    Arguments,
    CallReader,
    Capture,
    Cotangent,
    NetworkCopy,
    Pass,
    Record,
    copy_network,
)
from natural_langevin.preconditioners import Preconditioner
from natural_langevin.statistics import Basis, Gradients, Group, grouped, prepare_model
from natural_langevin.statistics import samples as per_sample
from natural_langevin.statistics.moments import Averaging, Moments, chunk_numbers
from natural_langevin.statistics.plan import Plan, make_plan
from natural_langevin.statistics.prepare import dropout_rates, refuse_layers
from natural_langevin.statistics.rules.rewritten import RewrittenLayer
from natural_langevin.statistics.selfcheck import check_statistics
from natural_langevin.statistics.statistics import LayerStatistics, Recorded
from natural_langevin.statistics.tape import Tensors
from natural_langevin.statistics.vectorised import is_untransformable, why_untransformable


def refuse_dropout(model: nn.Module) -> None:
    """Raises an error if a dropout layer is active."""
    for name, module, attribute in dropout_rates(model):
        rate = getattr(module, attribute)
        if module.training and rate > 0:
            raise ValueError(
                f"dropout in layer {name!r} is active (p={rate}), but the likelihood needs a "
                "deterministic network, and sampling replaces dropout. Switch it off with "
                "natural_langevin.optim.without_dropout(model)"
            )


def without_dropout(model: nn.Module) -> nn.Module:
    """Sets the rate of every dropout layer to 0, in place, and returns the model."""
    for _, module, rate in dropout_rates(model):
        setattr(module, rate, 0.0)
    return model


log = logging.getLogger("natural_langevin")

Reduction = Literal["mean", "sum"]
Deferred = dict[str, str]  # by weight, a layer


class Fisher:
    """Watches ``model`` and computes the statistics that a preconditioner needs from its passes."""

    whole = True  # whether parameters are not sharded

    def __init__(
        self, model: nn.Module, preconditioner: Preconditioner, *, reduction: Reduction
    ) -> None:
        self.requests, self.targets = preconditioner.requests, preconditioner.targets
        # The losses of drawn labels are summed, whatever the user's are.
        self.model, self.reduction = model, "sum" if self.targets == "model" else reduction
        self._modes: set[bool] = set()  # of the model, training or not, in which it was looked at
        copied = self._copied(model)
        self._look_at_mode()
        prepare_model(copied)
        self.network_copy, self.cotangent = NetworkCopy(copied), Cotangent()
        self.gradients = Gradients(
            self.network_copy,
            self.cotangent,
            requests=self.requests,
            sharing=preconditioner.sharing,
        )
        self.units = self.network_copy.units()
        self._opaque = {n for n, m in copied.named_modules() if isinstance(m, RewrittenLayer)}
        self._plans: dict[Any, tuple[bool, Plan | None, frozenset[str]]] = {}
        #: Of the statistics, by plan and how they are brought to scale: on a GPU and on a CPU.
        self._recordings: dict[Any, cuda_graphs.RecordedFunction] = {}
        self._traces = TracedFunction()
        self._checked = False
        self.group: Any = None  # of the ranks that run replicas of the model
        self.basis: Callable[[], Basis] = (
            dict  # of the statistics "rotated": the optimizer knows it
        )
        self.draw: Callable[[Any, int], None] | None = (
            None  # given by whoever knows how to draw labels from the model
        )
        #: Whether what comes after a pass may be recorded; not where the loop records it all.
        self.records = True
        #: Whether the next step wants statistics at all.
        self.due: Callable[[], bool] = lambda: True
        #: Parameters, those of a linear layer together, whose statistics the step itself can form
        #: from the layer's call.
        self.deferrable: Callable[[], Collection[frozenset[str]]] = tuple
        self._parted: dict[Any, tuple[Plan, Plan, Deferred]] = {}  # see ``_part``
        layers = dict.fromkeys(self._inside_opaque(n) or n for n in self.network_copy.owned)
        self.capture = Capture(model, list(layers), self._plan_for, self._finished)
        self.forget()

    def _copied(self, model: nn.Module) -> nn.Module:
        return copy_network(model)

    def _like(self) -> Tensor:
        """A tensor of the precision and on the device of all others."""
        return self.network_copy.first

    def forget(self) -> None:
        """Clears all statistics since the last step."""
        self.samples = 0
        self._sums: Moments | None = None  # of the statistics that are means, by field ...
        self._unit = torch.ones(())  # ... where gradients are multiplied by this, see ``_add`` ...
        self._weight = 1.0  # ... and all divided by this
        self._means = False  # whether they are the means that are asked for
        self._samples: list[Params] = []
        self.passes = 0  # forward passes that labels were drawn for
        if hasattr(self, "capture"):
            self.capture.forget()

    # A forward pass -------------------------------------------------------------------------------

    def _look_at_mode(self) -> None:
        """Refuses layers that are not deterministic, whether or not there are statistics."""
        if self.model.training not in self._modes:
            refuse_dropout(self.model)
            refuse_layers(self.model)
            self._modes.add(self.model.training)

    def _plan_for(self, arguments: Arguments) -> tuple[Arguments, Plan | None, frozenset[str]]:
        """How the statistics of such a call are found; rehearsed once for every kind of call."""
        self.gather()  # of earlier passes: their activations can go
        self._look_at_mode()
        if not self.due():
            return arguments, None, frozenset()
        # A pass of the bare module, on one rank perhaps, does not end what all of them share.
        self.group = shards.replicas() or self.group
        if self.group is not None and "samples" in self.requests:
            raise ValueError(
                "FullFisher does not go with DistributedDataParallel: use QuasiDiagonalFisher()"
            )
        kind = (arguments.kind, self.model.training)
        if kind not in self._plans:
            self.network_copy.follow(self.model)
            prepare_model(self.network_copy.model)
            self._plans[kind] = self._rehearsed(arguments)
            self._forget_recordings()  # the copy's buffers are others now
        alone, plan, wanted = self._plans[kind]
        return arguments.first_alone() if alone else arguments, plan, wanted

    def _rehearsed(self, arguments: Arguments) -> tuple[bool, Plan | None, frozenset[str]]:
        if not self.requests or "samples" in self.requests:
            return False, None, frozenset()
        errors = []
        for alone in (False, True):
            attempt = arguments.first_alone() if alone else arguments
            try:
                plan = self._make_plan(attempt)
            except (RuntimeError, ValueError, TypeError) as error:
                errors.append(error)
                continue
            self._accept(plan)
            return alone, plan, self._wanted(plan)
        raise ValueError(
            f"the model cannot be called with one sample more: {errors[0]}. The first axis of its "
            f"first tensor ({arguments.size} long) must be the batch. Use "
            "preconditioners.RMSProp() or Euclidean() for a network that cannot be called so"
        ) from errors[0]

    def _make_plan(self, arguments: Arguments) -> Plan:
        devices = {p.device for p in self.model.parameters() if p.is_cuda}
        with (
            torch.random.fork_rng(devices=list(devices)),  # the user's generators stay as they are
            torch.autocast(arguments.every_row.device.type, enabled=False),
            self.network_copy.called_with(arguments),
        ):
            params, distrusted = self.network_copy.trainable(), self.gradients.distrusted
            return make_plan(self.network_copy, params, arguments.every_row, distrusted)

    def _accept(self, plan: Plan) -> None:
        """Every plan can be followed here."""

    def _wanted(self, plan: Plan) -> frozenset[str]:
        """The layers whose calls are kept: what happens inside opaque ones is found later."""
        return frozenset(self._inside_opaque(key[0]) or key[0] for key in plan.traces)

    def _inside_opaque(self, name: str) -> str | None:
        return next((o for o in self._opaque if name.startswith(f"{o}.")), None)

    def _finished(self, one: Pass, outputs: Any) -> None:
        if self.draw is not None and self.due():
            self.draw(outputs, self.passes)
            self.passes += 1

    # After backward passes ------------------------------------------------------------------------

    def gather(self, loss_scale: float | None = None) -> None:
        """Adds the statistics of all passes that a gradient has reached; ``loss_scale``: what their
        losses have been multiplied by, where no other pass belongs to the step."""
        new = [one for one in self.capture.touched if not one.counted]
        alone = len(new) == 1 and not self.samples and self.group is None and self.whole
        for one in new:
            with torch.no_grad():
                self._add(one, loss_scale if alone else None)
            one.counted = True
            one.calls.clear()
        self.capture.touched = []

    def _add(self, one: Pass, loss_scale: float | None) -> None:
        self.samples += one.arguments.size
        if not self.requests or not self.due():
            return
        # Of order one before anything is squared, whatever a GradScaler multiplied the loss by
        # (2^68 squared is no float32); the scale is put right afterwards.
        assert one.root is not None
        if self._sums is not None:  # which may lie where the next ones will be written
            self._sums = pytree.tree_map(torch.clone, self._sums)
        if loss_scale is None:
            size = float(one.arguments.size) if self.reduction == "mean" else 1.0
            scale = size * self._to_order_one(self._of_outputs(one.root))
        else:
            scale = self._like().new_full((), self._to_scale(loss_scale))
        rows = one.arguments.every_row
        with (
            torch.autocast(rows.device.type, enabled=False),
            self.network_copy.called_with(one.arguments),
        ):
            if "samples" in self.requests:
                if not self._set_cotangent(one, scale):
                    raise ValueError(self._not_replayable("FullFisher"))
                params = self.network_copy.trainable()
                with _transforming("FullFisher", "use QuasiDiagonalFisher()"):
                    dense, _ = per_sample.whole(self._loss, params, frozenset(params), rows, rows)
                    found = dense(slice(0, len(rows)))
                self._samples.append({k: g / scale for k, g in found.items()})
                return
            moments = self._moments(one, rows, scale, loss_scale)
        # In units of the largest gradients so far: of passes that are much smaller nothing is left.
        rows_here = float(len(rows))
        if self._sums is None:
            self._sums, self._unit, self._weight = moments, scale, rows_here
            self._means = loss_scale is not None
            return
        unit = torch.minimum(scale, self._unit)
        before = _scaled(self._sums, self._weight, (unit / self._unit).square())
        here = _scaled(moments, rows_here, (unit / scale).square())
        self._sums, self._unit, self._weight = _added(before, here), unit, 1.0

    def _of_outputs(self, root: Record) -> list[Tensor | None]:
        return root.drawn if self.targets == "model" else root.deltas

    def _to_order_one(self, deltas: list[Tensor | None]) -> Tensor:
        """A power of two that does so: multiplying by it rounds nothing. Stays on the device."""
        largest = self._like().new_zeros(())
        for delta in deltas:
            if delta is not None and delta.numel():
                largest = torch.maximum(largest, delta.detach().abs().amax().to(largest.dtype))
        exponent = torch.frexp(self._everywhere(largest)).exponent.clamp(-100, 100)
        factor = torch.ldexp(torch.ones_like(largest), -exponent)
        return torch.where(torch.isfinite(largest), factor, torch.ones_like(factor))

    def _everywhere(self, largest: Tensor) -> Tensor:
        """Replicas have units of their own until their sums are brought to scale."""
        return largest

    def sample_units(self, sampled: Collection[str]) -> Units:
        """The units among the parameters that are sampled, which statistics follow from now on."""
        kept: Units = {}
        for b, ws in self.network_copy.units().items():
            own = tuple(w for w in ws if w in sampled)
            if b in sampled and (own or not ws):
                kept[b] = own
            else:
                kept |= dict.fromkeys(own, ())
        self.units = kept
        self._forget_recordings()
        return kept

    def _forget_recordings(self) -> None:
        self._recordings, self._traces, self._parted = {}, TracedFunction(), {}

    def _moments(self, one: Pass, rows: Tensor, scale: Tensor, loss_scale: float | None) -> Any:
        if not self._checked:
            params = self.network_copy.trainable()
            self._self_check(one, params, rows, self._set_cotangent(one, scale))
        plan = one.plan
        assert plan is not None
        # With gradients divided by the root of how many there are, sums of products are means.
        scale = scale * len(rows) ** -0.5
        whole = ", ".join(map(repr, sorted(plan.whole)))
        if plan.whole and not self._set_cotangent(one, scale):
            raise ValueError(self._not_replayable(whole))
        inputs, deltas = self._recorded(one, plan)
        plan, deferred = (plan, {}) if loss_scale is None else self._part(plan)
        # Sums of squares are brought to scale: fewer numbers than the gradients of outputs, which
        # are multiplied by a power of two where their squares would be out of range.
        late = loss_scale is not None and not plan.whole
        early = _into_range(loss_scale) if late and loss_scale is not None else 1.0
        calls = {
            w: LayerCall(
                inputs[n, 0][0].flatten(1).contiguous()[None],
                deltas[n, 0][0].flatten(1).contiguous()[None], None, float(scale), 1.0,
            )
            for w, n in deferred.items()
        }  # fmt: skip
        if calls and not (plan.ruled or plan.replayed or plan.whole):
            return {"calls": calls}
        params = self.network_copy.trainable()
        groups, count = self.groups(params), sum(map(len, deltas.values()))
        groups = [g for g in groups if not deferred.keys() & set(g.names)]

        def statistics(*given: Tensor) -> Moments:
            *seen, scale = given
            known = _like(inputs, seen[:-count]), _like(deltas, seen[-count:])
            before = (None if early == 1.0 else torch.full_like(scale, early)) if late else scale
            recorded = Recorded(params, *known, rows, rows, self._loss, before)
            divisor = (scale / early).square().reciprocal() if late else 1
            how = self.averaging(rows, divisor=divisor)
            return LayerStatistics(self.network_copy, plan, groups, recorded, how).every()

        flat = [t for tensors in (inputs, deltas) for ts in tensors.values() for t in ts]
        with _transforming(whole, "freeze it with requires_grad_(False)"):
            graphs = cuda_graphs.has_graphs(scale.device)
            special = plan.whole or plan.replayed or self.basis()
            if special or not self.records or (graphs and one.wanted & self._opaque):
                return statistics(*flat, scale) | ({"calls": calls} if calls else {})
            key, given = (id(plan), late, early, scale.dtype, scale.device), [*flat, scale]
            if graphs:
                new = cuda_graphs.RecordedFunction("the statistics")
                found = self._recordings.setdefault(key, new)(statistics, given)
            else:
                found = self._traces(key, lambda given: statistics(*given), given)
            return found | ({"calls": calls} if calls else {})

    def _part(self, plan: Plan) -> tuple[Plan, Deferred]:
        """The plan without the layers whose calls are handed to the step, and these by weight."""
        deferrable = self.deferrable()
        if not deferrable:
            return plan, {}
        key = id(plan), frozenset(deferrable)
        if key not in self._parted:
            network = self.network_copy
            owned = {n: network.owned[n] for n in plan.single_linear_calls(network)}
            found = {
                own["weight"]: n
                for n, own in owned.items()
                if frozenset(own.values()) in deferrable
            }
            self._parted[key] = plan, plan.without(found.values()), found
        return self._parted[key][1:]

    def groups(self, params: Params) -> list[Group]:
        """What is asked of every parameter."""
        return grouped({k: p.shape for k, p in params.items()}, self.units, self.requests)

    def averaging(self, rows: Tensor, *, divisor: int | Tensor) -> Averaging:
        """How the statistics of these rows are formed."""
        numbers = chunk_numbers(rows.device)
        return Averaging(len(rows), self.gradients.sharing, numbers, self.basis(), divisor)

    def _self_check(self, one: Pass, params: Params, rows: Tensor, replayable: bool) -> None:
        """The rules against per-sample gradients, on the first batch; what does not fit is found
        from the whole network from then on."""
        self._checked = True
        if not replayable:
            log.info("statistics are not checked: the loss is not a function of samples' outputs")
            return
        chained = {k: p[None] for k, p in params.items()}
        before = self.gradients.distrusted
        try:
            check_statistics(self.gradients, chained, {}, rows, rows)
        except RuntimeError as error:  # what torch.func cannot transform may still have rules
            why = why_untransformable(error)
            log.warning("statistics cannot be checked against single samples: %s", why)
        if self.gradients.distrusted != before:
            self._plans = {}
            one.plan = self._make_plan(one.arguments)

    def _loss(self, p: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.cotangent.log_loss(self.network_copy.call(p, x), y, {}).sum()

    def _set_cotangent(self, one: Pass, scale: Tensor) -> bool:
        """Whether all gradients came through outputs that have one row per sample."""
        assert one.root is not None
        dtype = self._like().dtype
        deltas = self._of_outputs(one.root)
        known = [d for d in deltas if d is not None]
        self.cotangent.deltas = [None if d is None else d.to(dtype) * scale for d in deltas]
        return bool(known) and all(d.ndim > 0 and len(d) == one.arguments.size for d in known)

    def _not_replayable(self, who: str) -> str:
        return (
            f"{who} needs the gradients of single samples, run through the whole network again, "
            "but the network's outputs do not have one row per sample (does it compute the loss "
            "itself?): compute the loss outside of the network, or use preconditioners.RMSProp()"
        )

    def _recorded(self, one: Pass, plan: Plan) -> tuple[Tensors, Tensors]:
        """Inputs and output gradients of every call in the plan."""
        like = self._like()
        replays = self.records and not cuda_graphs.has_graphs(like.device)
        reader = CallReader(
            self.network_copy, plan, self._opaque, like, drawn=self.targets == "model",
            replay=self._traces if replays else lambda key, function, given: function(given),
        )  # fmt: skip
        return reader.read(one)

    # At the step ----------------------------------------------------------------------------------

    def check_strays(self) -> None:
        """Refuses gradients that reached a layer outside of ``model(...)``."""
        if self.capture.stray is not None:
            raise RuntimeError(
                f"layer {self.capture.stray!r} was called outside of model(...), or inside a "
                "checkpoint with use_reentrant=True, so its samples cannot be told apart: call the "
                "model that the optimizer was given, and use checkpoint(..., use_reentrant=False)"
            )

    def check_seen(self) -> None:
        """Refuses a step without a pass of the model that gradients came through."""
        if self.samples == 0 and (self.requests or self.reduction == "sum"):
            raise RuntimeError(
                "no forward and backward pass of the model was seen since the last step: make the "
                "optimizer before the forward pass, call the very model it was given, and call "
                "optimizer.zero_grad() before backward(), not after"
            )

    def _to_scale(self, loss_scale: float) -> float:
        """What brings output gradients to those of a sample's own loss."""
        unit = self.samples if self.reduction == "mean" else 1.0
        return unit / (1.0 if self.targets == "model" else loss_scale)

    def moments(self, loss_scale: float, everywhere: float) -> Moments:
        """Means over the samples since the last step.

        ``everywhere`` counts them on all ranks whose sums are in these sums."""
        if not self.requests:
            return {}
        unit = self._to_scale(loss_scale)
        if self._samples:
            names = self._samples[0]
            joined = {k: torch.cat([s[k] for s in self._samples]) * unit for k in names}
            return {"samples": joined}
        if self._sums is None or self._means:
            return self._sums or {}
        square = (unit / self._unit).square()
        if self.group is None:
            return _scaled(self._sums, self._weight / everywhere, square)
        sums = _scaled(self._sums, self._weight, square)
        with waiting("the sum of the statistics", self._like(), [self.group]):
            shards.add_up(pytree.tree_leaves(sums), self.group)
        return _scaled(sums, 1 / everywhere, torch.ones_like(square))


def _into_range(loss_scale: float) -> float:
    """The power of two by which gradients of a loss so scaled are multiplied before squaring."""
    if 2.0**-20 <= loss_scale <= 2.0**30:
        return 1.0
    return 2.0 ** -math.frexp(loss_scale)[1]


def _like(tensors: Tensors, flat: Iterable[Tensor]) -> Tensors:
    """The same with other tensors in the same places."""
    values = iter(flat)
    return {key: [next(values) for _ in ts] for key, ts in tensors.items()}


def _scaled(moments: Moments, weight: float, square: Tensor) -> Moments:
    """Times ``weight``, and what is quadratic in gradients times ``square``: all but inputs."""
    found: Moments = {}
    for field, values in moments.items():
        leaves, spec = pytree.tree_flatten(values)
        factor = torch.full_like(square, weight) if field == "inputs" else weight * square
        found[field] = pytree.tree_unflatten(torch._foreach_mul(leaves, factor), spec)
    return found


def _added(one: Moments, other: Moments) -> Moments:
    ours, spec = pytree.tree_flatten(one)
    return pytree.tree_unflatten(torch._foreach_add(ours, pytree.tree_leaves(other)), spec)


@contextmanager
def _transforming(who: str, remedy: str) -> Iterator[None]:
    """Around per-sample gradients of the whole network, for ``who``: a refusal in words."""
    try:
        yield
    except RuntimeError as error:
        if not is_untransformable(error):
            raise
        raise ValueError(
            f"{who or 'a layer'} needs the gradients of single samples, run through the network "
            f"again by torch.func, which cannot transform it: {why_untransformable(error)}. "
            f"Choose between values with torch.where there, {remedy}, or use "
            "preconditioners.RMSProp() or Euclidean()"
        ) from error
