"""Planning a run: what a sampler and its data leave open is settled here, by the recipe.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin.data.loaders import SharedBatches
from natural_langevin.data.streams import Subsets
from natural_langevin.sampling import (
    cost,
    pace,
    prior_scale,
    prior_trial,
    recipe,
    run_length,
    starts,
    step_size_rule,
    time_limit,
)
from natural_langevin.sampling.assembly import set_friction, set_prior
from natural_langevin.sampling.until import MOST, thinning

log = logging.getLogger("natural_langevin")


def plan(
    sampler: Any,
    data: Any,
    batch_size: int | None,
    known: recipe.Choice | None,
    *,
    steps: int | None,
    burn_in: int | None,
    thin: int | None,
    seconds: float | None,
    until: bool = False,
) -> tuple[int, recipe.Choice, run_length.Length]:
    """Batch size, step size and length of a run that leaves them open; sets the start and the
    prior's scale. A run to go on with keeps what it was started with.

    ``until``: a target may end the run; ``steps`` is then the most it may take, and burn-in and
    thinning are those of a run of the usual length."""
    # For its checks: whatever is wrong with the data is said before anything else is done.
    sampler.prepare(
        data, steps=1, batch_size=1 if batch_size is None else batch_size, step_size=0.0
    )
    x, y, num_data = recipe.rows_of(data, sampler.num_data, sampler.signature.split)
    costs = cost.of_sampler(sampler, x)
    if batch_size is None:
        batch_size = _batch_size(sampler, data, len(x), costs)
    if sampler._start == "auto":
        rows = x[: recipe.ROWS], y[: recipe.ROWS]
        sampler._start, downhill = starts.better(sampler, rows)
        # A run to go on with has been downhill.
        sampler._downhill = downhill and known is None and sampler.mesh.data is None
    choice = _chosen(sampler, data, (x, y), num_data, batch_size, known, costs)
    log.info("step_size=%s", choice.reason)
    set_friction(sampler, choice.friction)
    if steps is None and seconds is not None and not until:
        steps = pace.steps_within(sampler, seconds, data, batch_size, choice.step_size)
    length = functools.partial(
        run_length.choose, choice, burn_in=burn_in, thin=thin, budget=costs.budget,
        work=costs.per_sample * sampler.chains * batch_size,
    )  # fmt: skip
    lengths = length(steps=steps)
    weights = sum(p.numel() for p in sampler._dynamics.gradients.network.trainable().values())
    if weights > num_data and lengths.repeats:
        lengths = dataclasses.replace(lengths, repeats=0)
    if until:
        usual = lengths if steps is None else length(steps=None)
        if steps is None or steps > usual.steps:
            lengths = extended(usual, steps, thin, 4 * sampler.chains * weights)
    return batch_size, choice, lengths


def _batch_size(sampler: Any, data: Any, rows: int, costs: cost.Costs) -> int:
    """Rows of a minibatch, fewer where a run of them would cost too much."""
    usual = recipe.batch_size(data.rows.shape[1] if isinstance(data, Subsets) else rows)
    whole = sampler.chains * usual * costs.per_sample * recipe.MOST_EAGER_STEPS
    costly = costs.budget.spares and whole > costs.budget.work
    return min(usual, cost.BATCH) if costly else usual


def _chosen(
    sampler: Any,
    data: Any,
    rows: tuple[Tensor, Tensor],
    num_data: float,
    batch_size: int,
    known: recipe.Choice | None,
    costs: cost.Costs,
) -> recipe.Choice:
    """The step size, with the prior's scale where that is open, which the sampler then has;
    ``known``: those of a run to go on with."""
    choice = known
    set_friction(sampler, recipe.FRICTION)
    if known is None and sampler._scale_open and isinstance(data, tuple | list | TensorDataset):
        with time_limit.searching():
            choice = prior_trial.choose(sampler, rows, batch_size, costs)
    scale = choice.prior_scale if choice else None
    if sampler._scale_open:
        set_prior(sampler, recipe.prior(scale.value if scale else 1.0))
    if choice is None or (known is None and len(rows[0]) > prior_scale.MOST_ROWS):
        shuffled = not isinstance(data, DataLoader | SharedBatches)
        with time_limit.searching():
            pilot = step_size_rule.choose(
                sampler, rows, num_data, batch_size, costs, shuffled=shuffled
            )
        found = recipe.Choice.most_careful(pilot)
        sharpness, spread = (choice.sharpness, choice.spread) if choice else (None, None)
        choice = dataclasses.replace(found, prior_scale=scale, sharpness=sharpness, spread=spread)
    return choice


def extended(
    usual: run_length.Length, steps: int | None, thin: int | None, bytes_per_draw: int
) -> run_length.Length:
    """A run that may go on beyond its usual length, with draws as far apart as usual: further
    only where all of them would take too much memory, and the user has not said how far."""
    most = usual.steps * MOST if steps is None else steps
    factor = thinning((most - usual.burn_in) // usual.thin, bytes_per_draw) if thin is None else 1
    return run_length.Length(most, usual.burn_in, usual.thin * factor)
