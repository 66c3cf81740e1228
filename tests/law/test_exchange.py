"""Replica exchange: it crosses a barrier that one chain never does, and leaves every law as it is.

The bimodal target has one weight w: relu(w x) with x = 1 in seven rows and x = -1 in seven others,
all of which are to be c. Its energy is, up to a constant,

    U(w) = 7/(2 sigma^2) [(relu(w) - c)^2 + (relu(-w) - c)^2] + (w - m)^2 / (2 v),

wells at c and -c, which the prior's mean m makes unequal, and between them a barrier of about 13.5.
The wells' weights are found by quadrature.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from gaussian_law import make_problem, whiten
from monte_carlo import assert_normal, assert_within
from test_linear_regression import gaussian_prior
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors
from natural_langevin.data import Subsets
from natural_langevin.dynamics import Adjusted, Underdamped
from natural_langevin.run.exchange import ReplicaExchange, Target, ladders, log_ratio
from small_run import assert_same, data, network, sample_until, sampler

ROWS, WELL, SIGMA, MEAN = 7, 1.0, 0.5, 0.4
LADDERS = 16
RUNGS = (1.0, 2.5, 7.0)


def bimodal(exchange: int | None) -> Posterior:
    """All chains start in the well at -c."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    nn.init.constant_(net[0].weight, -WELL)
    nn.init.constant_(net[2].weight, 1.0).requires_grad_(False)
    x = torch.tensor([[1.0], [-1.0]]).repeat(ROWS, 1)
    found = Langevin(
        net, likelihoods.Gaussian(sigma=SIGMA), prior=priors.Gaussian(variance=1.0, mean=MEAN),
        preconditioner=preconditioners.Euclidean(), step_size=0.14, seed=0,
        dynamics=Underdamped(0.3, "baoab"), chains=LADDERS * len(RUNGS),
        temperature=torch.tensor(RUNGS).repeat_interleave(LADDERS),
    )  # fmt: skip
    return found.sample(
        (x, torch.full_like(x, WELL)), 2000, batch_size=2 * ROWS, burn_in=400, thin=20,
        exchange=exchange, progress=False,
    )  # fmt: skip


def weight_of_the_right_well() -> float:
    w = torch.linspace(-6, 6, 100_001, dtype=torch.float64)
    wells = (w.relu() - WELL).square() + ((-w).relu() - WELL).square()
    density = torch.exp(-ROWS * wells / (2 * SIGMA**2) - (w - MEAN).square() / 2)
    return float(density[w > 0].sum() / density.sum())


def test_alone_no_chain_crosses_and_swaps_get_the_weights_of_both_wells() -> None:
    alone, swapped = bimodal(None), bimodal(10)
    assert alone.config["execution"] == swapped.config["execution"] == "native"
    assert not bool((alone.samples["0.weight"][:LADDERS] > 0).any())

    assert swapped.chosen(None) == list(range(LADDERS))
    right = (swapped.samples["0.weight"][:LADDERS] > 0).double().flatten(1).mean(1)
    error = right.std() / math.sqrt(LADDERS)
    exact = weight_of_the_right_well()
    print(f"right well: {right.mean():.3f} +- {error:.3f}, exactly {exact:.3f}")
    assert error < 0.04  # enough to tell it from one half
    assert_within((right.mean() - exact)[None], error[None])
    rates = swapped.config["exchange"]["rates"]
    assert len(rates) == LADDERS * (len(RUNGS) - 1)
    assert 0.3 < min(rates) <= max(rates) < 1


@pytest.mark.parametrize("hot", [1 + 1e-12, 4.0])
def test_every_rung_keeps_its_law(hot: float) -> None:
    """Between equal temperatures every swap is accepted, between others some; BAOAB has no bias on
    a Gaussian target, so that every rung's exact law is the posterior's at its temperature. With a
    swap before every step, momentum that did not follow would make it a sixth narrower."""
    problem, count = make_problem(num_data=24), 320
    tau = torch.tensor([1.0, hot], dtype=torch.float64).repeat_interleave(count)
    found = problem._replace(temperature=tau).sampler(
        preconditioners.FullFisher(), gaussian_prior(problem), 2 * count, step_size=0.3,
        dynamics=Underdamped(0.6, "baoab"), mean_rate=None,
    )  # fmt: skip
    posterior = found.sample(
        (problem.x, problem.y), 60, batch_size=24, burn_in=2, thin=58, exchange=1, progress=False
    )
    rates = torch.tensor(posterior.config["exchange"]["rates"])
    assert len(rates) == count
    assert bool((rates == 1).all()) == (hot < 2)
    mean, covariance = problem.posterior()
    theta = torch.cat([posterior.samples[k].flatten(1) for k in ("weight", "bias")], dim=1)
    for rung, t in ((theta[:count], 1.0), (theta[count:], hot)):
        z = whiten(rung, mean, t * covariance)
        print(f"temperature {t:g}: mean square {z.square().mean():.3f}")
        assert_normal(z)
        assert_within(z.square().mean()[None] - 1, torch.tensor([(2 / z.numel()) ** 0.5]))


