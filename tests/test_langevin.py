"""``Langevin.sample``: what it keeps, what it averages, and what it takes as data."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from natural_langevin import (
    Langevin,
    Posterior,
    State,
    likelihoods,
    preconditioners,
    priors,
    schedules,
)
from natural_langevin.data import SharedBatches

Data = tuple[Tensor, Tensor]


def make(network: nn.Module, **options) -> Langevin:
    """By default the reference step, which ``step`` takes too: other ways round differently."""
    settings = {
        "compile": False,
        "likelihood": likelihoods.Categorical(),
        "preconditioner": preconditioners.QuasiDiagonalFisher(damping=1e-2),
        "step_size": 1e-2,
        "chains": 2,
    }
    return Langevin(network, **(settings | options))


def iterates(
    sampler: Langevin, data: Data, steps: int, batch_size: int, burn_in: int
) -> list[State]:
    """State k is the state after k calls of ``step`` on the batches that ``sample`` sees."""
    engine, state = sampler.prepare(data, steps=steps, batch_size=batch_size)
    states = [state]
    for k in range(steps):
        state, _ = sampler.step(state, engine.stream.batch(k), chain_axis=True, burn_in=burn_in)
        states.append(state)
    return states


def assert_same(a: Posterior, b: Posterior) -> None:
    for k in a.samples:
        assert torch.equal(a.samples[k], b.samples[k])
        assert torch.equal(a.mean[k], b.mean[k])


@pytest.mark.parametrize(
    ("steps", "burn_in", "thin"),
    [(1, 0, 1), (7, 0, 1), (10, 3, 2), (11, 3, 4), (12, 0, 5), (60, 49, 1), (60, 7, 50)],
)  # fmt: skip
def test_exactly_the_right_iterates_are_kept(
    network: nn.Module, classes: Data, steps: int, burn_in: int, thin: int
) -> None:
    """k = burn_in + thin, burn_in + 2 thin, ..., bit for bit those of ``step``."""
    sampler = make(network, num_data=40)
    posterior = sampler.sample(
        classes, steps, batch_size=8, burn_in=burn_in, thin=thin, progress=False
    )
    states = iterates(sampler, classes, steps, 8, burn_in)
    expected = range(burn_in + thin, steps + 1, thin)
    assert posterior.draws == len(expected) == (steps - burn_in) // thin
    for k, samples in posterior.samples.items():
        for draw, iterate in enumerate(expected):
            assert torch.equal(samples[:, draw], states[iterate].params[k])
        assert torch.equal(posterior.last[k], states[-1].params[k])
        assert torch.equal(posterior.mean[k], states[-1].mean[k])
        assert samples.isfinite().all()


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({}, lambda t: 1 / math.sqrt(t)),  # the default mu_t of the authors' code
        ({"mean_rate": 0.25}, lambda t: 0.25),
        ({"mean_rate": lambda step: 1 / (step + 1)}, lambda t: 1 / t),
    ],
    ids=["1/sqrt(t)", "constant", "1/t"],
)
def test_running_mean(network: nn.Module, classes: Data, options: dict, rate) -> None:
    """theta_mean <- (1 - mu_t) theta_mean + mu_t theta from t = 1 on, over every iterate."""
    sampler = make(network, num_data=40, **options)
    posterior = sampler.sample(classes, 9, batch_size=8, burn_in=5, thin=2, progress=False)
    states = iterates(sampler, classes, 9, 8, burn_in=5)
    for k, mean in posterior.mean.items():
        expected = states[0].params[k].double()
        for t in range(1, 10):
            expected = (1 - rate(t)) * expected + rate(t) * states[t].params[k].double()
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)
    if "mean_rate" in options and callable(options["mean_rate"]):
        average = torch.stack([s.params["0.weight"] for s in states[1:]]).mean(0)
        torch.testing.assert_close(posterior.mean["0.weight"], average)


def test_number_of_data(network: nn.Module, classes: Data) -> None:
    """Inferred from tensors or the loader's dataset; an explicit number wins; else an error."""

    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield classes[0][0], classes[1][0]

    def num_data(data, **options) -> float:
        posterior = make(network, **options).sample(data, 2, batch_size=8, progress=False)
        return posterior.config["num_data"]

    loader = DataLoader(TensorDataset(*classes), batch_size=8)
    assert num_data(classes) == num_data(loader) == 40
    assert num_data(classes, num_data=1000) == 1000
    endless = DataLoader(Endless(), batch_size=4)
    assert num_data(endless, num_data=77) == 77
    with pytest.raises(ValueError, match=r"no length: give Langevin\(\.\.\., num_data=N\)"):
        num_data(endless)
    sampler = make(network)
    with pytest.raises(ValueError, match=r"step\(\) cannot know.*num_data=N"):
        sampler.step(sampler.init(), classes)


