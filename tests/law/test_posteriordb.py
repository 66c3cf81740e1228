"""Posteriors of Stan's reference collection: means within .1 sd, and sds within 5 %.

``benchmarks/posteriordb.py`` has all models and metrics; here those that a few seconds settle. To
the tolerance of the claim comes the Monte-Carlo error, at ``monte_carlo``'s quantile.
"""

from __future__ import annotations

import pytest
from monte_carlo import quantile
from posteriordb_models import load

from natural_langevin import preconditioners

CASES = [
    ("arK", preconditioners.FullFisher, None),
    ("mesquite", preconditioners.UnitFisher, None),
    ("sblrc", preconditioners.DiagonalFisher, None),
    ("eight schools", preconditioners.DiagonalFisher, None),
    ("sblrc", preconditioners.QuasiDiagonalFisher, 50),
]


@pytest.mark.parametrize(
    ("name", "metric", "batch"), CASES, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_the_reference_posterior(name: str, metric, batch: int | None) -> None:
    """256 chains; the metric adapts for 40 steps, and draws count from 100 steps later on. A step
    of .05 makes variances 2.5 % too large, and half the data per batch as much again."""
    model = load(name)
    posterior = model.sampler(preconditioner=metric(), step_size=0.05, chains=256).sample(
        (model.x, model.y), 240, batch_size=batch or len(model.x), burn_in=40, thin=10,
        progress=False,
    )  # fmt: skip
    found = model.errors({k: v[:, 10:] for k, v in posterior.samples.items()})
    sigmas = quantile(2 * len(found))
    assert posterior.healthy == list(range(256))
    for name, error in found.items():
        assert abs(error.mean) < 0.1 + sigmas * error.mean_error, (name, error)
        assert abs(error.sd) < 0.05 + sigmas * error.sd_error, (name, error)
