"""The ratios as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plot(results: dict[str, Any], path: Path) -> str:
    """Writes the picture and returns its path, or says why there is none."""
    try:
        import matplotlib
    except ImportError:
        return "no picture: pip install 'natural-langevin[bench]' for matplotlib"
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    parts = results["sections"].get("steps", {}).get("networks", [])
    parts = [(p, [r for r in p["rows"] if "ratio" in r]) for p in parts]
    parts = [(p, rows) for p, rows in parts if rows]
    if not parts:
        return "no picture: no steps were measured"
    heights = [0.5 + 0.3 * len(rows) for _, rows in parts]
    figure, axes = plt.subplots(
        len(parts), 1, squeeze=False, figsize=(8, sum(heights) + 0.6 * len(parts)),
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    for axis, (part, rows) in zip(axes[:, 0], parts, strict=True):
        _bars(axis, part["network"], rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return str(path)


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
        axis.text(ratio, place, f"  {ratio:.2f}", va="center", fontsize=8)
    axis.set_title(f"{title}: time per chain-step ÷ eager SGD", fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
