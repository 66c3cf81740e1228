"""What minibatches do to a momentum of fixed length: bias against batch size, beside BAOAB.

    OMP_NUM_THREADS=1 python -m lab.microcanonical --out results/microcanonical.json --jobs 14

Targets whose law is exact although every datum has its own gradient: with N rows e_n of mean 0,

    U(theta) = N mean_n [ u(theta) + e_n . f(theta) ] = N u(theta)

at every theta, while the gradient of a minibatch has the noise f'(theta) e_n. N u is a Gaussian of
condition number 100 in twelve dimensions, or a banana. The rows' covariance is

    isotropic     proportional to Id
    anisotropic   as ill-conditioned as the Gaussian, the other way round: loud where it is wide
    likelihood    that of a model's own data: the Fisher matrix is the curvature
    correlated    anisotropic, with correlations of .9 between neighbours
    moving        isotropic times f'(theta) = 1 + 2 |theta| / sd, coordinate by coordinate

Both integrators take the same eta, the recipe's .1 / lambda in the metric, and friction .1, hence
as many gradients for the same distance; the recipe would take a smaller one where the heat of
minibatches, N eta / (2 B a), is above .1. A row has the mean over weights of E[theta^2] / variance
- 1, the worst weight's, and SMILE's b^2 (max over weights of (E[theta^2] - v)^2 / (2 v^2)), from
chains that begin at exact draws; none where they exploded. ``order``: "independent" minibatches, or
those of "shuffled" epochs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lab.command import at_least, study
from lab.results import complete
from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin.dynamics import Integrator, Microcanonical, State, Underdamped

WEIGHTS, ROWS, CONDITION, FRICTION, STEEPNESS = 12, 1024, 100.0, 0.1, 0.1
NOISES = ("isotropic", "anisotropic", "likelihood", "correlated", "moving")
ORDERS = ("independent", "shuffled")
DYNAMICS: dict[str, Callable[[float], Integrator]] = {
    "microcanonical": lambda a: Microcanonical(a),
    "baoab": lambda a: Underdamped(a, "baoab"),
}
METRICS: dict[str, Callable[[], preconditioners.Preconditioner]] = {
    "euclidean": preconditioners.Euclidean,
    "diagonal": lambda: preconditioners.DiagonalFisher(damping=1e-6),
    "full": lambda: preconditioners.FullFisher(damping=1e-6),
}
#: Mean size of a row in units of the gradient's own spread at batch size 1, and steps of a chain.
LOUDNESS, CHAINS, BURN_IN, STEPS = 1.0, 64, 200, 800


class Cell(NamedTuple):
    """One run."""

    target: str
    noise: str
    metric: str
    dynamics: str
    order: str
    batch: int
    seed: int = 0


class Tilted(nn.Module):
    """u(theta) + e . f(theta) of a row e."""

    def __init__(self, precision: Tensor, *, target: str, moving: bool) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(len(precision)))
        self.register_buffer("precision", precision)
        self.target, self.moving = target, moving

    def energy(self, theta: Tensor) -> Tensor:
        if self.target == "banana":
            theta = unbent(theta, self.precision)
        return (self.precision * theta.square()).sum() / 2

    def forward(self, e: Tensor) -> Tensor:
        f = self.theta
        if self.moving:  # f' = 1 + 2 |theta| / sd
            f = f + f * f.abs() * (self.precision * ROWS).sqrt()
        return self.energy(self.theta) + e @ f


def unbent(theta: Tensor, precision: Tensor) -> Tensor:
    """The banana's coordinates in which it is the Gaussian: the second is bent by the first."""
    bend = theta[..., :1].square() - 1 / (ROWS * precision[0])
    bend = bend * (ROWS * precision[0]) / (ROWS * precision[1]).sqrt()
    return torch.cat([theta[..., :1], theta[..., 1:2] - bend, theta[..., 2:]], -1)


