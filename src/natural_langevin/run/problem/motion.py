"""``Motion``: how the chains of a problem move.

A ``Problem`` is what is sampled; a ``Motion`` adds metric, integrator, running mean, start and
execution. Engines use its ``frame``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from natural_langevin import priors, random, schedules
from natural_langevin._internal.chains import Params
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import Integrator, LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.preconditioners import Preconditioner
from natural_langevin.run.problem import starts
from natural_langevin.run.problem.problem import Problem
from natural_langevin.run.problem.step_size_checks import StepSize
from natural_langevin.statistics import Gradients


def gradients_of(problem: Problem, metric: Preconditioner) -> Gradients:
    """The gradients of a problem's network and likelihood, with the statistics of a metric."""
    return Gradients(
        problem.network, problem.likelihood,
        requests=metric.requests, targets=metric.targets, sharing=metric.sharing,
        microbatch=problem.microbatch, clip=problem.clip,
        data_parallel=problem.chains.processes.data,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Motion:
    """``step_size``: the user's own, or None where a plan has it. ``start``: "model", "fan_in",
    "prior" or "given", the ``start_weights`` (``starts``). ``gradients``: ``gradients_of`` problem
    and metric."""

    problem: Problem
    preconditioner: Preconditioner
    integrator: Integrator
    step_size: StepSize | None
    mean_rate: float | schedules.Schedule | None
    start: str
    compile: bool | str
    gradients: Gradients
    start_weights: Params | None = None

    def on(self, problem: Problem) -> Motion:
        """The same motion on another problem: with gradients of its own, where the network or the
        likelihood is another."""
        shared = problem.network is self.problem.network
        alike = problem.likelihood is self.problem.likelihood
        together = problem.chains.processes.data is self.problem.chains.processes.data
        if shared and alike and together:
            found = dataclasses.replace(self, problem=problem)
            if self.problem.moves_as(problem):  # compiled steps are known by their frame
                found.__dict__["frame"] = self.frame
            return found
        gradients = gradients_of(problem, self.preconditioner)
        return dataclasses.replace(self, problem=problem, gradients=gradients)

    @cached_property
    def frame(self) -> LangevinDynamics:
        """The dynamics of the chains here."""
        return self.frame_of(self.problem.chains.ids)

    def frame_of(self, chain: Tensor) -> LangevinDynamics:
        """The dynamics of the chains of these numbers, each with its settings and its randomness:
        a number may come several times."""
        problem, seed = self.problem, self.problem.chains.seed
        return LangevinDynamics(
            self.integrator,
            gradients=self.gradients,
            preconditioner=self.preconditioner,
            prior=priors.of_chains(problem.prior, chain),
            temperature=problem.temperature[chain],
            power=None if problem.power is None else problem.power[chain],
            noise=random.origin(seed, random.NOISE, chain),
            labels=random.origin(seed, random.LABELS, chain),
            keep_mean=self.mean_rate is not None,
            control_variates=problem.anchors,
        )

    def init(self) -> State:
        """The state of the chains here before the first update."""
        return self.init_of(self.frame, self.problem.chains.ids)

    def init_of(self, frame: LangevinDynamics, chain: Tensor) -> State:
        """The same for chains of these numbers under these dynamics."""
        params = self.problem.network.trainable()
        seed = self.problem.chains.seed
        weights = starts.weights(
            self.start, params, frame.prior, chain, seed, given=self.start_weights
        )
        return frame.init(weights)

    def rates(
        self,
        start: int,
        stop: int,
        step_size: StepSize,
        *,
        chains: int | None = None,
        burn_in: int = 0,
    ) -> RatesTable:
        """eta of all chains, gamma and mu of the steps ``start`` to ``stop``. ``burn_in=0``: there
        is no burn-in to adapt in, and a metric that never saw a batch would be none: it goes on
        adapting."""
        first = next(iter(self.problem.network.trainable().values()))
        return RatesTable.build(
            step_size,
            self.integrator.adaptation(self.preconditioner, burn_in or math.inf),
            self.mean_rate,
            start=start,
            stop=stop,
            chains=chains or self.problem.chains.count,
            tuned=burn_in if self.integrator.tunes else 0,
            refresh_steps=self.preconditioner.refresh_steps,
            settles=burn_in > 0 and self.preconditioner.adapt == "burn-in",
            dtype=first.dtype,
            device=self.problem.device,
        )
