"""Trajectories whose inner steps the native engine takes: the numbers of the general steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, Posterior, likelihoods, models, preconditioners, priors
from natural_langevin.dynamics import Adjusted
from natural_langevin.preconditioners import Preconditioner

METRICS = (
    preconditioners.Euclidean(), preconditioners.RMSProp(), preconditioners.DiagonalFisher(),
    preconditioners.QuasiDiagonalFisher(targets="model"), preconditioners.UnitFisher(),
)  # fmt: skip


def run(metric: Preconditioner, compile: bool | str, **more) -> Posterior:  # type: ignore[no-untyped-def]
    """Trajectories of seven steps, which draws and looks cut."""
    torch.manual_seed(0)
    x = torch.randn(30, 3, dtype=torch.float64)
    y = torch.sin(x[:, :1]) + 0.1 * torch.randn(30, 1, dtype=torch.float64)
    network = models.mlp(3, 1, (6,), activation=nn.Tanh).double()
    sampler = Langevin(
        network, likelihoods.Gaussian(0.1), prior=priors.Gaussian(1.0), preconditioner=metric,
        dynamics=Adjusted(7), step_size=1e-3, chains=3, compile=compile, temperature=0.5,
        likelihood_power=0.7, mean_rate=0.01,
    )  # fmt: skip
    given = {"steps": 120, "burn_in": 60, "thin": 3} | more
    return sampler.sample((x, y), batch_size=30, progress=False, **given)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: type(m).__name__)
def test_the_numbers_of_the_general_steps(metric: Preconditioner) -> None:
    found, expected = run(metric, "auto"), run(metric, False)
    assert found.config["execution"] == "native"
    assert expected.config["execution"] == "eager"
    for name, right in expected.samples.items():
        torch.testing.assert_close(found.samples[name], right, rtol=1e-6, atol=1e-8)
    for name in ("acceptance", "step_size_factor"):
        assert found.config[name] == pytest.approx(expected.config[name], rel=1e-6)
    for name, right in expected.mean.items():
        torch.testing.assert_close(found.mean[name], right, rtol=1e-6, atol=1e-8)


def test_a_checkpoint_changes_no_bit(tmp_path: Path) -> None:
    metric = preconditioners.QuasiDiagonalFisher()
    plain, kept = run(metric, "auto"), run(metric, "auto", checkpoint=tmp_path / "run", every=10)
    for name, right in plain.samples.items():
        assert torch.equal(kept.samples[name], right)


def test_what_is_told_is_where_the_chain_stands() -> None:
    """Proposals of far too large steps are rejected: their losses are nobody's."""
    torch.manual_seed(0)
    x, y = torch.randn(20, 2), torch.randn(20, 1)
    told = list[float]()
    sampler = Langevin(
        nn.Linear(2, 1), likelihoods.Gaussian(0.1), prior=priors.Gaussian(1.0),
        dynamics=Adjusted(5), step_size=100.0, chains=2,
    )  # fmt: skip
    sampler.sample(
        (x, y), steps=200, burn_in=2, batch_size=20, progress=False,
        callback=lambda look: told.extend(look.loss.tolist()),
    )  # fmt: skip
    assert told
    assert max(told) < 1e6
