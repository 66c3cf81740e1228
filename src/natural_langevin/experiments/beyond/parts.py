"""The parts of the experiment, in order; each ends in plain JSON, and says what it needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin import metrics
from natural_langevin.dynamics import Integrator, Overdamped, Underdamped
from natural_langevin.experiments.beyond import baselines
from natural_langevin.experiments.beyond.protocol import Setting
from natural_langevin.experiments.beyond.running import Ran
from natural_langevin.experiments.beyond.sampling import Bench, Group, Sampled, sample
from natural_langevin.experiments.beyond.search import OFF, Axis, Cell, Round, full, search, star

Result = dict[str, Any]
#: Kinds of chains in the second search beside the chosen setting's own, which is 0: with plain
#: inputs, and with one variance for all layers. They are nobody's neighbours.
PLAIN, SINGLE = OFF, 10
#: The share of the uniform in scores called "resolved".
UNIFORM = 1e-4


class Part(NamedTuple):
    """``run(bench, done)``, where ``done`` has the results of the parts in ``needs``."""

    run: Callable[[Bench, dict[str, Result]], Result]
    needs: tuple[str, ...]
    seconds: float  # what it may take on a GPU


def select(bench: Bench, done: dict[str, Result]) -> Result:
    """Length, step size and damping."""
    protocol = bench.protocol
    axes = (protocol.length, protocol.step_size, protocol.damping)
    variances = tuple(axis.value(0) for axis in protocol.variances)

    def setting(cell: Cell) -> Setting:
        length, step_size, damping = (a.value(k) for a, k in zip(axes, cell, strict=True))
        return Setting(length, step_size, damping, variances)

    return _search(bench, "select", axes, full(axes), setting, _momentum(bench))


def refine(bench: Bench, done: dict[str, Result]) -> Result:
    """The variances of all layers; one for all of them; and plain inputs.

    Which of these a chain belongs to is the first axis; the search goes on for the first alone."""
    protocol = bench.protocol
    best = _ranking(done["select"])[0]
    axes = (Axis(1.0, 1.0, (0,), grows=False), *protocol.variances)

    def setting(cell: Cell) -> Setting:
        if cell[0] == SINGLE:
            return best._replace(variances=(protocol.single[cell[1]],) * len(best.variances))
        variances = tuple(a.value(k) for a, k in zip(axes[1:], cell[1:], strict=True))
        return best._replace(length=0.0 if cell[0] == PLAIN else best.length, variances=variances)

    cells = star(axes)
    others = (0,) * (len(axes) - 2)
    if best.length:
        cells += [(PLAIN, k, *others) for k in protocol.variances[0].levels]
    cells += [(SINGLE, k, *others) for k in range(len(protocol.single))]
    return _search(bench, "refine", axes, cells, setting, _momentum(bench))


def final(bench: Bench, done: dict[str, Result]) -> Result:
    """The table's rows: the chosen setting; plain inputs, one variance for all layers, and the
    lengths next to the chosen one beside it."""
    protocol, size = bench.protocol, bench.protocol.pooled
    best = _chosen(done)
    beside = {"one variance for all layers": _refined(done, SINGLE)}
    lengths = {}
    if best.length:
        beside["plain inputs"] = _refined(done, PLAIN)
        ratio = protocol.length.ratio
        near = [float(f"{length:.3g}") for length in (best.length / ratio, best.length * ratio)]
        lengths = {f"length {k:g}": best._replace(length=k) for k in near if protocol.mixed}
    groups = [Group(best, protocol.seeds * size)]
    fixed = {f"prototype, {_inputs(s)}": s for s in protocol.fixed}
    groups += [Group(setting, size) for of in (beside, lengths, fixed) for setting in of.values()]
    found = sample(bench, "final", groups, _momentum(bench), final=True)
    row = _rows_of(found, groups)
    main, *others = found.probabilities.split([group.chains for group in groups])
    seeds = main.unflatten(0, (-1, size))
    rows = [
        row("one chain", seeds[:, 0], 1),
        row(f"one chain, all {len(main)} of them", main, 1),
        row(f"{size} pooled chains", _pooled(seeds, 1), size),
        row(f"all {len(main)} chains pooled", _pooled(main), len(main)),
    ]
    for k, (label, p) in enumerate(zip(beside | lengths | fixed, others, strict=True), 1):
        rows += [
            row(f"one chain, {label}", p, 1, k),
            row(f"{size} pooled, {label}", _pooled(p), size, k),
        ]
    if lengths:  # a prior over the length: as many chains of each
        near_ones = others[len(beside) : len(beside) + len(lengths)]
        pool = torch.cat([seeds[0], *near_ones])
        label = f"{len(pool)} chains pooled over {1 + len(lengths)} lengths"
        rows.append(row(label, _pooled(pool), len(pool)))
        pool = torch.cat([main, *near_ones])
        label = f"{len(pool)} chains pooled, all of the smoothed"
        rows.append(row(label, _pooled(pool), len(pool)))
    return _sampled(found, bench, groups, rows)


def local_select(bench: Bench, done: dict[str, Result]) -> Result:
    """The width of the first layer's places, and its variance, at what was chosen else."""
    if bench.protocol.width.levels == (OFF,):  # inputs that are no image
        return {"complete": True, "ranking": []}
    best = _chosen(done)
    first = bench.protocol.variances[0]
    axes = (bench.protocol.width, replace(first, start=best.variances[0], levels=(0, 1)))

    def setting(cell: Cell) -> Setting:
        width, variance = (a.value(k) for a, k in zip(axes, cell, strict=True))
        return best._replace(width=width, variances=(variance, *best.variances[1:]))

    return _search(bench, "local-select", axes, full(axes), setting, _momentum(bench))


