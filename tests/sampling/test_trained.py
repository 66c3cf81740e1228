"""A trained network as the start: which weights move, from where, and that predictions gain."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from natural_langevin import Langevin, Posterior, dynamics, likelihoods, models, priors
from natural_langevin.recipe import rules as recipe
from natural_langevin.run.problem import trained


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two moons with a fifth of noise."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.pi * torch.rand(count, generator=generator)
    y = torch.randint(0, 2, (count,), generator=generator)
    sign = 1 - 2 * y
    x = torch.stack([angle.cos() * sign + 0.5 * y, angle.sin() * sign + 0.25 * y], 1)
    return x + 0.3 * torch.randn(count, 2, generator=generator), y


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """Trained far enough to be too sure of itself, as people's networks are."""
    torch.manual_seed(0)
    net = models.mlp(2, 2, (20, 20), activation=nn.Tanh)
    x, y = rows(100, 0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(600):
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("parameters", ["last", pytest.param("all", marks=pytest.mark.thorough)])
def test_predictions_are_not_worse_than_the_trained_networks(
    network: nn.Module, parameters: str
) -> None:
    """On 1,000 new rows, within two standard errors of the difference; here they gain a lot."""
    train, test = rows(100, 0), rows(1000, 2)
    sampler = Langevin.from_trained(
        network, likelihoods.Categorical(), parameters=parameters, held_out=rows(100, 1)
    )
    posterior = sampler.sample(train, progress=False)
    with torch.no_grad():
        alone = cross_entropy(network(test[0]), test[1], reduction="none")
    ours = -posterior.predict_dist(test[0]).log_prob(test[1])
    gain = alone - ours
    assert gain.mean() > -2 * gain.std() / 1000**0.5
    assert "held-out" in posterior.plan.reasons["prior"]
    assert posterior.config["init"] == "model"


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_posterior_that_is_worse_than_the_network_gives_it_weight(
    kind: str, network: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under a prior that shrinks the last layer to nothing; saved and loaded too."""
    train, held_out = rows(60, 0), rows(60, 1)
    likelihood: likelihoods.Likelihood = likelihoods.Categorical()
    if kind == "numbers":
        likelihood = likelihoods.Gaussian(sigma=1.0)
        train, held_out = ((x, network(x).detach() + x.sin()) for x, _ in (train, held_out))
    sampler = Langevin.from_trained(
        network, likelihood, held_out=held_out, prior=priors.Gaussian(variance=1e-6), chains=2,
        step_size=0.1, dynamics=dynamics.Overdamped(),
    )  # fmt: skip
    posterior = sampler.sample(train, steps=120, batch_size=60, burn_in=80, progress=False)
    x, y = held_out
    own = posterior.of_weights(dict(network.named_parameters())).evaluate(x, y).nll
    assert posterior.calibrated(False).evaluate(x, y).nll > own + 0.05
    assert posterior.evaluate(x, y).nll < own + 1e-3
    assert 0.5 < posterior.config["trained_share"] <= 1
    assert "its own predictions are mixed in with weight" in caplog.text
    posterior.save(tmp_path)
    again = Posterior.load(tmp_path, trained.chosen(network, "last"))
    torch.testing.assert_close(again.predict(x).mean, posterior.predict(x).mean)


def test_the_last_layer_moves_and_nothing_else(network: nn.Module, tmp_path) -> None:
    x, y = rows(100, 0)
    sampler = Langevin.from_trained(network, likelihoods.Categorical(), chains=2)
    posterior = sampler.sample((x, y), 300, progress=False)
    assert sorted(posterior.samples) == ["4.bias", "4.weight"]
    one = posterior.network(1, 3)
    for name, value in network.named_parameters():
        assert torch.equal(one.get_parameter(name), value) == (not name.startswith("4."))
    mean = torch.stack([posterior.network(c, d)(x).softmax(1) for c in (0, 1) for d in range(200)])
    torch.testing.assert_close(posterior.predict(x).mean, mean.mean(0))
    posterior.save(tmp_path / "p")
    loaded = Posterior.load(tmp_path / "p", trained.chosen(network, "last"))
    assert torch.equal(loaded.predict(x).mean, posterior.predict(x).mean)
    assert not sampler.effective_temperature((x, y), posterior=posterior, steps=20).wrong


def test_patterns_choose_the_weights(network: nn.Module) -> None:
    biases = Langevin.from_trained(network, likelihoods.Categorical(), parameters="*.bias")
    assert sorted(biases.init().params) == ["0.bias", "2.bias", "4.bias"]
    two = Langevin.from_trained(network, likelihoods.Categorical(), parameters=["0.*", "4.bias"])
    assert sorted(two.init().params) == ["0.bias", "0.weight", "4.bias"]
    assert torch.equal(two.init().params["0.weight"][1], network.get_parameter("0.weight"))
    with pytest.raises(ValueError, match=r'"adapters" or patterns of parameter names, got \'h'):
        Langevin.from_trained(network, likelihoods.Categorical(), parameters="head.*")


def test_without_rows_that_are_new_the_prior_has_the_weights_size(network: nn.Module) -> None:
    sampler = Langevin.from_trained(network, likelihoods.Categorical(), chains=2)
    weight = network.get_parameter("4.weight").detach()
    wanted = float(weight.square().mean())
    assert float(sampler.problem.prior["4.weight"].variance) == pytest.approx(wanted)  # type: ignore[attr-defined]
    assert trained.size({"w": weight[None]}) == pytest.approx(wanted * 20 / 2)
    every = Langevin.from_trained(network, likelihoods.Categorical(), parameters="all", chains=2)
    assert every.given.scale_open  # nothing is fixed: folds of the data choose
    assert recipe.prior(2.0).gain == pytest.approx(2.0)


def test_batch_norm_has_the_statistics_of_training(caplog: pytest.LogCaptureFixture) -> None:
    """As an affine layer, whose weight and bias are sampled like any others; the user's own
    network stays in the mode it is in."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    x, y = rows(40, 0)
    net(x)
    with pytest.raises(ValueError, match=r"training mode.*Call model.eval\(\) first"):
        Langevin(net, likelihoods.Categorical(), step_size=1e-3)
    with caplog.at_level("INFO"):
        sampler = Langevin.from_trained(
            net, likelihoods.Categorical(), parameters="1.*", chains=2, step_size=1e-3, num_data=40
        )
    assert "1 layers with running statistics (1, ...) are in evaluation mode" in caplog.text
    assert net[1].training
    before = sampler.init()
    state, _ = sampler.step(before, (x, y))
    assert set(state.params) == {"1.weight", "1.bias"}
    assert not torch.equal(state.params["1.weight"], before.params["1.weight"])
    one = copy.deepcopy(net).eval()
    samples = torch.stack(
        [
            torch.autograd.grad(cross_entropy(one(x[n : n + 1]), y[n : n + 1]), one[1].weight)[0]
            for n in range(len(x))
        ]
    )
    torch.testing.assert_close(state.metric["second"]["1.weight"][0], samples.square().mean(0))


def test_a_prior_around_the_trained_weights(network: nn.Module) -> None:
    sampler = Langevin.from_trained(
        network, likelihoods.Categorical(), parameters="all", prior="anchored", chains=2
    )
    for name, p in network.named_parameters():
        own = sampler.problem.prior[name]
        assert torch.equal(own.mean[0], p)
        size = float(p.detach().double().square().mean())
        assert own.variance == pytest.approx(size, rel=1e-4)
    assert sampler.describe()["init"] == "model"
    with pytest.raises(ValueError, match="anchored"):
        Langevin.from_trained(network, likelihoods.Categorical(), prior="around")


class Adapted(nn.Module):
    """A linear layer with weights named as those of the peft package."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def test_adapters_by_name() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Adapted(nn.Linear(2, 6)), nn.Tanh(), Adapted(nn.Linear(6, 2)))
    sampler = Langevin.from_trained(
        net, likelihoods.Categorical(), parameters="adapters", prior="anchored", chains=2,
        step_size=1e-2,
    )  # fmt: skip
    names = [f"{k}.lora_{ab}.default.weight" for k in (0, 2) for ab in "AB"]
    assert list(sampler.init().params) == names
    found = sampler.sample(rows(100, 0), 5, progress=False)
    moved = found.network(0, -1)
    assert torch.equal(moved[0].base_layer.weight, net[0].base_layer.weight)
    assert bool(moved[0].lora_B["default"].weight.any())
    with pytest.raises(ValueError, match="peft"):
        trained.chosen(nn.Linear(2, 2), "adapters")
