"""Pairs of engines for one run, the reference's and the native one, and how they are compared;
networks and data for all that they are compared on."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin.dynamics import State
from natural_langevin.execution.engine import Engine

METRICS: dict[str, Any] = {
    "euclidean": preconditioners.Euclidean(),
    "rmsprop": preconditioners.RMSProp(damping=0.1),
    "diagonal": preconditioners.DiagonalFisher(damping=0.1),
    "quasi-diagonal": preconditioners.QuasiDiagonalFisher(damping=0.1),
    "paper": preconditioners.QuasiDiagonalFisher(damping=0.1, fresh=True, adapt="always"),
    "prior": preconditioners.QuasiDiagonalFisher(),
    "unit": preconditioners.UnitFisher(damping=0.1),
    "unit, model": preconditioners.UnitFisher(damping=0.1, targets="model", fresh=True),
    "model": preconditioners.QuasiDiagonalFisher(damping=0.1, targets="model"),
    "every": preconditioners.QuasiDiagonalFisher(damping=0.1, every=3),
}
PRIORS: dict[str, Any] = {
    "gaussian": priors.Gaussian(variance=0.2, mean=0.1),
    "flat": priors.Flat(),
    "normal-inverse-gamma": priors.NormalInverseGamma(alpha=0.6, beta=0.7, mean=0.1),
    "student-t": priors.StudentT(scale=0.3, df=3.0),
    "laplace": priors.Laplace(scale=0.4),
    "mixture": priors.ScaleMixture(variances=(0.5, 0.01), weights=(0.3, 0.7)),
    "fan-in": priors.FanIn(gain=1.5),
    "per tensor": {"*.bias": priors.Gaussian(2.0), "*": priors.NormalInverseGamma()},
}
LIKELIHOODS: dict[str, Any] = {
    "categorical": likelihoods.Categorical(),
    "bernoulli": likelihoods.Bernoulli(),
    "gaussian": likelihoods.Gaussian(sigma=0.7),
    "rmse": likelihoods.Gaussian(sigma="rmse"),
    "heteroscedastic": likelihoods.HeteroscedasticGaussian(),
    "student-t": likelihoods.StudentT(df=3.5, scale=0.6),
    "student-t, auto": likelihoods.StudentT(),
    "scaled": likelihoods.Scaled(likelihoods.Gaussian(0.7), (0.4, 6.0)),
    "scaled, rmse": likelihoods.Scaled(likelihoods.Gaussian("rmse"), (0.4, 6.0)),
    "scaled, student-t": likelihoods.Scaled(likelihoods.StudentT(), (0.4, 6.0)),
    "poisson": likelihoods.Poisson(),
    "negative-binomial": likelihoods.NegativeBinomial(),
    "dispersion": likelihoods.NegativeBinomial(0.3),
    "hurdle": likelihoods.Hurdle(),
    "ordinal": likelihoods.Ordinal(4),
    "ordinal, gaps": likelihoods.Ordinal(3),
    "weighted": likelihoods.Categorical(class_weights=(0.5, 2.0), ignore_index=-1),
}
ACTIVATIONS: dict[str, Any] = {
    "relu": nn.ReLU,
    "in place": lambda: nn.ReLU(inplace=True),
    "leaky": lambda: nn.LeakyReLU(0.2),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "gelu, tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "softplus": lambda: nn.Softplus(beta=2.0, threshold=3.0),
    "elu": lambda: nn.ELU(0.7),
    # 1.5 is a float32: torch rounds alpha to one in the gradient, in float64 too.
    "celu": lambda: nn.CELU(1.5),
    "selu": nn.SELU,
    "mish": nn.Mish,
    "relu6": nn.ReLU6,
    "hardtanh": lambda: nn.Hardtanh(-0.4, 0.8),
    "identity": nn.Identity,
}
STEPS, BURN_IN = 7, 5


def network(*widths: int, activation: Any = nn.Tanh, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


def data(likelihood: Any, inputs: int, outputs: int, count: int = 50) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(count, inputs, generator=g, dtype=torch.float64)
    if isinstance(likelihood, likelihoods.Categorical):
        lowest = 0 if likelihood.ignore_index is None else likelihood.ignore_index
        return x, torch.randint(lowest, outputs, (count,), generator=g)
    if isinstance(likelihood, likelihoods.Poisson):
        return x, torch.randint(0, 5, (count, outputs), generator=g)
    if isinstance(likelihood, likelihoods.Ordinal):
        return x, torch.randint(0, likelihood.levels, (count,), generator=g)
    if isinstance(likelihood, likelihoods.NegativeBinomial):  # beyond what is multiplied out
        outputs //= 2 if likelihood.dispersion == "outputs" else 1
        return x, torch.randint(0, 30, (count, outputs), generator=g)
    if isinstance(likelihood, likelihoods.HeteroscedasticGaussian):
        outputs //= 2
    if isinstance(likelihood, likelihoods.Hurdle):
        y = torch.randn(count, outputs // 3, generator=g, dtype=torch.float64)
        return x, y.exp() * (y > -0.5)
    if isinstance(likelihood, likelihoods.Bernoulli):
        return x, torch.randint(0, 2, (count, outputs), generator=g).double()
    return x, torch.randn(count, outputs, generator=g, dtype=torch.float64)


def engines(model: nn.Module, likelihood: Any, given: Any, *, dtype: torch.dtype = torch.float64,
            batch_size: int = 16, **options: Any) -> tuple[Engine, Engine, State]:  # fmt: skip
    """The reference's engine, the native one, and a state to start from."""
    options = {"chains": 3, "seed": 5, "step_size": 1e-2} | options
    made = []
    for compile in (False, "auto"):
        sampler = Langevin(model.to(dtype), likelihood, compile=compile, **options)
        made.append(sampler.prepare(given, steps=STEPS, batch_size=batch_size, burn_in=BURN_IN))
    return made[0][0], made[1][0], made[1][1]


def assert_same(reference: Engine, native: Engine, state: State, *, rtol: float) -> State:
    """Both go ``STEPS`` steps; returns the native state."""
    start = pytree.tree_map(torch.clone, state)
    wanted, info = reference.run(start, 0, STEPS)
    for first, count in ((0, 1), (1, 4), (5, STEPS - 5)):  # any cut of the run
        state, found = native.run(state, first, count)
    assert native.way == "native"
    assert int(state.step) == STEPS
    moved = max(float((wanted.params[k] - p).abs().max()) for k, p in start.params.items())
    assert moved > 1e-4  # there is something to compare
    for a, b in zip(pytree.tree_leaves(state), pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
    torch.testing.assert_close(found.loss, info.loss, rtol=rtol, atol=rtol, equal_nan=True)
    assert torch.equal(found.diverged, info.diverged)
    return state
