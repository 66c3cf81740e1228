"""Logistic regression against a long NUTS run (blackjax): means and full covariance.

The metric is learnt from the first batch and then stands still, so the chain is Euler's scheme with
a constant C. Its stationary law pi_h is known to first order in h = eta / N (the weak backward
error of Euler-Maruyama; V = -ln posterior):

    pi_h ~ pi exp( h [ grad V^T C grad V / 4 - tr(C hess V) / 2 ] )

(exact for Gaussian posteriors). NUTS draws weighted by this factor are the reference: no step-size
bias is left but O(h^2), about the square of the bias that is printed. Both Monte-Carlo errors
count: independent chains here, batch means of 100 consecutive draws for NUTS.

The draws are kept beside this file (``draws_of_nuts``, once); that they are those of NUTS is a
thorough test.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from monte_carlo import assert_within
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners, priors

NUM_DATA, FEATURES, VARIANCE = 150, 4, 1.0
CHAINS, DRAWS, BATCH = 768, (4, 2500), 100


def data() -> tuple[Tensor, Tensor]:
    """Correlated, shifted inputs; labels from the model."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(NUM_DATA, FEATURES, generator=g, dtype=torch.float64)
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    x[:, 2] += 1.0
    logits = x @ torch.tensor([1.0, -0.7, 0.5, 0.0], dtype=x.dtype) - 0.3
    return x, (torch.rand(NUM_DATA, generator=g) < torch.sigmoid(logits)).double()[:, None]


@pytest.fixture(scope="module")
def nuts() -> Tensor:
    with np.load(Path(__file__).with_name("logistic_nuts.npz")) as kept:
        return torch.from_numpy(kept["draws"]).double()


def draws_of_nuts() -> Tensor:
    """(chain, draw, weights then bias): window adaptation, then 4 chains of 2500 draws."""
    reason = "the reference run needs jax and blackjax: pip install 'natural-langevin[dev]'"
    jax = pytest.importorskip("jax", reason=reason)
    blackjax = pytest.importorskip("blackjax", reason=reason)
    x, y = (t.numpy() for t in data())
    phi, y = np.c_[x, np.ones(NUM_DATA)], y[:, 0]

    def log_posterior(theta):  # type: ignore[no-untyped-def]
        logits = phi @ theta
        log_likelihood = (y * logits - jax.nn.softplus(logits)).sum()
        return log_likelihood - (theta**2).sum() / (2 * VARIANCE)

    with jax.enable_x64(True):
        warm, draws = jax.random.split(jax.random.key(0))
        adaptation = blackjax.window_adaptation(blackjax.nuts, log_posterior)
        (state, settings), _ = adaptation.run(warm, jax.numpy.zeros(FEATURES + 1), 500)
        kernel = blackjax.nuts(log_posterior, **settings)

        def chain(key):  # type: ignore[no-untyped-def]
            def step(state, key):  # type: ignore[no-untyped-def]
                state, _ = kernel.step(key, state)
                return state, state.position

            return jax.lax.scan(step, state, jax.random.split(key, DRAWS[1]))[1]

        positions = jax.jit(jax.vmap(chain))(jax.random.split(draws, DRAWS[0]))
        return torch.from_numpy(np.array(positions))


def batches(draws: Tensor) -> Tensor:
    """Means of 100 consecutive draws of theta and of its squares: (batch, 2 p)."""
    both = torch.cat([draws, draws.square()], dim=-1)
    return both.unflatten(1, (-1, BATCH)).mean(2).flatten(0, 1)


@pytest.mark.thorough  # the same draws, kept: test_agrees_with_nuts
def test_the_draws_that_are_kept_are_those_of_nuts(nuts: Tensor) -> None:
    assert nuts.shape == (*DRAWS, FEATURES + 1)
    kept, new = batches(nuts), batches(draws_of_nuts())
    variance = (kept.var(0) + new.var(0)) / len(kept)
    assert_within(kept.mean(0) - new.mean(0), variance.sqrt())


