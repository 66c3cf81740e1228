"""The probe at the end of a run: a few extra steps that measure the noise."""

from __future__ import annotations

import logging
from typing import Any

from natural_langevin._internal.processes import Processes
from natural_langevin.diagnostics import kinetic
from natural_langevin.dynamics.base import State
from natural_langevin.execution.engine import Engine
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.run.loop import DivergenceError

log = logging.getLogger("natural_langevin")

#: Steps of all chains together, and at least as many of each chain.
REPLICATES, STEPS = 16, 4
#: A probe's step costs several of the run's (about six at the size of MNIST's networks). A run
#: this many times as long hardly notices it; shorter runs go without.
SMALL_PART = 40


def probe_steps(chains: int) -> int:
    """How many steps of ``chains`` chains a probe takes."""
    return max(STEPS, -(-REPLICATES // chains))


def after_run(
    engine: Engine, state: State, steps: int, processes: Processes
) -> dict[str, Any] | None:
    """The kinetic temperature as plain numbers; None for a short run, or one without chains.

    What several ``processes`` found of their chains is put together. A failure of this diagnosis is
    only logged, so that the run is not lost.
    """
    count = probe_steps(processes.chains)
    if steps < SMALL_PART * count:
        return None
    replicates = None
    try:
        replicates = measure(engine, state, count)
    except Exception as error:
        log.warning("the effective temperature could not be measured: %s", error)
    if replicates is None and processes.world == 1:
        return None
    found = summary(state, replicates or kinetic.nothing(list(state.params)), processes)
    return None if found is None else found.as_dict()


def at_end_of(posterior: Posterior, state: State) -> State:
    """The state with the weights at which the chains of ``posterior`` ended."""
    learned = {k: posterior.processes.here(v) for k, v in posterior.learned.items()}
    return state._replace(params=posterior.last, likelihood=learned or state.likelihood)


def required(engine: Engine, state: State, steps: int, processes: Processes) -> kinetic.Kinetic:
    """The kinetic temperature of ``steps`` steps from ``state``; an error if no chain runs, or if
    its dynamics have none."""
    found = summary(state, measure(engine, state, steps), processes)
    integrator = engine.dynamics.integrator
    if found is None and integrator.innovation(state, state) is None:
        raise ValueError(
            f"a step of {integrator!r} has no noise and drift to compare (see "
            "Integrator.innovation): posterior.diagnose(x, data=...) has the temperature of the "
            "samples instead"
        )
    if found is None:
        raise DivergenceError("no chain is running: there is no step to measure")
    return found


def summary(
    state: State, found: kinetic.Replicates, processes: Processes
) -> kinetic.Kinetic | None:
    """The kinetic temperature from the steps of all chains; None if no chain was running."""
    gathered = kinetic.Replicates(*map(processes.all_rows, found))
    return kinetic.summarise(gathered, list(state.params))


def measure(engine: Engine, state: State, count: int) -> kinetic.Replicates:
    """``count`` steps from ``state`` with the rates of the last step and the batches to come.

    Where chains share a DataLoader's batches, it lends one. The state itself stays as it is."""
    start, stream, dynamics = int(state.step), engine.stream, engine.dynamics
    if stream.chain_axis:
        batches = (stream.batch(start + k) for k in range(count))
    else:
        batches = (batch for batch in [stream.example()] * count)
    dynamics.prepare(state.params, stream.example()[0])
    rates = engine.rates.row(max(0, min(start, len(engine.rates)) - 1))
    rates = rates._replace(kind=rates.kind._replace(explores=False))  # there is no noise there
    return kinetic.measure(
        dynamics, state, batches, rates, engine.num_data, chain_axis=stream.chain_axis,
        rows=stream.num_data,
    )  # fmt: skip
