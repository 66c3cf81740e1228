"""Where chains begin.

Those of a run by the recipe: at the model where it has learned something. Otherwise every chain at
random weights of its own, N(0, 1/fan_in), from where it first goes downhill (``warm_up``).

``sampler`` is a ``Langevin``.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor

from natural_langevin import models, random
from natural_langevin._internal.gpu_kernels import plain
from natural_langevin.priors import Prior
from natural_langevin.sampling.warm_up import losses
from natural_langevin.types import Params

#: A network has learned something where shuffled inputs, or random weights, raise its loss by this
#: part.
FITTED, RANDOM_STARTS = 0.5, 5


def weights(
    kind: str, params: Params, prior: Mapping[str, Prior], chain: Tensor, seed: int
) -> Params:
    """The first weights of chains of these numbers, {name: (chain, *shape)}: ``kind`` is "prior",
    "fan_in", or else the model's own, ``params``."""
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
    return {
        k: p.expand(len(chain), *p.shape).clone(memory_format=torch.contiguous_format)
        for k, p in params.items()
    }


def better(sampler: Any, data: tuple[Tensor, Tensor]) -> tuple[str, bool]:
    """ "model" or "fan_in" for chains whose start is open, and whether to go downhill from there.

    A trained network fits every sample better by its own input than by its neighbour's; a random
    one, or one that always says the same, does not. Where targets say little about inputs it is
    better by less than half, but then by more than that than random weights; so may a random one
    be by luck, and downhill does no harm."""
    model = sampler._start_of(sampler._dynamics, sampler.chain_ids[:1])  # "auto" is the model
    x, y = data
    own, others = (
        float(_losses(sampler, model.params, (v, y))[0]) for v in (x.clone(), x.roll(1, 0))
    )
    if own < others - FITTED * abs(others):
        return "model", False
    numbers = torch.arange(RANDOM_STARTS, device=sampler.device)
    trainable = sampler._dynamics.gradients.network.trainable()
    drawn = weights("fan_in", trainable, {}, numbers, sampler.seed)
    usual = median(_losses(sampler, drawn, data).tolist())
    weakly = own < others and own < usual - FITTED * abs(usual)
    return "model" if weakly else "fan_in", True


def _losses(sampler: Any, params: Params, data: tuple[Tensor, Tensor]) -> Tensor:
    """-ln p(y | x) per sample for every chain, (chain,)."""
    first = next(iter(params.values()))
    rows = tuple(t.to(sampler.device).expand(len(first), *t.shape) for t in data)
    learned = sampler.likelihood.init(len(first), dtype=first.dtype, device=first.device)
    return losses(sampler._dynamics.gradients, params, (rows[0], rows[1]), learned)
