"""The effective temperature of a step reads 1 when it should, and tells each mis-scaling.

The wrong dynamics are made from the right ones at the outside: the same step without noise is its
drift, the difference is its noise, and a trap puts them together wrongly. Verdicts are beyond five
standard errors; seeds are fixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin.diagnostics import Kinetic
from natural_langevin.diagnostics.kinetic import summarise
from natural_langevin.dynamics import Underdamped
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.preconditioners import REGISTRY, Factor
from natural_langevin.preconditioners.base import diagonal_factor
from natural_langevin.run.temperature_probe import measure

NUM_DATA, BATCH = 120, 20


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_DATA, 4, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(NUM_DATA, generator=generator) > 0).long()


def sampler(name: str = "quasi-diagonal", **options) -> Langevin:
    metric = options.pop("preconditioner", None)
    if metric is None:
        settings = {} if name in ("euclidean", "rmsprop") else {"damping": 1e-2}
        metric = REGISTRY[name](**settings)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))
    settings = {"chains": 24, "step_size": 0.03, "prior": priors.Gaussian(variance=0.5)}
    return Langevin(model, likelihoods.Categorical(), preconditioner=metric, **(settings | options))


#: Chains cost almost nothing beside a step of one: many of them, and few steps, read the same.
def read(run: Langevin, steps: int = 4, batch_size: int = BATCH) -> Kinetic:
    return run.effective_temperature(data(), steps=steps, batch_size=batch_size)


def registered() -> list[Any]:
    """Every metric at one temperature; at a second one, which all of them treat alike, one."""
    others = [m for m in REGISTRY if m != "quasi-diagonal"]
    cold = [pytest.param(name, 0.1, marks=pytest.mark.thorough) for name in others]
    return [*((name, 1.0) for name in REGISTRY), ("quasi-diagonal", 0.1), *cold]


@pytest.mark.parametrize(("name", "temperature"), registered())
def test_a_correct_step_reads_one(name: str, temperature: float) -> None:
    """Within 4 of its own errors, and the error is small: about sqrt(2 / (96 steps x 86))."""
    found = read(sampler(name, temperature=temperature))
    assert not found.wrong
    assert 0.005 < found.noise.error < 0.03
    assert abs(found.noise.value - 1) < 4 * found.noise.error
    assert abs(found.temperature.value - 1) < 4 * found.temperature.error
    if found.drift is not None:
        assert abs(found.drift.value - 1) < 4 * found.drift.error
    assert set(found.tensors) == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("integrator", ["euler", "baoab"])
@pytest.mark.parametrize("friction", [0.1, 0.6])
def test_a_step_with_momentum_reads_one(integrator: str, friction: float) -> None:
    """And its minibatch noise counts by 1 / (how much of the noise a step renews)."""
    dynamics = Underdamped(friction=friction, integrator=integrator)  # type: ignore[arg-type]
    found = read(sampler(dynamics=dynamics, step_size=0.01))
    assert not found.wrong
    assert abs(found.noise.value - 1) < 4 * found.noise.error
    if found.drift is not None:
        assert abs(found.drift.value - 1) < 4 * found.drift.error
    plain = read(sampler(step_size=0.01)).minibatch
    keep = 1 - friction
    share = friction if integrator == "euler" else (1 - keep**2) / (2 * keep**2)
    assert found.minibatch == pytest.approx(plain / share, rel=0.15)


@pytest.mark.parametrize("targets", ["data", "model"])
@pytest.mark.parametrize("sigma", ["rmse", 0.3])
def test_regressions_and_other_priors(targets: str, sigma: float | str) -> None:
    """Half the chains at another temperature; a prior that is no Gaussian, and none at all."""
    x, y = data()
    run = Langevin(
        nn.Linear(4, 1), likelihoods.Gaussian(sigma), chains=80, step_size=0.05,
        temperature=torch.tensor([1.0, 0.3]).repeat(40),
        prior={"weight": priors.NormalInverseGamma(), "bias": priors.Flat()},
        preconditioner=preconditioners.QuasiDiagonalFisher(targets=targets, damping=1e-2),
    )  # fmt: skip
    found = run.effective_temperature((x, y.float()[:, None]), steps=8, batch_size=30)
    assert not found.wrong
    assert abs(found.noise.value - 1) < 4 * found.noise.error
    assert found.noise.error < 0.05


@pytest.mark.parametrize(("step_size", "coldest"), [(0.1, 1.0), (0.003, 0.02)])
@pytest.mark.parametrize("name", ["quasi-diagonal", "full"])
def test_errors_of_a_short_probe_are_honest(name: str, step_size: float, coldest: float) -> None:
    """200 probes of four steps of four chains, as a run ends with them, also where one chain has
    nearly all of the drift: readings spread as their errors say (means and chi-squared within 4
    sigma), and none of them is called wrong, which is beyond 5 errors."""
    probes, chains = 200, 4
    heat = torch.tensor([coldest, 1.0, 1.0, 1.0]).repeat(probes)
    run = sampler(name, chains=probes * chains, init="prior", step_size=step_size, temperature=heat)
    engine, state = run.prepare(data(), steps=4, batch_size=BATCH)
    found, names = measure(engine, state, 4), list(state.params)
    rows = found.warm.unflatten(0, (4, probes, chains)).transpose(0, 1).flatten(1, 2)
    readings = [summarise(found._replace(warm=some), names) for some in rows]
    assert not any(one.wrong for one in readings)
    for what in ("temperature", "noise", "drift"):
        known = [r for r in (getattr(one, what) for one in readings) if r is not None]
        z = torch.tensor([(r.value - 1) / r.error for r in known])
        if len(z):
            assert abs(float(z.square().mean()) - 1) < 4 * (2 / len(z)) ** 0.5, what
            assert abs(float(z.mean())) < 4 / len(z) ** 0.5, what


def test_zero_temperature_is_seen_to_be_cold() -> None:
    found = read(sampler(temperature=0.0))
    assert found.cold == 0.0
    assert found.temperature is None
    assert not found.wrong


def test_minibatch_noise_against_its_definition() -> None:
    """(N / 2 eta) E|eta C (v_B - v)|^2 / tr C, from per-sample gradients; 0 with all data.

    Euclidean: C = Id. The reading takes 4 steps of 24 chains."""
    x, y = data()
    run = sampler("euclidean", step_size=1e-3, temperature=0.0)
    found = read(run)
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))
    model.load_state_dict({k: v[0] for k, v in run.init().params.items()})
    rows = []
    for x_n, y_n in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(x_n[None]), y_n[None])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    variance = torch.stack(rows).double().var(0) / BATCH * (1 - BATCH / NUM_DATA)
    expected = NUM_DATA * 1e-3 / 2 * float(variance.mean())
    assert found.minibatch == pytest.approx(expected, rel=0.15)
    assert read(run, batch_size=NUM_DATA).minibatch == 0.0


def wrongly(combine: Callable[..., dict[str, Tensor]]) -> Callable[..., object]:
    """A step whose params are ``combine(theta, drift, noise, num_data, dynamics, metric)``."""
    right = LangevinDynamics.step

    def step(self, state, batch, rates, num_data, **options):  # type: ignore[no-untyped-def]
        cold = dataclasses.replace(self, temperature=torch.zeros_like(self.temperature))
        hot, info = right(self, state, batch, rates, num_data, **options)
        still, _ = right(cold, state, batch, rates, num_data, **options)
        drift = {k: still.params[k] - state.params[k] for k in state.params}
        noise = {k: hot.params[k] - still.params[k] for k in state.params}
        moved = combine(state.params, drift, noise, float(num_data), self, hot.metric)
        return hot._replace(params=moved), info

    return step


def scaled(drift_factor: float, noise_factor: Callable[[float, LangevinDynamics], float]):  # type: ignore[no-untyped-def]
    def combine(theta, drift, noise, num_data, dynamics, metric):  # type: ignore[no-untyped-def]
        factor = noise_factor(num_data, dynamics)
        return {k: theta[k] + drift_factor * drift[k] + factor * noise[k] for k in theta}

    return combine


#: name -> (drift's factor, noise's factor, the effective temperature that they make at T = 0.25)
SCALES = {
    "2 eta / N^2: T = 1/N": (1.0, lambda n, d: n**-0.5, 1 / NUM_DATA),
    "noise variance eta": (1.0, lambda n, d: 0.5**0.5, 0.5),
    "noise variance 4 eta": (1.0, lambda n, d: 2**0.5, 2.0),
    "N of the minibatch": (1.0, lambda n, d: (n / BATCH) ** 0.5, NUM_DATA / BATCH),
    "T instead of its root": (1.0, lambda n, d: float(d.temperature[0]) ** 0.5, 0.25),
    "T forgotten": (1.0, lambda n, d: float(d.temperature[0]) ** -0.5, 4.0),
    "drift of 2 eta": (2.0, lambda n, d: 1.0, 0.5),
    "summed loss": (float(BATCH), lambda n, d: 1.0, 1 / BATCH),
}


@pytest.mark.parametrize("trap", SCALES)
def test_each_mis_scaling_is_flagged(trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reading is the temperature that the wrong step really has."""
    drift, noise, expected = SCALES[trap]
    monkeypatch.setattr(LangevinDynamics, "step", wrongly(scaled(drift, noise)))
    # Few data and large steps, where the drift can be told from the noise.
    found = read(sampler(temperature=0.25, step_size=0.3), steps=6)
    assert found.wrong
    assert found.temperature.differs_from(1.0)
    assert abs(found.temperature.value / expected - 1) < 4 * found.temperature.error / expected


