"""Torch's operations on small networks take one thread; the engine in C as many as it may."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods, priors
from natural_langevin._internal import threads
from natural_langevin.posterior.prediction import Averager


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Seeing(nn.Module):
    """Notes the threads of torch and of engines while a network is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, int]] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add((torch.get_num_threads(), threads.of_engines()))
        return x

    def __deepcopy__(self, memo: dict[int, object]) -> Seeing:
        return self


def seen_within(network: nn.Module, x: torch.Tensor) -> set[tuple[int, int]]:
    """Threads of torch and of engines while a run is under way; callbacks see the user's own."""
    network = nn.Sequential(seeing := Seeing(), network)
    sampler = Langevin(
        network, likelihoods.Categorical(), prior=priors.Gaussian(1.0), step_size=1e-4, chains=2
    )
    called = set()
    sampler.sample(
        (x, torch.zeros(len(x), dtype=torch.long)), 60, batch_size=10, progress=False,
        callback=lambda _: called.add((torch.get_num_threads(), threads.of_engines())),
    )  # fmt: skip
    assert called == {(2, 2)}
    return seeing.seen


def test_one_for_torch_and_all_for_the_engine() -> None:
    network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    assert seen_within(network, torch.randn(20, 2)) == {(1, 2)}
    assert torch.get_num_threads() == threads.of_engines() == 2


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (nn.Linear(1001, 2), (1001,)),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), (1, 4, 4)),
    ],
    ids=["wide", "convolution"],
)
def test_large_ones_keep_theirs(network: nn.Module, shape: tuple[int, ...]) -> None:
    assert seen_within(network, torch.randn(20, *shape)) == {(2, 2)}


def test_an_error_gives_them_back() -> None:
    network = nn.Linear(2, 2)
    sampler = Langevin(network, likelihoods.Categorical())
    with pytest.raises(ValueError, match="NaN"):
        sampler.sample((torch.full((20, 2), torch.nan), torch.zeros(20, dtype=torch.long)))
    assert torch.get_num_threads() == threads.of_engines() == 2


def test_predictions_of_few_numbers_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Langevin(nn.Linear(2, 2), likelihoods.Categorical(), step_size=1e-4, chains=2)
    given = torch.randn(20, 2), torch.zeros(20, dtype=torch.long)
    posterior = sampler.sample(given, 8, batch_size=10, progress=False)
    seen, add = [], Averager.add
    monkeypatch.setattr(
        Averager, "add", lambda self, o: (seen.append(torch.get_num_threads()), add(self, o))
    )
    posterior.predict(given[0])
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
    seen.clear()
    posterior.predict(torch.randn(10_000, 2), batch_size=10_000)
    assert set(seen) == {2}
