"""A power of the likelihood, and a prior's mean for every weight: the closed form of a linear
regression, in which beta N data stand for N, by every integrator and every way of running a step.

BAOAB and trajectories with Metropolis' decision have no bias on a Gaussian target; for the others
the step is small enough for the Monte-Carlo error.
"""

from __future__ import annotations

import pytest
import torch
from gaussian_law import TRUTH, Problem, make_problem, whiten
from monte_carlo import assert_normal, assert_within
from torch import Tensor

from natural_langevin import Langevin, Posterior, dynamics, priors
from natural_langevin.preconditioners import Euclidean, FullFisher, QuasiDiagonalFisher, UnitFisher

BAOAB = dynamics.Underdamped(0.6, "baoab")
COUNT, POWERS = 250, (0.25, 1.0, 3.0)
MEANS = torch.tensor([0.4, -0.8, 1.2, 0.1], dtype=torch.float64)


def sampled(
    problem: Problem, metric, how=BAOAB, *, steps=80, step_size: float = 0.3, **options
) -> Posterior:  # type: ignore[no-untyped-def]
    means = {"weight": MEANS[:-1][None], "bias": MEANS[-1:]}
    prior = priors.around(means, variance=1 / float(problem.precision[0]))
    found = problem.sampler(
        metric, prior, COUNT * len(POWERS), step_size=step_size, dynamics=how, mean_rate=None,
        likelihood_power=torch.tensor(POWERS, dtype=torch.float64).repeat_interleave(COUNT),
        **options,
    )  # fmt: skip
    return found.sample(
        (problem.x, problem.y), steps, batch_size=len(problem.x), burn_in=10, thin=steps - 10,
        progress=False,
    )  # fmt: skip


def assert_the_closed_form(problem: Problem, posterior: Posterior) -> None:
    theta = torch.cat([posterior.samples[k].flatten(1) for k in ("weight", "bias")], dim=1)
    for rung, beta in zip(theta.split(COUNT), POWERS, strict=True):
        z = whiten(rung, *problem._replace(mean=MEANS).posterior(beta))
        print(f"power {beta:g}: mean {z.mean():+.3f}, mean square {z.square().mean():.3f}")
        assert_normal(z)
        assert_within(z.square().mean()[None] - 1, torch.tensor([(2 / z.numel()) ** 0.5]))


@pytest.mark.parametrize(
    ("metric", "compile"),
    [
        (QuasiDiagonalFisher, "auto"),
        (QuasiDiagonalFisher, False),
        (UnitFisher, "auto"),
        (Euclidean, "auto"),
    ],
)
def test_the_closed_form_by_the_native_engine_and_by_the_reference(metric, compile) -> None:  # type: ignore[no-untyped-def]
    problem = make_problem(num_data=24)
    eta = 0.02 if metric is Euclidean else 0.3
    posterior = sampled(
        problem, metric(), step_size=eta, compile=compile, steps=400 if metric is Euclidean else 80
    )
    assert posterior.config["execution"] == ("native" if compile else "eager")
    assert_the_closed_form(problem, posterior)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how",
    [
        dynamics.NoseHoover(0.6),
        dynamics.Adjusted(steps=4),
        dynamics.Underdamped(0.6, "ubu"),
        dynamics.Microcanonical(0.6),
    ],
    ids=repr,
)
def test_the_closed_form_by_every_integrator(how: dynamics.Integrator) -> None:
    problem = make_problem(num_data=24)
    assert_the_closed_form(problem, sampled(problem, FullFisher(), how, step_size=0.1, steps=120))


