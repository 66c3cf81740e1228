"""The contenders of this library: every preconditioner, through the engine that ``sample`` uses."""

from __future__ import annotations

import logging
from typing import Any

from lab.command import Heard
from lab.speed.contender import Ready, Unavailable
from lab.speed.plain import flat
from lab.speed.problems import Problem
from natural_langevin import Langevin, preconditioners
from natural_langevin.cli.experiments import bench
from natural_langevin.dynamics import State


def sampler(problem: Problem, chains: int, metric: Any, **options: Any) -> Langevin:
    """``options``: those of ``Langevin``. Raises ``Unavailable`` where the library has no rule for
    the network."""
    try:
        return bench.sampler(problem.task, metric, chains=chains, seed=problem.seed, **options)
    except TypeError as error:
        raise Unavailable("no rule", str(error)) from None


def langevin(
    problem: Problem,
    chains: int,
    *,
    name: str,
    compile: bool | str,
    **options: Any,
) -> Ready:
    """``preconditioners.<name>(**options)``; ``compile="auto"`` is what a user gets."""
    try:
        metric = getattr(preconditioners, name)(**options)
    except TypeError as error:
        raise Unavailable("no rule", f"{options}: {error}") from None
    one = sampler(problem, chains, metric, compile=compile)
    # A compiler that failed belongs into the results.
    steps, warnings = bench.Steps(one, problem.task), Heard(logging.WARNING)

    def advance(count: int) -> None:
        with warnings:
            steps.advance(count)

    return Ready(
        advance,
        lambda: flat(p[0] for p in steps.state.params.values()),
        check=lambda: "; ".join([*dict.fromkeys(warnings.messages), *_diverged(steps.state)]),
        way=lambda: steps.engine.way,
    )


def _diverged(state: State) -> list[str]:
    count = int((state.diverged >= 0).sum())
    return [f"{count} chains diverged and stood still"] if count else []
