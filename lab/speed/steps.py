"""Section "steps": microseconds per chain-step of everybody, and the ratio to eager SGD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.speed import cache
from lab.speed.contender import Contender, Ready, Unavailable
from lab.speed.contenders import QDOP_COMPILED, REFERENCE, contenders
from lab.speed.measure import Say, interleave, make_ready, summary
from lab.speed.problems import Problem, problem
from lab.speed.settings import Settings


def section(settings: Settings, say: Say) -> dict[str, Any]:
    """Seconds per step of every contender, network by network."""
    return {"networks": [network(settings, name, say) for name in settings.networks]}


def network(settings: Settings, name: str, say: Say) -> dict[str, Any]:
    """All contenders of one network, in one interleaved measurement."""
    task = problem(name, device=settings.device, seed=settings.seed, **settings.sizes)
    # Convolutions and attention over many chains at once are a matter of patience, not insight.
    chains = settings.chains or task.chain_counts[task.device.type]
    if name in ("cnn", "transformer"):
        chains = chains[:2]
    rows = make_ready(task, chosen(settings, task, contenders(name, chains)), say)
    for row in rows:
        if row.ready is not None and row.contender.compiled:
            cache.remember(task, row.contender, row.descent_seconds)
    orders = interleave(
        task, rows, repeats=settings.repeats, seconds=settings.block_seconds, say=say
    )
    reference = next(row for row in rows if row.contender.name == REFERENCE)
    return {
        "network": name,
        "parameters": task.parameters,
        "batch_size": task.batch_size,
        "num_data": task.num_data,
        "orders": orders,
        "rows": [summary(row, reference) for row in rows],
    }


def chosen(settings: Settings, task: Problem, everyone: list[Contender]) -> list[Contender]:
    """``--only`` drops rows by name; what is not compiled for lack of time stays, marked so."""
    if settings.only:
        everyone = [
            c
            for c in everyone
            if c.name == REFERENCE or any(part.lower() in c.label.lower() for part in settings.only)
        ]
    return [_without_compiling(c, settings, task) for c in everyone]


def _without_compiling(contender: Contender, settings: Settings, task: Problem) -> Contender:
    if not contender.compiled:
        return contender
    if not settings.compile:
        return _left_out(contender, "--no-compile was given")
    if settings.quick:
        if contender.name != QDOP_COMPILED.name:
            return _left_out(contender, "compiling takes too long for --quick")
        if not cache.remembered(task, contender):
            return _left_out(
                contender,
                "not in the compiler's cache, and compiling takes too long for --quick: a run "
                "without --quick fills the cache",
            )
    return contender


def _left_out(contender: Contender, reason: str) -> Contender:
    def refuse(problem: Problem, chains: int) -> Ready:
        raise Unavailable("left out", reason)

    return replace(contender, build=refuse)
