"""One contract for all likelihoods: scipy's law, per-sample sums, draws, moments,
quantiles, checks, files and predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import expit
from torch import Tensor, distributions, nn
from torch.func import grad, vmap

from natural_langevin import (
    Langevin,
    Posterior,
    likelihoods,
    metrics,
    models,
    preconditioners,
    random,
)
from natural_langevin.likelihoods.base import components
from natural_langevin.likelihoods.predictive import Mixture
from natural_langevin.recipe import rules


class Case(NamedTuple):
    likelihood: likelihoods.Likelihood
    outputs: tuple[int, ...]  # shape of one sample's outputs
    law: Callable[[Any], Any]  # outputs of one sample (numpy) -> scipy's law of its target
    classes: int = 0  # 0: numbers or counts
    state: dict[str, Tensor] = {}  # noqa: RUF012


def classes(p: np.ndarray) -> Any:
    """Classes with these probabilities (..., K), as scipy's law of a whole number."""
    if p.ndim == 1:
        return stats.rv_discrete(values=(np.arange(len(p)), p))
    return [classes(row) for row in p]


def softmax(o: np.ndarray) -> np.ndarray:
    return np.exp(o) / np.exp(o).sum(-1, keepdims=True)


def levels(latent: float, cutpoints: list[float]) -> Any:
    below = stats.logistic.cdf(np.array(cutpoints) - latent)
    return classes(np.diff(np.concatenate([[0.0], below, [1.0]])))


def negative_binomial(log_mean: np.ndarray, a: Any) -> Any:
    return stats.nbinom(1 / a, 1 / (1 + a * np.exp(log_mean)))


def per_sample_cauchy(outputs: Tensor, y: Tensor) -> Tensor:
    return -distributions.Cauchy(outputs, 1.0).log_prob(y).sum(1)


def draw_cauchy(outputs: Tensor, key: Tensor) -> Tensor:
    u = random.uniform(key, outputs.numel()).reshape(outputs.shape).to(outputs.dtype)
    return outputs + torch.tan(math.pi * (u - 0.5))


def gumbel(outputs: Tensor) -> distributions.Distribution:
    return distributions.Independent(distributions.Gumbel(outputs, 0.5), 1)


class ZeroOrLogNormal:
    """What scipy would say of 0 with probability 1 - q, and of a log-normal amount otherwise."""

    def __init__(self, o: np.ndarray) -> None:
        logit, mean, u = np.split(o, 3)
        variance = np.where(u > 0, np.sqrt(1 + 2 * np.maximum(u, 0)), (1 - u.clip(max=0) / 2) ** -2)
        self.q = expit(logit)
        self.amount = stats.lognorm(np.sqrt(variance), scale=np.exp(mean))

    def logpdf(self, y: Any) -> np.ndarray:
        there = np.asarray(y) > 0
        amount = np.log(self.q) + self.amount.logpdf(np.where(there, y, 1.0))
        return np.where(there, amount, np.log1p(-self.q))

    def cdf(self, y: Any) -> np.ndarray:
        return np.where(np.asarray(y) < 0, 0.0, 1 - self.q + self.q * self.amount.cdf(y))

    def ppf(self, level: float) -> np.ndarray:
        above = np.clip((level - (1 - self.q)) / self.q, 0, 1)
        return np.where(above > 0, self.amount.ppf(above), 0.0)

    def mean(self) -> np.ndarray:
        return self.q * self.amount.mean()

    def var(self) -> np.ndarray:
        return self.q * (self.amount.var() + self.amount.mean() ** 2) - self.mean() ** 2


