"""The comparison's results as a Markdown table: results/tabular.json -> lab/notes/tabular.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from lab.pages import with_part

NAMES = {
    "ours": "Natural Langevin, defaults",
    "mlp": "MLP, tuned",
    "forest": "random forest",
    "boosting": "histogram gradient boosting",
    "ngboost": "NGBoost",
    "process": "Gaussian process",
    "ensemble": "deep ensemble of equal cost",
}
HEAD = [
    "| data | method | NLL | ours minus it, split by split | accuracy or RMSE | calibration error "
    "| ours minus it | CPU s |",
    "|---|---|---|---|---|---|---|---|",
]


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page's text with the table in its place."""
    return with_part(page, "table", markdown(results))


def markdown(results: Mapping[str, Any]) -> str:
    """One row per data set and method: means over splits ± standard error; best bold."""
    by: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
    for row in results["rows"]:
        by.setdefault(row["dataset"], {}).setdefault(row["method"], {})[row["split"]] = row
    lines = list(HEAD)
    for name in sorted(by):
        # The splits that every method has: a run that was cut off compares like with like.
        common = sorted(set.intersection(*(set(found) for found in by[name].values())))
        table = {m: [found[k] for k in common] for m, found in by[name].items()}
        lines += [_line(name, method, table) for method in NAMES if method in table and common]
    return "\n".join(lines)


def _line(name: str, method: str, table: Mapping[str, list[Mapping[str, Any]]]) -> str:
    def scores(score: str, of: str = method) -> list[float]:
        return [row["scores"][score] for row in table[of]]

    def cell(score: str) -> str:
        text = spread(scores(score), 3)
        best = min(mean(scores(score, other)) for other in table)
        return f"**{text}**" if mean(scores(score)) == best else text

    def paired(score: str) -> str:
        """The difference of every split from ours: the splits' difficulty cancels."""
        if method == "ours":
            return ""
        both = zip(scores(score, "ours"), scores(score), strict=True)
        return spread([a - b for a, b in both], 3, sign="+")

    if "accuracy" in table[method][0]["scores"]:
        quality = f"{100 * mean(scores('accuracy')):.1f} %"
    else:
        quality = spread(scores("rmse"), 1)
    count = len(table[method])
    data = f"{name.replace('_', ' ')} ({count} split{'s' if count > 1 else ''})"
    seconds = mean([row["cpu_seconds"] for row in table[method]])
    return (
        f"| {data} | {NAMES[method]} | {cell('nll')} | {paired('nll')} | {quality} | "
        f"{cell('calibration')} | {paired('calibration')} | {seconds:.1f} |"
    )


def mean(values: list[float]) -> float:
    """The arithmetic mean."""
    return statistics.fmean(values)


def spread(values: list[float], digits: int, *, sign: str = "") -> str:
    """mean ± standard error of the mean.

    >>> spread([1.0, 2.0, 3.0], 2)
    '2.00 ± 0.58'
    """
    text = f"{mean(values):{sign}.{digits}f}"
    if len(values) < 2:
        return text
    return f"{text} ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"
