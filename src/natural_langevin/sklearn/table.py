"""The comparison's results as a Markdown table: results/tabular.json -> docs/tabular.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

NAMES = {"ours": "Natural Langevin, defaults", "mlp": "scikit-learn MLP, tuned"}
HEAD = [
    "| data | method | NLL | minus rival's, split by split | accuracy or RMSE | calibration error "
    "| minus rival's | fit, CPU s |",
    "|---|---|---|---|---|---|---|---|",
]


BEGIN, END = "<!-- table:begin -->\n", "<!-- table:end -->"


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page's text with the table between its markers."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + markdown(results) + "\n" + END + rest.split(END)[1]


def markdown(results: Mapping[str, Any]) -> str:
    """One row per data set and method: means over splits ± standard error; best bold."""
    lines = list(HEAD)
    for row in sorted(results["rows"], key=lambda row: (row["dataset"], row["method"] != "ours")):
        lines.append(_line(row, results["rows"]))
    return "\n".join(lines)


def _line(row: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> str:
    scores = row["scores"]
    rivals = [other for other in rows if other["dataset"] == row["dataset"]]

    def cell(score: str, digits: int) -> str:
        text = spread(scores[score], digits)
        best = min(mean(other["scores"][score]) for other in rivals)
        return f"**{text}**" if mean(scores[score]) == best else text

    quality = (
        f"{100 * mean(scores['accuracy']):.1f} %"
        if "accuracy" in scores
        else spread(scores["rmse"], 1)
    )

    def paired(score: str) -> str:
        """The difference of every split from the rival's own: the splits' difficulty cancels."""
        if row["method"] != "ours" or len(rivals) < 2:
            return ""
        (rival,) = (other["scores"][score] for other in rivals if other is not row)
        return spread([a - b for a, b in zip(scores[score], rival, strict=True)], 3, sign="+")

    return (
        f"| {row['dataset'].replace('_', ' ')} | {NAMES[row['method']]} | {cell('nll', 3)} | "
        f"{paired('nll')} | {quality} | {cell('calibration', 3)} | {paired('calibration')} | "
        f"{mean(row['fit_seconds']):.0f} |"
    )


def mean(values: list[float]) -> float:
    """The arithmetic mean."""
    return statistics.fmean(values)


def spread(values: list[float], digits: int, *, sign: str = "") -> str:
    """mean ± standard error of the mean.

    >>> spread([1.0, 2.0, 3.0], 2)
    '2.00 ± 0.58'
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{mean(values):{sign}.{digits}f} ± {error:.{digits}f}"
