"""Chains: reproducible, independent, each with its own settings; a diverged one stops alone."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import (
    DivergenceError,
    Langevin,
    Posterior,
    likelihoods,
    preconditioners,
    priors,
)

Data = tuple[Tensor, Tensor]
METRICS = [
    preconditioners.Euclidean(),
    preconditioners.RMSProp(),
    preconditioners.QuasiDiagonalFisher(targets="model", damping=1e-2),
    preconditioners.FullFisher(damping=1e-2),
]


def sample(network: nn.Module, data: Data, steps: int = 6, **options) -> Posterior:
    metric = preconditioners.QuasiDiagonalFisher(damping=1e-2)
    settings = {"step_size": 1e-2, "chains": 3, "seed": 11, "preconditioner": metric} | options
    return Langevin(network, likelihoods.Categorical(), **settings).sample(
        data, steps, batch_size=8, progress=False
    )


def assert_same_chain(a: Posterior, b: Posterior, chain: int) -> None:
    """Bit for bit."""
    for k in a.samples:
        assert torch.equal(a.samples[k][chain], b.samples[k][chain])
        assert torch.equal(a.mean[k][chain], b.mean[k][chain])


def assert_other_chain(a: Posterior, b: Posterior, chain: int) -> None:
    for k in a.samples:
        assert not torch.equal(a.samples[k][chain], b.samples[k][chain])


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: type(m).__name__)
def test_same_seed_same_bits(network: nn.Module, classes: Data, metric) -> None:
    first, again = (sample(network, classes, preconditioner=metric) for _ in range(2))
    other = sample(network, classes, preconditioner=metric, seed=12)
    for chain in range(3):
        assert_same_chain(first, again, chain)
        assert_other_chain(first, other, chain)
    for k in first.samples:
        assert not torch.equal(first.samples[k][0], first.samples[k][1])


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("init", ["model", "fan_in", "prior"])
def test_more_chains_leave_chain_0_alone(
    network: nn.Module, classes: Data, metric, init: str
) -> None:
    """Its noise, data and start are addressed by its number. (To rounding: a batched matrix
    product may sum in another order when the number of chains changes.)"""
    few = sample(network, classes, chains=1, preconditioner=metric, init=init)
    many = sample(network, classes, chains=5, preconditioner=metric, init=init)
    for k in few.samples:
        torch.testing.assert_close(few.samples[k][0], many.samples[k][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "grid"),
    [
        ("step_size", 1e-2, torch.tensor([1e-2, 1e-3, 1e-1])),
        ("temperature", 1.0, torch.tensor([1.0, 0.0, 4.0])),
        ("prior", priors.Gaussian(0.1), priors.Gaussian(torch.tensor([0.1, 0.01, 1.0]))),
    ],
)
def test_a_grid_is_one_run(network: nn.Module, classes: Data, name: str, value, grid) -> None:
    """Chain 0 has the common value in both runs; the others have their own."""
    common = sample(network, classes, **{name: value})
    each = sample(network, classes, **{name: grid})
    assert_same_chain(common, each, 0)
    for chain in (1, 2):
        assert_other_chain(common, each, chain)


def test_every_chain_of_a_grid_has_its_own_value(network: nn.Module, classes: Data) -> None:
    """Chain c of the grid is chain c of a run where all have the grid's c-th values."""
    eta, T, variance = (
        torch.tensor([1e-2, 1e-3, 1e-1]), torch.tensor([1.0, 0.0, 4.0]),
        torch.tensor([0.1, 0.01, 1.0]),
    )  # fmt: skip
    each = sample(network, classes, step_size=eta, temperature=T, prior=priors.Gaussian(variance))
    for c in range(3):
        alone = sample(
            network, classes, step_size=float(eta[c]), temperature=float(T[c]),
            prior=priors.Gaussian(float(variance[c])),
        )  # fmt: skip
        assert_same_chain(alone, each, c)


