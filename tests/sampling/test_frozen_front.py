"""A fixed front is computed once: the draws are those of the whole network."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.data.signature import Signature
from natural_langevin.run.checkpoint import CheckpointError
from natural_langevin.run.problem import frozen_front
from small_run import sample_until

OPTIONS = {"step_size": 1e-3, "prior": priors.Gaussian(1.0), "chains": 2, "init": "model"}


class WithHead(nn.Module):
    """As people write it: a body and a head of several layers, whose outputs are scaled."""

    def __init__(self, after: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after * self.head(self.body(x[:, None]))


def in_a_row() -> nn.Sequential:
    """A frozen body, two layers, and something without parameters behind them."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3),
        nn.LogSoftmax(-1),
    )  # fmt: skip


def fixed(net: nn.Module, *names: str) -> nn.Module:
    """The network with the parameters of these modules frozen."""
    for name in names:
        net.get_submodule(name).requires_grad_(False)
    return net


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 4, generator=generator), torch.arange(40) % 3


@pytest.mark.parametrize(
    ("net", "first"),
    [(fixed(in_a_row(), "0"), "1"), (fixed(WithHead(), "body"), "head.0"),
     (fixed(WithHead(), "body", "head.0"), "head.2")],
    ids=["in a row", "body and head", "last layer"],
)  # fmt: skip
def test_features_give_the_draws_of_the_whole_network(
    net: nn.Module, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A DataLoader has no features beforehand; with whole batches it is the same run otherwise."""
    x, y = rows()
    sampler = Langevin(net, likelihoods.Categorical(), compile=False, **OPTIONS)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, "natural_langevin"):
        fast = sampler.sample((x, y), 15, batch_size=40, progress=False)
    assert f"everything before layer {first} is frozen" in caplog.text
    slow = sampler.sample(DataLoader(TensorDataset(x, y), batch_size=40), 15, progress=False)
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    assert sorted(fast.samples) == sorted(slow.samples) == sorted(names)
    for name, value in slow.samples.items():
        torch.testing.assert_close(fast.samples[name], value, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(fast.predict(x).mean, slow.predict(x).mean)


def test_layers_that_are_not_the_end_are_sampled_in_their_place() -> None:
    x, y = rows()
    sampler = Langevin(fixed(WithHead(2.0), "body"), likelihoods.Categorical(), **OPTIONS)  # type: ignore[arg-type]
    assert frozen_front.split_off(sampler.model, sampler.signature, x) is None
    posterior = sampler.sample((x, y), 5, batch_size=20, progress=False)
    mean = torch.stack([posterior.network(c, d)(x).softmax(1) for c in (0, 1) for d in range(5)])
    torch.testing.assert_close(posterior.predict(x).mean, mean.mean(0))


def test_what_is_split_off() -> None:
    assert frozen_front.sampled_layers(in_a_row()) == []
    assert frozen_front.sampled_layers(WithHead()) == []
    assert frozen_front.sampled_layers(fixed(in_a_row(), "0", "1")) == ["3", "4"]
    assert frozen_front.sampled_layers(fixed(in_a_row(), "3")) == []
    assert frozen_front.sampled_layers(fixed(WithHead(), "head")) == ["body.0", "body.1", "body.2"]
    one = fixed(WithHead(), "body", "head")
    one.get_parameter("head.2.bias").requires_grad_(True)
    assert frozen_front.sampled_layers(one) == ["head.2"]


def test_too_many_features_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = rows()
    sampler = Langevin(fixed(in_a_row(), "0"), likelihoods.Categorical(), **OPTIONS)  # type: ignore[arg-type]
    found = frozen_front.split_off(sampler.model, sampler.signature, x)
    assert found is not None
    assert found[1].shape == (40, 6)
    monkeypatch.setattr(frozen_front, "MOST", 40 * 6 - 1)
    assert frozen_front.split_off(sampler.model, sampler.signature, x) is None


@pytest.mark.parametrize("parameters", ["2.weight", "2.bias"])
def test_a_part_of_a_layer_is_sampled_behind_its_features(parameters: str) -> None:
    x, y = rows()
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    options = {"step_size": 1e-3, "prior": priors.Gaussian(1.0), "chains": 2}
    sampler = Langevin.from_trained(
        net, likelihoods.Categorical(), parameters=[parameters], **options
    )
    posterior = sampler.sample((x, y), 5, batch_size=20, progress=False)
    assert list(posterior.samples) == [parameters]


class Bounded(nn.Module):
    """What is done to the outputs does not show where they are 0, or of one sign."""

    def __init__(self, bound: str) -> None:
        super().__init__()
        self.body, self.head, self.bound = nn.Linear(4, 6), nn.Linear(6, 3), bound
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, 0.1 if bound == "relu" else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.head(self.body(x))
        return h.relu() if self.bound == "relu" else 5 * (h / 5).tanh()


def shared_activation() -> nn.Sequential:
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 6), act, nn.Linear(6, 3))


def tied() -> nn.Sequential:
    net = nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)
    )
    net[4].weight = net[2].weight
    return net


@pytest.mark.parametrize(
    ("net", "layers"),
    [(fixed(Bounded("relu"), "body"), None), (fixed(Bounded("tanh"), "body"), None),
     (fixed(shared_activation(), "0"), ["2", "3", "4"]),
     (fixed(tied(), "0"), ["2", "3", "4", "5"])],
    ids=["relu behind", "tanh behind", "shared activation", "tied weights"],
)  # fmt: skip
def test_networks_that_look_as_if_they_could_be_cut(
    net: nn.Module, layers: list[str] | None
) -> None:
    """Each is either cut where it may be or not at all, and its parameters are the network's."""
    x, _ = rows()
    sampler = Langevin(net, likelihoods.Categorical(), **OPTIONS)  # type: ignore[arg-type]
    found = frozen_front.split_off(sampler.model, sampler.signature, x)
    assert (None if found is None else found[0].layers) == layers
    if found is not None:
        names = [name for name, p in net.named_parameters() if p.requires_grad]
        assert [name for name, _ in found[0].named_parameters()] == names
        torch.testing.assert_close(found[0](found[1]), net(x))


@pytest.mark.self_checked
def test_what_is_random_or_empty_is_refused_as_ever() -> None:
    class Random(WithHead):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(nn.functional.dropout(self.body(x[:, None]), training=True))

    x, y = rows()
    sampler = Langevin(fixed(Random(), "body"), likelihoods.Categorical(), **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="forward pass is random"):
        sampler.sample((x, y), 5, progress=False)
    sampler = Langevin(fixed(WithHead(), "body"), likelihoods.Categorical(), **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        sampler.sample((x[:0], y[:0]), 5, progress=False)


def test_widths_of_noise_are_learned_behind_a_frozen_front_too() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 4, generator=generator)
    noise = torch.randn(200, 1, generator=generator)
    y = x[:, :1] + 0.1 * torch.where(torch.arange(200)[:, None] % 10 == 0, 20 * noise, noise)
    net = fixed(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), "0")
    posterior = Langevin(net, likelihoods.Gaussian("rmse"), chains=2).sample(
        (x, y), 600, progress=False
    )
    assert posterior.config["noise_widths"] is not None


