"""Results as a table and as a picture, with the published figures beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.fidelity.contenders import CONTENDERS
from lab.fidelity.run import PUBLISHED
from lab.pages import markdown, with_part
from natural_langevin._internal.extras import new_figure

COLUMNS = (
    "agreement", "total variation", "accuracy", "NLL", "calibration error", "seconds", "epochs",
    "draws",
)  # fmt: skip


def rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Title and cells: the published ones, HMC itself, and ours at the end of their time."""
    found: list[tuple[str, ...]] = [
        (f"published: {title}", f"{same:.3f}", f"{apart:.3f}", *[""] * 6)
        for title, (same, apart) in PUBLISHED.items()
    ]
    hmc = results["reference"]
    own = f"{hmc['accuracy']:.4f}", f"{hmc['nll']:.3f}", f"{hmc['ece']:.3f}"
    found.append(("the reference itself", "1", "0", *own, "", "", ""))
    for row in results["rows"].values():
        if row.get("looks"):
            found.append(_cells(row["title"], row["looks"][-1]))
    return found


def _cells(title: str, look: Mapping[str, Any]) -> tuple[str, ...]:
    scores = (f"{look[k]:.4f}" for k in ("agreement", "total_variation", "accuracy"))
    rest = f"{look['nll']:.3f}", f"{look['ece']:.3f}", f"{look['seconds']:.0f}"
    return title, *scores, *rest, f"{look['epochs']:.0f}", str(look["draws"])


def by_chains(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Title and cells of every sampler's first chain, its first two pooled, and so on; of an
    ensemble, of all its networks that there are."""
    found = []
    for name, row in results["rows"].items():
        last = {look["chain"]: look for look in row.get("looks", [])}
        whole, kind = results["settings"]["chains"], "chains"
        if (members := CONTENDERS[name].members) > 1 and last:
            whole, kind, last = members, "networks", {max(last): last[max(last)]}
        found += [_cells(f"{row['title']}, {k} of {whole} {kind}", last[k]) for k in last]
    return found


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page's text with the table in its place; runs of several chains have one of their own."""
    if results["settings"]["chains"] > 1:
        return with_part(page, "fidelity-chains", markdown(COLUMNS, by_chains(results)))
    return with_part(page, "fidelity", markdown(COLUMNS, rows(results)))


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Agreement and total variation against time, and where published runs of days ended."""
    figure = new_figure(figsize=(9, 3.4))
    left, right = figure.subplots(1, 2)
    for axes, score, index in ((left, "agreement", 0), (right, "total_variation", 1)):
        for row in results["rows"].values():
            looks = row.get("looks", [])
            style = "o-" if len(looks) < 10 else "-"
            seconds = [look["seconds"] for look in looks]
            axes.plot(seconds, [look[score] for look in looks], style, label=row["title"])
        for number, (title, values) in enumerate(PUBLISHED.items()):
            axes.axhline(values[index], color="grey", linewidth=0.8, linestyle=(0, (2, 1 + number)))
            place = (1.0, values[index])
            axes.annotate(
                title.split(",")[0], place, xycoords=("axes fraction", "data"), fontsize=6,
                ha="right", va="bottom", color="grey",
            )  # fmt: skip
        axes.set_xlabel("seconds")
        axes.set_ylabel(score.replace("_", " ") + " with HMC")
    left.legend(frameon=False, fontsize=7)
    figure.savefig(path, bbox_inches="tight")
