"""Late, frozen and absent averages; compiled steps that are found again; how a run says it went."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, dynamics, likelihoods, preconditioners, schedules
from natural_langevin.execution import compiled
from natural_langevin.execution import engine as engines
from natural_langevin.execution.graphs import GraphedStep
from natural_langevin.execution.stepping import step_in_place
from natural_langevin.statistics import Gradients


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def data() -> tuple[Tensor, Tensor]:
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 1.5).long()


def sampler(metric: preconditioners.Preconditioner, **options: object) -> Langevin:
    settings = {"step_size": 1e-2, "chains": 2, "num_data": 60, "temperature": 0.0} | options
    return Langevin(network(), likelihoods.Categorical(), preconditioner=metric, **settings)  # type: ignore[arg-type]


def test_a_step_applies_the_metric_of_the_batches_before() -> None:
    """T = 0: the second step's direction is C(J_1) v, the first's and the paper's C(J_{t+1}) v."""
    x, y = data()
    kinds = [(False, 0), (True, 0), ("burn-in", 0), ("burn-in", 3)]
    for said, burn_in in kinds:
        fresh = said is True or burn_in > 0
        one = sampler(preconditioners.DiagonalFisher(damping=1e-2, fresh=said))  # type: ignore[arg-type]
        state = one.init()
        for step, rows in enumerate((slice(0, 20), slice(20, 40), slice(40, 60))):
            new, _ = one.step(state, (x[rows], y[rows]), burn_in=burn_in)
            used = new.metric if fresh or step == 0 else state.metric
            evaluation = one.frame.evaluate(state, (x[rows], y[rows]), chain_axis=False)
            v = one.frame.posterior_gradient(state.params, evaluation.gradient, 60)
            for k, p in state.params.items():
                expected = p - 1e-2 * v[k] / (used["second"][k] + 1e-2)
                torch.testing.assert_close(new.params[k], expected, rtol=1e-6, atol=1e-7)
            state = new


def test_a_frozen_metric_asks_for_no_statistics(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asked = []
    call = Gradients.__call__

    def noted(self, *args, statistics=True, **options):  # type: ignore[no-untyped-def]
        asked.append(statistics)
        return call(self, *args, statistics=statistics, **options)

    monkeypatch.setattr(Gradients, "__call__", noted)
    for adapt, every, expected in (
        ("burn-in", 1, [True] * 3 + [False] * 3),
        ("burn-in", 2, [True, False, True] + [False] * 3),
        ("always", 1, [True] * 6),
        ("always", 3, [True, False, False] * 2),
    ):
        one = sampler(preconditioners.QuasiDiagonalFisher(adapt=adapt, every=every), compile=False)
        engine, state = one.prepare(data(), steps=6, batch_size=20, burn_in=3)
        asked.clear()
        before = state.metric
        for step in range(6):
            state, _ = engine.run(state, step, 1)
            same = all(
                torch.equal(state.metric["second"][k], j) for k, j in before["second"].items()
            )
            assert same is not expected[step]
            before = state.metric
        assert asked == expected


def test_without_a_running_mean_the_mean_is_that_of_the_draws() -> None:
    runs = [
        sampler(preconditioners.RMSProp(), mean_rate=rate, temperature=1.0, compile=False).sample(
            data(), 30, batch_size=20, burn_in=10, thin=2, progress=False
        )
        for rate in (None, schedules.inverse_sqrt())
    ]
    for k, samples in runs[0].samples.items():
        assert torch.equal(samples, runs[1].samples[k])
        torch.testing.assert_close(runs[0].mean[k], samples.mean(1))
        assert not torch.allclose(runs[1].mean[k], samples.mean(1), atol=1e-5)
    without = sampler(preconditioners.RMSProp(), mean_rate=None)
    assert without.init().mean == {}


def test_a_second_run_of_the_same_shapes_compiles_nothing(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """And reads its own data, rates and state: it ends where an eager run ends."""
    made = []
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: made.append(a) or compile_(*a, **k))
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    options = {"temperature": 1.0, "dynamics": dynamics.Underdamped(integrator="ubu")}
    one = sampler(preconditioners.Euclidean(), compile=True, **options)
    x, y = data()
    for run, inputs in enumerate((x, x.flip(0))):
        engine, state = one.prepare((inputs, y), steps=5, batch_size=20)
        engine = type(engine)(
            engine.dynamics, engine.stream, engine.rates, 60, mode="compiled", fuse=False
        )
        state, _ = engine.run(state, 0, 5)
        assert len(made) == 1, f"run {run} compiled again"
        reference = sampler(preconditioners.Euclidean(), compile=False, **options)
        eager, start = reference.prepare((inputs, y), steps=5, batch_size=20)
        expected, _ = eager.run(start, 0, 5)
        for k, p in expected.params.items():
            torch.testing.assert_close(state.params[k], p, rtol=1e-5, atol=1e-6)


def test_an_executor_is_handed_whole_stretches(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    handed = []

    class Standing:
        name = "standing still"

        def run(self, state, start, count):  # type: ignore[no-untyped-def]
            handed.append((start, count))
            state.step.add_(count)
            return reference[1]

    one = sampler(preconditioners.Euclidean(), compile="auto")
    engine, state = one.prepare(data(), steps=10, batch_size=20)
    reference = sampler(preconditioners.Euclidean(), compile=False).step(one.init(), data())
    monkeypatch.setattr(engines, "PLANNERS", [lambda *a: "", lambda *a: Standing()])
    state, _ = engine.run(state, 0, 4)
    state, _ = engine.run(state, 4, 6)
    assert handed == [(0, 4), (4, 6)]
    assert int(state.step) == 10
    assert engine.way == "standing still"


def test_the_way_is_what_served_not_what_was_tried() -> None:
    """A graph counts once it is recorded, and no longer when a later recording has failed."""
    engine, _ = sampler(preconditioners.Euclidean(), compile=False).prepare(
        data(), steps=10, batch_size=20
    )
    engine.step = step_in_place
    engine._graph = GraphedStep(step_in_place)
    assert (engine.way, engine.recorded) == ("eager", 0)  # too few steps so far
    engine._graph._recordings["some kind of step"] = None  # type: ignore[assignment]
    assert (engine.way, engine.recorded) == ("graph", 1)
    engine._graph._failed = True
    assert (engine.way, engine.recorded) == ("eager", 0)


@pytest.mark.parametrize("burn_in", [0, 5])
@pytest.mark.parametrize("compile", ["auto", False])
def test_the_recipes_metric_counts_its_own_batch_in_a_burn_in_alone(
    burn_in: int, compile: bool | str
) -> None:
    """Where no burn-in ends its adapting it is of the batches before, in every way of running."""
    x, y = data()
    asked = {"steps": 6, "batch_size": 20, "burn_in": burn_in}
    found, plain, own = (
        sampler(preconditioners.DiagonalFisher(damping=1e-2, fresh=fresh), temperature=1.0,
                compile=compile).sample((x, y), progress=False, **asked).samples  # type: ignore[arg-type]
        for fresh in ("burn-in", False, True)
    )  # fmt: skip
    expected = own if burn_in else plain
    for k in found:
        torch.testing.assert_close(found[k], expected[k], rtol=0, atol=0)
        assert not torch.equal(plain[k][:, -1], own[k][:, -1])
