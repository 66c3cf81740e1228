"""The parts of the experiment, in order; each ends in plain JSON, and says what it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from lab.beyond import baselines, model_parts
from lab.beyond.inputs import Inputs
from lab.beyond.protocol import Setting
from lab.beyond.sampling import Bench, Group, sample
from lab.beyond.scoring import (
    Result,
    best_setting,
    mean_of,
    momentum,
    part_result,
    ran_result,
    ranked_settings,
    rows_of,
    scores_of,
    search_cells,
    summaries_of,
)
from lab.beyond.search import OFF, Axis, Cell, full, star
from natural_langevin.dynamics import Overdamped

#: Kinds of chains in the second search beside the chosen setting's own, which is 0: with plain
#: inputs, and with one variance for all layers. They are nobody's neighbours.
PLAIN, SINGLE = OFF, 10


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

    return search_cells(bench, "select", axes, full(axes), setting, momentum(bench))


def refine(bench: Bench, done: dict[str, Result]) -> Result:
    """The variances of all layers; one for all of them; and plain inputs.

    Which of these a chain belongs to is the first axis; the search goes on for the first alone."""
    protocol = bench.protocol
    best = ranked_settings(done["select"])[0]
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
    return search_cells(bench, "refine", axes, cells, setting, momentum(bench))


def final(bench: Bench, done: dict[str, Result]) -> Result:
    """The table's rows: the chosen setting; plain inputs, one variance for all layers, and the
    lengths next to the chosen one beside it."""
    protocol, size = bench.protocol, bench.protocol.pooled
    best = best_setting(done)
    beside = {"one variance for all layers": _refined(done, SINGLE)}
    lengths = {}
    if best.length:
        beside["plain inputs"] = _refined(done, PLAIN)
        ratio = protocol.length.ratio
        near = [float(f"{length:.3g}") for length in (best.length / ratio, best.length * ratio)]
        lengths = {f"length {k:g}": best._replace(length=k) for k in near if protocol.mixed}
    groups = [Group(best, protocol.seeds * size)]
    fixed = {f"prototype, {s.inputs}": s for s in protocol.fixed}
    groups += [Group(setting, size) for of in (beside, lengths, fixed) for setting in of.values()]
    found = sample(bench, "final", groups, momentum(bench), final=True)
    row = rows_of(found, groups)
    main, *others = found.probabilities.split([group.chains for group in groups])
    seeds = main.unflatten(0, (-1, size))
    rows = [
        row("one chain", seeds[:, 0], 1),
        row(f"one chain, all {len(main)} of them", main, 1),
        row(f"{size} pooled chains", mean_of(seeds, 1), size),
        row(f"all {len(main)} chains pooled", mean_of(main), len(main)),
    ]
    for k, (label, p) in enumerate(zip(beside | lengths | fixed, others, strict=True), 1):
        rows += [
            row(f"one chain, {label}", p, 1, k),
            row(f"{size} pooled, {label}", mean_of(p), size, k),
        ]
    if lengths:  # a prior over the length: as many chains of each
        near_ones = others[len(beside) : len(beside) + len(lengths)]
        pool = torch.cat([seeds[0], *near_ones])
        label = f"{len(pool)} chains pooled over {1 + len(lengths)} lengths"
        rows.append(row(label, mean_of(pool), len(pool), None))
        pool = torch.cat([main, *near_ones])
        label = f"{len(pool)} chains pooled, all of the smoothed"
        rows.append(row(label, mean_of(pool), len(pool), None))
    return part_result(found, bench, groups, rows)


def baselines_select(bench: Bench, done: dict[str, Result]) -> Result:
    """Step sizes and rates of the baselines, on plain inputs and on those that chains chose."""
    networks = baselines.grid(bench, _chosen_inputs(done))
    trained = baselines.train(bench, "baselines-select", networks, final=False)
    _, _, x, y = bench.part(final=False)
    scores = [
        {**n.as_dict(), **scores_of(p, y)}
        for n, p in zip(networks, baselines.predict(trained, x), strict=True)
    ]
    chosen = [
        min((s for s in scores if _of(s) == inputs and (s["rate"] > 0) == drops), key=_nll)
        for inputs in _chosen_inputs(done)
        for drops in (False, True)
    ]
    return ran_result(trained.ran, bench.protocol.select_steps) | {"chosen": chosen, "grid": scores}


def baselines_final(bench: Bench, done: dict[str, Result]) -> Result:
    """Dropout, MC-dropout, one SGD network and ensembles of them, for every kind of inputs."""
    protocol = bench.protocol
    networks: list[baselines.Network] = []
    blocks = []
    for chosen in done["baselines-select"]["chosen"]:
        one = baselines.Network(_of(chosen), chosen["step_size"], chosen["rate"])
        count = protocol.seeds if one.rate else protocol.ensembles * protocol.pooled
        blocks.append((one, slice(len(networks), len(networks) + count)))
        networks += [one] * count
    trained = baselines.train(bench, "baselines", networks, final=True)
    _, _, x, y = bench.part(final=True)
    plain = baselines.predict(trained, x)
    masked = baselines.predict(trained, x, masks=protocol.masks)
    rows = []
    for one, where in blocks:
        inputs = str(one.inputs)
        pairs = [("Dropout", plain[where])] if one.rate else [("SGD", plain[where])]
        if one.rate:
            pairs.append((f"MC-dropout, {protocol.masks} masks", masked[where]))
        else:
            pooled = plain[where].unflatten(0, (-1, protocol.pooled)).mean(1)
            pairs.append((f"{protocol.pooled} SGD networks", pooled))
        for label, p in pairs:
            rows.append(
                {"label": f"{label}, {inputs}", "kind": "baseline", "setting": one.as_dict(),
                 "updates": trained.ran.updates, **summaries_of(p, y)}
            )  # fmt: skip
    return ran_result(trained.ran, protocol.steps) | {"rows": [row for row in rows if "nll" in row]}


def overdamped_select(bench: Bench, done: dict[str, Result]) -> Result:
    """The step size without momentum, for plain inputs and the chosen ones."""
    best = best_setting(done)
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

    return search_cells(bench, "overdamped-select", axes, full(axes), setting, Overdamped())


def overdamped(bench: Bench, done: dict[str, Result]) -> Result:
    """What momentum adds: the same without, on plain inputs and on the chosen ones."""
    protocol = bench.protocol
    settings = {str(s.inputs): s for s in reversed(ranked_settings(done["overdamped-select"]))}
    settings |= {f"prototype, {s.inputs}": s for s in protocol.overdamped_fixed}
    size = protocol.pooled
    groups = [Group(s, size) for s in settings.values()]
    found = sample(bench, "overdamped", groups, Overdamped(), final=True)
    rows, row = [], rows_of(found, groups)
    chains = found.probabilities.split(size)
    for k, (label, own) in enumerate(zip(settings, chains, strict=True)):
        rows += [
            row(f"one chain, no momentum, {label}", own, 1, k),
            row(f"{size} pooled, no momentum, {label}", mean_of(own), size, k),
        ]
    return part_result(found, bench, groups, rows)


def _refined(done: dict[str, Result], kind: int) -> Setting:
    """The best of one kind of the second search's chains."""
    ranking = done["refine"]["ranking"]
    return next(Setting.from_dict(of) for of in ranking if of["cell"][0] == kind)