def test_one_step_by_hand() -> None:
    """v = g - d ln alpha / (beta N), noise of variance 2 eta T / (beta N), damping by beta N."""
    problem, beta = make_problem(num_data=24), torch.tensor([0.5, 2.0], dtype=torch.float64)

    def step(temperature: float) -> Tensor:
        moved = problem._replace(temperature=torch.tensor(temperature, dtype=torch.float64))
        found = moved.sampler(
            Euclidean(), priors.Gaussian(variance=0.2, mean=0.5), 2, step_size=0.1,
            likelihood_power=beta,
        )  # fmt: skip
        start = found.init()
        return found.step(start, (problem.x, problem.y))[0].params["bias"] - start.params["bias"]

    phi = torch.cat([problem.x, torch.ones_like(problem.x[:, :1])], 1)
    theta = TRUTH + torch.tensor([0.05, 0.05, 0.05, -0.05], dtype=torch.float64)
    g = (phi.mT @ (phi @ theta - problem.y[:, 0]) / len(phi) / problem.sigma**2)[-1]
    v = g + (theta[-1] - 0.5) / (0.2 * beta * len(phi))
    torch.testing.assert_close(step(0.0)[:, 0], -0.1 * v)
    warm, cold = (step(t) for t in (4.0, 0.0))
    noise = (warm - cold)[:, 0] * (beta * len(phi) / (2 * 0.1 * 4)).sqrt()
    same = problem._replace(temperature=torch.tensor(4.0)).sampler(
        Euclidean(), priors.Gaussian(variance=0.2, mean=0.5), 2, step_size=0.1
    )
    drawn = same.frame.standard_normal(same.init().params, torch.tensor(0))["bias"][:, 0]
    torch.testing.assert_close(noise, drawn.double(), rtol=1e-5, atol=1e-6)


def test_density_temperature_and_configuration_know_the_power() -> None:
    problem = make_problem(num_data=24)
    found = problem.sampler(
        FullFisher(), priors.Gaussian(variance=2.0), 16, step_size=0.3, dynamics=BAOAB,
        likelihood_power=0.25,
    )  # fmt: skip
    posterior = found.sample(
        (problem.x, problem.y), 200, batch_size=24, burn_in=20, thin=10, progress=False
    )
    assert posterior.config["likelihood_power"] == [0.25] * 16
    last = {k: v[:, -1] for k, v in posterior.samples.items()}
    whole = posterior.log_density((problem.x, problem.y))[:, -1]
    torch.testing.assert_close(found.log_density(last, (problem.x, problem.y)), whole)
    loss = posterior.log_likelihood(problem.x, problem.y).double().sum(-1)[:, -1]
    prior = sum(found.problem.prior[k].log_density(v) for k, v in last.items())
    torch.testing.assert_close(0.25 * loss + prior, whole)
    reading = found.effective_temperature((problem.x, problem.y), posterior=posterior, steps=20)
    assert not reading.wrong
    verdict = posterior.diagnose(problem.x, data=(problem.x, problem.y))
    assert verdict.configurational is not None
    assert abs(verdict.configurational.bias) < 5 * verdict.configurational.temperature.error
    one = problem.sampler(FullFisher(), priors.Gaussian(2.0), 4, likelihood_power=1.0)
    assert "likelihood_power" not in one.describe()


@pytest.mark.parametrize(
    ("value", "what"),
    [(0.0, "above 0"), (-1.0, "likelihood_power"), (torch.ones(3), "one value per chain")],
)
def test_wrong_powers_are_refused(value: object, what: str) -> None:
    problem = make_problem(num_data=24)
    with pytest.raises(ValueError, match=what):
        problem.sampler(FullFisher(), priors.Gaussian(2.0), 2, likelihood_power=value)


def test_a_checkpoint_is_of_one_power(tmp_path) -> None:  # type: ignore[no-untyped-def]
    problem = make_problem(num_data=24)

    def run(power: float) -> Posterior:
        found: Langevin = problem.sampler(
            Euclidean(), priors.Gaussian(2.0), 2, step_size=0.01, likelihood_power=power
        )
        return found.sample(
            (problem.x, problem.y), 20, batch_size=24, checkpoint=tmp_path / "run", progress=False
        )

    first = run(0.5)
    assert torch.equal(first.samples["weight"], run(0.5).samples["weight"])
    with pytest.raises(Exception, match="likelihood_power"):
        run(0.7)
