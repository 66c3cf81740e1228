"""The parts of the experiment, in order; each ends in plain JSON, and says what it needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin import metrics
from natural_langevin.dynamics import Overdamped, Underdamped
from natural_langevin.experiments.beyond import baselines
from natural_langevin.experiments.beyond.protocol import Setting
from natural_langevin.experiments.beyond.running import Ran
from natural_langevin.experiments.beyond.sampling import Bench, Group, Sampled, sample

Result = dict[str, Any]


class Part(NamedTuple):
    """``run(bench, done)``, where ``done`` has the results of the parts in ``needs``."""

    run: Callable[[Bench, dict[str, Result]], Result]
    needs: tuple[str, ...]
    seconds: float  # what it may take on a GPU


def select(bench: Bench, done: dict[str, Result]) -> Result:
    """Length, step size and the first layer's variance."""
    return _choose(bench, "select", bench.protocol.first_grid(), momentum=True)


def refine(bench: Bench, done: dict[str, Result]) -> Result:
    """The variances of all layers."""
    best = Setting.from_dict(done["select"]["ranking"][0])
    return _choose(bench, "refine", bench.protocol.second_grid(best), momentum=True)


def final(bench: Bench, done: dict[str, Result]) -> Result:
    """The table's rows: the chosen setting, plain inputs, and other lengths for the widest pool."""
    protocol = bench.protocol
    best = Setting.from_dict(done["refine"]["ranking"][0])
    by_length = {s.length: s for s in reversed(_ranking(done["select"]))}  # the best of each
    others = [s.length for s in _ranking(done["select"]) if s.length not in (0.0, best.length)]
    wanted = [*dict.fromkeys(others)][: protocol.mixed]
    if best.length:
        wanted.append(0.0)
    scale = [v / w for v, w in zip(best.variances, by_length[best.length].variances, strict=True)]
    groups = [Group(best, protocol.seeds * protocol.pooled)]
    for length in wanted:  # what the second round found for the variances holds for all lengths
        own = by_length[length]
        variances = tuple(v * s for v, s in zip(own.variances, scale, strict=True))
        groups.append(Group(own._replace(variances=variances), protocol.pooled))
    found = sample(bench, "final", groups, _momentum(bench), final=True)
    p, y, size = found.probabilities, found.labels, protocol.pooled
    main = p[: groups[0].chains]
    seeds = main.unflatten(0, (-1, size))
    rows = [
        _row("one chain", best, seeds[:, 0], y, found, chains=1),
        _row(f"one chain, all {len(main)} of them", best, main, y, found, chains=1),
        _row(f"{size} pooled chains", best, _pooled(seeds, 1), y, found, chains=size),
        _row(f"all {len(main)} chains pooled", best, _pooled(main), y, found, len(main)),
    ]
    first = len(main)
    for group in groups[1:]:
        here = p[first : first + group.chains]
        first += group.chains
        inputs = f"length {group.setting.length:g}" if group.setting.length else "plain inputs"
        rows += [
            _row(f"one chain, {inputs}", group.setting, here, y, found, chains=1),
            _row(f"{size} pooled, {inputs}", group.setting, _pooled(here), y, found, size),
        ]
    # A prior over the length: as many chains of each, none of plain inputs.
    members = [seeds[0], *_smooth_members(p, groups)]
    pool = torch.cat(members)
    label = f"{len(pool)} chains pooled over {len(members)} lengths"
    rows.append(_row(label, best, _pooled(pool), y, found, len(pool)))
    pool = torch.cat([main, *members[1:]])
    label = f"{len(pool)} chains pooled, all of the smoothed"
    rows.append(_row(label, best, _pooled(pool), y, found, len(pool)))
    return _result(found.ran, protocol.steps) | {
        "rows": rows,
        "groups": [{"chains": g.chains, **g.setting.as_dict()} for g in groups],
        "measured": found.measured,
    }


