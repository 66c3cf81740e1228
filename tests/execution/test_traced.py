"""Steps that are traced and replayed: the bits of the step itself."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, dynamics, likelihoods, preconditioners
from natural_langevin.dynamics import State
from natural_langevin.execution import traced
from natural_langevin.execution.stepping import overwrite
from natural_langevin.run import preparation


class Residual(nn.Module):
    """A LayerNorm around which there is a way: no engine of our own knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.inner(x))


def run(
    patience: float, monkeypatch: Any, looks: bool = False, **options: Any
) -> tuple[State, str]:
    monkeypatch.setattr(traced, "PATIENCE", patience)
    monkeypatch.setattr(traced, "SEVERAL", 0)
    torch.manual_seed(0)
    data = torch.randn(40, 4), torch.arange(40) % 3
    options = {"step_size": 1e-3, "chains": 1} | options
    sampler = Langevin(Residual(), likelihoods.Categorical(), **options)
    engine, state = sampler.prepare(data, steps=8, batch_size=10, burn_in=6)
    state, _ = engine.run(state, 0, 8)
    return state, engine.traced


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dynamics": dynamics.Underdamped(integrator="ubu"), "chains": 2},
        {"preconditioner": preconditioners.DiagonalFisher(targets="model", every=2)},
    ],
)
def test_the_bits_of_the_step_itself(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without statistics, and with several draws in a step."""
    plain, kinds = run(float("inf"), monkeypatch, **options)
    assert kinds == 0
    found, kinds = run(-1.0, monkeypatch, **options)
    assert kinds == 2
    torch.testing.assert_close(found.params, plain.params, rtol=0, atol=0)
    torch.testing.assert_close(found.metric, plain.metric, rtol=0, atol=0)
    torch.testing.assert_close(found.own, plain.own, rtol=0, atol=0)


def test_a_trace_that_differs_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = run(float("inf"), monkeypatch)
    own = traced._shorten

    def wrong(graph: Any) -> None:
        own(graph)
        for node in graph.graph.nodes:
            if getattr(node.target, "__name__", "") == "tanh":
                node.target = torch.relu
        graph.recompile()

    monkeypatch.setattr(traced, "_shorten", wrong)
    found, kinds = run(-1.0, monkeypatch)
    assert kinds == 0
    torch.testing.assert_close(found.params, plain.params, rtol=0, atol=0)


class Ahead(dynamics.Overdamped):
    """Adds the normals of the next step, as Leimkuhler and Matthews's integrator does."""

    def update(self, on: Any, state: State, *given: Any) -> State:
        found = super().update(on, state, *given)
        more = on.standard_normal(state.params, state.step + 1)
        return found._replace(params={k: p + more[k] for k, p in found.params.items()})


def test_a_step_that_reads_the_normals_of_others_is_not_traced(monkeypatch: Any) -> None:
    """A trace has this step's alone."""
    expected, _ = run(1e9, monkeypatch, dynamics=Ahead(), compile=False)
    found, count = run(0.0, monkeypatch, dynamics=Ahead())
    assert count == 0
    for k, p in expected.params.items():
        assert torch.equal(found.params[k], p)


def test_states_are_written_over_whatever_else_they_hold() -> None:
    """By a dynamics of one's own: other kinds of trees, and leaves that are no tensors."""
    old = {"x": torch.zeros(2), "none": None, "count": 3, "more": (deque([torch.zeros(1)]),)}
    new = {"x": torch.ones(2), "none": None, "count": 3, "more": (deque([torch.ones(1)]),)}
    tensor = old["x"]
    overwrite(old, new)
    assert tensor is old["x"]
    assert torch.equal(tensor, torch.ones(2))
    assert torch.equal(old["more"][0][0], torch.ones(1))
    with pytest.raises(AttributeError):
        overwrite({"count": 3}, {"count": 4})  # would be lost


class Recurrent(nn.Module):
    """Kernels know its update, and torch's operations are its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def test_engines_of_the_same_passes_share_their_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever N, rates, priors and noise they have; other numbers of chains have their own."""
    monkeypatch.setattr(traced, "PATIENCE", -1.0)
    monkeypatch.setattr(traced, "SEVERAL", 0)
    made: list[int] = []
    real = traced._traced
    monkeypatch.setattr(traced, "_traced", lambda *call: made.append(1) or real(*call))
    torch.manual_seed(0)
    x, y = torch.randn(40, 2, 2), torch.arange(40) % 3
    network = Recurrent()

    def params(sampler: Langevin, rows: int, eta: float) -> dict[str, Tensor]:
        engine, state = sampler.prepare(
            (x[:rows], y[:rows]), steps=8, batch_size=10, burn_in=6, step_size=eta
        )
        return engine.run(state, 0, 8)[0].params

    def sampler() -> Langevin:
        return Langevin(network, likelihoods.Categorical(), chains=2, recipe="paper")

    one = sampler()
    params(one, 40, 1e-3)
    assert len(made) == 2  # with statistics and without
    other = params(one, 30, 2e-3)
    assert len(made) == 2
    assert all(torch.equal(other[k], v) for k, v in params(sampler(), 30, 2e-3).items())
    assert len(made) == 4
    motion = one.motion.on(one.problem.with_chains(3))
    assert motion.gradients is one.motion.gradients
    engine, state = preparation.engine(
        motion.on(motion.problem.on((x, y))), steps=2, batch_size=10, step_size=1e-3
    )
    engine.run(state, 0, 2)
    assert len(made) == 5


def test_descents_share_their_gradients() -> None:
    sampler = Langevin(Recurrent(), likelihoods.Categorical(), chains=1)
    whole = sampler.motion.gradients
    metric = preconditioners.RMSProp()
    asked = metric.requests, metric.targets, metric.sharing
    assert whole.requesting(*asked) is whole.requesting(*asked) is not whole
    assert whole.requesting(*asked).network is whole.network


class Masked(Residual):
    """Some of its inputs are filled in place, as an attention's padding mask is."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * torch.zeros_like(x).masked_fill_(x > -1, 1.0))


def test_writing_in_place_costs_a_trace_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace has no such operation, so that it is shortened as any other."""
    own, written, found = traced._shorten, [], {}

    def counted(graph: Any) -> None:
        written.append(any(map(traced._mutates, graph.graph.nodes)))
        own(graph)

    monkeypatch.setattr(traced, "_shorten", counted)
    monkeypatch.setitem(globals(), "Residual", Masked)
    for patience in (float("inf"), -1.0):
        found[patience], kinds = run(patience, monkeypatch)
    assert kinds == 2
    assert written == [False, False]
    plain, replayed = found.values()
    torch.testing.assert_close(replayed.params, plain.params, rtol=0, atol=0)
