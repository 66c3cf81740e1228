"""The ratios as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from natural_langevin._internal.extras import new_figure


def plot(results: dict[str, Any], path: Path) -> str:
    """Writes the picture and returns its path, or says why there is none."""
    networks = results["sections"].get("steps", {}).get("networks", [])
    bars = [(part["network"], [r for r in part["rows"] if "ratio" in r]) for part in networks]
    bars = [(name, rows) for name, rows in bars if rows]
    axes = results["sections"].get("growth", {}).get("axes", {})
    heights = [0.8 + 0.3 * len(rows) for _, rows in bars] + ([3.0] if axes else [])
    if not heights:
        return "no picture: neither steps nor growth were measured"
    try:
        figure = new_figure(figsize=(9, sum(heights)))
    except ImportError:
        return "no picture: pip install 'natural-langevin[bench]' for matplotlib"
    places = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for place, (name, rows) in zip(places, bars, strict=False):
        _bars(place.subplots(), name, rows)
    if axes:
        _curves(places[-1].subplots(1, len(axes), sharey=True), axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return str(path)


def _curves(panels: Any, axes: dict[str, Any]) -> None:
    """QDOP's ratio to eager SGD as one thing grows."""
    for panel, (name, part) in zip(panels, axes.items(), strict=True):
        points = [p for p in part["points"] if "ratio" in p["qdop"]]
        sizes, ratios = [p["size"] for p in points], [p["qdop"]["ratio"] for p in points]
        panel.plot(sizes, ratios, "o-", color="#1b6ca8")
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        panel.set_xlabel(name)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("QDOP ÷ eager SGD")


def _bars(axis: Any, title: str, rows: list[dict[str, Any]]) -> None:
    names = [f"{r['name']}, {r['chains']} chains" if r["chains"] > 1 else r["name"] for r in rows]
    ratios = [r["ratio"] for r in rows]
    low = [max(0.0, r["ratio"] - r["ratio_spread"]["q1"]) for r in rows]
    high = [max(0.0, r["ratio_spread"]["q3"] - r["ratio"]) for r in rows]
    colours = ["#1b6ca8" if r["ours"] else "#9aa0a6" for r in rows]
    axis.barh(names, ratios, xerr=[low, high], color=colours, ecolor="#404040", capsize=2)
    axis.invert_yaxis()
    axis.axvline(1, color="#404040", linewidth=0.8)
    for place, ratio in enumerate(ratios):
        axis.text(ratio, place, f"{ratio:.2f} ", va="center", ha="right", color="white", fontsize=8)
    axis.set_title(f"{title}: time per chain-step ÷ eager SGD", fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
