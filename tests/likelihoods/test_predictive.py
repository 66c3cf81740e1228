"""The predictive distribution of an ensemble: the average of its networks' distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from natural_langevin import likelihoods
from natural_langevin.likelihoods.predictive import Mixture, predicted_by, probabilities

#: A likelihood, the outputs of one target, and scipy's law for them.
CASES: dict[str, tuple[likelihoods.Likelihood, int, Callable[[Any], Any]]] = {
    "gaussian": (likelihoods.Gaussian(0.4), 1, lambda o: stats.norm(o[0], 0.4)),
    "heteroscedastic": (
        likelihoods.HeteroscedasticGaussian(), 2, lambda o: stats.norm(o[0], np.exp(o[1] / 2)),
    ),
    "student-t": (likelihoods.StudentT(3.0, 0.4), 1, lambda o: stats.t(3, o[0], 0.4)),
    "poisson": (likelihoods.Poisson(), 1, lambda o: stats.poisson(np.exp(o[0]))),
    "negative binomial": (
        likelihoods.NegativeBinomial(0.7), 1,
        lambda o: stats.nbinom(1 / 0.7, 1 / (1 + 0.7 * np.exp(o[0]))),
    ),
}  # fmt: skip
NETWORKS, INPUTS = 5, 3


@pytest.fixture(params=CASES, ids=str)
def ensemble(request: pytest.FixtureRequest) -> tuple[Mixture, list[list[Any]]]:
    """A mixture, and scipy's law of every input (rows) and network."""
    likelihood, size, law = CASES[request.param]
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(NETWORKS, INPUTS, size, generator=generator).double()
    laws = [[law(outputs[m, b].numpy()) for m in range(NETWORKS)] for b in range(INPUTS)]
    return Mixture(likelihood, outputs, {}), laws


def average(row: list[Any], name: str, *at: float) -> float:
    return float(np.mean([getattr(law, name)(*at) for law in row]))


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_moments(ensemble: tuple[Mixture, list[list[Any]]]) -> None:
    mixture, laws = ensemble
    means = np.array([[law.mean() for law in row] for row in laws])
    torch.testing.assert_close(mixture.mean, column(means.mean(1).tolist()))
    torch.testing.assert_close(mixture.epistemic, column(means.var(1).tolist()))
    torch.testing.assert_close(mixture.aleatoric, column([average(row, "var") for row in laws]))
    torch.testing.assert_close(mixture.variance, mixture.aleatoric + mixture.epistemic)


def test_densities_and_cumulative_probabilities(ensemble: tuple[Mixture, list[list[Any]]]) -> None:
    mixture, laws = ensemble
    y = column([0.0, 1.0, 3.0])
    density = "pmf" if mixture.is_discrete else "pdf"
    pairs = list(zip(laws, y.flatten().tolist(), strict=True))
    expected = column([average(row, density, t) for row, t in pairs])
    torch.testing.assert_close(mixture.log_prob(y), expected.log()[:, 0])
    below = column([average(row, "cdf", t) for row, t in pairs])
    torch.testing.assert_close(mixture.cdf(y), below)
    torch.testing.assert_close(mixture.cdf(torch.stack([y, y + 1]))[0], below)


@pytest.mark.parametrize("level", [0.001, 0.3, 0.5, 0.975])
def test_quantiles(ensemble: tuple[Mixture, list[list[Any]]], level: float) -> None:
    mixture, _ = ensemble
    y = mixture.icdf(level)
    if mixture.is_discrete:
        assert (mixture.cdf(y) >= level).all()
        assert (mixture.cdf(y - 1) < level).all()
    else:
        torch.testing.assert_close(mixture.cdf(y), torch.full_like(y, level), rtol=0, atol=1e-9)
    several = mixture.icdf([level, 0.5])
    assert several.shape == (2, INPUTS, 1)
    torch.testing.assert_close(several[0], y)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        mixture.icdf([0.5, 1.0])


