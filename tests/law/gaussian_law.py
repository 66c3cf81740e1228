"""The exact discrete-time law of Langevin dynamics on Bayesian linear regression.

Given the minibatches and the metric, the chain of nn.Linear(d, 1) with a Gaussian likelihood is a
linear recursion with Gaussian noise. With inputs Phi = [x, 1] and a minibatch of B of N data,

    H_t = Phi_B^T Phi_B / (B sigma^2) + D / N,     b_t = Phi_B^T y_B / (B sigma^2) + D m / N

(D = diag of prior precisions, m the prior mean), mean and covariance evolve exactly as

    mean <- mean - eta C (H_t mean - b_t)
    cov  <- (Id - eta C H_t) cov (Id - eta C H_t)^T + (2 eta T / N) C.

Nothing is neglected: not the step size, not the minibatch noise, not the reshuffling of epochs,
since each chain's own batches are put in. A chain, whitened by its own law, is standard normal.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods
from natural_langevin.data.streams import as_stream
from natural_langevin.dynamics.base import State

NUM_DATA, FEATURES = 48, 3
PARAMETERS = FEATURES + 1  # weight, then bias
TRUTH = torch.tensor([1.0, -0.5, 0.8, 0.2], dtype=torch.float64)


class Problem(NamedTuple):
    """Data and prior of a linear regression; prior precision and T may have a chain axis."""

    x: Tensor  # (N, d)
    y: Tensor  # (N, 1)
    sigma: float
    precision: Tensor  # prior: (p,) or (chain, p)
    mean: float  # prior
    temperature: Tensor  # () or (chain,)

    def moments(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """H_t (..., p, p) and b_t (..., p) of a batch (..., B, d)."""
        phi = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
        scale = x.shape[-2] * self.sigma**2
        H = phi.mT @ phi / scale + torch.diag_embed(self.precision) / len(self.x)
        b = (phi.mT @ y)[..., 0] / scale + self.precision * self.mean / len(self.x)
        return H, b

    def posterior(self, power: float = 1.0) -> tuple[Tensor, Tensor]:
        """Mean (..., p) and covariance T (beta N H)^{-1} of the closed form, H of the prior's
        precision over the power beta."""
        H, b = self._replace(precision=self.precision / power).moments(self.x, self.y)
        covariance = torch.linalg.inv(power * len(self.x) * H)
        return torch.linalg.solve(H, b), self.temperature[..., None, None] * covariance

    def sampler(self, preconditioner, prior, chains: int, **options) -> Langevin:  # type: ignore[no-untyped-def]
        model = nn.Linear(self.x.shape[1], 1).to(self.x.dtype)
        with torch.no_grad():  # near the truth, where the Fisher matrix is the posterior's
            model.weight.copy_(TRUTH[:-1] + 0.05)
            model.bias.copy_(TRUTH[-1:] - 0.05)
        return Langevin(
            model, likelihoods.Gaussian(sigma=self.sigma), prior=prior, chains=chains,
            preconditioner=preconditioner, temperature=self.temperature, num_data=len(self.x),
            **options,
        )  # fmt: skip


def make_problem(
    *, scales: tuple[float, ...] = (1.0, 1.0, 1.0), sigma: float = 0.5, variance: float = 2.0,
    mean: float = 0.5, temperature: float = 1.0, num_data: int = NUM_DATA,
) -> Problem:  # fmt: skip
    """Correlated, shifted inputs, columns scaled; y from the model itself."""
    g = torch.Generator().manual_seed(7)
    x = torch.randn(num_data, FEATURES, generator=g, dtype=torch.float64)
    x = x @ torch.tensor([[1, 0.5, 0], [0, 1, 0], [0, -0.4, 1.0]], dtype=x.dtype) + 0.6
    x = x * torch.tensor(scales, dtype=x.dtype)
    noise = sigma * torch.randn(num_data, 1, generator=g, dtype=x.dtype)
    y = x @ TRUTH[:-1, None] + TRUTH[-1] + noise
    precision = torch.full((PARAMETERS,), 1 / variance, dtype=x.dtype)
    return Problem(x, y, sigma, precision, mean, torch.as_tensor(temperature, dtype=x.dtype))


class Law(NamedTuple):
    """Every chain's own Gaussian: mean (chain, p), covariance (chain, p, p)."""

    mean: Tensor
    covariance: Tensor

    def advance(
        self, batch: tuple[Tensor, Tensor], metric: Tensor, eta: Tensor, noise: Tensor
    ) -> "Law":
        """One step; ``noise`` is 2 eta T / N, and eta and noise are () or (chain,)."""
        (H, b), C = batch, metric
        eta, noise = eta[..., None, None], noise[..., None, None]
        drift = C @ (H @ self.mean[..., None] - b[..., None])
        A = torch.eye(H.shape[-1], dtype=H.dtype) - eta * (C @ H)
        mean = self.mean - (eta * drift)[..., 0]
        return Law(mean, A @ self.covariance @ A.mT + noise * C)

    def whiten(self, theta: Tensor) -> Tensor:
        """Standard normal rows if the law is right."""
        return whiten(theta, self.mean, self.covariance)

    def mixture(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Bias of all chains pooled against N(mean, covariance), in its whitened coordinates."""
        L = torch.linalg.cholesky(covariance)
        m = whiten(self.mean, mean, covariance)
        root = torch.linalg.solve_triangular(L, torch.linalg.cholesky(self.covariance), upper=False)
        second = (root @ root.mT).mean(0) + m.mT @ m / len(m)
        return m.mean(0), second - torch.eye(len(second), dtype=second.dtype)


def whiten(theta: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    L = torch.linalg.cholesky(covariance)
    centred = (theta - mean)[..., None]
    return torch.linalg.solve_triangular(L, centred, upper=False)[..., 0]


def flat(state: State) -> Tensor:
    """theta (chain, p): weight, then bias."""
    return torch.cat([state.params["weight"].flatten(1), state.params["bias"]], dim=1)


def replace(state: State, theta: Tensor) -> State:
    return state._replace(params={"weight": theta[:, None, :-1], "bias": theta[:, -1:]})


def metric_matrix(sampler: Langevin, state: State) -> Tensor:
    """C (chain, p, p), column by column from the preconditioner."""
    columns, damping = [], sampler.frame.damping(state.params, sampler.num_data)
    for e in torch.eye(PARAMETERS, dtype=torch.float64):
        unit = replace(state, e.expand(sampler.chains, -1)).params
        applied = sampler.preconditioner.apply(state.metric, unit, damping)
        columns.append(flat(state._replace(params=applied)))
    return torch.stack(columns, dim=-1)


def run(
    sampler: Langevin, problem: Problem, *, steps: int, batch_size: int | None = None,
    frozen_from: int, start: Law | None = None, adaptive: bool = False, burn_in: int = 0,
) -> tuple[Tensor, Law]:  # fmt: skip
    """Steps the chains, and their exact law from step ``frozen_from`` on; ``burn_in``: the run's.

    There the metric stops (or, ``adaptive``, is read anew at every step), and the law starts as
    the point each chain is at, or as ``start``, from which chains are drawn: at the first step,
    so that the metric is learnt there, and anew when the law starts.
    """
    data = (problem.x, problem.y)
    ids = torch.arange(sampler.chains)
    full = batch_size in (None, len(problem.x))
    stream = as_stream(data, batch_size=batch_size or len(problem.x), chain=ids,
                       seed=sampler.seed, device=ids.device)  # fmt: skip
    state = sampler.init()
    law = C = None
    for t in range(steps):
        if t in (0, frozen_from) and start is not None:
            state = replace(state, draw(start, seed=t))
        if t == frozen_from:
            law = start or point(flat(state))
        x, y = data if full else stream.batch(t)
        before = state
        state, _ = sampler.step(state, (x, y), chain_axis=not full, burn_in=burn_in)
        if law is not None:
            # The first step applies its own batch's metric, every other that of those before.
            settles = burn_in > 0 and sampler.preconditioner.adapt == "burn-in"
            late = t > 0 and not sampler.preconditioner.counts_own_batch(settles=settles)
            if adaptive or C is None:
                C = metric_matrix(sampler, before if late else state)
            eta = torch.as_tensor(sampler.step_size, dtype=torch.float64)
            noise = 2 * eta * problem.temperature / len(problem.x)
            law = law.advance(problem.moments(x, y), C, eta, noise)
    assert law is not None
    assert bool((state.diverged < 0).all())
    return flat(state), law


def point(theta: Tensor) -> Law:
    """The law of chains that are known to be at theta."""
    return Law(theta, theta.new_zeros(*theta.shape, theta.shape[1]))


def draw(law: Law, *, seed: int) -> Tensor:
    """One exact draw of every chain's law."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(law.mean.shape, generator=g, dtype=law.mean.dtype)
    root, _ = torch.linalg.cholesky_ex(law.covariance)  # of a point: zero
    return law.mean + (root.nan_to_num() @ z[..., None])[..., 0]