def baselines_select(bench: Bench, done: dict[str, Result]) -> Result:
    """Step sizes and rates of the baselines, on plain inputs and on the chosen ones."""
    networks = baselines.grid(bench, _both_lengths(done))
    trained = baselines.train(bench, "baselines-select", networks, final=False)
    _, _, x, y = bench.part(final=False)
    scores = [
        {**n._asdict(), **_scores(p, y)}
        for n, p in zip(networks, baselines.predict(trained, x), strict=True)
    ]
    chosen = [
        min((s for s in scores if s["length"] == length and (s["rate"] > 0) == drops), key=_nll)
        for length in _both_lengths(done)
        for drops in (False, True)
    ]
    return _result(trained.ran, bench.protocol.select_steps) | {"chosen": chosen, "grid": scores}


def baselines_final(bench: Bench, done: dict[str, Result]) -> Result:
    """Dropout, MC-dropout, one SGD network and ensembles of them, for both kinds of inputs."""
    protocol = bench.protocol
    networks: list[baselines.Network] = []
    blocks = []
    for chosen in done["baselines-select"]["chosen"]:
        one = baselines.Network(chosen["length"], chosen["step_size"], chosen["rate"])
        count = protocol.seeds if one.rate else protocol.ensembles * protocol.pooled
        blocks.append((one, slice(len(networks), len(networks) + count)))
        networks += [one] * count
    trained = baselines.train(bench, "baselines", networks, final=True)
    _, _, x, y = bench.part(final=True)
    plain = baselines.predict(trained, x)
    masked = baselines.predict(trained, x, masks=protocol.masks)
    rows = []
    for one, where in blocks:
        inputs = f"length {one.length:g}" if one.length else "plain inputs"
        pairs = [("Dropout", plain[where])] if one.rate else [("SGD", plain[where])]
        if one.rate:
            pairs.append((f"MC-dropout, {protocol.masks} masks", masked[where]))
        else:
            pooled = plain[where].unflatten(0, (-1, protocol.pooled)).mean(1)
            pairs.append((f"{protocol.pooled} SGD networks", pooled))
        for label, p in pairs:
            rows.append(
                {"label": f"{label}, {inputs}", "kind": "baseline", "setting": one._asdict(),
                 "updates": trained.ran.updates, **_summaries(p, y)}
            )  # fmt: skip
    return _result(trained.ran, protocol.steps) | {"rows": rows}


def overdamped_select(bench: Bench, done: dict[str, Result]) -> Result:
    """Step sizes and first variances without momentum."""
    best = Setting.from_dict(done["refine"]["ranking"][0])
    grid = bench.protocol.overdamped_grid(best)
    return _choose(bench, "overdamped-select", grid, momentum=False)


def overdamped(bench: Bench, done: dict[str, Result]) -> Result:
    """What momentum adds: the same without, on plain inputs and on the chosen ones."""
    protocol = bench.protocol
    by_length = {s.length: s for s in reversed(_ranking(done["overdamped-select"]))}
    groups = [Group(s, protocol.pooled) for s in by_length.values()]
    found = sample(bench, "overdamped", groups, Overdamped(), final=True)
    rows, y = [], found.labels
    for k, group in enumerate(groups):
        own = found.probabilities[k * protocol.pooled : (k + 1) * protocol.pooled]
        inputs = f"length {group.setting.length:g}" if group.setting.length else "plain inputs"
        rows += [
            _row(f"one chain, no momentum, {inputs}", group.setting, own, y, found, 1),
            _row(
                f"{protocol.pooled} pooled, no momentum, {inputs}", group.setting,
                _pooled(own), y, found, protocol.pooled,
            ),
        ]  # fmt: skip
    return _result(found.ran, protocol.steps) | {
        "rows": rows,
        "groups": [{"chains": g.chains, **g.setting.as_dict()} for g in groups],
        "measured": found.measured,
    }


