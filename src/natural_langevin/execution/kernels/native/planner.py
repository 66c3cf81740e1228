"""Whether a run goes by the native engine: it must take everything, and prove itself on a step."""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.proven import is_proven
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.base import CHAINWISE, Dynamics, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.kernels.native.engine import NativeMLP
from natural_langevin.execution.kernels.native.settings import UnsupportedError

log = logging.getLogger("natural_langevin")


def plan_native(
    dynamics: Dynamics, state: State, stream: Stream, rates: RatesTable, num_data: float
) -> NativeMLP | None:
    """The native engine for this run, or None: then the general way is as right, and slower."""
    if "mlp" not in dynamics.kernels or not isinstance(dynamics, LangevinDynamics):
        return None
    try:
        native = NativeMLP(dynamics, state, stream, rates, num_data)
        if is_proven() or agrees(native, state):
            return native
    except UnsupportedError as reason:
        log.debug("not by the native engine: %s", reason)
        return None
    log.warning("the native engine disagrees with the reference on this network: not used")
    return None


def agrees(native: NativeMLP, state: State) -> bool:
    """Whether one native step from ``state`` is the reference's, up to rounding."""
    step, stream = int(state.step), native.stream
    native.dynamics.prepare(state.params, stream.example()[0])
    own = isinstance(stream, InMemory)
    batch = stream.batch(step) if isinstance(stream, InMemory) else stream.example()
    if stream.chain_axis and not own:  # an example has no chain axis
        x, y = (t.expand(len(state.diverged), *t.shape) for t in batch)
        batch = (x, y)
    count = torch.tensor(native.num_data, dtype=native.dtype)
    expected, info = native.dynamics.step(
        state, batch, native.rates.row(step), count, chain_axis=stream.chain_axis
    )
    copy = pytree.tree_map(torch.clone, state)
    found = native.one_step(copy, step, None if own else batch)
    if not torch.equal(expected.diverged, copy.diverged):
        return False
    triples = [(found.loss, info.loss, torch.zeros_like(info.loss))]
    for name in CHAINWISE:
        trees = (getattr(s, name) for s in (copy, expected, state))
        triples += zip(*map(pytree.tree_leaves, trees), strict=True)
    return all(_close(*triple) for triple in triples)


def _close(found: Tensor, wanted: Tensor, before: Tensor) -> bool:
    """An error that is small against how far the step went, chain by chain."""
    found, wanted, before = (t.reshape(len(t), -1).double() for t in (found, wanted, before))
    rounding = 64 * torch.finfo(torch.float32).eps  # the noise is float32 in any case
    error, moved = (found - wanted).norm(dim=1), (wanted - before).norm(dim=1)
    within = error <= 1e-2 * moved + rounding * wanted.norm(dim=1) + 1e-12
    return bool((within | ~torch.isfinite(moved)).all())