def test_the_energy_is_that_of_all_data_and_the_ratio_that_of_the_densities() -> None:
    """With minibatches, fewer data than N says, and powers beside temperatures."""
    tau, power = torch.tensor([1.0, 1.7, 3.0]), torch.tensor([1.0, 0.6, 0.9])
    found = sampler(3, temperature=tau, likelihood_power=power, num_data=90, init="prior")
    engine, state = found.prepare(data(), steps=4, batch_size=20)
    swaps = ReplicaExchange(engine, found.problem, every=2, burn_in=0)
    loss, log_prior = swaps.energies(state).unbind(1)
    density = found.log_density(state.params, data()).double()
    torch.testing.assert_close(log_prior - loss, density, rtol=1e-5, atol=1e-4)
    cold, hot = torch.tensor([0, 1]), torch.tensor([1, 2])

    def total(of: Tensor, at: Tensor) -> Tensor:
        return (log_prior[at] - power.double()[of] * loss[at]) / tau.double()[of]

    before = total(cold, cold) + total(hot, hot)
    after = total(cold, hot) + total(hot, cold)
    target = Target(power.double() / tau.double(), 1 / tau.double())
    torch.testing.assert_close(log_ratio(target, loss, log_prior, cold, hot), after - before)
    cooler = 1 / torch.tensor([2.0, 1.0, 1.0, 2.0, 3.0])
    assert ladders(Target(cooler, cooler)) == [[1, 0, 4], [2, 3]]


def test_a_ladder_of_powers_keeps_every_law() -> None:
    """beta = 1 and 0.3 of a linear regression, with a swap before every step: every rung is the
    closed form's at its power (N beta data in place of N)."""
    problem, count = make_problem(num_data=24), 320
    powers = (1.0, 0.3)
    found = problem.sampler(
        preconditioners.FullFisher(), gaussian_prior(problem), 2 * count, step_size=0.3,
        dynamics=Underdamped(0.6, "baoab"), mean_rate=None,
        likelihood_power=torch.tensor(powers, dtype=torch.float64).repeat_interleave(count),
    )  # fmt: skip
    posterior = found.sample(
        (problem.x, problem.y), 60, batch_size=24, burn_in=2, thin=58, exchange=1, progress=False
    )
    assert 0 < min(posterior.config["exchange"]["rates"]) < 1
    assert posterior.chosen(None) == list(range(count))
    theta = torch.cat([posterior.samples[k].flatten(1) for k in ("weight", "bias")], dim=1)
    for rung, beta in zip(theta.split(count), powers, strict=True):
        z = whiten(rung, *problem.posterior(beta))
        print(f"power {beta:g}: mean square {z.square().mean():.3f}")
        assert_normal(z)
        assert_within(z.square().mean()[None] - 1, torch.tensor([(2 / z.numel()) ** 0.5]))


def test_swaps_move_weights_alone_and_a_stopped_chain_is_left_out() -> None:
    found = sampler(
        3, temperature=torch.tensor([1.0, 1.0000001, 1.0000002]), init="prior",
        dynamics=Underdamped(0.5), control_variates=5,
    )  # fmt: skip
    engine, state = found.prepare(data(), steps=9, batch_size=20)
    swaps = ReplicaExchange(engine, found.problem, every=4, burn_in=0)
    state, _ = engine.run(swaps.begin(state), 0, 4)
    new = swaps(state, 8)  # an even turn: chains 0 and 1
    for a, b in ((state.params, new.params), (state.anchor.params, new.anchor.params)):
        assert torch.equal(a["0.weight"][[1, 0, 2]], b["0.weight"])
    assert torch.equal(new.own.momentum["0.weight"][2], state.own.momentum["0.weight"][2])
    assert new.mean is state.mean
    assert new.metric is state.metric
    assert new.swaps.proposed.tolist() == [1, 0, 0]
    stopped = state._replace(diverged=torch.tensor([-1, 3, -1]))
    left = swaps(stopped, 8)
    assert left.params is state.params
    assert left.swaps.proposed.tolist() == [0, 0, 0]


