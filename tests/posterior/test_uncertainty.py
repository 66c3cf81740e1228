"""Uncertainty behaves: falls with data, rises away from them, and intervals hold what they say."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors
from natural_langevin.posterior.prediction import Averager, Prediction

SIGMA = 0.3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))


def curve(count: int) -> tuple[Tensor, Tensor]:
    """y = sin(3 x) with noise, x in [-1, 1]."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(count, 1, generator=generator) - 1
    return x, torch.sin(3 * x) + SIGMA * torch.randn(count, 1, generator=generator)


def fit(count: int, likelihood: likelihoods.Likelihood, data: tuple[Tensor, Tensor]) -> Posterior:
    model = network()
    if isinstance(likelihood, likelihoods.Categorical):
        model[2] = nn.Linear(10, 2)
    sampler = Langevin(
        model, likelihood, prior=priors.Gaussian(variance=1.0), chains=4, init="fan_in",
        step_size=0.02, preconditioner=preconditioners.QuasiDiagonalFisher(damping=0.02),
    )  # fmt: skip
    return sampler.sample(data, 260, batch_size=count, burn_in=160, thin=10, progress=False)


@pytest.fixture(scope="module")
def by_count() -> dict[int, Posterior]:
    return {n: fit(n, likelihoods.Gaussian(SIGMA), curve(n)) for n in (10, 60, 360)}


def test_epistemic_uncertainty_of_regression_falls(
    by_count: dict[int, Posterior],
) -> None:
    """Roughly as 1/N; at least halved by six times the data. The noise's part does not move."""
    x = torch.linspace(-1, 1, 50)[:, None]
    few, some, many = (by_count[n].predict(x) for n in (10, 60, 360))
    assert few.epistemic.mean() > 2 * some.epistemic.mean() > 4 * many.epistemic.mean()
    for p in (few, some, many):
        torch.testing.assert_close(p.aleatoric, torch.full_like(p.mean, SIGMA**2))


def test_epistemic_uncertainty_rises_away_from_the_data(by_count: dict[int, Posterior]) -> None:
    for posterior in by_count.values():
        inside = posterior.predict(torch.linspace(-1, 1, 50)[:, None]).epistemic.mean()
        near, far = (
            posterior.predict(torch.tensor([[-d], [d]])).epistemic.mean() for d in (1.5, 3.0)
        )
        assert far > 1.5 * near > 1.5 * inside


def test_epistemic_uncertainty_of_classes() -> None:
    """Mutual information: falls with data inside, and is larger in the gap than on the data, by
    the factor asked of the regression too."""
    inside, gap = torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.0]])
    found = []
    for count in (10, 160):
        generator = torch.Generator().manual_seed(1)
        y = torch.arange(count) % 2
        x = (2.0 * y - 1)[:, None] + 0.2 * torch.randn(count, 1, generator=generator)
        posterior = fit(count, likelihoods.Categorical(), (x, y))
        found.append((posterior.predict(inside), posterior.predict(gap)))
    (few, few_gap), (many, many_gap) = found
    assert few.epistemic.mean() > 2 * many.epistemic.mean()
    assert few_gap.epistemic.mean() > 1.5 * few.epistemic.mean()
    assert many_gap.epistemic.mean() > 1.5 * many.epistemic.mean()


MODELS, CHAINS, POINTS, NEW, NOISE = 150, 12, 8, 20, 0.8


def from_the_model() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (8, 4) of orthogonal columns; for 150 weights drawn from the prior, y (model, 8, 1), and
    new data x (model, 20, 4), y (model, 20, 1)."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = torch.linalg.qr(draw(POINTS, 4))[0] * math.sqrt(POINTS)
    theta, x_new = draw(MODELS, 4, 1), draw(MODELS, NEW, 4)
    y, y_new = (t @ theta + NOISE * draw(MODELS, t.shape[-2], 1) for t in (x, x_new))
    return x, y, x_new, y_new


