"""Section "growth": how the cost of a QDOP step grows with width, depth, batch and chains.

One thing is changed at a time from the paper's network. Every point is measured beside eager SGD of
the same network and batch, interleaved. ``exponent`` is the least-squares slope of log time
against log size: 0 where nothing is paid, 1 where the cost is proportional.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from lab.speed.contenders import PLAIN, QDOP
from lab.speed.measure import Say, interleave, make_ready, summary
from lab.speed.problems import problem
from lab.speed.settings import Settings

#: A GPU is busy only with several chains.
BASE_CHAINS = {"cpu": 1, "cuda": 12}
CHAINS = {"cpu": (1, 2, 4, 8), "cuda": (1, 4, 12, 64, 256)}


class Point(NamedTuple):
    """One size: hidden units of each layer, minibatch and number of chains."""

    hidden: tuple[int, ...]
    batch_size: int
    chains: int


def axes(base: Point, chains: Sequence[int]) -> dict[str, list[tuple[int, Point]]]:
    """For every axis, (size, point); the base is on all of them."""
    width, batch = base.hidden[0], base.batch_size
    depth = len(base.hidden)
    widths = [max(1, width // 4), max(1, width // 2), width, 2 * width]
    return {
        "width": [(w, base._replace(hidden=(w,) * depth)) for w in widths],
        "depth": [(d, base._replace(hidden=(width,) * d)) for d in sorted({1, depth, 2 * depth})],
        "batch": [(b, base._replace(batch_size=b)) for b in (max(1, batch // 4), batch, 4 * batch)],
        "chains": [(c, base._replace(chains=c)) for c in chains],
    }


def section(settings: Settings, say: Say) -> dict[str, Any]:
    """Seconds per step along every axis of sizes, each axis through the same base."""
    kind = torch.device(settings.device).type
    sizes = {"hidden": (400, 400), "batch_size": 100, **settings.sizes}
    base = Point(tuple(sizes.pop("hidden")), sizes.pop("batch_size"), BASE_CHAINS[kind])
    measured: dict[Point, dict[str, Any]] = {}
    found = {}
    for axis, points in axes(base, CHAINS[kind]).items():
        rows = []
        for size, point in points:
            if point not in measured:
                measured[point] = _measure(settings, point, sizes, say)
            rows.append({"size": size, **measured[point]})
        found[axis] = {"points": rows, "exponent": exponent(rows)}
    return {"method": __doc__, "base": base._asdict(), "axes": found}


def _measure(settings: Settings, point: Point, sizes: dict[str, Any], say: Say) -> dict[str, Any]:
    task = problem(
        "mlp", device=settings.device, seed=settings.seed, hidden=point.hidden,
        batch_size=point.batch_size, **sizes,
    )  # fmt: skip
    say(f"growth: hidden {point.hidden}, batch {point.batch_size}, {point.chains} chains")
    rows = make_ready(task, [PLAIN[0], replace(QDOP, chains=point.chains)], say)
    interleave(
        task,
        rows,
        repeats=max(3, settings.repeats // 2),
        seconds=settings.block_seconds / 2,
        say=lambda line: None,
    )
    result = {
        "hidden": list(point.hidden),
        "batch_size": point.batch_size,
        "parameters": task.parameters,
        "sgd": summary(rows[0], rows[0]),
        "qdop": summary(rows[1], rows[0]),
    }
    del rows
    gc.collect()
    if task.device.type == "cuda":
        torch.cuda.empty_cache()
    return result


def exponent(rows: list[dict[str, Any]]) -> float | None:
    """p where the time of a step of all chains grows as size^p, fitted on logarithmic axes."""
    known = [row for row in rows if row["qdop"]["status"] == "measured"]
    if len(known) < 2:
        return None
    times = [
        row["qdop"]["chains"] * row["qdop"]["microseconds_per_chain_step"]["median"]
        for row in known
    ]
    sizes = [row["size"] for row in known]
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
