"""Parts that change the model: places in the image, predictions that reckon with wrong labels,
both, and both for images that are set upright."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.beyond.protocol import Setting
from lab.beyond.sampling import Bench, Group, sample
from lab.beyond.scoring import (
    Result,
    best_setting,
    mean_of,
    momentum,
    part_result,
    ranked_settings,
    rows_of,
    search_cells,
)
from lab.beyond.search import OFF, Axis, Cell, full, star


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
    """The share of labels that predictions take for random; step size and two variances with it."""
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
    """What predictions gain that reckon with wrong labels."""
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
    start = best._replace(width=known[0] if known else protocol.width.start)
    return _search_of_images(bench, "both-select", start, _kept(start.deskew))


def both(bench: Bench, done: dict[str, Result]) -> Result:
    """Places and noisy labels together."""
    protocol = bench.protocol
    label = "places and noisy labels"
    return _final(bench, done, "both", label, protocol.seeds, protocol.both_pooled)


def deskewed_select(bench: Bench, done: dict[str, Result]) -> Result:
    """How far images are set upright, and what ``both_select`` has chosen once more."""
    if bench.protocol.deskew.levels == (OFF,):
        return {"complete": True, "ranking": []}
    start = ranked_settings(done["both-select"])[0]
    return _search_of_images(bench, "deskewed-select", start, bench.protocol.deskew)


def deskewed(bench: Bench, done: dict[str, Result]) -> Result:
    """Images set upright, with all of the above; and pooled with chains of the next best share.

    Where the search would rather leave images as they are there is nothing to add."""
    protocol, ranked = bench.protocol, ranked_settings(done["deskewed-select"])
    if not ranked or not ranked[0].deskew:
        return {"complete": True, "rows": []}
    others = [s for s in ranked if s.deskew not in (0, ranked[0].deskew)]
    beside = [Group(s, protocol.deskewed_mixed) for s in others[:1]]
    return _final(
        bench, done, "deskewed", "deskewed images", protocol.seeds, protocol.pooled, beside
    )


def _search_of_images(bench: Bench, part: str, start: Setting, deskew: Axis) -> Result:
    """Slant, places' width, the blur's length and two variances about a setting, by pooled chains
    and the Brier score."""
    protocol = bench.protocol
    near = (-1, 0, 1) if start.length else (0,)
    length = replace(protocol.length, start=start.length, levels=near, grows=bool(start.length))
    width = replace(protocol.width, start=start.width)
    axes = (deskew, width, length, *_wider(bench, start))

    def setting(cell: Cell) -> Setting:
        deskew, width, length, *two = (a.value(k) for a, k in zip(axes, cell, strict=True))
        variances = (*two, *start.variances[2:])
        return start._replace(deskew=deskew, width=width, length=length, variances=variances)

    return search_cells(
        bench, part, axes, star(axes), setting, momentum(bench), by="brier", extensions=1
    )


def _kept(value: float) -> Axis:
    """An axis that stays where it is."""
    return Axis(value, 1.0, (0,), grows=False)


def _wider(bench: Bench, best: Setting) -> list[Axis]:
    """Axes of the first two variances about a setting."""
    pairs = zip(bench.protocol.variances, best.variances, strict=True)
    return [replace(axis, start=start) for axis, start in list(pairs)[:2]]


def _final(
    bench: Bench, done: dict[str, Result], part: str, label: str, seeds: int, size: int,
    beside: Sequence[Group] = (),
) -> Result:  # fmt: skip
    """Rows of one chain, of ``size`` pooled, and of all, at what ``part``'s search has chosen; and
    of these together with chains ``beside`` them."""
    ranking = done[f"{part}-select"]["ranking"]
    if not ranking:
        return {"complete": True, "rows": []}
    groups = [Group(ranked_settings(done[f"{part}-select"])[0], seeds * size), *beside]
    found = sample(bench, part, groups, momentum(bench), final=True)
    everything, row = found.probabilities, rows_of(found, groups)
    p = everything[: seeds * size]
    by_seed = p.unflatten(0, (-1, size))
    rows = [
        row(f"one chain, {label}", by_seed[:, 0], 1),
        row(f"one chain, {label}, all {len(p)} of them", p, 1),
        row(f"{size} pooled, {label}", mean_of(by_seed, 1), size),
        row(f"all {len(p)} chains, {label}", mean_of(p), len(p)),
    ]
    if beside:
        inputs = " and ".join(str(group.setting.inputs) for group in groups)
        pool = f"all {len(everything)} chains pooled, {inputs}"
        rows.append(row(pool, mean_of(everything), len(everything), None))
    return part_result(found, bench, groups, rows)
