"""Whole steps in Triton are the reference's: the same draws, agreement to rounding; in Triton's
interpreter here, on a GPU by the matrix."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import native_engines
from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin.data import Subsets
from natural_langevin.dynamics import Overdamped, State, Underdamped
from natural_langevin.execution import engine as engines
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.kernels.native.settings import UnsupportedError
from natural_langevin.execution.kernels.whole_steps import planner
from triton_interpreter import run_script

LIKELIHOODS: dict[str, Any] = {
    "categorical": likelihoods.Categorical(),
    "bernoulli": likelihoods.Bernoulli(),
    "gaussian": likelihoods.Gaussian(sigma=0.7),
    "rmse": likelihoods.Gaussian(sigma="rmse"),
}
METRICS: dict[str, Any] = {
    "euclidean": lambda: preconditioners.Euclidean(),
    "rmsprop": lambda: preconditioners.RMSProp(damping=0.1),
    "diagonal": lambda: preconditioners.DiagonalFisher(damping=0.1),
    "quasi-diagonal": lambda: preconditioners.QuasiDiagonalFisher(damping=0.1),
    "paper": lambda: preconditioners.QuasiDiagonalFisher(damping=0.1, fresh=True, adapt="always"),
    "every": lambda: preconditioners.QuasiDiagonalFisher(damping=0.1, every=3),
}
DYNAMICS = {
    "overdamped": Overdamped(),
    "euler": Underdamped(0.3),
    "baoab": Underdamped(0.3, "baoab"),
}
#: In place or not is all one here, and the identity is the last layer's.
ACTIVATIONS = {
    k: make for k, make in native_engines.ACTIVATIONS.items() if k not in ("in place", "identity")
}
#: A batch of 37 is two tiles; 80 data make two batches of an epoch.
STEPS, BURN_IN, BATCH, DATA = 7, 5, 37, 80


def network(widths: str, *, activation: str = "tanh", bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(map(int, widths.split("-"))):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def data(widths: str, likelihood: str) -> tuple[Tensor, Tensor]:
    inputs, *_, outputs = map(int, widths.split("-"))
    g = torch.Generator().manual_seed(2)
    x = torch.randn(DATA, inputs, generator=g)
    if likelihood == "categorical":
        return x, torch.randint(0, outputs, (DATA,), generator=g)
    if likelihood == "bernoulli":
        return x, torch.randint(0, 2, (DATA, outputs), generator=g).float()
    return x, torch.randn(DATA, outputs, generator=g)


def prepared(
    widths: str, likelihood: str, metric: str, dynamics: str, *, dtype: torch.dtype,
    compile: Any, activation: str = "tanh", bias: bool = True, rows: bool = False, **options: Any,
) -> tuple[Engine, State]:  # fmt: skip
    x, y = data(widths, likelihood)
    y = y.to(dtype) if y.is_floating_point() else y
    given: Any = (x.to(dtype), y)
    if rows:
        given = Subsets(*given, torch.stack([torch.arange(40 * k, 40 * k + 40) for k in (0, 1)]))
    options = {"chains": 2, "step_size": 1e-2, "prior": priors.Gaussian(0.3, 0.1)} | options
    sampler = Langevin(
        network(widths, activation=activation, bias=bias).to(dtype), LIKELIHOODS[likelihood],
        preconditioner=METRICS[metric](), dynamics=DYNAMICS[dynamics], seed=5, compile=compile,
        **options,
    )  # fmt: skip
    return sampler.prepare(given, steps=STEPS, batch_size=BATCH, burn_in=BURN_IN)


@contextmanager
def interpreted() -> Iterator[None]:
    """The kernel's planner alone, on the CPU."""
    before, known, gain = engines.PLANNERS[:], planner.DEVICES, planner.LEAST_GAIN
    engines.PLANNERS[:] = [planner.plan_whole_steps]
    planner.DEVICES, planner.LEAST_GAIN = ("cpu",), 0.0  # type: ignore[assignment]
    try:
        yield
    finally:
        engines.PLANNERS[:], planner.DEVICES, planner.LEAST_GAIN = before, known, gain


def check_run(*case: str, **options: Any) -> None:
    """A run in pieces, the first and the second of them in one launch each, against float64."""
    engine, state = prepared(*case, dtype=torch.float32, compile="auto", **options)  # type: ignore[arg-type]
    reference, wanted = prepared(*case, dtype=torch.float64, compile=False, **options)  # type: ignore[arg-type]
    for start, count in ((0, 4), (4, STEPS - 4)):
        state, info = engine.run(state, start, count)
        wanted, expected = reference.run(wanted, start, count)
    assert engine.way == "whole triton steps"
    torch.testing.assert_close(info.loss.double(), expected.loss, rtol=2e-4, atol=1e-5)
    for found, right in zip(pytree.tree_leaves(state), pytree.tree_leaves(wanted), strict=True):
        torch.testing.assert_close(
            found.double(), right.double(), rtol=2e-4, atol=2e-5 * float(right.abs().max())
        )


