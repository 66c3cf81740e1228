"""One contract for every metric of the registry.

``apply`` is its dense matrix, ``sample`` has that covariance, T = 0 is preconditioned descent,
metrics start at the identity and forget it with the first batch, chains do not mix."""

from __future__ import annotations

import functools
import inspect
import math
from collections import defaultdict
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from natural_langevin import Langevin, State, likelihoods, priors, random
from natural_langevin.preconditioners import REGISTRY, Preconditioner
from oracle import (
    Expected,
    Factors,
    Params,
    build,
    chains_of,
    cross_entropy,
    dense,
    flat,
    kronecker_loop,
    per_sample_loop,
)

#: (registry name, targets); a metric without statistics has no targets.
VARIANTS = [
    (name, targets)
    for name, metric in REGISTRY.items()
    for targets in (
        ("data", "model") if "targets" in inspect.signature(metric).parameters else (None,)
    )
]
variants = pytest.mark.parametrize(("name", "targets"), VARIANTS)
#: Every metric steps in float32 in ``test_chains_are_independent``.
dtypes = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.thorough), torch.float64]
)

DAMPING, CHAINS, BATCH, NUM_DATA, ETA = 1e-2, 2, 32, 50, 0.05
EPS = defaultdict(lambda: DAMPING)  # of every parameter


def make(name: str, targets: str | None) -> Preconditioner:
    options = {"targets": targets} if targets else {}
    if "damping" in inspect.signature(REGISTRY[name]).parameters:
        options["damping"] = DAMPING
    return REGISTRY[name](**options)


class Run(NamedTuple):
    """One step at T = 0 from known points on known batches, and what the oracle says of them."""

    preconditioner: Preconditioner
    sampler: Langevin
    batch: tuple[Tensor, Tensor]
    before: State
    after: State
    data: list[Expected]  # per chain, with the data's labels
    fisher: list[Expected]  # per chain, with the labels the metric saw
    factors: list[Factors]  # per chain, with the same labels