def test_explicit_number_of_data_is_used(network: nn.Module, classes: Data) -> None:
    """N enters the noise: four times the data, half the noise."""

    def noise(num_data: int) -> Tensor:
        cold, hot = (
            make(network, num_data=num_data, temperature=t, prior=priors.Flat()).sample(
                classes, 1, batch_size=8, progress=False
            )
            for t in (0.0, 1.0)
        )
        return hot.last["0.weight"] - cold.last["0.weight"]

    torch.testing.assert_close(noise(40), 2 * noise(160), rtol=1e-3, atol=1e-6)


def test_a_tensor_dataset_is_its_tensors(network: nn.Module, classes: Data) -> None:
    a, b = (
        make(network).sample(data, 3, batch_size=8, progress=False)
        for data in (classes, TensorDataset(*classes))
    )
    assert_same(a, b)


def test_shared_batches_go_to_all_chains(
    network: nn.Module, classes: Data, caplog: pytest.LogCaptureFixture
) -> None:
    """Without noise, chains from one start stay together; in-memory data take them apart."""
    loader = SharedBatches(DataLoader(TensorDataset(*classes), batch_size=8))
    cold = make(network, temperature=0.0, num_data=40)
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        shared = cold.sample(loader, 7, progress=False).last
    assert "shared by all 2 chains" in caplog.text
    own = cold.sample(classes, 7, batch_size=8, progress=False).last
    state = cold.init()
    for t in range(7):
        rows = slice(8 * (t % 5), 8 * (t % 5) + 8)  # 40 = 5 batches of 8, then from the start
        state, _ = cold.step(state, (classes[0][rows], classes[1][rows]))
    for k in shared:
        torch.testing.assert_close(shared[k][0], shared[k][1])
        assert not torch.allclose(own[k][0], own[k][1])
        torch.testing.assert_close(shared[k], state.params[k])


@pytest.mark.parametrize("metric", [preconditioners.Euclidean, preconditioners.QuasiDiagonalFisher])
def test_a_loader_with_a_shorter_last_batch(network: nn.Module, classes: Data, metric) -> None:
    plain = DataLoader(TensorDataset(*classes), batch_size=15, shuffle=True)
    sampler = make(network, preconditioner=metric())
    posterior = sampler.sample(SharedBatches(plain), 7, progress=False)
    assert all(torch.isfinite(s).all() for s in posterior.samples.values())


@pytest.mark.parametrize(
    ("likelihood", "good", "bad", "message"),
    [
        (likelihoods.Categorical(), 2, 3, r"0 \.\. 2 \(the model has 3 outputs\).* 2 to 3"),
        (likelihoods.Bernoulli(), torch.ones(3), torch.full((3,), 2.0), "must be 0 or 1.* 1.0 to"),
    ],
)
def test_every_batch_of_a_loader_is_checked(
    network: nn.Module, likelihood: likelihoods.Likelihood, good, bad, message: str
) -> None:
    """The bad sample comes in the second batch, which is shorter than what a check looks at."""
    samples = [(torch.zeros(3), good)] * 8 + [(torch.zeros(3), good), (torch.zeros(3), bad)]
    sampler = make(network, likelihood=likelihood)
    order = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    loader = DataLoader(samples, batch_sampler=order)
    assert sampler.sample(loader, 1, progress=False).draws == 1
    with pytest.raises(ValueError, match=message):
        sampler.sample(loader, 2, progress=False)
    with pytest.raises(ValueError, match=message):  # in an order of its own for every chain
        sampler.sample(DataLoader(samples, batch_size=5), 2, progress=False)