class TestDivergence:
    """Chain 1 of three has a step size that overflows."""

    STEPS, HUGE = 60, torch.tensor([1e-2, 1e38, 1e-2])

    @pytest.fixture
    def run(
        self, network: nn.Module, classes: Data, caplog: pytest.LogCaptureFixture
    ) -> tuple[Posterior, str]:
        with caplog.at_level(logging.WARNING, logger="natural_langevin"):
            posterior = sample(
                network, classes, self.STEPS, step_size=self.HUGE,
                preconditioner=preconditioners.Euclidean(),
            )  # fmt: skip
        return posterior, caplog.text

    def test_it_stops_and_is_reported_once(self, run: tuple[Posterior, str]) -> None:
        posterior, text = run
        step = int(posterior.diverged[1])
        assert posterior.diverged.tolist() == [-1, step, -1]
        assert 1 <= step <= 3
        assert posterior.healthy == [0, 2]
        assert text.count("chain 1 became non-finite") == 1
        assert f"chain 1 became non-finite at step {step} and was stopped" in text
        assert "try a tenth" in text
        assert "chain 0" not in text

    def test_its_later_draws_are_nan(self, run: tuple[Posterior, str]) -> None:
        """Draw j is iterate j + 1; iterate ``step`` is the one that broke."""
        posterior, _ = run
        step = int(posterior.diverged[1])
        for s in posterior.samples.values():
            assert s[1, : step - 1].isfinite().all()
            assert s[1, step:].isnan().all()
            assert s[[0, 2]].isfinite().all()
        with pytest.raises(ValueError, match=rf"chain 1 diverged at step {step}"):
            posterior.network(1, self.STEPS - 1)

    def test_the_others_do_not_notice(
        self, run: tuple[Posterior, str], network: nn.Module, classes: Data
    ) -> None:
        calm = sample(network, classes, self.STEPS, preconditioner=preconditioners.Euclidean())
        for chain in (0, 2):
            assert_same_chain(run[0], calm, chain)

    def test_predictions_leave_it_out(self, run: tuple[Posterior, str], classes: Data) -> None:
        posterior, _ = run
        x = classes[0]
        for estimate, count in (("ensemble", 2 * self.STEPS), ("mean", 2), ("last", 2)):
            prediction = posterior.predict(x, estimate=estimate)
            assert prediction.samples.shape == (count, 40, 3)
            assert prediction.mean.isfinite().all()
        weight = posterior.mean_network()[0].weight
        torch.testing.assert_close(weight, posterior.mean["0.weight"][[0, 2]].mean(0))

    def test_all_chains(self, network: nn.Module, classes: Data) -> None:
        with pytest.raises(DivergenceError, match=r"all 3 chains .*steps \[\d, \d, \d\].*a tenth"):
            sample(
                network, classes, self.STEPS, step_size=1e38,
                preconditioner=preconditioners.Euclidean(),
            )  # fmt: skip

    def test_in_the_last_step(
        self, network: nn.Module, classes: Data, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No later loss can tell, so the last iterate itself is looked at."""

        def rate(step: int) -> Tensor:
            return torch.tensor([1e-2, 3e38 if step == 3 else 1e-2, 1e-2])

        posterior = sample(
            network, classes, 4, step_size=rate, preconditioner=preconditioners.Euclidean(),
            temperature=torch.tensor([1.0, 1e38, 1.0]),
        )  # fmt: skip
        assert posterior.diverged.tolist() == [-1, 4, -1]
        assert caplog.text.count("became non-finite") == 1
        assert "chain 1 became non-finite at step 4" in caplog.text
        assert posterior.samples["0.weight"][1, -1].isnan().all()
        assert posterior.predict(classes[0]).mean.isfinite().all()


def test_a_list_of_variances_is_one_value_per_chain():
    prior = priors.Gaussian(variance=[0.1, 1.0])
    assert torch.equal(prior.variance, torch.tensor([0.1, 1.0]))
    with pytest.raises(ValueError, match="2 values for 3 chains"):
        Langevin(nn.Linear(2, 2), likelihoods.Categorical(), prior=prior, chains=3)


def test_step_takes_unsupervised_batches():
    loss = likelihoods.LogLoss(lambda out, y: (out - y).square().sum(1))
    sampler = Langevin(nn.Linear(2, 2), loss, step_size=1e-3, chains=2, num_data=10)
    state, info = sampler.step(sampler.init(), torch.rand(5, 2))
    assert info.loss.shape == (2,)
    assert int(state.step) == 1


def test_the_users_own_hooks_stay_on_the_networks_handed_out():
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_forward_hook(lambda module, inputs, output: output + 1)
    x = torch.rand(20, 2)
    sampler = Langevin(net, likelihoods.Categorical(), step_size=1e-4, chains=1)
    posterior = sampler.sample((x, x.argmax(1)), 3, batch_size=10, progress=False)
    with torch.no_grad():
        alone = posterior.network(0, 2)(x).softmax(-1)
    assert torch.allclose(alone, posterior.predict(x).samples[2])
    assert len(posterior.network(0, 2)[0]._forward_hooks) == 1
