"""Metropolis-adjusted chains: no bias of the step size is left, whatever the step size is.

The exact posterior of a linear regression, mean and full covariance, from chains that start at one
point, at a step size at which the unadjusted chain is half as wide again; and a logistic
regression, whose posterior is no Gaussian, by quadrature.
"""

from __future__ import annotations

import pytest
import torch
from gaussian_law import flat, make_problem, whiten
from monte_carlo import assert_normal, assert_within
from test_linear_regression import gaussian_prior
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors
from natural_langevin.dynamics import Adjusted, Integrator, Overdamped
from natural_langevin.preconditioners import DiagonalFisher, Euclidean, FullFisher, Preconditioner

CHAINS = 512


def chains(integrator: Integrator, metric: Preconditioner, eta: float, steps: int) -> Tensor:
    """Whitened by the exact posterior: (chain, p)."""
    problem = make_problem()
    sampler = problem.sampler(
        metric, gaussian_prior(problem), CHAINS, step_size=eta, dynamics=integrator
    )
    state = sampler.init()
    for _ in range(steps):
        state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    return whiten(flat(state), *problem.posterior())


@pytest.mark.parametrize(
    ("integrator", "metric", "eta", "steps"),
    [
        (Adjusted(), FullFisher(), 0.7, 60),
        (Adjusted(), DiagonalFisher(), 0.4, 120),
        (Adjusted(2), FullFisher(), 0.4, 81),
        (Adjusted(6), Euclidean(), 0.06, 181),
    ],
    ids=["full", "diagonal", "full, 2 steps", "euclidean, 6 steps"],
)
def test_the_posterior_at_large_steps(
    integrator: Integrator, metric: Preconditioner, eta: float, steps: int
) -> None:
    assert_normal(chains(integrator, metric, eta, steps))


def test_the_unadjusted_chain_is_visibly_wrong_there() -> None:
    z = chains(Overdamped(), FullFisher(), 0.7, 60)
    print(f"mean square {z.square().mean():.3f}")  # 1 / (1 - eta / 2) = 1.54 where C H = Id
    assert z.square().mean() > 1.3


NUM_DATA, VARIANCE = 12, 4.0


def logistic() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1.5, 2.5, NUM_DATA, dtype=torch.float64)[:, None]
    return x, (torch.arange(NUM_DATA) % 5 < 1 + torch.arange(NUM_DATA) // 3).double()[:, None]


def run_logistic(integrator: Integrator, burn_in: int, **options) -> Posterior:  # type: ignore[no-untyped-def]
    sampler = Langevin(
        nn.Linear(1, 1).double(), likelihoods.Bernoulli(), prior=priors.Gaussian(VARIANCE),
        preconditioner=preconditioners.FullFisher(), dynamics=integrator, chains=256, **options,
    )  # fmt: skip
    return sampler.sample(
        logistic(), burn_in + 80, batch_size=NUM_DATA, burn_in=burn_in, thin=20, progress=False
    )


def by_quadrature() -> Tensor:
    """E[(w, b, w^2, w b, b^2)] under the posterior."""
    x, y = logistic()
    line = torch.linspace(-12, 12, 481, dtype=torch.float64)
    theta = torch.cartesian_prod(line, line)
    logits = theta[:, :1] * x.mT + theta[:, 1:]
    log_density = (y.mT * logits - nn.functional.softplus(logits)).sum(1)
    weight = (log_density - theta.square().sum(1) / (2 * VARIANCE)).softmax(0)[:, None]
    return (weight * moments(theta)).sum(0)


def moments(theta: Tensor) -> Tensor:
    w, b = theta[..., 0], theta[..., 1]
    return torch.stack([w, b, w * w, w * b, b * b], dim=-1)


@pytest.mark.parametrize(("steps", "target", "burn_in"), [(1, 0.574, 160), (5, 0.651, 250)])
def test_a_tuned_run_on_a_logistic_regression(steps: int, target: float, burn_in: int) -> None:
    """Nothing given but the dynamics: the step size is found, and the posterior is exact."""
    posterior = run_logistic(Adjusted(steps), burn_in)
    acceptance = torch.tensor(posterior.config["acceptance"])
    print(f"acceptance {acceptance.mean():.3f}, factor {posterior.config['step_size_factor'][:3]}")
    assert abs(float(acceptance.mean()) - target) < 0.1
    draws = torch.cat([posterior.samples["weight"][..., 0], posterior.samples["bias"]], dim=-1)
    f = moments(draws).mean(1)  # chains are independent, their draws are not
    assert_within(f.mean(0) - by_quadrature(), f.std(0) / len(f) ** 0.5)


def test_a_run_goes_on_where_it_was_and_proposals_are_not_the_chain() -> None:
    """Between the ends of trajectories the chain stands still, and so does its running mean's
    target; the end of a trajectory moves it to the proposal or leaves it."""
    problem = make_problem()
    sampler = problem.sampler(
        FullFisher(), gaussian_prior(problem), 8, step_size=0.3, dynamics=Adjusted(3)
    )
    state, places = sampler.init(), []
    for _ in range(13):
        places.append(flat(state))
        proposed = flat(state._replace(params=state.own.proposal))
        state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
        moved = (flat(state) != places[-1]).any(1)
        if len(places) % 3 != 1:
            assert not moved.any()
        else:
            assert torch.equal(flat(state)[moved], proposed[moved])
    assert moved.any()


def test_energies_of_many_data_differ_exactly() -> None:
    """What is accepted hangs on differences of order 1, and 150,000 nats have their next float32
    neighbour 0.016 away."""
    rows = 100_000
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 2, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(rows, 1, generator=generator)
    sampler = Langevin(
        nn.Linear(2, 1), likelihoods.Gaussian(1.0), prior=priors.Gaussian(1.0), num_data=rows,
        preconditioner=Euclidean(), dynamics=Adjusted(), chains=3, step_size=1e-2,
    )  # fmt: skip
    state = sampler.init()
    for _ in range(2):
        state, _ = sampler.step(state, (x, y), burn_in=1)
    weight, bias = (state.params[k].double() for k in ("weight", "bias"))
    residuals = y.double() - x.double() @ weight.mT - bias[:, None]
    squares = residuals.square().sum((1, 2)) + weight.square().sum((1, 2)) + bias.square().sum(1)
    exact = squares / 2 - squares[0] / 2
    assert exact[1:].abs().min() > 1
    # Forward passes round each of the losses, of about 1, by up to 1e-7: 5e-5 in all of them.
    assert state.own.energy.min() > 100_000
    torch.testing.assert_close(state.own.energy - state.own.energy[0], exact, rtol=0, atol=2e-4)


def test_a_proposal_that_is_no_number_is_refused_and_the_chain_goes_on() -> None:
    """Steps so large that every proposal overflows: the chain stays, finite and not diverged."""
    x, y = logistic()
    sampler = Langevin(
        nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0), num_data=NUM_DATA, chains=4,
        preconditioner=Euclidean(), step_size=1e30, dynamics=Adjusted(2),
    )  # fmt: skip
    start = state = sampler.init()
    for _ in range(7):
        state, info = sampler.step(state, (x.float(), y.float()))
    assert not info.diverged.any()
    assert torch.equal(state.params["weight"], start.params["weight"])
    assert state.own.trajectories.tolist() == [3.0] * 4
    assert state.own.accepted.tolist() == [0.0] * 4


