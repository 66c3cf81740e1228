"""Whether the native engine is used: it must support the whole run, and agree with the reference on
a step.

The proof compares one native step with the reference's. Where float32 cannot decide (inputs far
from zero cancel in J_ii - J_0i^2 / J_00, and the reference itself is rounding there) the same step
in float64 does: the same sources, the same network, data and draws. What has
agreed once need not again (``proofs``): a pilot's later stages may stand anywhere.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.base import CHAINWISE, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.agreement import Proofs
from natural_langevin.execution.kernels.native.engine import NativeMLP
from natural_langevin.execution.kernels.native.settings import UnsupportedError
from natural_langevin.statistics import Gradients, Network

log = logging.getLogger("natural_langevin")

PROOFS = Proofs()


def plan_native(
    dynamics: LangevinDynamics, state: State, stream: Stream, rates: RatesTable, num_data: float
) -> NativeMLP | str:
    """The native engine for this run, or why it does not take it: then the general way is as right,
    and slower."""
    if "mlp" not in dynamics.kernels:
        return "it does not support this dynamics, metric or prior"
    try:
        native = NativeMLP(dynamics, state, stream, rates, num_data)
        known = PROOFS.known(dynamics, stream)
        if known or agrees(native, state) or agrees_in_double(native, state):
            PROOFS.add(dynamics, stream)
            return native
    except UnsupportedError as reason:
        return str(reason)
    log.warning("the native engine disagrees with the reference on this network: not used")
    return "it disagrees with the reference"


class _OneBatch:
    """A stream of one batch, with a chain axis or without."""

    def __init__(self, x: Tensor, y: Tensor, *, chain_axis: bool) -> None:
        self.x, self.y, self.chain_axis = x, y, chain_axis

    def example(self) -> tuple[Tensor, Tensor]:
        """A batch without chain axis."""
        return (self.x[0], self.y[0]) if self.chain_axis else (self.x, self.y)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The one, at whatever step."""
        return self.x, self.y


def agrees(native: NativeMLP, state: State) -> bool:
    """Whether one native step from ``state`` is the reference's, up to rounding. It is one with
    noise, also where a run begins by exploring."""
    rates, native.rates = native.rates, native.rates.without_stages()
    try:
        return _agrees(native, state)
    finally:
        native.rates = rates


def _agrees(native: NativeMLP, state: State) -> bool:
    step, stream = int(state.step), native.stream
    native.dynamics.prepare(state.params, stream.example()[0])
    batch = _batch(stream, step, len(state.diverged))
    count = torch.tensor(native.num_data, dtype=native.dtype)
    expected, info = native.dynamics.step(
        state, batch, native.rates.row(step), count, chain_axis=stream.chain_axis
    )
    after = pytree.tree_map(torch.clone, state)
    found = native.one_step(after, step, None if isinstance(stream, InMemory) else batch)
    if not torch.equal(expected.diverged, after.diverged):
        return False
    triples = [(found.loss, info.loss, torch.zeros_like(info.loss))]
    for name in CHAINWISE:
        trees = (getattr(s, name) for s in (after, expected, state))
        triples += zip(*map(pytree.tree_leaves, trees), strict=True)
    return all(_close(*triple) for triple in triples)


def agrees_in_double(native: NativeMLP, state: State) -> bool:
    """The same in float64, from the same state on the same batch."""
    if native.dtype == torch.float64 or type(native.dynamics) is not LangevinDynamics:
        return False
    old = native.dynamics
    model = copy.deepcopy(old.gradients.network.model).double()
    gradients = Gradients(
        Network(model), old.gradients.likelihood, requests=old.gradients.requests,
        targets=old.gradients.targets, sharing=old.gradients.sharing,
    )  # fmt: skip
    power = None if old.power is None else old.power.double()
    wide = dataclasses.replace(
        old, gradients=gradients, temperature=old.temperature.double(), power=power
    )
    batch = _batch(native.stream, int(state.step), len(state.diverged))
    one = _OneBatch(*map(_widened, batch), chain_axis=native.stream.chain_axis)
    stream = cast("Stream", one)
    rates = native.rates.without_stages(torch.float64)
    state = pytree.tree_map(_widened, state)
    return agrees(NativeMLP(wide, state, stream, rates, native.num_data), state)


def _batch(stream: Stream | _OneBatch, step: int, chains: int) -> tuple[Tensor, Tensor]:
    """The step's own in memory, elsewhere an example, with a chain axis where there is one."""
    if isinstance(stream, InMemory | _OneBatch):
        return stream.batch(step)
    x, y = stream.example()
    if stream.chain_axis:
        return x.expand(chains, *x.shape), y.expand(chains, *y.shape)
    return x, y


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


def _close(found: Tensor, wanted: Tensor, before: Tensor) -> bool:
    """An error that is small against how far the step went, chain by chain."""
    found, wanted, before = (t.reshape(len(t), -1).double() for t in (found, wanted, before))
    rounding = 64 * torch.finfo(torch.float32).eps  # the noise is float32 in any case
    error, moved = (found - wanted).norm(dim=1), (wanted - before).norm(dim=1)
    within = error <= 1e-2 * moved + rounding * wanted.norm(dim=1) + 1e-12
    return bool((within | ~torch.isfinite(moved)).all())
