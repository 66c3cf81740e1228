"""Moments: from per-sample gradients to Fisher statistics, in bounded memory.

With G_n the gradient of sample n's loss, the statistics are means over samples,

    second[p] = mean_n G_n[p]^2                     the diagonal J_ii
    cross[b][w] = mean_n G_n[b] G_n[w]              the bias row J_0i of the units with bias b

which do not depend on the batch size. G_n is a sum over positions t (tokens, pixels, calls).
``sharing="exact"`` sums before it squares. ``sharing="expand"`` takes every position for a sample
of its own, mean_n sum_t G_nt^2: cheaper, and the same where there is one position. A bias and its
weights are always treated alike: mixed, J_ii - J_0i^2 / J_00 would become negative.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Literal, NamedTuple

from torch import Tensor

from natural_langevin.statistics.rules import Outer, SampleGradient, Scatter, Stacked, Sum

Sharing = Literal["exact", "expand"]
Params = dict[str, Tensor]
Units = dict[str, tuple[str, ...]]

#: Per-sample gradients are built for as many samples at once as fit into this many numbers.
CHUNK_NUMBERS = 1 << 24


class Moments(NamedTuple):
    """Means over samples, by parameter name."""

    second: Params
    cross: dict[str, Params]


def layer_moments(
    gradients: dict[str, list[SampleGradient]],
    units: Units,
    *,
    samples: int,
    sharing: Sharing,
    numbers: int = CHUNK_NUMBERS,
) -> Moments:
    """The statistics of parameters whose per-sample gradients rules have described."""
    result = Moments({}, {})
    # A unit of which a part was never used has no row of its own.
    units = {b: ws for b, ws in units.items() if all(k in gradients for k in (b, *ws))}
    paired = {w for ws in units.values() for w in ws}
    for name in gradients:
        if name in paired:
            continue  # with its bias
        group = {k: gradients[k] for k in (name, *units.get(name, ()))}
        own_units = {name: units[name]} if name in units else {}
        found = _group_moments(group, own_units, samples, sharing, numbers)
        result.second.update(found.second)
        result.cross.update(found.cross)
    return result


def _group_moments(
    group: dict[str, list[SampleGradient]],
    units: Units,
    samples: int,
    sharing: Sharing,
    numbers: int,
) -> Moments:
    """One bias with its weights, or one parameter alone."""
    one_position = all(len(gs) == 1 and set(gs[0].positions()) == {1} for gs in group.values())
    if (sharing == "expand" or one_position) and _positional(group, units):
        return _expanded(group, units, samples, numbers)
    lookups = {k: [g for g in gs if isinstance(g, Scatter)] for k, gs in group.items()}
    if all(len(lookups[k]) == len(gs) for k, gs in group.items()):
        merged = {k: Scatter.joined(gs).merged() for k, gs in lookups.items()}
        return _expanded({k: [g] for k, g in merged.items()}, units, samples, numbers)

    def dense(part: slice) -> Params:
        return {k: _total(g.dense(part) for g in gs) for k, gs in group.items()}

    work = sum(g.work() for gs in group.values() for g in gs)
    return dense_moments(dense, units, samples=samples, chunk=max(1, numbers // work))


def dense_moments(
    dense: Callable[[slice], Params], units: Units, *, samples: int, chunk: int
) -> Moments:
    """From per-sample gradients written out, ``dense(part)``: (n, *shape), a chunk at a time."""
    second: dict[str, list[Tensor]] = {}
    cross: dict[str, dict[str, list[Tensor]]] = {b: {w: [] for w in ws} for b, ws in units.items()}
    for start in range(0, samples, chunk):
        found = dense(slice(start, min(start + chunk, samples)))
        for k, g in found.items():
            second.setdefault(k, []).append(g.square().sum(0) / samples)
        for bias, row in cross.items():
            for w, terms in row.items():
                terms.append((_spread(found[bias], found[w]) * found[w]).sum(0) / samples)
    return Moments(
        {k: _total(terms) for k, terms in second.items()},
        {b: {w: _total(terms) for w, terms in row.items()} for b, row in cross.items()},
    )


def _positional(group: dict[str, list[SampleGradient]], units: Units) -> bool:
    """Whether positions can stand for samples: gradients that are products at every position, and
    a bias that is the sum over the same positions. Plain sums are exact at no extra cost."""
    if not units:
        return not any(isinstance(p, Sum) for gs in group.values() for g in gs for p in parts(g))
    for bias, weights in units.items():
        places = [g.positions() for g in group[bias]]
        if not all(isinstance(part, Sum) for g in group[bias] for part in parts(g)):
            return False
        for w in weights:
            if not all(isinstance(part, Outer) for g in group[w] for part in parts(g)):
                return False
            if [g.positions() for g in group[w]] != places:
                return False
    return True


def _expanded(
    group: dict[str, list[SampleGradient]], units: Units, samples: int, numbers: int
) -> Moments:
    bias_of = {w: b for b, ws in units.items() for w in ws}
    result = Moments({}, {b: {} for b in units})
    for name, calls in group.items():
        found = [g.expanded(numbers, row=name in bias_of) for g in calls]
        result.second[name] = _total(squares for squares, _ in found) / samples
        if name in bias_of:
            rows = [row for _, row in found if row is not None]
            result.cross[bias_of[name]][name] = _total(rows) / samples
    return result


def parts(gradient: SampleGradient) -> Sequence[SampleGradient]:
    return gradient.parts if isinstance(gradient, Stacked) else (gradient,)


def _total(terms: Iterable[Tensor]) -> Tensor:
    """Their sum, without a zero to begin with (a number, which would make a copy)."""
    return reduce(operator.add, terms)


def _spread(bias: Tensor, weight: Tensor) -> Tensor:
    """(n, unit), shaped to broadcast against (n, unit, ...)."""
    return bias.reshape(bias.shape + (1,) * (weight.ndim - bias.ndim))
