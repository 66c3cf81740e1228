"""Traps, each seen in a published implementation (DESIGN, section 7): one test per trap.

Noise is measured, not recomputed: thousands of chains take one step, and the variance of where
they land is compared with 2 eta T / N C. Bounds are 5 standard errors.
"""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors
from natural_langevin.preconditioners import REGISTRY, QuasiDiagonalFisher


def layer(inputs: int, outputs: int, *, bias: bool = False, value: float = 0.0) -> nn.Linear:
    module = nn.Linear(inputs, outputs, bias=bias, dtype=torch.float64)
    for p in module.parameters():
        nn.init.constant_(p, value)
    return module


def sampler(model: nn.Module, **options) -> Langevin:
    settings = {
        "likelihood": likelihoods.Gaussian(sigma=1.0),
        "preconditioner": preconditioners.Euclidean(),
        "prior": priors.Flat(),
        "chains": 1,
        "step_size": 0.1,
        "num_data": 10,
    }
    return Langevin(model, **(settings | options))


def data(x: list[float], y: list[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(x).double()[:, None], torch.tensor(y).double()[:, None]


def one_step(model: nn.Module, batch: tuple[Tensor, Tensor], **options) -> dict[str, Tensor]:
    run = sampler(model, **options)
    return run.step(run.init(), batch)[0].params


CHAINS = 2000


@pytest.mark.parametrize("num_data", [10, 1000])
@pytest.mark.parametrize(("eta", "temperature"), [(0.1, 1.0), (0.02, 1.0), (0.1, 0.25)])
def test_noise_variance(num_data: int, eta: float, temperature: float) -> None:
    """2 eta T / N. Not 2 eta / N^2 (the paper's footnote: that is T = 1/N), not eta, not 4 eta.

    Inputs are zero, so the gradient is zero and the step is its noise."""
    theta = one_step(
        layer(20, 2), (torch.zeros(4, 20).double(), torch.ones(4, 2).double()),
        chains=CHAINS, num_data=num_data, step_size=eta, temperature=temperature,
    )["weight"]  # fmt: skip
    variance = 2 * eta * temperature / num_data
    assert abs(theta.var() / variance - 1) < 5 * math.sqrt(2 / theta.numel())
    assert abs(theta.mean()) < 5 * math.sqrt(variance / theta.numel())


@pytest.mark.parametrize("name", REGISTRY)
def test_noise_has_the_square_root_of_the_metric(name: str) -> None:
    """decay = 0 keeps J = 1, and damping 3 makes C = 1/4 (RMSProp: 1/2; Kronecker, whose factors
    get half of it each: (1 + sqrt 3)^-2): variance 2 eta / N C.

    Noise scaled by C instead of C^(1/2) would have C^2."""
    options = {} if name == "euclidean" else {"damping": 3.0, "decay": 0.0}
    theta = one_step(
        layer(20, 2, bias=True), (torch.zeros(4, 20).double(), torch.zeros(4, 2).double()),
        chains=CHAINS, preconditioner=REGISTRY[name](**options),
    )["weight"]  # fmt: skip
    kronecker = (1 + math.sqrt(3)) ** -2
    C = {"euclidean": 1.0, "rmsprop": 0.5, "kronecker": kronecker}.get(name, 0.25)
    assert abs(theta.var() / (2 * 0.1 / 10 * C) - 1) < 5 * math.sqrt(2 / theta.numel())


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("targets", ["data", "model"])
def test_noise_and_drift_share_one_metric(name: str, targets: str) -> None:
    """Hot minus cold is the noise alone; divided by the root of the C that ``apply`` uses for the
    drift, it must be white, correlations between bias and weights included."""
    metric = REGISTRY[name]
    takes_targets = "targets" in inspect.signature(metric).parameters
    options = {"targets": targets} if takes_targets else {}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=generator).double() + 1
    runs = [
        sampler(layer(2, 1, bias=True, value=0.5), preconditioner=metric(**options), chains=CHAINS,
                temperature=t)
        for t in (1.0, 0.0)
    ]  # fmt: skip
    hot, cold = (run.step(run.init(), (x, x[:, :1] * 2))[0] for run in runs)
    noise = torch.cat([(hot.params[k] - cold.params[k]).flatten(1) for k in hot.params], dim=1)
    columns, damping = [], runs[0].frame.damping(cold.params, 10)
    for basis in torch.eye(3).double():
        tree = {"weight": basis[:2].expand(CHAINS, 1, 2), "bias": basis[2:].expand(CHAINS, 1)}
        image = runs[0].preconditioner.apply(cold.metric, tree, damping)
        columns.append(torch.cat([image["weight"].flatten(1), image["bias"]], dim=1))
    root = torch.linalg.cholesky(torch.stack(columns, dim=2))
    white = torch.linalg.solve_triangular(root, noise[..., None], upper=False)[..., 0]
    white = white / math.sqrt(2 * 0.1 / 10)
    error = torch.sqrt((1 + torch.eye(3)) / CHAINS)
    assert (((white.mT @ white) / CHAINS - torch.eye(3)) / error).abs().max() < 5


@pytest.mark.parametrize(("num_data", "temperature"), [(10, 1.0), (1000, 1.0), (1000, 0.25)])
def test_temperature_does_not_depend_on_the_number_of_data(
    num_data: int, temperature: float
) -> None:
    """theta ~ N(0, T / N) for y ~ N(theta, 1) seen N times; of the chain, exactly
    (T / N) / (1 - eta / 2), the known bias of a finite step."""
    eta, run_steps = 0.4, 30  # 0.6^60 of the start is left
    run = sampler(
        layer(1, 1), chains=4000, num_data=num_data, step_size=eta, temperature=temperature
    )
    state = run.init()
    for _ in range(run_steps):
        state, _ = run.step(state, data([1.0, 1.0], [0.0, 0.0]))
    law = temperature / num_data / (1 - eta / 2)
    assert abs(state.params["weight"].var() / law - 1) < 5 * math.sqrt(2 / 4000)


def test_step_size_and_prior_scale() -> None:
    """By hand: y = 0, x = 1, theta = 2 gives g = 2; a prior of variance 0.5 on N = 10 adds
    theta / (N 0.5) = 0.4. eta = 0.1 moves by 0.24: neither half nor twice that."""
    moved = one_step(
        layer(1, 1, value=2.0), data([1.0], [0.0]), temperature=0.0, prior=priors.Gaussian(0.5)
    )
    assert float(moved["weight"]) == pytest.approx(2 - 0.1 * (2 + 0.4), abs=1e-12)


@pytest.mark.parametrize("name", ["diagonal", "quasi-diagonal", "full"])
def test_squares_are_of_samples_not_of_the_batch_mean(name: str) -> None:
    """Two samples that pull in opposite directions: the mean gradient is 0, the Fisher is 1."""
    run = sampler(layer(1, 1), preconditioner=REGISTRY[name]())
    state, _ = run.step(run.init(), data([1.0, 1.0], [1.0, -1.0]))
    (j,) = state.metric["fisher" if name == "full" else "second"].values()
    assert float(j) == pytest.approx(1.0)
    rms = sampler(layer(1, 1), preconditioner=preconditioners.RMSProp())
    state, _ = rms.step(rms.init(), data([1.0, 1.0], [1.0, -1.0]))
    assert float(state.metric["square"]["weight"]) == 0


@pytest.mark.parametrize("name", [n for n in REGISTRY if n != "euclidean"])
@pytest.mark.parametrize("options", [{"prior": priors.Gaussian(1e-3)}, {"temperature": 100.0}])
def test_metric_holds_neither_prior_nor_noise(name: str, options: dict) -> None:
    batch = data([1.0, 0.5], [1.0, -1.0])
    plain, other = (
        sampler(layer(1, 1, bias=True, value=0.3), preconditioner=REGISTRY[name](), **o)
        for o in ({}, options)
    )
    a, b = (run.step(run.init(), batch)[0] for run in (plain, other))
    assert not torch.equal(a.params["weight"], b.params["weight"])
    for one, two in zip(pytree.tree_leaves(a.metric), pytree.tree_leaves(b.metric), strict=True):
        assert torch.equal(one, two)


def test_clamp_acts_on_noise_and_drift_alike() -> None:
    """A metric pushed past Cauchy-Schwarz (J_0i^2 > J_00 J_ii): drift and noise still share A."""
    metric = {
        "second": {"b": torch.tensor([[1.0]]).double(), "w": torch.tensor([[[1.0, 2.0]]]).double()},
        "cross": {"b": {"w": torch.tensor([[[1.5, 0.5]]]).double()}},
    }
    quasi, eps = QuasiDiagonalFisher(), {"b": 1e-2, "w": 1e-2}
    A, C = [], []
    for e in torch.eye(3).double():
        tree = {"b": e[None, :1], "w": e[None, None, 1:]}
        images = quasi.sample(metric, tree, eps), quasi.apply(metric, tree, eps)
        for columns, image in zip((A, C), images, strict=True):
            columns.append(torch.cat([image["b"].flatten(), image["w"].flatten()]))
    factor, matrix = torch.stack(A, dim=1), torch.stack(C, dim=1)
    torch.testing.assert_close(factor @ factor.T, matrix)
    assert factor[1, 1] == pytest.approx(0.01**-0.5)  # the clamped Schur complement is eps
    assert torch.linalg.eigvalsh(matrix).min() > 0


def test_probabilities_are_averaged_not_their_logarithms() -> None:
    """Two networks sure of opposite classes, one more than the other."""
    logits = torch.tensor([[0.0, 6.0], [0.0, -2.0]])
    posterior = Posterior(
        model=nn.Linear(1, 2), likelihood=likelihoods.Categorical(),
        samples={"weight": torch.zeros(1, 2, 2, 1), "bias": logits[None]},
        mean={"weight": torch.zeros(1, 2, 1), "bias": logits[:1]},
        last={"weight": torch.zeros(1, 2, 1), "bias": logits[:1]}, diverged=torch.tensor([-1]),
    )  # fmt: skip
    p = posterior.predict(torch.zeros(1, 1)).mean[0, 1]
    assert float(p) == pytest.approx((1 / (1 + math.exp(-6)) + 1 / (1 + math.exp(2))) / 2)


def test_conjugate_prior_arguments_cannot_be_swapped() -> None:
    """Student-t with 2 alpha degrees of freedom and scale sqrt(beta / alpha), by keyword only."""
    with pytest.raises(TypeError, match="positional"):
        priors.NormalInverseGamma(3.0, 0.5)
    density = priors.NormalInverseGamma(alpha=3.0, beta=0.5).log_density(torch.tensor([[0.7]]))
    assert float(density) == pytest.approx(stats.t(6, scale=math.sqrt(0.5 / 3)).logpdf(0.7), 1e-5)


@pytest.mark.parametrize(("burn_in", "thin"), [(0, 1), (0, 3), (4, 3), (5, 1)])
def test_thinning_is_not_off_by_one(burn_in: int, thin: int) -> None:
    """A loss of slope -1 and eta = 1: iterate k is the number k, and samples name themselves."""
    run = sampler(
        layer(1, 1), likelihood=likelihoods.LogLoss(lambda outputs, y: -outputs[:, 0]),
        step_size=1.0, temperature=0.0,
    )  # fmt: skip
    posterior = run.sample(
        data([1.0], [0.0]), 13, batch_size=1, burn_in=burn_in, thin=thin, progress=False
    )
    numbers = posterior.samples["weight"].flatten().tolist()
    assert numbers == list(range(burn_in + thin, 14, thin))


def test_square_loss_is_a_log_loss_with_its_sigma() -> None:
    """Residual 0.5 and sigma 0.1: slope 0.5 / 0.01 = 50, not 0.5, and not 1 (2 x residual)."""
    moved = one_step(
        layer(1, 1), data([1.0], [0.5]), likelihood=likelihoods.Gaussian(sigma=0.1),
        temperature=0.0, step_size=1e-3,
    )  # fmt: skip
    assert float(moved["weight"]) == pytest.approx(50e-3)
    with pytest.raises(TypeError, match="sigma"):
        likelihoods.Gaussian()


@pytest.mark.parametrize("compile", [False, "auto"])
def test_an_exploding_chain_is_not_healthy_in_double_precision(compile: bool | str) -> None:
    """It passes 1e38 like a float32's, where 1e300 would still be finite; its neighbour goes on."""
    batch = data([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 1.0, 2.0])
    run = sampler(
        layer(1, 1), step_size=torch.tensor([0.01, 30.0]), chains=2, num_data=4, compile=compile
    )
    posterior = run.sample(batch, 30, batch_size=4, progress=False)
    assert posterior.healthy == [0]
    assert 0 < int(posterior.diverged[1]) < 20
    assert float(posterior.last["weight"][0].abs()) < 10
