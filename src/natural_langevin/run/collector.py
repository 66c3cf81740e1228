"""Collectors: they receive the iterates while the chains run.

The run loop (``run.loop``) passes every kept iterate to a collector, and the losses from time to
time. ``SampleCollector`` stores the iterates for a ``Posterior``; the experiments add up
predictions instead (``experiments.table1.ensemble``).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.dynamics.base import Info, State
from natural_langevin.posterior.networks import OnDisk
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.stores import Store
from natural_langevin.posterior.units import Units
from natural_langevin.schedules import Stages

log = logging.getLogger("natural_langevin")


class Collector(Protocol):
    """The interface that the run loop uses."""

    @property
    def kept(self) -> int:
        """How many iterates it has been given."""

    def tree(self) -> dict[str, Any]:
        """Everything a checkpoint must hold, as tensors."""

    def begin(self, found: dict[str, Any] | None) -> None:
        """Starts from the beginning, or from the checkpoint's tree ``found``."""

    def keep(self, state: State) -> None:
        """Takes an iterate."""

    def look(self, state: State, info: Info) -> None:
        """Notes the chains' losses and their divergence."""


def is_kept(step: int, burn_in: int, thin: int, explores: Stages | None = None) -> bool:
    """Whether iterate ``step`` (the parameter after so many updates) is one to keep: those are
    burn_in + thin, burn_in + 2 thin, ... unless the update ``explores``."""
    there = step > burn_in and (step - burn_in) % thin == 0
    return there and (explores is None or not explores(step - 1))


def finite_chains(state: State) -> Tensor:
    """Which chains are running and have finite parameters: (chain,) bool.

    The dynamics notice a non-finite parameter by the loss of the step after it; here every
    parameter is looked at, so that no such iterate is ever kept.
    """
    sums = [p.reshape(len(p), -1).sum(1) for p in state.params.values()]
    return (state.diverged < 0) & torch.isfinite(torch.stack(sums)).all(0)


def _all_finite(state: State) -> bool:
    """Whether every chain is running and finite, where that need not be waited for."""
    if state.diverged.device.type != "cpu" or bool((state.diverged >= 0).any()):
        return False
    return all(math.isfinite(p.sum()) for p in state.params.values())


def draws_mean(samples: Params, like: Params) -> Params:
    """The mean of every chain's kept draws, up to where it stopped: as ``like``."""
    return {
        name: torch.stack([chain.to(p.device, p.dtype).nanmean(0) for chain in samples[name]])
        for name, p in like.items()
    }


class LossTrace:
    """The chains' losses at every look: ``values`` is (look, 1 + chain), the step first."""

    def __init__(self, looks: int, chains: int) -> None:
        self.values = torch.full((looks, 1 + chains), torch.nan, dtype=torch.float64)
        self.count = 0

    def add(self, state: State, info: Info) -> None:
        """Notes the losses of a step."""
        row = self.values[self.count]
        row[0], row[1:] = state.step, info.loss.detach()  # waits for the device
        self.count += 1

    @property
    def seen(self) -> Tensor:
        """The rows of the looks so far."""
        return self.values[: self.count]


