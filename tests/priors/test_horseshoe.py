"""The horseshoe: its marginal by quadrature, by prior draws, and a posterior by quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, dynamics, likelihoods, preconditioners, priors
from small_run import sample_until

Z, LOCAL, GLOBAL = (f"parametrizations.weight.original{i}" for i in range(3))


def marginal(w: np.ndarray) -> np.ndarray:
    """tau times the density of w / tau."""
    x = np.square(w) / 2
    small, far = np.minimum(x, 100), np.maximum(x, 100)
    scaled = special.exp1(small) * np.exp(small)  # beyond 100 the asymptotic series has 8 digits
    scaled = np.where(x < 100, scaled, (1 - 1 / far + 2 / far**2 - 6 / far**3) / far)
    return scaled / math.sqrt(2 * math.pi**3)


@pytest.mark.parametrize("w", [1e-3, 0.1, 0.7, 4.0])
def test_the_scale_integrated_out_is_the_horseshoe(w: float) -> None:
    """p(w) = integral of p(z) p(ln lambda) |dz/dw| over ln lambda, with both normalisations."""
    prior, tau = priors.horseshoe(nn.Linear(1, 1, bias=False).double(), scale=0.5).prior, 0.3

    def integrand(u: float) -> float:
        z, local = (torch.tensor([[v]], dtype=torch.float64) for v in (w / math.exp(u) / tau, u))
        density = prior[Z].log_density(z) + prior[LOCAL].log_density(local)
        return math.exp(float(density) - u) / tau

    found, _ = integrate.quad(integrand, math.log(w / tau) - 4, 25, limit=60, epsabs=0, epsrel=1e-7)
    assert found == pytest.approx(marginal(np.array(w / tau)) / tau, rel=1e-5)


@pytest.mark.parametrize("per", ["weight", "input", "unit"])
def test_draws_of_the_prior(per: str) -> None:
    """init="prior": w / tau has the marginal's law, tau and lambda are half-Cauchy, and lambda is
    shared as ``per`` says."""
    sparse = priors.horseshoe(nn.Linear(3, 2, bias=False).double(), scale=0.5, per=per)
    sampler = Langevin(
        sparse.model, likelihoods.Categorical(), prior=sparse.prior, chains=4000, init="prior",
        num_data=1, preconditioner=preconditioners.Euclidean(),
    )  # fmt: skip
    params = sampler.init().params
    shape = {"weight": (2, 3), "input": (1, 3), "unit": (2, 1)}[per]
    assert params[LOCAL].shape == (4000, *shape)
    tau, local = params[GLOBAL].exp(), params[LOCAL].exp()
    assert stats.kstest(tau.numpy(), stats.halfcauchy(scale=0.5).cdf).pvalue > 1e-4
    w = torch.func.vmap(sparse.model.parametrizations.weight[0])(
        params[Z], params[LOCAL], params[GLOBAL]
    )
    torch.testing.assert_close(w, params[Z] * local * tau[:, None, None])
    one = (w[:, 1, 2] / tau).abs().numpy()
    grid = np.exp(np.linspace(-25, 16, 4000))
    below = integrate.cumulative_trapezoid(2 * marginal(grid) * grid, np.log(grid), initial=0)
    assert below[-1] == pytest.approx(1, abs=1e-5)
    assert stats.kstest(np.interp(one, grid, below), "uniform").pvalue > 1e-4


def test_the_slab_bounds_large_weights() -> None:
    weight = priors.horseshoe(nn.Linear(2, 2), slab=2.0).model.parametrizations.weight[0]
    total = torch.tensor([-6.0, 0.0, 3.0, 60.0], dtype=torch.float64)
    product = total.exp()
    expected = 1 / (1 / product.square() + 1 / 2.0**2).sqrt()
    zero = torch.zeros((), dtype=torch.float64)
    torch.testing.assert_close(weight.deviation(total, zero), expected)


def test_the_network_starts_where_it_was_and_is_a_copy() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    before = {k: p.detach().clone() for k, p in model.named_parameters()}
    sparse = priors.horseshoe(model, "0.*", scale=0.2, slab=1.0, per="unit")
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sparse.model(x), model(x))
    assert {k.split(".")[0] for k in sparse.prior} == {"0"}
    for k, p in model.named_parameters():
        assert torch.equal(p, before[k])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale must be positive and finite, got 0.0"),
        ({"slab": -1.0}, "slab must be positive and finite, got -1.0"),
        ({"per": "layer"}, "per must be one of .* got 'layer'"),
        ({"pattern": "*bias"}, r"'\*bias' matches no parameter of two axes or more: \['weight'\]"),
    ],
)
def test_bad_values(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        priors.horseshoe(nn.Linear(2, 2), **options)


def regression() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 1, generator=generator, dtype=torch.float64)
    return x, 0.5 * x + torch.randn(12, 1, generator=generator, dtype=torch.float64)


def exact_moments(scale: float) -> tuple[float, float]:
    """E w and E w^2 of y = w x + N(0, 1): Gaussian given s = lambda tau, then a sum over ln s."""
    x, y = (t.numpy() for t in regression())
    precision, b = float((x * x).sum()), float((x * y).sum())
    u = np.linspace(-40, 40, 8001)
    density = [np.exp(u) / c * 2 / math.pi / (1 + np.exp(2 * u) / c**2) for c in (1.0, scale)]
    log_s = np.log(np.maximum(np.convolve(*density, mode="same"), 1e-300))
    s2 = np.exp(2 * u)
    evidence = log_s - np.log1p(s2 * precision) / 2 + b**2 / 2 / (precision + 1 / s2)
    p = np.exp(evidence - evidence.max())
    p, mean = p / p.sum(), b / (precision + 1 / s2)
    return float((p * mean).sum()), float((p * (mean**2 + 1 / (precision + 1 / s2))).sum())


def test_the_posterior_of_a_weight() -> None:
    """Metropolis-adjusted, from the prior: mean and second moment within Monte-Carlo error."""
    sparse = priors.horseshoe(nn.Linear(1, 1, bias=False).double(), scale=0.5)
    sampler = Langevin(
        sparse.model, likelihoods.Gaussian(sigma=1.0), prior=sparse.prior, chains=400,
        init="prior", preconditioner=preconditioners.Euclidean(), step_size=0.5,
        dynamics=dynamics.Adjusted(steps=4),
    )  # fmt: skip
    posterior = sampler.sample(regression(), 240, burn_in=120, thin=12, progress=False)
    z, local, overall = (posterior.samples[k].reshape(400, -1) for k in (Z, LOCAL, GLOBAL))
    w = z * (local + overall).exp()
    for found, expected in zip((w, w.square()), exact_moments(0.5), strict=True):
        by_chain = found.mean(1)
        error = float(by_chain.std()) / math.sqrt(len(by_chain))
        assert abs(float(by_chain.mean()) - expected) < 4 * error


@pytest.mark.parametrize("kind", dynamics.REGISTRY)
def test_every_dynamics_moves_a_scale_without_axes(kind: str) -> None:
    """ln tau has the shape (), its chains (chain,)."""
    sparse = priors.horseshoe(nn.Linear(1, 1, bias=False).double())
    sampler = Langevin(
        sparse.model, likelihoods.Gaussian(sigma=1.0), prior=sparse.prior, chains=3,
        step_size=0.01, num_data=12, dynamics=dynamics.REGISTRY[kind](),
    )  # fmt: skip
    start = state = sampler.init()
    for _ in range(3):
        state, _ = sampler.step(state, regression(), burn_in=1)
    assert state.params[GLOBAL].shape == (3,)
    assert (state.params[GLOBAL] != start.params[GLOBAL]).any()


def test_saved_loaded_and_resumed(tmp_path, monkeypatch) -> None:
    sparse = priors.horseshoe(nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double())

    def run(**checkpoint: object) -> Posterior:
        sampler = Langevin(
            sparse.model, likelihoods.Gaussian(sigma=1.0), chains=2, step_size=0.01,
            prior=sparse.prior | {"*": priors.Gaussian(1.0)}, compile=False,
        )  # fmt: skip
        return sampler.sample(
            regression(), 12, batch_size=6, burn_in=4, thin=2, progress=False, **checkpoint
        )

    whole = run()
    sample_until(monkeypatch, 2, lambda: run(checkpoint=tmp_path / "run", every=1))
    resumed = run(checkpoint=tmp_path / "run", every=1)
    whole.save(tmp_path / "kept")
    loaded = Posterior.load(tmp_path / "kept", sparse.model)
    assert sparse.prior.keys() < whole.samples.keys()
    for name, draws in whole.samples.items():
        assert torch.equal(resumed.samples[name], draws)
        assert torch.equal(loaded.samples[name], draws)
    x = regression()[0]
    torch.testing.assert_close(loaded.network(1, 3)(x), whole.network(1, 3)(x))
