"""Losses of many networks, each on rows of its own."""

from __future__ import annotations

from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Batch, Params
from natural_langevin.execution.kernels.native.forward import NativeOutputs
from natural_langevin.likelihoods import Likelihood
from natural_langevin.statistics import Network

#: From so many chains on they are evaluated side by side, this many rows in all at a time.
MANY_CHAINS, ROWS_AT_ONCE = 8, 20_000
#: Outputs in C, where it knows the network.
_NATIVE: WeakKeyDictionary[Network, NativeOutputs] = WeakKeyDictionary()


def losses(
    network: Network, likelihood: Likelihood, params: Params, data: Batch, learned: Params
) -> Tensor:
    """-ln p(y | x) per sample for every chain of ``params``, (chain,), each on its rows of
    ``data``, (chain, n, ...)."""

    def loss(outputs: Any, y: Tensor, state: Params) -> Tensor:
        return likelihood.log_loss(outputs, y, state).mean()

    def one(own: Params, x: Tensor, y: Tensor, state: Params) -> Tensor:
        outputs = network.call(own, x.clone())  # it may work on its inputs in place
        return loss(outputs, y, state)

    x, y = data
    with torch.no_grad():
        if network.autocast is None:
            native = _NATIVE.setdefault(network, NativeOutputs(network.model))
            outputs = native(network.call, params, x, own=True)
            if outputs is not None:
                return vmap(loss)(outputs, y, learned).double()
        if len(x) >= MANY_CHAINS:  # operator calls are what is paid for
            together = max(1, ROWS_AT_ONCE // x.shape[1])
            return vmap(one, chunk_size=together)(params, x, y, learned).double()
        of = [pytree.tree_map(itemgetter(c), (params, x, y, learned)) for c in range(len(x))]
        return torch.stack([one(*chain) for chain in of]).double()
