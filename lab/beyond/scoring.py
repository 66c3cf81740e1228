"""What parts are made of: searches over settings, and rows of scores, in plain JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lab.beyond.protocol import Setting
from lab.beyond.running import Ran
from lab.beyond.sampling import Bench, Group, Sampled, sample
from lab.beyond.search import Axis, Cell, Round, search
from natural_langevin import metrics
from natural_langevin.dynamics import Integrator, Underdamped
from natural_langevin.run.loop import DivergenceError

Result = dict[str, Any]
#: The share of the uniform in scores called "resolved".
UNIFORM = 1e-4


def momentum(bench: Bench) -> Underdamped:
    """The dynamics of all parts but those without momentum."""
    return Underdamped(friction=bench.protocol.friction)


def search_cells(
    bench: Bench, part: str, axes: Sequence[Axis], cells: list[Cell],
    setting: Callable[[Cell], Setting], dynamics: Integrator, *, by: str = "resolved",
    extensions: int | None = None,
) -> Result:  # fmt: skip
    """The search of ``search``, every round the chains of one run, by a score on validation images:
    one of a cell's pooled chains, or "alone", the mean of the plain NLL that each has by itself."""

    def score(count: int, cells: list[Cell]) -> Round:
        groups = [Group(setting(cell), bench.protocol.copies) for cell in cells]
        try:
            found = sample(bench, f"{part}-{count}", groups, dynamics, final=False)
        except DivergenceError as error:  # every chain of the round
            bench.say(str(error))
            return Round([None] * len(cells), True, 0, 0.0, 0.0)
        bench.say(f"round {count}: {found.ran.state.chains} chains, {found.measured['execution']}")
        rows: list[dict[str, Any] | None] = []
        for group, p in zip(groups, found.probabilities.split(bench.protocol.copies), strict=True):
            if not bool(p.isfinite().all()):
                rows.append(None)
                continue
            of = scores_of(p.mean(0), found.labels)
            of["alone"] = statistics.fmean(metrics.nll(one, found.labels) for one in p)
            of["score"] = of[by]
            rows.append({**group.setting.as_dict(), **of})
        return Round(rows, **ran_result(found.ran, bench.protocol.select_steps))

    if extensions is None:
        extensions = bench.protocol.extensions
    file = bench.folder / f"{part}.json"
    found = search(axes, cells, score, extensions=extensions, file=file)
    ranking = [{**of, "cell": list(cell)} for cell, of in found.ranked.items()]
    edge = "" if found.inside else ", at an edge"
    for best in ranking[:2]:
        bench.say(f"{Setting.from_dict(best)}, validation {by} {best['score']:.4f}{edge}")
    return {
        "complete": found.complete,
        "inside": found.inside,
        "rounds": [len(of.found) for of in found.rounds],
        "updates": min(of.updates for of in found.rounds),
        "seconds": sum(of.seconds for of in found.rounds),
        "wall": sum(of.wall for of in found.rounds),
        "ranking": ranking,
    }


def resolved(p: Tensor) -> Tensor:
    """Probabilities (n, K) with a share ``UNIFORM`` of the uniform: none below UNIFORM / K.

    >>> import torch
    >>> resolved(torch.tensor([[1.0, 0.0]]))[0, 1].item() == UNIFORM / 2
    True
    """
    return (1 - UNIFORM) * p.double() + UNIFORM / p.shape[1]


def best_setting(done: dict[str, Result]) -> Setting:
    """What both searches have come to."""
    return ranked_settings(done["refine"])[0]


def ranked_settings(result: Result) -> list[Setting]:
    """A search's settings, the best first."""
    return [Setting.from_dict(s) for s in result["ranking"]]


def ran_result(ran: Ran, steps: int) -> Result:
    """How far a run has come, and how long it took."""
    return {
        "complete": ran.updates == steps,
        "updates": ran.updates,
        "seconds": ran.seconds,
        "wall": ran.wall,
    }


def rows_of(found: Sampled, groups: Sequence[Group]) -> Callable[..., Result]:
    """Makes rows ``row(label, probabilities, chains, group)`` of what was sampled. Of chains of
    several groups, ``group`` None, the row has the first one's setting, and no temperature."""
    virials = [of and of["temperature"] for of in found.measured["virial"]]

    def row(label: str, p: Tensor, chains: int, group: int | None = 0) -> Result:
        return {
            "label": label,
            "kind": "chains",
            "chains": chains,
            "draws": found.draws,
            "updates": found.ran.updates,
            "setting": groups[group or 0].setting.as_dict(),
            "virial": None if group is None else virials[group],
            **summaries_of(p, found.labels),
        }

    return row


def part_result(
    found: Sampled, bench: Bench, groups: Sequence[Group], rows: list[Result]
) -> Result:
    """A part's result; a row all of whose chains diverged is named there, no more."""
    kinetic = found.measured["kinetic"]
    for group, of in zip(groups, found.measured["virial"], strict=True):
        bench.say(f"{group.setting}, {group.chains} chains: virial {of and of['temperature']}")
    bench.say(f"kinetic temperature {kinetic and kinetic['temperature']}")
    return ran_result(found.ran, bench.protocol.steps) | {
        "rows": [row for row in rows if "nll" in row],
        "diverged": [row["label"] for row in rows if "nll" not in row],
        "groups": [{"chains": g.chains, **g.setting.as_dict()} for g in groups],
        "measured": found.measured,
    }


def mean_of(p: Tensor, dim: int = 0) -> Tensor:
    """The mean along ``dim`` over chains that did not diverge: (predictor, n, classes)."""
    return p.nanmean(dim) if dim else p.nanmean(0)[None]


def scores_of(p: Tensor, y: Tensor) -> dict[str, float]:
    """Of probabilities (n, classes)."""
    return {
        "nll": metrics.nll(p, y),
        "resolved": metrics.nll(resolved(p), y),
        "accuracy": 100 * metrics.accuracy(p, y),
        "brier": metrics.brier(p, y),
    }


def summaries_of(p: Tensor, y: Tensor) -> dict[str, Any]:
    """Mean, standard deviation and values over predictors, (predictor, n, classes).

    One that is not finite, a chain that diverged, is counted and left out."""
    alive = p.isfinite().flatten(1).all(1)
    if not bool(alive.any()):
        return {"diverged": len(p)}
    scores = [scores_of(q, y) for q in p[alive]]
    found: dict[str, Any] = {"diverged": int((~alive).sum())}
    for name in scores[0]:
        values = [s[name] for s in scores]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found[name] = {"mean": statistics.fmean(values), "std": spread, "values": values}
    return found
