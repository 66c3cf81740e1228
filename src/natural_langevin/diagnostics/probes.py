"""Probes: inputs around given rows, where a posterior may not have converged although it has at the
rows.

Of rows of numbers, at most ``COUNT`` of every kind, always the same ones for the same rows:

* between rows: the middle of two of them
* outside: the rows furthest from the mean, half as far again
* corners: of the box of all rows, half as wide again; of few columns alone
* shuffled columns: every column's values, each in a random order

A column of at most two values (a flag, one of several indicators) is not moved beyond them; nor are
integers if the network has an embedding, which may look them up.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

COUNT = 16
#: Distances from the middle are multiplied by this.
WIDER = 1.5
#: Of more columns the corners are too far from everything.
MOST_COLUMNS = 16


def around(x: Tensor, *, looked_up: bool = False) -> dict[str, Tensor]:
    """Probes around rows x (n, columns), by kind; none where x is not such a table of numbers.
    ``looked_up``: columns of whole numbers may be numbers of levels.

    >>> {k: v.flatten().tolist() for k, v in around(torch.tensor([[0.0], [1.0], [2.0]])).items()}
    {'between rows': [1.5, 1.0, 0.5], 'outside': [-0.5, 2.5, 1.0], 'corners': [-0.5, 2.5]}
    """
    if x.ndim != 2 or not x.is_floating_point() or len(x) < 3 or not bool(x.isfinite().all()):
        return {}
    moving = torch.tensor([len(column.unique()) > 2 for column in x.T], device=x.device)
    if looked_up:
        moving &= (x != x.round()).any(0)
    if not bool(moving.any()):
        return {}
    mean, scale = x.mean(0), x.std(0).clamp_min(torch.finfo(x.dtype).tiny)
    generator = torch.Generator().manual_seed(0)
    some = x[torch.randperm(len(x), generator=generator)]
    far = (((x - mean) / scale)[:, moving].square().sum(1)).argsort(descending=True)
    found = {
        "between rows": (some + some.roll(1, 0)) / 2,
        "outside": mean + WIDER * (x[far] - mean),
    }
    columns = int(moving.sum())
    if columns <= MOST_COLUMNS:
        low, high = x.amin(0), x.amax(0)
        middle, reach = (low + high) / 2, WIDER * (high - low) / 2
        signs = _signs(columns, generator).to(x)
        ends = x.new_zeros(len(signs), len(moving))
        ends[:, moving] = signs
        found["corners"] = middle + reach * ends
    if columns > 1:
        orders = [torch.randperm(len(x), generator=generator) for _ in range(x.shape[1])]
        found["shuffled columns"] = torch.stack(
            [column[order] for column, order in zip(x.T, orders, strict=True)], 1
        )
    rows = {k: v[:COUNT] for k, v in found.items()}
    # What must not be moved is a real row's.
    return {k: torch.where(moving, v, _cycled(x, len(v))) for k, v in rows.items()}


def _signs(columns: int, generator: torch.Generator) -> Tensor:
    """-1 and 1 of corners: all of them where they are at most ``COUNT``, else some."""
    if 2**columns <= COUNT:
        return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=columns)))
    return 2.0 * torch.randint(2, (COUNT, columns), generator=generator) - 1


def _cycled(x: Tensor, count: int) -> Tensor:
    return x[torch.arange(count, device=x.device) % len(x)]
