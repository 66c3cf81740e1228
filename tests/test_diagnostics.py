"""Diagnostics against draws whose answers are known."""

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods
from natural_langevin.diagnostics import diagnose

pytest.importorskip("arviz", reason="ArviZ is not installed")


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


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_posterior_diagnoses_itself_and_goes_to_arviz():
    x = torch.rand(40, 2)
    sampler = Langevin(nn.Linear(2, 2), likelihoods.Categorical(), step_size=1e-2, chains=2)
    posterior = sampler.sample((x, x.argmax(1)), 100, batch_size=20, thin=2, progress=False)
    found = posterior.diagnose(x[:5])
    assert (found.chains, found.draws) == (2, 50)
    assert posterior.to_arviz().posterior["weight"].shape == (2, 50, 2, 2)
