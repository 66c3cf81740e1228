"""Training of a stage: the run loop of the library, with its own clock and checkpoint.

Every draw is a function of its address, so a stage that goes on from its checkpoint ends with the
same numbers.

Ensembles accumulated as the chains run: sums of probabilities, no stored parameters.

Memory depends on the chains and the inputs scored, never on how many samples are drawn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from natural_langevin._internal.chains import Params
from natural_langevin._internal.provenance import versions
from natural_langevin.dynamics.base import Info, State
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.stepping import overwrite
from natural_langevin.run import loop
from natural_langevin.run.checkpoint import RunCheckpoint
from natural_langevin.run.collector import Collector, LossTrace
from natural_langevin.run.loop import RunPlan, Stepper

#: Inputs on which every single draw is remembered, for the effective sample size.
PROBES = 50


class Scorer:
    """Class probabilities of all chains' networks on the inputs of a set: (chain, n, classes).

    In float64: logits of single draws lie 100 and more apart, where float32 has exactly 0, and one
    such image adds 708 / n to a mean NLL."""

    def __init__(self, model: nn.Module, sets: dict[str, tuple[Tensor, Tensor]]) -> None:
        self.sets, self._model = sets, model

    def probabilities(self, params: Params, x: Tensor) -> Tensor:
        """Class probabilities of every chain: (chain, N, K)."""

        def one(p: Params, rows: Tensor) -> Tensor:
            return functional_call(self._model, p, (rows,)).double().softmax(-1)

        # Bounded by the widest activations of all chains at once.
        rows = max(1000, 600_000 // len(next(iter(params.values()))))
        with torch.no_grad():
            parts = [vmap(one, in_dims=(0, None))(params, part) for part in x.split(rows)]
        return torch.cat(parts, dim=1)


class Ensemble:
    """Running sums of probabilities over kept iterates, for every chain and every scored set."""

    def __init__(
        self, scorer: Scorer, *, chains: int, classes: int, draws: int, train_every: int = 1
    ) -> None:
        self.scorer, self._train_every = scorer, train_every
        device = next(iter(scorer.sets.values()))[0].device
        self.sums = {
            name: torch.zeros(chains, len(x), classes, dtype=torch.float64, device=device)
            for name, (x, _) in scorer.sets.items()
        }
        self.kept = torch.zeros((), dtype=torch.int64)
        # Of the last set (the one that is tested on): the ensemble's NLL so far, and every draw's
        # probability of the right class on a few probes.
        self.ensemble_nll = torch.full((draws, chains), torch.nan)
        scored = len(list(scorer.sets.values())[-1][1])
        self.probes = torch.full((draws, chains, min(PROBES, scored)), torch.nan)

    def add(self, params: Params) -> None:
        """Adds the predictions of one iterate of all chains to the running sums."""
        index = int(self.kept)
        for name, (x, y) in self.scorer.sets.items():
            if name == "train" and index % self._train_every:
                continue
            p = self.scorer.probabilities(params, x)
            self.sums[name] += p
            last = (p, name, y)
        p, name, y = last
        right = p.gather(2, y[None, :, None].expand(len(p), -1, 1)).squeeze(2)
        self.probes[index] = right[:, :PROBES].cpu()
        self.kept += 1
        total = self.sums[name].gather(2, y[None, :, None].expand(len(p), -1, 1)).squeeze(2)
        self.ensemble_nll[index] = -(total / (index + 1)).clamp_min(1e-300).log().mean(1).cpu()

    def mean(self, name: str) -> Tensor:
        """Probabilities averaged over kept iterates: (chain, n, classes)."""
        every = self._train_every if name == "train" else 1
        return self.sums[name] / -(-int(self.kept) // every)

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""
        return {
            "sums": self.sums,
            "kept": self.kept,
            "ensemble_nll": self.ensemble_nll,
            "probes": self.probes,
        }


#: Looks at the training loss of a stage.
LOOKS = 100


class DivergedError(RuntimeError):
    """Some chains became non-finite; the argument counts them."""


class Outcome(NamedTuple):
    """The last state, the training losses (look, chain) at their steps, and training seconds.

    The seconds are those of all updates at the pace they had once compiled; scoring is left out.
    """

    state: State
    steps: list[int]
    losses: Tensor
    seconds: float


class TimedEngine(Stepper):
    """An engine whose ``clock`` holds seconds and the updates they were spent on."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._warm = engine, False
        self.clock = torch.zeros(2, dtype=torch.float64)
        self.notify: Callable[[str], None] = lambda text: None

    @property
    def arithmetic(self) -> str:
        return self._engine.arithmetic

    def prepare(self, state: State) -> None:
        self._engine.prepare(state)

    def run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        self._engine.notify = self.notify
        started = time.monotonic()
        state, info = self._engine.run(state, start, count)
        if info.loss.is_cuda:
            torch.cuda.synchronize()
        if self._warm:  # the first piece compiles and captures
            self.clock += torch.tensor([time.monotonic() - started, count])
        self._warm = True
        return state, info


class StageCollector(Collector):
    """Collects the losses, and adds the kept iterates' predictions to an ensemble, if any."""

    def __init__(
        self, looks: int, chains: int, clock: Tensor, ensemble: Ensemble | None, *, strict: bool
    ) -> None:
        self.trace = LossTrace(looks, chains)
        self._clock, self._ensemble, self._strict = clock, ensemble, strict

    @property
    def kept(self) -> int:
        return 0 if self._ensemble is None else int(self._ensemble.kept)

    def tree(self) -> dict[str, Any]:
        return {
            "ensemble": {} if self._ensemble is None else self._ensemble.state(),
            "trace": self.trace.values,
            "looks": torch.tensor(self.trace.count),
            "clock": self._clock,
        }

    def begin(self, found: dict[str, Any] | None) -> None:
        if found is not None:
            overwrite(self.tree(), found)
            self.trace.count = int(found["looks"])

    def keep(self, state: State) -> None:
        if self._ensemble is not None:
            self._ensemble.add(state.params)

    def look(self, state: State, info: Info) -> None:
        """Notes the losses; where no chain may be lost, one that is ends the training."""
        self.trace.add(state, info)
        if self._strict and (broken := int(info.diverged.sum())):
            raise DivergedError(broken)


def train(
    engine: Engine,
    state: State,
    *,
    steps: int,
    burn_in: int,
    thin: int,
    checkpoint: Path,
    config: dict[str, Any],
    title: str,
    progress: bool,
    ensemble: Ensemble | None = None,
    stop_if_diverged: bool = False,
) -> Outcome:
    """Runs to ``steps`` updates, with the kept iterates' predictions added to ``ensemble``."""
    plan = RunPlan(steps, burn_in, thin, look_every=max(1, steps // LOOKS), save_end=False)
    timed, chains = TimedEngine(engine), len(next(iter(state.params.values())))
    collector = StageCollector(plan.looks, chains, timed.clock, ensemble, strict=stop_if_diverged)
    with contextlib.closing(RunCheckpoint(checkpoint, config, {"versions": versions()})) as saved:
        state, _ = loop.run(
            plan, timed, state, collector, saved=saved,
            found=saved.load(loop.tree(state, collector)), title=title, progress=progress,
        )  # fmt: skip
    looks = [int(step) for step in collector.trace.seen[:, 0]]
    seconds = steps * float(timed.clock[0] / timed.clock[1].clamp_min(1))
    return Outcome(state, looks, collector.trace.seen[:, 1:].float(), seconds)
