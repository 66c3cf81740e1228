"""Diagnostics against draws whose answers are known."""

import numpy as np
import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods
from natural_langevin.diagnostics import diagnose
from natural_langevin.diagnostics.function_space import chain_distances
from natural_langevin.diagnostics.verdicts import rank_counts


def draws(offset: float = 0.0, rho: float = 0.0) -> torch.Tensor:
    """AR(1) draws of 4 chains, 400 each, 6 numbers; ``offset`` moves one chain away."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, 400, 6, generator=generator, dtype=torch.float64)
    values = [noise[:, 0]]
    for t in range(1, 400):
        values.append(rho * values[-1] + (1 - rho**2) ** 0.5 * noise[:, t])
    out = torch.stack(values, 1)
    out[0] += offset
    return out


def test_independent_draws_are_found_well():
    found = diagnose(draws(), {})
    assert found.verdicts == []
    # 1,600 independent draws: the estimate's relative error is a few per cent.
    assert 1200 < float(sorted(found.ess)[3]) < 2000


def test_the_effective_sample_size_of_an_autoregression():
    rho = 0.9
    expected = 1600 * (1 - rho) / (1 + rho)
    found = diagnose(draws(rho=rho), {})
    assert expected / 2 < float(sorted(found.ess)[3]) < expected * 2
    assert any("correlated" in v for v in found.verdicts)


def test_a_chain_elsewhere_is_noticed():
    found = diagnose(draws(offset=3.0), {})
    assert any("disagree" in verdict for verdict in found.verdicts)
    assert "R-hat" in str(found)


def test_a_diverged_chain_and_a_single_chain_are_said():
    found = diagnose(draws()[:1], {2: 70})
    text = str(found)
    assert "Chain 2 diverged at step 70" in text
    assert "at least two" in text


def test_too_few_draws_are_refused():
    with pytest.raises(ValueError, match="at least 4"):
        diagnose(draws()[:, :3], {})


def test_a_posterior_diagnoses_itself_and_goes_to_arviz():
    pytest.importorskip("arviz", reason="ArviZ is not installed")
    x = torch.rand(40, 2)
    sampler = Langevin(nn.Linear(2, 2), likelihoods.Categorical(), step_size=1e-2, chains=2)
    posterior = sampler.sample((x, x.argmax(1)), 100, batch_size=20, thin=2, progress=False)
    found = posterior.diagnose(x[:5], parameters=["*weight"])
    assert (found.chains, found.draws) == (2, 50)
    assert set(found.parameters) == {"weight"}
    assert found.parameters["weight"].rhat.shape == (4,)
    assert "Parameter weight: R-hat" in str(found)
    # Draws are two steps apart.
    tau = found.mixing.autocorrelation_time
    assert f"autocorrelation time {tau:.1f} draws, or {2 * tau:.0f} steps" in str(found)
    with pytest.raises(ValueError, match=r"no parameter matches \('body',\)"):
        posterior.diagnose(x[:5], parameters=["body"])
    assert posterior.to_arviz().posterior["weight"].shape == (2, 50, 2, 2)
    assert posterior.to_arviz(x[:3]).posterior["prediction"].shape == (2, 50, 3, 2)
    posterior.diverged[0] = 3
    assert posterior.to_arviz().posterior["weight"].shape == (1, 50, 2, 2)


def test_the_autocorrelation_time_of_an_autoregression():
    """(1 + rho) / (1 - rho) draws."""
    assert 19 / 1.6 < diagnose(draws(rho=0.9), {}).mixing.autocorrelation_time < 19 * 1.6
    assert 0.8 < diagnose(draws(), {}).mixing.autocorrelation_time < 1.25


def test_distances_are_in_standard_deviations():
    """One chain moved by 3 of 1: distance 3 from the others, which agree up to their error."""
    far = chain_distances(draws(offset=3.0).numpy())
    assert far.shape == (4, 4)
    assert np.allclose(far, far.T)
    assert np.all(np.abs(far[0, 1:] - 3) < 0.25)
    assert np.all(far[1:, 1:] < 0.25)
    found = diagnose(draws(offset=3.0), {}, healthy=[1, 3, 4, 5])
    assert any("Chain 1 stands apart, 3." in v for v in found.verdicts)
    assert not any("stands apart" in v for v in diagnose(draws(), {}).verdicts)


def test_ranks_of_chains_that_agree_are_flat():
    """Binomial counts, within 5 standard deviations; of a chain elsewhere they are not."""
    good = rank_counts(draws()[:, :, 0].numpy(), bins=10)
    assert good.shape == (4, 10)
    assert np.all(good.sum(1) == 400)
    assert np.all(np.abs(good - 40) < 5 * (40 * 0.75) ** 0.5)
    bad = rank_counts(draws(offset=3.0)[:, :, 0].numpy(), bins=10)
    assert bad[0, -1] > 100
    assert bad[0, 0] == 0


def test_plots_show_every_chain():
    found = diagnose(draws(rho=0.5), {}, healthy=[0, 2, 3, 5])
    for figure in (found.trace_plot(count=2), found.rank_plot(count=2)):
        panels = figure.get_axes()
        assert len(panels) == 2
        labels = [t.get_text() for t in panels[0].get_legend().get_texts()]
        assert labels == ["chain 0", "chain 2", "chain 3", "chain 5"]
    trace = found.trace_plot(count=1).get_axes()[0]
    worst = int(np.argmin(found.ess))
    assert np.array_equal(trace.lines[2].get_ydata(), found.mixing.values[2, :, worst])
    with pytest.raises(ValueError, match="at least 1"):
        found.trace_plot(count=0)