def rounded_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features as another machine, or another number of threads, computes them."""
    features = frozen_front._features

    def other(model: nn.Module, name: str, signature: Signature, x: Tensor) -> Tensor:
        found = features(model, name, signature, x)
        return torch.nextafter(found, torch.ones_like(found))

    monkeypatch.setattr(frozen_front, "_features", other)


def test_a_run_goes_on_where_features_are_rounded_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What makes it the same run are the user's data and network."""
    x, y = rows()
    torch.manual_seed(0)
    net = fixed(in_a_row(), "0")
    sampler = Langevin(net, likelihoods.Categorical(), **OPTIONS)  # type: ignore[arg-type]

    def run(sampler: Langevin = sampler, x: Tensor = x) -> None:
        sampler.sample((x, y), 9, batch_size=20, checkpoint=tmp_path, every=3, progress=False)

    sample_until(monkeypatch, 5, run)
    rounded_otherwise(monkeypatch)
    with caplog.at_level(logging.INFO, "natural_langevin"):
        run()
    assert "resuming at step 3" in caplog.text
    with pytest.raises(CheckpointError, match="data"):
        run(x=x + 1)
    other = copy.deepcopy(net)
    other.get_submodule("0.0").get_parameter("bias").data.neg_()
    with pytest.raises(CheckpointError, match="model"):
        run(Langevin(other, likelihoods.Categorical(), **OPTIONS))  # type: ignore[arg-type]
