"""Control variates (SVRG): unbiased, quiet near the anchor, and at the right temperature where a
plain minibatch chain is too hot."""

from __future__ import annotations

import pytest
import torch
from gaussian_law import make_problem, metric_matrix, whiten
from monte_carlo import assert_normal, assert_within
from test_heat import full_batch_law
from test_linear_regression import gaussian_prior
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners
from natural_langevin.data import Subsets
from natural_langevin.dynamics import Overdamped, Underdamped
from natural_langevin.sampling.collector import SampleCollector
from small_run import assert_same, data, network, sampler

SIZE, BATCH, CHAINS = 200, 10, 384


def gradients(distance: float, anchored: bool) -> tuple[Tensor, Tensor]:
    """Of every minibatch of 5 of 60 data of an epoch, flat, (12, p); and that of all data."""
    found = sampler(1, control_variates=100 if anchored else None)
    x, y = data()
    engine, state = found.prepare((x, y), steps=1, batch_size=5)
    for pause in engine.pauses:
        state = pause(state, 0)
    generator = torch.Generator().manual_seed(2)
    params = {
        k: p + distance * torch.randn(p.shape, generator=generator) for k, p in state.params.items()
    }
    state, on = state._replace(params=params), engine.dynamics

    def flat(rows: Tensor) -> Tensor:
        g = on.evaluate(state, (x[rows], y[rows]), chain_axis=False).gradient
        return torch.cat([p.flatten() for p in g.values()])

    on.prepare(params, x)
    on.prepare(params, x[:5])
    each = torch.stack([flat(rows) for rows in torch.arange(60).split(5)])
    whole = on.gradient(state, params, (x, y), chain_axis=False)
    return each, torch.cat([p.flatten() for p in whole.values()])


@pytest.mark.parametrize("distance", [0.0, 0.03, 0.3])
def test_unbiased_and_quiet_near_the_anchor(distance: float) -> None:
    """The minibatches of an epoch add up to all data: their mean is exact, not just expected."""
    (plain, exact), (reduced, same) = gradients(distance, False), gradients(distance, True)
    torch.testing.assert_close(exact, same)
    for each in (plain, reduced):
        torch.testing.assert_close(each.mean(0), exact, rtol=1e-4, atol=1e-6)
    ratio = float(reduced.var(0).sum() / plain.var(0).sum())
    print(f"at distance {distance}: variance {ratio:.2g} of the plain one")
    assert ratio < {0.0: 1e-10, 0.03: 0.01, 0.3: 0.5}[distance]


def run(control_variates: int | None) -> tuple[Langevin, Posterior]:
    problem = make_problem(num_data=SIZE)
    found = problem.sampler(
        preconditioners.FullFisher(), gaussian_prior(problem), CHAINS, step_size=2 * BATCH / SIZE,
        control_variates=control_variates, mean_rate=None, seed=1,
    )  # fmt: skip
    posterior = found.sample(
        (problem.x, problem.y), 120, batch_size=BATCH, burn_in=20, thin=100, progress=False
    )
    return found, posterior


def test_the_posterior_of_a_linear_regression_is_exact_where_a_plain_chain_is_too_hot() -> None:
    """At eta = 2 B / N. The reference is the exact law of the chain that sees all data at every
    step, with the metric as it ended: what is left is the step size alone."""
    problem = make_problem(num_data=SIZE)
    widths = {}
    for every in (None, SIZE // BATCH):
        found, posterior = run(every)
        eta = 2 * BATCH / SIZE
        state = found.init()._replace(metric={"fisher": exact_fisher(found, problem)})
        S = full_batch_law(problem, metric_matrix(found, state)[0], eta, 1.0)
        theta = torch.cat([posterior.samples[k].flatten(1) for k in ("weight", "bias")], dim=1)
        z = whiten(theta, problem.posterior()[0], S)
        widths[every] = z.square().mean()
        if every:
            assert_normal(z)
            assert_within(widths[every][None] - 1, torch.tensor([(2 / z.numel()) ** 0.5]))
            assert posterior.config["control_variates"] == every
    print({k: float(v) for k, v in widths.items()})
    assert widths[None] > 1.2  # its error is sqrt(2 / (384 * 4)) = 0.04
