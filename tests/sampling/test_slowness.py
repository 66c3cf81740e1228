"""Slow directions: a run whose metric leaves a condition number is as long as they need."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors
from natural_langevin.recipe import open_settings, run_length, slowness, step_size
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.curvature import steepest
from natural_langevin.recipe.slowness import Pace, friction_of_network, quickest, spectrum
from short_recipe import USUAL, changed

LIMITS, FRICTION = USUAL.step_size, USUAL.step_size.friction
DAMPED, HEAT, MOST_HEAT = LIMITS.damped, LIMITS.mean_heat, LIMITS.most_heat
ROWS, SIGMA, PRIOR = 120, 0.5, 100.0


def epochs_of(num_data: float, batch: int, *, shuffled: bool) -> slowness.Epochs:
    return slowness.Epochs(num_data, batch, shuffled, LIMITS)


def far_from_zero(centre: float = 8.0) -> tuple[Tensor, Tensor]:
    """An input of size 1 around ``centre``."""
    generator = torch.Generator().manual_seed(0)
    x = centre + torch.randn(ROWS, 1, generator=generator)
    return x, 1 + 0.5 * x + SIGMA * torch.randn(ROWS, 1, generator=generator)


def sampler(metric: preconditioners.Preconditioner, chains: int = 16) -> Langevin:
    """Of runs as long as their slowest direction needs, which no longer ones follow."""
    torch.manual_seed(0)
    likelihood, prior = likelihoods.Gaussian(sigma=SIGMA), priors.Gaussian(PRIOR)
    return Langevin(
        nn.Linear(1, 1), likelihood, prior=prior, preconditioner=metric, chains=chains,
        recipe=changed(length={"most": 6700}),
    )  # fmt: skip


def exact(centre: float = 8.0) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (slope, intercept)."""
    x, y = (t.double() for t in far_from_zero(centre))
    design = torch.cat([x, torch.ones_like(x)], 1)
    covariance = torch.linalg.inv(design.T @ design / SIGMA**2 + torch.eye(2) / PRIOR)
    return (covariance @ design.T @ y / SIGMA**2)[:, 0], covariance


def spread(posterior: Posterior, centre: float) -> tuple[float, float, float]:
    """The largest error of a mean, in standard deviations, that of a standard deviation, as a
    fraction, and the least share of a variance that a chain explores by itself."""
    mean, covariance = exact(centre)
    draws = torch.cat([posterior.samples[k].flatten(2) for k in ("weight", "bias")], 2).double()
    sd, every = covariance.diagonal().sqrt(), draws.flatten(0, 1)
    return (
        float(((every.mean(0) - mean) / sd).abs().max()),
        float((every.std(0) / sd - 1).abs().max()),
        float((draws.var(1).mean(0) / sd.square()).min()),
    )


@pytest.mark.parametrize(("centre", "parts"), [(15.0, 1), (8.0, 4)], ids=["full", "quarters"])
def test_the_posterior_at_the_defaults(centre: float, parts: int) -> None:
    """16 chains of 40 relaxation times, each worth half an independent draw: 320 of them, so that
    means have an error of .056 sd and sds of 4 %. Three of these are added to the claim, .1 sd and
    5 %. A chain of 40 such times misses a twentieth of the variance, and what it finds is known to
    a third, of all chains to 8 %. With the usual friction and length it had 1 or 2 of them, and
    explored half or a fifth."""
    metric = preconditioners.DiagonalFisher()
    posterior = sampler(metric).sample(
        far_from_zero(centre), batch_size=ROWS // parts, progress=False
    )
    assert posterior.healthy == list(range(16))
    mean, sd, within = spread(posterior, centre)
    assert mean < 0.1 + 3 / 320**0.5
    assert sd < 0.05 + 3 / 640**0.5
    assert within > 0.95 - 3 * 0.08
    chosen = posterior.plan
    assert 0 < chosen.friction < FRICTION
    assert f"friction={chosen.friction}" in posterior.config["dynamics"]
    assert "slowest direction" in chosen.reasons["step_size"]