def bent(z: Tensor, precision: Tensor) -> Tensor:
    """The inverse of ``unbent``."""
    bend = z[..., :1].square() - 1 / (ROWS * precision[0])
    bend = bend * (ROWS * precision[0]) / (ROWS * precision[1]).sqrt()
    return torch.cat([z[..., :1], z[..., 1:2] + bend, z[..., 2:]], -1)


def precision_of(target: str) -> Tensor:
    """Of N u: eigenvalues between 1 / CONDITION and 1 times N, whose inverse over N is a variance;
    the banana has CONDITION 10."""
    condition = CONDITION if target == "gaussian" else 10.0
    return torch.logspace(-math.log10(condition), 0, WEIGHTS)


def rows_of(noise: str, precision: Tensor) -> Tensor:
    """e_n: (ROWS, d), of mean exactly 0 and exactly the covariance named."""
    g = torch.Generator().manual_seed(1)
    e = torch.randn(ROWS, len(precision), generator=g, dtype=torch.float64)
    e = e - e.mean(0)
    e = torch.linalg.solve_triangular(
        torch.linalg.cholesky(e.T @ e / ROWS), e.T, upper=False
    ).T  # covariance Id
    scale = precision.double()
    spread = {
        "isotropic": torch.ones_like(scale), "moving": torch.ones_like(scale),
        "likelihood": scale, "anisotropic": 1 / scale, "correlated": 1 / scale,
    }[noise]  # fmt: skip
    spread = spread * (scale.mean() / spread.mean())  # as loud in the mean as a model's own data
    if noise == "correlated":
        gap = (torch.arange(len(scale))[:, None] - torch.arange(len(scale))).abs()
        e = e @ torch.linalg.cholesky(0.9 ** gap.double()).T
    return (LOUDNESS * e * spread.sqrt()).float()


def minibatches(cell: Cell, e: Tensor, chains: int) -> Any:
    """Rows of every chain, step by step: (chain, batch, d)."""
    g = torch.Generator().manual_seed(100 + cell.seed)
    if cell.batch == ROWS:
        while True:
            yield e.expand(chains, -1, -1)
    parts = ROWS // cell.batch
    while True:
        if cell.order == "shuffled":
            order = torch.rand(chains, ROWS, generator=g).argsort(1)
        else:
            order = torch.randint(0, ROWS, (chains, ROWS), generator=g)
        for rows in order.reshape(chains, parts, cell.batch).unbind(1):
            yield e[rows]


def sampler_of(cell: Cell, e: Tensor, precision: Tensor) -> tuple[Langevin, State]:
    """The sampler by the recipe's step size in a metric that has seen all rows at exact draws, and
    chains that begin at such."""
    network = Tilted(precision, target=cell.target, moving=cell.noise == "moving")
    g = torch.Generator().manual_seed(cell.seed)
    theta = torch.randn(CHAINS, WEIGHTS, generator=g) / (ROWS * precision).sqrt()
    if cell.target == "banana":
        theta = bent(theta, precision)

    def made(eta: float) -> Langevin:
        return Langevin(
            network, likelihoods.LogLoss(lambda outputs, y: outputs), prior=priors.Flat(),
            preconditioner=METRICS[cell.metric](), step_size=eta, chains=CHAINS, num_data=ROWS,
            dynamics=DYNAMICS[cell.dynamics](FRICTION), seed=cell.seed,
        )  # fmt: skip

    y = torch.zeros(CHAINS, ROWS)
    first = made(0.0)
    start = first.init()._replace(params={"theta": theta})
    state, _ = first.step(start, (e.expand(CHAINS, -1, -1), y), burn_in=1, chain_axis=True)
    shared = torch.utils._pytree.tree_map(
        lambda j: j.mean(0, keepdim=True).expand_as(j).clone(), state.metric
    )
    factor = first.frame.factor(shared, {"theta": theta}, ROWS)
    steepest = max(
        float(torch.linalg.eigvalsh(_in_metric(factor, network, t)).max()) for t in theta[:16]
    )
    eta = STEEPNESS / steepest
    found = made(eta)
    return found, state._replace(
        params={"theta": theta}, mean={"theta": theta.clone()}, metric=shared,
        own=found.init().own,
    )  # fmt: skip


