"""What stands before a step: data as a stream, checks of both against the sampler, and its rates.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import schedules
from natural_langevin.data.streams import (
    InMemory,
    SharedBatches,
    Stream,
    Subsets,
    SymmetricSweeps,
    as_stream,
    check_pair,
    split_pair,
    usual_batch,
)
from natural_langevin.dynamics.base import Conditions, Info, State
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.sampling import assembly, planning
from natural_langevin.sampling.data_checks import batch_check, check_data, number_of_data
from natural_langevin.sampling.pitfalls import refuse_autocast
from natural_langevin.sampling.step_size_checks import (
    StepSize,
    check_stages,
    warn_if_epochs,
    warn_if_saturated,
    warn_if_stiff,
)
from natural_langevin.sampling.validation import refuse_anchors, whole_number

#: Data that say themselves which rows come when: they are taken as they are.
ORDERED = (DataLoader, SharedBatches, Subsets, SymmetricSweeps)
#: Its sum diverges: a longer run explores further (``halving``'s would stop at 20).
DEFAULT_STEP_SIZE = schedules.polynomial(1e-3, offset=10_000)


def in_tensors(sampler: Any, data: Any) -> Any:
    """Data in memory as (x, y); those that come in batches as they are."""
    if isinstance(data, ORDERED):
        return data
    return sampler.signature.split(data.tensors if isinstance(data, TensorDataset) else data)


def open_batch(sampler: Any, data: Any) -> int:
    """Rows of a batch where the caller names none: all for dynamics that compare energies."""
    whole = sampler._dynamics.integrator.compares_energies
    return usual_batch(in_tensors(sampler, data), most=math.inf if whole else 100)


def settled(sampler: Any, data: Any, batch_size: int | None) -> tuple[StepSize | None, int]:
    """Step size (None: the sampler's own) and batch size where a caller names neither: those of the
    last run; before the first one, what the recipe chooses for ``data``."""
    if sampler._by_recipe and sampler._settled is None:
        size, choice, _ = planning.plan(
            sampler, data, batch_size, None, steps=None, burn_in=None, thin=None, seconds=None
        )
        sampler._settled = (choice.schedule_of(0), size)
    if sampler._settled is None:
        return None, open_batch(sampler, data) if batch_size is None else batch_size
    return sampler._settled[0], sampler._settled[1] if batch_size is None else batch_size


def engine(
    sampler: Any,
    data: Any,
    *,
    steps: int,
    batch_size: int | None,
    step_size: StepSize | None,
    burn_in: int,
) -> tuple[Engine, State]:
    """See ``Langevin.prepare``; ``data`` are those of ``in_tensors``."""
    batch_size = open_batch(sampler, data) if batch_size is None else batch_size
    steps, batch_size = whole_number("steps", steps), whole_number("batch_size", batch_size)
    state = sampler.init()
    stream, num_data = _stream(sampler, data, batch_size, state)
    rates = assembly.rates_table(sampler, 0, steps, step_size, burn_in=burn_in)
    _check_rates(sampler, stream, rates, num_data, kept_from=min(burn_in, steps - 1))
    own = rates.of_chains(sampler.chain_ids)
    mode = choose_mode(sampler.compile)
    return Engine(sampler._dynamics, stream, own, num_data, mode=mode), state


def _stream(sampler: Any, data: Any, batch_size: int, state: State) -> tuple[Stream, float]:
    """The data as a stream of minibatches, checked at ``state``, and N."""
    dynamics = sampler._dynamics
    if isinstance(data, Subsets) and len(data.rows) != sampler.chains:
        raise ValueError(
            f"rows must have a line for every chain: {sampler.chains} chains, {len(data.rows)} "
            "lines"
        )
    stream = as_stream(
        data, batch_size=batch_size, chain=sampler.chain_ids, seed=sampler.seed,
        device=sampler.device, split=sampler.signature.split,
    )  # fmt: skip
    if not isinstance(stream, InMemory):
        refuse_anchors("a DataLoader", dynamics)
    num_data = number_of_data(stream, sampler.num_data, sampler.chains)
    check_data(dynamics.gradients, state, *stream.example(), targets=stream.targets)
    if not isinstance(stream, InMemory):
        stream.check = batch_check(dynamics.gradients, state.params)
    return stream, num_data


def _check_rates(
    sampler: Any, stream: Stream, rates: RatesTable, num_data: float, *, kept_from: int
) -> None:
    """Whether steps of these sizes, from ``kept_from`` on, are what the dynamics can take."""
    check_stages(sampler.dynamics, rates)
    kept = rates.sampled(kept_from)
    warn_if_saturated(kept)
    run = Conditions(
        kept.max(0).values[sampler.chain_ids], len(stream.example()[0]), num_data,
        rates.adapts_from(kept_from),
    )  # fmt: skip
    sampler.dynamics.check(sampler._dynamics, run)
    warn_if_epochs(sampler.dynamics, stream)
    if sampler.dynamics.overshoots:
        count = assembly.all_chains(sampler).weight(num_data)
        warn_if_stiff(sampler.preconditioner, sampler._prior, float(kept.max()), count)


def _all_rows(x: Tensor, y: Tensor, chains: int) -> tuple[Tensor, Tensor]:
    """(chain, B, ...) of x and y as rows, where they have a line for every chain."""
    if not (x.ndim > 1 < y.ndim and x.shape[:2] == y.shape[:2] and len(x) == chains):
        raise ValueError(
            f"with chain_axis=True x and y must begin with ({chains} chains, rows), got "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    return x.flatten(0, 1), y.flatten(0, 1)


def single_step(
    sampler: Any, state: State, batch: tuple[Tensor, Tensor], *, chain_axis: bool, burn_in: int
) -> tuple[State, Info]:
    """See ``Langevin.step``."""
    refuse_autocast(sampler.device)
    refuse_anchors("step()", sampler._dynamics)
    if sampler.num_data is None:
        raise ValueError(
            "step() cannot see how many data there are: give Langevin(..., num_data=N). "
            "N sets the weight of the prior and the size of the noise"
        )
    split = split_pair if chain_axis else sampler.signature.split
    x, y = (t.to(sampler.device) for t in split(batch))
    rows = _all_rows(x, y, state.chains) if chain_axis else (x, y)
    check_pair(*rows)
    if not len(rows[0]):
        raise ValueError("the batch is empty: give at least one row")
    one = (x[0], y[0]) if chain_axis else (x, y)
    if not sampler._step_checked:  # at the start: ``state`` may hold a diverged chain
        start = sampler.init()
        check_data(sampler._dynamics.gradients, start, *one, targets=rows[1])
        sampler._check_batch = batch_check(sampler._dynamics.gradients, start.params)
    else:
        sampler._check_batch(*rows)
    sampler._dynamics.gradients.prepare(state.params, one[0])
    done = int(state.step)
    size: StepSize | None = None
    if sampler._auto:  # nothing is searched for one step
        size = sampler._settled[0] if sampler._settled else DEFAULT_STEP_SIZE
    table = assembly.rates_table(sampler, done, done + 1, size, burn_in=burn_in)
    rates = table.of_chains(sampler.chain_ids).row(done)
    if sampler._step_checked != len(one[0]):
        adapts = rates.kind.adapts and not burn_in
        run = Conditions(rates.step_size, len(one[0]), sampler.num_data, adapts)
        sampler.dynamics.check(sampler._dynamics, run)
        sampler._step_checked = len(one[0])
    found: tuple[State, Info] = sampler._dynamics.step(
        state, (x, y), rates, sampler.num_data, chain_axis=chain_axis
    )
    return found