def local(bench: Bench, done: dict[str, Result]) -> Result:
    """What places in the image add."""
    if not done["local-select"]["ranking"]:
        return {"complete": True, "rows": []}
    size = bench.protocol.pooled
    best = _ranking(done["local-select"])[0]
    groups = [Group(best, bench.protocol.local_seeds * size)]
    found = sample(bench, "local", groups, _momentum(bench), final=True)
    p, row = found.probabilities, _rows_of(found, groups)
    pooled = _pooled(p.unflatten(0, (-1, size)), 1)
    rows = [
        row(f"one chain, places of width {best.width:g}", p, 1),
        row(f"{size} pooled, places of width {best.width:g}", pooled, size),
        row(f"all {len(p)} chains with places pooled", _pooled(p), len(p)),
    ]
    return _sampled(found, bench, groups, rows)


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
        inputs = _inputs(one)
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
    return _result(trained.ran, protocol.steps) | {"rows": [row for row in rows if "nll" in row]}


def overdamped_select(bench: Bench, done: dict[str, Result]) -> Result:
    """The step size without momentum, for plain inputs and the chosen ones."""
    best = _chosen(done)
    plain = _refined(done, PLAIN) if best.length else best
    kinds = Axis(1.0, 1.0, (0, PLAIN) if best.length else (0,), grows=False)
    protocol = bench.protocol
    # Where only the prior acts, eta / (damping variance) must stay below 2: it begins at 1/4.
    step_size = protocol.overdamped_step_size
    stable = best.damping * min(*best.variances, *plain.variances) / 4
    axes = (kinds, replace(step_size, start=min(step_size.start, stable)))

    def setting(cell: Cell) -> Setting:
        of = plain if cell[0] == PLAIN else best
        return of._replace(step_size=axes[1].value(cell[1]))

    return _search(bench, "overdamped-select", axes, full(axes), setting, Overdamped())


def overdamped(bench: Bench, done: dict[str, Result]) -> Result:
    """What momentum adds: the same without, on plain inputs and on the chosen ones."""
    protocol = bench.protocol
    settings = {_inputs(s): s for s in reversed(_ranking(done["overdamped-select"]))}
    settings |= {f"prototype, {_inputs(s)}": s for s in protocol.overdamped_fixed}
    size = protocol.pooled
    groups = [Group(s, size) for s in settings.values()]
    found = sample(bench, "overdamped", groups, Overdamped(), final=True)
    rows, row = [], _rows_of(found, groups)
    chains = found.probabilities.split(size)
    for k, (label, own) in enumerate(zip(settings, chains, strict=True)):
        rows += [
            row(f"one chain, no momentum, {label}", own, 1, k),
            row(f"{size} pooled, no momentum, {label}", _pooled(own), size, k),
        ]
    return _sampled(found, bench, groups, rows)


PARTS = {
    "select": Part(select, (), 80.0),
    "refine": Part(refine, ("select",), 60.0),
    "final": Part(final, ("select", "refine"), 120.0),
    "local-select": Part(local_select, ("refine",), 50.0),
    "local": Part(local, ("local-select",), 60.0),
    "baselines-select": Part(baselines_select, ("refine",), 25.0),
    "baselines": Part(baselines_final, ("baselines-select",), 40.0),
    "overdamped-select": Part(overdamped_select, ("refine",), 25.0),
    "overdamped": Part(overdamped, ("overdamped-select",), 35.0),
}


def _momentum(bench: Bench) -> Underdamped:
    return Underdamped(friction=bench.protocol.friction)


