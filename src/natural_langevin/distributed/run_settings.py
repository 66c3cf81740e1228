"""What a run was asked for, and what follows for all that was left open: its length, and its draws.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from natural_langevin import schedules
from natural_langevin._internal.tensorfile import Spec
from natural_langevin.distributed.run_setup import resumed_config
from natural_langevin.posterior import networks, stores
from natural_langevin.sampling import pace, planning, preparation, recipe, run_length
from natural_langevin.sampling.kept_draws import (
    check_every,
    check_given,
    check_sample_dtype,
    check_thinning,
)
from natural_langevin.sampling.loop import LOOK_EVERY, RunPlan
from natural_langevin.sampling.validation import whole_number


@dataclass(frozen=True)
class RunSettings:
    """``plan``: which iterates are kept. ``where``, ``specs``, ``dtype``: how they are stored.
    ``choice``: what the recipe chose. ``wanted``: the effective sample size of ``until``.
    ``then``: the run that follows this one where its loss still falls (see ``run_length``),
    ``spent``: the steps of those before, ``part``: whether it is a first part of the whole length.
    ``attempts``: how often it may begin anew with smaller steps, where it explodes (0: it is
    reported as it is)."""

    plan: RunPlan
    batch_size: int
    where: str | Path
    specs: Mapping[str, Spec]
    dtype: torch.dtype
    choice: recipe.Choice | None
    checkpoint: str | os.PathLike[str] | None
    seconds: float | None
    until: str | None
    wanted: float | None
    then: RunSettings | None = None
    spent: int = 0
    part: bool = False
    attempts: int = 0

    def gentler(self) -> RunSettings:
        """The same, and what follows it, with a smaller step size."""
        assert self.choice is not None
        then = None if self.then is None else self.then.gentler()
        return replace(self, choice=self.choice.gentler(), then=then, attempts=self.attempts - 1)


def settle(
    sampler: Any,
    data: Any,
    *,
    steps: int | None,
    seconds: float | None,
    until: str | None,
    wanted: float | None,
    batch_size: int | None,
    burn_in: int | None,
    thin: int | None,
    keep: int | None,
    store: str | os.PathLike[str],
    sample_dtype: torch.dtype | None,
    checkpoint: str | os.PathLike[str] | None,
    every: int | None,
    exchange: int | None,
) -> RunSettings:
    """The arguments of ``sample`` with everything decided that they leave open. Where the recipe
    decides, it also sets the sampler's prior and its start."""
    check_given(steps=steps, burn_in=burn_in, thin=thin, batch_size=batch_size)
    choice, runs, attempts = None, None, 0
    where = stores.location(store)
    if sampler._by_recipe:
        with sampler.mesh.together("choosing what was left open"):
            known = recipe.Choice.from_config(resumed_config(checkpoint, sampler.mesh))
            batch_size, choice, lengths = planning.plan(
                sampler, data, batch_size, known, steps=steps, burn_in=burn_in, thin=thin,
                seconds=seconds, until=wanted is not None,
            )  # fmt: skip
        steps, burn_in, thin = lengths.steps, lengths.burn_in, lengths.thin
        alone = checkpoint is None and exchange is None and sampler.mesh.world == 1
        if alone and not isinstance(where, Path):
            runs = lengths.runs()
            attempts = 0 if lengths.repeats is None else recipe.ATTEMPTS
    batch_size = whole_number(
        "batch_size", preparation.open_batch(sampler, data) if batch_size is None else batch_size
    )
    if steps is None and seconds is not None and wanted is None:
        steps = pace.steps_within(sampler, seconds, data, batch_size)
    if steps is None:
        raise ValueError(
            "steps must be said where the step size is: sample(data, steps=...); with "
            'step_size="auto", the default, a run knows its own length. With until=, steps is '
            "the most that may be taken"
        )
    steps, burn_in = whole_number("steps", steps), whole_number("burn_in", burn_in or 0)
    if runs is None:
        runs = [
            run_length.Length(steps, burn_in, whole_number("thin", 1 if thin is None else thin))
        ]
    return _one_after_the_other(
        sampler, runs, steps, keep, every, sample_dtype,
        batch_size=batch_size, where=where, choice=choice, checkpoint=checkpoint,
        seconds=seconds, until=until, wanted=wanted, attempts=attempts,
    )  # fmt: skip


def _one_after_the_other(
    sampler: Any,
    runs: Sequence[run_length.Length],
    steps: int,
    keep: int | None,
    every: int | None,
    sample_dtype: torch.dtype | None,
    **shared: Any,
) -> RunSettings:
    """The first of these ``runs``, with those that may follow it; ``steps`` is the length of the
    whole, ``shared`` what all of them have in common."""
    explores, params = schedules.stages(sampler.step_size), sampler.init().params
    dtype = check_sample_dtype(sample_dtype, next(iter(params.values())).dtype)
    found, spent = None, sum(run.steps for run in runs)
    for run in reversed(runs):
        thin, draws = check_thinning(run.steps, run.burn_in, run.thin, keep, explores)
        spent -= run.steps
        found = RunSettings(
            plan=RunPlan(
                run.steps,
                run.burn_in,
                thin,
                check_every(every),
                explores=explores,
                look_every=LOOK_EVERY if found is None else run_length.look_interval(run.steps),
            ),
            specs=networks.specs(params, draws, dtype),
            dtype=dtype,
            then=found,
            spent=spent,
            part=spent == 0 and run.steps < steps,
            **shared,
        )
    assert found is not None
    return found
