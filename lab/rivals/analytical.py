"""Bias on the analytical problems of SMILE's paper, ours beside pSMILE at equal gradients.

    pip install blackjax  # for pSMILE
    python -m lab.rivals.analytical --out results/analytical.json

Ten dimensions (github.com/EmanuelSommer/SMILE, ``analytical/``): a Gaussian of condition number 100
between deviations, turned; Rosenbrock's banana, five times; a funnel. A gradient has the noise of
256 rows, whose deviation is 1, 1 by dimension in proportion to the Gaussian's deviations, that of
its covariance, or the latter times exp(-theta_3 / s). Seven chains for each of the step sizes, from
the authors' starts. A chain's bias is theirs,

    mean over dimensions of (mean theta^2 - E theta^2)^2 / Var theta^2,

of all its draws; a row has the mean over chains at the step size where that is lowest, for every
method. pSMILE is written after the authors' loop, by blackjax's kernel: two gradients in a step.
Ours are ``Microcanonical`` and BAOAB in a Fisher metric that 200 minibatches at the start have
made, and which counts for 200 gradients.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lab.command import at_least, study
from lab.results import complete
from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin.dynamics import Integrator, Microcanonical, Underdamped

WEIGHTS, BATCH, ROWS, CHAINS, METRIC = 10, 16, 1024, 7, 200
#: Lengths of a step, in the units of theta.
LENGTHS = tuple(10 ** (-3 + k / 2) for k in range(7))
NOISES = ("isotropic", "anisotropic", "correlated", "moving")
#: s of noise that moves, and the moments of theta^2 that are not the Gaussian's.
MOVES = {"gaussian": 6.5, "banana": 1.414, "funnel": 9.0}
MOMENTS = {
    "banana": ([2.0] * 5 + [10.10017429] * 5, [6.00036273] * 5 + [668.69693635] * 5),
    "funnel": ([9.0] + [90.0171313] * 9, [162.0] + [4.3e7] * 9),
}
METHODS: dict[str, tuple[Integrator, type[preconditioners.Preconditioner]] | None] = {
    "ours, microcanonical": (Microcanonical(0.001), preconditioners.FullFisher),
    "ours, microcanonical, diagonal": (Microcanonical(0.001), preconditioners.DiagonalFisher),
    "ours, BAOAB": (Underdamped(0.1, "baoab"), preconditioners.FullFisher),
    "psmile": None,
}


class Target(NamedTuple):
    """Moments of theta^2, precision (of the Gaussian), noise = z @ root, start."""

    name: str
    mean: Tensor
    variance: Tensor
    precision: Tensor
    root: Tensor  # of the noise of a gradient of all 256 rows
    start: Tensor
    moves: float  # 0: the noise is the same everywhere


def target(name: str, noise: str) -> Target:
    deviations = np.logspace(-1, 1, WEIGHTS)
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((WEIGHTS, WEIGHTS)))
    covariance = turn @ np.diag(deviations**2) @ turn.T
    root = {"isotropic": np.eye(WEIGHTS), "anisotropic": np.diag(deviations)}.get(
        noise, np.linalg.cholesky(covariance).T
    )
    mean = torch.tensor(np.diag(covariance).copy())
    moments = MOMENTS.get(name)
    start = [1.0] * 5 + [2.0] * 5 if name == "banana" else [0.0] * WEIGHTS
    return Target(
        name, mean if moments is None else torch.tensor(moments[0]).double(),
        2 * mean**2 if moments is None else torch.tensor(moments[1]).double(),
        torch.tensor(np.linalg.inv(covariance)).float(), torch.tensor(16 * root).float(),
        torch.tensor(start), MOVES[name] if noise == "moving" else 0.0,
    )  # fmt: skip


def energy(of: Target, theta: Any, precision: Any, exp: Any) -> Any:
    """-ln of the density, of numpy-like arrays."""
    if of.name == "gaussian":
        return theta @ precision @ theta / 2
    if of.name == "banana":
        x, y = theta[:5], theta[5:]
        return ((x - 1) ** 2 + (x**2 - y) ** 2 / 0.1).sum() / 2
    z, rest = theta[0], theta[1:]
    return (z / 3) ** 2 / 2 + (WEIGHTS - 1) * z / 2 + exp(-z) * (rest**2).sum() / 2


class Tilted(nn.Module):
    """Of a row e: energy / N + e . theta, which is times exp(-theta_3 / s) where noise moves."""

    def __init__(self, of: Target) -> None:
        super().__init__()
        self.theta, self.of = nn.Parameter(of.start.clone()), of
        self.register_buffer("precision", of.precision)

    def forward(self, e: Tensor) -> Tensor:
        share = torch.exp(-self.theta[2] / self.of.moves) if self.of.moves else 1.0
        whole = energy(self.of, self.theta, self.precision, torch.exp)
        return whole / ROWS + e @ self.theta * share


def bias(of: Target, squares: Tensor) -> Tensor:
    """Theirs, of mean squares (..., dimension)."""
    return ((squares.double() - of.mean) ** 2 / of.variance).mean(-1)


def ours(of: Target, method: str, gradients: int, seed: int) -> Tensor:
    """Mean squares of theta: (length, chain, dimension)."""
    found = METHODS[method]
    assert found is not None
    count, g = len(LENGTHS) * CHAINS, torch.Generator().manual_seed(seed)
    y, scale = torch.zeros(count, BATCH), math.sqrt(BATCH) / ROWS

    def rows(many: int) -> Tensor:
        return scale * torch.randn(count, many, WEIGHTS, generator=g) @ of.root

    def made(eta: Any) -> Langevin:
        return Langevin(
            Tilted(of), likelihoods.LogLoss(lambda outputs, y: outputs), prior=priors.Flat(),
            preconditioner=found[1](damping=1e-6), step_size=eta, chains=count, num_data=ROWS,
            dynamics=found[0], seed=seed,
        )  # fmt: skip

    first = made(0.0)
    many = METRIC * BATCH
    state, _ = first.step(
        first.init(), (rows(many), torch.zeros(count, many)), burn_in=1, chain_axis=True
    )
    eye = torch.cat([torch.eye(WEIGHTS), torch.zeros(count - WEIGHTS, WEIGHTS)])
    factor = first.frame.factor(state.metric, state.params, ROWS)
    size = float(factor.forward({"theta": eye})["theta"].square().sum() / WEIGHTS)  # tr C / d
    lengths = torch.tensor(LENGTHS).repeat_interleave(CHAINS)
    sampler = made(lengths.square() / size * ROWS / WEIGHTS)
    theta = of.start.expand(count, -1).clone()
    state = sampler.init()._replace(params={"theta": theta}, metric=state.metric)
    total, taken = torch.zeros(count, WEIGHTS).double(), gradients - METRIC
    for _ in range(taken):
        state, _ = sampler.step(state, (rows(BATCH), y), chain_axis=True, burn_in=1)
        total += state.params["theta"].double().square()
    return (total / taken).unflatten(0, (len(LENGTHS), CHAINS))


def psmile(of: Target, method: str, gradients: int, seed: int) -> Tensor:
    """The same by pSMILE."""
    import blackjax
    import jax
    import jax.numpy as jnp

    precision, root, start = (jnp.asarray(v.numpy()) for v in (of.precision, of.root, of.start))
    kernel = blackjax.mcmc.mclmc.build_kernel()

    def chain(key: Any, length: Any) -> Any:
        def log_density(noise: Any) -> Any:
            def of_theta(theta: Any) -> Any:
                share = jnp.exp(-theta[2] / of.moves) if of.moves else 1.0
                return noise @ theta * share - energy(of, theta, precision, jnp.exp)

            return of_theta

        def step(carry: Any, key: Any) -> Any:
            state, middle, spread, total = carry
            first, second = jax.random.split(key)
            density = log_density(jax.random.normal(first, (WEIGHTS,)) @ root)
            g = jax.grad(density)(state.position)
            middle = 0.99 * middle + 0.01 * g
            spread = jnp.sqrt(0.99 * spread**2 + 0.01 * (g - middle) ** 2)
            scale = 1 / spread * jnp.sqrt(WEIGHTS) / jnp.linalg.norm(1 / spread)
            state, _ = kernel(second, state, density, scale**2, 1000.0, length)
            return (state, middle, spread, total + state.position**2), None

        own, begun = jax.random.split(key)
        state = blackjax.mcmc.mclmc.init(start, log_density(jnp.zeros(WEIGHTS)), begun)
        zero = jnp.zeros(WEIGHTS)
        carry = (state, zero, jnp.ones(WEIGHTS), zero)
        steps = gradients // 2
        return jax.lax.scan(step, carry, jax.random.split(own, steps))[0][-1] / steps

    keys = jax.random.split(jax.random.key(seed), (len(LENGTHS), CHAINS))
    over_chains = jax.vmap(chain, in_axes=(0, None))
    found = jax.jit(jax.vmap(over_chains))(keys, jnp.asarray(LENGTHS))
    return torch.from_numpy(np.array(found))


def row(name: str, noise: str, method: str, gradients: int, seed: int = 0) -> dict[str, Any]:
    of = target(name, noise)
    by = psmile if METHODS[method] is None else ours
    each = bias(of, by(of, method, gradients, seed))  # (length, chain)
    means = each.mean(1).nan_to_num(math.inf)
    best = int(means.argmin())
    return {
        "target": name, "noise": noise, "method": method, "gradients": gradients,
        "length": LENGTHS[best], "bias": float(means[best]),
        "error": float(each[best].std() / math.sqrt(CHAINS)),
        "by_length": [v if math.isfinite(v) else None for v in means.tolist()],
    }  # fmt: skip


def main() -> None:
    """Runs the rows that the file does not have yet."""
    parser = study("Bias beside pSMILE.", "results/analytical.json")
    parser.add_argument("--gradients", type=at_least(2 * METRIC), default=20_000)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--targets", nargs="+", choices=list(MOVES), default=list(MOVES))
    parser.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    items = itertools.product(given.targets, given.noises, given.methods, [given.gradients])
    by = ("target", "noise", "method", "gradients")
    complete(given.out, {"lengths": LENGTHS, "chains": CHAINS}, items, row, by=by)


if __name__ == "__main__":
    main()
