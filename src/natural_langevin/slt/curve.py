"""Learning coefficients along a training: its checkpoints are chains of one run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin._internal.extras import new_figure
from natural_langevin._internal.given_weights import Weights, weights_of
from natural_langevin._internal.messages import shown
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.slt.estimate import LearningCoefficient
from natural_langevin.slt.llc import (
    DRAWS,
    Baseline,
    Draws,
    at_baseline,
    check,
    localised,
    run,
    summarised,
    with_more_friction,
)


@dataclass(frozen=True)
class Curve:
    """``value`` and ``error`` of every checkpoint, (checkpoint,); ``places`` are the keys under
    which they were given, or 0, 1, ...; ``loss`` is L_n there."""

    places: tuple[Any, ...]
    estimates: tuple[LearningCoefficient, ...] = field(repr=False)

    @property
    def value(self) -> Tensor:
        """The learning coefficients: (checkpoint,)."""
        return torch.tensor([e.value for e in self.estimates], dtype=torch.float64)

    @property
    def error(self) -> Tensor:
        """Their standard errors: (checkpoint,)."""
        return torch.tensor([e.error for e in self.estimates], dtype=torch.float64)

    @property
    def loss(self) -> Tensor:
        """L_n at the checkpoints: (checkpoint,)."""
        return torch.tensor([e.baseline_loss for e in self.estimates], dtype=torch.float64)

    def _repr_html_(self) -> str:
        rows = [
            (str(place), f"{e.value:.4g} ± {e.error:.2g}", f"{e.baseline_loss:.5g}")
            for place, e in zip(self.places, self.estimates, strict=True)
        ]
        return shown(
            "Learning coefficients", rows, head=("checkpoint", "learning coefficient", "loss")
        )

    def __str__(self) -> str:
        rows = [
            f"{place!s:>12}  {e.value:10.4g} +- {e.error:<8.2g} loss {e.baseline_loss:.5g}"
            + (f"  ({len(e.warnings)} warnings)" if e.warnings else "")
            for place, e in zip(self.places, self.estimates, strict=True)
        ]
        kinds = Counter(
            re.split(r"[(:.]", w)[0].strip() for e in self.estimates for w in e.warnings
        )
        said = [f"{count} of {len(rows)} checkpoints: {kind}" for kind, count in kinds.items()]
        return "\n".join(["  checkpoint  learning coefficient", *rows, *said])

    def plot(self) -> Any:
        """The coefficients and the loss along the checkpoints: a matplotlib figure."""
        found = new_figure()
        axes = found.subplots()
        x = [p if isinstance(p, (int, float)) else k for k, p in enumerate(self.places)]
        axes.errorbar(x, self.value.numpy(), 2 * self.error.numpy(), marker="o", markersize=3)
        axes.set_xlabel("checkpoint")
        axes.set_ylabel("learning coefficient")
        other = axes.twinx()
        other.plot(x, self.loss.numpy(), color="grey", linewidth=0.8)
        other.set_ylabel("loss")
        return found


def llc_curve(
    checkpoints: Sequence[Weights] | Mapping[Any, Weights],
    model: nn.Module,
    likelihood: Likelihood,
    data: Any,
    *,
    gamma: float = 1.0,
    power: float | None = None,
    baseline: Baseline = "model",
    chains: int = 2,
    steps: int | None = None,
    seconds: float | None = None,
    batch_size: int | None = None,
    burn_in: int | None = None,
    draws: int = DRAWS,
    progress: bool | str = False,
    **options: Any,
) -> Curve:
    """The learning coefficient of every checkpoint, with ``chains`` chains each, in one run.

    ``checkpoints``: state dicts or modules, in a list, or by the step at which they were taken. The
    other arguments are those of ``llc``. All share one step size, chosen from the last checkpoint
    and the first.
    """
    check(likelihood, model, baseline)
    named = checkpoints if isinstance(checkpoints, Mapping) else dict(enumerate(checkpoints))
    if not named or chains < 1:
        raise ValueError(f"give at least one checkpoint and one chain, got {len(named)}, {chains}")
    trained = {k for k, p in model.named_parameters() if p.requires_grad}
    own = [_sampled(one, trained) for one in named.values()]
    # The step size is chosen by the first two chains.
    order = [len(own) - 1, *range(len(own) - 1)]
    weights: list[Weights] = [own[k] for _ in range(chains) for k in order]
    first = run(
        model, likelihood, data, init=weights, prior=localised(weights, gamma=gamma), power=power,
        chains=len(weights), steps=steps, seconds=seconds, batch_size=batch_size, burn_in=burn_in,
        draws=draws, progress=progress, **options,
    )  # fmt: skip
    sampler, posterior = first.sampler, first.posterior
    base = at_baseline(sampler, weights_of([own[k] for k in order]), data, baseline, posterior)
    base = base.repeat(chains)

    def each(posterior: Posterior, draws: Draws, warmer: Draws | None) -> list[LearningCoefficient]:
        rows = [range(order.index(k), len(weights), len(own)) for k in range(len(own))]
        return [
            summarised(posterior, list(of), base, baseline, draws, warmer=warmer) for of in rows
        ]

    found = Draws.of(sampler, posterior, data)
    estimates = each(posterior, found, None)
    cooler = None if seconds else with_more_friction(first, estimates, data, progress)
    if cooler is not None:
        estimates = each(cooler, Draws.of(sampler, cooler, data), found)
    return Curve(tuple(named), tuple(estimates))


def _sampled(one: Weights, names: set[str]) -> dict[str, Tensor]:
    """The sampled parameters of a checkpoint, without buffers and frozen ones."""
    state = one.state_dict() if isinstance(one, nn.Module) else one
    return {k: v for k, v in state.items() if k in names}
