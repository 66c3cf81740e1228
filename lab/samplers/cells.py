"""What ``samplers.py`` measures: the cells of its table, on the problems of ``sampler_problems``.

All data in every batch, but for the heat. Times are CPU time of one thread. A cell that is written
already is not run again.

    cost      CPU time of a step (frozen metric, one chain) over that of torch.optim.SGD, by network
    bias      mean of the squared weights, whitened by the exact covariance, less 1
    ess       median over inputs of the effective sample size of predictions, per CPU-second
    gap       rms over inputs of the mean prediction's distance to the reference's, in its sds
    spread    mean over inputs of the ratio of standard deviations, less 1
    floor     of gap: what ESS draws here and those of the reference explain, sqrt(1/e + 1/e_ref)
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.results import finite
from lab.samplers.problems import (
    CHAINS,
    STEEPNESS,
    exact,
    predictions,
    problem,
    reference,
    run,
    sampler,
    starts,
    steepness,
    store_in,
)
from natural_langevin import models
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.diagnostics import mixing
from natural_langevin.dynamics import Adjusted, Integrator, NoseHoover, Overdamped, Underdamped

#: CPU-seconds of a cell's draws, the most of these, and steps between two.
BUDGET, MOST, THIN = 4.0, 800, 10
#: Parts of the data in a minibatch, where heat is measured.
PARTS = 4
#: eta lambda of the smaller steps, and the metrics they are tried with (--smaller).
SMALLER = (0.2, 0.1, 0.05)
NATIVE = ["Euclidean", "RMSProp", "DiagonalFisher", "QuasiDiagonalFisher", "UnitFisher"]

METRICS = [
    "Euclidean", "RMSProp", "DiagonalFisher", "QuasiDiagonalFisher", "UnitFisher",
    "KroneckerFisher", "EigenKroneckerFisher", "FullFisher",
]  # fmt: skip
DYNAMICS: dict[str, Integrator] = {
    "Overdamped": Overdamped(),
    "Underdamped, Euler": Underdamped(0.1),
    "BAOAB": Underdamped(0.1, "baoab"),
    "BAOAB, large": Underdamped(0.1, "baoab"),
    "UBU": Underdamped(0.1, "ubu"),
    "NoseHoover": NoseHoover(0.1),
    "Adjusted": Adjusted(),
    "Adjusted, 10 steps": Adjusted(steps=10),
}
#: Measured with minibatches only, for which they are made.
CORRECTED: dict[str, Integrator] = {
    "Overdamped, heat corrected": Overdamped(correct_heat=True),
    "Underdamped, heat corrected": Underdamped(0.1, correct_heat=True),
}


def eta_of(name: str, metric: str, dynamics: str, steep: float = STEEPNESS) -> float:
    """The step size at which eta lambda is ``steep``, or five times that for the large steps."""
    return (5 if dynamics == "BAOAB, large" else 1) * steep / steepness(name, metric)


def squares(kept: dict[str, Tensor]) -> tuple[float, float]:
    """Mean of the whitened squares, less 1, and its Monte-Carlo error from the chains."""
    mean, covariance = exact()
    theta = torch.cat([kept["weight"][:, :, 0], kept["bias"]], -1).double()
    root = torch.linalg.cholesky(covariance)
    z = torch.linalg.solve_triangular(root, (theta - mean).flatten(0, 1).T, upper=False)
    each = z.square().mean(0).reshape(theta.shape[:2]).mean(1)
    return float(each.mean()) - 1, float(each.std() / math.sqrt(len(each)))


def explored(name: str, dynamics: str, metric: str, steep: float = STEEPNESS) -> dict[str, Any]:
    """Effective samples per CPU-second; bias where the law is known, distance where it is not."""
    eta = eta_of(name, metric, dynamics, steep)
    of = sampler(name, metric, DYNAMICS[dynamics], eta, CHAINS)
    way, kept, seconds, steps = run(
        of, name, starts(name, CHAINS), thin=THIN, draws=MOST, budget=BUDGET
    )
    f = predictions(name, kept)
    row: dict[str, Any] = {
        "eta": eta, "way": way, "steps": steps, "cpu_seconds": round(seconds, 3),
        "cpu_us_per_step": 1e6 * seconds / steps,
    }  # fmt: skip
    if not bool(torch.isfinite(f).all()):
        return row | {"diverged": int((~torch.isfinite(f).flatten(1).all(1)).sum())}
    followed = mixing(f)
    ess = float(torch.tensor(followed.ess).median())
    row |= {
        "draws": f.shape[1], "ess": ess, "ess_per_second": ess / seconds,
        "rhat": float(followed.rhat.max()),
    }  # fmt: skip
    if name == "line":
        row["bias"], row["bias_error"] = squares(kept)
        return row
    other = predictions(name, reference(name)["kept"]).flatten(0, 1)
    own, sd = f.flatten(0, 1), other.std(0)
    gap = (own.mean(0) - other.mean(0)) / sd
    return row | {
        "gap": float(gap.square().mean().sqrt()), "spread": float((own.std(0) / sd).mean()) - 1,
        "floor": math.sqrt(1 / ess + 1 / reference(name)["ess"]),
        "reference_ess": reference(name)["ess"], "reference_rhat": reference(name)["rhat"],
    }  # fmt: skip


def smaller() -> dict[str, Any]:
    """BAOAB on both networks at steps of eta lambda = SMALLER: distances, and no times."""
    kept = ("eta", "steps", "draws", "ess", "rhat", "gap", "floor", "spread", "diverged")
    here, rows = origin("cpu"), []
    for name in ("moons", "wave"):
        for metric in NATIVE:
            for steep in SMALLER:
                found = explored(name, "BAOAB", metric, steep)
                row = {"problem": name, "metric": metric, "steepness": steep}
                rows.append(finite(row | {k: found[k] for k in kept if k in found}))
                print(json.dumps(rows[-1]), flush=True)
    return {"origin": here, "rows": rows}


def heated(dynamics: str, metric: str) -> dict[str, Any]:
    """The linear regression's bias with a quarter of the data in a batch."""
    of = sampler(
        "line", metric, (DYNAMICS | CORRECTED)[dynamics], eta_of("line", metric, dynamics), CHAINS
    )
    way, kept, _, steps = run(
        of, "line", starts("line", CHAINS), thin=THIN, draws=MOST,
        budget=BUDGET / 2, batch=len(problem("line").x) // PARTS,
    )  # fmt: skip
    bias, error = squares(kept)
    ess = float(torch.tensor(mixing(predictions("line", kept)).ess).median())
    return {"way": way, "steps": steps, "bias": bias, "bias_error": error, "ess": ess}


