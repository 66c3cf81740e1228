"""Results as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.pages import markdown, with_part
from lab.shift.corruptions import STRENGTHS
from natural_langevin._internal.extras import new_figure


def columns(results: Mapping[str, Any]) -> list[str]:
    """What a row says of a method."""
    return [
        "accuracy", "NLL", *(f"NLL, {kind}" for kind in STRENGTHS), "calibration error, shifted",
        *(f"AUROC, {name}" for name in results["settings"]["foreign"]), "seconds",
    ]  # fmt: skip


def rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Title and cells of every method; shifted figures are means over the five strengths."""
    found = []
    for row in results["rows"].values():
        nll = [sum(s["nll"] for s in row["shifts"][kind]) / 5 for kind in STRENGTHS]
        every = [s["ece"] for kind in STRENGTHS for s in row["shifts"][kind]]
        aurocs = [row["foreign"][name]["epistemic"] for name in results["settings"]["foreign"]]
        found.append((
            row["title"], f"{row['clean']['accuracy']:.4f}", f"{row['clean']['nll']:.4f}",
            *(f"{value:.3f}" for value in nll), f"{sum(every) / len(every):.3f}",
            *(f"{value:.3f}" for value in aurocs), f"{row['seconds']:.0f}",
        ))  # fmt: skip
    return found


def with_table(page: str, results: Mapping[str, Any], part: str = "shift") -> str:
    """The page's text with the table in its place, which is marked by ``part``."""
    return with_part(page, part, markdown(columns(results), rows(results)))


def plot(results: Mapping[str, Any], path: Path) -> None:
    """NLL above and calibration error below, against strength, a column for every shift."""
    figure = new_figure(figsize=(10, 4.6))
    panels = figure.subplots(2, len(STRENGTHS), sharex=True, sharey="row")
    for column, kind in enumerate(STRENGTHS):
        for axes, score in zip(panels[:, column], ("nll", "ece"), strict=True):
            for row in results["rows"].values():
                values = [row["clean"][score], *(s[score] for s in row["shifts"][kind])]
                axes.plot(range(6), values, "o-", markersize=3, label=row["title"])
        panels[0, column].set_title(kind)
        panels[1, column].set_xlabel("strength")
    panels[0, 0].set_ylabel("NLL")
    panels[1, 0].set_ylabel("calibration error")
    panels[0, 0].legend(frameon=False, fontsize=7)
    figure.savefig(path, bbox_inches="tight")
