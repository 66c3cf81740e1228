"""Parts that change the model: places in the image, labels that may be wrong, and both."""

from __future__ import annotations

from dataclasses import replace

from natural_langevin.experiments.beyond.protocol import Setting
from natural_langevin.experiments.beyond.sampling import Bench, Group, sample
from natural_langevin.experiments.beyond.scoring import (
    Result,
    best_setting,
    mean_of,
    momentum,
    part_result,
    ranked_settings,
    rows_of,
    search_cells,
)
from natural_langevin.experiments.beyond.search import OFF, Axis, Cell, full, star


def local_select(bench: Bench, done: dict[str, Result]) -> Result:
    """The width of the first layer's places, and its variance, at what was chosen else."""
    if bench.protocol.width.levels == (OFF,):  # inputs that are no image
        return {"complete": True, "ranking": []}
    best = best_setting(done)
    first = bench.protocol.variances[0]
    axes = (bench.protocol.width, replace(first, start=best.variances[0], levels=(0, 1)))

    def setting(cell: Cell) -> Setting:
        width, variance = (a.value(k) for a, k in zip(axes, cell, strict=True))
        return best._replace(width=width, variances=(variance, *best.variances[1:]))

    return search_cells(bench, "local-select", axes, full(axes), setting, momentum(bench))


def local(bench: Bench, done: dict[str, Result]) -> Result:
    """What places in the image add."""
    protocol = bench.protocol
    return _final(bench, done, "local", "places", protocol.local_seeds, protocol.pooled)


def noisy_select(bench: Bench, done: dict[str, Result]) -> Result:
    """The share of labels that are taken for random; step size and two variances with it."""
    best, protocol = best_setting(done), bench.protocol
    near = replace(protocol.step_size, start=best.step_size)
    axes = (protocol.noise, near, *_wider(bench, best))

    def setting(cell: Cell) -> Setting:
        noise, step_size, *two = (a.value(k) for a, k in zip(axes, cell, strict=True))
        variances = (*two, *best.variances[2:])
        return best._replace(noise=noise, step_size=step_size, variances=variances)

    return search_cells(
        bench, "noisy-select", axes, star(axes), setting, momentum(bench), by="alone", extensions=1
    )


def noisy(bench: Bench, done: dict[str, Result]) -> Result:
    """What a likelihood adds that reckons with wrong labels."""
    protocol = bench.protocol
    return _final(bench, done, "noisy", "noisy labels", protocol.seeds, protocol.noisy_pooled)


def both_select(bench: Bench, done: dict[str, Result]) -> Result:
    """Places with noisy labels: their width, the blur's length, and two variances. Where places
    alone have been searched for, it begins at their width."""
    protocol = bench.protocol
    if protocol.width.levels == (OFF,):
        return {"complete": True, "ranking": []}
    best = ranked_settings(done["noisy-select"])[0]
    known = [of["width"] for of in done.get("local-select", {}).get("ranking", [])]
    width = replace(protocol.width, start=known[0]) if known else protocol.width
    near = (-1, 0, 1) if best.length else (0,)
    length = replace(protocol.length, start=best.length, levels=near, grows=bool(best.length))
    axes = (width, length, *_wider(bench, best))

    def setting(cell: Cell) -> Setting:
        width, length, *two = (a.value(k) for a, k in zip(axes, cell, strict=True))
        return best._replace(width=width, length=length, variances=(*two, *best.variances[2:]))

    return search_cells(
        bench, "both-select", axes, star(axes), setting, momentum(bench), by="brier", extensions=1
    )


def both(bench: Bench, done: dict[str, Result]) -> Result:
    """Places and noisy labels together."""
    protocol = bench.protocol
    label = "places and noisy labels"
    return _final(bench, done, "both", label, protocol.seeds, protocol.both_pooled)


def _wider(bench: Bench, best: Setting) -> list[Axis]:
    """Axes of the first two variances about a setting."""
    pairs = zip(bench.protocol.variances, best.variances, strict=True)
    return [replace(axis, start=start) for axis, start in list(pairs)[:2]]


def _final(
    bench: Bench, done: dict[str, Result], part: str, label: str, seeds: int, size: int
) -> Result:
    """Rows of one chain, of ``size`` pooled, and of all, at what ``part``'s search has chosen."""
    ranking = done[f"{part}-select"]["ranking"]
    if not ranking:
        return {"complete": True, "rows": []}
    groups = [Group(ranked_settings(done[f"{part}-select"])[0], seeds * size)]
    found = sample(bench, part, groups, momentum(bench), final=True)
    p, row = found.probabilities, rows_of(found, groups)
    by_seed = p.unflatten(0, (-1, size))
    rows = [
        row(f"one chain, {label}", by_seed[:, 0], 1),
        row(f"one chain, {label}, all {len(p)} of them", p, 1),
        row(f"{size} pooled, {label}", mean_of(by_seed, 1), size),
        row(f"all {len(p)} chains, {label}", mean_of(p), len(p)),
    ]
    return part_result(found, bench, groups, rows)