def check_stop() -> None:
    """The chain whose loss is not finite stands still, and the others go on."""
    made = [
        prepared("2-5-3", "categorical", "quasi-diagonal", "euler", dtype=dtype, compile=compile)
        for dtype, compile in ((torch.float32, "auto"), (torch.float64, False))
    ]
    ends = []
    for engine, state in made:
        state, _ = engine.run(state, 0, 2)
        state.params["0.weight"][1] = torch.inf
        before = pytree.tree_map(torch.clone, state)
        after, info = engine.run(state, 2, 3)
        assert after.diverged.tolist() == [-1, 2]
        assert info.diverged.tolist() == [False, True]
        assert torch.equal(after.params["2.weight"][1], before.params["2.weight"][1])
        ends.append(after.params["2.weight"][0].double())
    torch.testing.assert_close(*ends, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("which", "count"),
    [("few", 3), pytest.param("all", 13 + len(ACTIVATIONS), marks=pytest.mark.thorough)],
)
def test_the_kernel_in_its_interpreter(which: str, count: int) -> None:
    script = Path(__file__).with_name("interpreted_whole_steps.py")
    assert run_script(script, which).count("agrees") == count


def refused() -> dict[str, tuple[nn.Module, dict[str, Any]]]:
    plain = {"likelihood": likelihoods.Gaussian(sigma=0.7)}
    frozen = network("3-5-2")
    frozen[0].requires_grad_(False)
    return {
        "too wide": (network("3-65-2"), plain),
        "too deep": (network("3-4-4-4-2"), plain),
        "frozen": (frozen, plain),
        "no chain": (nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), plain),
        "float64": (network("3-5-2").double(), plain),
        "prior": (network("3-5-2"), plain | {"prior": priors.Laplace(0.5)}),
        "likelihood": (network("3-5-4"), {"likelihood": likelihoods.HeteroscedasticGaussian()}),
        "scaled": (
            network("3-5-2"),
            {"likelihood": likelihoods.Scaled(likelihoods.Gaussian(sigma=0.7), (1.0, 9.0))},
        ),
        "drawn labels": (
            network("3-5-2"),
            plain | {"preconditioner": preconditioners.DiagonalFisher(targets="model")},
        ),
        "metric": (network("3-5-2"), plain | {"preconditioner": preconditioners.UnitFisher()}),
        "integrator": (network("3-5-2"), plain | {"dynamics": Underdamped(0.3, "ubu")}),
    }


@pytest.mark.parametrize("what", refused())
def test_what_the_kernel_cannot_take_goes_the_general_way(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton")
    from natural_langevin.execution.kernels.whole_steps.executor import WholeSteps

    monkeypatch.setattr(WholeSteps, "run", lambda *_: pytest.fail("a step was taken"))
    model, options = refused()[what]
    x, y = data("3-2", "gaussian")
    dtype = next(model.parameters()).dtype
    with interpreted():
        sampler = Langevin(model, step_size=1e-3, chains=2, compile="auto", **options)
        given = (x.to(dtype), y.to(dtype))
        engine, state = sampler.prepare(given, steps=2, batch_size=BATCH)
        engine.run(state, 0, 1)
    assert engine.way in ("eager", "native kernels")
    assert not caplog.records


def test_a_kernel_that_disagrees_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here it is one that does nothing."""
    pytest.importorskip("triton")
    from natural_langevin.dynamics import Info
    from natural_langevin.execution.kernels.whole_steps.executor import WholeSteps

    def stand_still(self: Any, state: State, start: int, count: int) -> Info:
        return Info(torch.ones(2), state.diverged >= 0)

    monkeypatch.setattr(WholeSteps, "run", stand_still)
    monkeypatch.setattr(
        planner, "disagrees", lambda *a, known=planner.disagrees: seen.append(known(*a)) or seen[-1]
    )
    seen: list[str] = []
    case = ("3-5-2", "gaussian", "quasi-diagonal", "euler")
    with interpreted():
        engine, state = prepared(*case, dtype=torch.float32, compile="auto")
        engine.run(state, 0, 1)
    assert seen[0]
    assert engine.way in ("eager", "native kernels")
    assert "no whole steps in Triton" in caplog.text


def test_a_run_that_ends_before_the_kernel_is_built_does_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five seconds are saved by 100,000 steps of one chain and by 5,000 of four thousand."""
    tried: list[int] = []

    def refuses(device: object) -> None:
        tried.append(1)
        raise UnsupportedError("enough")

    monkeypatch.setattr(planner, "DEVICES", ("cpu",))
    monkeypatch.setattr(planner.gpu_build, "wait", refuses)
    engine, state = prepared(
        "3-5-2", "gaussian", "euclidean", "overdamped", dtype=torch.float32, compile="auto"
    )
    for steps, chains, taken in (
        (90_000, 1, 0),
        (105_000, 1, 1),
        (4_000, 4096, 1),
        (5_000, 4096, 2),
    ):
        long = SimpleNamespace(chains=chains, step=state.step)
        rates = range(steps)
        found = planner.plan_whole_steps(engine.dynamics, long, engine.stream, rates, 1.0)  # type: ignore[arg-type]
        assert isinstance(found, str)
        assert len(tried) == taken


def test_on_a_cpu_nobody_asks_for_it() -> None:
    engine, state = prepared(
        "3-5-2", "gaussian", "euclidean", "overdamped", dtype=torch.float32, compile="auto"
    )
    asked = engine.dynamics, state, engine.stream, engine.rates, engine.num_data
    assert isinstance(planner.plan_whole_steps(*asked), str)