def test_a_quick_posterior_is_sampled_as_usual() -> None:
    """The metric's blocks hold the correlation: nothing is slow."""
    x, y = far_from_zero()
    posterior = sampler(preconditioners.UnitFisher(), 2).sample(
        (x, y), batch_size=ROWS, progress=False
    )
    chosen = posterior.plan
    assert chosen.friction == FRICTION
    assert chosen.measured["relaxation"] is None
    assert 0.1 < chosen.measured["slowest"] <= chosen.measured["curvature"] < 10


def test_a_run_that_cannot_be_long_enough_warns(caplog: pytest.LogCaptureFixture) -> None:
    slow = recipe.Choice(1e-6, 100.0, 0.0, "", friction=1e-3, slowest=1e-4, relaxation=1e4)
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        found = run_length.choose(
            slow, USUAL, USUAL.cost.usual, steps=None, burn_in=None, thin=None, work=1.0
        )
    assert found.steps == USUAL.length.most
    assert "relaxes in 10000 steps" in caplog.text
    assert "600000 would be needed" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):  # nobody can mend it there
        run_length.choose(
            slow, open_settings.for_tables(), USUAL.cost.usual, steps=None, burn_in=None,
            thin=None, work=1.0,
        )  # fmt: skip
    assert not caplog.text


def test_all_eigenvalues_are_those_of_the_dense_matrix() -> None:
    """H = x x^T / (N sigma^2) + 1 / (N variance), and C the inverse of its diagonal's estimate."""
    x, y = far_from_zero()
    fixed = Langevin(
        nn.Linear(1, 1), likelihoods.Gaussian(sigma=SIGMA), prior=priors.Gaussian(PRIOR),
        preconditioner=preconditioners.DiagonalFisher(), step_size=1e-3, chains=2,
    )  # fmt: skip
    engine, state = fixed.prepare((x, y), steps=3, batch_size=ROWS)
    state, _ = engine.run(state, 0, 3)
    found = spectrum(fixed.frame, state, (x, y), ROWS)
    ones = {k: torch.ones_like(p) for k, p in state.params.items()}
    scale = fixed.frame.factor(state.metric, state.params, ROWS).forward(ones)
    a = torch.cat([scale["weight"].flatten(1), scale["bias"]], 1).double()
    hessian = torch.linalg.inv(exact()[1]) / ROWS
    expected = torch.linalg.eigvalsh(a[:, :, None] * hessian * a[:, None])
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    largest = steepest(fixed.frame, state, (x, y), ROWS, USUAL.pilot.iterations)
    np.testing.assert_allclose(largest, expected[:, 1], rtol=1e-2)


def test_relaxation_is_that_of_the_damped_oscillator() -> None:
    """The mean path theta'' = -a theta' - eta k theta, whatever the damping: the slower root."""
    for pace, k in ((Pace(0.01, 0.1), 0.02), (Pace(0.01, 0.1), 3.0), (Pace(1e-3, 0.02), 0.1)):
        roots = np.roots([1.0, pace.friction, pace.step_size * k])
        assert pace.relaxation(k) == pytest.approx(1 / -roots.real.max(), rel=1e-9)


def test_the_quickest_pace_follows_the_root_of_the_condition_number() -> None:
    whole = epochs_of(1000, 1000, shuffled=True)
    times = []
    for k in (1e-2, 1e-4):
        usual = Pace(0.1, 0.1)
        pace = quickest(usual, [k, 1.0], whole)
        times.append(pace.relaxation(k))
        assert pace.step_size == pytest.approx(0.1)
        assert times[-1] < usual.relaxation(k)
        # Critical damping, on a grid of frictions of ratio 2^(1/2).
        assert (0.1 * k) ** -0.5 <= times[-1] < 1.5 * (0.1 * k) ** -0.5
    assert times[1] / times[0] == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize(("parts", "friction", "rows"), [(4, 0.1, 100), (4, 0.02, 101)])