def posteriors(temperatures: Sequence[float], x: Tensor, y: Tensor) -> list[list[Posterior]]:
    """At each temperature, one of 12 chains for each model's data, all sampled in one run: 1800
    chains at each, with their own targets. The Hessian is 1.69 Id, so a step of 0.03 forgets its
    start in 20 steps, and makes the epistemic variance 1 / (1 - 0.03 x 1.69 / 2) = 1.03 times too
    large: below the error."""
    model, of_one = nn.Linear(4, 1, bias=False).double(), MODELS * CHAINS
    chains = of_one * len(temperatures)
    sampler = Langevin(
        model, likelihoods.Gaussian(NOISE), prior=priors.Gaussian(variance=1.0),
        preconditioner=preconditioners.Euclidean(), step_size=0.03, chains=chains,
        temperature=torch.tensor(temperatures).repeat_interleave(of_one), num_data=POINTS,
        init="prior",
    )  # fmt: skip
    targets = y.repeat_interleave(CHAINS, dim=0).repeat(len(temperatures), 1, 1)
    batch = (x.expand(chains, -1, -1), targets)
    state, kept = sampler.init(), []
    for step in range(1, 211):
        state, _ = sampler.step(state, batch, chain_axis=True)
        if step > 80 and step % 30 == 0:
            kept.append(state.params["weight"])
    samples = torch.stack(kept, dim=1).unflatten(0, (len(temperatures), MODELS, CHAINS))
    return [
        [Posterior(
            model=model, likelihood=likelihoods.Gaussian(NOISE), samples={"weight": s},
            mean={"weight": s.mean(1)}, last={"weight": s[:, -1]},
            diverged=torch.full((CHAINS,), -1),
        ) for s in at_one]
        for at_one in samples
    ]  # fmt: skip


def test_intervals_hold_what_they_say_on_data_from_the_model() -> None:
    """Averaged over models drawn from the prior, a 90 % interval holds 90 % of new data, however
    few the data were: here within 4 standard errors, measured between models. Intervals without
    the epistemic part, or sampled at T = 0.1, do not."""
    x, y, x_new, y_new = from_the_model()
    inside: dict[str, list[float]] = {"50 %": [], "90 %": [], "noise alone": [], "cold": []}

    def add(name: str, low: Tensor, high: Tensor, targets: Tensor) -> None:
        inside[name].append(float(((low <= targets) & (targets <= high)).double().mean()))

    warm, cold = posteriors((1.0, 0.1), x, y)
    for hot, frozen, new, targets in zip(warm, cold, x_new, y_new, strict=True):
        p = hot.predict(new, quantiles=(0.25, 0.75, 0.05, 0.95), sample_batch=100)
        add("50 %", p.quantiles[0], p.quantiles[1], targets)
        add("90 %", p.quantiles[2], p.quantiles[3], targets)
        add("noise alone", p.mean - 1.645 * NOISE, p.mean + 1.645 * NOISE, targets)
        q = frozen.predict(new, quantiles=(0.05, 0.95), sample_batch=100).quantiles
        add("cold", q[0], q[1], targets)
    found = {}
    for name, values in inside.items():
        column = torch.tensor(values).double()
        found[name] = float(column.mean()), float(column.std()) / math.sqrt(MODELS)
    print(found)
    for name, level in (("50 %", 0.5), ("90 %", 0.9)):
        mean, error = found[name]
        assert error < 0.015
        assert abs(mean - level) < 4 * error
    for name in ("noise alone", "cold"):
        mean, error = found[name]
        assert mean < 0.9 - 4 * error


@pytest.mark.parametrize("processes", [1, 2])
def test_small_deviations_of_large_numbers(processes: int) -> None:
    """No difference of squares: at 1e9 even float64 would have an error of 100."""
    generator = torch.Generator().manual_seed(0)
    values = 1e9 + torch.randn(60, 5, 2, generator=generator, dtype=torch.float64)
    met, said = threading.Barrier(processes, timeout=60), [torch.zeros(())] * processes

    def averaged(rank: int) -> Prediction:
        def add_up(own: Tensor) -> Tensor:
            met.wait()
            said[rank] = own
            met.wait()
            return torch.stack(said).sum(0)

        averager = Averager(likelihoods.Gaussian(0.5), 60, {}, keep_samples=False, levels=())
        for some in values.chunk(processes)[rank].split(7):
            averager.add(some)
        if processes > 1:
            averager.pool(add_up, torch.clone)
        return averager.finish()

    with ThreadPoolExecutor(processes) as pool:
        for found in pool.map(averaged, range(processes)):
            torch.testing.assert_close(found.mean, values.mean(0), rtol=1e-15, atol=0)
            variance = values.var(0, correction=0)
            torch.testing.assert_close(found.epistemic, variance, rtol=1e-6, atol=0)
            torch.testing.assert_close(found.total, variance + 0.25, rtol=1e-6, atol=0)