def test_the_same_steps_without_a_trap_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper itself is not what is flagged. Halving both is another step size, not a bug."""
    for drift, noise in ((1.0, 1.0), (0.5, 0.5**0.5)):
        with monkeypatch.context() as patch:
            patch.setattr(LangevinDynamics, "step", wrongly(scaled(drift, lambda n, d, f=noise: f)))
            found = read(sampler(temperature=0.25, step_size=0.3), steps=6)
            ratio = found.temperature
            assert abs(ratio.value - 1) < 4 * ratio.error
            assert found.wrong == (drift != 1.0)  # eta is not what was asked for


class Wrong(preconditioners.QuasiDiagonalFisher):
    """Noise that does not come from the drift's factor. ``kind`` says how."""

    kind = ""

    def factor(self, metric, damping):  # type: ignore[no-untyped-def]
        right = super().factor(metric, damping)

        class Mismatched(Factor):
            def sample(inner, z):  # type: ignore[no-untyped-def]  # noqa: N805
                if Wrong.kind == "C instead of its root":
                    return right.apply(z)
                if Wrong.kind == "no bias row":
                    return {k: (metric["second"][k] + damping[k]).rsqrt() * z[k] for k in z}
                if Wrong.kind == "metric of the noise clamped":
                    clamped = {k: j.clamp_min(0.05) for k, j in metric["second"].items()}
                    scale = {k: (j + damping[k]).rsqrt() for k, j in clamped.items()}
                    return diagonal_factor(scale).sample(z)
                return right.sample(z)

        return Mismatched(right.forward, right.transpose)