def first_batch_only(step: int) -> float:
    return 1.0 if step == 0 else 0.0


def sample(preconditioner, start: Tensor, eta: float, steps: int) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """Independent chains (chain, p), ``steps`` full batches after the point ``start``; their C."""
    model = nn.Linear(FEATURES, 1).double()
    with torch.no_grad():
        model.weight.copy_(start[:-1])
        model.bias.copy_(start[-1:])
    sampler = Langevin(
        model, likelihoods.Bernoulli(), prior=priors.Gaussian(VARIANCE), chains=CHAINS,
        preconditioner=preconditioner, step_size=eta, num_data=NUM_DATA,
    )  # fmt: skip
    state = sampler.init()
    for _ in range(steps):
        state, _ = sampler.step(state, data())
    eye = torch.eye(FEATURES + 1, dtype=torch.float64).repeat_interleave(CHAINS, 0)
    C = preconditioner.factor(state.metric, sampler.frame.damping(state.params, NUM_DATA))
    columns = [C.apply({"weight": e[:, None, :-1], "bias": e[:, -1:]}) for e in eye.split(CHAINS)]
    C = torch.stack([torch.cat([c["weight"][0, 0], c["bias"][0]]) for c in columns])
    return torch.cat([state.params["weight"][:, 0], state.params["bias"]], dim=1), C


def log_weight(theta: Tensor, metric: Tensor, h: float) -> Tensor:
    """h [grad V^T C grad V / 4 - tr(C hess V) / 2] for theta (..., p)."""
    x, y = data()
    phi = torch.cat([x, torch.ones_like(y)], dim=1)
    p = torch.sigmoid(theta @ phi.mT)
    gradient = (p - y[:, 0]) @ phi + theta / VARIANCE
    trace = (p * (1 - p)) @ ((phi @ metric) * phi).sum(1) + metric.trace() / VARIANCE
    return h * (((gradient @ metric) * gradient).sum(-1) / 4 - trace / 2)


def moments(theta: Tensor, mean: Tensor, root: Tensor) -> Tensor:
    """Whitened coordinates z_i and products z_i z_j, i <= j: (..., p + p (p + 1) / 2)."""
    z = torch.linalg.solve_triangular(root.mT, theta - mean, upper=True, left=False)
    i, j = torch.triu_indices(len(mean), len(mean))
    return torch.cat([z, z[..., i] * z[..., j]], dim=-1)


@pytest.mark.parametrize(
    ("preconditioner", "eta", "steps"),
    [
        (preconditioners.Euclidean(), 0.4, 160),
        (preconditioners.QuasiDiagonalFisher(decay=first_batch_only), 0.1, 120),
        (preconditioners.FullFisher(decay=first_batch_only), 0.15, 80),
    ],
    ids=["euclidean", "quasi-diagonal", "full"],
)
def test_agrees_with_nuts(nuts: Tensor, preconditioner, eta: float, steps: int) -> None:  # type: ignore[no-untyped-def]
    pooled = nuts.flatten(0, 1)
    theta, C = sample(preconditioner, pooled.mean(0), eta, steps)
    frame = pooled.mean(0), torch.linalg.cholesky(pooled.mT.cov())
    ours, theirs = moments(theta, *frame), moments(pooled, *frame)

    weight = log_weight(pooled, C, eta / NUM_DATA).softmax(0)[:, None]
    expected = (weight * theirs).sum(0)
    bias = expected - theirs.mean(0)
    print(f"step-size bias {bias.abs().max():.3f}")
    assert float(bias.abs().max()) < 0.15

    terms = (weight * len(pooled) * (theirs - expected)).unflatten(0, (-1, BATCH)).mean(1)
    variance = ours.var(0) / CHAINS + terms.var(0) / len(terms)
    assert_within(ours.mean(0) - expected, variance.sqrt())
