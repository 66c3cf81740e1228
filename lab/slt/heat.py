"""What minibatches add to a learning coefficient, measured: runs with fifths of the data, and with
all data in every step, of the same deep linear networks with the same step size.

    python -m lab.slt.heat --out results/slt-heat.json --count 28 --jobs 14

``measured`` is the difference of the two, ``said`` what ``slt.llc`` takes off.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

from lab.command import at_least, study
from lab.results import complete
from lab.slt.linear_networks import network
from natural_langevin import likelihoods, slt

ROWS, CHAINS = 4000, 8


def row(seed: int, *, steps: int) -> dict[str, Any]:
    """One network by both."""
    of = network(seed, rows=ROWS)
    data, found = (of.x.float(), of.y.float()), []
    eta: dict[str, float] = {}
    for batch in (ROWS // 5, ROWS):
        one = slt.llc(
            of.model(), likelihoods.Gaussian(sigma=1.0), data, chains=CHAINS, steps=steps,
            draws=400, batch_size=batch, seed=seed, recipe="auto", **eta,
        )  # fmt: skip
        found.append(one)
        plan = one.posterior.plan
        assert plan is not None
        eta = eta or {"step_size": float(plan.step_size)}  # type: ignore[arg-type]
    few, all_of_them = found
    raw = few.value + few.minibatch_bias
    of_noise = few.error**2 - (few.minibatch_bias / 2) ** 2
    return {
        "seed": seed, "widths": of.widths, "weights": few.weights, **eta,
        "value": all_of_them.value, "measured": raw - all_of_them.value,
        "error": math.sqrt(max(0.0, of_noise) + all_of_them.error**2),
        "said": few.minibatch_bias, "rhat": [few.rhat, all_of_them.rhat],
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The factor between what is measured and what is said, by least squares, and its error."""
    weights = [r["error"] ** -2 for r in rows]
    size = sum(w * r["said"] ** 2 for w, r in zip(weights, rows, strict=True))
    both = sum(w * r["said"] * r["measured"] for w, r in zip(weights, rows, strict=True))
    return {"networks": len(rows), "factor": both / size, "error": size**-0.5}


def main() -> None:
    """Runs the networks that the file does not have yet."""
    parser = study(__doc__, jobs="networks")
    parser.add_argument("--count", type=at_least(1), default=28)
    parser.add_argument("--steps", type=at_least(10), default=6000)
    given = parser.parse_args()
    complete(
        given.out, {"steps": given.steps, "rows": ROWS}, product(range(given.count)),
        partial(row, steps=given.steps), by=("seed",), jobs=given.jobs, summary=summary,
    )  # fmt: skip


if __name__ == "__main__":
    main()
