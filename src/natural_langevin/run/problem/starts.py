"""The start of chains: at the model, at random weights, or at draws of the prior.

By default at the model if it is trained; otherwise every chain at its own random weights, N(0,
1/fan_in), followed by a descent (``run.descent``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from natural_langevin import models, random
from natural_langevin._internal.chains import Batch, Params
from natural_langevin._internal.given_weights import Weights, weights_of
from natural_langevin._internal.gpu_kernels import plain
from natural_langevin.execution.kernels.native.forward import NativeOutputs
from natural_langevin.likelihoods import Likelihood
from natural_langevin.priors import Prior
from natural_langevin.run.problem.problem import Problem
from natural_langevin.statistics import Network

#: Where chains start: a kind, or weights, which may be one per chain.
Init = str | Weights | Sequence[Weights]


@dataclass(frozen=True)
class Fitted:
    """The criterion of a trained network: shuffled inputs, or random weights, raise its loss by
    this ``part``, on so many ``rows``, compared with the median of ``random_starts``."""

    part: float
    random_starts: int
    rows: int


def kind_and_weights(init: Init, chains: int) -> tuple[str, Params | None]:
    """The kind of a start, "given" for weights that are; and these, as they were given."""
    if isinstance(init, str):
        return init, None
    if isinstance(init, Sequence) and len(init) != chains:
        raise ValueError(
            f"init has {len(init)} networks for {chains} chains: give one for every chain, or "
            f"chains={len(init)}"
        )
    return "given", weights_of(init)


def check_given(
    given: Params | None, params: Params, model: nn.Module, chains: int
) -> Params | None:
    """The given weights of all sampled parameters, (1, *shape) or (chain, *shape), in their dtype
    and on their device; others of the model (frozen ones, buffers) may be among them."""
    if given is None:
        return None
    known = set(dict(model.named_parameters())) | set(dict(model.named_buffers()))
    if missing := sorted(set(params) - set(given)):
        raise ValueError(f"init has no weights for {missing[:4]}, which are sampled")
    if unknown := sorted(set(given) - known):
        raise ValueError(f"init has weights for {unknown[:4]}, which the model does not have")
    found = {}
    for name, p in params.items():
        value = given[name]
        if value.shape[0] == 1 and value.shape[1:] != p.shape:
            value = value[0]  # a state dict whose tensors have a chain axis
        if value.shape[1:] != p.shape or value.shape[0] not in (1, chains):
            raise ValueError(
                f"init[{name!r}] has shape {tuple(given[name].shape[1:])}: the parameter's is "
                f"{tuple(p.shape)}, and with one value per chain {(chains, *p.shape)}"
            )
        if not bool(value.isfinite().all()):
            raise ValueError(f"init[{name!r}] holds NaN or infinite values")
        found[name] = value.to(p)
    return found


def weights(
    kind: str,
    params: Params,
    prior: Mapping[str, Prior],
    chain: Tensor,
    seed: int,
    *,
    given: Params | None = None,
) -> Params:
    """The first weights of chains of these numbers, {name: (chain, *shape)}: ``kind`` is "prior",
    "fan_in", "given", the weights ``given`` of all chains, or else the model's own, ``params``."""
    with plain():  # once in a run: no kernel is worth being built for it
        if kind == "fan_in":
            return models.fan_in_init(params, chain=chain, seed=seed)
        if kind == "prior":
            key = random.origin(seed, random.INIT, chain)
            return {
                name: prior[name].sample(random.stream(key, index), tuple(p.shape), p.dtype)
                for index, (name, p) in enumerate(params.items())
            }
    # Row by row, whatever the strides of the model's own: kernels read memory as it lies.
    own = {k: p[None] for k, p in params.items()} if kind != "given" or given is None else given
    return {
        k: (p[chain] if len(p) > 1 else p.expand(len(chain), *p.shape[1:])).clone(
            memory_format=torch.contiguous_format
        )
        for k, p in own.items()
    }


def better(problem: Problem, data: Batch, fitted: Fitted) -> tuple[str, bool]:
    """ "model" or "fan_in" for chains whose start is open, and whether to go downhill from there.

    A trained network fits every sample better by its own input than by its neighbour's; a random
    one, or one that always says the same, does not. Where targets say little about inputs it is
    better by less than half, but then by more than that than random weights; so may a random one
    be by luck, and downhill does no harm."""
    x, y = (rows[: fitted.rows] for rows in data)
    trainable, seed = problem.network.trainable(), problem.chains.seed
    model = {name: p[None] for name, p in trainable.items()}
    own, others = (float(_losses(problem, model, (v, y))[0]) for v in (x.clone(), x.roll(1, 0)))
    if own < others - fitted.part * abs(others):
        return "model", False
    numbers = torch.arange(fitted.random_starts, device=problem.device)
    drawn = weights("fan_in", trainable, {}, numbers, seed)
    usual = median(_losses(problem, drawn, (x, y)).tolist())
    weakly = own < others and own < usual - fitted.part * abs(usual)
    return "model" if weakly else "fan_in", True


def _losses(problem: Problem, params: Params, data: Batch) -> Tensor:
    """-ln p(y | x) per sample for every chain, (chain,)."""
    first = next(iter(params.values()))
    x, y = (t.to(problem.device).expand(len(first), *t.shape) for t in data)
    learned = problem.likelihood.init(len(first), dtype=first.dtype, device=first.device)
    return losses(problem.network, problem.likelihood, params, (x, y), learned)


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
