"""Predictions averaged over the networks of a posterior, a few networks and inputs at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from natural_langevin._internal import threads
from natural_langevin._internal.chains import Params
from natural_langevin.data.checks import shown_to_model
from natural_langevin.posterior import networks
from natural_langevin.posterior.calibration import (
    check_number,
    trained_networks,
    width_factors,
)
from natural_langevin.posterior.draws import Chains, Draws
from natural_langevin.posterior.prediction import Averager, one_tensor
from natural_langevin.statistics.in_turn import convolved, one_by_one

#: Of inputs evaluated at once: numbers that a convolution gives, or that all networks do.
MOST_NUMBERS = 1 << 26
#: Outputs of small networks that torch takes on one thread.
FEW_OUTPUTS = 1 << 16

Estimate = Literal["ensemble", "mean", "last"]
AnyDraws = TypeVar("AnyDraws", bound=Draws)


class Options(NamedTuple):
    """Those of ``Posterior.predict``."""

    estimate: Estimate
    chains: Chains
    batch_size: int
    sample_batch: int
    sharpness: float | None

    def of(self, posterior: AnyDraws) -> AnyDraws:
        """The posterior that predicts with these: without what it has learned on held-out rows,
        which is of all draws, for other estimates and beside a given sharpness."""
        return posterior.calibrated(self.estimate == "ensemble" and self.sharpness is None)


def averaged(
    posterior: Draws,
    x: Any,
    options: Options,
    *,
    keep_samples: bool,
    levels: Sequence[float] = (),
    whole: bool = False,
    errors: bool = False,
) -> Iterator[Averager]:
    """What all networks say of every batch of inputs."""
    posterior, (estimate, chains, batch_size, sample_batch, given) = options.of(posterior), options
    samples, pooled = members(posterior, estimate), posterior.chosen(chains)
    draws = next(iter(samples.values())).shape[1]
    own = [c for c in pooled if c in posterior.processes.own]
    state, spread = learned_by(posterior, own, draws), posterior.spread
    sharpness = posterior.sharpness if given is None else check_number("sharpness", given)
    device, empty = next(iter(posterior.last.values())).device, True
    rows = _inputs_at_once(posterior, x, batch_size, sample_batch, len(pooled) * draws)
    for batch in posterior.signature.batches(x, rows):
        empty = False
        averager = Averager(
            posterior.likelihood, len(pooled) * draws, state,
            keep_samples=keep_samples, levels=levels, whole=whole, sharpness=sharpness,
            spread=spread, draws=draws if errors else None,
        )  # fmt: skip
        size = networks.at_once(samples, sample_batch, batch_size=batch_size, inputs=len(batch))
        _fill(posterior, averager, samples, batch.to(device), size, pooled)
        yield averager
    if empty:
        raise ValueError("there is nothing to predict: x holds no batch")


def _inputs_at_once(posterior: Draws, x: Any, batch_size: int, several: int, count: int) -> int:
    """``batch_size``; of networks that are taken one by one, up to as many inputs as ``several``
    would have together: every call has a price on a GPU. ``count``: networks in all."""
    model = posterior.template
    if not isinstance(x, Tensor) or not one_by_one(model, posterior.last, x[:batch_size]):
        return batch_size
    first = x[:1].to(next(iter(posterior.last.values())).device)
    with torch.no_grad():
        one = posterior.each(one_tensor, first, {k: v[:1] for k, v in posterior.last.items()})
    every = (name for name, _ in model.named_parameters())
    numbers = max(convolved(model, every, first), count * one.numel())
    return max(batch_size, min(several * batch_size, MOST_NUMBERS // numbers))


def _fill(
    posterior: Draws,
    averager: Averager,
    samples: Params,
    x: Tensor,
    sample_batch: int,
    chains: Sequence[int],
) -> None:
    """Adds the predictions of all networks, ``sample_batch`` at a time."""
    small = _small(posterior, len(x) * sample_batch)
    with torch.no_grad(), threads.one() if small else nullcontext():
        for some in _some(posterior, samples, chains, sample_batch):
            with shown_to_model(x):
                averager.add(posterior.outputs(some, x))
        if not (here := posterior.processes).whole:
            # So that a process whose chains all diverged knows the shapes.
            one = {name: value[:1] for name, value in posterior.last.items()}
            averager.add(posterior.outputs(one, x)[:0])
            averager.pool(here.add_up, here.all_rows)
        averager.settle()


def _some(posterior: Draws, samples: Params, chains: Sequence[int], size: int) -> Iterator[Params]:
    """At most ``size`` networks at a time, the trained one among them where it has a share."""
    found = networks.chunks(samples, posterior.processes.rows(chains), size, like=posterior.last)
    share = posterior.config.get("trained_share", 0.0)
    share = check_number("trained_share", share, most=1.0, zero=True)
    if not share:
        yield from found
        return
    draws, seen = next(iter(samples.values())).shape[1], 0
    which = trained_networks(share, chains, draws)
    for some in found:
        count = len(next(iter(some.values())))
        own, seen = which[seen : seen + count], seen + count
        yield {k: _replaced(v, own, posterior.trained.get(k)) for k, v in some.items()}


def _replaced(values: Tensor, which: Tensor, by: Tensor | None) -> Tensor:
    """Values (network, *shape) with those of some networks replaced, unless ``by`` is None."""
    if by is None:
        return values
    where = which.to(values.device).reshape(-1, *(1,) * (values.ndim - 1))
    return torch.where(where, by.to(values), values)


def _small(posterior: Draws, outputs: int) -> bool:
    """Whether what is evaluated at once, so many outputs, is too small for several threads."""
    weights = [value[0] for value in posterior.last.values()]
    on_cpu = all(w.device.type == "cpu" and w.ndim <= 2 for w in weights)  # and no convolutions
    return (
        on_cpu and sum(w.numel() for w in weights) <= threads.FEW_WEIGHTS and outputs <= FEW_OUTPUTS
    )


def some_outputs(
    posterior: Draws, x: Tensor, rows: Sequence[int], chains: Sequence[int], size: int
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The outputs of at most ``size`` networks at a time, (network, B, ...), uncalibrated, and what
    their likelihoods have learned. ``rows``: those of the ``chains`` in ``samples``."""
    like = next(iter(posterior.last.values()))
    state, seen = learned_by(posterior.calibrated(False), chains, posterior.draws), 0
    for some in networks.chunks(posterior.samples, rows, size, like=posterior.last):
        parts = [posterior.outputs(some, part.to(like.device)) for part in x.split(1000)]
        outputs = torch.cat(parts, 1)
        yield outputs, {k: v[seen : seen + len(outputs)] for k, v in state.items()}
        seen += len(outputs)


