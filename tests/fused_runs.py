"""Whole runs by a backend's kernels against the general step, for tests and for the scripts in
Triton's interpreter."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lab.beyond.local import Local
from natural_langevin import (
    Langevin,
    dynamics,
    likelihoods,
    preconditioners,
    priors,
    schedules,
)
from natural_langevin.dynamics import State
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.kernels import FusedStep, plan
from natural_langevin.execution.stepping import pure_step

METRICS = {
    "euclidean": preconditioners.Euclidean(),
    "rmsprop": preconditioners.RMSProp(),
    "diagonal": preconditioners.DiagonalFisher(damping=1e-2),
    "quasi-diagonal": preconditioners.QuasiDiagonalFisher(damping=1e-2),
    "quasi-diagonal, model": preconditioners.QuasiDiagonalFisher(targets="model"),
    "quasi-diagonal, as in the paper": preconditioners.QuasiDiagonalFisher(
        damping=1e-2, fresh=True, adapt="always"
    ),
    "diagonal, every second step": preconditioners.DiagonalFisher(every=2),
}


def data(inputs: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(50, inputs, generator=generator), torch.arange(50) % 5


def assert_same_run(
    one: Langevin,
    backend: Any,
    engine: Engine,
    state: State,
    *,
    tasks: int | None = None,
    stops_at: int | None = None,
) -> FusedStep:
    """All of a run's steps by kernels, written over ``state``, and by the general step; the second
    chain stops before step ``stops_at``. The step that took them, in ``tasks`` parts."""
    found = plan(one.frame, state, engine.stream.example(), 50, given=True, each=True)
    assert tasks is None or len(found) == tasks
    step, expected = FusedStep(found, backend), copy.deepcopy(state)
    for k in range(len(engine.rates)):
        if k == stops_at:
            state.diverged[1] = expected.diverged[1] = 0
        engine._data.shuffle(k)
        kind = engine.rates.kind(k)
        expected, info = pure_step(one.frame, engine._data, expected, None, kind)
        fused = step(one.frame, engine._data, state, None, kind)
        assert torch.equal(fused.diverged, info.diverged)
        torch.testing.assert_close(fused.loss, info.loss, rtol=1e-4, atol=1e-5)
    for general, own in zip(pytree.tree_leaves(expected), pytree.tree_leaves(state), strict=True):
        torch.testing.assert_close(own, general, rtol=2e-4, atol=2e-5)
    return step


def assert_same_runs(metric: str, backend: Any, *, steps: int = 4) -> None:
    """Runs with data in memory: an MLP that learns its noise, with momentum; convolutions with a
    norm, whose gradients are given; and, by BAOAB, an MLP whose first prior is no Gaussian, so that
    its gradients are given too. A chain that stops stands still and is told."""
    torch.manual_seed(0)
    conv = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 5)
    )  # fmt: skip
    mlp = nn.Sequential(nn.Linear(20, 17), nn.Tanh(), nn.Linear(17, 2, bias=False))
    x, y = data()
    settings: dict[str, Any] = {
        "preconditioner": METRICS[metric], "prior": priors.Gaussian(0.3, 0.1), "chains": 2,
        "step_size": schedules.cyclical(1e-3, 4, exploration=0.5), "compile": False,
    }  # fmt: skip
    couples = metric.startswith("quasi")  # a weight and its bias
    for one, pair, tasks in (
        (
            Langevin(conv, likelihoods.Categorical(), **settings),
            (x[:, :16].contiguous(), y),
            3 if couples else 5,
        ),
        (
            Langevin(
                mlp, likelihoods.Gaussian("rmse"), dynamics=dynamics.Underdamped(0.3), **settings
            ),
            (x, x[:, :2].contiguous()),
            2,
        ),
        (
            Langevin(
                mlp,
                likelihoods.Gaussian("rmse"),
                dynamics=dynamics.Underdamped(0.3, "baoab"),
                **settings | {"prior": {"0.*": priors.StudentT(0.2), "*": settings["prior"]}},
            ),
            (x, x[:, :2].contiguous()),
            1 if metric == "rmsprop" else 2 if couples else 3,
        ),
    ):
        images = pair[0].reshape(-1, 1, 4, 4) if pair[0].shape[1] == 16 else pair[0]
        engine, state = one.prepare((images, pair[1]), steps=steps, batch_size=16, burn_in=2)
        state.diverged[1] = 0  # as if it had stopped before
        before = {k: p[1].clone() for k, p in state.params.items()}
        step = assert_same_run(one, backend, engine, state, tasks=tasks)
        assert step._books or metric == "rmsprop"
        assert all(torch.equal(state.params[k][1], p) for k, p in before.items())


def assert_same_perceptrons(backend: Any, *, steps: int = 3) -> None:
    """Runs of classifiers whose passes are kernels too: layers with and without biases, other
    activations, weights whose prior has a variance for each, by BAOAB; and a chain that stops
    before the last step, which is the first of a frozen metric."""
    torch.manual_seed(0)
    x, y = data()
    gelu = nn.Sequential(
        nn.Linear(20, 17), nn.GELU(), nn.Linear(17, 18, bias=False), nn.LeakyReLU(0.2),
        nn.Linear(18, 5),
    )  # fmt: skip
    local = {"0.weight": Local(torch.tensor([0.1, 0.3]), torch.tensor([0.3, 0.0])),
             "*": priors.Gaussian(0.3, 0.1)}  # fmt: skip
    for model, prior, own in (
        (gelu, priors.Gaussian(0.3, 0.1), dynamics.Underdamped(0.3)),
        (network_of_images(), local, dynamics.Underdamped(0.3, "baoab")),
    ):
        inputs = next(model.parameters()).shape[1]
        one = Langevin(
            model, likelihoods.Categorical(), chains=2, prior=prior, step_size=1e-3, compile=False,
            preconditioner=METRICS["quasi-diagonal"], dynamics=own,
        )  # fmt: skip
        engine, state = one.prepare(
            (x[:, :inputs].contiguous(), y), steps=steps, batch_size=18, burn_in=steps - 1
        )
        step = assert_same_run(one, backend, engine, state, stops_at=steps - 1)
        assert step._network is not None


def network_of_images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 17), nn.ReLU(), nn.Linear(17, 5))