def test_minibatches_heat_the_steepest_direction_as_said(
    parts: int, friction: float, rows: int
) -> None:
    """BAOAB in one direction of curvature 1, moved by minibatches alone: gradients of single rows
    have variance 1, and an epoch cuts a permutation into whole batches. The formula holds to a
    seventh; the rest is the error of 400 chains."""
    batch = rows // parts
    epochs = epochs_of(rows, batch, shuffled=True)
    eta = epochs.largest_step([1.0], friction)
    assert eta > 2 * epochs_of(rows, batch, shuffled=False).largest_step([1.0], friction)
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(400, rows, generator=generator)
    row = (row - row.mean(1, keepdim=True)) / row.std(1, keepdim=True)
    theta, r, squares = torch.zeros(400), torch.zeros(400), []
    for step in range(int(12 / friction) + 600):
        if step % parts == 0:
            order = torch.rand(400, rows, generator=generator).argsort(1)
            noise = row.gather(1, order)[:, : parts * batch].unflatten(1, (parts, batch)).mean(2)
        r = r - eta * (theta + noise[:, step % parts])
        theta, r = theta + r / 2, (1 - friction) * r
        theta = theta + r / 2
        if step > 6 / friction:
            squares.append(theta.square().mean())
    # Temperature 1 / N in a direction of curvature 1 is a variance of 1 / N.
    heat = rows * float(torch.stack(squares).mean())
    assert 0.75 * 0.04 < heat < 1.15 * 0.04


def test_a_metric_that_is_no_fisher_matrix_steps_less_where_minibatches_heat_it() -> None:
    """RMSProp's curvatures are far above 1: an eta that only the integrator bounds left a mixture's
    mean 9 % too wide. A Fisher metric's are near 1, and its choice stands."""
    epochs = epochs_of(1000, 250, shuffled=True)
    usual = recipe.Choice(0.0017, 60.2, 0.003, "by the steepest curvature", "eager")
    chosen = step_size._paced(usual, [7.2, 20.0, 60.2], epochs, USUAL)
    assert chosen.step_size < 0.7 * usual.step_size
    heat = epochs.heat(chosen.step_size * 60.2, chosen.friction)
    assert heat == pytest.approx(MOST_HEAT, rel=0.1), "to the two digits that a step size has"
    assert "allow no more there" in chosen.reason
    fisher = recipe.Choice(0.0067, 1.17, 0.1, "minibatches", "eager")
    unchanged = step_size._paced(fisher, [0.82, 1.17], epochs, USUAL)
    assert unchanged == replace(fisher, slowest=0.82)


def test_rmsprop_begins_at_the_identity_where_gradients_vanish() -> None:
    """At the mode of a full batch: C was 1/damping, and threw chains away."""
    metric = recipe.averaged(preconditioners.RMSProp())
    rate = metric.ema_schedule()
    params = {"w": torch.zeros(1, 3)}
    state = metric.init(params, {})
    state = metric.update(state, params, None, torch.tensor([float(rate(0))]))  # type: ignore[arg-type]
    assert float(state["square"]["w"].min()) == pytest.approx(0.2)
    for step in range(1, 200):
        typical = {"w": torch.full((1, 3), 1e-2)}
        state = metric.update(state, typical, None, torch.tensor([float(rate(step))]))  # type: ignore[arg-type]
    np.testing.assert_allclose(state["square"]["w"], 1e-4, rtol=1e-3)
    own = preconditioners.RMSProp(decay=0.1)
    assert recipe.averaged(own) is own


@pytest.mark.parametrize(("eta", "heat"), [(1e-3, 0.0), (4e-4, 1e-3), (1e-3, 0.03), (0.02, 0.0)])
def test_the_friction_of_a_network_damps_slow_directions_critically(
    eta: float, heat: float
) -> None:
    """Where minibatches allow it: no friction on a fine grid lets the direction relax sooner."""
    usual = Pace(eta, FRICTION)
    chosen = friction_of_network(usual, heat, LIMITS)
    assert chosen <= usual.friction
    assert heat * usual.friction / chosen <= HEAT * (1 + 1e-9)
    allowed = [a for a in np.geomspace(1e-3, 0.1, 200) if heat * usual.friction / a <= HEAT]
    soonest = min(Pace(eta, a).relaxation(DAMPED) for a in allowed)
    assert Pace(eta, chosen).relaxation(DAMPED) <= 1.001 * soonest


def test_heat_of_minibatches_keeps_the_usual_friction() -> None:
    assert friction_of_network(Pace(1e-4, 0.1), HEAT, LIMITS) == 0.1
    assert friction_of_network(Pace(1e-4, 0.1), 2 * HEAT, LIMITS) == 0.1


WIDTH, CORRELATION = 110, 0.95