def test_a_loader_of_several_lengths(regression: Data) -> None:
    """Targets are compared with the outputs for inputs of their own shape."""
    batches = [(regression[0][:, :n, None], regression[1][:, :n]) for n in (2, 3, 2)]
    sampler = make(nn.Linear(1, 1), likelihood=likelihoods.Gaussian(sigma=1.0), num_data=40)
    assert sampler.sample(DataLoader(batches, batch_size=None), 3, progress=False).draws == 3
    batches[2] = (batches[2][0], batches[1][1])
    with pytest.raises(ValueError, match=r"3 values per sample .* gives 2"):
        sampler.sample(DataLoader(batches, batch_size=None), 3, progress=False)


def test_numpy_integers(network: nn.Module, classes: Data) -> None:
    plain = make(network, chains=3, seed=5).sample(
        classes, 9, batch_size=8, burn_in=1, thin=2, progress=False
    )
    number = np.int64
    other = make(network, chains=number(3), seed=number(5), num_data=number(40)).sample(
        classes, number(9), batch_size=number(8), burn_in=number(1), thin=number(2), progress=False
    )
    assert_same(plain, other)
    assert json.loads(json.dumps(other.config)) == plain.config


def test_the_description_is_json(network: nn.Module) -> None:
    """Whatever the settings are made of."""
    sampler = make(
        network,
        prior={"*.bias": priors.NormalInverseGamma(), "*": priors.Gaussian(torch.ones(2))},
        step_size=schedules.halving(torch.tensor([0.1, 0.2]), every=3),
        temperature=torch.tensor([1.0, 0.5]),
        likelihood=likelihoods.LogLoss(lambda outputs, y: outputs.sum(1)),
    )
    described = sampler.describe()
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert described["temperature"] == [1.0, 0.5]
    assert "0.2" in described["step_size"]


def test_unsupervised_data(network: nn.Module, regression: Data) -> None:
    """One tensor: the network is called on y itself, here as an autoencoder."""
    y = regression[1]
    likelihood = likelihoods.LogLoss(lambda outputs, y: (outputs - y).square().sum(1))
    posteriors = [
        make(network, likelihood=likelihood).sample(data, 4, batch_size=8, progress=False)
        for data in (y, (y,), (None, y), (y, y), DataLoader(y, batch_size=8))
    ]
    for other in posteriors[1:4]:
        assert_same(posteriors[0], other)
    assert posteriors[4].config["num_data"] == 40
    assert posteriors[0].predict(y).mean.shape == (40, 3)


def test_batches_of_an_epoch_are_disjoint_and_differ_between_chains(
    network: nn.Module, classes: Data
) -> None:
    """40 data in batches of 8: five batches see every sample once; the next epoch reshuffles."""
    ids = torch.arange(40.0)[:, None].expand(40, 3)
    engine, _ = make(network).prepare((ids.contiguous(), classes[1]), steps=10, batch_size=8)
    epochs = [
        torch.cat([engine.stream.batch(5 * e + k)[0][..., 0] for k in range(5)], dim=1)
        for e in (0, 1)
    ]
    for order in epochs:
        assert torch.equal(order.sort(1).values, torch.arange(40.0).expand(2, 40))
        assert not torch.equal(order[0], order[1])
    assert not torch.equal(epochs[0], epochs[1])
    x, y = engine.stream.batch(3)
    assert torch.equal(classes[1][x[..., 0].long()], y)