QUARTER = torch.tensor(0.25, dtype=torch.float64)
CASES = {
    "categorical": Case(likelihoods.Categorical(), (4,), lambda o: classes(softmax(o)), 4),
    "categorical sequence": Case(
        likelihoods.Categorical(), (3, 4), lambda o: classes(softmax(o)), 4
    ),
    "bernoulli": Case(likelihoods.Bernoulli(), (2,), lambda o: stats.bernoulli(expit(o)), 2),
    "bernoulli scalar": Case(likelihoods.Bernoulli(), (), lambda o: stats.bernoulli(expit(o)), 2),
    "ordinal, one output": Case(
        likelihoods.Ordinal(4), (1,), lambda o: levels(o[0], [-1.0, 0.0, 1.0]), 4
    ),
    "ordinal, gaps": Case(
        likelihoods.Ordinal(4), (3,),
        lambda o: levels(o[0], [-1.0, math.exp(o[1]) - 1, math.exp(o[1]) + math.exp(o[2]) - 1]), 4,
    ),
    "ordinal, two levels": Case(likelihoods.Ordinal(2), (1,), lambda o: levels(o[0], [0.0]), 2),
    "gaussian": Case(likelihoods.Gaussian(sigma=0.3), (2,), lambda o: stats.norm(o, 0.3)),
    "gaussian scalar": Case(likelihoods.Gaussian(sigma=2), (), lambda o: stats.norm(o, 2.0)),
    "gaussian rmse": Case(
        likelihoods.Gaussian("rmse"), (2,), lambda o: stats.norm(o, 0.5), 0, {"variance": QUARTER}
    ),
    "heteroscedastic": Case(
        likelihoods.HeteroscedasticGaussian(), (4,),
        lambda o: stats.norm(o[:2], np.exp(o[2:] / 2)),
    ),
    "hurdle": Case(likelihoods.Hurdle(), (6,), ZeroOrLogNormal),
    "student-t": Case(likelihoods.StudentT(df=3, scale=0.7), (2,), lambda o: stats.t(3, o, 0.7)),
    "student-t, any df": Case(
        likelihoods.StudentT(df=7.3, scale=2.0), (1,), lambda o: stats.t(7.3, o, 2.0)
    ),
    "student-t auto": Case(
        likelihoods.StudentT(df=5.0), (2,), lambda o: stats.t(5, o, 0.5), 0,
        {"squared_scale": QUARTER},
    ),
    "scaled": Case(
        likelihoods.Scaled(likelihoods.Gaussian("rmse"), (3.0, 0.2)), (2,),
        lambda o: stats.norm(o, 0.5 * np.array([3.0, 0.2])), 0, {"variance": QUARTER},
    ),
    "scaled student-t": Case(
        likelihoods.Scaled(likelihoods.StudentT(df=3, scale=0.7), (3.0, 0.2)), (2,),
        lambda o: stats.t(3, o, 0.7 * np.array([3.0, 0.2])),
    ),
    "poisson": Case(likelihoods.Poisson(), (2,), lambda o: stats.poisson(np.exp(o))),
    "poisson scalar": Case(likelihoods.Poisson(), (), lambda o: stats.poisson(np.exp(o))),
    "negative binomial": Case(
        likelihoods.NegativeBinomial(dispersion=0.5), (2,), lambda o: negative_binomial(o, 0.5)
    ),
    "negative binomial, dispersion": Case(
        likelihoods.NegativeBinomial(), (2,), lambda o: negative_binomial(o[:1], np.exp(o[1:]))
    ),
    "log-loss": Case(
        likelihoods.LogLoss(per_sample_cauchy, draw_cauchy, lambda o: distributions.Cauchy(o, 1.0)),
        (2,), lambda o: stats.cauchy(o, 1.0),
    ),
    "log-loss, a distribution": Case(
        likelihoods.LogLoss(None, distribution=gumbel), (2,), lambda o: stats.gumbel_r(o, 0.5)
    ),
}  # fmt: skip
#: Those whose quantiles torch or this library knows.
NUMBERS = [name for name, case in CASES.items() if not case.classes]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=NUMBERS, ids=str)
def number(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=[name for name, case in CASES.items() if len(case.outputs) == 1], ids=str)
def vector(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def outputs_of(case: Case, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, *case.outputs, generator=generator, dtype=torch.float64)


def key() -> Tensor:
    return random.stream(random.origin(0, random.LABELS, torch.arange(1)), 0)[0]


def log_probability(law: Any, y: np.ndarray) -> float:
    """scipy's ln p of one target, summed over its components."""
    if isinstance(law, list):
        return sum(log_probability(one, part) for one, part in zip(law, y, strict=True))
    return float(np.sum((law.logpmf if hasattr(law, "pmf") else law.logpdf)(y)))


def is_discrete(law: Any) -> bool:
    return isinstance(law, list | stats.rv_discrete) or hasattr(law, "pmf")


class TestContract:
    @pytest.mark.parametrize("batch", [1, 5])
    def test_log_loss_is_a_per_sample_sum(self, case: Case, batch: int) -> None:
        outputs = outputs_of(case, batch)
        y = case.likelihood.sample(outputs, key(), case.state)
        losses = case.likelihood.log_loss(outputs, y, case.state)
        expected = [
            -log_probability(case.law(o.numpy()), t.numpy())
            for o, t in zip(outputs, y, strict=True)
        ]
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(losses, wanted, rtol=1e-9, atol=1e-9)
        alone = case.likelihood.log_loss(outputs[:1], y[:1], case.state)
        torch.testing.assert_close(losses[:1], alone)

    def test_log_loss_and_its_gradient_are_those_of_the_distribution(self, case: Case) -> None:
        outputs = outputs_of(case, 3).requires_grad_()
        y = case.likelihood.sample(outputs.detach(), key(), case.state)
        ours = case.likelihood.log_loss(outputs, y, case.state)
        law = components(case.likelihood.distribution(outputs, case.state))
        reference = -law.log_prob(y.to(outputs.dtype)).reshape(3, -1).sum(1)
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            torch.autograd.grad(ours.sum(), outputs), torch.autograd.grad(reference.sum(), outputs),
            rtol=1e-8, atol=1e-8,
        )  # fmt: skip

    def test_probabilities_add_up_to_one(self, case: Case) -> None:
        """Over all values of the first component, others as they are, per their own share."""
        outputs = outputs_of(case, 1)
        y = case.likelihood.sample(outputs, key(), case.state)
        flat = y.reshape(1, -1)

        def density(t: Tensor) -> Tensor:
            """p(first component = t, others as drawn)."""
            targets = flat.repeat(len(t), 1)
            targets[:, 0] = t.to(targets.dtype)
            many = outputs.expand(len(t), *case.outputs)
            return (
                -case.likelihood.log_loss(many, targets.reshape(-1, *y.shape[1:]), case.state)
            ).exp()

        others = density(flat[:, 0]) / self.first_of(case, outputs, y)
        if is_discrete(case.law(outputs[0].numpy())):
            total = density(torch.arange(case.classes or 2000)).sum()
        else:
            t = torch.linspace(-16, 16, 20_001).double()  # on y = sinh t, which reaches far tails
            if isinstance(case.likelihood, likelihoods.Hurdle):
                t = torch.linspace(-30, 30, 20_001).double()  # on y = e^t, and at 0
                total = torch.trapezoid(density(t.exp()) * t.exp(), t) + density(torch.zeros(1))[0]
            else:
                total = torch.trapezoid(density(t.sinh()) * t.cosh(), t)
        assert float(total) == pytest.approx(float(others), rel=1e-6)

    @staticmethod
    def first_of(case: Case, outputs: Tensor, y: Tensor) -> Tensor:
        """p of the first component alone."""
        law = components(case.likelihood.distribution(outputs, case.state))
        return law.log_prob(y.to(outputs.dtype)).reshape(-1)[0].exp()

    def test_sampled_law(self, case: Case) -> None:
        """20,000 draws at one output: chi-squared of frequencies, or Kolmogorov-Smirnov."""
        one = outputs_of(case, 1)
        many = one.expand(20_000, *case.outputs)
        law = case.law(one[0].numpy())
        draws = case.likelihood.sample(many, key(), case.state)
        columns = draws.reshape(20_000, -1).T.numpy()
        laws = law if isinstance(law, list) else [law] * len(columns)
        for index, (column, its) in enumerate(zip(columns, laws, strict=True)):
            if is_discrete(its):
                values = np.arange(column.max() + 1)
                p = np.stack([np.ravel(its.pmf(v)) for v in values])
                p = p[:, min(index, p.shape[1] - 1)]
                keep = 20_000 * p >= 5  # rare values together
                counts = np.bincount(column.astype(int), minlength=len(p))
                observed = [*counts[keep], counts[~keep].sum()]
                expected = [*(20_000 * p[keep]), 20_000 * (1 - p[keep].sum())]
                if expected[-1] < 1e-6:
                    assert observed.pop() == 0
                    expected.pop()
                assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-4
            else:
                below = (
                    its.cdf(np.expand_dims(draws.numpy(), -1))[..., 0]
                    if draws.ndim == 1
                    else its.cdf(draws.numpy())
                )
                below = below.reshape(20_000, -1)[:, index]
                if isinstance(its, ZeroOrLogNormal):  # at 0 anywhere below the probability of it
                    zero = column == 0
                    rng = np.random.default_rng(0)
                    below = np.where(zero, below * rng.random(len(below)), below)
                assert stats.kstest(below, "uniform").pvalue > 1e-4

    def test_same_key_same_draw(self, case: Case) -> None:
        outputs = outputs_of(case, 50)
        before = torch.get_rng_state()
        first = case.likelihood.sample(outputs, key(), case.state)
        assert torch.equal(first, case.likelihood.sample(outputs, key(), case.state))
        assert not torch.equal(first, case.likelihood.sample(outputs, key() + 1, case.state))
        assert torch.equal(before, torch.get_rng_state())

    def test_chains_side_by_side(self, case: Case) -> None:
        """Under vmap and grad, as a step calls it: the same numbers as one after the other."""
        outputs = torch.stack([outputs_of(case, 6), outputs_of(case, 6).flip(0)])
        keys = torch.stack([key(), key() + 1])
        state = {k: torch.stack([v, 2 * v]) for k, v in case.state.items()}

        def step(o: Tensor, k: Tensor, s: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            y = case.likelihood.sample(o, k, s)
            return y, grad(lambda o: case.likelihood.log_loss(o, y, s).sum())(o)

        labels, slopes = vmap(step)(outputs, keys, state)
        for chain in range(2):
            own = {k: v[chain] for k, v in state.items()}
            y, slope = step(outputs[chain], keys[chain], own)
            torch.testing.assert_close(labels[chain], y)
            torch.testing.assert_close(slopes[chain], slope)
            assert slope.count_nonzero() > 0

    def test_check_accepts_its_own_samples(self, case: Case) -> None:
        outputs = outputs_of(case, 5)
        y = case.likelihood.sample(outputs, key(), case.state)
        case.likelihood.check(outputs, y)
        assert case.likelihood.log_loss(outputs, y, case.state).isfinite().all()
        assert y.dtype in (torch.int64, torch.float64)

    def test_moments_and_cumulative_probabilities(self, number: Case) -> None:
        """One network's prediction is its distribution: mean, variance, cdf and quantiles."""
        outputs = outputs_of(number, 4)
        state = {k: v.reshape(1) for k, v in number.state.items()}
        mixture = Mixture(number.likelihood, outputs[None], state)
        laws = [number.law(o.numpy()) for o in outputs]
        y = number.likelihood.sample(outputs, key(), number.state)

        def column(values: list[Any]) -> Tensor:
            return torch.as_tensor(np.array(values)).double().reshape(y.shape)

        if "cauchy" not in str(getattr(laws[0], "dist", "")):
            torch.testing.assert_close(mixture.mean, column([law.mean() for law in laws]))
            torch.testing.assert_close(mixture.variance, column([law.var() for law in laws]))
        torch.testing.assert_close(
            mixture.cdf(y), column([law.cdf(t.numpy()) for law, t in zip(laws, y, strict=True)]),
            rtol=1e-8, atol=1e-10,
        )  # fmt: skip
        for level in (0.02, 0.5, 0.95):
            expected = column([law.ppf(level) for law in laws])
            torch.testing.assert_close(mixture.icdf(level), expected, rtol=1e-7, atol=1e-8)

    def test_from_a_run_to_a_file(self, vector: Case, tmp_path: Path) -> None:
        """A run with labels drawn from the model, predictions, scores, and back from a folder."""
        case = vector
        torch.manual_seed(0)
        model, x = nn.Linear(2, case.outputs[0]), torch.randn(60, 2)
        state = {k: v.float() for k, v in case.state.items()}
        with torch.no_grad():
            y = case.likelihood.sample(model(x), key(), state)
        sampler = Langevin(
            model, case.likelihood, chains=2, step_size=1e-3, compile=False,
            preconditioner=preconditioners.DiagonalFisher(damping=0.1, targets="model"),
        )  # fmt: skip
        posterior = sampler.sample((x, y), 8, batch_size=20, burn_in=4, thin=2, progress=False)
        p, law = posterior.predict(x, quantiles=(0.1, 0.9)), posterior.predict_dist(x)
        scores = posterior.evaluate(x, y)
        assert "negative log-likelihood" in str(scores)
        if case.classes:
            assert isinstance(scores, metrics.ClassificationScores)
            torch.testing.assert_close(law.probs, p.mean.double(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(law.entropy().float(), p.total, rtol=1e-4, atol=1e-5)
        else:
            assert isinstance(scores, metrics.RegressionScores)
            assert scores.nll == pytest.approx(float(-law.log_prob(y).mean()), rel=1e-9)
            assert p.mean.shape == y.shape
            torch.testing.assert_close(p.quantiles[1], law.icdf(0.9).float())
            assert (p.quantiles[0] <= p.quantiles[1]).all()
        if not p.mean.isnan().any():  # Cauchy's
            assert (p.epistemic > 0).all()
            torch.testing.assert_close(p.total, p.aleatoric + p.epistemic, rtol=1e-4, atol=1e-5)
        posterior.save(tmp_path / "saved")
        known = type(case.likelihood).__name__ in likelihoods.REGISTRY
        given = None if known else case.likelihood
        again = Posterior.load(tmp_path / "saved", model, likelihood=given)
        assert again.likelihood == case.likelihood
        torch.testing.assert_close(again.predict(x).mean, p.mean, rtol=0, atol=0, equal_nan=True)


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
        ("HeteroscedasticGaussian", (5, 1), torch.zeros(5, 1), ValueError, ["give 2 per value"]),
        ("HeteroscedasticGaussian", (5, 2), torch.zeros(5).int(), TypeError, ["y.float()"]),
        ("Hurdle", (5, 2), torch.zeros(5), ValueError, ["give 3 per value"]),
        ("Hurdle", (5, 3), torch.full((5,), -0.5), ValueError, ["0 or positive", "-0.5"]),
        ("StudentT", (5, 2), torch.zeros(5), ValueError, ["(5,)", "(5, 2)", "agree"]),
        ("Poisson", (5, 1), torch.arange(5) - 1, ValueError, ["counts", "-1"]),
        ("Poisson", (5, 1), torch.full((5,), 0.5), ValueError, ["counts", "0.5", "Gaussian"]),
        ("NegativeBinomial", (5, 1), torch.zeros(5), ValueError, ["give 2 per value"]),
        ("NegativeBinomial", (5, 2), torch.full((5,), 0.5), ValueError, ["counts", "0.5"]),
        ("Ordinal", (5, 4), torch.zeros(5).long(), ValueError, ["(batch, 1)", "(batch, 2)"]),
        ("Ordinal", (5, 1), torch.zeros(5), TypeError, ["float32", "y.long()"]),
        ("Ordinal", (5, 1), torch.arange(5), ValueError, ["0 .. 2", "from 0 to 4"]),
        ("Ordinal", (5, 1), torch.zeros(5, 2).long(), ValueError, ["one level each", "(5, 2)"]),
    ],
)
def test_check(
    likelihood: str, outputs: tuple[int, ...], y: Tensor, error: type[Exception], words: list[str]
) -> None:
    options = {"Gaussian": {"sigma": 1.0}, "Ordinal": {"levels": 3}}.get(likelihood, {})
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: likelihoods.StudentT(df=0.0), "df must be positive and finite, got 0.0"),
        (lambda: likelihoods.StudentT(scale="rmse"), "scale must be .* \"auto\", got 'rmse'"),
        (lambda: likelihoods.NegativeBinomial(0.0), r"dispersion must be .*Poisson\(\)"),
        (lambda: likelihoods.NegativeBinomial("auto"), "dispersion must be"),
        (lambda: likelihoods.Ordinal(1), "levels must be an integer from 2 to 10,000, got 1"),
        (lambda: likelihoods.Ordinal(10**12), "levels must be an integer from 2 to 10,000"),
        (lambda: likelihoods.Categorical((1.0, -1.0)), "class_weights must be positive"),
        (lambda: likelihoods.Scaled(likelihoods.Gaussian(1.0), (1.0, 0.0)), "scale must hold pos"),
        (lambda: likelihoods.LogLoss(None), "a function of .* or a distribution"),
    ],
)
def test_bad_settings(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_class_weights_count_labels_several_times() -> None:
    """Weights (2, 1): the log-loss of data in which every label 0 is there twice."""
    outputs, y = outputs_of(CASES["categorical"], 6)[:, :2], torch.tensor([0, 1, 0, 1, 1, 0])
    weighted = likelihoods.Categorical(class_weights=(2, 1))
    twice = torch.cat([torch.arange(6), (y == 0).nonzero().flatten()])
    plain = likelihoods.Categorical().log_loss(outputs[twice], y[twice], {})
    torch.testing.assert_close(weighted.log_loss(outputs, y, {}).sum(), plain.sum())
    with pytest.raises(ValueError, match="2 values for 3 classes"):
        weighted.check(torch.zeros(6, 3), y)


def test_ignored_labels_do_not_count() -> None:
    """Neither in the loss of a sequence, nor in its gradient, nor in the scores."""
    likelihood = likelihoods.Categorical(ignore_index=-100)
    outputs = outputs_of(CASES["categorical sequence"], 5).requires_grad_()
    y = torch.tensor([[0, 1, -100]] * 4 + [[-100, -100, -100]])
    likelihood.check(outputs, y)
    losses = likelihood.log_loss(outputs, y, {})
    expected = likelihoods.Categorical().log_loss(outputs[:, :2], y[:, :2].clamp_min(0), {})
    torch.testing.assert_close(losses[:4], expected[:4])
    assert losses[4] == 0
    (slope,) = torch.autograd.grad(losses.sum(), outputs)
    assert not slope[:4, 2].any()
    assert not slope[4].any()
    with pytest.raises(ValueError, match="from -100 to 1"):
        likelihoods.Categorical().check(outputs, y)


def test_the_scale_of_a_student_t_is_its_maximum_likelihood() -> None:
    """Steps of rate 1 on the same residuals converge to scipy's fit; the floor holds at zero."""
    residuals = stats.t(4, 0, 0.3).rvs(2000, random_state=0)
    y, outputs = torch.tensor(residuals)[:, None], torch.zeros(2000, 1).double()
    likelihood = likelihoods.StudentT(df=4)
    state = {"squared_scale": torch.ones((), dtype=torch.float64)}
    for _ in range(100):
        state = likelihood.update(state, outputs, y, torch.tensor(1.0).double())
    _, _, expected = stats.t.fit(residuals, fdf=4, floc=0)
    assert float(state["squared_scale"].sqrt()) == pytest.approx(expected, rel=1e-3)
    assert float(likelihood.noise_variance(state)) == pytest.approx(2 * expected**2, rel=2e-3)
    none = likelihood.update(state, y, y, torch.tensor(1.0))
    assert 0 < float(none["squared_scale"]) < 1e-6
    assert likelihoods.StudentT(df=2, scale=1.0).noise_variance({}) == math.inf


def test_a_distribution_without_quantiles_asks_for_draws() -> None:
    likelihood = likelihoods.LogLoss(None, distribution=lambda o: distributions.VonMises(o, 1.0))
    with pytest.raises(ValueError, match=r"VonMises.*LogLoss\(\.\.\., sample=fn\)"):
        likelihood.sample(torch.zeros(5, 2), key(), {})


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [([1, 2, 3], "use y - 1"), ([0, 4], "end the network with 5 outputs"),
     ([-1, 1], "count classes from 0"), ([-100, 2], "count .*, or say ignore_index=-100 if"),
     ([0, 255], "end .*, or say ignore_index=255 if")],
)  # fmt: skip
def test_class_indices_out_of_range_have_a_remedy(labels: list[int], remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"from {labels[0]} to {labels[-1]}: {remedy}"):
        likelihoods.Categorical().check(torch.zeros(len(labels), 3), torch.tensor(labels))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hardly_any_dispersion_is_a_poisson(dtype: torch.dtype) -> None:
    """The logarithms of the gamma function at r and r + y, both enormous, must not be subtracted:
    with a = 1e-15 their rounding is larger than the answer."""
    y = torch.tensor([0.0, 1.0, 7.0, 30.0, 400.0], dtype=dtype)[:, None]
    outputs = torch.full((len(y), 2), -34.0, dtype=dtype)
    outputs[:, 0] = torch.tensor([-1.0, 0.5, 2.0, 3.0, 6.0])
    found, loss = likelihoods.NegativeBinomial().output_gradient(outputs, y, {})
    wanted, expected = likelihoods.Poisson().output_gradient(outputs[:, :1], y, {})
    rounding = 400 * 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(loss, expected, rtol=0, atol=rounding)
    torch.testing.assert_close(found[:, :1], wanted, rtol=0, atol=rounding)
    torch.testing.assert_close(found[:, 1:], torch.zeros_like(wanted), rtol=0, atol=rounding)


