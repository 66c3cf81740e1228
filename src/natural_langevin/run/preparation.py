"""Preparation of steps: data as a stream, checks against the problem, and rates."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from torch import Tensor

from natural_langevin import schedules
from natural_langevin.data.checks import check_pair, split_pair
from natural_langevin.data.streams import InMemory, Stream, Subsets
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import Conditions
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.run.problem.data_checks import (
    batch_check,
    check_data,
    number_of_data,
    refuse_autocast,
)
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.step_size_checks import (
    StepSize,
    check_stages,
    warn_if_epochs,
    warn_if_saturated,
    warn_if_stiff,
)
from natural_langevin.run.problem.validation import refuse_anchors, whole_number

#: Its sum diverges: a longer run explores further (``halving``'s would stop at 20).
DEFAULT_STEP_SIZE = schedules.polynomial(1e-3, offset=10_000)


def open_batch(motion: Motion) -> int:
    """Rows of a batch where the caller names none: all for dynamics that compare energies."""
    return motion.problem.usual_batch(most=math.inf if motion.integrator.compares_energies else 100)


def engine(
    motion: Motion,
    *,
    steps: int,
    batch_size: int,
    step_size: StepSize,
    burn_in: int = 0,
    level: int = logging.WARNING,
) -> tuple[Engine, State]:
    """An engine on the problem's data, and the state that its chains start at: see
    ``Langevin.prepare``. ``level``: at which trouble is logged."""
    steps, batch_size = whole_number("steps", steps), whole_number("batch_size", batch_size)
    state = motion.init()
    stream, num_data = _stream(motion, batch_size, state)
    rates = motion.rates(0, steps, step_size, burn_in=burn_in)
    _check_rates(motion, stream, rates, num_data, kept_from=min(burn_in, steps - 1), level=level)
    own = rates.of_chains(motion.problem.chains.ids)
    return Engine(motion.frame, stream, own, num_data, mode=choose_mode(motion.compile)), state


def _stream(motion: Motion, batch_size: int, state: State) -> tuple[Stream, float]:
    """The data as a stream of minibatches, checked at ``state``, and N."""
    problem = motion.problem
    data, chains = problem.data, problem.chains.count
    if isinstance(data, Subsets) and len(data.rows) != chains:
        raise ValueError(
            f"rows must have a line for every chain: {chains} chains, {len(data.rows)} lines"
        )
    stream = problem.stream(batch_size)
    if not isinstance(stream, InMemory):
        refuse_anchors("a DataLoader", motion.frame)
    num_data = number_of_data(stream, problem.num_data, chains)
    check_data(motion.gradients, state, *stream.example(), targets=stream.targets)
    if not isinstance(stream, InMemory):
        stream.check = batch_check(motion.gradients, state.params)
    return stream, num_data


def _check_rates(
    motion: Motion,
    stream: Stream,
    rates: RatesTable,
    num_data: float,
    *,
    kept_from: int,
    level: int,
) -> None:
    """Whether steps of these sizes, from ``kept_from`` on, are what the dynamics can take."""
    integrator = motion.integrator
    check_stages(integrator, rates)
    kept = rates.sampled(kept_from)
    warn_if_saturated(kept)
    run = Conditions(
        kept.max(0).values[motion.problem.chains.ids], len(stream.example()[0]), num_data,
        rates.adapts_from(kept_from),
    )  # fmt: skip
    integrator.check(motion.frame, run)
    warn_if_epochs(integrator, stream)
    if integrator.overshoots:
        problem = motion.problem
        count = num_data if problem.power is None else num_data * problem.power
        warn_if_stiff(
            motion.preconditioner, problem.prior, float(kept.max()), count,
            discrete=problem.likelihood.discrete, level=level,
        )  # fmt: skip


def _all_rows(x: Tensor, y: Tensor, chains: int) -> tuple[Tensor, Tensor]:
    """(chain, B, ...) of x and y as rows, where they have a line for every chain."""
    if not (x.ndim > 1 < y.ndim and x.shape[:2] == y.shape[:2] and len(x) == chains):
        raise ValueError(
            f"with chain_axis=True x and y must begin with ({chains} chains, rows), got "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    return x.flatten(0, 1), y.flatten(0, 1)


class StepChecks:
    """What the steps that are taken by hand have been checked for: batches of the first one's kind
    (``batch``), and dynamics on batches of so many ``rows``."""

    def __init__(self) -> None:
        self.batch: Callable[[Tensor, Tensor], None] | None = None
        self.rows = 0


def single_step(
    motion: Motion,
    state: State,
    batch: tuple[Tensor, Tensor],
    *,
    step_size: StepSize,
    chain_axis: bool,
    burn_in: int,
    checked: StepChecks,
) -> tuple[State, Info]:
    """See ``Langevin.step``."""
    problem, integrator = motion.problem, motion.integrator
    refuse_autocast(problem.device)
    refuse_anchors("step()", motion.frame)
    if problem.num_data is None:
        raise ValueError(
            "step() cannot know how many data there are: give Langevin(..., num_data=N). N sets "
            "the weight of the prior and the size of the noise"
        )
    split = split_pair if chain_axis else problem.signature.split
    x, y = (t.to(problem.device) for t in split(batch))
    rows = _all_rows(x, y, state.chains) if chain_axis else (x, y)
    check_pair(*rows)
    if not len(rows[0]):
        raise ValueError("the batch is empty: give at least one row")
    one = (x[0], y[0]) if chain_axis else (x, y)
    if checked.batch is None:  # at the start: ``state`` may hold a diverged chain
        start = motion.init()
        check_data(motion.gradients, start, *one, targets=rows[1])
        checked.batch = batch_check(motion.gradients, start.params)
    else:
        checked.batch(*rows)
    motion.gradients.prepare(state.params, one[0])
    done = int(state.step)
    table = motion.rates(done, done + 1, step_size, burn_in=burn_in)
    rates = table.of_chains(problem.chains.ids).row(done)
    if checked.rows != len(one[0]):
        adapts = rates.kind.adapts and not burn_in
        run = Conditions(rates.step_size, len(one[0]), problem.num_data, adapts)
        integrator.check(motion.frame, run)
        checked.rows = len(one[0])
    return motion.frame.step(state, (x, y), rates, problem.num_data, chain_axis=chain_axis)
