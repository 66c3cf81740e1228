"""What a diagnosis needs of a posterior: predictions along the draws, temperatures, another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from natural_langevin import diagnostics
from natural_langevin.diagnostics.kinetic import left_by_epochs
from natural_langevin.posterior.pooling import Chains
from natural_langevin.posterior.units import in_standard_units
from natural_langevin.priors import PriorLike, resolve

if TYPE_CHECKING:
    from natural_langevin.posterior.posterior import Posterior


def diagnose(
    posterior: Posterior,
    x: Any,
    *,
    data: Any,
    prior: PriorLike | None,
    parameters: Iterable[str],
    batch_size: int,
    max_draws: int,
    chains: Chains,
    halved: Posterior | None,
    held_out: Any,
) -> diagnostics.Diagnosis:
    """See ``Posterior.diagnose``."""
    config, shards = posterior.config, posterior.shards
    pooled = posterior.chosen(chains)
    predictions = posterior.followed(x, chains)
    some = diagnostics.some_components(posterior.samples, tuple(parameters))
    heat = scores = pair = None
    if data is not None:
        heat = _configurational(posterior, data, prior, batch_size, max_draws)
    if halved is not None:
        pair = _against(posterior, halved, x, predictions, pooled)
    if held_out is not None:
        scores = posterior.evaluate(*posterior.signature.split(held_out), chains=chains)
    return diagnostics.diagnose(
        predictions,
        {c: int(s) for c, s in enumerate(posterior.diverged.tolist()) if s >= 0},
        healthy=pooled,
        thin=config.get("thin"),
        parameters={k: shards.everywhere(v)[pooled] for k, v in some.items()},
        kinetic=_kinetic(config),
        configurational=heat,
        temperature=min([t for t in _temperatures(posterior).tolist() if t > 0], default=1.0),
        halved=pair,
        shared=bool(config.get("shared_batches")),
        adapting=bool(config.get("adapting")),
        advice=diagnostics.Advice(config),
        scores=scores,
    )


def _kinetic(config: Mapping[str, Any]) -> diagnostics.Kinetic | None:
    """The temperature of steps as the run measured it. Minibatches of the recipe's own epochs heat
    less than independent ones, at most as much as in the steepest direction that it met."""
    measured = config.get("effective_temperature")
    if measured is None:
        return None
    found = diagnostics.Kinetic.from_dict(measured)
    chosen, size = config.get("recipe") or {}, config.get("batch_size")
    steepest = chosen.get("curvature")
    if found.minibatch is None or steepest is None or not size or config.get("shared_batches"):
        return found
    left = left_by_epochs(chosen["step_size"] * steepest, config["num_data"], size)
    return replace(found, minibatch=found.minibatch * left)


def _against(
    posterior: Posterior, other: Posterior, x: Tensor, predictions: Tensor, pooled: Sequence[int]
) -> dict[str, diagnostics.Halved]:
    """This run and one at half the step size: predictions, and some weights of each tensor."""
    theirs = other.chosen(None)
    mine = diagnostics.some_components(posterior.samples, ("*",))
    half = diagnostics.some_components(other.samples, ("*",))
    return diagnostics.halved.compare(
        {"predictions": predictions}
        | {k: posterior.shards.everywhere(v)[list(pooled)] for k, v in mine.items()},
        {"predictions": other.followed(x, theirs)}
        | {k: other.shards.everywhere(v)[theirs] for k, v in half.items()},
    )


def _temperatures(posterior: Posterior) -> Tensor:
    """T of every chain, as far as the configuration says: (chain,)."""
    value = posterior.config.get("temperature", 1.0)
    return torch.as_tensor(value, dtype=torch.float64).expand(posterior.chains)


def _configurational(
    posterior: Posterior, data: Any, prior: PriorLike | None, batch_size: int, max_draws: int
) -> diagnostics.Configurational | None:
    """The temperature of the samples, as they were sampled; None where no chain has one."""
    posterior, units = in_standard_units(posterior)
    shards, chains = posterior.shards, posterior.chains
    like = {name: value[0] for name, value in posterior.last.items()}
    device = next(iter(like.values())).device
    known = posterior.prior if prior is None else resolve(prior, like, chains, device=device)
    if known is None:
        raise ValueError(
            "the temperature of the samples needs the prior, which a saved posterior does not "
            "hold: diagnose(x, data=data, prior=priors.Gaussian(...))"
        )
    temperature = _temperatures(posterior)
    warm = [c for c in posterior.healthy if temperature[c] > 0]
    if not warm:
        return None
    here = {name: shards.here(value) for name, value in posterior.learned.items()}
    x, y = (t.to(device) for t in units.data(*posterior.signature.split(data)))
    return diagnostics.configurational.measure(
        posterior._call, posterior.likelihood, known, posterior.samples, here, temperature,
        (x, y), like=next(iter(posterior.last.values())), chosen_chains=warm,
        of_all=shards.everywhere, batch_size=batch_size,
        num_data=float(posterior.config.get("num_data", len(x))), max_draws=max_draws,
    )  # fmt: skip