def test_the_gradient_of_a_count_grows_no_further_where_its_density_is_nil() -> None:
    outputs = torch.tensor([[1.0], [20.0], [30.0], [5.0]], requires_grad=True)
    y = torch.tensor([[0.0], [0.0], [0.0], [20.0]])
    loss = likelihoods.Poisson().log_loss(outputs, y, {})
    exact = -torch.distributions.Poisson(outputs.exp()).log_prob(y)[:, 0]
    torch.testing.assert_close(loss, exact)
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    expected = [math.e, 30.0, 30.0, math.exp(5.0) - 20.0]
    torch.testing.assert_close(gradient[:, 0], torch.tensor(expected))


@pytest.mark.parametrize("compile", ["auto", pytest.param(False, marks=pytest.mark.thorough)])
def test_no_chain_of_counts_is_lost_where_rates_are_far_too_large(compile: str | bool) -> None:
    """By the engine and by torch: weights drawn from a wide prior, of which one chain in sixteen
    was lost."""
    generator = torch.Generator().manual_seed(93)
    x = torch.randn(80, 3, generator=generator)
    rate = (0.5 * (torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:]) + 0.5).exp()
    y = torch.poisson(rate, generator=generator)
    sampler = Langevin(
        models.mlp(3, 1, (20,)), likelihoods.Poisson(), prior=rules.prior(25.0), step_size=5e-3,
        recipe="auto", compile=compile, chains=16,
    )  # fmt: skip
    assert len(sampler.sample((x, y), 400, progress=False).healthy) == 16
