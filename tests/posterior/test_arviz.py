"""Posteriors in the groups of ArviZ, as it is before version 1 and since, and the log density of
weights."""

from __future__ import annotations

import functools
import importlib
import math
import sys
import warnings
from typing import Any

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


@functools.cache
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


@pytest.fixture(params=["arviz", "arviz_stats"])
def stats(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The statistics of ArviZ before version 1, and since, of which Python 3.11 has the parts."""
    if request.param == "arviz":
        pytest.importorskip("arviz", minversion="0.20")
        found = import_arviz()
    else:
        found = pytest.importorskip("arviz_stats")
        pytest.importorskip("arviz_base")
        monkeypatch.setitem(sys.modules, "arviz", None)  # as where it is not installed
    return found


def groups_of(found: Any) -> set[str]:
    names = found.groups() if callable(found.groups) else found.groups
    return {name.strip("/") for name in names}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of ArviZ with a new pandas
def test_groups_for_loo_and_compare(stats: Any) -> None:
    x, y = line()
    _, posterior = regression()
    found = posterior.to_arviz(x[:3], data=(x, y))
    kind = "InferenceData" if stats.__name__ == "arviz" else "DataTree"
    assert type(found).__name__ == kind
    wanted = {"posterior", "posterior_predictive", "log_likelihood", "sample_stats"}
    assert wanted <= groups_of(found)
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
    table = stats.compare({"wide": wide.to_arviz(data=(x, y)), "right": found})
    assert list(table.index) == ["right", "wide"]
    loo = stats.loo(found)
    pointwise = torch.tensor(found.log_likelihood["y"].values).flatten(0, 1).double()
    # Importance weights of 800 draws: what a point predicts of itself is no less than LOO.
    assert float(getattr(loo, "elpd_loo", getattr(loo, "elpd", None))) < float(
        (pointwise.logsumexp(0) - math.log(800)).sum()
    )


def test_leave_one_out_ranks_are_uniform(stats: Any) -> None:
    """The model is right: 40 points, whose ranks among their own predictions are uniform; the
    Kolmogorov-Smirnov statistic of 40 exceeds .257 once in a hundred."""
    data = line()
    found = regression()[1].to_arviz(data=data)
    if stats.__name__ == "arviz":
        pit = stats.loo_pit(idata=found, y="y", y_hat="y")
    else:
        pit = stats.loo_pit(found, var_names="y")["y"].values
    ranks = torch.tensor(pit).flatten().sort().values
    assert len(ranks) == 40
    grid = torch.arange(1, 41) / 40
    assert max((grid - ranks).max(), (ranks - grid + 1 / 40).max()) < 0.257


@pytest.mark.parametrize("package", ["arviz", "arviz_plots"])
def test_rank_plots(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:  # arviz_plots 0.8 does not start with matplotlib 3.11
            plots = importlib.import_module(package)
        except (ImportError, AttributeError) as error:
            pytest.skip(f"{package}: {error}")
        if package == "arviz_plots":
            monkeypatch.setitem(sys.modules, "arviz", None)
        found = small_run.sample().to_arviz()
        assert plots.plot_rank(found, var_names=["0.bias"]) is not None


def test_without_any_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("arviz", "arviz_base"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"natural-langevin\[diagnostics\]"):
        small_run.sample().to_arviz()


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
    assert "posterior_predictive" not in groups_of(posterior.to_arviz(data=(x, y)))


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
    assert "sample_stats" not in groups_of(loaded.to_arviz(data=line()))


def test_the_chains_of_one_law_alone() -> None:
    """Hot chains of a ladder were draws of the posterior like all others, and a grid was one."""
    pytest.importorskip("arviz")
    x, y = line()

    def run(**options: Any) -> Posterior:
        sampler = Langevin(
            nn.Linear(2, 1), likelihoods.Gaussian(sigma=0.3), prior=priors.Gaussian(2.0),
            temperature=torch.tensor([4.0, 1.0, 2.0, 1.0]), chains=4, step_size=0.01,
        )  # fmt: skip
        return sampler.sample((x, y), 40, batch_size=40, thin=4, progress=False, **options)

    ladder, grid = run(exchange=5), run()
    found = ladder.to_arviz(x[:3], data=(x, y))
    assert (found.posterior["weight"].values == ladder.samples["weight"][[1, 3]].numpy()).all()
    own = ladder.predict(x[:3], chains=[1, 3], calibrated=False).samples.unflatten(0, (2, -1))
    assert (found.posterior["prediction"].values == own.numpy()).all()
    assert found.log_likelihood["y"].shape == (2, 10, 40, 1)
    lp = ladder.log_density((x, y))[[1, 3]]
    torch.testing.assert_close(torch.tensor(found.sample_stats["lp"].values), lp)
    with pytest.raises(ValueError, match="3 temperatures, powers or priors"):
        grid.to_arviz()
    one = grid.to_arviz(data=(x, y), chains=[2])
    assert (one.posterior["weight"].values == grid.samples["weight"][[2]].numpy()).all()
    everything = grid.to_arviz(data=(x, y), chains="all")
    drawn = everything.posterior_predictive["y"].values[[2]]
    assert (one.posterior_predictive["y"].values == drawn).all()
