"""The fused step is the dynamics' own step: every backend and metric, against the general path."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fused_runs import METRICS, data
from natural_langevin import (
    Langevin,
    dynamics,
    likelihoods,
    preconditioners,
    priors,
)
from natural_langevin.dynamics import Kind, State
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.kernels import FusedStep, backend_for, plan
from natural_langevin.execution.stepping import StepInputs, pure_step
from triton_interpreter import UNUSABLE, run_script

#: What a few seconds of Triton's interpreter see: every kind of metric once, with or without bias,
#: and (the first one) of momentum, in every scheme.
WITH_BIAS = ("rmsprop", "diagonal, every second step", "quasi-diagonal, as in the paper")
WITHOUT_BIAS = ("euclidean", "quasi-diagonal, model")
MOMENTUM = ("quasi-diagonal", "euclidean", "rmsprop", "diagonal")
SCHEMES = ("euler", "baoab")


def network(*, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 17, bias=bias), nn.ReLU(), nn.Linear(17, 5, bias=bias))


def sampler(model: nn.Module, metric: Any, **settings: Any) -> Langevin:
    settings = {"prior": priors.Gaussian(0.3, 0.1), "chains": 3, "step_size": 1e-3} | settings
    return Langevin(
        model, likelihoods.Categorical(), preconditioner=metric, num_data=50, **settings
    )


def wide_network() -> nn.Module:
    """Rows of weights that begin with a block of noise, with half a one, and in between."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(48, 33), nn.ReLU(), nn.Linear(33, 32), nn.ReLU(), nn.Linear(32, 5)
    )


class Given:
    """Stands in for an engine's data: this batch, these rates, and N = 50."""

    def __init__(self, sampler: Langevin, batch: Any) -> None:
        self.sampler, self.batch = sampler, batch

    def inputs(self, state: State, batch: Any, kind: Kind) -> StepInputs:
        step = int(state.step)
        rates = rates_at(self.sampler, step).row(step)
        return StepInputs(self.batch, rates._replace(kind=kind), torch.tensor(50.0), False)


#: Steps before this one update the metric, later ones read it alone.
BURN_IN = 2


def rates_at(sampler: Langevin, step: int) -> RatesTable:
    return sampler.motion.rates(step, step + 1, sampler.step_size, burn_in=BURN_IN)


def kind_of(sampler: Langevin, step: int) -> Kind:
    return rates_at(sampler, step).kind(step)