def cost(dynamics: str, metric: str) -> dict[str, Any]:
    """One chain on the moons' network, steps of a frozen metric, between two readings of SGD's."""
    of = sampler("moons", metric, DYNAMICS[dynamics], 1e-5, 1)  # the time depends on no eta
    before = _descent()
    way, _, seconds, steps = run(
        of, "moons", None, thin=10, draws=40, burn_in=20, budget=0.1, least=4
    )
    step, sgd = 1e6 * seconds / steps, (before + _descent()) / 2
    return {"way": way, "cpu_us_per_step": step, "sgd_us_per_step": sgd, "ratio": step / sgd}


def _descent(steps: int = 150) -> float:
    """CPU microseconds of a plain step of torch.optim.SGD on the same network and data."""
    case = problem("moons")
    net = models.mlp(2, 2, (16,), activation=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    begin = 0.0
    for step in range(steps + 20):
        if step == 20:
            begin = time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(case.x), case.y).backward()
        optimizer.step()
    return 1e6 * (time.process_time() - begin) / steps


def cells() -> Iterator[tuple[str, str, str]]:
    """(kind, dynamics, metric), the longest first; a step's cost is read last, when others are
    done."""
    metrics = sorted(METRICS, key=lambda m: m in ("Euclidean", "RMSProp"))
    for kind in ("wave", "moons", "line", "heat", "cost"):
        names = [*DYNAMICS, *CORRECTED] if kind == "heat" else DYNAMICS
        for metric, name in product(metrics, names):
            if kind != "heat" or not name.startswith("Adjusted"):  # it takes all data
                yield kind, name, metric


def measured(kind: str, dynamics: str, metric: str, *, folder: Path) -> dict[str, Any]:
    """One cell; what cannot be run says why. References are in ``folder``."""
    store_in(folder)
    how = {"cost": cost, "heat": heated}.get(kind, partial(explored, kind))
    row: dict[str, Any] = {"kind": kind, "dynamics": dynamics, "metric": metric}
    try:
        row |= how(dynamics, metric)
    except (ValueError, TypeError, torch.linalg.LinAlgError) as error:
        row["error"] = f"{type(error).__name__}: {error}"
    return finite(row)
