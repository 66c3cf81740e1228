"""Distillation: the student predicts like the ensemble, and better than a single sample."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, metrics, preconditioners, priors
from natural_langevin.likelihoods.predictive import Mixture
from natural_langevin.posterior.distillation import divergence
from natural_langevin.posterior.prediction import Prediction

Data = tuple[Tensor, Tensor]


def two_moons(count: int, seed: int) -> Data:
    """Two noisy half circles, one inside the other's arms."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    angle = torch.pi * torch.rand(count, generator=generator)
    x = torch.stack([angle.cos() + y, (1 - 2 * y) * angle.sin() + 0.5 * y], dim=1)
    return x + 0.25 * torch.randn(count, 2, generator=generator), y


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    sampler = Langevin(
        model, likelihoods.Categorical(), prior=priors.Gaussian(1.0), step_size=0.01, chains=6,
        init="fan_in",
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1e-2),
    )  # fmt: skip
    return sampler.sample(
        two_moons(40, 0), 300, batch_size=40, burn_in=200, thin=10, progress=False
    )


def test_the_student_is_as_good_as_the_ensemble(posterior: Posterior) -> None:
    """On unseen data: closer to the ensemble's NLL than a tenth of what a sample loses to it."""
    x, y = two_moons(1000, 1)
    unlabelled, _ = two_moons(1000, 2)
    before = torch.get_rng_state()
    student = posterior.distill(unlabelled, steps=1000, learning_rate=1e-2)
    assert torch.equal(before, torch.get_rng_state())
    prediction = posterior.predict(x)
    with torch.no_grad():
        distilled = metrics.nll(student(x).softmax(1), y)
    ensemble = metrics.nll(prediction.mean, y)
    single = sum(metrics.nll(p, y) for p in prediction.samples) / len(prediction.samples)
    print(f"NLL: ensemble {ensemble:.4f}, distilled {distilled:.4f}, one sample {single:.4f}")
    assert single > ensemble + 0.03
    assert abs(distilled - ensemble) < 0.1 * (single - ensemble)
    assert type(student) is nn.Sequential
    assert not student.training
    assert not any(p.requires_grad for p in student.parameters())


def test_the_same_seed_gives_the_same_student(posterior: Posterior) -> None:
    x, _ = two_moons(50, 2)
    dropout = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    before = torch.get_rng_state()
    students = [
        posterior.distill(x, model=dropout, steps=20, batch_size=16, seed=s) for s in (0, 0, 1)
    ]
    assert torch.equal(before, torch.get_rng_state())
    outputs = [s(x) for s in students]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert next(dropout.parameters()).requires_grad  # a copy was trained


def test_regression_with_and_without_variance() -> None:
    """A student of two outputs learns the total variance, which grows away from the data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 30)[:, None]
    y = x**3 + 0.1 * torch.randn(30, 1, generator=generator)
    torch.manual_seed(0)
    sampler = Langevin(
        nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), likelihoods.Gaussian(0.1),
        prior=priors.Gaussian(1.0), step_size=0.01, chains=6, init="fan_in",
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1e-2),
    )  # fmt: skip
    posterior = sampler.sample((x, y), 300, batch_size=30, burn_in=200, thin=10, progress=False)
    wide = torch.linspace(-3, 3, 200)[:, None]
    expected = posterior.predict(wide)
    student = nn.Sequential(
        nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )
    both = posterior.distill(wide, model=student, steps=500, learning_rate=1e-2)
    mean, log_variance = both(wide).split(1, dim=1)
    spread = expected.total.sqrt()
    assert float(((mean - expected.mean).abs() / spread).max()) < 0.3
    assert float((log_variance - expected.total.log()).abs().max()) < 0.5
    assert expected.total.max() > 5 * expected.total.min()  # there is something to learn
    alone = posterior.distill(wide, steps=500, learning_rate=1e-2)
    assert float(((alone(wide) - expected.mean).abs() / spread).max()) < 0.5
    with pytest.raises(ValueError, match=r"1 outputs \(the mean\) or twice"):
        posterior.distill(wide, model=nn.Linear(1, 3), steps=1)


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian"])
def test_divergences_against_torch_distributions(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, outputs = torch.randn(2, 6, 3, generator=generator).double()
    d = torch.distributions
    rows = torch.tensor([4, 1, 2])
    none = torch.zeros(6)
    if kind == "categorical":
        p = Prediction(logits.softmax(1), None, None, none, None)
        law = d.Categorical(probs=p.mean)
        found = divergence(p, law, likelihoods.Categorical())(outputs[rows], rows)
        pair = d.Categorical(logits=logits[rows]), d.Categorical(logits=outputs[rows])
    elif kind == "bernoulli":
        p = Prediction(logits.sigmoid(), None, None, none, None)
        law = d.Bernoulli(probs=p.mean)
        found = divergence(p, law, likelihoods.Bernoulli())(outputs[rows], rows)
        pair = d.Bernoulli(logits=logits[rows]), d.Bernoulli(logits=outputs[rows])
    else:
        variance = logits.exp()
        p = Prediction(logits, variance, None, none, None)
        both = torch.cat([outputs, outputs.flip(0)], dim=1)
        law = Mixture(likelihoods.Gaussian(1.0), logits[None], {})
        found = divergence(p, law, likelihoods.Gaussian(1.0))(both[rows], rows)
        scale = (outputs.flip(0) / 2).exp()
        pair = d.Normal(logits[rows], variance[rows].sqrt()), d.Normal(outputs[rows], scale[rows])
    torch.testing.assert_close(found, d.kl_divergence(*pair).mean())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
    ],
)
def test_bad_arguments(posterior: Posterior, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        posterior.distill(two_moons(10, 0)[0], **options)