def assert_same_steps(one: Langevin, backend: Any, *, steps: int = 3, expected: list[str]) -> None:
    """Steps of both paths from the same state; float32 rounding is all that may differ.

    The first applies its own batch's metric, the second the first's, the third is frozen."""
    x, y = data(next(p.shape[1] for p in one.model.parameters()))
    dynamics, state = one.frame, one.init()
    fused_state = copy.deepcopy(state)
    tasks = plan(dynamics, state, (x[:18], y[:18]), 50)
    assert [task.name for task in tasks] == expected
    step = FusedStep(tasks, backend)
    for k in range(steps):
        given = Given(one, (x[3 * k : 3 * k + 18], y[3 * k : 3 * k + 18]))
        kind = kind_of(one, k)
        state, info = pure_step(dynamics, given, state, None, kind)
        fused_info = step(dynamics, given, fused_state, None, kind)
        torch.testing.assert_close(fused_info.loss, info.loss, rtol=1e-4, atol=1e-5)
    name = f"{expected[0]}.weight"
    assert float((state.params[name] - fused_state.params[name]).abs().max()) < 1e-4
    for general, fused in zip(
        pytree.tree_leaves(state), pytree.tree_leaves(fused_state), strict=True
    ):
        torch.testing.assert_close(fused, general, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("metric", METRICS)
def test_the_cpu_kernel_is_the_general_step(metric: str, bias: bool) -> None:
    backend = backend_for(torch.device("cpu"))
    assert backend is not None
    assert_same_steps(sampler(network(bias=bias), METRICS[metric]), backend, expected=["0", "2"])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("metric", METRICS)
def test_the_cpu_kernel_carries_the_momentum(metric: str, scheme: Any) -> None:
    backend = backend_for(torch.device("cpu"))
    one = sampler(network(), METRICS[metric], dynamics=dynamics.Underdamped(0.3, scheme))
    assert_same_steps(one, backend, expected=["0", "2"])


def test_two_draws_a_step_and_corrected_noise_have_no_kernel() -> None:
    for own in (dynamics.Underdamped(integrator="ubu"), dynamics.Underdamped(correct_heat=True)):
        assert "linear" not in own.kernels
    for scheme in SCHEMES:
        assert "linear" in dynamics.Underdamped(integrator=scheme).kernels


def test_priors_and_rates_of_every_chain_reach_the_kernel() -> None:
    backend = backend_for(torch.device("cpu"))
    grid = {
        "prior": priors.Gaussian(torch.tensor([0.1, 1.0, 10.0]), torch.tensor([0.0, 0.5, -1.0])),
        "step_size": torch.tensor([1e-4, 1e-3, 2e-3]),
        "temperature": torch.tensor([1.0, 0.1, 0.0]),
    }
    one = sampler(network(), preconditioners.QuasiDiagonalFisher(damping=1e-2), **grid)
    assert_same_steps(one, backend, expected=["0", "2"])
    flat = sampler(network(), preconditioners.Euclidean(), prior=priors.Flat())
    assert_same_steps(flat, backend, expected=["0", "2"])


class Tied(nn.Module):
    """A weight that is used twice: once by its layer, once outside."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(20, 20), nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)) @ self.one.weight)


def test_what_does_not_qualify_stays_with_the_general_path() -> None:
    backend = backend_for(torch.device("cpu"))
    torch.manual_seed(0)
    assert_same_steps(sampler(Tied(), preconditioners.RMSProp()), backend, expected=["two"])
    frozen = network()
    frozen[0].bias.requires_grad_(False)
    assert_same_steps(sampler(frozen, preconditioners.RMSProp()), backend, expected=["2"])
    shaped = sampler(
        network(), METRICS["quasi-diagonal"],
        prior={"0.*": priors.NormalInverseGamma(), "*": priors.Gaussian(1.0)},
    )  # fmt: skip
    assert_same_steps(shaped, backend, expected=["2"])


def test_double_precision_and_the_full_metric_are_not_fused() -> None:
    x, y = data()
    full = sampler(network(), preconditioners.FullFisher(max_parameters=1000))
    double = sampler(network().double(), preconditioners.RMSProp())
    for one, inputs in ((full, x), (double, x.double())):
        assert plan(one.frame, one.init(), (inputs[:18], y[:18]), 50) == []


class Still(dynamics.Overdamped):
    """An integrator that moves nothing, derived from one that kernels know."""

    def update(self, on: Any, state: State, *rest: Any) -> State:
        return state._replace(step=state.step + 1)


def test_kernels_serve_no_update_but_their_own() -> None:
    """A class derived from Overdamped, or from the frame, says nothing about kernels by itself."""
    x, y = data()
    one = sampler(network(), METRICS["quasi-diagonal"], dynamics=Still())
    assert one.frame.kernels == frozenset()
    assert plan(one.frame, one.init(), (x[:18], y[:18]), 50) == []
    own = sampler(network(), METRICS["quasi-diagonal"])

    class Frame(dynamics.LangevinDynamics):
        pass

    known = dataclasses.fields(own.frame)
    fields = {f.name: getattr(own.frame, f.name) for f in known if f.init}
    assert own.frame.kernels
    assert Frame(**fields).kernels == frozenset()


def test_a_stopped_chain_stands_still() -> None:
    one = sampler(network(), METRICS["quasi-diagonal"])
    x, y = data()
    state = one.init()
    state.params["0.weight"][1] = torch.nan
    before = copy.deepcopy(state)
    tasks = plan(one.frame, one.init(), (x[:18], y[:18]), 50)
    step = FusedStep(tasks, backend_for(torch.device("cpu")))
    info = step(one.frame, Given(one, (x[:18], y[:18])), state, None, kind_of(one, 0))
    assert info.diverged.tolist() == [False, True, False]
    torch.testing.assert_close(state.params["2.weight"][1], before.params["2.weight"][1])
    torch.testing.assert_close(state.mean["0.bias"][1], before.mean["0.bias"][1])
    assert not torch.equal(state.params["2.weight"][0], before.params["2.weight"][0])


def test_threads_share_the_rows_of_a_layer() -> None:
    """Bit for bit, on a layer so large, and so often, that threads are at work together."""
    backend, ends, before = backend_for(torch.device("cpu")), [], torch.get_num_threads()
    x, y = torch.rand(18, 500, generator=torch.Generator().manual_seed(1)), torch.arange(18)
    for threads in (1, 4):
        torch.manual_seed(0)
        one = sampler(nn.Linear(500, 400), METRICS["quasi-diagonal"])
        state = one.init()
        step = FusedStep(plan(one.frame, state, (x, y), 50), backend)
        torch.set_num_threads(threads)
        try:
            for _ in range(40):
                step(one.frame, Given(one, (x, y)), state, None, Kind(adapts=True))
        finally:
            torch.set_num_threads(before)
        ends.append(state)
    for a, b in zip(*map(pytree.tree_leaves, ends), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("fault", ["none", "moves wrongly", "raises"])
def test_kernels_that_disagree_on_the_first_batch_are_not_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = backend_for(torch.device("cpu"))
    assert known is not None

    def update_(layers: Any, inputs: Any) -> None:
        if fault == "raises":
            raise RuntimeError("no such instruction")
        known.update_(layers, inputs)
        if fault == "moves wrongly":
            layers[0][1].weight.add_(0.01)

    built: list[set[bool]] = []
    given = known._replace(update_=update_, build=lambda *asked: built.append(asked[-1]))
    monkeypatch.setattr("natural_langevin.execution.kernels.backend_for", lambda device: given)
    monkeypatch.setattr("natural_langevin.execution.engine.PLANNERS", [])
    one = sampler(network(), METRICS["quasi-diagonal"], compile="auto")
    engine, state = one.prepare(data(), steps=6, batch_size=10, burn_in=3)
    with caplog.at_level("WARNING", logger="natural_langevin"):
        end, _ = engine.run(state, 0, 6)
    assert built == [{True, False}]
    reference, start = sampler(network(), METRICS["quasi-diagonal"], compile=False).prepare(
        data(), steps=6, batch_size=10, burn_in=3
    )
    expected, _ = reference.run(start, 0, 6)
    assert engine.way == ("native kernels" if fault == "none" else "eager, native refused")
    assert ("using the general step" in caplog.text) == (fault != "none")
    for a, b in zip(pytree.tree_leaves(end), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("fault", ["raises", "other losses"])
def test_a_networks_kernels_that_fail_are_left_out_and_the_layers_stay(fault: str) -> None:
    """Passes by kernels ask most of a device: what fails there must not cost the other kernels."""

    class Faulty(FusedStep):
        def __call__(self, *asked: Any) -> Any:
            info = super().__call__(*asked)
            if self._network is not None and fault == "raises":
                raise RuntimeError("too little shared memory")
            return info._replace(loss=info.loss * 2) if self._network is not None else info

    known = backend_for(torch.device("cpu"))
    assert known is not None
    one = sampler(network(), METRICS["quasi-diagonal"], compile=False)
    engine, state = one.prepare(data(), steps=6, batch_size=10, burn_in=3)
    tasks = plan(one.frame, state, engine.stream.example(), 50)
    step = Faulty(tasks, known._replace(build=lambda *asked: None))
    step._network = object()
    assert engine._checked(step, state) is step
    assert step._network is None
    assert engine.refused == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while compiling
@pytest.mark.parametrize(
    ("fuse", "backend"),
    [
        (True, "eager"),  # around the kernels there is little to compile, and it is traced
        pytest.param(True, "inductor", marks=pytest.mark.thorough),
        pytest.param(False, "inductor", marks=pytest.mark.thorough),
    ],
)
def test_a_compiled_run_uses_the_kernels_and_agrees_with_the_eager_one(
    fuse: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kernels the step is compiled as a whole, of one layer: every further one adds half a
    minute."""
    model = network() if fuse else nn.Sequential(nn.Linear(20, 5))
    monkeypatch.setattr("natural_langevin.execution.compiled.BACKEND", backend)
    ends = []
    for compile in (False, True):
        one = sampler(model, METRICS["quasi-diagonal"], compile=compile)
        engine, state = one.prepare(data(), steps=8, batch_size=10)
        engine = Engine(one.frame, engine.stream, engine.rates, 50, mode=engine.mode, fuse=fuse)
        state, _ = engine.run(state, 0, 8)
        ends.append(state)
        assert engine.way == {
            (True, True): "native kernels, compiled",
            (True, False): "compiled",
        }.get((compile, fuse), "eager")
    for a, b in zip(*map(pytree.tree_leaves, ends), strict=True):
        torch.testing.assert_close(b, a, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("which", "count"),
    [
        ("few", len(WITH_BIAS) + len(WITHOUT_BIAS) + 1 + len(SCHEMES) + 3 + 1 + 1),
        pytest.param(
            "all",
            2 * len(METRICS) + 2 + len(SCHEMES) * len(MOMENTUM) + 3 + 5 + 2,
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_the_triton_kernel_in_its_interpreter(which: str, count: int) -> None:
    script = Path(__file__).with_name("interpreted.py")
    assert run_script(script, which).count("agrees") == count


def test_where_the_interpreter_is_to_blame_the_reason_is_given(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")
    script = tmp_path / "script.py"
    script.write_text(f"print({UNUSABLE!r}, 'Triton of old')")
    with pytest.raises(pytest.skip.Exception, match=r"^Triton of old$"):
        run_script(script)
