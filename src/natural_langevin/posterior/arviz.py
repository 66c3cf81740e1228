"""A posterior in ArviZ's groups: draws, predictions and log-likelihoods.

* ``posterior``: one variable per parameter tensor, and ``prediction`` for inputs that are given
* with data (x, y): ``log_likelihood`` ln p(y_n | x_n, theta) for ``arviz.loo`` and ``compare``;
  ``posterior_predictive`` draws y~ ~ p(. | x_n, theta), one of each network; ``observed_data``
* all of it is of one law, that of the networks as they are: what the recipe learned on held-out
  rows (sharpness, widths of noise, spread) is of ``predict`` alone
* ``sample_stats``: ``lp``, the log density of every draw, and the chain's ``acceptance_rate``
  where its dynamics accept and reject
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import likelihood_powers
from natural_langevin.diagnostics import import_arviz
from natural_langevin.posterior.draws import Draws
from natural_langevin.posterior.ensemble import some_outputs
from natural_langevin.posterior.units import in_standard_units


def inference_data(
    posterior: Draws,
    chains: list[int],
    predictions: Tensor | None,
    data: Any,
    pointwise: Tensor | None,
    *,
    seed: int = 0,
) -> Any:
    """Of these chains; see ``Posterior.to_arviz``. ``predictions``: of every network of theirs;
    ``pointwise``: ln p of every datum of ``data`` by every one."""
    groups: dict[str, dict[str, Tensor]] = {
        "posterior": {
            k: s[chains].to(posterior.last[k].dtype) for k, s in posterior.samples.items()
        }
    }
    if predictions is not None:
        groups["posterior"]["prediction"] = predictions.unflatten(0, (-1, posterior.draws))
    stats: dict[str, Tensor] = {}
    if "acceptance" in posterior.config:
        rate = torch.tensor(posterior.config["acceptance"])[chains]
        stats["acceptance_rate"] = rate[:, None].expand(-1, posterior.draws)
    if pointwise is not None:
        x, y = posterior.signature.split(data)
        one_each = y[0].numel() == 1  # then of the shape of y, which LOO-PIT asks for
        known = pointwise.unflatten(-1, y.shape) if one_each else pointwise
        groups |= {"log_likelihood": {"y": known}, "observed_data": {"y": y}}
        drawn = draws(posterior, chains, x, seed)
        if drawn is not None:
            groups["posterior_predictive"] = {"y": drawn}
        if posterior.prior is not None:
            stats["lp"] = log_density(posterior, chains, pointwise)
    if stats:
        groups["sample_stats"] = stats
    arrays = {g: {k: v.cpu().numpy() for k, v in values.items()} for g, values in groups.items()}
    make = import_arviz().from_dict
    # Before version 1 groups are arguments, and become InferenceData; since then, a DataTree.
    by_name = "posterior" in inspect.signature(make).parameters
    return make(**arrays) if by_name else make(arrays)


def draws(posterior: Draws, chains: list[int], x: Tensor, seed: int) -> Tensor | None:
    """y~ of every network, (chain, draw, N, ...); None where the likelihood cannot draw."""
    count = posterior.draws
    device = next(iter(posterior.last.values())).device
    origins = random.origin(seed, random.LABELS, torch.tensor(chains, device=device))
    found: list[Tensor] = []
    with torch.no_grad():
        for outputs, state in some_outputs(posterior, x, chains, chains, 16):
            for place, one in enumerate(outputs):
                chain, draw = divmod(len(found), count)
                key = random.stream(origins, draw)[chain]
                learned = {k: v[place] for k, v in state.items()}
                try:
                    found.append(posterior.likelihood.sample(one, key, learned))
                except ValueError:  # it knows a loss alone
                    return None
    return torch.stack(found).unflatten(0, (len(chains), count))


def log_density(posterior: Draws, chains: list[int], pointwise: Tensor) -> Tensor:
    """ln alpha(theta) + beta sum_n ln p of the chains' draws, (chain, draw), from what all data's
    ln p are: (chain, draw, n)."""
    power = likelihood_powers(posterior.config, posterior.chains)[chains]
    total = pointwise.double().sum(-1).cpu()
    return power[:, None] * total + log_prior(posterior, chains)


def log_prior(posterior: Draws, chains: list[int]) -> Tensor:
    """ln alpha(theta) of every draw, in nats and float64: (chain, draw). Of the weights as they
    were sampled, which is what the prior is of."""
    assert posterior.prior is not None
    posterior, _ = in_standard_units(posterior)
    total = torch.zeros(posterior.chains, posterior.draws, dtype=torch.float64)
    for draw in range(posterior.draws):
        for name, one in (posterior.prior or {}).items():
            theta = posterior.samples[name][:, draw].to(posterior.last[name])
            total[:, draw] += one.log_density(theta).double().cpu()
    return total[chains]
