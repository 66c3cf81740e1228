"""Posteriors in ArviZ's groups, and the log density of weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import small_run
from natural_langevin import Langevin, Posterior, likelihoods, priors
from natural_langevin.diagnostics import import_arviz


def line(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, generator=generator)
    return x, x[:, :1] + 0.3 * torch.randn(count, 1, generator=generator)


def regression(sigma: float = 0.3) -> tuple[Langevin, Posterior]:
    model = nn.Linear(2, 1)
    with torch.no_grad():  # far from the data, squared residuals would rule the metric for long
        model.weight.copy_(torch.tensor([[1.0, 0.0]]))
        model.bias.zero_()
    sampler = Langevin(
        model, likelihoods.Gaussian(sigma=sigma), prior=priors.Gaussian(2.0), chains=4,
        step_size=0.08,
    )  # fmt: skip
    return sampler, sampler.sample(line(), 1500, batch_size=40, burn_in=300, thin=6, progress=False)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of ArviZ with a new pandas
def test_groups_for_loo_and_compare() -> None:
    x, y = line()
    _, posterior = regression()
    found = posterior.to_arviz(x[:3], data=(x, y))
    assert {"posterior", "posterior_predictive", "log_likelihood", "sample_stats"} <= set(
        found.groups()
    )
    assert found.posterior["prediction"].shape == (4, 200, 3, 1)
    assert found.sample_stats["lp"].shape == (4, 200)
    assert found.observed_data["y"].shape == (40, 1)
    drawn = found.posterior_predictive["y"].values
    assert drawn.shape == (4, 200, 40, 1)
    # One y~ of each network: mean and variance of the predictive distribution, 800 draws of each.
    law = posterior.predict_dist(x)
    gap = torch.tensor(drawn).double().mean((0, 1)) - law.mean
    assert (gap.abs() < 5 * (law.variance / 400).sqrt()).all()
    spread = torch.tensor(drawn).double().var((0, 1)) / law.variance
    assert (spread.mean() - 1).abs() < 5 * math.sqrt(2 / 800)
    wide = regression(sigma=1.0)[1]
    az = import_arviz()
    table = az.compare({"wide": wide.to_arviz(data=(x, y)), "right": found})
    assert list(table.index) == ["right", "wide"]
    assert az.loo(found).elpd_loo < 0


def test_draws_of_classes_have_the_networks_probabilities() -> None:
    x, y = small_run.data()
    posterior = small_run.sample(400, burn_in=0, sampler={"step_size": 1e-2})
    drawn = torch.tensor(posterior.to_arviz(data=(x, y)).posterior_predictive["y"].values)
    assert drawn.shape == (2, 400, 60)
    p = posterior.predict(x).mean[:, 1]
    error = (p * (1 - p) / 800).sqrt()
    assert ((drawn.double().mean((0, 1)) - p).abs() < 5 * error + 1e-3).all()


def test_a_loss_alone_predicts_no_targets() -> None:
    x, y = small_run.data()
    loss = likelihoods.LogLoss(lambda o, y: nn.functional.cross_entropy(o, y, reduction="none"))
    sampler = Langevin(small_run.network(), loss, step_size=1e-3, chains=2)
    posterior = sampler.sample((x, y), 10, batch_size=20, progress=False)
    assert "posterior_predictive" not in posterior.to_arviz(data=(x, y)).groups()


def test_log_density_is_the_formula_and_its_gradient_the_drift() -> None:
    x, y = line()
    sampler, posterior = regression()
    one = {k: v[1, 5].clone().requires_grad_() for k, v in posterior.samples.items()}
    found = sampler.log_density(one, (x, y))
    residual = (x @ one["weight"].T + one["bias"] - y) / 0.3
    wanted = -0.5 * (residual.square() + math.log(2 * math.pi * 0.09)).sum()
    for w in one.values():
        wanted = wanted - 0.5 * (w.square() / 2 + math.log(4 * math.pi)).sum()
    torch.testing.assert_close(found, wanted)
    found.backward()
    assert torch.allclose(one["bias"].grad, -(residual / 0.3).sum() - one["bias"] / 2, rtol=1e-4)
    every = posterior.log_density((x, y))
    assert every.shape == (4, 200)
    assert float(every[1, 5]) == pytest.approx(float(found.detach()), rel=1e-5)
    several = sampler.log_density({k: v[1, 4:6] for k, v in posterior.samples.items()}, (x, y))
    torch.testing.assert_close(several.double(), every[1, 4:6], rtol=1e-5, atol=1e-4)
    double = Langevin(
        nn.Linear(2, 1), likelihoods.Gaussian(sigma=0.3), prior=priors.Gaussian(2.0), num_data=80
    )
    prior_alone = float(double.log_density(one, (x[:1], y[:1])).detach())
    assert math.isfinite(prior_alone)
    lp = posterior.to_arviz(data=(x, y)).sample_stats["lp"].values
    torch.testing.assert_close(torch.tensor(lp), every)


def test_weights_that_do_not_fit_are_refused(tmp_path) -> None:
    sampler, posterior = regression()
    with pytest.raises(ValueError, match=r"exactly \['bias', 'weight'\], got \['weight'\]"):
        sampler.log_density({"weight": torch.zeros(1, 2)}, line())
    with pytest.raises(ValueError, match="must have the shapes"):
        sampler.log_density({"weight": torch.zeros(2, 1), "bias": torch.zeros(1)}, line())
    posterior.save(tmp_path / "p")
    loaded = Posterior.load(tmp_path / "p", nn.Linear(2, 1))
    with pytest.raises(ValueError, match="needs the prior"):
        loaded.log_density(line())
    assert "sample_stats" not in loaded.to_arviz(data=line()).groups()