PARTS = {
    "select": Part(select, (), 40.0),
    "refine": Part(refine, ("select",), 30.0),
    "final": Part(final, ("select", "refine"), 90.0),
    "baselines-select": Part(baselines_select, ("refine",), 25.0),
    "baselines": Part(baselines_final, ("baselines-select",), 40.0),
    "overdamped-select": Part(overdamped_select, ("refine",), 25.0),
    "overdamped": Part(overdamped, ("overdamped-select",), 35.0),
}


def _momentum(bench: Bench) -> Underdamped:
    return Underdamped(friction=bench.protocol.friction)


def _choose(bench: Bench, part: str, grid: list[Setting], *, momentum: bool) -> Result:
    """The grid as chains of one run, from the lowest validation NLL up; diverged ones left out."""
    dynamics = _momentum(bench) if momentum else Overdamped()
    found = sample(bench, part, [Group(s, 1) for s in grid], dynamics, final=False)
    scores = [
        {**s.as_dict(), **_scores(p, found.labels)}
        for s, p in zip(grid, found.probabilities, strict=True)
        if bool(p.isfinite().all())
    ]
    ranking = sorted(scores, key=_nll)
    if not ranking:
        raise RuntimeError(f"{part}: every chain of the grid diverged; use smaller step sizes")
    best = ranking[0]
    bench.say(f"{part}: {Setting.from_dict(best)}, validation NLL {best['nll']:.4f}")
    return _result(found.ran, bench.protocol.select_steps) | {
        "ranking": ranking,
        "measured": {"execution": found.measured["execution"]},
    }


def _ranking(result: Result) -> list[Setting]:
    return [Setting.from_dict(s) for s in result["ranking"]]


def _both_lengths(done: dict[str, Result]) -> list[float]:
    return [*dict.fromkeys((0.0, done["refine"]["ranking"][0]["length"]))]


def _smooth_members(p: Tensor, groups: Sequence[Group]) -> list[Tensor]:
    """The chains of the groups after the first whose inputs are smoothed."""
    found, first = [], 0
    for k, group in enumerate(groups):
        if k and group.setting.length:
            found.append(p[first : first + group.chains])
        first += group.chains
    return found


def _result(ran: Ran, steps: int) -> Result:
    return {
        "complete": ran.updates == steps,
        "updates": ran.updates,
        "seconds": ran.seconds,
        "wall": ran.wall,
    }


def _row(label: str, setting: Setting, p: Tensor, y: Tensor, found: Sampled, chains: int) -> Result:
    return {
        "label": label,
        "kind": "chains",
        "chains": chains,
        "draws": found.draws,
        "updates": found.ran.updates,
        "setting": setting.as_dict(),
        **_summaries(p, y),
    }


def _pooled(p: Tensor, dim: int = 0) -> Tensor:
    """The mean along ``dim`` over chains that did not diverge: (predictor, n, classes)."""
    return p.nanmean(dim) if dim else p.nanmean(0)[None]


def _scores(p: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.nll(p, y),
        "accuracy": 100 * metrics.accuracy(p, y),
        "brier": metrics.brier(p, y),
    }


def _summaries(p: Tensor, y: Tensor) -> dict[str, Any]:
    """Mean, standard deviation and values over predictors, (predictor, n, classes).

    One that is not finite, a chain that diverged, is counted and left out."""
    alive = p.isfinite().flatten(1).all(1)
    if not bool(alive.any()):
        raise RuntimeError("every chain of a row diverged: use smaller step sizes")
    scores = [_scores(q, y) for q in p[alive]]
    found: dict[str, Any] = {"diverged": int((~alive).sum())}
    for name in scores[0]:
        values = [s[name] for s in scores]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found[name] = {"mean": statistics.fmean(values), "std": spread, "values": values}
    return found


def _nll(scores: dict[str, float]) -> float:
    return scores["nll"] if math.isfinite(scores["nll"]) else math.inf