def tempered(compile: bool | str = "auto", **options: object) -> Posterior:
    found = sampler(
        4, temperature=torch.tensor([1.0, 1.0, 1.5, 2.0]), compile=compile, step_size=0.01
    )
    return found.sample(
        data(), 24, batch_size=20, burn_in=4, thin=2, exchange=3, progress=False, **options
    )  # type: ignore[arg-type]


def test_stopped_and_resumed_it_ends_with_the_same_bits(tmp_path, monkeypatch) -> None:
    sample_until(monkeypatch, 6, lambda: tempered(checkpoint=tmp_path, every=5))
    resumed, whole = tempered(checkpoint=tmp_path, every=5), tempered()
    assert_same(whole, resumed)
    assert whole.config["exchange"] == resumed.config["exchange"]
    assert whole.config["exchange"]["pairs"] == [[0, 2], [2, 3]]
    assert all(rate > 0 for rate in whole.config["exchange"]["rates"])
    with pytest.raises(Exception, match="exchange"):
        sampler(4, temperature=torch.tensor([1.0, 1.0, 1.5, 2.0]), step_size=0.01).sample(
            data(), 24, batch_size=20, burn_in=4, thin=2, progress=False, checkpoint=tmp_path
        )


def test_every_way_swaps_alike() -> None:
    native, eager = tempered("auto"), tempered(False)
    assert (native.config["execution"], eager.config["execution"]) == ("native", "eager")
    for name, value in native.samples.items():
        torch.testing.assert_close(value, eager.samples[name], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        native.config["exchange"]["rates"], eager.config["exchange"]["rates"], rtol=1e-3, atol=0.0
    )


def test_predictions_diagnosis_and_until_are_of_temperature_1(caplog) -> None:
    x, _ = data()
    found = tempered()
    cold, every = found.predict(x), found.predict(x, chains="all")
    assert (len(cold.samples), len(every.samples)) == (20, 40)
    assert torch.equal(cold.mean, found.predict(x, chains=[0, 1]).mean)
    assert "Swaps between temperatures: 1 and 1.5 " in str(found.diagnose(x))
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        reached = tempered(until="ess:2")
    assert reached.config["limit"] in ("ess", "steps")

    apart = sampler(2, temperature=torch.tensor([1.0, 1e6]), init="prior")
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        apart.sample(data(), 40, batch_size=20, exchange=2, progress=False)
    assert "put more chains between them" in caplog.text


X, Y = data()
LOADER = DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("positive number of steps", {"exchange": 0}),
    ("torch.logspace", {"temperature": 1.0}),
    ("torch.logspace", {"temperature": torch.tensor([0.0, 1.0])}),
    ("one prior", {"prior": priors.Gaussian(torch.tensor([0.1, 0.2]))}),
    ("give the tensors", {"data": LOADER}),
    ("give the tensors", {"data": Subsets(X, Y, torch.arange(40).expand(2, -1))}),
    ("sigma=0.3", {"data": (X, X[:, :2]), "likelihood": likelihoods.Gaussian("rmse")}),
    ("batch_size=60|Underdamped", {"dynamics": Adjusted()}),
]


@pytest.mark.parametrize(("remedy", "options"), REFUSED)
def test_what_cannot_be_exchanged_is_refused_with_the_remedy(
    remedy: str, options: dict[str, Any]
) -> None:
    usual = {"temperature": torch.tensor([1.0, 2.0]), "step_size": 1e-3, "chains": 2}
    options = usual | {"likelihood": likelihoods.Categorical()} | options
    what, exchange = options.pop("data", (X, Y)), options.pop("exchange", 5)
    found = Langevin(network(), **options)
    with pytest.raises(ValueError, match=remedy):
        found.sample(what, 20, batch_size=20, burn_in=2, exchange=exchange, progress=False)
