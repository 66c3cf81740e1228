"""Stage results -> results.json: rows in the paper's order, beside the paper's numbers."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np

from natural_langevin._internal.version import __version__
from natural_langevin.cli.experiments.runner import BASELINES, STAGES, RunError, read_record
from natural_langevin.cli.experiments.table1 import defaults_stage
from natural_langevin.cli.experiments.table1.protocol import METHODS, paper_numbers
from natural_langevin.diagnostics import ranks

FORMAT = 1


def assemble(folder: Path, *, seconds: float | None) -> dict[str, Any]:
    """Reads the finished stages of a run folder."""
    config = read_record(folder / "config.json")
    stages = {n: read_record(folder / "stages" / f"{n}.json") for n in STAGES}
    try:
        return _assembled(config, stages, read_record(folder / "origin.json"), seconds)
    except (KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        raise RunError(
            f"a file in {folder / 'stages'} is damaged ({type(error).__name__}: {error}): remove "
            "them and run the same with --resume"
        ) from None


def _assembled(
    config: dict[str, Any], stages: dict[str, Any], origin: dict[str, Any], seconds: float | None
) -> dict[str, Any]:
    names = [*BASELINES, defaults_stage.NAME, *(m.name for m in METHODS)]
    finals = [stages[f"{name}-final"] for name in names]
    sgd = stages["sgd-final"]["seconds_per_update"]
    rows = []
    for final in finals:
        for row in final["rows"]:
            row["cost"] = row["seconds"]["mean"] / config["steps"] / sgd
            row["paper"] = paper_numbers(row["method"], row["estimate"], config["dataset"])
            rows.append(row)
    return {
        "format": FORMAT,
        "version": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **origin,
        "config": {**config, "seeds": list(range(config["seeds"]))},
        "deviations": config["deviations"],
        "total_seconds": seconds,
        "rows": sorted(rows, key=_order),
        "selection": [g for n in STAGES if n.endswith("-select") for g in stages[n]["grids"]],
        "curves": [f["curve"] for f in finals],
        "reliability": [f["reliability"] for f in finals],
        "ensemble_size": [f["ensemble_size"] for f in finals if "ensemble_size" in f],
        "ess": _effective_sizes(stages),
        "uncertain": next((f["uncertain"] for f in finals if "uncertain" in f), []),
    }


def _order(row: dict[str, Any]) -> tuple[bool, int]:
    """The paper's order: baselines, ensembles, posterior means; then everything else."""
    estimates = ["point", "ensemble", "mean", "pooled"]
    return row["group"] != "paper", estimates.index(row["estimate"]) if row[
        "group"
    ] == "paper" else 0


def _effective_sizes(stages: dict[str, Any]) -> list[dict[str, Any]]:
    """Function-space effective sample size of one chain: the median over probes."""
    out = []
    for method in METHODS:
        probes = stages[f"{method.name}-final"].get("probes")
        if probes is None:
            continue
        values = np.asarray(probes, dtype=float)  # (draw, chain, probe)
        if len(values) < 4 or not np.isfinite(values).all():
            continue
        sizes = [float(np.median(ranks.ess(values[None, :, c]))) for c in range(values.shape[1])]
        out.append(
            {
                "method": method.name,
                "label": method.label,
                "draws": len(values),
                "ess": float(np.mean(sizes)),
            }
        )
    return out
