"""Stages of a cyclical schedule: chains explore at temperature 0, and draws are kept elsewhere."""

from __future__ import annotations

import logging
from fractions import Fraction

import pytest
import torch
from monte_carlo import assert_within
from torch import nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors, schedules
from natural_langevin.dynamics import Adjusted, Integrator, NoseHoover, Overdamped, Underdamped
from natural_langevin.run.collector import SampleCollector, is_kept
from natural_langevin.run.loop import RunPlan
from small_run import assert_same, data, network, sample_until, sampler

CYCLES = schedules.cyclical(0.02, period=10, exploration=0.6)
DYNAMICS = [
    Overdamped(), Overdamped(correct_heat=True), Underdamped(0.3), Underdamped(0.3, "baoab"),
    Underdamped(0.3, "ubu"), NoseHoover(0.3),
]  # fmt: skip


def batch(dynamics: Integrator | None) -> int:
    """Rows of a batch that the dynamics takes, of 60."""
    return 60 if isinstance(dynamics, NoseHoover) else 20


def run(dynamics: Integrator | None = None, compile: bool | str = "auto", **options) -> Posterior:
    found = sampler(2, step_size=CYCLES, dynamics=dynamics, compile=compile)
    return found.sample(
        data(),
        40,
        **({"batch_size": batch(dynamics), "burn_in": 10, "thin": 2, "progress": False} | options),
    )


def test_kept_are_iterates_of_sampling_stages_alone(monkeypatch) -> None:
    """After burn-in 10, cycles 10-19, 20-29, 30-39 explore in steps 0-5 of each: iterate k is
    what step k - 1 led to, so that 18, 20, 28, 30, ... are kept of 12, 14, ..."""
    kept, keep = [], SampleCollector.keep

    def noted(self, state):
        kept.append(int(state.step))
        keep(self, state)

    monkeypatch.setattr(SampleCollector, "keep", noted)
    found = run()
    assert kept == [18, 20, 28, 30, 38, 40]
    assert not any(CYCLES.explores(k - 1) for k in kept)
    assert found.draws == 6
    assert run(keep=3).config["thin"] == 4
    assert [k for k in range(41) if is_kept(k, 10, 2, CYCLES.explores)] == kept[:6]
    plan = RunPlan(40, 10, 2, explores=CYCLES.explores)
    assert [k for k in range(41) if plan.keeps(k)] == kept[:6]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamics", DYNAMICS, ids=repr)
def test_exploration_is_descent(dynamics: Integrator, caplog) -> None:
    """Steps that explore are those at temperature 0, bit for bit; the running mean stands still."""
    caplog.set_level(logging.ERROR, logger="natural_langevin")
    ends = []
    for step_size, tau in ((CYCLES, 1.0), (schedules.cyclical(0.02, period=10), 0.0)):
        found = sampler(2, step_size=step_size, temperature=tau, dynamics=dynamics, compile=False)
        engine, state = found.prepare(data(), steps=10, batch_size=batch(dynamics))
        ends.append([engine.run(state, 0, 6)[0], state])
    (explored, start), (cold, _) = ends
    for name, p in explored.params.items():
        assert torch.equal(p, cold.params[name])
        assert torch.equal(explored.mean[name], start.mean[name])


@pytest.mark.parametrize("dynamics", [Overdamped(), Underdamped(0.3, "baoab")], ids=repr)
def test_every_way_has_the_same_stages(dynamics: Integrator) -> None:
    eager, native = run(dynamics, False), run(dynamics, "auto")
    assert (eager.config["execution"], native.config["execution"]) == ("eager", "native")
    for group in ("samples", "mean"):
        for name, value in getattr(eager, group).items():
            torch.testing.assert_close(value, getattr(native, group)[name], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_the_compiled_step_has_the_same_stages(monkeypatch) -> None:
    monkeypatch.setattr("natural_langevin.execution.compiled.BACKEND", "eager")
    whole, traced = run(), run(compile=True)
    for name, value in whole.samples.items():
        torch.testing.assert_close(value, traced.samples[name], rtol=1e-4, atol=1e-5)


def test_stopped_and_resumed_it_ends_with_the_same_bits(tmp_path, monkeypatch) -> None:
    whole = run()
    sample_until(monkeypatch, 4, lambda: run(checkpoint=tmp_path, every=7))
    assert_same(whole, run(checkpoint=tmp_path, every=7))


def test_the_law_of_the_sampling_stage_is_right() -> None:
    """One weight that the data (x = 0) do not see, under the prior N(0, 1/4): BAOAB has no bias on
    it. With N = 8 and eta at its largest, a step forgets eta / (a N v) = 0.33 of where it was: the
    first 24 of 48 steps gather all chains near the mode, and the other 24 spread them again."""
    net, count = nn.Linear(1, 1, bias=False), 1024
    nn.init.constant_(net.weight, 2.0)
    x = torch.zeros(8, 1)
    step_size = schedules.cyclical(0.4, period=48, exploration=0.5)
    found = Langevin(
        net, likelihoods.Gaussian(sigma=1.0), prior=priors.Gaussian(variance=0.25), chains=count,
        preconditioner=preconditioners.Euclidean(), step_size=step_size,
        dynamics=Underdamped(0.6, "baoab"),
    )  # fmt: skip
    posterior = found.sample((x, x), 96, batch_size=8, burn_in=48, thin=24, progress=False)
    assert posterior.draws == 1
    engine, state = found.prepare((x, x), steps=96, batch_size=8)
    gathered, _ = engine.run(state, 0, 72)
    assert float(gathered.params["weight"].abs().max()) < 0.05
    z = posterior.samples["weight"].flatten().double() / 0.5
    print(f"mean {z.mean():.3f}, variance {z.var():.3f}")
    assert_within(z.mean()[None], torch.tensor([count**-0.5]))
    assert_within(z.square().mean()[None] - 1, torch.tensor([(2 / count) ** 0.5]))


def test_stages_that_leave_nothing_and_dynamics_that_cannot_are_refused() -> None:
    for share in (-0.1, 1.0, Fraction(99, 100)):
        with pytest.raises(ValueError, match=r"give 0.8"):
            schedules.cyclical(0.1, period=10, exploration=share)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="smaller thin"):
        run(burn_in=5, thin=10)
    with pytest.raises(ValueError, match="exploration=0"):
        run(Adjusted(), batch_size=60)
    assert schedules.stages(schedules.constant(0.1)) is None


@pytest.mark.self_checked
def test_the_noise_of_the_sampling_stage_is_what_the_probe_measures() -> None:
    """Also where the run ends in an exploration stage."""
    found = Langevin(network(), likelihoods.Categorical(), step_size=CYCLES, chains=4)
    posterior = found.sample(data(), 205, batch_size=20, burn_in=10, progress=False)
    low, high = posterior.config["effective_temperature"]["noise"]
    assert abs(low - 1) < 5 * high