def test_crps_is_the_integral(ensemble: tuple[Mixture, list[list[Any]]]) -> None:
    mixture, laws = ensemble
    y = column([0.0, 1.0, 9.0])
    found = mixture.crps(y).flatten().tolist()
    for row, t, value in zip(laws, y.flatten().tolist(), found, strict=True):

        def below(s: Any, row: list[Any] = row) -> Any:
            return np.mean([law.cdf(s) for law in row], axis=0)

        if mixture.is_discrete:
            counts = np.arange(2000)
            expected = np.square(below(counts) - (counts >= t)).sum()
        else:
            expected = sum(
                integrate.quad(lambda s, up=up: (below(s) - up) ** 2, a, b, limit=500)[0]
                for a, b, up in ((-np.inf, t, 0), (t, np.inf, 1))
            )
        assert value == pytest.approx(expected, rel=2e-4)


def test_draws(ensemble: tuple[Mixture, list[list[Any]]]) -> None:
    """20,000 of every target: the mixture's own cumulative probabilities."""
    mixture, _ = ensemble
    before = torch.get_rng_state()
    draws = mixture.sample((20_000,), seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert draws.shape == (20_000, INPUTS, 1)
    few, same, other = (mixture.sample((200,), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(few, same)
    assert not torch.equal(few, other)
    for level in (0.1, 0.5, 0.9):
        y = mixture.icdf(level)
        expected = mixture.cdf(y)
        error = (expected * (1 - expected) / 20_000).sqrt()
        assert (((draws <= y).double().mean(0) - expected).abs() < 4 * error).all()


def test_targets_of_several_components_share_their_network() -> None:
    """The density of a whole target is averaged, not the product of its components' averages."""
    outputs = torch.tensor([[[0.0, 0.0]], [[4.0, 4.0]]])
    mixture = Mixture(likelihoods.Gaussian(1.0), outputs, {})
    together, mixed = (mixture.log_prob(torch.tensor([y])) for y in ([4.0, 4.0], [0.0, 4.0]))
    expected = np.log(0.5 * stats.norm.pdf(0) ** 2 + 0.5 * stats.norm.pdf(4) ** 2)
    assert float(together) == pytest.approx(expected, rel=1e-9)
    assert float(mixed) == pytest.approx(2 * stats.norm.logpdf(0) - 8, rel=1e-6)


def test_what_a_likelihood_learned_belongs_to_its_network() -> None:
    """Three networks with noise of their own."""
    state = {"variance": torch.tensor([0.01, 1.0, 4.0])}
    mixture = Mixture(likelihoods.Gaussian("rmse"), torch.zeros(3, 2, 1), state)
    torch.testing.assert_close(mixture.aleatoric, torch.full((2, 1), 5.01 / 3).double())
    law = [stats.norm(0, s) for s in (0.1, 1.0, 2.0)]
    expected = np.mean([one.cdf(0.3) for one in law])
    assert float(mixture.cdf(torch.full((2, 1), 0.3))[1]) == pytest.approx(expected, rel=1e-6)
    draws = mixture.sample((20_000,))
    assert float(draws.var()) == pytest.approx(5.01 / 3, rel=0.05)


def test_classes_average_their_probabilities() -> None:
    outputs = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    value, spread, kind = predicted_by(likelihoods.Categorical(), outputs, {})
    torch.testing.assert_close(value, outputs.softmax(-1))
    assert spread is not None
    assert spread.shape == (4, 5)
    assert kind is torch.distributions.Categorical
    binary = torch.distributions.Bernoulli(probs=torch.tensor([0.2, 0.7]))
    torch.testing.assert_close(probabilities(binary), torch.tensor([[0.8, 0.2], [0.3, 0.7]]))


@pytest.mark.parametrize("classes", [2, 3, 32])
def test_classes_of_every_network_are_torchs(classes: int) -> None:
    """Few classes go by formulas of their own: far logits and impossible classes too."""
    logits = 100 * torch.randn(5, 7, classes, generator=torch.Generator().manual_seed(0))
    logits[0, 0, 0], logits[1] = -torch.inf, 0.0
    found = predicted_by(likelihoods.Categorical(), logits, {})
    wanted = torch.distributions.Categorical(logits=logits.double())
    assert found.spread is not None
    torch.testing.assert_close(found.value.double(), wanted.probs, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(found.spread.double(), wanted.entropy(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.value.sum(-1), torch.ones(5, 7), rtol=0, atol=1e-6)


def test_classes_by_a_law_of_ones_own() -> None:
    class Halved(likelihoods.Categorical):
        def distribution(self, outputs, state):
            return torch.distributions.Categorical(logits=outputs / 2)

    logits = torch.randn(3, 4, 2)
    found = predicted_by(Halved(), logits, {})
    torch.testing.assert_close(found.value, (logits / 2).softmax(-1))


@pytest.mark.parametrize("name", ["poisson", "negative binomial"])
def test_crps_of_large_counts_beside_small_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of 2, 3,000 and 20,000 in one batch: the sums, with some hundreds of evaluations and
    not one for every count."""
    likelihood, _, law = CASES[name]
    means = torch.tensor([[2.0, 3000.0, 20_000.0], [3.0, 3300.0, 18_000.0]]).double()
    mixture = Mixture(likelihood, means.log()[..., None], {})
    y = column([4.0, 3500.0, 2000.0])
    counts, evaluated = np.arange(600_000), 0
    laws = [[law(means[m, b : b + 1].log().numpy()) for m in range(2)] for b in range(3)]
    expected = []
    for row, t in zip(laws, y.flatten().tolist(), strict=True):
        below = np.mean([one.cdf(counts) for one in row], axis=0)
        expected.append(float(np.square(below - (counts >= t)).sum()))
    cdf = Mixture.cdf

    def counted(self: Mixture, value: Tensor) -> Tensor:
        nonlocal evaluated
        evaluated += value.numel() // y.numel()
        return cdf(self, value)

    monkeypatch.setattr(Mixture, "cdf", counted)
    torch.testing.assert_close(mixture.crps(y), column(expected), rtol=2e-4, atol=0.0)
    assert evaluated < 2000


def test_quantiles_where_one_network_has_no_finite_mean() -> None:
    """Amounts of about 1 by nine networks, and by a tenth ones whose logarithm has a deviation of
    exp(4): the mean is infinite, and quantiles are what they are."""
    outputs = torch.tensor([5.0, 0.0, -3.4]).repeat(10, 1, 1)
    outputs[3, 0, 2] = np.exp(16.0) / 2
    mixture = Mixture(likelihoods.Hurdle(), outputs, {})
    assert mixture.mean.isinf().all()
    for level in (0.05, 0.5, 0.9):
        y = mixture.icdf(level)
        torch.testing.assert_close(mixture.cdf(y), torch.full_like(y, level), rtol=0, atol=1e-9)
    assert 0.9 < float(mixture.icdf(0.5)) < 1.1
    assert bool(mixture.crps(column([1.0])).isfinite().all())


def test_zero_is_the_quantile_where_it_has_the_probability() -> None:
    """P(Y = 0) = .95: the median is 0, to the last bit, and the interval from 0 to 0 holds that."""
    mixture = Mixture(likelihoods.Hurdle(), torch.tensor([[[-np.log(19.0), 0.0, 0.0]]]), {})
    ends = mixture.icdf([0.05, 0.5, 0.9, 0.99])
    assert ends[:3].flatten().tolist() == [0.0, 0.0, 0.0]
    assert float(ends[3]) > 0
    assert float(mixture.between(ends[0], ends[2])) == pytest.approx(0.95)
    assert float(mixture.between(ends[0], ends[3])) == pytest.approx(0.99)


def test_intervals_of_small_counts_hold_what_they_say() -> None:
    mixture = Mixture(likelihoods.Poisson(), torch.full((1, 1, 1), np.log(0.3)), {})
    low, high = mixture.icdf([0.05, 0.95])
    assert [float(low), float(high)] == [0.0, 1.0]
    assert float(mixture.between(low, high)) == pytest.approx(stats.poisson(0.3).cdf(1))
