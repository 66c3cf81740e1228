"""Trace and rank plots, by matplotlib (the extra ``report``).

Not ArviZ's, whose rank plot renumbers the chains if one was left out, and whose trace plot uses
functions that matplotlib 3.11 deprecates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from natural_langevin._internal.extras import new_figure
from natural_langevin.diagnostics.ranks import Array


def trace_plot(series: Mapping[str, Array], chains: list[int]) -> Any:
    """One panel for each name, one line for each chain; values are (chain, draw)."""
    figure, panels = _panels(len(series))
    for axes, (name, values) in zip(panels, series.items(), strict=True):
        for chain, line in zip(chains, values, strict=True):
            axes.plot(line, linewidth=0.8, label=f"chain {chain}")
        axes.set(title=name, xlabel="draw")
    panels[0].legend(fontsize="small")
    return figure


def rank_plot(series: Mapping[str, Array], chains: list[int]) -> Any:
    """Of every chain, how many of its draws fall in each range of ranks among all draws.

    The dashed line is the expectation for chains that agree."""
    figure, panels = _panels(len(series))
    for axes, (name, values) in zip(panels, series.items(), strict=True):
        counts = rank_counts(values)
        for chain, line in zip(chains, counts, strict=True):
            axes.step(range(counts.shape[1]), line, where="mid", label=f"chain {chain}")
        axes.axhline(values.shape[1] / counts.shape[1], color="0.5", linestyle="--", linewidth=1)
        axes.set(title=name, xlabel="range of ranks", ylabel="draws", ylim=(0, None))
    panels[0].legend(fontsize="small")
    return figure


def rank_counts(values: Array, *, bins: int = 20) -> Array:
    """(chain, bin): how many draws of a chain have a rank in each of equal ranges.

    >>> rank_counts(np.array([[1.0, 2.0], [3.0, 4.0]]), bins=2)
    array([[2., 0.],
           [0., 2.]])
    """
    chains, draws = values.shape
    bins = min(bins, draws)
    order = values.ravel().argsort(kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    where = (rank * bins // len(order)).reshape(chains, draws)
    counts = [np.bincount(row, minlength=bins) for row in where]
    return np.array(counts, dtype=np.float64)


def _panels(count: int) -> tuple[Any, list[Any]]:
    if count < 1:
        raise ValueError("nothing to plot: give a count of at least 1")
    figure = new_figure(figsize=(7, 1.8 * count))
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])