def batches(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(CHAINS, BATCH, 5, 3, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (CHAINS, BATCH), generator=generator)


@functools.cache
def oracle(drawn: bool, dtype: torch.dtype) -> tuple[list[Expected], list[Factors]]:
    """Per chain, with the data's labels or with those that the model draws; for all metrics."""
    model, (x, y) = build("everything", dtype), batches(dtype)
    params = chains_of(model, CHAINS)
    key = random.stream(random.origin(5, random.LABELS, torch.arange(CHAINS)), 0)
    samples, factors = [], []
    for c in range(CHAINS):
        own, labels = {k: p[c] for k, p in params.items()}, y[c]
        if drawn:
            outputs = functional_call(model, own, (x[c],))
            labels = likelihoods.Categorical().sample(outputs, key[c], {})
        samples.append(per_sample_loop(model, cross_entropy, x[c], labels, own))
        factors.append(kronecker_loop(model, cross_entropy, x[c], labels, own))
    return samples, factors


@functools.cache
def first_step(name: str, targets: str | None, dtype: torch.dtype) -> Run:
    model, preconditioner = build("everything", dtype), make(name, targets)
    sampler = Langevin(
        model, likelihoods.Categorical(), preconditioner=preconditioner, chains=CHAINS,
        temperature=0.0, step_size=ETA, num_data=NUM_DATA, prior=priors.Gaussian(0.5), seed=5,
    )  # fmt: skip
    batch = batches(dtype)
    before = sampler.init()._replace(params=chains_of(model, CHAINS))
    after, _ = sampler.step(before, batch, chain_axis=True)
    data, _ = oracle(False, dtype)
    fisher, factors = oracle(targets == "model", dtype)
    return Run(preconditioner, sampler, batch, before, after, data, fisher, factors)


def expected_inverse(name: str, run: Run, chain: int) -> tuple[Tensor, Tensor]:
    """C^{-1} from the oracle's statistics, and a mask of the entries that the metric promises."""
    data, fisher = run.data[chain], run.fisher[chain]
    size = len(flat(data.gradient))
    everything, diagonal = torch.ones(size, size, dtype=torch.bool), torch.eye(size).bool()
    if name == "euclidean":
        return torch.eye(size, dtype=torch.float64), everything
    if name == "rmsprop":
        return torch.diag((flat(data.gradient).square() + DAMPING).sqrt()), everything
    if name == "kronecker":
        return kronecker_inverse(data.gradient, run.factors[chain], split=True), everything
    if name == "eigen-kronecker":  # after the first batch: K-FAC's eigenvalues
        product = kronecker_inverse(data.gradient, run.factors[chain], split=False)
        return product + DAMPING * torch.eye(size).double(), everything
    g = flat(fisher.samples, 1)
    full = g.mT @ g / len(g) + DAMPING * torch.eye(size, dtype=torch.float64)
    if name == "full":
        return full, everything
    if name == "diagonal":
        return full * diagonal, everything
    names = [(k, i) for k, p in data.gradient.items() for i in range(p.numel())]
    unit = [(k.rsplit(".", 1)[0], i // data.gradient[k][0].numel()) for k, i in names]
    same = torch.tensor([[u == v for v in unit] for u in unit])
    if name == "unit":  # a weight without bias has rows all the same
        return full * same, everything
    # Quasi-diagonal: of each unit the diagonal and the bias row; nothing between units.
    bias = torch.tensor([k.endswith("bias") for k, _ in names])
    row = same & (bias[:, None] | bias[None, :])
    return full * (diagonal | row), diagonal | row | ~same


def kronecker_inverse(gradient: Params, factors: Factors, *, split: bool) -> Tensor:
    """The product of both factors, entry by entry, with the damping ``split`` between them or
    without any; zero between layers."""
    where = [
        (*k.rsplit(".", 1), i, p[0].numel()) for k, p in gradient.items() for i in range(p.numel())
    ]
    result = torch.zeros(len(where), len(where), dtype=torch.float64)
    for layer, (A, G) in factors.items():
        pi, root = ((A.trace() / len(A)) / (G.trace() / len(G))).sqrt(), DAMPING**0.5 * split
        A = A + pi * root * torch.eye(len(A)).double()
        G = G + root / pi * torch.eye(len(G)).double()
        has_bias = f"{layer}.bias" in gradient
        own = [n for n, place in enumerate(where) if place[0] == layer]
        unit = [i if kind == "bias" else i // row for _, kind, i, row in (where[n] for n in own)]
        column = [
            0 if kind == "bias" else i % row + has_bias
            for _, kind, i, row in (where[n] for n in own)
        ]
        block = G[unit][:, unit] * A[column][:, column]
        result[torch.tensor(own)[:, None], torch.tensor(own)[None]] = block
    return result


@variants
@dtypes
def test_apply_is_the_dense_matrix(name: str, targets: str, dtype: torch.dtype) -> None:
    run = first_step(name, targets, dtype)
    metric, params = run.after.metric, run.before.params
    C = dense(lambda v: run.preconditioner.apply(metric, v, EPS), params)
    A = dense(lambda z: run.preconditioner.sample(metric, z, EPS), params)
    # Rounding grows with the condition number, at most 1/DAMPING times the largest J here.
    tolerance = 1e-3 if dtype == torch.float32 else 1e-10
    for c in range(CHAINS):
        scale = C[c].norm()
        assert (C[c] - C[c].mT).norm() <= tolerance * scale
        assert torch.linalg.eigvalsh(C[c]).min() > 0
        assert (A[c] @ A[c].mT - C[c]).norm() <= tolerance * scale
        inverse, promised = expected_inverse(name, run, c)
        error = (torch.linalg.inv(C[c]) - inverse)[promised].norm()
        assert error <= tolerance * inverse.norm()


@variants
def test_covariance_of_samples(name: str, targets: str) -> None:
    """Monte Carlo: var of a covariance entry is (C_ii C_jj + C_ij^2) / n. With 2080 entries and
    thirteen metrics, 6 standard errors are passed by chance with probability 6e-5."""
    run = first_step(name, targets, torch.float64)
    n, params = 2000, {k: p[:1] for k, p in run.before.params.items()}
    metric = pytree.tree_map(lambda j: j[:1], run.after.metric)
    C = dense(lambda v: run.preconditioner.apply(metric, v, EPS), params)[0]
    many = pytree.tree_map(lambda j: j.expand(n, *j.shape[1:]), metric)
    generator = torch.Generator().manual_seed(6)
    z = {k: torch.randn(n, *p.shape[1:], generator=generator).double() for k, p in params.items()}
    image = run.preconditioner.sample(many, z, EPS)
    draws = flat({k: image[k] for k in params}, 1)
    error = torch.sqrt((torch.outer(C.diag(), C.diag()) + C.square()) / n)
    assert ((draws.mT @ draws / n - C) / error).abs().max() < 6
    assert (draws.mean(0) / torch.sqrt(C.diag() / n)).abs().max() < 6


@variants
@dtypes
def test_zero_temperature_is_preconditioned_descent(
    name: str, targets: str, dtype: torch.dtype
) -> None:
    """theta - eta C (g - d ln alpha / N), with g from the oracle and no trace of noise."""
    run = first_step(name, targets, dtype)
    for c in range(CHAINS):
        theta = {k: p[c].double() for k, p in run.before.params.items()}
        g = run.data[c].gradient
        v = {k: (g[k] + theta[k] / 0.5 / NUM_DATA).to(dtype)[None] for k in theta}
        drift = run.preconditioner.apply(
            pytree.tree_map(lambda j, c=c: j[c : c + 1], run.after.metric), v, EPS
        )
        for k in theta:
            expected = theta[k] - ETA * drift[k][0].double()
            tolerance = 1e-5 if dtype == torch.float32 else 1e-12
            torch.testing.assert_close(
                run.after.params[k][c].double(), expected, atol=tolerance, rtol=tolerance
            )
    again, _ = run.sampler.step(run.before, run.batch, chain_axis=True)
    assert all(torch.equal(again.params[k], p) for k, p in run.after.params.items())


@variants
def test_metric_starts_at_the_identity_and_forgets_it(name: str, targets: str) -> None:
    """J = 1 and J_0i = 0 at first; gamma_1 = 1 replaces whatever was there."""
    run = first_step(name, targets, torch.float64)
    start = run.sampler.init()
    C = dense(lambda v: run.preconditioner.apply(start.metric, v, EPS), start.params)
    damping = {
        "euclidean": 1.0, "rmsprop": math.sqrt(1 + DAMPING), "kronecker": (1 + DAMPING**0.5) ** 2
    }.get(name, 1 + DAMPING)  # fmt: skip
    torch.testing.assert_close(C, (torch.eye(C.shape[-1]) / damping).double().expand_as(C))

    wrong = pytree.tree_map(lambda j: 3 * j + 1, run.before.metric)
    forgot, _ = run.sampler.step(run.before._replace(metric=wrong), run.batch, chain_axis=True)
    for forgotten, replaced in zip(
        pytree.tree_leaves(forgot.metric), pytree.tree_leaves(run.after.metric), strict=True
    ):
        assert torch.equal(forgotten, replaced)


@pytest.mark.parametrize(("name", "targets"), [v for v in VARIANTS if v[1] != "model"])
def test_metric_is_a_moving_average(name: str, targets: str) -> None:
    """gamma_2 = 1/sqrt(2) mixes the first two batches. (Drawn labels would differ by step.)"""
    run = first_step(name, targets, torch.float64)
    second, _ = run.sampler.step(run.after, run.batch, chain_axis=True)
    restarted = run.after._replace(step=torch.tensor(0))
    alone, _ = run.sampler.step(restarted, run.batch, chain_axis=True)
    gamma = 1 / math.sqrt(2)
    assert pytree.tree_leaves(second.metric) or name == "euclidean"

    def averages(state: State) -> list[Tensor]:
        """Not what is found from them now and then (``test_eigen_kronecker``)."""
        found = {k: v for k, v in state.metric.items() if "basis" not in k and k != "spectrum"}
        return pytree.tree_leaves(found)

    for first, fresh, mixed in zip(*map(averages, (run.after, alone, second)), strict=True):
        torch.testing.assert_close(mixed, (1 - gamma) * first + gamma * fresh)


@variants
def test_chains_are_independent(name: str, targets: str) -> None:
    """Another point and another batch for chain 1 leave chain 0's metric and update alone."""
    run = first_step(name, targets, torch.float32)
    other = run.before._replace(
        params={k: torch.stack([p[0], -2 * p[1]]) for k, p in run.before.params.items()}
    )
    x, y = run.batch
    batch = torch.stack([x[0], x[1] + 1]), torch.stack([y[0], (y[1] + 1) % 3])
    after, _ = run.sampler.step(other, batch, chain_axis=True)
    for mine, theirs in zip(
        pytree.tree_leaves((after.params, after.metric)),
        pytree.tree_leaves((run.after.params, run.after.metric)),
        strict=True,
    ):
        assert torch.equal(mine[0], theirs[0])
        assert not torch.equal(mine[1], theirs[1])


def test_without_bias_quasi_diagonal_is_diagonal(network_without_bias: nn.Module) -> None:
    x, y = torch.linspace(-1, 1, 60).reshape(20, 3), torch.arange(20) % 3
    quasi, diagonal = (
        Langevin(network_without_bias, likelihoods.Categorical(), preconditioner=make(name, "data"),
                 step_size=ETA).sample((x, y), 4, batch_size=5, progress=False)
        for name in ("quasi-diagonal", "diagonal")
    )  # fmt: skip
    for k in quasi.samples:
        assert torch.equal(quasi.samples[k], diagonal.samples[k])
