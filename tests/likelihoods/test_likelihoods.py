"""One contract for all likelihoods: per-sample sums, the law of ``sample``, checks of targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from scipy import stats
from torch import Tensor, distributions

from natural_langevin import likelihoods, random


class Case(NamedTuple):
    likelihood: likelihoods.Likelihood
    outputs: tuple[int, ...]  # shape of one sample's outputs
    distribution: Callable[[Tensor], distributions.Distribution]
    state: dict[str, Tensor]


def per_sample_cauchy(outputs: Tensor, y: Tensor) -> Tensor:
    return -distributions.Cauchy(outputs, 1.0).log_prob(y).sum(1)


def draw_cauchy(outputs: Tensor, key: Tensor) -> Tensor:
    u = random.uniform(key, outputs.numel()).reshape(outputs.shape).to(outputs.dtype)
    return outputs + torch.tan(math.pi * (u - 0.5))


def normal(scale: float):
    return lambda outputs: distributions.Normal(outputs, scale)


CASES = {
    "categorical": Case(
        likelihoods.Categorical(), (4,), lambda o: distributions.Categorical(logits=o), {}
    ),
    "categorical sequence": Case(
        likelihoods.Categorical(), (3, 4), lambda o: distributions.Categorical(logits=o), {}
    ),
    "bernoulli": Case(
        likelihoods.Bernoulli(), (2,), lambda o: distributions.Bernoulli(logits=o), {}
    ),
    "bernoulli scalar": Case(
        likelihoods.Bernoulli(), (), lambda o: distributions.Bernoulli(logits=o), {}
    ),
    "gaussian": Case(likelihoods.Gaussian(sigma=0.3), (2,), normal(0.3), {}),
    "gaussian scalar": Case(likelihoods.Gaussian(sigma=2), (), normal(2.0), {}),
    "gaussian rmse": Case(
        likelihoods.Gaussian(sigma="rmse"), (2,), normal(0.5),
        {"variance": torch.tensor(0.25, dtype=torch.float64)},
    ),
    "log-loss": Case(
        likelihoods.LogLoss(per_sample_cauchy, sample=draw_cauchy), (2,),
        lambda o: distributions.Cauchy(o, 1.0), {},
    ),
}  # fmt: skip


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def outputs_of(case: Case, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, *case.outputs, generator=generator, dtype=torch.float64)


def key() -> Tensor:
    return random.stream(random.origin(0, random.LABELS, torch.arange(1)), 0)[0]


class TestContract:
    @pytest.mark.parametrize("batch", [1, 5])
    def test_log_loss_is_a_per_sample_sum(self, case: Case, batch: int) -> None:
        outputs = outputs_of(case, batch)
        y = case.likelihood.sample(outputs, key(), case.state)
        losses = case.likelihood.log_loss(outputs, y, case.state)
        terms = -case.distribution(outputs).log_prob(y)
        assert losses.shape == (batch,)
        torch.testing.assert_close(losses, terms.reshape(batch, -1).sum(1), rtol=1e-12, atol=1e-12)
        alone = case.likelihood.log_loss(outputs[:1], y[:1], case.state)
        torch.testing.assert_close(losses[:1], alone)

    def test_gradient_of_log_loss(self, case: Case) -> None:
        outputs = outputs_of(case, 3).requires_grad_()
        y = case.likelihood.sample(outputs.detach(), key(), case.state)
        ours = case.likelihood.log_loss(outputs, y, case.state).sum()
        reference = -case.distribution(outputs).log_prob(y).sum()
        torch.testing.assert_close(
            torch.autograd.grad(ours, outputs), torch.autograd.grad(reference, outputs)
        )

    def test_sampled_law(self, case: Case) -> None:
        """20,000 draws at one output: chi-squared of frequencies, or Kolmogorov-Smirnov."""
        one = outputs_of(case, 1)
        many = one.expand(20_000, *case.outputs)
        law = case.distribution(one[0])
        draws = case.likelihood.sample(many, key(), case.state)
        assert draws.shape == (20_000, *case.distribution(one).batch_shape[1:])
        for index, column in enumerate(draws.reshape(20_000, -1).T):
            if law.support.is_discrete:
                support = law.enumerate_support()  # (values, *shape of one y)
                p = law.log_prob(support).exp().reshape(len(support), -1)[:, index]
                counts = torch.bincount(column.long(), minlength=len(p))
                expected = 20_000 * p / p.sum()
                assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-4
            else:
                quantiles = case.distribution(one[0].reshape(-1)[index]).cdf(column)
                assert stats.kstest(quantiles.numpy(), "uniform").pvalue > 1e-4

    def test_same_key_same_draw(self, case: Case) -> None:
        outputs = outputs_of(case, 50)
        first = case.likelihood.sample(outputs, key(), case.state)
        assert torch.equal(first, case.likelihood.sample(outputs, key(), case.state))
        assert not torch.equal(first, case.likelihood.sample(outputs, key() + 1, case.state))

    def test_check_accepts_its_own_samples(self, case: Case) -> None:
        outputs = outputs_of(case, 5)
        y = case.likelihood.sample(outputs, key(), case.state)
        case.likelihood.check(outputs, y)
        assert case.likelihood.log_loss(outputs, y, case.state).isfinite().all()


def test_predictive() -> None:
    outputs = outputs_of(CASES["categorical"], 5)
    probabilities = likelihoods.Categorical().predictive(outputs)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(probabilities, outputs.softmax(-1))
    torch.testing.assert_close(likelihoods.Bernoulli().predictive(outputs), outputs.sigmoid())
    assert torch.equal(likelihoods.Gaussian(sigma=1.0).predictive(outputs), outputs)


def test_impossible_classes_are_never_drawn() -> None:
    outputs = torch.tensor([-torch.inf, 0.0, -torch.inf]).expand(10_000, 3)
    assert (likelihoods.Categorical().sample(outputs, key(), {}) == 1).all()


def test_rmse_is_a_running_average_of_squared_residuals() -> None:
    """Rate 1 replaces the starting value; later rates mix; the floor holds at zero residual."""
    likelihood = likelihoods.Gaussian(sigma="rmse")
    state = likelihood.init(2, dtype=torch.float64, device=torch.device("cpu"))
    assert state["variance"].tolist() == [1.0, 1.0]
    one = {"variance": state["variance"][0]}
    y, outputs = torch.tensor([1.0, 2.0, 3.0]).double(), torch.zeros(3, 1).double()
    first = likelihood.update(one, outputs, y, torch.tensor(1.0))
    assert float(first["variance"]) == pytest.approx(14 / 3)
    second = likelihood.update(first, outputs + 1, y, torch.tensor(0.25))
    assert float(second["variance"]) == pytest.approx(0.75 * 14 / 3 + 0.25 * 5 / 3)
    exact = likelihood.update(first, y[:, None], y, torch.tensor(1.0))
    assert 0 < float(exact["variance"]) <= 1e-6
    assert float(likelihood.noise_variance(second)) == float(second["variance"])
    fixed = likelihoods.Gaussian(sigma=0.3)
    assert fixed.init(2, dtype=torch.float64, device=torch.device("cpu")) == {}
    assert float(fixed.noise_variance({})) == pytest.approx(0.09, rel=1e-15)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "error", "words"),
    [
        ("Categorical", (5,), torch.zeros(5).long(), ValueError, ["(5,)", "nn.Linear"]),
        ("Categorical", (5, 3), torch.zeros(5), TypeError, ["float32", "y.long()"]),
        ("Categorical", (5, 3), torch.zeros(5, 3).long(), ValueError, ["(5, 3)", "one class"]),
        ("Categorical", (5, 3), torch.arange(5), ValueError, ["0 .. 2", "from 0 to 4"]),
        ("Categorical", (5, 3), torch.arange(5) - 3, ValueError, ["0 .. 2", "from -3 to 1"]),
        ("Bernoulli", (5, 1), torch.full((5,), 0.5), ValueError, ["0 or 1", "0.5"]),
        ("Bernoulli", (5, 1), torch.zeros(5, 2), ValueError, ["(5, 2)", "(5, 1)", "agree"]),
        ("Gaussian", (5, 1), torch.zeros(5, 2), ValueError, ["(5, 2)", "(5, 1)", "agree"]),
        ("Gaussian", (5, 1), torch.zeros(5).long(), TypeError, ["int64", "y.float()"]),
    ],
)
def test_check(
    likelihood: str, outputs: tuple[int, ...], y: Tensor, error: type[Exception], words: list[str]
) -> None:
    options = {"sigma": 1.0} if likelihood == "Gaussian" else {}
    with pytest.raises(error) as caught:
        getattr(likelihoods, likelihood)(**options).check(torch.zeros(outputs), y)
    for word in words:
        assert word in str(caught.value)


def test_log_loss_without_sample_function() -> None:
    likelihood = likelihoods.LogLoss(lambda o, y: (o - y).square().sum(1))
    with pytest.raises(ValueError, match=r'LogLoss\(fn, sample=...\) or use targets="data"'):
        likelihood.sample(torch.zeros(5, 2), key(), {})


@pytest.mark.parametrize("sigma", [0, -1.0, math.nan, math.inf, "std"])
def test_sigma_must_make_sense(sigma: object) -> None:
    with pytest.raises(
        ValueError, match=f'sigma must be a positive number or "rmse", got .*{sigma}'
    ):
        likelihoods.Gaussian(sigma=sigma)
    with pytest.raises(TypeError, match="sigma"):
        likelihoods.Gaussian()