def _search(
    bench: Bench, part: str, axes: Sequence[Axis], cells: list[Cell],
    setting: Callable[[Cell], Setting], dynamics: Integrator,
) -> Result:  # fmt: skip
    """The search of ``search``, every round the chains of one run, by validation NLL."""

    def score(count: int, cells: list[Cell]) -> Round:
        groups = [Group(setting(cell), bench.protocol.copies) for cell in cells]
        found = sample(bench, f"{part}-{count}", groups, dynamics, final=False)
        bench.say(f"round {count}: {found.ran.state.chains} chains, {found.measured['execution']}")
        pooled = found.probabilities.unflatten(0, (len(cells), -1)).mean(1)
        rows = [
            {**group.setting.as_dict(), **_scores(p, found.labels)}
            if bool(p.isfinite().all())
            else None
            for group, p in zip(groups, pooled, strict=True)
        ]
        return Round(rows, **_result(found.ran, bench.protocol.select_steps))

    found = search(
        axes, cells, score, extensions=bench.protocol.extensions,
        file=bench.folder / f"{part}.json",
    )  # fmt: skip
    ranking = [{**of, "cell": list(cell)} for cell, of in found.ranked.items()]
    edge = "" if found.inside else ", at an edge"
    for best in ranking[:2]:
        bench.say(f"{Setting.from_dict(best)}, validation NLL {best['resolved']:.4f}{edge}")
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

    >>> resolved(torch.tensor([[1.0, 0.0]]))[0, 1].item() == UNIFORM / 2
    True
    """
    return (1 - UNIFORM) * p.double() + UNIFORM / p.shape[1]


def _inputs(of: Setting | baselines.Network) -> str:
    return f"length {of.length:g}" if of.length else "plain inputs"


def _refined(done: dict[str, Result], kind: int) -> Setting:
    """The best of one kind of the second search's chains."""
    ranking = done["refine"]["ranking"]
    return next(Setting.from_dict(of) for of in ranking if of["cell"][0] == kind)


def _chosen(done: dict[str, Result]) -> Setting:
    """What both searches have come to."""
    return _ranking(done["refine"])[0]


def _ranking(result: Result) -> list[Setting]:
    return [Setting.from_dict(s) for s in result["ranking"]]


def _both_lengths(done: dict[str, Result]) -> list[float]:
    return [*dict.fromkeys((0.0, _chosen(done).length))]


def _result(ran: Ran, steps: int) -> Result:
    return {
        "complete": ran.updates == steps,
        "updates": ran.updates,
        "seconds": ran.seconds,
        "wall": ran.wall,
    }


def _rows_of(found: Sampled, groups: Sequence[Group]) -> Callable[..., Result]:
    """Makes rows ``row(label, probabilities, chains, group)`` of what was sampled."""
    virials = [of and of["temperature"] for of in found.measured["virial"]]

    def row(label: str, p: Tensor, chains: int, group: int = 0) -> Result:
        return {
            "label": label,
            "kind": "chains",
            "chains": chains,
            "draws": found.draws,
            "updates": found.ran.updates,
            "setting": groups[group].setting.as_dict(),
            "virial": virials[group],
            **_summaries(p, found.labels),
        }

    return row


def _sampled(found: Sampled, bench: Bench, groups: Sequence[Group], rows: list[Result]) -> Result:
    """A part's result; a row all of whose chains diverged is named there, no more."""
    kinetic = found.measured["kinetic"]
    for group, of in zip(groups, found.measured["virial"], strict=True):
        bench.say(f"{group.setting}, {group.chains} chains: virial {of and of['temperature']}")
    bench.say(f"kinetic temperature {kinetic and kinetic['temperature']}")
    return _result(found.ran, bench.protocol.steps) | {
        "rows": [row for row in rows if "nll" in row],
        "diverged": [row["label"] for row in rows if "nll" not in row],
        "groups": [{"chains": g.chains, **g.setting.as_dict()} for g in groups],
        "measured": found.measured,
    }


def _pooled(p: Tensor, dim: int = 0) -> Tensor:
    """The mean along ``dim`` over chains that did not diverge: (predictor, n, classes)."""
    return p.nanmean(dim) if dim else p.nanmean(0)[None]


def _scores(p: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "nll": metrics.nll(p, y),
        "resolved": metrics.nll(resolved(p), y),
        "accuracy": 100 * metrics.accuracy(p, y),
        "brier": metrics.brier(p, y),
    }


def _summaries(p: Tensor, y: Tensor) -> dict[str, Any]:
    """Mean, standard deviation and values over predictors, (predictor, n, classes).

    One that is not finite, a chain that diverged, is counted and left out."""
    alive = p.isfinite().flatten(1).all(1)
    if not bool(alive.any()):
        return {"diverged": len(p)}
    scores = [_scores(q, y) for q in p[alive]]
    found: dict[str, Any] = {"diverged": int((~alive).sum())}
    for name in scores[0]:
        values = [s[name] for s in scores]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found[name] = {"mean": statistics.fmean(values), "std": spread, "values": values}
    return found


def _nll(scores: dict[str, float]) -> float:
    return scores["resolved"] if math.isfinite(scores["resolved"]) else math.inf