def _in_metric(factor: Any, network: Tilted, theta: Tensor) -> Tensor:
    """A^T H A of the target's curvature H over N at theta."""
    H = torch.func.hessian(network.energy)(theta)
    eye = torch.eye(WEIGHTS)
    some = torch.cat([eye, torch.zeros(CHAINS - WEIGHTS, WEIGHTS)])
    A = factor.forward({"theta": some})["theta"][:WEIGHTS].T
    return A.T @ H @ A


def row(*parts: Any) -> dict[str, Any]:
    """The bias of a run, the parts of whose ``Cell`` are given, with its Monte-Carlo error over
    chains."""
    cell = Cell(*parts)
    precision = precision_of(cell.target)
    e = rows_of(cell.noise, precision)
    found, state = sampler_of(cell, e, precision)
    y, total, count = torch.zeros(CHAINS, cell.batch), torch.zeros(CHAINS, WEIGHTS).double(), 0
    feed = minibatches(cell, e, CHAINS)
    for step in range(STEPS):
        state, _ = found.step(state, (next(feed), y), chain_axis=True, burn_in=1)
        if step >= BURN_IN:
            z = state.params["theta"]
            z = unbent(z, precision) if cell.target == "banana" else z
            total += z.double().square() * ROWS * precision
            count += 1
    ratio = total / count  # of E[theta^2] to the variance, by chain and weight
    bias, error = ratio.mean(0) - 1, ratio.std(0) / math.sqrt(CHAINS)
    worst = int(bias.abs().argmax())
    eta = float(found.step_size)
    heat = eta * ROWS / (2 * cell.batch * FRICTION) * (1 - cell.batch / ROWS)
    biases = {
        "mean": bias.mean(), "mean_error": ratio.mean(1).std() / math.sqrt(CHAINS),
        "worst": bias[worst], "worst_error": error[worst], "widest": bias[0],
        "narrowest": bias[-1], "b2": (bias.square() / 2).max(),
    }  # fmt: skip
    exploded = bool((state.diverged >= 0).any()) or not float(bias.abs().max()) < 1e3
    return cell._asdict() | {
        "step_size": eta, "heat": heat, "exploded": exploded,
        **{k: None if exploded else float(v) for k, v in biases.items()},
    }  # fmt: skip


def cells(seeds: int) -> list[Cell]:
    """All of the study; batches of all rows have one order."""
    found = []
    for target, noise, metric, moves, order in itertools.product(
        ("gaussian", "banana"), NOISES, METRICS, DYNAMICS, ORDERS
    ):
        if metric == {"gaussian": "diagonal", "banana": "full"}[target]:
            continue  # the Gaussian's noise may be correlated, and a banana's metric is no matrix
        if target == "banana" and noise in ("likelihood", "correlated"):
            continue
        for batch, seed in itertools.product((64, 256, ROWS), range(seeds)):
            if batch < ROWS or order == "independent":
                found.append(Cell(target, noise, metric, moves, order, batch, seed))
    return found


def main() -> None:
    """Runs the cells that the file does not have yet."""
    parser = study("Bias of minibatches.", "results/microcanonical.json", jobs="cells")
    parser.add_argument("--seeds", type=at_least(1), default=1)
    given = parser.parse_args()
    settings = {
        "weights": WEIGHTS, "rows": ROWS, "condition": CONDITION, "friction": FRICTION,
        "steepness": STEEPNESS, "loudness": LOUDNESS, "chains": CHAINS, "burn_in": BURN_IN,
        "steps": STEPS,
    }  # fmt: skip
    complete(given.out, settings, cells(given.seeds), row, by=Cell._fields, jobs=given.jobs)


if __name__ == "__main__":
    main()
