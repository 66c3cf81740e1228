"""The contenders of this library: every preconditioner, through the engine that ``sample`` uses."""

from __future__ import annotations

import logging
from typing import Any

from lab.speed.contender import Ready, Unavailable
from lab.speed.plain import flat
from lab.speed.problems import Problem
from natural_langevin import Langevin, preconditioners, priors
from natural_langevin.cli.experiments.bench import PRIOR_VARIANCE, STEP_SIZE, likelihood_of
from natural_langevin.dynamics import Integrator, State

#: Rows of the table of rates. A longer run starts again at the first: the cost is the same.
STEPS = 20_000


def sampler(
    problem: Problem,
    chains: int,
    metric: Any,
    *,
    compile: bool | str,
    dynamics: Integrator | None = None,
) -> Langevin:
    """``dynamics``: None is Algorithm 1. Raises ``Unavailable`` where the library has no rule for
    the network."""
    try:
        return Langevin(
            problem.build(),
            likelihood_of(problem.task),
            prior=priors.Gaussian(variance=PRIOR_VARIANCE),
            preconditioner=metric,
            dynamics=dynamics,
            step_size=STEP_SIZE,
            chains=chains,
            seed=problem.seed,
            device=problem.device,
            compile=compile,
        )
    except TypeError as error:
        raise Unavailable("no rule", str(error)) from None


def langevin(
    problem: Problem,
    chains: int,
    *,
    name: str,
    compile: bool | str,
    dynamics: Integrator | None = None,
    **options: Any,
) -> Ready:
    """``preconditioners.<name>(**options)``; ``compile="auto"`` is what a user gets."""
    try:
        metric = getattr(preconditioners, name)(**options)
    except TypeError as error:
        raise Unavailable("no rule", f"{options}: {error}") from None
    one = sampler(problem, chains, metric, compile=compile, dynamics=dynamics)
    engine, state = one.prepare((problem.x, problem.y), steps=STEPS, batch_size=problem.batch_size)
    warnings = Warnings()
    done = 0

    def advance(count: int) -> None:
        nonlocal state, done
        assert count <= STEPS
        if done + count > STEPS:
            state.step.zero_()
            done = 0
        with warnings:
            state, _ = engine.run(state, done, count)
        done += count

    return Ready(
        advance,
        lambda: flat(p[0] for p in state.params.values()),
        check=lambda: "; ".join([*warnings.heard, *_diverged(state)]),
        way=lambda: engine.way,
    )


def _diverged(state: State) -> list[str]:
    count = int((state.diverged >= 0).sum())
    return [f"{count} chains diverged and stood still"] if count else []


class Warnings(logging.Handler):
    """Keeps what the library warns about: a compiler that failed belongs into the results."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self.heard:
            self.heard.append(message)

    def __enter__(self) -> None:
        logging.getLogger("natural_langevin").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("natural_langevin").removeHandler(self)
