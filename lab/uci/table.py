"""The figures beside published ones: in the terminal, on a page, and as a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.pages import markdown, with_part
from lab.uci.data import TABLES
from natural_langevin._internal.extras import new_figure

#: Test log-likelihoods (means over splits) as their papers give them: Lakshminarayanan et al. 2017,
#: and Mukhoti et al. 2018 for dropout with tuned settings.
PUBLISHED = {
    "deep ensemble (2017)": (-2.41, -3.06, -1.38, 1.20, 5.63, -2.79, -2.83, -0.94, -1.18),
    "tuned MC dropout (2018)": (-2.40, -2.93, -1.21, 1.14, 4.45, -2.80, -2.87, -0.93, -1.25),
}
OURS = "Natural Langevin, defaults"


def cells(results: Mapping[str, Any], score: str, digits: int) -> dict[str, str]:
    """Mean ± standard error over the splits that are done, by table; fewer than all are counted."""
    found = {}
    for name, table in TABLES.items():
        values = [row[score] for row in results["rows"] if row["table"] == name]
        if not values:
            continue
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        small = 3 if abs(statistics.fmean(values)) < 0.01 else 0  # naval's errors
        text = f"{statistics.fmean(values):.{digits + small}f}"
        text += f" ± {error:.{digits + small}f}" if len(values) > 1 else ""
        found[name] = text if len(values) == table.splits else f"{text} ({len(values)} splits)"
    return found


def rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Title and cells, one for every table: the published ones, then ours."""
    found: list[tuple[str, ...]] = [
        (label, *(f"{value:.2f}" for value in values)) for label, values in PUBLISHED.items()
    ]
    for label, score, digits in (
        (OURS, "log_likelihood", 2),
        ("RMSE", "rmse", 3),
        ("CPU seconds per fit", "cpu_seconds", 1),
    ):
        own = cells(results, score, digits)
        if own:
            found.append((label, *(own.get(name, "") for name in TABLES)))
    return found


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page's text with the table in its place."""
    return with_part(page, "uci", markdown(list(TABLES), rows(results)))


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Log-likelihoods minus the deep ensemble's, table by table."""
    base = dict(zip(TABLES, PUBLISHED["deep ensemble (2017)"], strict=True))
    figure = new_figure(figsize=(8, 3.2))
    axes = figure.subplots()
    for k, name in enumerate(TABLES):
        values = [row["log_likelihood"] for row in results["rows"] if row["table"] == name]
        if values:
            error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            better = statistics.fmean(values) - base[name]
            axes.errorbar(k, better, yerr=2 * error, fmt="o", color="C0")
        other = PUBLISHED["tuned MC dropout (2018)"][k] - base[name]
        axes.plot(k, other, "x", color="C1", label="tuned MC dropout" if not k else None)
    axes.axhline(0, color="grey", linewidth=1)
    axes.set_xticks(range(len(TABLES)), list(TABLES))
    axes.set_ylabel("test log-likelihood\nminus deep ensemble's")
    axes.legend(frameon=False)
    figure.savefig(path, bbox_inches="tight")