def members(posterior: Draws, estimate: Estimate) -> Params:
    """Parameters of the networks to average, (chain, draw, *shape); nothing is copied."""
    if estimate not in ("ensemble", "mean", "last"):
        raise ValueError(f'estimate must be "ensemble", "mean" or "last", got {estimate!r}')
    if estimate == "ensemble":
        return posterior.samples
    source = posterior.mean if estimate == "mean" else posterior.last
    return {name: value.unsqueeze(1) for name, value in source.items()}


def stacked(posterior: Draws, estimate: Estimate) -> Params:
    """The same as one stack in memory, (network, *shape), the trained network among them."""
    samples, chains = members(posterior, estimate), posterior.chosen(None)
    count = len(chains) * next(iter(samples.values())).shape[1]
    return next(_some(posterior, samples, chains, count))


def learned_by(posterior: Draws, chains: Sequence[int], draws: int) -> dict[str, Tensor]:
    """The likelihood's state for every network of these chains, (network,), with the noise of its
    width."""
    state = {k: v[list(chains)].repeat_interleave(draws) for k, v in posterior.learned.items()}
    weights = posterior.config.get("noise_widths")
    if weights is None or "variance" not in state or not chains:
        return state
    wider = width_factors(weights, chains, draws).to(state["variance"])
    return state | {"variance": state["variance"] * wider}