def test_what_cannot_be_adjusted_is_refused() -> None:
    x, y = logistic()

    def sampler(**options) -> Langevin:  # type: ignore[no-untyped-def]
        settings = {"dynamics": Adjusted(), "likelihood": likelihoods.Bernoulli()} | options
        return Langevin(nn.Linear(1, 1).double(), num_data=NUM_DATA, **settings)

    with pytest.raises(ValueError, match="all 12 of them, got 4"):
        sampler().sample((x, y), 20, batch_size=4, burn_in=10, progress=False)
    one = sampler()
    with pytest.raises(ValueError, match="all 12 of them, got 4"):
        one.step(one.init(), (x[:4], y[:4]), burn_in=1)
    with pytest.raises(ValueError, match="a frozen metric: give burn_in"):
        sampler().sample((x, y), 20, batch_size=12, progress=False)
    always = sampler(preconditioner=DiagonalFisher(adapt="always", every=2))
    with pytest.raises(ValueError, match="a frozen metric: give burn_in"):
        always.sample((x, y), 20, batch_size=12, burn_in=10, progress=False)
    with pytest.raises(ValueError, match="temperature above 0"):
        sampler(temperature=0.0).sample((x, y), 20, batch_size=12, burn_in=10, progress=False)
    with pytest.raises(ValueError, match="updated from every batch"):
        sampler(likelihood=likelihoods.Gaussian(sigma="rmse")).sample(
            (x, y), 20, batch_size=12, burn_in=10, progress=False
        )


def test_a_batch_of_open_size_holds_all_data() -> None:
    x = torch.linspace(-1, 1, 130, dtype=torch.float64)[:, None]
    sampler = Langevin(
        nn.Linear(1, 1).double(), likelihoods.Gaussian(sigma=0.3), dynamics=Adjusted(),
        step_size=1e-2,
    )  # fmt: skip
    posterior = sampler.sample((x, x.numpy()), 20, burn_in=10, progress=False)
    assert posterior.config["batch_size"] == 130


def test_wrong_options_are_refused() -> None:
    for steps in (0, 1.5, True):
        with pytest.raises(ValueError, match="steps must be a whole number"):
            Adjusted(steps=steps)  # type: ignore[arg-type]
    for target in (0.0, 1.0):
        with pytest.raises(ValueError, match="target_acceptance"):
            Adjusted(target_acceptance=target)
