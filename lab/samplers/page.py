"""The tables of lab/notes/samplers.md, from what ``samplers.py`` has measured."""

from __future__ import annotations

import math
from typing import Any

from lab.pages import markdown, with_part
from lab.samplers.cells import CORRECTED, DYNAMICS, METRICS, SMALLER
from lab.samplers.problems import CHAINS, PROBLEMS

#: What makes an effective sample size a reading: so many of every chain (disagreement of chains is
#: counted in it), and an estimate below its ceiling, S log10 S of S draws.
FEWEST = 5
#: R-hat of the reference's predictions, the largest, from which it is said beside distances.
SETTLED = 1.1


def exactness(rows: list[dict[str, Any]]) -> str:
    """The table of ``against_nuts``."""
    titles = ["gap", "floor", "gap over its error", "spread", "ESS", "ESS of NUTS",
              "R-hat", "R-hat of NUTS"]  # fmt: skip
    cells_of = [
        (
            PROBLEMS[r["problem"]], f"{r['gap']:.3f}", f"{r['floor']:.3f}", f"{r['z']:.2f}",
            f"{100 * r['spread']:+.1f} ± {100 * r['spread_error']:.1f} %", f"{r['ess']:,.0f}",
            f"{r['nuts_ess']:,.0f}", f"{r['rhat']:.2f}", f"{r['nuts_rhat']:.2f}",
        )
        for r in rows
    ]  # fmt: skip
    return markdown(titles, cells_of)


def read(cell: dict[str, Any]) -> bool:
    """Whether the run was long enough to say how effective its draws are."""
    draws = CHAINS * cell["draws"]
    ceiling = 0.99 * draws * math.log10(draws)
    return FEWEST * CHAINS <= cell["ess"] < ceiling


def table(found: list[dict[str, Any]]) -> str:
    """A row for every dynamics and metric of which something was measured."""
    known = {(c["dynamics"], c["metric"], c["kind"]): c for c in found}
    titles = [
        "cost of a step", "bias", "bias, quarter batches",
        *(f"ESS/s, {title}" for title in PROBLEMS.values()),
        *(f"gap and spread, {PROBLEMS[k]}" for k in ("moons", "wave")),
    ]  # fmt: skip
    lines = []
    for name in [*DYNAMICS, *CORRECTED]:
        for metric in METRICS:
            row = {k: known.get((name, metric, k)) for k in ("cost", "heat", *PROBLEMS)}
            if not any(row.values()):
                continue
            shown = [_cost(row["cost"]), _bias(row["line"]), _bias(row["heat"])]
            shown += [_rate(row[k]) for k in PROBLEMS]
            shown += [_distance(row[k]) for k in ("moons", "wave")]
            lines.append((name, f"`{metric}`", *shown))
    return markdown(["metric", *titles], lines, first="dynamics")


def spreads(rows: list[dict[str, Any]]) -> str:
    """The table of ``smaller``: spread by metric and step."""
    known = {(r["problem"], r["metric"], r["steepness"]): r for r in rows}
    names, metrics = (list(dict.fromkeys(r[k] for r in rows)) for k in ("problem", "metric"))
    titles = [f"{PROBLEMS[n]}, η λ = {steep:g}" for n in names for steep in SMALLER]
    cells_of = [
        (f"`{m}`", *(_spread(known[n, m, steep]) for n in names for steep in SMALLER))
        for m in metrics
    ]
    return markdown(titles, cells_of)


def _spread(row: dict[str, Any]) -> str:
    lost = "diverged" in row or _left(row)
    return "diverges" if lost else f"{100 * row['spread']:+.0f} %"


def order(rows: list[dict[str, Any]]) -> str:
    """The table of results/integrator-order.json."""
    head = [f"η λ = {size:g}" for size in rows[0]["step_sizes"]]
    lines = [
        (
            row["target"], row["integrator"],
            *(f"{100 * b:+.3f}" if abs(b) > 1e-9 else "0" for b in row["bias"]),
            "none" if row["order"] is None else f"{row['slope']:.3f}",
        )
        for row in rows
    ]  # fmt: skip
    return markdown(["integrator", *head, "order"], lines, first="target")


def filled(page: str, known: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The page with its tables."""
    page = with_part(with_part(page, "samplers", table(known["rows"])), "order", order(rows))
    page = with_part(page, "smaller", spreads(known.get("smaller", {"rows": []})["rows"]))
    return with_part(page, "nuts", exactness(known.get("nuts", [])))


def _cost(cell: dict[str, Any] | None) -> str:
    if cell is None or "ratio" not in cell:
        return "" if cell is None else "refused"
    return f"{cell['ratio']:.2g} {cell['way']}"


def _bias(cell: dict[str, Any] | None) -> str:
    if cell is None or "bias" not in cell:
        return _without(cell)
    return f"{100 * cell['bias']:+.1f} ± {100 * cell['bias_error']:.1f} %"


def _rate(cell: dict[str, Any] | None) -> str:
    if cell is None or "ess" not in cell or _left(cell):
        return _without(cell)
    return f"{cell['ess_per_second']:,.0f}" if read(cell) else "no reading"


def _distance(cell: dict[str, Any] | None) -> str:
    if cell is None or "gap" not in cell or _left(cell):
        return _without(cell)
    text = f"{cell['gap']:.2f} (floor {cell['floor']:.2f}), {100 * cell['spread']:+.0f} %"
    settled = cell["reference_rhat"] < SETTLED
    return text if settled else f"{text}; R-hat {cell['reference_rhat']:.2f}"


def _without(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    return "refused" if "error" in cell else "diverges"


def _left(cell: dict[str, Any]) -> bool:
    """Whether predictions are out of all proportion, though finite."""
    return cell.get("gap", 0.0) is None or cell.get("gap", 0.0) > 10
