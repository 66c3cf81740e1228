"""How long steps take, by a few that are thrown away: what ``seconds`` allows.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import math
from typing import Any

from natural_langevin.sampling import cost, prior_scale, time_limit, warm_up

#: Steps that are taken at most, and seconds from which on their pace is known.
MOST, ENOUGH = 1300, 0.2
#: So many chains take no longer than one where operator calls are what is paid for.
AT_ONCE = 32


def steps_within(
    sampler: Any, seconds: float, data: Any, batch_size: int, step_size: float | None = None
) -> int:
    """How many steps fit into what is left of ``seconds``."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be positive and finite, got {seconds!r}")
    pace, way = of_steps(sampler, data, batch_size, step_size)
    chains = sampler.chains if sampler._downhill else 0
    left = time_limit.left_for_steps(seconds, chains)
    steps = max(10, int(left / pace))
    if steps > MOST and sampler.device.type == "cuda":  # a long run may go another way
        longer, other = of_steps(sampler, data, batch_size, step_size, steps)
        if other != way:
            steps = max(10, int(left / longer))
    return steps


def of_steps(
    sampler: Any, data: Any, batch_size: int, step_size: float | None = None, steps: int = MOST
) -> tuple[float, str]:
    """Seconds of a step of a run of so many (``MOST`` at least), and which way they go."""
    engine, state = sampler.prepare(data, steps=steps, batch_size=batch_size, step_size=step_size)
    # The first ones plan and build, on a GPU also capture.
    done, taken, count = (20, 0.0, 20) if sampler.device.type == "cuda" else (2, 0.0, 1)
    state, _ = engine.run(state, 0, done)
    while taken < ENOUGH and done + count <= MOST:
        began = time_limit.clock()
        state, _ = engine.run(state, done, count)
        done, taken = done + count, time_limit.clock() - began
        pace, count = taken / count, 2 * count
    return max(pace, 1e-9), engine.way


def of_trial(
    trial: prior_scale.Trial, scales: int, pace: tuple[float, str], *, costly: bool
) -> float:
    """Seconds of a trial with its descent, by the ``pace`` of steps of one chain for every scale.
    Chains cost what one does where arithmetic is what is paid for."""
    lines, (seconds, way) = trial.folds * trial.chains, pace

    def times(chains: float) -> float:
        return chains if costly or way == "native" else max(1.0, scales * chains / AT_ONCE)

    down = warm_up.ROUNDS[0] * times(lines / scales)
    return seconds * (down + trial.steps * trial.rounds * times(lines))


def fitting(
    trial: prior_scale.Trial, scales: int, pace: tuple[float, str], *, costly: bool
) -> prior_scale.Trial | None:
    """The trial, or the longest of the cheaper ones, that the call has time for."""
    forms = (
        trial,
        trial._replace(rounds=1),
        trial._replace(rounds=1, chains=min(2, trial.chains)),
        trial._replace(rounds=1, chains=1),
        prior_scale.COSTLY,
    )
    for form in forms:
        if time_limit.allows(of_trial(form, scales, pace, costly=costly)):
            return form
    return None


def of_scales(sampler: Any, data: Any, batch_size: int) -> tuple[float, str] | None:
    """The pace of a sampler with a chain for every scale, where the call has a limit."""
    if not time_limit.exists():
        return None
    return of_steps(sampler, data, batch_size)


def least(scales: int, pace: tuple[float, str], *, costly: bool) -> float:
    """Seconds of the cheapest trial with the pilot before it."""
    pilot = cost.MOST_PILOT_STEPS + warm_up.ROUNDS[0] / (scales if costly else 1)
    return pace[0] * pilot + of_trial(prior_scale.COSTLY, scales, pace, costly=costly)
