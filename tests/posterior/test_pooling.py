"""What is pooled and averaged, how well it is known, and what goes to ArviZ."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods, priors

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def posterior(**options):
    usual = {"step_size": 1e-2, "chains": 4, "prior": priors.Gaussian(1.0)}
    sampler = Langevin(nn.Linear(2, 2), likelihoods.Categorical(), **usual | options)
    return sampler.sample((X, Y), 60, batch_size=10, burn_in=20, thin=2, progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": torch.tensor([1.0, 1.0, 0.1, 0.1])},
        {"prior": priors.Gaussian(torch.tensor([1.0, 1.0, 2.0, 2.0]))},
    ],
    ids=["temperature", "prior"],
)
def test_different_posteriors_are_pooled_only_where_it_is_asked_for(options: dict) -> None:
    found = posterior(**options)
    for call in (
        lambda: found.predict(X),
        lambda: found.evaluate(X, Y),
        lambda: found.predict_dist(X),
        lambda: found.mean_network(),
        lambda: found.log_likelihood(X, Y),
    ):
        with pytest.raises(ValueError, match=r"choose with chains=\[0, 1\].*chains=\"all\""):
            call()
    some, other = (found.predict(X, chains=c) for c in ([0, 1], [2, 3]))
    every = found.predict(X, chains="all")
    assert some.samples is not None
    assert some.samples.shape[0] == 2 * found.draws
    torch.testing.assert_close(every.mean, (some.mean + other.mean) / 2)
    with pytest.raises(ValueError, match=r"among 0 \.\. 3, got \[4\]"):
        found.predict(X, chains=[4])


def test_chains_alike_are_pooled_and_may_be_chosen() -> None:
    found = posterior()
    whole, first = found.predict(X), found.predict(X, chains=[0])
    assert whole.samples is not None
    torch.testing.assert_close(first.mean, whole.samples[: found.draws].mean(0))


def test_the_mean_of_the_draws_is_that() -> None:
    found = posterior()
    for name, value in found.sample_mean.items():
        torch.testing.assert_close(value, found.samples[name].mean(1))
    network = found.mean_network(1, average="samples")
    torch.testing.assert_close(network.weight.detach(), found.samples["weight"][1].mean(0))
    with pytest.raises(ValueError, match='"running" or "samples", got \'late\''):
        found.mean_network(average="late")


def test_predictions_say_how_well_they_are_known() -> None:
    found = posterior().predict(X)
    assert found.error is not None
    assert found.error.shape == found.mean.shape
    assert bool((found.error > 0).all())
    assert posterior().predict(X, keep_samples=False).error is None


def test_scores_carry_their_monte_carlo_error() -> None:
    scores = posterior().evaluate(X, Y)
    assert 0 < scores.nll_error < scores.nll
    assert "Monte-Carlo ±" in str(scores)


def test_a_run_at_half_the_step_size_is_compared_by_tensor() -> None:
    """Variances of the draws, by their definition; the same draws have a ratio of one."""
    pytest.importorskip("arviz")
    found, half = posterior(), posterior(step_size=5e-3, seed=1)
    halved = found.diagnose(X[:4], halved=half).halved
    assert set(halved) == {"predictions", "weight", "bias"}
    ratio = (found.samples["bias"].flatten(0, 1).double().var(0)
             / half.samples["bias"].flatten(0, 1).double().var(0))  # fmt: skip
    assert halved["bias"].ratio.value == pytest.approx(float(ratio.log().mean().exp()), rel=1e-6)
    same = found.diagnose(X[:4], halved=found).halved["predictions"]
    assert same.ratio.value == pytest.approx(1.0)
    assert not same.hot


def test_pointwise_log_likelihoods_go_to_arviz() -> None:
    arviz = pytest.importorskip("arviz")
    found = posterior()
    values = found.log_likelihood(X, Y, sample_batch=7)
    assert values.shape == (4, found.draws, 30)
    one = found.network(2, 5)(X).log_softmax(1)[torch.arange(30), Y]
    torch.testing.assert_close(values[2, 5], one.detach())
    idata = found.to_arviz(data=(X, Y))
    assert idata.log_likelihood["y"].shape == (4, found.draws, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 80 draws are few for importance weights
        loo = arviz.loo(idata, pointwise=True)
    assert loo.n_data_points == 30
    lppd = float((values.double().flatten(0, 1).logsumexp(0) - math.log(4 * found.draws)).sum())
    assert float(loo.elpd_loo) < lppd  # leaving a datum out never helps


def test_many_posteriors_are_counted_and_not_all_listed() -> None:
    found = posterior(chains=32, temperature=torch.linspace(0.5, 1.5, 32))
    with pytest.raises(ValueError, match=r"32 temperatures, powers or priors") as caught:
        found.predict(X)
    assert "chains=[0] (the others are [1], [2], [3], ...)" in str(caught.value)
    assert len(str(caught.value)) < 250
