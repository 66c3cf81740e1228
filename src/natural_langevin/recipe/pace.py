"""The time of a step, measured on a few steps that are discarded, for ``seconds``."""

from __future__ import annotations

from dataclasses import replace

from natural_langevin.recipe.cost import Search
from natural_langevin.recipe.settings import Trial
from natural_langevin.run import preparation, time_limit
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.step_size_checks import StepSize
from natural_langevin.run.time_limit import Time, TimeLimit


def steps_within(
    motion: Motion,
    seconds: float,
    batch_size: int,
    step_size: StepSize,
    rule: Time,
    *,
    going_down: int,
    limit: TimeLimit,
) -> int:
    """The number of steps that fit into the remaining ``seconds``, when so many chains are still
    ``going_down``."""
    pace, way = of_steps(motion, batch_size, step_size, rule)
    left = limit.left_for_steps(seconds, going_down)
    steps = max(10, int(left / pace))
    if steps > rule.timed and motion.problem.device.type == "cuda":  # a long run may go another way
        longer, other = of_steps(motion, batch_size, step_size, rule, steps)
        if other != way:
            steps = max(10, int(left / longer))
    return steps


def of_steps(
    motion: Motion, batch_size: int, step_size: StepSize, rule: Time, steps: int = 0
) -> tuple[float, str]:
    """Seconds of a step of a run of so many (``timed`` at least), and which way they go."""
    engine, state = preparation.engine(
        motion, steps=max(steps, rule.timed), batch_size=batch_size, step_size=step_size
    )
    # The first one plans and builds; on a GPU there are some that capture.
    done, taken, count = (20, 0.0, 20) if motion.problem.device.type == "cuda" else (1, 0.0, 1)
    state, _ = engine.run(state, 0, done)
    while taken < rule.enough and done + count <= rule.timed:
        began = time_limit.clock()
        state, _ = engine.run(state, done, count)
        took = time_limit.clock() - began
        # All processes take the same steps, at the pace of the slowest.
        others = motion.problem.chains.processes.exchange("the pace of steps", repr(took))
        done, taken = done + count, max(map(float, others))
        pace, count = taken / count, 2 * count
    return max(pace, 1e-9), engine.way


def of_trial(search: Search, trial: Trial, scales: int, pace: tuple[float, str]) -> float:
    """Seconds of a trial with its descent, by the ``pace`` of steps of one chain for every scale.
    Chains are priced one by one where arithmetic dominates."""
    settings, lines, (seconds, way) = search.costs.settings, trial.folds * trial.chains, pace

    def times(chains: float) -> float:
        if search.costs.budget.spares or way == "native":
            return chains
        return max(1.0, scales * chains / settings.time.at_once)

    down = settings.descent.rounds[0] * times(lines / scales)
    return seconds * (down + trial.steps * trial.rounds * times(lines))


def fitting(search: Search, trial: Trial, scales: int, pace: tuple[float, str]) -> Trial:
    """The trial, or the longest of the cheaper ones that the call has time for, or the cheapest."""
    cheapest = search.costs.settings.prior.costly
    forms = (
        trial,
        replace(trial, rounds=1),
        replace(trial, rounds=1, chains=min(2, trial.chains)),
        replace(trial, rounds=1, chains=1),
    )
    fit = (f for f in forms if search.limit.allows(of_trial(search, f, scales, pace)))
    return next(fit, cheapest)


def least(search: Search, scales: int, pace: tuple[float, str]) -> float:
    """Seconds of the cheapest trial with the pilot before it."""
    settings = search.costs.settings
    down = settings.descent.rounds[0] / (scales if search.costs.budget.spares else 1)
    pilot = settings.pilot.fewest + down
    return pace[0] * pilot + of_trial(search, settings.prior.costly, scales, pace)