@pytest.mark.parametrize(
    "kind", ["C instead of its root", "no bias row", "metric of the noise clamped"]
)
def test_noise_of_another_metric_is_flagged(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sampler(preconditioner=Wrong(damping=1e-2))
    assert not read(run, steps=6).wrong
    monkeypatch.setattr(Wrong, "kind", kind)
    found = read(run, steps=6)
    assert found.wrong
    assert found.wrong_tensors


class Unscaled(priors.Gaussian):
    """A gradient that does not belong to its density: the prior counted N times."""

    def gradient(self, theta: Tensor) -> Tensor:
        return NUM_DATA * super().gradient(theta)


def test_a_prior_whose_gradient_is_wrong_is_flagged() -> None:
    assert read(sampler(prior=Unscaled(0.5), step_size=0.3), steps=6).wrong


def test_a_run_keeps_its_reading_and_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From sample to diagnose, and through the dictionary that is saved."""
    options = {"steps": 160, "batch_size": BATCH, "burn_in": 60, "thin": 2, "progress": False}
    posterior = sampler("euclidean", step_size=0.003).sample(data(), **options)
    saved = posterior.config["effective_temperature"]
    assert Kinetic.from_dict(saved).as_dict() == saved
    good = posterior.diagnose(data()[0][:10])
    assert not good.kinetic.wrong
    assert "Effective temperature of a step (1 is right)" in str(good)
    assert not any("mis-scaled" in v for v in good.verdicts)
    monkeypatch.setattr(LangevinDynamics, "step", wrongly(scaled(1.0, lambda n, d: n**-0.5)))
    bad = sampler("euclidean", step_size=0.003).sample(data(), **options).diagnose(data()[0][:10])
    assert any("mis-scaled" in v for v in bad.verdicts)


def test_short_runs_are_not_measured() -> None:
    posterior = sampler().sample(data(), steps=60, batch_size=BATCH, progress=False)
    assert posterior.config["effective_temperature"] is None
    assert "not measured" in str(posterior.diagnose(data()[0][:4]))


def test_a_probe_that_fails_does_not_cost_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr("natural_langevin.run.temperature_probe.measure", fail)
    posterior = sampler().sample(data(), steps=160, batch_size=BATCH, thin=40, progress=False)
    assert posterior.draws == 4
    assert "could not be measured: no such thing" in caplog.text


def test_dynamics_whose_steps_are_not_measured_are_named() -> None:
    """The error was that no chain is running."""
    run = sampler("euclidean", dynamics=Underdamped(0.1, "ubu"))
    with pytest.raises(ValueError, match=r"a step of Underdamped.*'ubu'.*no noise and drift"):
        read(run)


def test_a_loader_is_measured_too() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=BATCH)
    found = sampler().effective_temperature(loader, steps=4)
    assert abs(found.noise.value - 1) < 4 * found.noise.error
    assert not found.wrong


def test_nothing_is_drawn_from_torch() -> None:
    run = sampler()
    before = torch.get_rng_state()
    assert read(run) == read(run)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("batch_size", "warned"), [(250, False), (1, True)])
def test_minibatches_of_an_epoch_are_not_called_hot_where_their_errors_cancel(
    batch_size: int, warned: bool
) -> None:
    """A run of the recipe's whose step is larger than its heat allows independent minibatches:
    quarters of an epoch cancel, a thousandth part of it does not."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 2, generator=g)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(1000, 1, generator=g)
    sampler = Langevin(nn.Linear(2, 1), likelihoods.Gaussian(sigma=0.3), chains=2)
    found = sampler.sample((x, y), steps=40, batch_size=250, progress=False)
    found.config["batch_size"] = batch_size
    found.config["plan"] |= {"step_size": 0.02}
    measured = Kinetic(None, None, None, {}, minibatch=0.4, cold=None, lost=0.0)
    found.config["effective_temperature"] = dataclasses.asdict(measured)
    said = [v for v in found.diagnose(x[:20]).verdicts if "Minibatch noise" in v]
    assert bool(said) == warned