def test_initial_points(network: nn.Module) -> None:
    """model: the network's own; fan_in: N(0, 1/fan_in), zero biases; prior: drawn from it."""
    params = dict(network.named_parameters())
    for k, start in make(network).init().params.items():
        assert torch.equal(start, params[k].expand_as(start))
    chains = 2000
    fan_in = make(network, init="fan_in", chains=chains).init().params
    drawn = make(network, init="prior", chains=chains, prior=priors.Gaussian(0.5, mean=2.0))
    for k, p in params.items():
        error = 5 * math.sqrt(2 / (chains * p.numel()))  # of a variance, 5 standard errors
        if p.ndim == 2:
            assert fan_in[k].var() * p.shape[1] == pytest.approx(1, abs=error)
        else:
            assert not fan_in[k].any()
        start = drawn.init().params[k]
        assert start.var() / 0.5 == pytest.approx(1, abs=error)
        assert start.mean() == pytest.approx(2.0, abs=5 * math.sqrt(0.5 / start.numel()))
    assert not torch.equal(fan_in["0.weight"][0], fan_in["0.weight"][1])
    with pytest.raises(ValueError, match="improper"):
        make(network, init="prior", prior=priors.Flat())


def test_a_scalar_parameter(classes: Data) -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * super().forward(x)

    for metric in (preconditioners.Euclidean(), preconditioners.FullFisher()):
        posterior = make(Scaled(), preconditioner=metric, prior=priors.NormalInverseGamma()).sample(
            classes, 3, batch_size=8, progress=False
        )
        assert posterior.samples["scale"].shape == (2, 3)
        assert posterior.samples["scale"].isfinite().all()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised inside inductor
@pytest.mark.parametrize(
    # The compiler proper, which takes 20 s, has its turn in test_fused_step.
    "backend",
    ["eager", pytest.param("inductor", marks=pytest.mark.thorough)],
)
def test_compiled_equals_eager(
    backend: str, classes: Data, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers to rounding, and no silent fall back to eager."""
    monkeypatch.setattr("natural_langevin.execution.compiled.BACKEND", backend)
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        eager, compiled = (
            make(nn.Linear(3, 3), compile=mode, init="fan_in").sample(
                classes, 7, batch_size=8, thin=2, progress=False
            )
            for mode in (False, True)
        )
    assert "compiling failed" not in caplog.text
    assert "compiled the step" in caplog.text
    for k in eager.samples:
        torch.testing.assert_close(eager.samples[k], compiled.samples[k], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(eager.mean[k], compiled.mean[k], rtol=1e-4, atol=1e-5)


def test_few_rows_are_one_batch() -> None:
    """A step size of one's own, 30 rows, nothing else said."""
    x = torch.rand(30, 2)
    sampler = Langevin(nn.Linear(2, 2), likelihoods.Categorical(), step_size=1e-3)
    found = sampler.sample((x, (x.sum(1) > 1).long()), steps=5, progress=False)
    assert found.config["batch_size"] == 30


def test_a_sampler_says_what_it_samples() -> None:
    sampler = Langevin(nn.Linear(3, 2), likelihoods.Categorical(), chains=2)
    assert repr(sampler) == "Langevin(2 chains of 8 weights of a Linear, Categorical)"


def test_a_sampler_that_shares_a_network_draws_what_one_with_its_own_does() -> None:
    """``network_of=``: the first one's copy is used, and neither its prior nor its seed."""
    x, y = torch.linspace(-1, 1, 60).reshape(20, 3), torch.arange(20) % 3
    model, options = nn.Linear(3, 3), {"chains": 2, "step_size": 1e-3}
    first = Langevin(model, likelihoods.Categorical(), seed=1, chains=3, step_size=1e-3)
    run = {"steps": 12, "batch_size": 10, "burn_in": 4, "progress": False}
    first.sample((x, y), **run)
    found = []
    for other in (first, None):
        sampler = Langevin(
            model, likelihoods.Categorical(), seed=7, prior=priors.Gaussian(0.3),
            network_of=other, **options,
        )  # fmt: skip
        assert (sampler.model is first.model) == (other is first)
        found.append(sampler.sample((x, y), **run).samples)
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[1])