def _chosen_inputs(done: dict[str, Result]) -> list[Inputs]:
    """Plain ones, those of the first searches, and deskewed ones where they were preferred."""
    deskewed = ranked_settings(done.get("deskewed-select", {"ranking": []}))[:1]
    return [*dict.fromkeys((Inputs(), *(s.inputs for s in (best_setting(done), *deskewed))))]


def _of(scores: dict[str, float]) -> Inputs:
    return Inputs(scores["length"], scores["deskew"])


def _nll(scores: dict[str, float]) -> float:
    return scores["resolved"] if math.isfinite(scores["resolved"]) else math.inf


PARTS = {
    "select": Part(select, (), 80.0),
    "refine": Part(refine, ("select",), 60.0),
    "final": Part(final, ("select", "refine"), 120.0),
    "local-select": Part(model_parts.local_select, ("refine",), 50.0),
    "local": Part(model_parts.local, ("local-select",), 60.0),
    "noisy-select": Part(model_parts.noisy_select, ("refine",), 40.0),
    "noisy": Part(model_parts.noisy, ("noisy-select",), 45.0),
    "both-select": Part(model_parts.both_select, ("noisy-select",), 65.0),
    "both": Part(model_parts.both, ("both-select",), 100.0),
    "deskewed-select": Part(model_parts.deskewed_select, ("both-select",), 65.0),
    "deskewed": Part(model_parts.deskewed, ("deskewed-select",), 120.0),
    "baselines-select": Part(baselines_select, ("refine",), 25.0),
    "baselines": Part(baselines_final, ("baselines-select",), 40.0),
    "overdamped-select": Part(overdamped_select, ("refine",), 25.0),
    "overdamped": Part(overdamped, ("overdamped-select",), 35.0),
}