class SampleCollector:
    """Stores the kept iterates and a trace of losses, and returns them as a ``Posterior``.

    Iterates go to ``store`` in ``dtype``; what a stopped chain would have drawn is NaN there."""

    def __init__(
        self,
        state: State,
        *,
        store: Store,
        dtype: torch.dtype,
        looks: int,
        first: int = 0,
        level: int = logging.WARNING,
        units: Units | None = None,
    ) -> None:
        """``first``: the number of the first chain here, for what is said of it, at ``level``.
        ``units``: those that chains are sampled in; what is kept is in the user's."""
        self._units = units
        self.kept, self._first, self._level = 0, first, level
        self._store, self._dtype = store, dtype
        self._trace = LossTrace(looks, len(state.diverged))
        self._reported: set[int] = set()

    @property
    def trace(self) -> Tensor:
        """Losses at every look so far."""
        return self._trace.seen

    def tree(self) -> dict[str, Any]:
        """Everything a checkpoint must hold, as tensors."""
        counts = torch.tensor([self.kept, self._trace.count])
        looks, losses = self._trace.values[:, 0], self._trace.values[:, 1:].T
        return {"samples": self._store.tree(), "looks": looks, "losses": losses, "counts": counts}

    def take_over(self, shorter: SampleCollector, kept: Iterable[bool], look_every: int) -> None:
        """Takes what a shorter run has collected, the draws that are ``kept``, as if it had had no
        end: a look there that was not due is forgotten."""
        samples = shorter._store.first(shorter.kept)
        for draw in itertools.compress(range(shorter.kept), kept):
            self._store.put(self.kept, {name: value[:, draw] for name, value in samples.items()})
            self.kept += 1
        due = shorter.trace[shorter.trace[:, 0] % look_every == 0]
        self._trace.values[: len(due)], self._trace.count = due, len(due)

    def begin(self, found: dict[str, Any] | None) -> None:
        """Starts from the beginning, or from the checkpoint's tree ``found``."""
        if found is None:
            self._store.begin()
            return
        self._store.restore(found["samples"])
        self._trace.values = torch.cat([found["looks"][None], found["losses"]]).T.contiguous()
        self.kept, self._trace.count = found["counts"].tolist()

    def keep(self, state: State) -> None:
        """Stores theta of every running chain."""
        every = _all_finite(state)
        running = state.diverged < 0 if every else finite_chains(state)
        values = {}
        for name, p in self._given(state.params).items():
            mask = running.reshape(-1, *(1,) * (p.ndim - 1))
            stored = p.to(self._dtype)
            if stored.dtype != p.dtype and not bool((stored.isfinite() | ~mask).all()):
                raise ValueError(
                    f"a weight of {name!r} is too large for sample_dtype={self._dtype}: store the "
                    "samples as torch.bfloat16, or leave sample_dtype out"
                )
            values[name] = stored if every else torch.where(mask, stored, torch.nan)
        self._store.put(self.kept, values)
        self.kept += 1

    def look(self, state: State, info: Info) -> None:
        """Notes the chains' losses, and says once of each chain that it diverged."""
        self._trace.add(state, info)
        self._report(state.diverged)

    def _report(self, diverged: Tensor) -> None:
        for chain, step in enumerate(diverged.tolist()):
            if step >= 0 and chain not in self._reported:
                self._reported.add(chain)
                log.log(
                    self._level,
                    "chain %d became non-finite at step %d and was stopped; the others continue. "
                    + (
                        "Its step size is most likely too large: try a tenth of it"
                        if step
                        else "Its loss is non-finite at its initial weights"
                    ),
                    self._first + chain,
                    step,
                )

    def _given(self, params: Params) -> Params:
        return params if self._units is None else self._units.given(params)

    def so_far(self, state: State, **described: Any) -> Posterior:
        """The posterior of the draws so far, while the run goes on, as it is sampled;
        ``described``: its model, likelihood and config."""
        samples, diverged = self._store.first(self.kept), state.diverged.clone()
        samples = samples if self._units is None else self._units.standard(samples)
        return self._posterior(state, samples, state.params, diverged, described)

    def finish(self, state: State, **described: Any) -> Posterior:
        """The posterior of this process's chains; of a run that ended early, the draws it has."""
        # A chain that broke in the very last step has not been noticed by the dynamics yet.
        late = ~finite_chains(state) & (state.diverged < 0)
        diverged = torch.where(late, state.step, state.diverged)
        self._report(diverged)
        samples = self._store.finished()
        if self.kept < next(iter(samples.values())).shape[1]:
            cut = {name: value[:, : self.kept] for name, value in samples.items()}
            on_disk = isinstance(samples, OnDisk)  # from where they are read when needed
            samples = cut if on_disk else {name: value.clone() for name, value in cut.items()}
        mean = self._given(state.mean) if state.mean else draws_mean(samples, state.params)
        state = state._replace(params=self._given(state.params))
        return self._posterior(state, samples, mean, diverged, described)

    def _posterior(
        self, state: State, samples: Params, mean: Params, diverged: Tensor, about: dict[str, Any]
    ) -> Posterior:
        return Posterior(
            samples=samples, mean=mean, last=state.params, diverged=diverged,
            learned=state.likelihood, trace=self.trace, **about,
        )  # fmt: skip