def correlated() -> tuple[Tensor, Tensor]:
    """400 rows of inputs that all have most of their variance in common."""
    generator = torch.Generator().manual_seed(0)
    shared, own = (torch.randn(400, k, generator=generator) for k in (1, WIDTH))
    x = CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * own
    return x, x[:, :1] + SIGMA * torch.randn(400, 1, generator=generator)


def explored(posterior: Posterior) -> float:
    """The share of the exact posterior's variance that a chain finds alone, in the mean of all
    directions."""
    x = torch.cat([correlated()[0], torch.ones(400, 1)], 1).double()
    precision = x.T @ x / SIGMA**2 + torch.eye(WIDTH + 1)
    draws = torch.cat([posterior.samples[k].flatten(2) for k in ("weight", "bias")], 2).double()
    return float((draws @ torch.linalg.cholesky(precision)).var(1).mean())


def wide_model(metric: preconditioners.Preconditioner) -> Langevin:
    torch.manual_seed(0)
    likelihood, prior = likelihoods.Gaussian(sigma=SIGMA), priors.Gaussian(1.0)
    return Langevin(
        nn.Linear(WIDTH, 1), likelihood, prior=prior, preconditioner=metric,
        recipe=changed(length={"most": 12_000}),
    )  # fmt: skip


def test_more_weights_than_are_measured_one_by_one_have_less_friction() -> None:
    plan = wide_model(preconditioners.DiagonalFisher()).plan(correlated(), batch_size=400)
    assert plan.friction < 0.5 * FRICTION
    assert "directions that are slow" in str(plan)


@pytest.mark.thorough
def test_more_weights_than_are_measured_one_by_one() -> None:
    """All but one of 111 directions have a twentieth of the curvature that the metric takes them
    to have. In 13,700 steps of friction .1 a chain explored .56 and .54 of their variance (two
    seeds), in 10,600 of less friction .81 and .77; a run goes on until its chains agree. What four
    chains find has an error of .02."""
    posterior = wide_model(preconditioners.DiagonalFisher()).sample(
        correlated(), batch_size=400, progress=False
    )
    chosen = posterior.plan
    assert chosen.friction < 0.5 * FRICTION
    assert f"friction={chosen.friction}" in posterior.config["dynamics"]
    assert "directions that are slow" in chosen.reasons["step_size"]
    assert explored(posterior) > 0.77 - 3 * 0.02


def test_a_metric_whose_scale_is_not_the_priors_keeps_the_usual_friction() -> None:
    """RMSProp has no curvature that is known to be slow."""
    posterior = wide_model(preconditioners.RMSProp()).sample(
        correlated(), steps=100, batch_size=400, progress=False
    )
    assert posterior.plan.friction == FRICTION


def test_the_remedy_names_the_cause() -> None:
    """Curvatures that are alike are slow by the noise of minibatches, others by the metric."""
    alike = recipe.Choice(1e-7, 1.05, 0.1, "", slowest=0.98, relaxation=1818.0)
    assert "larger minibatches" in run_length._remedy(alike)
    assert "denser metric" in run_length._remedy(replace(alike, slowest=1e-3))


def test_noise_of_minibatches_that_makes_a_run_long_is_taken_by_control_variates() -> None:
    """A linear model that its metric knows, of so many rows: a hundred times fewer steps."""
    x, y = far_from_zero(0.0)
    linear = sampler(preconditioners.UnitFisher(), 2)
    plain = recipe.Choice(4e-7, 1.1, 0.04, "", "native", friction=1e-3, slowest=0.9, relaxation=2e3)

    def choice(rows: float, **options: object) -> recipe.Choice:
        problem = replace(linear.problem.on((x, y)), **options)
        return step_size.with_anchors(plain, problem, rows, 500, USUAL)

    found = choice(1e6)
    assert found.control_variates == 500
    assert found.step_size > 0.05
    assert found.heat < LIMITS.mean_heat
    assert "anchor" in found.reason
    assert choice(1e6, clip=1.0) is plain  # gradients that do not add up
    assert choice(1e6, likelihood=likelihoods.Gaussian("rmse")) is plain
    short = replace(plain, relaxation=100.0)
    problem = linear.problem.on((x, y))
    assert step_size.with_anchors(short, problem, 1e5, 500, USUAL) is short
    asked = step_size.with_anchors(short, replace(problem, anchors=70), 1e5, 500, USUAL)
    assert asked.control_variates == 70
