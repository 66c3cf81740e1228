"""Simulation-based calibration passes a sampler that is right, and fails ones that are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from natural_langevin import likelihoods, preconditioners, priors
from natural_langevin.cli.app import app
from natural_langevin.cli.experiments.sbc import Calibration, calibrate

X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))


def run(likelihood=None, **options) -> Calibration:
    usual = {
        "prior": priors.Gaussian(0.5),
        "preconditioner": preconditioners.FullFisher(),
        "step_size": 0.1,
        "simulations": 160,
        "draws": 7,
        "burn_in": 40,
        "thin": 25,
        "seed": 3,
    }
    return calibrate(
        nn.Linear(2, 1), likelihood or likelihoods.Gaussian(sigma=0.5), X, **usual | options
    )


@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(0.5), likelihoods.Bernoulli()])
def test_a_sampler_that_is_right_is_calibrated(likelihood) -> None:
    found = run(likelihood)
    assert found.passed, str(found)
    assert set(found.ranks) == {
        *(f"output at row {r}" for r in (0, 4, 9, 14, 19)),
        "mean square of weight",
        "mean square of bias",
    }
    assert "nothing suspicious" in str(found)


def test_a_posterior_too_wide_or_too_narrow_is_found() -> None:
    """T = 4 doubles its standard deviations: ranks in the middle; T = 1/4 halves them."""
    wide, narrow = run(temperature=4.0), run(temperature=0.25)
    for found in (wide, narrow):
        assert not found.passed
        assert "not uniform" in str(found)
    assert wide.spread("output at row 0") < 0.7
    assert narrow.spread("output at row 0") > 1.3


def test_uniform_ranks_have_uniform_p_values() -> None:
    """400 quantities of exact ranks: a hundredth of them below .01, within 4 sd; bins of unequal
    width where the draws do not divide."""
    generator = torch.Generator().manual_seed(0)
    ranks = {str(k): torch.randint(0, 11, (60,), generator=generator) for k in range(400)}
    p = torch.tensor(list(Calibration(ranks, draws=10).p_values().values()))
    assert int((p < 0.01).sum()) <= 4 + 4 * 2
    assert 0.4 < float(p.mean()) < 0.6


def test_shares_that_are_no_binary_fractions_sum_to_all_simulations() -> None:
    """A sixth of 160 rounds: of shares in float32 SciPy refused the sum."""
    ranks = {"one": torch.arange(160) % 6}
    assert Calibration(ranks, draws=5).p_values()["one"] > 0.99


def test_a_likelihood_that_learns_is_refused() -> None:
    with pytest.raises(ValueError, match="learns its noise"):
        run(likelihoods.Gaussian("rmse"))


def test_the_command() -> None:
    common = ["sbc", "--simulations", "48", "--draws", "5", "--rows", "15"]
    done = CliRunner().invoke(app, [*common, "--burn-in", "60", "--thin", "30"])
    assert done.exit_code == 0, done.output
    assert "48 simulations, 5 draws each" in done.output
    wrong = CliRunner().invoke(app, [*common, "--metric", "best"])
    assert wrong.exit_code != 0
    assert "--metric must be one of" in wrong.output
